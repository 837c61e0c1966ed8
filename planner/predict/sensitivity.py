"""Which single cost would have to change, and by how much, for another initiation interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import Infeasible, InvalidGraph
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.solve import solve
from warpplan.planner.values.deadline import NO_DEADLINE, Deadline, DeadlineReached
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Outcome, Plan

Progress = Callable[[int, int], bool]
"""Told what is done and what there is to do; False ends the work there."""

RESOLVE_SECONDS = 1.0
"""Work limit of each solve with one cost changed. Chosen by hand: most loops are proven optimal within it."""


@dataclass(frozen=True)
class CostChange:
    """With ``name`` at ``to_cycles`` in place of ``cycles``, and nothing else changed, the interval would be
    ``ii_cycles`` (``None``: no plan at all); no smaller change of this cost alone moves it."""

    name: str
    cycles: int
    to_cycles: int
    ii_cycles: int | None

    @property
    def factor(self) -> float:
        return self.to_cycles / self.cycles


@dataclass(frozen=True)
class CostChanges:
    """``changes`` by relative size; ``examined`` of ``costs`` were examined. ``undecided`` are those of which a
    re-solve came to its time limit."""

    changes: tuple[CostChange, ...]
    examined: int
    costs: int
    undecided: tuple[str, ...]


def cost_changes(
    graph: DependenceGraph,
    options: SolveOptions,
    outcome: Outcome,
    *,
    progress: Progress | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> CostChanges:
    """The smallest change of each single cost, down to 0 or up to twice, that changes the optimal interval.

    A larger cost never makes a shorter interval possible, so each threshold is found by bisection: the bounds and the
    plan itself decide what they can, re-solving the rest. Costs are the operations' (clones change together), edges'
    own latencies and the hand-off; large ones come first, and none is raised where twice as many cycles are too many
    for any graph. An interval that is not proven optimal has no changes.
    ``deadline`` ends the work within a cost, too, which then does not count as examined.
    """
    costs = sorted(_costs(graph), key=lambda cost: -cost.cycles)
    if outcome.plan is None or outcome.status != "optimal":
        return CostChanges((), 0, len(costs), ())
    found: list[CostChange] = []
    undecided: list[str] = []
    examined = 0
    for cost in costs:
        if progress is not None and not progress(examined, len(costs)):
            break
        try:
            for limit in (0, 2 * cost.cycles):
                search = _Threshold(cost, options, outcome.plan, deadline)
                try:
                    change = search.towards(limit)
                except InvalidGraph:  # Twice the cost is beyond what a graph may have.
                    continue
                if change is not None:
                    found.append(change)
                if search.unsure:
                    undecided.append(cost.name)
        except DeadlineReached:
            break
        examined += 1
    found.sort(key=lambda c: (abs(c.to_cycles - c.cycles) / c.cycles, c.name, c.to_cycles))
    return CostChanges(tuple(found), examined, len(costs), tuple(dict.fromkeys(undecided)))


@dataclass(frozen=True)
class _Cost:
    name: str
    cycles: int
    at: Callable[[int], DependenceGraph]


def _costs(graph: DependenceGraph) -> Iterator[_Cost]:
    copies = [set(alike) for alike in zip(*graph.clones, strict=True)] if len(graph.clones) > 1 else []
    done: set[str] = set()
    for op in graph.ops:
        alike = next((c for c in copies if op.id in c), {op.id})
        if op.id in done:
            continue
        done |= alike
        names = ", ".join(o.id for o in graph.ops if o.id in alike)
        for field in ("latency", "occupancy", "issue"):
            if value := getattr(op, field):
                yield _Cost(f"{field} of {names}", value, partial(_with_ops, graph, alike, field))
    cloned = {name for alike in copies for name in alike}
    for edge in graph.edges:
        if edge.latency and not {edge.src, edge.dst} & cloned:
            yield _Cost(f"latency of {edge.src} -> {edge.dst}", edge.latency, partial(_with_edge, graph, edge))
    if graph.limits.handoff_cycles and graph.limits.max_partitions > 1:
        yield _Cost("hand-off", graph.limits.handoff_cycles, partial(_with_handoff, graph))


def _with_handoff(graph: DependenceGraph, value: int) -> DependenceGraph:
    return replace(graph, limits=replace(graph.limits, handoff_cycles=value))


def _with_ops(graph: DependenceGraph, names: set[str], field: str, value: int) -> DependenceGraph:
    cost: dict[str, Any] = {field: value}
    return replace(graph, ops=tuple(replace(op, **cost) if op.id in names else op for op in graph.ops))


def _with_edge(graph: DependenceGraph, edge: Dependence, value: int) -> DependenceGraph:
    return replace(graph, edges=tuple(replace(e, latency=value) if e is edge else e for e in graph.edges))


class _Threshold:
    """Where one cost changes the interval of an optimal plan. ``unsure`` once a re-solve came to its time limit: what
    it might have shown is left out. Raises :class:`DeadlineReached` where ``deadline`` came first."""

    def __init__(self, cost: _Cost, options: SolveOptions, plan: Plan, deadline: Deadline) -> None:
        self.cost, self.plan, self.deadline, self.unsure = cost, plan, deadline, False
        self.options = replace(options, work_limit_s=min(options.work_limit_s, RESOLVE_SECONDS))

    def towards(self, limit: int) -> CostChange | None:
        """The change towards ``limit`` that first moves the interval."""
        if not self._moves(limit):
            return None
        same, moved = self.cost.cycles, limit
        while abs(moved - same) > 1:
            middle = (same + moved) // 2
            same, moved = (same, middle) if self._moves(middle) else (middle, moved)
        plan = self._solved(self.cost.at(moved)).plan
        ii = plan.schedule.ii_cycles if plan is not None else None
        return CostChange(self.cost.name, self.cost.cycles, moved, ii)

    def _solved(self, graph: DependenceGraph) -> Outcome:
        outcome = solve(graph, self.options, deadline=self.deadline)
        self.deadline.check()
        return outcome

    def _moves(self, cycles: int) -> bool:
        """Whether the interval is another for certain with the cost at ``cycles``."""
        graph, ii = self.cost.at(cycles), self.plan.schedule.ii_cycles
        try:
            bound = min_ii(Problem(graph, self.options, self.deadline)).ii_cycles
        except Infeasible:
            return True
        if cycles < self.cost.cycles:
            if bound >= ii:
                return False
            outcome = self._solved(graph)
            self.unsure |= outcome.bound < ii and (outcome.plan is None or outcome.plan.schedule.ii_cycles >= ii)
            return outcome.plan is not None and outcome.plan.schedule.ii_cycles < ii
        if bound > ii:
            return True
        if not check(self.plan, graph, slack_cycles=self.options.slack_cycles):
            return False
        outcome = self._solved(graph)
        if outcome.plan is None:
            self.unsure |= outcome.status == "unknown"
            return outcome.status == "infeasible"
        self.unsure |= outcome.plan.schedule.ii_cycles > ii >= outcome.bound
        return outcome.bound > ii
