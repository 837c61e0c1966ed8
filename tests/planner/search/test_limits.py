"""Two limits: work, which every machine counts alike, and the caller's clock, which is never exceeded by much."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings

from warpplan.planner.bounds.min_ii import Bound
from warpplan.planner.check.plan_check import check
from warpplan.planner.search.ii_search import BidirectionalSearch
from warpplan.planner.search.search_state import SearchResult
from warpplan.planner.solve import solve
from warpplan.planner.values.codec import canonical
from warpplan.planner.values.deadline import Deadline, DeadlineReached
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Outcome

from .. import strategies as given_


def awkward(operations: int, edges: int, seed: int, smem_bytes: int = 232_448) -> DependenceGraph:
    """Full units, recurrences, rings and registers at random: nothing is decided soon."""
    made = random.Random(seed)
    ops = []
    for i in range(operations):
        ring = made.random() < 0.3
        ops.append(
            Operation(
                f"op{i}",
                made.choice(["TMA", "ALU", "SFU"]),
                made.randint(1, 300),
                made.randint(0, 100),
                made.randint(0, 75),
                buffer_bytes=made.choice([1024, 4096]) if ring else 0,
                alignment=1024 if ring else 1,
                registers=0 if ring else made.choice([0, 0, 5]),
            )
        )
    pairs = {tuple(sorted(made.sample(range(operations), 2))) for _ in range(edges)}
    found = [
        Dependence(f"op{b}", f"op{a}", made.randint(1, 3)) if made.random() < 0.05 else Dependence(f"op{a}", f"op{b}")
        for a, b in sorted(pairs)
    ]
    limits = Limits(4, smem_bytes=smem_bytes, handoff_cycles=50, barrier_cycles=10)
    return DependenceGraph("awkward", tuple(ops), tuple(found), limits)


@pytest.mark.parametrize(
    ("graph", "limit_s"),
    [
        (awkward(60, 120, 1), 1.0),  # Models are searched for as long as there is time.
        (awkward(400, 1_200, 2), 1.0),  # Models take seconds to build.
        (awkward(2_000, 6_000, 3), 0.5),  # So do bounds.
        (awkward(60, 120, 4), 0.001),
    ],
)
def test_a_time_limit_is_kept(graph: DependenceGraph, limit_s: float):
    solve(awkward(9, 12, 0))  # Importing OR-Tools takes half a second, once.
    began = time.process_time()  # What else the machine runs does not count.
    outcome = solve(graph, SolveOptions(work_limit_s=1e6), deadline=Deadline.after(limit_s, time.process_time))
    # 10 % and 1 s are promised; the rest is for machines that are several times slower, and for two threads.
    assert time.process_time() - began < 1.1 * limit_s + 1 + 3
    assert outcome.plan is None or check(outcome.plan, graph) == ()


def answer(outcome: Outcome) -> tuple[object, ...]:
    return outcome.status, outcome.bound, outcome.reason, None if outcome.plan is None else canonical(outcome.plan)


@settings(max_examples=15, deadline=None)
@given(graph=given_.graphs(most_ops=14, most_partitions=3, rules=True))
def test_what_a_work_limit_leaves_does_not_depend_on_the_clock(graph: DependenceGraph):
    """A clock that leaps and one that stands still: only a deadline that passes would tell them apart."""
    options = SolveOptions(work_limit_s=0.3)
    ticks = count(0, 1_000)
    leaping = Deadline(float("inf"), lambda: float(next(ticks)))
    assert answer(solve(graph, options)) == answer(solve(graph, options, deadline=leaping))


@settings(max_examples=25, deadline=None)
@given(graph=given_.graphs(most_ops=12, most_partitions=3, rules=True))
def test_whenever_the_clock_strikes_the_answer_is_true(graph: DependenceGraph):
    """The deadline passes after ``reads`` readings of the clock."""
    whole = solve(graph, SolveOptions(work_limit_s=2.0))
    for reads in (0, 1, 3, 10, 30, 100, 300, 1_000):
        ticks = count()
        outcome = solve(graph, SolveOptions(work_limit_s=2.0), deadline=Deadline(reads, lambda: float(next(ticks))))  # noqa: B023
        assert outcome.plan is None or check(outcome.plan, graph) == ()
        assert outcome.plan is None or whole.bound <= outcome.plan.schedule.ii_cycles
        assert whole.plan is None or outcome.bound <= whole.plan.schedule.ii_cycles


@pytest.mark.parametrize("rings", [True, False])
def test_a_deadline_before_the_first_schedule_leaves_a_serial_one(monkeypatch: pytest.MonkeyPatch, rings: bool):
    """Also in a loop of units and dependences alone, which the core decides."""

    def too_late(search: BidirectionalSearch, bound: Bound) -> SearchResult:
        raise DeadlineReached

    monkeypatch.setattr(BidirectionalSearch, "run", too_late)
    graph = awkward(40, 80, 3)
    if not rings:
        ops = tuple(replace(op, buffer_bytes=0, registers=0) for op in graph.ops)
        graph = replace(graph, ops=ops, limits=Limits(1))
    outcome = solve(graph, deadline=Deadline.after(60.0, time.monotonic))
    assert (outcome.status, outcome.reason) == ("feasible", "the time limit")
    assert outcome.plan is not None
    assert check(outcome.plan, graph) == ()


def test_a_spent_work_limit_leaves_a_serial_schedule_to_a_loop_that_the_core_decides():
    ops = tuple(Operation(f"op{i}", "ALU", 5 + i * 7 % 23, 1 + i * 5 % 11, 1) for i in range(60))
    edges = tuple(Dependence(f"op{i}", f"op{(i * 17 + 5) % 60}", 1 + i % 3) for i in range(60))
    outcome = solve(DependenceGraph("plain", ops, edges, Limits(1)), SolveOptions(work_limit_s=1e-9))
    assert outcome.plan is not None


def test_a_deadline_says_what_is_left():
    now = 5.0
    deadline = Deadline.after(2.0, lambda: now)
    assert deadline.remaining_s() == 2.0
    deadline.check()
    now = 7.0
    with pytest.raises(DeadlineReached):
        deadline.check()
