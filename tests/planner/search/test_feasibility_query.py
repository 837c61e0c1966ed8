"""Feasibility queries, restrictions, and what is made of a schedule once it is found."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given, settings

from warpplan.planner.bounds.min_ii import Bound, min_ii
from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Stop, run
from warpplan.planner.cpsat.work_budget import RunSettings, WorkBudget
from warpplan.planner.problem.assignment import held, rings
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.attempts import Attempt
from warpplan.planner.search.feasibility_query import FeasibilityQuery
from warpplan.planner.search.heuristics.compaction import compact_lifetimes
from warpplan.planner.search.heuristics.list_scheduling import first_schedule
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.search.ii_search import search
from warpplan.planner.search.portfolio import RANDOM_ORDER
from warpplan.planner.search.restrictions import keep_clones_in_lockstep
from warpplan.planner.search.speculation import Speculation
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.search_params import AttemptParams

from .. import strategies as given_
from ..strategies import two_clones

PARAMS = AttemptParams()


def test_a_query_finds_a_schedule_and_proves_infeasibility():
    problem = Problem(two_clones(), SolveOptions())
    for query in (FeasibilityQuery.find_schedule, FeasibilityQuery.prove_infeasible):
        answer, found = query(FeasibilityQuery(problem, 80, WorkBudget(10.0), Speculation()), 1.0)
        assert answer == "yes"
        assert found is not None
        assert fits(problem, 80, found)
        assert query(FeasibilityQuery(problem, 79, WorkBudget(10.0), Speculation()), 1.0) == ("no", None)


def test_a_schedule_with_partitions_kept_has_them():
    problem = Problem(two_clones(), SolveOptions())
    known = FeasibilityQuery(problem, 100, WorkBudget(10.0), Speculation()).prove_infeasible(1.0)[1]
    assert known is not None
    found = FeasibilityQuery(problem, 80, WorkBudget(10.0), Speculation()).keep_partitions(known, 1.0, placed=None)
    assert found is not None
    assert fits(problem, 80, found)
    assert found.partitions == known.partitions
    assert (
        FeasibilityQuery(problem, 79, WorkBudget(10.0), Speculation()).keep_partitions(known, 1.0, placed=None) is None
    )


def test_a_schedule_outside_the_stage_window_is_found_all_the_same():
    """A chain of values that need no memory, each an interval after the one before: more stages than the window has."""
    names = [f"op{i}" for i in range(2 * PARAMS.stage_window + 5)]
    ops = [Operation(name, "ALU", 40, 1, 1) for name in names]
    edges = [Dependence(a, b) for a, b in pairwise(names)]
    assert len(names) > PARAMS.small_loop_operations
    ii = len(names)
    problem = Problem(DependenceGraph("chain", tuple(ops), tuple(edges), Limits(1)), SolveOptions())
    assert FeasibilityQuery(problem, ii, WorkBudget(10.0), Speculation()).find_schedule(1.0) == ("no", None)
    answer, found = FeasibilityQuery(problem, ii, WorkBudget(10.0), Speculation()).prove_infeasible(1.0)
    assert answer == "yes"
    assert found is not None
    assert fits(problem, ii, found)
    assert solve(problem.graph).plan.schedule.ii_cycles == ii


def test_no_time_left_is_no_answer():
    problem = Problem(two_clones(), SolveOptions())
    budget = WorkBudget(0.0)
    for query in (FeasibilityQuery.find_schedule, FeasibilityQuery.prove_infeasible):
        assert query(FeasibilityQuery(problem, 80, budget, Speculation()), 1.0) == ("unknown", None)
    assert budget.wall == 0


def test_work_is_counted_for_models_and_attempts():
    problem = Problem(two_clones(), SolveOptions())
    budget = WorkBudget(10.0)
    first_schedule(problem, 80, budget)
    placed = budget.left
    assert placed < 10
    budget.solve(IntervalModel(problem, 80), 1.0)
    assert budget.left < placed
    assert first_schedule(problem, 80, WorkBudget(0.0)) is None


def test_clones_in_lockstep_are_so_many_cycles_apart():
    problem = Problem(two_clones(), SolveOptions())
    model = IntervalModel(problem, 80)
    keep_clones_in_lockstep(model)
    answer, solver = run(model.cp, 5.0)
    assert answer == "yes"
    starts = model.read(solver).starts
    assert starts[3] - starts[1] == starts[4] - starts[2] == 40


@given(given_.graphs(most_ops=8, rules=True))
@settings(max_examples=60, deadline=None)
def test_without_registers_what_is_found_fits_and_no_means_an_empty_window(graph):
    problem = Problem(graph, SolveOptions())
    ii = min_ii(problem).ii_cycles
    query = FeasibilityQuery(problem, ii, WorkBudget(10.0), Speculation())
    restriction = query.without_registers()
    outcome = Attempt(problem, ii, restriction, RunSettings(seed=RANDOM_ORDER.slot(0)), 1.0, ()).run(Stop())
    assert (outcome.found is not None) == (outcome.answer == "yes")
    assert outcome.found is None or fits(problem, ii, outcome.found)
    if outcome.answer == "no":
        assert run(IntervalModel(problem, ii, reach=PARAMS.stage_window).cp, 5.0)[0] == "no"


def test_where_nothing_is_answered_a_schedule_is_constructed(monkeypatch):
    names = [f"op{i}" for i in range(PARAMS.small_loop_operations + 1)]
    ops = [Operation(name, "ALU", 40, 10, 10) for name in names]
    edges = [Dependence(a, b) for a, b in pairwise(names)]
    graph = DependenceGraph("chain", tuple(ops), tuple(edges), Limits(2, handoff_cycles=10, barrier_cycles=5))
    for method in ("find_schedule", "prove_infeasible"):
        monkeypatch.setattr(FeasibilityQuery, method, lambda *args, **options: ("unknown", None))
    outcome = solve(graph)
    assert outcome.status == "optimal"  # Re-timed down to MinII.
    assert outcome.plan is not None


def lives(problem: Problem, ii: int, found) -> int:
    return sum(found.starts) + 2 * sum(held(problem, ii, found, p, margin=False) for p in problem.rings)


@given(given_.graphs(most_ops=10, rules=True))
@settings(max_examples=40, deadline=None)
def test_a_shorter_schedule_is_right_and_no_longer(graph):
    problem = Problem(graph, SolveOptions())
    ii = 2 * min_ii(problem).ii_cycles
    found = first_schedule(problem, ii)
    assume(found is not None)
    shorter = compact_lifetimes(problem, ii, found)
    assert fits(problem, ii, shorter)
    assert shorter.partitions == found.partitions
    # The rings' hand-offs are constants of the order, and so is everything else that is not a start.
    assert lives(problem, ii, shorter) <= lives(problem, ii, found)
    assert set(rings(problem, shorter)) == set(rings(problem, found))


def refused_by_its_shape() -> Problem:
    """A ring of 64 lanes and 3 columns: its area fits 128 x 2, but the ring does not."""
    graph = two_clones()
    wide = Operation("wide", "TENSOR", 10, 5, 2, buffer_bytes=600, memory="tmem", lanes=64)
    return Problem(replace(graph, ops=(*graph.ops, wide), limits=replace(graph.limits, tmem_columns=2)), SolveOptions())


def test_a_model_with_a_cut_added_is_the_one_that_is_built_with_it():
    """One thread may find a model that the other has to build."""
    query = FeasibilityQuery(refused_by_its_shape(), 100, WorkBudget(10.0), Speculation())
    attempt = Attempt(query.problem, query.ii, query.all, RunSettings(), 1.0, ())
    built = attempt.run(Stop())
    assert built.answer == "no"
    assert built.known.cuts
    query.all.known = replace(built.known, model=query.all.build("shared"), cuts=())
    found = attempt.run(Stop())
    assert (found.answer, found.found, found.seconds, found.known.cuts) == (
        built.answer, built.found, built.seconds, built.known.cuts
    )  # fmt: skip
    assert str(found.known.model.cp.proto) == str(built.known.model.cp.proto)


def test_rings_of_values_in_registers_alternate_too():
    """a and c hand their values to another partition, through memory that holds one of the two."""
    ops = [
        Operation(name, unit, 4, 4, 2, registers=4 * (name in "ac"))
        for name, unit in (("a", "ALU"), ("b", "SFU"), ("c", "ALU"), ("d", "SFU"))
    ]
    ops.append(Operation("t", "TMA", 16, 16, 2))
    limits = Limits(2, ops[0].register_bytes, 65536, 0)
    graph = DependenceGraph("turns", tuple(ops), (Dependence("a", "b"), Dependence("c", "d")), limits)
    outcome = solve(graph, SolveOptions(pinned={"a": 0, "c": 0, "b": 1, "d": 1}))
    assert outcome.status == "optimal"
    assert outcome.plan.schedule.ii_cycles == 16
    assert outcome.plan.reuses


def test_a_bound_is_raised_by_proofs():
    """TENSOR is full at 80 cycles; nobody has said so."""
    told = []
    problem = Problem(two_clones(), SolveOptions())
    search(problem, Bound(70, "an upper bound"), lambda ii, proven, best: told.append((proven, best)))
    assert told[-1] == (80, 80)


def test_a_ring_that_nobody_reads_and_takes_no_time_lies_in_another_ones_place():
    """Found at random: full memory, of which one ring is held at every moment, and one at none."""

    def op(name: str, latency: int, size: int, spread: int) -> Operation:
        return Operation(name, "TMA", latency, 0, 0, buffer_bytes=size, alignment=64 if latency else 8, spread=spread)

    ops = (op("a", 0, 96, 5), op("b", 9, 96, 5), op("c", 0, 96, 5), op("alone", 0, 96, 0))
    edges = (Dependence("a", "b"), Dependence("b", "c"))
    outcome = solve(DependenceGraph("full", ops, edges, Limits(1, smem_bytes=1024)))
    assert (outcome.status, outcome.bound) == ("optimal", 5)


def test_a_partition_that_pins_leave_out_takes_no_registers():
    """Registers are enough for one partition of four warps: it may be numbered 1."""
    ops = tuple(Operation(name, "TMA", 1, 0, 1) for name in ("a", "b"))
    graph = DependenceGraph("one", ops, (), Limits(3, registers=24 * 128, base_registers=24))
    outcome = solve(graph, SolveOptions(pinned={"a": 1}))
    assert outcome.status == "optimal"
    assert outcome.plan is not None
    assert [p.ops for p in outcome.plan.partitions] == [("a", "b")]
    assert solve(graph, SolveOptions(pinned={"a": 1, "b": 0})).status == "infeasible"
