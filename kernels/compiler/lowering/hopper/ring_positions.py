"""Ring indices and phase bits carried through control flow: each group of rings has one of both, and every loop and
branch around its loads hands them on.

A loop carries two whole numbers more a group, a branch returns two more; whoever takes neither path leaves the group
where it was. Producer and consumers count by the same rule, so that their positions agree.
"""

from __future__ import annotations

from collections.abc import Callable

from warpplan.kernels.compiler.analysis.operation_kinds import RING_LOADS
from warpplan.kernels.compiler.lowering.hopper.load_rings import Rings, load_number
from warpplan.kernels.compiler.lowering.hopper.partition_builder import Builder
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region

RingPositions = dict[int, tuple[str, str]]
"""Group to (ring index, phase bit), the names of two 32-bit values."""
Emit = Callable[[Region, RingPositions], tuple[Region, RingPositions]]
"""Writes a region anew, given the positions at its start: the region, and the positions at its end."""


def groups_inside(region: Region, rings: Rings) -> list[int]:
    """The groups that ``region`` loads and that are filled more than once, in the order of the program."""
    loads = (load_number(operation) for operation in region.walk() if operation.name in RING_LOADS)
    groups = [rings.group_of(load) for load in loads if load in rings.rings]
    return list(dict.fromkeys(group.number for group in groups if not group.once))


def groups_of_branch(branch: control.Branch, rings: Rings) -> list[int]:
    """The same of both sides of ``branch``."""
    return list(dict.fromkeys(groups_inside(branch.then, rings) + groups_inside(branch.otherwise, rings)))


def leave_alone(loop: IrOperation) -> None:
    """Nothing is left in ``loop`` for Triton's own passes to specialise or to pipeline."""
    loop.drop_attribute("tt.warp_specialize")
    loop.set_attribute("tt.num_stages", "1 : i32")


def start(builder: Builder, rings: Rings) -> RingPositions:
    """Every group at its first slot."""
    return {group: (builder.constant(0), builder.constant(0)) for group in rings.groups}


def carry_loop(
    loop: control.ForLoop,
    positions: RingPositions,
    keys: list[int],
    builder: Builder,
    emit: Emit,
) -> tuple[IrOperation, dict[str, str], RingPositions]:
    """``loop`` with its body put through ``emit`` and the groups ``keys`` carried: the operation, the new names of
    its results, the positions after it."""
    inner = dict(positions)
    extra: list[tuple[str, str, str, str]] = []
    outside: dict[int, tuple[str, str]] = {}
    for key in keys:
        inside = (builder.fresh("slot"), builder.fresh("phase"))
        outside[key] = (builder.fresh("slot"), builder.fresh("phase"))
        inner[key] = inside
        extra += [(i, before, "i32", o) for i, before, o in zip(inside, positions[key], outside[key], strict=True)]
    body, after = emit(loop.body, inner)
    _hand_on(body, keys, after)
    loop.body, loop.carried = body, loop.carried + extra
    operation, renamed = control.write_loop(loop, builder.fresh("loop"))
    return operation, renamed, positions | {k: (renamed[s], renamed[p]) for k, (s, p) in outside.items()}


def carry_while(
    loop: control.WhileLoop,
    positions: RingPositions,
    keys: list[int],
    builder: Builder,
    emit: Emit,
) -> tuple[IrOperation, dict[str, str], RingPositions]:
    """The same for ``loop``, whose condition hands the positions on as it finds them: nothing is loaded there."""
    now = {part: dict(positions) for part in ("before", "after", "outside")}
    for key in keys:
        for state in now.values():
            state[key] = (builder.fresh("slot"), builder.fresh("phase"))
        loop.carried += [(i, b, "i32") for i, b in zip(now["before"][key], positions[key], strict=True)]
        loop.handed += [(i, "i32", o) for i, o in zip(now["after"][key], now["outside"][key], strict=True)]
    loop.before, _ = emit(loop.before, now["before"])
    loop.after, end = emit(loop.after, now["after"])
    _hand_on(loop.before, keys, now["before"])
    _hand_on(loop.after, keys, end)
    operation, renamed = control.write_while(loop, builder.fresh("while"))
    return (
        operation,
        renamed,
        positions | {k: (renamed[s], renamed[p]) for k, (s, p) in now["outside"].items() if k in keys},
    )


def carry_branch(
    branch: control.Branch,
    positions: RingPositions,
    keys: list[int],
    builder: Builder,
    emit: Emit,
) -> tuple[IrOperation, dict[str, str], RingPositions]:
    """The same for ``branch``, whose second region is made where there is none and positions have to leave it."""
    outside = {key: (builder.fresh("slot"), builder.fresh("phase")) for key in keys}
    then, after_then = emit(branch.then, dict(positions))
    otherwise, after_otherwise = (
        emit(branch.otherwise, dict(positions)) if branch.otherwise.operations else (Region(), positions)
    )
    if keys and not otherwise.operations:
        otherwise = Region([control.yield_of([], branch.location)])
    if keys and not then.operations:
        then = Region([control.yield_of([], branch.location)])
    if keys:
        _hand_on(then, keys, after_then)
        _hand_on(otherwise, keys, after_otherwise)
    branch.then, branch.otherwise = then, otherwise
    branch.results += [("i32", name) for key in keys for name in outside[key]]
    operation, renamed = control.write_branch(branch, builder.fresh("branch"))
    return operation, renamed, positions | {k: (renamed[s], renamed[p]) for k, (s, p) in outside.items()}


def _hand_on(region: Region, keys: list[int], positions: RingPositions) -> None:
    """Add the positions to what ``region`` yields; a region without a terminator gets one."""
    if not keys:
        return
    if not region.operations or region.operations[-1].name not in ("scf.yield", "scf.condition"):
        region.operations.append(control.yield_of([], "unknown"))
    last = region.operations[-1]
    more = [(name, "i32") for key in keys for name in positions[key]]
    region.operations[-1] = control.handing(last, [*control.handed(last), *more])
