"""The same store on PostgreSQL: runs where ``WARPPLAN_TEST_POSTGRES`` is the URL of an empty database to use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from warpplan.planner.errors import StoreError
from warpplan.service.solving.plan_queue import PlanRequest, Plans
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.request import Item

URL = os.environ.get("WARPPLAN_TEST_POSTGRES", "")
pytestmark = pytest.mark.skipif(not URL, reason="WARPPLAN_TEST_POSTGRES names no database")


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store.open(URL)
    yield opened
    with opened.database.engine.begin() as connection:
        connection.execute(text("DROP TABLE configs, plans, measurements, solves, warpplan_schema"))
    opened.close()


def test_planned_then_found(store: Store, gemm: Callable[..., Item]) -> None:
    first = Workflow(store).configure(gemm(512, 64, 64))
    again = Workflow(Store.open(URL)).configure(gemm(512, 64, 64))
    assert (first.kind, first.kept) == ("planned", True)
    assert again == replace(first, kind="exact")


def test_measurements(store: Store, gemm: Callable[..., Item]) -> None:
    workflow = Workflow(store)
    config = workflow.candidates(gemm(512, 64, 64), 2)[1][1].config
    assert workflow.record(gemm(512, 64, 64), config, 0.5)
    assert not workflow.record(gemm(512, 64, 64), config, 0.5)
    assert workflow.configure(gemm(512, 64, 64)).tuning == config


def test_writers_at_once(store: Store, gemm: Callable[..., Item]) -> None:
    def write(number: int) -> None:
        workflow = Workflow(Store.open(URL))
        shapes = [(m, gemm(16 * ((m + 10 * number) % 50 + 1), 64, 64)) for m in range(50)]
        assert all(r.answer for r in workflow.batch(shapes, must_keep=True, chunk=10))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(store.problems()) == 50


def test_plans_are_claimed_once_and_listed(store: Store) -> None:
    plans = Plans(store.database)
    graph = {
        "schema": "warpplan/graph-1",
        "ops": [{"id": "a", "unit": "ALU", "latency": 1, "occupancy": 1, "issue": 1}],
        "edges": [],
    }
    asked = [PlanRequest.of({**graph, "name": f"loop \0 {n}"}, {}) for n in range(20)]
    with ThreadPoolExecutor(4) as pool:
        assert all(fresh for _, fresh in pool.map(lambda r: plans.submit(r, "p", most_queued=100), asked))
    with ThreadPoolExecutor(6) as pool:
        claims = [c for c in pool.map(lambda _: plans.claim(60, "p"), range(60)) if c is not None]
    assert len({c.id for c in claims}) == len(claims) == 20
    assert plans.renew(claims[0], 60, {"ii_asked": 1})
    assert plans.finish(claims[0], {"status": "optimal"}, None)
    assert plans.release(claims[1])
    plans.forget(claims[2].id)
    assert not plans.holds(claims[2])
    assert plans.counts() == {"queued": 1, "running": 17, "done": 1, "failed": 0}
    first = plans.page(10)
    rest = plans.page(10, after=(first[-1].submitted_at, first[-1].id))
    assert {s.id for s in (*first, *rest)} == {r.id for r in asked} - {claims[2].id}


def test_a_newer_schema(store: Store) -> None:
    with store.database.engine.begin() as connection:
        connection.execute(text("INSERT INTO warpplan_schema VALUES (99, '', '')"))
    with pytest.raises(StoreError, match="schema 99, newer than"):
        Store.open(URL)


def test_the_password_is_not_shown(store: Store) -> None:
    assert "secret" not in Store.open(URL.replace("@", ":secret@", 1)).name
