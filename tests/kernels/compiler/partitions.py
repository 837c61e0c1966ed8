"""A specialised block run in numpy: its partitions run at random, one at a time, at every barrier and TMA load.

Made to show races: a TMA load overwrites its slot at once, and an asynchronous product reads its slots as late as it
may, when it is waited for. What no slot was filled with is NaN. Partitions that all wait are a deadlock. A copy by
``cp.async`` wipes its slot at once and lands when its partition arrives for it; a product that reads what landed since
its partition's last fence fails.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from interpreter import Block, Values, operand_list

from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region
from warpplan.kernels.compiler.ttgir.printed_shapes import shapes_in
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

PATIENCE_S = 120.0
"""A partition that gets no turn for so long never will."""


class Deadlock(Exception):
    """Every partition that is left waits."""


@dataclass
class Barrier:
    """An mbarrier: a phase ends when ``pending`` arrivals and ``bytes_left`` are both down to none."""

    count: int = 0
    pending: int = 0
    bytes_left: int = 0
    phase: int = 0

    def change(self, arrivals: int, more_bytes: int) -> None:
        self.pending -= arrivals
        self.bytes_left += more_bytes
        assert self.pending >= 0
        if self.pending == 0 and self.bytes_left == 0:
            self.phase, self.pending = self.phase + 1, self.count


class Product:
    """An asynchronous product, computed once."""

    def __init__(self, compute: Callable[[], np.ndarray]) -> None:
        self._compute = compute
        self._value: np.ndarray | None = None

    def value(self) -> np.ndarray:
        if self._value is None:
            self._value = self._compute()
        return self._value


class Turns:
    """Lets one thread at a time run; at a pause the next is drawn among those whose condition holds."""

    def __init__(self, seed: int) -> None:
        self.draw, self.changed = random.Random(seed), threading.Condition()
        self.waiting: dict[str, Callable[[], bool]] = {}
        self.running, self.stuck = "", False

    def pause(self, name: str, until: Callable[[], bool] = lambda: True) -> None:
        with self.changed:
            self.waiting[name] = until
            self._next()
            self.enter(name)

    def enter(self, name: str) -> None:
        with self.changed:
            came = self.changed.wait_for(lambda: self.running == name or self.stuck, PATIENCE_S)
            if self.stuck or not came:
                raise Deadlock(f"{', '.join(sorted(self.waiting))} wait for one another")

    def start(self, names: list[str]) -> None:
        with self.changed:
            self.waiting = dict.fromkeys(names, lambda: True)
            self._next()

    def leave(self, name: str) -> None:
        with self.changed:
            self.waiting.pop(name, None)
            self._next()

    def _next(self) -> None:
        ready = sorted(name for name, condition in self.waiting.items() if condition())
        self.stuck = self.stuck or (bool(self.waiting) and not ready)
        self.running = self.draw.choice(ready) if ready else ""
        self.changed.notify_all()


class Partition(Block):
    """The default partition and what is around it; it starts the others."""

    TURNS: type[Turns] = Turns

    def __init__(
        self, module: Module, arguments: Values, buffers: list[np.ndarray], program: tuple[int, ...], seed: int,
        programs: tuple[int, ...] = (1, 1, 1),
    ) -> None:  # fmt: skip
        super().__init__(module, arguments, buffers, program, programs)
        self.name, self.turns = "default", self.TURNS(seed)
        self.flying: list[Product] = []
        self.warps = int(module.operation.attributes["ttg.num-warps"].split()[0])
        self.copying: list[tuple[np.ndarray, np.ndarray]] = []
        self.landed: list[np.ndarray] = []
        """Slots that copies of any partition have landed in, in order."""
        self.fenced = 0
        """How many of them this partition's products may read."""

    def shapes(self, operation: IrOperation) -> dict[str, tuple[int, ...]]:
        unchecked = ("scf.", "ttg.local_alloc", "ttg.memdesc", "ttg.async_copy", "ttng.")
        return {} if operation.name.startswith(unchecked) else super().shapes(operation)

    def _operation(self, operation: IrOperation, values: Values) -> list[Any]:
        if operation.name == "ttg.warp_specialize":
            return self._specialize(operation, values)
        if operation.name in ("scf.for", "scf.while", "scf.if"):
            return super()._operation(operation, values)
        operands = [values[name] for name in operand_list(operation)]
        if operation.name in self.OWN:
            result = self.OWN[operation.name](self, operation, operands)
            return result if isinstance(result, list) else [] if result is None else [result]
        if operation.name == "ttg.local_alloc" and not operands:
            return [_allocated(_type(operation, -1))]
        result = self._plain(operation, [_value(operand) for operand in operands])
        return result if isinstance(result, list) else [] if result is None else [result]

    def _specialize(self, operation: IrOperation, values: Values) -> list[Any]:
        heads, head = [], ""
        for part in operation.parts:
            heads, head = ([*heads, head], "") if isinstance(part, Region) else (heads, head + part)
        captured = re.findall(r"%[\w.$#-]+", heads[0].partition("attributes")[0])
        others, failures, yielded = [], [], {}

        def run(partition: Partition, region: Region, inside: Values) -> None:
            try:
                partition.turns.enter(partition.name)
                yielded[partition.name] = partition._region(region, inside)
            except Exception as failure:
                failures.append(failure)
            finally:
                partition.turns.leave(partition.name)

        work = [(self, operation.regions[0], values)]
        for number, (region, text) in enumerate(zip(operation.regions[1:], heads[1:], strict=True)):
            other = object.__new__(type(self))
            other.__dict__ |= self.__dict__ | {
                "name": f"partition{number}",
                "warps": int(text.rpartition("num_warps(")[2].partition(")")[0]),
                "flying": [],
                "copying": [],
                "addresses": [],
                "values": [],
            }
            others.append(other)
            names = re.findall(r"(%[\w.$-]+):", text)
            work.append((other, region, dict(zip(names, [values[name] for name in captured], strict=True))))
        threads = [threading.Thread(target=run, args=entry) for entry in work]
        self.turns.start([partition.name for partition, _, _ in work])
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise next((f for f in failures if not isinstance(f, Deadlock)), failures[0])
        for other in others:
            self.addresses += other.addresses
            self.values += other.values
        return yielded[self.name]

    def _expect(self, operation: IrOperation, operands: list[Any]) -> None:
        size = re.search(r", (\d+)", _text(operation))
        assert size is not None
        assert operands[1]
        operands[0][0].change(1, int(size.group(1)))
        self.turns.pause(self.name)

    def _init(self, operation: IrOperation, operands: list[Any]) -> None:
        count = re.search(r", (\d+)", _text(operation))
        assert count is not None
        operands[0][0].count = operands[0][0].pending = int(count.group(1))

    def _wait_barrier(self, _: IrOperation, operands: list[Any]) -> None:
        barrier, parity = operands[0][0], int(operands[1])
        self.turns.pause(self.name, lambda: barrier.phase % 2 != parity)

    def _arrive(self, _: IrOperation, operands: list[Any]) -> None:
        if len(operands) < 2 or operands[1]:
            operands[0][0].change(1, 0)
        self.turns.pause(self.name)

    def _fill(self, operation: IrOperation, operands: list[Any]) -> None:
        descriptor, *coordinates, slot, barrier, condition = operands
        assert condition
        tile = self._load(*descriptor.box(coordinates, _type(operation, 0).shape), 0.0)
        slot[...] = tile.reshape(slot.shape)
        barrier[0].change(0, -_type(operation, -1).bytes)
        self.turns.pause(self.name)

    def _copy(self, _: IrOperation, operands: list[Any]) -> np.ndarray:
        pointers, slot, *mask = operands
        tile = self._load(pointers, mask[0] if mask else np.ones_like(pointers, bool), 0.0)
        slot[...] = np.nan
        self.copying.append((slot, tile))
        self.turns.pause(self.name)
        return np.zeros(())  # a token

    def _land_copies(self, operation: IrOperation, operands: list[Any]) -> None:
        assert "noIncrement" in operation.attributes
        for slot, tile in self.copying:
            slot[...] = tile
            self.landed.append(slot)
        self.copying.clear()
        operands[0][0].change(32 * self.warps, 0)
        self.turns.pause(self.name)

    def _fence(self, _: IrOperation, __: list[Any]) -> None:
        self.fenced = len(self.landed)

    def _drain(self, _: IrOperation, operands: list[Any]) -> None:
        descriptor, *coordinates, slot = operands
        addresses, inside = descriptor.box(coordinates, slot.shape)
        self._store(addresses, slot.copy(), inside)

    def _dot(self, operation: IrOperation, operands: list[Any]) -> Any:
        a, b, accumulator = operands[:3]
        unseen = [
            s for s in self.landed[self.fenced :] for x in (a, b) if np.may_share_memory(s, np.asarray(_value(x)))
        ]
        assert not unseen, "a product reads what was copied since the last fence"
        product = Product(lambda: np.asarray(_value(a)) @ np.asarray(_value(b)) + _value(accumulator))
        self.flying.append(product)
        if "isAsync" not in operation.attributes:
            self._land(0)
        return product

    def _land(self, pending: int) -> None:
        while len(self.flying) > pending:
            self.flying.pop(0).value()

    def _wait_dots(self, operation: IrOperation, operands: list[Any]) -> list[Any]:
        self._land(int(operation.attributes["pendings"].split()[0]))
        return operands

    def _nothing(self, _: IrOperation, __: list[Any]) -> None: ...

    def _write(self, _: IrOperation, operands: list[Any]) -> None:
        operands[1][...] = _value(operands[0])

    def _read_slot(self, operation: IrOperation, operands: list[Any]) -> np.ndarray:
        """Whole numbers where pointers led to them; what TMA loads is as it is in its buffer."""
        slot = operands[0]
        whole = _type(operation, -1).element.startswith("i") and any(np.may_share_memory(slot, s) for s in self.landed)
        return slot.astype(np.int64) if whole else slot.copy()

    def _part(self, operation: IrOperation, operands: list[Any]) -> np.ndarray:
        first = re.search(r"\[([-\d, ]+)\]", _text(operation))
        assert first is not None
        sizes = shapes_in(operation.parts)[-1].shape
        starts = (int(n) for n in first.group(1).split(","))
        return operands[0][tuple(slice(at, at + size) for at, size in zip(starts, sizes, strict=True))]

    OWN: dict[str, Callable[..., Any]] = {  # noqa: RUF012
        "ttg.memdesc_index": lambda _, __, operands: operands[0][int(operands[1])],
        "ttg.memdesc_subslice": _part,
        "ttng.init_barrier": _init,
        "ttng.barrier_expect": _expect,
        "ttng.wait_barrier": _wait_barrier,
        "ttng.arrive_barrier": _arrive,
        "ttng.async_tma_copy_global_to_local": _fill,
        "ttng.async_tma_copy_local_to_global": _drain,
        "ttng.async_tma_store_wait": _nothing,
        "ttng.fence_async_shared": _fence,
        "ttg.async_copy_global_to_local": _copy,
        "ttng.async_copy_mbarrier_arrive": _land_copies,
        "ttng.warp_group_dot": _dot,
        "ttng.warp_group_dot_wait": _wait_dots,
        "ttg.local_load": _read_slot,
        "ttg.local_store": _write,
        "ttg.warp_return": _nothing,
    }


def _value(operand: Any) -> Any:
    return operand.value() if isinstance(operand, Product) else operand


def _text(operation: IrOperation) -> str:
    return "".join(part for part in operation.parts if isinstance(part, str))


def _type(operation: IrOperation, at: int) -> ShapedType:
    kind = parse_type(find_types(operation.signature)[at])
    assert kind is not None
    return kind


def _allocated(kind: ShapedType) -> np.ndarray:
    if kind.element != "i64":
        return np.full(kind.shape, np.nan)
    barriers = np.empty(kind.shape, object)
    for place in np.ndindex(*kind.shape):
        barriers[place] = Barrier()
    return barriers
