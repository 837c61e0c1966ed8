"""What an assignment is of: the loads of a kernel's loops and the operands that are computed before a product.

    %b8 = tt.descriptor_load …                     anchor: which producer loads it
    %b = arith.sitofp %b8
    %t = warpplan.converted %b                     anchor: which partition computes it, written where that is another
    %s = ttg.local_alloc %t                        than the one that multiplies
    ttng.warp_group_dot %a, %s, …

An assignment has a number for each anchor, in the order of the program. 0 is where it is without one: a load in the
producer, an operand in each consumer. Another number is a partition of its own, for loads or for operands; anchors of
one number are together. What lies between two anchors follows: arithmetic is done where its result is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpplan.kernels.compiler.analysis.copies.addresses import may_repeat, nesting, read_by
from warpplan.kernels.compiler.analysis.operation_kinds import (
    CONTROL,
    CONVERTED,
    COPY_LOAD,
    LOOPS,
    TMA_LOAD,
    WGMMA,
    short_name,
)
from warpplan.kernels.compiler.analysis.value_flow import PLAIN, Definition, definitions
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region
from warpplan.kernels.compiler.ttgir.parsing import parse_operation
from warpplan.kernels.compiler.ttgir.source_locations import source_line
from warpplan.kernels.compiler.ttgir.types import find_types

FILLER = "warpplan.filler"
"""Attribute of a load or a converted operand: the partition that fills its slot, by its number in the assignment."""
_VIEWS = frozenset({"ttg.memdesc_trans", "ttg.memdesc_reshape", "ttg.memdesc_subslice"})
_ELEMENTWISE = frozenset({"tt.fp_to_fp", "tt.clampf", "tt.join", "tt.split", "ttg.convert_layout", "tt.bitcast"})
"""What a converter may do, beside what a producer may repeat."""


def anchors(module: Module) -> list[IrOperation]:
    """The anchors of ``module``'s kernel, whose names are unique, in the order of the program: loads, and the
    ``ttg.local_alloc`` of each computed operand."""
    around, defined = nesting(module.function), definitions(module.function)
    inside = [op for op in module.function.walk() if any(outer.name in LOOPS for outer in around.get(id(op), ()))]
    multiplied = _multiplied(inside)
    return [
        op for op in inside
        if op.name in (TMA_LOAD, COPY_LOAD)
        or (op.name == "ttg.local_alloc" and op.result in multiplied and _computed(op, defined))
    ]  # fmt: skip


def assign(module: Module, assignment: Sequence[int]) -> None:
    """Mark the anchors of ``module``'s kernel with ``assignment`` and write the converted operands. Raises
    :class:`CannotPlan` where the assignment is none of this kernel's."""
    if not assignment:
        return
    found = anchors(module)
    if len(found) != len(assignment):
        raise CannotPlan(f"an assignment of {len(assignment)} anchors, where the kernel has {len(found)}")
    loads = {n for op, n in zip(found, assignment, strict=True) if op.name != "ttg.local_alloc"}
    operands = {n for op, n in zip(found, assignment, strict=True) if op.name == "ttg.local_alloc" and n}
    if both := loads & operands:
        raise CannotPlan(f"partition {min(both)} both loads and converts, which is not lowered")
    moved = {}
    for number, (operation, partition) in enumerate(zip(found, assignment, strict=True)):
        if operation.name != "ttg.local_alloc":
            operation.set_attribute(FILLER, f"{partition} : i64")
        elif partition:
            moved[id(operation)] = (number, partition)
    defined = definitions(module.function)
    for operation in found:
        if id(operation) in moved and (why := refusal(operation, defined)) is not None:
            at, reason = why
            raise CannotPlan(reason, short_name(at), source_line(module, at))
    _write(module.function, moved)


def refusal(operand: IrOperation, defined: dict[str, Definition]) -> tuple[IrOperation, str] | None:
    """Why ``operand``, the ``ttg.local_alloc`` of a computed one, cannot be made by another partition, and the
    operation at fault; ``None`` where it can."""
    fed, seen, work = False, set[str](), list(operand.operands)
    while work:
        name = work.pop()
        if name in seen or name not in defined:
            continue
        seen.add(name)
        made = defined[name]
        if made.operation.name in (TMA_LOAD, COPY_LOAD):
            fed = True
        elif made.operation.name == "tt.load":
            return made.operation, "a converter is given no registers for the addresses of what it loads itself"
        elif made.operation.name == "scf.while":
            return made.operation, "an operand that a scf.while carries is not converted elsewhere"
        elif made.operation.name in CONTROL:
            work += made.sources
        elif may_repeat(made.operation) or made.operation.name in _ELEMENTWISE:
            work += read_by(made.operation)
        else:
            return made.operation, "a converted operand depends on it, which only the consumers compute"
    return None if fed else (operand, "nothing that it is computed from is loaded into a ring")


def _multiplied(operations: list[IrOperation]) -> set[str]:
    """The names of shared memory that products read, through views too."""
    found = {name for op in operations if op.name == WGMMA for name in op.operands[:2]}
    for operation in reversed(operations):
        if operation.name in _VIEWS and operation.result in found:
            found.add(operation.operands[0])
    return found


def _computed(operation: IrOperation, defined: dict[str, Definition]) -> bool:
    """Whether what is put into shared memory was computed in the same loop."""
    if len(operation.operands) != 1 or operation.operands[0] not in defined:
        return False
    made = defined[operation.operands[0]]
    return made.kind == PLAIN and made.operation.name not in (TMA_LOAD, COPY_LOAD)


def _write(outer: IrOperation, moved: dict[int, tuple[int, int]]) -> None:
    for region in outer.regions:
        region.operations[:] = _with_converted(region, moved)
        for operation in region.operations:
            _write(operation, moved)


def _with_converted(region: Region, moved: dict[int, tuple[int, int]]) -> list[IrOperation]:
    out: list[IrOperation] = []
    for operation in region.operations:
        if id(operation) in moved:
            number, partition = moved[id(operation)]
            name, tensor = f"%wp_converted{number}", find_types(operation.signature)[0]
            text = f"{name} = {CONVERTED} {operation.operands[0]} {{{FILLER} = {partition} : i64}} : {tensor}"
            made = parse_operation(text)
            made.location = operation.location
            out.append(made)
            operation = operation.substituted({operation.operands[0]: name})
        out.append(operation)
    return out
