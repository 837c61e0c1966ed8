"""A second thread: the same answers, whoever comes to them first."""

from __future__ import annotations

from threading import Event

import pytest
from hypothesis import given, settings

from warpplan.planner.cpsat.runner import Stop
from warpplan.planner.search.speculation import Ahead
from warpplan.planner.solve import solve
from warpplan.planner.values.codec import canonical
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.search_params import DriverParams, SearchParams

from .. import strategies as given_

LONG = 10.0


def test_what_was_expected_is_done_once():
    done: list[str] = []

    def task(name: str):
        def run(stop: Stop) -> str:
            done.append(name)
            return name

        return run

    with Ahead[str](0.0) as two:
        begun = Event()

        def second(stop: Stop) -> str:
            begun.set()
            return task("second")(stop)

        def first(stop: Stop) -> str:
            assert begun.wait(LONG)  # While the first is waited for, the second runs.
            return task("first")(stop)

        assert two.result("first", first, ("second", second)) == "first"
        assert two.result("second", second) == "second"
    assert sorted(done) == ["first", "second"]


def test_what_is_under_way_when_it_is_asked_for_is_hard():
    begun = Event()

    def third(stop: Stop) -> str:
        begun.set()
        return "third"

    def second(stop: Stop) -> str:
        assert begun.wait(LONG)  # What is next begins without patience.
        return "second"

    with Ahead[str](0.0) as two:
        under_way = Event()

        def early(stop: Stop) -> str:
            under_way.set()
            return second(stop)

        assert two.result("first", lambda stop: "first" if under_way.wait(LONG) else "", ("second", early)) == "first"
        two.patience = 5 * LONG
        assert two.result("second", second, ("third", third)) == "second"


def test_what_was_not_wanted_is_stopped():
    begun, stopped = Event(), Event()

    def unwanted(stop: Stop) -> str:
        begun.set()
        while not stop.called:
            pass
        stopped.set()
        return "unwanted"

    def first(stop: Stop) -> str:
        assert begun.wait(LONG)
        return "first"

    with Ahead[str](0.0) as two:
        assert two.result("first", first, ("unwanted", unwanted)) == "first"
        assert two.result("other", lambda stop: "other") == "other"
        assert stopped.wait(LONG)


def test_what_is_soon_done_begins_nothing_else():
    begun: list[str] = []
    with Ahead[str](LONG) as two:
        assert (
            two.result("first", lambda stop: "first", ("second", lambda stop: begun.append("second") or "")) == "first"
        )
    assert begun == []


def test_an_error_reaches_who_waits():
    def fails(stop: Stop) -> str:
        raise ValueError("no such thing")

    with Ahead[str](0.0) as two:
        two.result("first", lambda stop: "first", ("fails", fails))
        with pytest.raises(ValueError, match="no such thing"):
            two.result("fails", fails)


def test_a_run_that_is_stopped_before_it_begins_ends_at_once():
    from ortools.sat.python import cp_model

    from warpplan.planner.cpsat.runner import run

    model = cp_model.CpModel()
    x = [model.new_int_var(0, 60, "") for _ in range(60)]
    model.add_all_different(x)
    model.minimize(sum(i * v * (-1) ** i for i, v in enumerate(x)))
    stop = Stop()
    stop.call()
    answer, solver = run(model, LONG, stop=stop)
    assert answer == "unknown"
    assert solver.wall_time < LONG / 2


@settings(max_examples=20, deadline=None)
@given(given_.graphs(most_ops=18, most_partitions=4))
def test_one_thread_and_two_come_to_the_same_plan(graph: DependenceGraph):
    plans = []
    for search in (
        SearchParams(speculation=False),
        SearchParams(driver=DriverParams(patience_wall_s=LONG)),
        SearchParams(driver=DriverParams(patience_wall_s=0.0)),
    ):
        outcome = solve(graph, SolveOptions(work_limit_s=2.0, search=search))
        plans.append((outcome.status, outcome.bound, None if outcome.plan is None else canonical(outcome.plan)))
    assert plans[0] == plans[1] == plans[2]
