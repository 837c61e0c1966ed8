"""The property that the project stands on: solver, checker, simulator and brute force speak of the same plans.

Each implements RULES.md on its own. ``WARPPLAN_EXAMPLES`` raises the number of random loop bodies.
"""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.check.plan_check import check
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.list_scheduling import first_schedule
from warpplan.planner.simulate.simulation import verify
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import ExtraBuffer, PartitionSpec, SolveOptions, Spill
from warpplan.planner.values.plan import Plan

from .. import strategies as given_
from ..brute import smallest_plan

EXAMPLES = int(os.environ.get("WARPPLAN_EXAMPLES", "200"))
often = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MOST = 8
"""Intervals that brute force tries; in plans this small no ring of 16 slots is too short."""
SLOTS = 16


@st.composite
def asked(draw: st.DrawFn, graphs: st.SearchStrategy[DependenceGraph]) -> tuple[DependenceGraph, SolveOptions]:
    """A loop body and options: mostly none; else a depth, slack, spills, pins, or partitions of given sizes, which may
    take all registers to the last."""
    graph = draw(graphs)
    base = -(-graph.limits.base_registers // 8) * 8
    some = st.lists(st.sampled_from([op.id for op in graph.ops]), min_size=1, max_size=2, unique=True).map(tuple)
    spill = st.builds(Spill, some, st.integers(base - 1, base + 9))
    options = SolveOptions(
        work_limit_s=2.0,
        depth=draw(st.sampled_from([None, None, None, 1, 2])),
        slack_cycles=draw(st.sampled_from([0, 0, 1, 4])),
        spills=draw(st.sampled_from([(), (), tuple(draw(st.lists(spill, min_size=1, max_size=2)))])),
    )
    kind = draw(st.sampled_from(["", "", "", "pinned", "given"]))
    if kind:
        homes = st.integers(0, graph.limits.max_partitions - 1)
        pinned = {op.id: draw(homes) for op in graph.ops if kind == "given" or draw(st.booleans())}
        options = replace(options, pinned=pinned)
    if kind == "given":
        sizes = st.tuples(st.sampled_from([1, 2, 4, 4, 8]), st.sampled_from([base, base + 8, 240, 248]))
        specs = tuple(PartitionSpec(f"own{g}", *draw(sizes)) for g in range(1 + max(pinned.values())))
        taken = sum(32 * -(-s.warps // 4) * 4 * s.registers for s in specs)
        limit = draw(st.sampled_from([graph.limits.registers, taken, taken, taken, taken - 1]))
        graph = replace(graph, limits=replace(graph.limits, registers=limit))
        options = replace(options, partitions=specs)
    return graph, options


@st.composite
def asked_with_extras(draw: st.DrawFn) -> tuple[DependenceGraph, SolveOptions]:
    """Extra buffers besides the rings and in them, too."""
    graph, options = draw(asked(given_.graphs()))
    rings = [op.id for op in graph.ops if op.buffer_bytes and op.memory == "smem"]
    extras = [ExtraBuffer("own", draw(st.sampled_from([8, 100, 600])), draw(st.sampled_from([8, 128])))]
    if rings:
        extras.append(ExtraBuffer("guest", draw(st.sampled_from([8, 90])), 8, draw(st.sampled_from(rings))))
    return graph, replace(options, extra_buffers=tuple(draw(st.sampled_from([[], extras[:1], extras]))))


def right(plan: Plan, graph: DependenceGraph, options: SolveOptions) -> None:
    found = check(
        plan,
        graph,
        slack_cycles=options.slack_cycles,
        spills=options.spills,
        extras=options.extra_buffers,
        most_registers=255 if options.partitions else 240,
    )
    assert found == ()
    if all(op.issue for op in graph.ops):
        # One that takes no issue cycles may stand within another's barrier wait (rule 3), and a play in order be late.
        assert verify(plan, graph) == ()


def interval(plan: Plan | None) -> int:
    """The plan's; beyond what is tried where there is none."""
    return MOST + 1 if plan is None else min(plan.schedule.ii_cycles, MOST + 1)


@given(asked_with_extras())
@often
def test_what_is_solved_is_right(case):
    graph, options = case
    outcome = solve(graph, options)
    if outcome.plan is None:
        assert outcome.status in ("infeasible", "unknown")
        assert outcome.reason
        return
    right(outcome.plan, graph, options)
    relaxed = min_ii(Problem(graph, options)).ii_cycles
    assert relaxed <= outcome.bound <= outcome.plan.schedule.ii_cycles
    assert (outcome.status == "optimal") == (outcome.bound == outcome.plan.schedule.ii_cycles)


@st.composite
def asked_with_staging(draw: st.DrawFn) -> tuple[DependenceGraph, SolveOptions]:
    """A tiny loop body, mostly beside a buffer of its own, whose alignment may be wider than it is long."""
    graph, options = draw(asked(given_.tiny_graphs(most_partitions=3)))
    staging = st.builds(ExtraBuffer, st.just("own"), st.sampled_from([8, 64, 100]), st.sampled_from([8, 64, 128]))
    return graph, replace(options, extra_buffers=tuple(draw(st.lists(staging, max_size=1))))


@given(asked_with_staging())
@often
def test_trying_everything_finds_the_same_interval(case):
    """And nothing where the solver finds nothing; what either finds is right, and the relaxed bound below it."""
    graph, options = case
    found = smallest_plan(graph, MOST, SLOTS, options)
    if found is not None:
        right(found, graph, options)
        assert min_ii(Problem(graph, options)).ii_cycles <= found.schedule.ii_cycles
    outcome = solve(graph, options)
    if outcome.plan is not None:
        right(outcome.plan, graph, options)
    if outcome.status in ("optimal", "infeasible"):
        assert interval(outcome.plan) == interval(found)


@given(asked(given_.late_graphs()))
@often
def test_nothing_shorter_than_what_is_proven_is_ever_placed(case):
    graph, options = case
    outcome = solve(graph, options)
    if outcome.plan is not None:
        right(outcome.plan, graph, options)
    if outcome.status != "infeasible":
        problem = Problem(graph, options)
        for ii in range(max(1, outcome.bound - 3), outcome.bound):
            assert first_schedule(problem, ii) is None
