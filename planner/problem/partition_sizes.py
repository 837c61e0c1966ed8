"""Warps and registers of each partition: dimensioned by the caller, or as small as its operations allow."""

from __future__ import annotations

from collections import Counter

from warpplan.planner.errors import Infeasible, InvalidInput
from warpplan.planner.problem.assignment import Assignment, registers_needed
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.terms import REGISTER_COUNTS, WARP, WARP_COUNTS, WARP_GROUP, whole_multiple
from warpplan.planner.values.dependence_graph import is_whole
from warpplan.planner.values.plan import Partition

MOST_REGISTERS = 255
"""A thread can address no more (CUDA C++ Programming Guide, "Compute Capabilities")."""


def check_given(problem: Problem) -> None:
    """What the caller dimensioned must hold: warps for every pinned operation, registers for all."""
    specs, limits = problem.options.partitions, problem.graph.limits
    if not specs:
        return
    for spec in specs:
        if spec.warps not in WARP_COUNTS:
            raise InvalidInput(
                f"partition {spec.name!r} has {spec.warps} warps: expected one of {', '.join(map(str, WARP_COUNTS))}",
                field="partitions", value=spec.warps, limit=list(WARP_COUNTS),
            )  # fmt: skip
        if not is_whole(spec.registers) or not REGISTER_COUNTS[0] <= spec.registers <= MOST_REGISTERS:
            raise InvalidInput(
                f"partition {spec.name!r} has {spec.registers} registers a thread: expected {REGISTER_COUNTS[0]} to "
                f"{MOST_REGISTERS}", field="partitions", value=spec.registers, limit=MOST_REGISTERS,
            )  # fmt: skip
    name, count = Counter(spec.name for spec in specs).most_common(1)[0]
    if count > 1:
        raise InvalidInput(
            f"{count} partitions have the name {name!r}: give each its own", field="partitions", value=name
        )
    if len(specs) > limits.max_partitions:
        raise InvalidInput(
            f"{len(specs)} partitions are given: limits.max_partitions is {limits.max_partitions}",
            field="partitions", value=len(specs), limit=limits.max_partitions,
        )  # fmt: skip
    loose = [op.id for i, op in enumerate(problem.graph.ops) if problem.partition_of(i) is None]
    if loose:
        raise InvalidInput(
            f"partitions are given, but operation {loose[0]!r} is in none: pin it", field="pinned", value=loose[0]
        )
    for i, op in enumerate(problem.graph.ops):
        at = problem.partition_of(i)
        assert at is not None
        if at >= len(specs):
            raise InvalidInput(
                f"operation {op.id!r} is pinned to partition {at} of {len(specs)}", field="pinned", value=at
            )
        if specs[at].warps < problem.warps[i]:
            raise Infeasible(
                f"operation {op.id!r} needs {problem.warps[i]} warps, partition {specs[at].name!r} has "
                f"{specs[at].warps}", field="partitions", value=specs[at].warps, limit=problem.warps[i],
            )  # fmt: skip
    for spill in problem.options.spills:
        homes = {problem.partition_of(problem.graph.index[name]) for name in spill.ops}
        (home,) = homes if len(homes) == 1 else (None,)
        if home is not None and specs[home].registers <= spill.registers:
            raise Infeasible(
                f"partition {specs[home].name!r} has {specs[home].registers} registers a thread, and "
                f"{', '.join(spill.ops)} spilled at {spill.registers}",
                field="partitions", value=specs[home].registers, limit=spill.registers,
            )  # fmt: skip
    total = sum(registers_taken(spec.warps, spec.registers) for spec in specs)
    if total > limits.registers:
        raise Infeasible(
            f"the partitions take {total} of {limits.registers} registers", field="partitions", value=total,
            limit=limits.registers,
        )  # fmt: skip


def require_registers(problem: Problem) -> None:
    """Raises :class:`Infeasible`, naming what contradicts what, where no partition can have the registers that the base
    or one value asks for, or the block too few for even the smallest partition that an operation needs."""
    if problem.options.partitions:
        return
    limits, most = problem.graph.limits, REGISTER_COUNTS[-1]
    if limits.base_registers > most:
        raise Infeasible(
            f"limits.base_registers is {limits.base_registers}: a thread has {most} registers",
            field="limits.base_registers", value=limits.base_registers, limit=most,
        )  # fmt: skip
    for i, op in enumerate(problem.graph.ops):
        readers = () if op.buffer_bytes else problem.readers[i]
        lives = max((problem.latency(edge) for _, edge in readers), default=op.latency)
        if lives > 0 and limits.base_registers + op.registers > most:
            raise Infeasible(
                f"operation {op.id!r} takes {op.registers} registers a thread beside limits.base_registers "
                f"{limits.base_registers}: a thread has {most}",
                field="ops.registers", value=op.registers, limit=most - limits.base_registers,
            )  # fmt: skip
        taken = registers_taken(problem.warps[i], max(REGISTER_COUNTS[0], whole_multiple(limits.base_registers, 8)))
        if taken > limits.registers:
            raise Infeasible(
                f"a partition for operation {op.id!r} takes {taken} registers, limits.registers is {limits.registers}",
                field="limits.registers", value=limits.registers, limit=taken,
            )  # fmt: skip


def dimension(problem: Problem, ii: int, found: Assignment) -> tuple[Partition, ...] | None:
    """The partitions of ``found``, as many as it numbers; None where registers are short."""
    ops, specs = problem.graph.ops, problem.options.partitions
    count = len(specs) or 1 + max(found.partitions)
    members = [[i for i in range(len(ops)) if found.partitions[i] == g] for g in range(count)]
    needs = [registers_needed(problem, ii, found, g) for g in range(count)]
    if specs:
        if any(need > spec.registers for need, spec in zip(needs, specs, strict=True)):
            return None
        return tuple(
            Partition(spec.name, spec.warps, spec.registers, tuple(ops[i].id for i in inside))
            for spec, inside in zip(specs, members, strict=True)
        )
    if max(needs) > REGISTER_COUNTS[-1]:
        return None
    least = [max((problem.warps[i] for i in inside), default=1) for inside in members]
    warps = [next(n for n in WARP_COUNTS if n >= need) for need in least]
    registers = [next(count for count in REGISTER_COUNTS if count >= need) for need in needs]
    # Pins may leave a number out: there is no such partition, then.
    if (
        sum(registers_taken(warps[g], registers[g]) for g in range(count) if members[g])
        > problem.graph.limits.registers
    ):
        return None
    widest = warps.index(max(warps))
    names = ["default" if g == widest else f"worker{g + (g < widest)}" for g in range(count)]
    return tuple(
        Partition(names[g], warps[g], registers[g], tuple(ops[i].id for i in inside))
        for g, inside in enumerate(members)
    )


def registers_taken(warps: int, registers: int) -> int:
    """Registers are handed out by warp group."""
    return WARP * whole_multiple(warps, WARP_GROUP) * registers
