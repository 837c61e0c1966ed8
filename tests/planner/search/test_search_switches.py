"""What the search for an interval is made of: questions by turns, schedules made shorter, orders kept."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings

from warpplan.planner.bounds.min_ii import Bound, min_ii
from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Stop, run
from warpplan.planner.cpsat.sharing_constraints import NoGoodCut
from warpplan.planner.problem.assignment import Assignment, held, rings
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.feasibility_query import Ask, Question
from warpplan.planner.search.heuristics.compaction import shorten
from warpplan.planner.search.heuristics.fixed_order import Order, first_in_order, keep_order, queues
from warpplan.planner.search.heuristics.list_scheduling import first_schedule
from warpplan.planner.search.heuristics.retiming import fits
from warpplan.planner.search.ii_search import search
from warpplan.planner.search.restrictions import gapless, in_step, in_turn
from warpplan.planner.search.speculation import Ahead
from warpplan.planner.search.work_budget import Effort, Way
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.search_params import AttemptParams

from .. import strategies as given_

PARAMS = AttemptParams()


def two_clones() -> DependenceGraph:
    """A shared load, and two clones of a multiply and what reads it: TENSOR is full at 80 cycles."""
    ops = [Operation("load", "TMA", 50, 10, 2, buffer_bytes=1024, alignment=1024)]
    edges = []
    for i in "01":
        ops += [
            Operation(f"mma{i}", "TENSOR", 60, 40, 5, min_warps=4, registers=32),
            Operation(f"exp{i}", "ALU", 30, 30, 30),
        ]
        edges += [Dependence("load", f"mma{i}"), Dependence(f"mma{i}", f"exp{i}")]
    return DependenceGraph(
        "two", tuple(ops), tuple(edges), Limits(3, handoff_cycles=10), clones=(("mma0", "exp0"), ("mma1", "exp1"))
    )


def test_a_question_is_answered_and_refused():
    problem = Problem(two_clones(), SolveOptions())
    for ask in (Question.near, Question.refute):
        answer, found = ask(Question(problem, 80, Effort(10.0), Ahead()), 1.0)
        assert answer == "yes"
        assert found is not None
        assert fits(problem, 80, found)
        assert ask(Question(problem, 79, Effort(10.0), Ahead()), 1.0) == ("no", None)


def test_a_schedule_alike_keeps_the_partitions():
    problem = Problem(two_clones(), SolveOptions())
    known = Question(problem, 100, Effort(10.0), Ahead()).refute(1.0)[1]
    assert known is not None
    found = Question(problem, 80, Effort(10.0), Ahead()).alike(known, 1.0, reuse=False)
    assert found is not None
    assert fits(problem, 80, found)
    assert found.partitions == known.partitions
    assert Question(problem, 79, Effort(10.0), Ahead()).alike(known, 1.0, reuse=False) is None


def test_what_is_not_near_is_found_all_the_same():
    """A chain of values that need no room, each a whole interval after the one before: more stages than "near"."""
    names = [f"op{i}" for i in range(2 * PARAMS.stage_window + 5)]
    ops = [Operation(name, "ALU", 40, 1, 1) for name in names]
    edges = [Dependence(a, b) for a, b in pairwise(names)]
    assert len(names) > PARAMS.small_loop_operations
    ii = len(names)
    problem = Problem(DependenceGraph("chain", tuple(ops), tuple(edges), Limits(1)), SolveOptions())
    assert Question(problem, ii, Effort(10.0), Ahead()).near(1.0) == ("no", None)
    answer, found = Question(problem, ii, Effort(10.0), Ahead()).refute(1.0)
    assert answer == "yes"
    assert found is not None
    assert fits(problem, ii, found)
    assert solve(problem.graph).plan.schedule.ii_cycles == ii


def test_no_time_left_is_no_answer():
    problem = Problem(two_clones(), SolveOptions())
    effort = Effort(0.0)
    for ask in (Question.near, Question.refute):
        assert ask(Question(problem, 80, effort, Ahead()), 1.0) == ("unknown", None)
    assert effort.wall == 0


def test_effort_is_taken_for_models_and_attempts():
    problem = Problem(two_clones(), SolveOptions())
    effort = Effort(10.0)
    first_schedule(problem, 80, effort)
    placed = effort.left
    assert placed < 10
    effort.solve(IntervalModel(problem, 80), 1.0)
    assert effort.left < placed
    assert first_schedule(problem, 80, Effort(0.0)) is None


def test_clones_in_step_are_so_many_cycles_apart():
    problem = Problem(two_clones(), SolveOptions())
    model = IntervalModel(problem, 80)
    in_step(model)
    answer, solver = run(model.cp, 5.0)
    assert answer == "yes"
    starts = model.read(solver).starts
    assert starts[3] - starts[1] == starts[4] - starts[2] == 40


def on_one_unit(count: int, limits: Limits) -> Problem:
    """So many users of the ALU, which issue for as long as they hold it."""
    ops = tuple(Operation(f"op{i}", "ALU", 20, 20, 20) for i in range(count))
    return Problem(DependenceGraph("busy", ops, (), limits), SolveOptions())


def test_on_a_unit_without_gaps_partitions_take_turns():
    limits = Limits(2, barrier_cycles=5)
    four = on_one_unit(4, limits)
    assert gapless(four, 84) == [[0, 1, 2, 3]]
    assert gapless(four, 85) == []  # Room for a barrier.
    model = IntervalModel(four, 80)
    in_turn(model)
    answer, solver = run(model.cp, 5.0)
    assert answer == "yes"
    found = model.read(solver)
    around = sorted(range(4), key=lambda i: found.starts[i] % 80)
    assert all(found.partitions[a] != found.partitions[b] for a, b in pairwise([*around, around[0]]))
    model = IntervalModel(on_one_unit(3, limits), 60)
    assert run(model.cp, 5.0)[0] == "yes"
    in_turn(model)  # Two of three on a circle are neighbours in the same of two partitions.
    assert run(model.cp, 5.0)[0] == "no"


def test_what_is_refused_where_partitions_take_turns_is_a_guess():
    limits = Limits(2, barrier_cycles=5)
    question = Question(on_one_unit(3, limits), 60, Effort(10.0), Ahead())
    guess = question.without_registers()
    assert Ask(question, guess, Way(turn=1), 1.0, ()).run(Stop()).answer == "no"
    assert not guess.refuses
    assert Question(on_one_unit(3, limits), 65, Effort(10.0), Ahead()).without_registers().refuses


def test_units_whose_users_issue_for_less_than_they_hold_have_room_for_barriers():
    ops = tuple(Operation(f"op{i}", "TENSOR", 20, 20, 5) for i in range(4))
    assert gapless(Problem(DependenceGraph("async", ops, (), Limits(2, barrier_cycles=5)), SolveOptions()), 80) == []


@given(given_.graphs(most_ops=8, rules=True))
@settings(max_examples=60, deadline=None)
def test_without_registers_what_is_found_fits_and_what_is_refused_is_not_near(graph):
    problem = Problem(graph, SolveOptions())
    ii = min_ii(problem).ii_cycles
    question = Question(problem, ii, Effort(10.0), Ahead())
    guess = question.without_registers()
    seen = Ask(question, guess, Way(turn=2), 1.0, ()).run(Stop())
    assert (seen.found is not None) == (seen.answer == "yes")
    assert seen.found is None or fits(problem, ii, seen.found)
    if seen.answer == "no" and guess.refuses:
        assert run(IntervalModel(problem, ii, reach=PARAMS.stage_window).cp, 5.0)[0] == "no"


def test_where_nothing_is_answered_a_schedule_is_constructed(monkeypatch):
    names = [f"op{i}" for i in range(PARAMS.small_loop_operations + 1)]
    ops = [Operation(name, "ALU", 40, 10, 10) for name in names]
    edges = [Dependence(a, b) for a, b in pairwise(names)]
    graph = DependenceGraph("chain", tuple(ops), tuple(edges), Limits(2, handoff_cycles=10, barrier_cycles=5))
    for question in ("near", "refute"):
        monkeypatch.setattr(Question, question, lambda *args, **options: ("unknown", None))
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
    shorter = shorten(problem, ii, found)
    assert fits(problem, ii, shorter)
    assert shorter.partitions == found.partitions
    # The rings' hand-offs are constants of the order, and so is everything else that is not a start.
    assert lives(problem, ii, shorter) <= lives(problem, ii, found)
    assert set(rings(problem, shorter)) == set(rings(problem, found))


def test_an_order_is_kept():
    """exp1 before exp0 on the ALU, and mma1 before mma0 on the tensor core."""
    graph = replace(two_clones(), clones=())
    problem = Problem(graph, SolveOptions())
    order = Order((0, 40, 50, 0, 10), (0, 0, 1, 0, 1))
    assert [(i, j) for i, j, _, turn in queues(problem, order) if not turn] == [(3, 1), (4, 2)]
    model = IntervalModel(problem, 80)
    keep_order(model, order)
    answer, solver = run(model.cp, 5.0)
    assert answer == "yes"
    for found in (model.read(solver), first_in_order(problem, 80, order)):
        assert found is not None
        assert 40 <= found.starts[1] - found.starts[3] <= 80 - 40
        assert 30 <= found.starts[2] - found.starts[4] <= 80 - 30


def test_values_that_outlive_many_intervals_are_no_reason_to_refuse():
    """A hundred cycles of latency at three cycles an iteration: 34 copies of each value, one register each."""
    loose = tuple(Operation(f"op{i}", "ALU", 100, 1, 1, registers=1) for i in range(3))
    assert solve(DependenceGraph("loose", loose, (), Limits(2))).plan.schedule.ii_cycles == 3
    values = tuple(Operation(f"value{i}", "TMA", 90, 1, 0, registers=1) for i in range(3))
    chain = tuple(Operation(f"op{i}", "ALU", 2, int(i < 3), 0) for i in range(9))
    edges = tuple(Dependence(a.id, b.id) for a, b in pairwise(chain))
    graph = DependenceGraph("chain", values + chain, edges, Limits(2, handoff_cycles=0))
    assert run(IntervalModel(Problem(graph, SolveOptions()), 3).cp, 5.0)[0] == "yes"


def test_a_cut_about_a_ring_that_is_not_there_says_nothing():
    """exp0 reads mma0's registers: a ring only where the two are apart."""
    graph = two_clones()
    together = SolveOptions(pinned={op.id: 0 for op in graph.ops})
    model = IntervalModel(Problem(graph, together), 200, memory="shared")
    model.forbid(NoGoodCut(((graph.index["mma0"], 1),), ()))
    assert run(model.cp, 5.0)[0] == "yes"


def refused_by_its_shape() -> Problem:
    """A ring of 64 lanes and 3 columns: there is room for its area in 128 x 2, but not for itself."""
    graph = two_clones()
    wide = Operation("wide", "TENSOR", 10, 5, 2, buffer_bytes=600, memory="tmem", lanes=64)
    return Problem(replace(graph, ops=(*graph.ops, wide), limits=replace(graph.limits, tmem_columns=2)), SolveOptions())


def test_a_cut_forbids_a_ring_of_so_many_slots():
    problem = Problem(two_clones(), SolveOptions())
    model = IntervalModel(problem, 100, memory="shared")
    model.cp.add(model.depth[0] >= 2)
    assert run(model.cp, 5.0)[0] == "yes"
    model.forbid(NoGoodCut(((0, 2),), ()))
    assert run(model.cp, 5.0)[0] == "no"
    with pytest.raises(ValueError, match="memory='shared'"):
        IntervalModel(problem, 100).forbid(NoGoodCut(((0, 2),), ()))


def test_a_model_that_was_cut_is_the_one_that_is_built_with_the_cuts():
    """One thread may find a model that the other has to build."""
    question = Question(refused_by_its_shape(), 100, Effort(10.0), Ahead())
    ask = Ask(question, question.all, Way(), 1.0, ())
    built = ask.run(Stop())
    assert built.answer == "no"
    assert built.known.cuts
    question.all.known = replace(built.known, model=question.all.build("shared"), cuts=())
    found = ask.run(Stop())
    assert (found.answer, found.found, found.seconds, found.known.cuts) == (
        built.answer, built.found, built.seconds, built.known.cuts
    )  # fmt: skip
    assert str(found.known.model.cp.proto) == str(built.known.model.cp.proto)


def test_rings_of_values_in_registers_take_turns_too():
    """a and c hand their values to another partition, through a place that there is room for once."""
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


def test_a_model_begins_with_what_is_known():
    problem = Problem(two_clones(), SolveOptions())

    def found(turn: int = 0, known: Assignment | None = None) -> Assignment:
        model = IntervalModel(problem, 100)
        if known is not None:
            model.begin_with(known)
        answer, solver = run(model.cp, 5.0, turn=turn)
        assert answer == "yes"
        return model.read(solver)

    ways = [found(turn) for turn in range(1, 6)]
    others = [known for known in ways if known.starts != found().starts]
    assert others
    assert all(found(known=known).starts == known.starts for known in others)


def test_a_bound_rises_to_what_is_refused():
    """TENSOR is full at 80 cycles; nobody has said so."""
    told = []
    problem = Problem(two_clones(), SolveOptions())
    search(problem, Bound(70, "a guess"), lambda ii, proven, best: told.append((proven, best)))
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
