"""From a dependence graph to a whole plan: schedule, partitions, rings, offsets.

``solve`` asks :mod:`~warpplan.planner.search` for the smallest initiation interval, adds partitions, rings and offsets,
and has :mod:`~warpplan.planner.check` and :mod:`~warpplan.planner.simulate` verify the plan.
"""

from __future__ import annotations

from dataclasses import replace

from warpplan.planner.bounds.min_ii import Bound, min_ii
from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import Infeasible, InvalidPlan
from warpplan.planner.packing.ring_layout import layout, require_capacity
from warpplan.planner.problem.assignment import Assignment, held, rings, slots
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.partition_sizes import check_given, dimension, require_registers
from warpplan.planner.problem.terms import REGISTER_COUNTS
from warpplan.planner.search.ii_search import search
from warpplan.planner.search.search_state import Progress
from warpplan.planner.simulate.simulation import verify
from warpplan.planner.values.deadline import NO_DEADLINE, Deadline, DeadlineReached
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import ExtraBuffer, PartitionSpec, SolveOptions
from warpplan.planner.values.plan import Channel, Outcome, Placement, Plan, Schedule

MOST_PLAYED = 1_000
"""Operations up to which every plan is played. Larger ones in one partition and without rings have nothing that a play
could find and the checker does not: they are checked alone."""

__all__ = ["ExtraBuffer", "PartitionSpec", "SolveOptions", "effective_ii", "fewest_slots", "solve"]


def solve(
    graph: DependenceGraph,
    options: SolveOptions | None = None,
    *,
    progress: Progress | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> Outcome:
    """The plan with the smallest initiation interval within the graph's limits.

    ``status`` is "optimal" where the interval equals the proven bound, "feasible" where a limit left a gap,
    "infeasible" with the binding constraint in ``reason``, "unknown" where a limit came first. Limits are the work
    budget of ``options``, which ends the search alike on every machine, and ``deadline``, which ends it by the caller's
    clock, whatever it is doing; without one no clock decides anything. ``progress`` is told of each decision: the
    interval queried, the bound proven by then, the best interval found or None. Raises
    :class:`InvalidGraph` or :class:`InvalidInput` for a graph that cannot be planned and options that contradict it,
    :class:`InvalidPlan` where the plan found breaks a rule: a bug, never an answer.
    """
    problem = Problem(graph, options or SolveOptions(), deadline)
    try:
        bound = _lower_bound(problem)
    except Infeasible as error:
        return Outcome("infeasible", None, 0, 0.0, str(error))
    except DeadlineReached:
        return Outcome("unknown", None, 1, 0.0, "the time limit binds")
    found = search(problem, bound, progress)
    if found.best is None:
        return Outcome("infeasible" if found.infeasible else "unknown", None, found.bound, found.seconds, found.binding)
    problem = Problem(graph, problem.options)  # What is found is finished and verified, however late.
    plan = _plan(problem, found.ii_cycles, found.best)
    _verify(plan, problem)
    return Outcome(
        "optimal" if found.ii_cycles == found.bound else "feasible", plan, found.bound, found.seconds, found.binding
    )


def effective_ii(plan: Plan, depth: int | None = None) -> int:
    """The interval that ``plan`` sustains with rings of ``depth`` slots (its own depths where ``None``).

    A slot that is held for L cycles and is one of D lets a new iteration begin every ⌈L / D⌉ cycles at best.
    """
    held = [-(-channel.live_cycles // (depth or channel.depth)) for channel in plan.channels]
    return max([plan.schedule.ii_cycles, *held])


def fewest_slots(graph: DependenceGraph, options: SolveOptions) -> int:
    """The smallest ring depth, the same for all rings, at which the interval of ``graph`` under ``options`` stays as
    short as with rings of any depth; 0 without rings. Ties between schedules are not broken, and a depth whose lower
    bound is a longer interval is not tried. Raises :class:`Infeasible` where there is no plan."""
    options = replace(options, search=replace(options.search, tie_break=False, compaction=False))
    problem = Problem(graph, options)
    found = search(problem, _lower_bound(problem))
    if found.best is None:
        raise Infeasible(f"graph {graph.name!r} has no plan: {found.binding}", field="graph", limit=found.binding)
    most = max((slots(problem, found.ii_cycles, found.best, p) for p in rings(problem, found.best)), default=0)

    def suffices(depth: int) -> bool:
        fewer = Problem(graph, replace(options, depth=depth))
        try:
            bound = _lower_bound(fewer)
        except Infeasible:
            return False
        if bound.ii_cycles > found.ii_cycles:
            return False
        again = search(fewer, bound)
        return again.best is not None and again.ii_cycles <= found.ii_cycles

    return next((depth for depth in range(1, most) if suffices(depth)), most)


def _lower_bound(problem: Problem) -> Bound:
    """Of the interval. Raises what :func:`solve` does of a problem without a plan, and :class:`Infeasible`."""
    check_given(problem)
    require_registers(problem)
    require_capacity(problem)
    return min_ii(problem)


def _plan(problem: Problem, ii: int, found: Assignment) -> Plan:
    first = min(found.starts)
    starts = tuple(start - first for start in found.starts)
    # Partitions are numbered as they first appear, unless the caller has numbered them.
    names = sorted(set(found.partitions)) if problem.options.pinned else list(dict.fromkeys(found.partitions))
    if problem.options.partitions:
        names = list(range(len(problem.options.partitions)))
    found = Assignment(starts, tuple(names.index(g) for g in found.partitions))
    placements = tuple(
        Placement(op.id, starts[i], starts[i] // ii, starts[i] % ii, found.partitions[i])
        for i, op in enumerate(problem.ops)
    )
    partitions, memory = dimension(problem, ii, found), layout(problem, ii, found)
    if partitions is None or not memory.fits:
        raise InvalidPlan(f"the plan found for graph {problem.graph.name!r} at {ii} cycles exceeds a limit: a bug")
    channels = tuple(
        Channel(
            problem.ops[p].id,
            found.partitions[p],
            tuple(sorted({found.partitions[use.consumer] for use in uses})),
            problem.slot_bytes(p),
            slots(problem, ii, found, p),
            held(problem, ii, found, p, margin=False),
        )
        for p, uses in rings(problem, found).items()
    )
    used = max((b.offset + b.size for b in memory.buffers if b.memory == "smem"), default=0)
    return Plan(problem.graph.name, Schedule(ii, placements), partitions, channels, memory.buffers, used, memory.reuses)


def _verify(plan: Plan, problem: Problem) -> None:
    """The checker and the simulator share no code with the solver: what they find is a mistake in one of them."""
    options = problem.options
    broken = check(
        plan,
        problem.graph,
        slack_cycles=options.slack_cycles,
        spills=options.spills,
        extras=options.extra_buffers,
        most_registers=255 if options.partitions else REGISTER_COUNTS[-1],
    )
    if not broken and (plan.channels or len(plan.partitions) > 1 or len(problem.ops) <= MOST_PLAYED):
        broken = verify(plan, problem.graph)
    if broken:
        raise InvalidPlan(f"the plan found for graph {plan.graph!r} breaks a rule, which is a bug: {broken[0]}")
