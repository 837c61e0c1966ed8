"""From a dependence graph to a whole plan: schedule, partitions, rings, offsets.

``solve`` asks :mod:`schedule` for the smallest initiation interval and dresses its answer; :mod:`check` verifies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from warpplan.planner.assignment import Assignment
from warpplan.planner.bounds import min_ii
from warpplan.planner.errors import Infeasible, InvalidInput
from warpplan.planner.graph import DependenceGraph
from warpplan.planner.model import live_cycles, register_readers, slots
from warpplan.planner.packing import Block, pack
from warpplan.planner.plan import Buffer, Channel, Outcome, Partition, Placement, Plan, Schedule
from warpplan.planner.problem import (
    BASE_REGISTERS,
    REGISTER_COUNTS,
    WARP_COUNTS,
    ExtraBuffer,
    PartitionSpec,
    Problem,
    SolveOptions,
    whole_multiple,
)
from warpplan.planner.schedule import search

__all__ = ["ExtraBuffer", "PartitionSpec", "SolveOptions", "effective_ii", "solve"]

WARP = 32


def solve(graph: DependenceGraph, options: SolveOptions | None = None) -> Outcome:
    """The plan with the smallest initiation interval within the graph's limits.

    ``status`` is "optimal" where the interval equals the proven bound, "feasible" where the time limit left a gap,
    "infeasible" with what binds in ``reason``, "unknown" where the time limit came first. Raises
    :class:`InvalidInput` for options that contradict the graph.
    """
    problem = Problem(graph, options or SolveOptions())
    try:
        bound = min_ii(problem)
        _check_partitions(problem)
        _check_memory(problem)
    except Infeasible as error:
        return Outcome("infeasible", None, 0, 0.0, str(error))
    found = search(problem, bound)
    if found.best is None:
        return Outcome(
            "infeasible" if found.infeasible else "unknown", None, found.bound, found.seconds, f"{found.binding} binds"
        )
    try:
        plan = _plan(problem, found.ii_cycles, found.best)
    except Infeasible as error:
        return Outcome("infeasible", None, found.bound, found.seconds, str(error))
    return Outcome(
        "optimal" if found.ii_cycles == found.bound else "feasible", plan, found.bound, found.seconds, found.binding
    )


def effective_ii(plan: Plan, depth: int | None = None) -> int:
    """The interval that ``plan`` sustains with rings of ``depth`` slots (its own depths where ``None``).

    A slot that is held for L cycles and is one of D lets a new iteration begin every ⌈L / D⌉ cycles at best.
    """
    held = [-(-channel.live_cycles // (depth or channel.depth)) for channel in plan.channels]
    return max([plan.schedule.ii_cycles, *held])


def _plan(problem: Problem, ii: int, found: Assignment) -> Plan:
    first = min(found.starts)
    starts = tuple(start - first for start in found.starts)
    # Partitions are numbered as they first appear, unless the caller has numbered them.
    names = sorted(set(found.partitions)) if problem.options.pinned else list(dict.fromkeys(found.partitions))
    if problem.options.partitions:
        names = list(range(len(problem.options.partitions)))
    of_op = tuple(names.index(g) for g in found.partitions)
    placements = tuple(
        Placement(op.id, starts[i], starts[i] // ii, starts[i] % ii, of_op[i]) for i, op in enumerate(problem.graph.ops)
    )
    channels = tuple(_channel(problem, ii, Assignment(starts, of_op), producer) for producer in problem.rings)
    partitions = _partitions(problem, ii, starts, of_op, len(names))
    buffers = _buffers(problem, channels)
    used = max((b.offset + b.size for b in buffers), default=0)
    return Plan(problem.graph.name, Schedule(ii, placements), partitions, channels, buffers, used)


def _channel(problem: Problem, ii: int, found: Assignment, producer: int) -> Channel:
    consumers = tuple(sorted({found.partitions[use.consumer] for use in problem.rings[producer]}))
    return Channel(
        problem.graph.ops[producer].id,
        found.partitions[producer],
        consumers,
        problem.slot_bytes(producer),
        slots(problem, ii, found, producer),
        live_cycles(problem, ii, found, producer),
    )


# Partitions


def _check_partitions(problem: Problem) -> None:
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
        if specs[at].warps < op.min_warps:
            raise Infeasible(
                f"operation {op.id!r} needs {op.min_warps} warps, partition {specs[at].name!r} has {specs[at].warps}",
                field="partitions", value=specs[at].warps, limit=op.min_warps,
            )  # fmt: skip
    total = sum(_registers_taken(spec.warps, spec.registers) for spec in specs)
    if total > limits.registers:
        raise Infeasible(
            f"the partitions take {total} of {limits.registers} registers", field="partitions", value=total,
            limit=limits.registers,
        )  # fmt: skip


def _check_memory(problem: Problem) -> None:
    limit = problem.graph.limits.smem_bytes
    for i in problem.rings:
        op = problem.graph.ops[i]
        if op.memory == "smem" and op.buffer_bytes > limit:
            raise Infeasible(
                f"operation {op.id!r} writes {op.buffer_bytes} bytes, more than the {limit} bytes of shared memory",
                field="ops.buffer_bytes", value=op.buffer_bytes, limit=limit,
            )  # fmt: skip
    if problem.least_bytes() > limit:
        many = f"{problem.options.depth} slots" if problem.options.depth else "one slot"
        raise Infeasible(
            f"{many} of each ring and the extra buffers take {problem.least_bytes()} of {limit} bytes of shared memory",
            field="limits.smem_bytes", value=problem.least_bytes(), limit=limit,
        )  # fmt: skip


def _registers_taken(warps: int, registers: int) -> int:
    """Registers are handed out by warp group."""
    return WARP * whole_multiple(warps, 4) * registers


def _partitions(
    problem: Problem, ii: int, starts: Sequence[int], of_op: Sequence[int], count: int
) -> tuple[Partition, ...]:
    ops = problem.graph.ops
    members = [[i for i in range(len(ops)) if of_op[i] == g] for g in range(count)]
    if problem.options.partitions:
        return tuple(
            Partition(spec.name, spec.warps, spec.registers, tuple(ops[i].id for i in inside))
            for spec, inside in zip(problem.options.partitions, members, strict=True)
        )
    warps = [next(n for n in WARP_COUNTS if n >= max(ops[i].min_warps for i in inside)) for inside in members]
    widest = warps.index(max(warps))
    names = ["default" if g == widest else f"worker{g + (g < widest)}" for g in range(count)]
    return tuple(
        Partition(names[g], warps[g], _registers(problem, ii, starts, inside), tuple(ops[i].id for i in inside))
        for g, inside in enumerate(members)
    )


def _registers(problem: Problem, ii: int, starts: Sequence[int], inside: Sequence[int]) -> int:
    """The least register count that holds the partition's values at every phase of the steady state."""
    held: list[tuple[int, int, int]] = []
    for i in inside:
        if problem.graph.ops[i].registers:
            ends = [starts[r] + cycles + ii * distance for r, cycles, distance in register_readers(problem, i)]
            held.append((starts[i], max(ends), problem.graph.ops[i].registers))
    # A value is live at phase p in as many copies as its span holds times ≡ p (mod II); the sum peaks at some start.
    most = max(
        (
            sum(count * ((end - 1 - p) // ii - (start - 1 - p) // ii) for start, end, count in held)
            for p in {start % ii for start, _, _ in held}
        ),
        default=0,
    )
    need = BASE_REGISTERS + most
    fitting = [count for count in REGISTER_COUNTS if count >= need]
    if not fitting:
        raise Infeasible(
            f"operation {problem.graph.ops[inside[0]].id!r} and its partition need {need} registers a thread: "
            f"at most {REGISTER_COUNTS[-1]}",
            field="registers", value=need, limit=REGISTER_COUNTS[-1],
        )  # fmt: skip
    return fitting[0]


# Buffers: rings are live in every cycle of the steady state, so here they all stand beside one another.


def _buffers(problem: Problem, channels: Sequence[Channel]) -> tuple[Buffer, ...]:
    by_id = problem.graph.by_id
    capacity = problem.graph.limits.smem_bytes
    rings = [
        Buffer(c.name, 0, c.slot_bytes * c.depth, by_id[c.name].alignment)
        for c in channels
        if by_id[c.name].memory == "smem"
    ]
    own = [Buffer(e.name, 0, e.size, e.alignment) for e in problem.options.extra_buffers if e.shares_with is None]
    packed = pack([Block(b.name, 0, 1, b.size, b.alignment) for b in (*rings, *own)], capacity)
    if packed.status != "packed":
        raise Infeasible(f"shared memory: {packed.reason}", field="smem_bytes", value=packed.peak_bytes, limit=capacity)
    placed = [replace(b, offset=o) for b, o in zip((*rings, *own), packed.offsets, strict=True)]
    home = {b.name: b for b in placed}
    stride = {c.name: c.slot_bytes for c in channels}
    for extra in problem.options.extra_buffers:
        if extra.shares_with is None:
            continue
        ring = home[extra.shares_with]
        start = ring.offset + extra.slot * stride[ring.name]
        if start + extra.size > ring.offset + ring.size or start % extra.alignment:
            raise Infeasible(
                f"buffer {extra.name!r} of {extra.size} bytes does not fit into the ring of {ring.name!r} "
                f"({ring.size} bytes) from slot {extra.slot} on",
                field="extra_buffers", value=extra.size, limit=ring.size,
            )  # fmt: skip
        placed.append(Buffer(extra.name, start, extra.size, extra.alignment, ring.name))
    return tuple(placed)
