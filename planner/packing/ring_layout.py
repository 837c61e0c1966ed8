"""Where a solution's rings and extra buffers lie: side by side, or one in another's place while that is free (rule 7).

Two single-slot rings whose lives are disjoint on the circle may share bytes, or columns of tensor memory; every other
pair is a conflict. Packing under these conflicts is exact, so a refusal names rings that cannot lie together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from warpplan.planner.errors import Infeasible
from warpplan.planner.problem.assignment import Assignment, rings, slots
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.ring_sharing import may_share, reuse_distance
from warpplan.planner.problem.terms import whole_multiple
from warpplan.planner.values.dependence_graph import Memory
from warpplan.planner.values.plan import Buffer, Reuse

TMEM_LANES = 128


@dataclass(frozen=True)
class Layout:
    """``buffers`` in the order of the rings, then of the extra buffers. ``refused`` are the operations whose rings do
    not fit together (no buffers then); ``unknown``: packing was left undecided."""

    buffers: tuple[Buffer, ...] = ()
    reuses: tuple[Reuse, ...] = ()
    refused: tuple[int, ...] = ()
    memory: Memory = "smem"
    unknown: bool = False

    @property
    def fits(self) -> bool:
        return not self.refused and not self.unknown


def layout(problem: Problem, ii: int, found: Assignment) -> Layout:
    """The layout of everything ``found`` needs."""
    limit = problem.deadline.remaining_s()
    seconds = min(problem.options.search.attempts.layout_seconds, max(0.0, limit))
    depth = {p: slots(problem, ii, found, p) for p in rings(problem, found)}
    flat = [p for p in depth if problem.memory(p) == "smem"]
    tall = [p for p in depth if problem.memory(p) == "tmem"]
    columns = _columns(problem, ii, found, depth, tall, seconds) if tall else Layout()
    if not columns.fits:
        return columns
    bytes_ = _bytes(problem, ii, found, depth, flat, seconds)
    if not bytes_.fits:
        return bytes_
    home = {b.name: b for b in (*columns.buffers, *bytes_.buffers)}
    extras = _extras(problem, home)
    ordered = [home[problem.ops[p].id] for p in depth]
    return Layout((*ordered, *extras), (*bytes_.reuses, *columns.reuses))


def fits_side_by_side(problem: Problem) -> bool:
    """Whether all rings fit side by side with as few slots as possible."""
    limits, least = problem.graph.limits, problem.least_slots
    flat = sum(problem.slot_bytes(p) * least(p) for p in problem.rings if problem.memory(p) == "smem")
    tall = sum(problem.slot_area(p) * least(p) for p in problem.rings if problem.memory(p) == "tmem")
    extra = sum(whole_multiple(e.size, e.alignment) for e in problem.options.extra_buffers if e.shares_with is None)
    return flat + extra <= limits.smem_bytes and tall <= TMEM_LANES * limits.tmem_columns


def _free_pairs(
    problem: Problem, ii: int, found: Assignment, depth: dict[int, int], inside: list[int]
) -> dict[tuple[int, int], int]:
    """Pairs of positions in ``inside`` whose rings may share a place, with their m."""
    pairs = {}
    single = [at for at, p in enumerate(inside) if depth[p] == 1 and may_share(problem, p)]
    for a, b in combinations(single, 2):
        problem.deadline.check()
        distance = reuse_distance(problem, ii, found, inside[a], inside[b])
        if distance is not None:
            pairs[a, b] = distance
    return pairs


def _reuses(problem: Problem, a: int, b: int, distance: int) -> tuple[Reuse, Reuse]:
    first, second = problem.ops[a].id, problem.ops[b].id
    return Reuse(first, second, distance), Reuse(second, first, 1 - distance)


def _bytes(
    problem: Problem, ii: int, found: Assignment, depth: dict[int, int], inside: list[int], seconds: float
) -> Layout:
    capacity = problem.graph.limits.smem_bytes
    own = [e for e in problem.options.extra_buffers if e.shares_with is None]
    buffers = [
        Buffer(problem.ops[p].id, 0, problem.slot_bytes(p) * depth[p], problem.ring_alignment(p)) for p in inside
    ]
    buffers += [Buffer(e.name, 0, e.size, e.alignment) for e in own]
    placed = _side_by_side(buffers)
    if max((b.offset + b.size for b in placed), default=0) <= capacity:
        return Layout(tuple(placed))
    from warpplan.planner.packing.offsets import pack_conflicts

    free = _free_pairs(problem, ii, found, depth, inside)
    conflicts = {frozenset(pair) for pair in combinations(range(len(buffers)), 2) if pair not in free}
    packed = pack_conflicts(
        [b.size for b in buffers],
        [b.alignment for b in buffers],
        conflicts,
        capacity,
        work_limit_s=seconds,
        deadline=problem.deadline,
    )
    if packed.status != "packed":
        refused = tuple(inside[i] for i in packed.conflict if i < len(inside)) or tuple(inside)
        return Layout(refused=refused, unknown=packed.status == "unknown")
    placed = [replace(b, offset=offset) for b, offset in zip(buffers, packed.offsets, strict=True)]
    reuses = [
        reuse
        for (a, b), distance in free.items()
        if _meet(placed[a].offset, placed[a].size, placed[b].offset, placed[b].size)
        for reuse in _reuses(problem, inside[a], inside[b], distance)
    ]
    return Layout(tuple(placed), tuple(reuses))


def _side_by_side(buffers: list[Buffer]) -> list[Buffer]:
    """One after the other, widest alignment first: where sizes are whole multiples of it, there are no gaps."""
    placed, end = list(buffers), 0
    for at in sorted(range(len(buffers)), key=lambda i: (-buffers[i].alignment, -buffers[i].size, i)):
        offset = -(-end // buffers[at].alignment) * buffers[at].alignment
        placed[at] = replace(buffers[at], offset=offset)
        end = offset + buffers[at].size
    return placed


def _columns(
    problem: Problem, ii: int, found: Assignment, depth: dict[int, int], inside: list[int], seconds: float
) -> Layout:
    from warpplan.planner.packing.columns import Columns, pack_columns

    rects = [Columns(problem.ops[p].lanes, problem.slot_columns(p) * depth[p]) for p in inside]
    capacity = problem.graph.limits.tmem_columns
    free: dict[tuple[int, int], int] = {}
    packed = pack_columns(rects, capacity, work_limit_s=seconds, deadline=problem.deadline)
    if packed.status != "packed":
        free = _free_pairs(problem, ii, found, depth, inside)
        conflicts = {frozenset(pair) for pair in combinations(range(len(rects)), 2) if pair not in free}
        packed = pack_columns(rects, capacity, conflicts, work_limit_s=seconds, deadline=problem.deadline)
    if packed.status != "packed":
        refused = tuple(inside[i] for i in packed.conflict) or tuple(inside)
        return Layout(refused=refused, memory="tmem", unknown=packed.status == "unknown")
    buffers = tuple(
        Buffer(problem.ops[p].id, column, rect.columns, 1, memory="tmem", lane=lane, lanes=rect.lanes)
        for p, rect, (lane, column) in zip(inside, rects, packed.places, strict=True)
    )
    reuses = [
        reuse
        for (a, b), distance in free.items()
        if _meet(buffers[a].offset, buffers[a].size, buffers[b].offset, buffers[b].size)
        and _meet(buffers[a].lane, buffers[a].lanes, buffers[b].lane, buffers[b].lanes)
        for reuse in _reuses(problem, inside[a], inside[b], distance)
    ]
    return Layout(buffers, tuple(reuses))


def _meet(a: int, size_a: int, b: int, size_b: int) -> bool:
    return a < b + size_b and b < a + size_a


def _extras(problem: Problem, home: dict[str, Buffer]) -> list[Buffer]:
    """The extra buffers in the caller's order: their own places, and those inside a ring."""
    extras = []
    for extra in problem.options.extra_buffers:
        if extra.shares_with is None:
            extras.append(home[extra.name])
            continue
        ring = home[extra.shares_with]
        start = ring.offset + extra.slot * problem.slot_bytes(problem.graph.index[ring.name])
        extras.append(Buffer(extra.name, start, extra.size, extra.alignment, ring.name))
    return extras


def require_capacity(problem: Problem) -> None:
    """Raises :class:`Infeasible` where even one slot a ring, or as many as were asked for, cannot lie as asked."""
    limits, depth = problem.graph.limits, problem.options.depth
    for i in problem.rings:
        op = problem.ops[i]
        if op.memory == "smem" and op.buffer_bytes > limits.smem_bytes:
            raise Infeasible(
                f"operation {op.id!r} writes {op.buffer_bytes} bytes, more than the {limits.smem_bytes} bytes of "
                "shared memory", field="ops.buffer_bytes", value=op.buffer_bytes, limit=limits.smem_bytes,
            )  # fmt: skip
        if op.memory == "tmem" and problem.slot_columns(i) > limits.tmem_columns:
            raise Infeasible(
                f"operation {op.id!r} writes {problem.slot_columns(i)} columns, more than the {limits.tmem_columns} "
                "of tensor memory", field="ops.buffer_bytes", value=op.buffer_bytes, limit=limits.tmem_columns,
            )  # fmt: skip
    for extra in problem.options.extra_buffers:
        if extra.shares_with is None:
            continue
        ring = problem.graph.index[extra.shares_with]
        size = problem.slot_bytes(ring)
        if (depth is not None and problem.least_slots(ring) > depth) or extra.slot * size % extra.alignment:
            raise Infeasible(
                f"buffer {extra.name!r} of {extra.size} bytes does not fit into the ring of {extra.shares_with!r} "
                f"({depth or 'some'} slots of {size} bytes) from slot {extra.slot} on, aligned to {extra.alignment}",
                field="extra_buffers", value=extra.size, limit=size * (depth or 1),
            )  # fmt: skip
    # Rings of one slot may lie in one another's place.
    flat = {problem.graph.ops[i].id: problem.slot_bytes(i) for i in problem.rings if problem.memory(i) == "smem"}
    if depth is not None and depth > 1:
        taken, what = depth * sum(flat.values()), f"{depth} slots of each ring and "
    elif flat:
        widest = max(flat, key=lambda name: flat[name])
        taken, what = flat[widest], f"the slot of the largest ring, {widest!r}, and "
    else:
        taken, what = 0, ""
    least = problem.extra_bytes + taken
    if least > limits.smem_bytes:
        raise Infeasible(
            f"{what}the extra buffers take {least} of {limits.smem_bytes} bytes of shared memory",
            field="limits.smem_bytes", value=least, limit=limits.smem_bytes,
        )  # fmt: skip
