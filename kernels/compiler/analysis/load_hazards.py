"""What loads that run ahead of the rest of a kernel must not pass: writes to what they read, and waits for others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

from warpplan.kernels.compiler.analysis.operation_kinds import CONVERTED, RING_LOADS
from warpplan.kernels.compiler.analysis.value_flow import Definition, origins
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.ttgir.control import read_while
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module
from warpplan.kernels.compiler.ttgir.source_locations import source_line

WRITES = frozenset(
    {
        "tt.store", "tt.descriptor_store", "tt.descriptor_reduce", "tt.descriptor_scatter", "tt.atomic_rmw",
        "tt.atomic_cas",
    }
)  # fmt: skip
ASSEMBLY = frozenset({"tt.elementwise_inline_asm", "tt.extern_elementwise"})


def refuse_hazards(module: Module, defined: dict[str, Definition], kept: set[int]) -> None:
    """Raise :class:`CannotPlan` where the loads of ``module``'s kernel that fill rings, and the operations ``kept`` for
    them, by identity, cannot run ahead of everything else. ``defined`` are the kernel's names."""

    def refuse(operation: IrOperation, reason: str) -> NoReturn:
        raise CannotPlan(reason, operation.name.strip('"'), source_line(module, operation))

    operations = list(module.function.walk())
    for operation in operations:
        if operation.name == "tt.atomic_cas" or (operation.name == "tt.load" and is_volatile(operation)):
            refuse(operation, "programs wait for one another; loads that run ahead would not")
        if operation.name == "tt.call":
            refuse(operation, "what the function does is not known; loads that run ahead could pass it")
        if operation.name in ASSEMBLY and operation.attributes.get("pure") != "true":
            refuse(operation, "it may act on anything; loads that run ahead could pass it")
    waiting = next(spins(module.function), None)
    if waiting is not None:
        refuse(waiting, "a loop waits for it; loads that run ahead would not")
    written = {base for op in operations if op.name in WRITES for base in origins(op.operands[0], defined)}
    for operation in operations:
        if operation.name == CONVERTED:
            continue  # what it is computed from is looked at itself
        if operation.name not in RING_LOADS and (operation.name != "tt.load" or id(operation) not in kept):
            continue
        both = written & origins(operation.operands[0], defined)
        if both:
            what = ", ".join(sorted(both))
            refuse(operation, f"the kernel also writes {what}; loads that run ahead could miss it")


def is_volatile(operation: IrOperation) -> bool:
    return operation.attributes.get("isVolatile", "false") != "false"


def cache_modifier(operation: IrOperation) -> str:
    """What a load or a store says that caches are to do: ``cv``, ``wt``, …; "" for nothing. Triton 3.9 prints it within
    a policy."""
    found = re.search(r"cache_?modifier = (\w+)", operation.text(), re.IGNORECASE)
    return "" if found is None or found[1] == "none" else found[1]


def spins(function: IrOperation) -> Iterator[IrOperation]:
    """What a ``scf.while`` of ``function`` may wait for: memory that its condition reads at the same place every time,
    or an atomic operation in it whose result something uses."""
    operations = list(function.walk())
    used = {name for operation in operations for name in operation.operands}
    for loop in operations:
        if loop.name == "scf.while":
            moving = {inside for inside, *_ in read_while(loop).carried}
            for operation in loop.regions[0].walk():
                if operation.name == "tt.load" and operation.operands[0] not in moving:
                    yield operation
                if not moving.isdisjoint(operation.operands):
                    moving.update(operation.defined)
            yield from (op for op in loop.walk() if op.name.startswith("tt.atomic_") and op.result_in(used))
