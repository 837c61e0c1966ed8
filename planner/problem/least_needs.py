"""The least memory and registers that every schedule needs: what is held together whatever the interval.

An operation starts when all that it reads is there: the values that one operation reads, and the buffer that it writes,
are held at once, and values that return to their own operation are live all the time. Reasons of infeasible loops are
stated with these amounts.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.terms import REGISTER_COUNTS, WARP, WARP_GROUP, whole_multiple
from warpplan.planner.values.dependence_graph import Memory

TMEM_LANES = 128
"""Of tensor memory (PTX ISA, "Tensor Memory")."""


@dataclass(frozen=True)
class LeastNeed:
    """``values`` are (operation, copies) that are held together in every schedule; ``amount`` is what they take, with
    what is taken besides: bytes, or columns of 128 lanes, or registers."""

    amount: int
    values: tuple[tuple[int, int], ...] = ()


def least_copies(problem: Problem, producer: int, reader: int) -> int:
    """Iterations of ``producer``'s value that are held when ``reader`` starts, at the least: those between the nearest
    and the furthest that it reads. A value that returns to its own operation is held until then."""
    distances = [edge.distance for j, edge in problem.readers[producer] if j == reader]
    return max(distances) - (0 if reader == producer else min(distances)) + 1


def least_slots_held(problem: Problem, ring: int) -> int:
    """Slots of the ring of ``ring``, at the least; as many as the caller gives it."""
    if problem.options.depth is not None:
        return problem.options.depth
    copies = [least_copies(problem, ring, reader) for reader, _ in problem.readers[ring]]
    return max([problem.least_slots(ring), *copies])


def least_memory(problem: Problem, memory: Memory) -> LeastNeed:
    """Rings of more than one slot have their place to themselves; of the others, those that one operation reads, and
    its own, are held at once."""
    rings = {i: least_slots_held(problem, i) for i in problem.rings if problem.memory(i) == memory}
    size = problem.slot_bytes if memory == "smem" else problem.slot_area
    besides = problem.extra_bytes if memory == "smem" else 0
    deep = {i for i, slots in rings.items() if slots > 1}
    # By the operation that reads or writes them. A buffer that nobody reads is held for its latency, which may be 0.
    together: dict[int, set[int]] = {i: {i} for i in rings if problem.readers[i] or problem.ops[i].latency}
    for i in rings:
        for reader, _ in problem.readers[i]:
            together.setdefault(reader, set()).add(i)
    needs = [
        LeastNeed(besides + sum(rings[i] * size(i) for i in held), tuple((i, rings[i]) for i in sorted(held)))
        for held in (inside | deep for inside in together.values())
    ]
    most = max(needs, key=lambda need: need.amount, default=LeastNeed(besides))
    return most if memory == "smem" else LeastNeed(-(-most.amount // TMEM_LANES), most.values)


def sure_home(problem: Problem, op: int) -> int:
    """A number for what shares the operation's partition in every schedule: its partition where that is given, else
    below 0."""
    given = problem.partition_of(op)
    return -1 - problem.cluster[op] if given is None else given


def least_registers(problem: Problem) -> dict[int, LeastNeed]:
    """Per :func:`sure_home`, the registers a thread that its partition needs, with those of the base: just before an
    operation starts, what it reads is live, and at its birth its own value; values that return to their own operation
    are live all the time."""
    base = problem.graph.limits.base_registers
    homes = [sure_home(problem, i) for i in range(len(problem.ops))]
    always: dict[int, dict[int, int]] = {home: {} for home in homes}
    moments: dict[int, list[dict[int, int]]] = {home: [{}] for home in homes}
    read: dict[int, dict[int, int]] = {}  # by reader
    for i, op in enumerate(problem.ops):
        edges = () if op.buffer_bytes else problem.readers[i]
        if op.registers and max((problem.latency(edge) for _, edge in edges), default=op.latency):
            moments[homes[i]].append({i: 1})
        for reader, edge in edges:
            if not op.registers or homes[i] != homes[reader]:
                continue
            if reader == i:
                always[homes[i]][i] = max(edge.distance, always[homes[i]].get(i, 0))
            elif all(problem.latency(e) for j, e in edges if j == reader):
                read.setdefault(reader, {})[i] = least_copies(problem, i, reader)
    for reader, values in read.items():
        moments[homes[reader]].append(values)
    found = {}
    for home, moments_here in moments.items():
        held = [
            {i: max(always[home].get(i, 0), values.get(i, 0)) for i in {*always[home], *values}}
            for values in moments_here
        ]
        needs = [
            LeastNeed(
                base + sum(n * problem.ops[i].registers for i, n in values.items()), tuple(sorted(values.items()))
            )
            for values in held
        ]
        found[home] = max(needs, key=lambda need: need.amount)
    return found


def least_registers_taken(problem: Problem, home: int, registers: int) -> int:
    """Of the block's registers, by the partition of :func:`sure_home` ``home`` whose threads need ``registers``."""
    warps = max(problem.warps[i] for i in range(len(problem.ops)) if sure_home(problem, i) == home)
    return WARP * whole_multiple(warps, WARP_GROUP) * max(REGISTER_COUNTS[0], whole_multiple(registers, 8))
