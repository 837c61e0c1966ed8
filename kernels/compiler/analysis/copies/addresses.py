"""What an address is computed from: the operations that a producer repeats, and those that it cannot.

A producer runs ahead of the consumers, so that it may compute and read again, but not wait for what they compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.load_hazards import is_volatile
from warpplan.kernels.compiler.analysis.operation_kinds import CONTROL
from warpplan.kernels.compiler.analysis.value_flow import Definition
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, is_value
from warpplan.kernels.compiler.ttgir.names import header_definitions

PURE_DIALECTS = ("arith.", "math.")
PURE = frozenset(
    {
        "tt.get_program_id", "tt.get_num_programs", "tt.splat", "tt.unsplat", "tt.make_range", "tt.expand_dims",
        "tt.broadcast", "tt.addptr", "tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int", "tt.make_tensor_descriptor",
        "tt.reduce", "tt.trans", "tt.reshape", "ttg.convert_layout", "tt.load", "ub.poison",
    }
)  # fmt: skip
"""Operations that a producer may run as well as the consumers: they leave nothing but their result."""


def may_repeat(operation: IrOperation) -> bool:
    """Whether the producer may run ``operation``, which is no control flow, as well as the consumers."""
    kind = operation.name.strip('"')
    return (kind in PURE or kind.startswith(PURE_DIALECTS)) and not is_volatile(operation)


def read_by(operation: IrOperation) -> list[str]:
    """The values from outside of ``operation`` that it reads, those of its regions among them."""
    own = {token for inner in operation.walk() for token in (*inner.defined, *header_definitions(inner))}
    labels = {t for region in operation.regions for t in region.label.split() if is_value(t)}
    return [v for inner in operation.walk() for v in inner.operands if v not in own | labels]


@dataclass(frozen=True)
class Address:
    """``operations`` are those that the address needs, control flow among them; ``late`` the first that no producer
    may run, ``None`` where there is none."""

    operations: tuple[IrOperation, ...]
    late: IrOperation | None


def address(load: IrOperation, defined: dict[str, Definition], around: dict[int, tuple[IrOperation, ...]]) -> Address:
    """What ``load`` needs before it: its operands, the control flow ``around`` (by identity of the operation) each of
    them, and so on; ``defined`` are the kernel's names."""
    found: dict[int, IrOperation] = {}
    late: IrOperation | None = None
    seen: set[str] = set()
    work: list[str] = list(load.operands)

    def enclose(operation: IrOperation) -> None:
        for outer in around[id(operation)]:
            if outer.name != "tt.func" and id(outer) not in found:
                found[id(outer)] = outer
                work.extend(steered_by(outer))

    enclose(load)
    while work:
        name = work.pop()
        if name in seen or name not in defined:
            continue
        seen.add(name)
        made = defined[name]
        operation = made.operation
        if operation.name in CONTROL:
            found.setdefault(id(operation), operation)
            work += [*made.sources, *steered_by(operation)]
        else:
            if not may_repeat(operation):
                late = late or operation
                continue
            found.setdefault(id(operation), operation)
            work += read_by(operation)
        enclose(operation)
    return Address(tuple(found.values()), late)


def steered_by(operation: IrOperation) -> list[str]:
    """The values that decide how often a loop runs, or which way a branch goes."""
    if operation.name == "scf.for":
        loop = control.read_loop(operation)
        return [loop.lower, loop.upper, loop.step]
    if operation.name == "scf.while":
        return [control.read_while(operation).condition.operands[0]]
    if operation.name == "scf.if":
        return [control.read_branch(operation).condition]
    return []


def nesting(function: IrOperation) -> dict[int, tuple[IrOperation, ...]]:
    """The operations around each operation of ``function``, outermost first, by its identity."""
    found: dict[int, tuple[IrOperation, ...]] = {}

    def visit(operation: IrOperation, around: tuple[IrOperation, ...]) -> None:
        found[id(operation)] = around
        for region in operation.regions:
            for inner in region.operations:
                visit(inner, (*around, operation))

    visit(function, ())
    return found
