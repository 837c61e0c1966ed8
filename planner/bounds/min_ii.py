"""Lower bounds of the initiation interval, each with what binds it.

MinII = max(ResMII, RecMII): no unit and no partition's issue slot can be more than full (ResMII), and no cycle of
dependences can ask for more cycles than the iterations it spans give (RecMII). Source: Rau, "Iterative modulo
scheduling", MICRO 1994.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warpplan.planner.errors import Infeasible
from warpplan.planner.problem.assignment import barriers
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.ring_sharing import least_hold
from warpplan.planner.values.deadline import NO_DEADLINE, Deadline

WeightedArc = tuple[int, int, int, int]
"""(source, destination, cycles, distance)."""

SMALL = 100
"""Operations up to which a positive cycle is only looked for once all paths have been gone along: soon enough."""
MOST_NAMES = 12
"""Of a recurrence's operations, in words for people."""


@dataclass(frozen=True)
class Bound:
    """No schedule has a smaller initiation interval than ``ii_cycles``; ``binding`` says why."""

    ii_cycles: int
    binding: str


def min_ii(problem: Problem) -> Bound:
    """The largest of all bounds; at least 1. Raises :class:`Infeasible` where no interval at all would do."""
    bounds = [Bound(1, "an interval is at least one cycle"), *resource_bounds(problem), recurrence_bound(problem)]
    bounds += [*shared_bounds(problem), *memory_bounds(problem)]
    return max(bounds, key=lambda bound: bound.ii_cycles)


def resource_bounds(problem: Problem) -> list[Bound]:
    """Units by their occupancy, issue slots by what their partition must issue."""
    ops, limits = problem.ops, problem.graph.limits
    bounds = []
    for unit, capacity in problem.graph.units:
        busy = sum(op.occupancy for op in ops if op.unit == unit)
        if busy:
            bounds.append(
                Bound(-(-busy // capacity), f"unit {unit}: busy {busy} cycles per iteration, capacity {capacity}")
            )
    before, after = barriers(problem, problem.surely_cross) if limits.barrier_cycles else ((0,) * len(ops),) * 2
    issued: dict[str, int] = {}
    for i, op in enumerate(ops):
        partition = problem.partition_of(i)
        together = f"operations tied to {ops[problem.cluster[i]].id}"
        place = together if partition is None else f"partition {partition}"
        issued[place] = issued.get(place, 0) + op.issue + limits.barrier_cycles * (before[i] + after[i])
    total = sum(issued.values())
    bounds += [Bound(cycles, f"issue of {place}: {cycles} cycles") for place, cycles in sorted(issued.items())]
    bounds.append(Bound(-(-total // limits.max_partitions), f"issue of all {limits.max_partitions} partitions"))
    return bounds


def shared_bounds(problem: Problem) -> list[Bound]:
    """Resources that operations demand amounts of: by their energy (amount times cycles), by each operation, whose
    iterations may overlap only as often as its amount fits, and by those that demand more than half, which exclude one
    another. Raises :class:`Infeasible` for a demand beyond its capacity."""
    bounds = []
    for resource in problem.shared:
        name, capacity = resource.name, resource.capacity
        for i, cycles, amount in resource.users:
            op = problem.ops[i].id
            if amount > capacity:
                raise Infeasible(
                    f"operation {op!r} demands {amount} of resource {name!r}, of which there are {capacity}: the "
                    "demand and limits.capacities bind",
                    field="ops.demands", value=amount, limit=capacity,
                )  # fmt: skip
            copies = capacity // amount
            bounds.append(Bound(-(-cycles // copies), f"resource {name}: {op} holds {amount} for {cycles} cycles"))
        energy = sum(cycles * amount for _, cycles, amount in resource.users)
        bounds.append(Bound(-(-energy // capacity), f"resource {name}: {energy} in amount x cycles of {capacity}"))
        exclusive = sum(cycles for _, cycles, amount in resource.users if 2 * amount > capacity)
        bounds.append(Bound(exclusive, f"resource {name}: {exclusive} cycles of demands above half of {capacity}"))
    return bounds


def recurrence_bound(problem: Problem) -> Bound:
    """RecMII over dependences and rings of given depth; a hand-off counts where both ends are pinned apart."""
    arcs = [
        (a.src, a.dst, a.cycles + (a.handoff if problem.surely_cross(a.src, a.dst) else 0), a.distance)
        for a in problem.arcs
    ]
    ii, cycle = recurrence(len(problem.ops), arcs, problem.deadline)
    names = [problem.ops[i].id for i in cycle]
    if ii is None:
        raise Infeasible(
            f"the ring of depth {problem.options.depth} is too short for the cycle {' -> '.join(names)}: "
            "no initiation interval is long enough",
            field="depth", value=problem.options.depth, limit="depth",
        )  # fmt: skip
    if len(names) > MOST_NAMES:
        names[MOST_NAMES - 1 : -1] = [f"({len(names) - MOST_NAMES} more)"]
    return Bound(ii, f"recurrence {' -> '.join(names)}" if cycle else "no recurrence")


def memory_bounds(problem: Problem) -> list[Bound]:
    """Little's law: a slot is held for a while in every iteration, so the interval must give its memory that long.

    A ring of one slot may lie in another's place while that is free, and is counted for as long as it is held; a ring
    of more has its place to itself. Each hold is at least the value's latency and its reader's.
    """
    bounds = []
    limits = problem.graph.limits
    for memory, name, capacity, size in (
        ("smem", "shared memory", limits.smem_bytes - problem.extra_bytes, problem.slot_bytes),
        ("tmem", "tensor memory", 128 * limits.tmem_columns, problem.slot_area),
    ):
        rings = [(size(i), least_hold(problem, i)) for i in problem.rings if problem.memory(i) == memory]
        if rings and (ii := _least_interval(rings, capacity)) > 1:
            bounds.append(
                Bound(ii, f"{name}: {capacity} {'bytes' if memory == 'smem' else 'words'} for what is in flight")
            )
    return bounds


def _least_interval(rings: list[tuple[int, int]], capacity: int) -> int:
    """The smallest interval at which (slot size, cycles held) fit; 1 where none does: another check reports that."""

    def fits(ii: int) -> bool:
        # Sizes times ``ii``, so that everything stays whole.
        return sum(size * (-(-cycles // ii) * ii if cycles > ii else cycles) for size, cycles in rings) <= capacity * ii

    high = max([cycles for _, cycles in rings] + [1])
    high = max(high, -(-sum(size * cycles for size, cycles in rings) // max(1, capacity)))
    low = 1
    if not fits(high):
        return 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def recurrence(
    nodes: int, arcs: Iterable[WeightedArc], deadline: Deadline = NO_DEADLINE
) -> tuple[int | None, tuple[int, ...]]:
    """The smallest whole II ≥ 0 at which no cycle is positive, and the cycle that binds (empty: none does).

    ``None`` in place of the II: that cycle stays positive at any II. Each cycle found raises II to its own need,
    Σ cycles / Σ distance rounded up, until none is left (the longest-path form of the maximum cycle ratio).
    """
    arcs = list(arcs)
    ii = 0
    binding: tuple[int, ...] = ()
    for inside in _components(nodes, arcs):
        # Large loops have hundreds of components: each is numbered on its own.
        names = sorted({arc[0] for arc in inside}) if nodes > SMALL else range(nodes)
        number = {node: at for at, node in enumerate(names)}
        inside = [(number[src], number[dst], cycles, distance) for src, dst, cycles, distance in inside]
        while cycle := _positive_cycle(len(names), inside, ii, deadline):
            distance = sum(arc[3] for arc in cycle)
            binding = tuple(names[arc[0]] for arc in (*cycle, cycle[0]))
            if distance <= 0:
                return None, binding
            ii = -(-sum(arc[2] for arc in cycle) // distance)
    return ii, binding


def _components(nodes: int, arcs: list[WeightedArc]) -> list[list[WeightedArc]]:
    """The arcs inside each strongly connected component; a small loop stays whole: networkx takes longer to load."""
    if nodes <= 16:
        return [arcs]
    import networkx as nx

    digraph = nx.DiGraph()
    digraph.add_edges_from((src, dst) for src, dst, _, _ in arcs)
    components = sorted(nx.strongly_connected_components(digraph), key=min)
    home = {node: i for i, component in enumerate(components) for node in component}
    inside: list[list[WeightedArc]] = [[] for _ in components]
    for arc in arcs:
        if home[arc[0]] == home[arc[1]]:
            inside[home[arc[0]]].append(arc)
    return inside


def earliest(
    nodes: int, arcs: Iterable[WeightedArc], ii: int, deadline: Deadline = NO_DEADLINE
) -> tuple[int, ...] | None:
    """The earliest starts ≥ 0 that satisfy every arc at ``ii``; ``None`` where a cycle is positive."""
    start = [0] * nodes
    arcs = list(arcs)
    for _ in range(nodes + 1):
        deadline.check()
        moved = False
        for src, dst, cycles, distance in arcs:
            reach = start[src] + cycles - ii * distance
            if reach > start[dst]:
                start[dst], moved = reach, True
        if not moved:
            return tuple(start)
    return None


def forward_order(nodes: int, arcs: Iterable[WeightedArc]) -> list[WeightedArc]:
    """``arcs`` in an order in which longest paths settle in few passes: by source, along what spans no iteration."""
    arcs = list(arcs)
    waiting = [0] * nodes
    following: list[list[int]] = [[] for _ in range(nodes)]
    for src, dst, _, distance in arcs:
        if distance == 0:
            waiting[dst] += 1
            following[src].append(dst)
    order = [i for i in range(nodes) if not waiting[i]]
    for i in order:
        for dst in following[i]:
            waiting[dst] -= 1
            if not waiting[dst]:
                order.append(dst)
    rank = {i: at for at, i in enumerate(order)}
    return sorted(arcs, key=lambda arc: rank.get(arc[0], nodes))


def _positive_cycle(nodes: int, arcs: list[WeightedArc], ii: int, deadline: Deadline) -> list[WeightedArc]:
    """Bellman-Ford on cycles − II · distance; the arcs of one positive cycle, in order, or none."""
    start = [0] * nodes
    via: list[WeightedArc | None] = [None] * nodes
    last = -1
    if nodes > SMALL:
        arcs = forward_order(nodes, arcs)
    for passes in range(1, nodes + 2):
        deadline.check()
        last = -1
        for arc in arcs:
            src, dst, cycles, distance = arc
            reach = start[src] + cycles - ii * distance
            if reach > start[dst]:
                start[dst], via[dst], last = reach, arc, dst
        if last < 0:
            return []
        if nodes > SMALL and passes & (passes - 1) == 0 and (closed := _cycle_of(via)) is not None:
            last = closed
            break
    # A start that still grows lies on or behind a positive cycle: walk back until inside it, then around it.
    at = last
    for _ in range(nodes):
        step = via[at]
        assert step is not None
        at = step[0]
    cycle: list[WeightedArc] = []
    here = at
    while True:
        step = via[here]
        assert step is not None
        cycle.append(step)
        here = step[0]
        if here == at:
            return cycle[::-1]


def _cycle_of(via: list[WeightedArc | None]) -> int | None:
    """A node on a cycle of the arcs that last raised each start: such a cycle is positive. None without one."""
    seen = [0] * len(via)
    for root in range(len(via)):
        at = root
        while not seen[at]:
            seen[at] = root + 1
            step = via[at]
            if step is None:
                break
            at = step[0]
            if seen[at] == root + 1:
                return at
    return None
