"""A kernel finished for Blackwell, run in numpy: partitions as in :mod:`partitions`, and the tensor cores.

A product is issued and done some time later, in the order of those that issued from its partition: it reads its slots
and writes tensor memory then, and then its barriers get their arrivals. When that is is drawn; as late as it may be is
when every partition waits. Tensor memory that nobody wrote is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from interpreter import Values
from partitions import Partition, Turns, _allocated, _type, _value

from warpplan.kernels.compiler.inspection.finished import completed
from warpplan.kernels.compiler.ttgir.ir import IrOperation


class TensorCores(Turns):
    """Turns between which products are done: what each partition has issued, the oldest first."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.late = seed == 0
        self.issued: dict[str, list[Callable[[], None]]] = {}

    def _next(self) -> None:
        while any(self.issued.values()):
            stuck = not any(condition() for condition in self.waiting.values())
            if not stuck and (self.late or self.draw.random() < 0.7):
                break
            name = self.draw.choice(sorted(name for name, work in self.issued.items() if work))
            self.issued[name].pop(0)()
        super()._next()


class BlackwellPartition(Partition):
    """One partition of a kernel for Blackwell."""

    TURNS = TensorCores

    def _operation(self, operation: IrOperation, values: Values) -> list[Any]:
        if operation.name not in ("ttng.tc_gen5_mma", "ttng.tc_gen5_commit"):
            return super()._operation(operation, values)
        named = [(values[name], values[when] if when else True) for name, when in completed(operation)]
        product = operation.name == "ttng.tc_gen5_mma"
        if product:
            (a, b, d, adds, runs), named = [value for value, _ in named[:5]], named[5:]

        def done() -> None:
            if product and runs:
                d[...] = np.asarray(_value(a)) @ np.asarray(_value(b)) + (d if adds else 0.0)
            for barrier, when in named:
                if when:
                    barrier[0].change(1, 0)

        assert isinstance(self.turns, TensorCores)
        self.turns.issued.setdefault(self.name, []).append(done)
        self.turns.pause(self.name)
        return []

    def shapes(self, operation: IrOperation) -> dict[str, tuple[int, ...]]:
        return {} if operation.name.startswith("ttg.") else super().shapes(operation)

    def _wait_barrier(self, operation: IrOperation, operands: list[Any]) -> None:
        if len(operands) < 3 or operands[2]:
            super()._wait_barrier(operation, operands)

    def _expect(self, operation: IrOperation, operands: list[Any]) -> None:
        if operands[1]:
            super()._expect(operation, operands)

    def _fill(self, operation: IrOperation, operands: list[Any]) -> None:
        if operands[-1]:
            super()._fill(operation, operands)

    def _allocate(self, operation: IrOperation, operands: list[Any]) -> np.ndarray:
        return np.array(_value(operands[0])) if operands else _allocated(_type(operation, -1))

    def _columns(self, operation: IrOperation, operands: list[Any]) -> np.ndarray:
        named = operation.attributes.get("N") or operation.attributes["offset"]  # since 3.9
        first, size = int(named.split()[0]), _type(operation, -1).shape[-1]
        return operands[0][..., first : first + size]

    def _store_tile(self, _: IrOperation, operands: list[Any]) -> None:
        tile, place, runs = operands
        if runs:
            place[...] = _value(tile)

    OWN = Partition.OWN | {
        "ttng.wait_barrier": _wait_barrier,
        "ttng.barrier_expect": _expect,
        "ttng.async_tma_copy_global_to_local": _fill,
        "ttng.tmem_alloc": _allocate,
        "ttng.tmem_load": lambda _, __, operands: operands[0].copy(),
        "ttng.tmem_store": _store_tile,
        "ttng.tmem_subslice": _columns,
        "ttng.inval_barrier": Partition._nothing,
        "ttg.local_dealloc": Partition._nothing,
        "ttng.fence": Partition._nothing,
    }
