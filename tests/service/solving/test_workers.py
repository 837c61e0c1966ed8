"""Workers over a real SQLite store that goes away and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from warpplan.service.metrics import Metrics
from warpplan.service.solving.plan_queue import Plans
from warpplan.service.solving.plan_request import PlanRequest
from warpplan.service.solving.workers import Solvers
from warpplan.service.store.database import Database
from warpplan.service.workflow.profiles import planner_version

POLL_S = 0.01
GRAPH = {
    "schema": "warpplan/graph-1",
    "name": "one operation",
    "ops": [{"id": "a", "unit": "ALU", "latency": 1, "occupancy": 1, "issue": 1}],
    "edges": [],
}


def test_one_line_says_that_the_store_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = Database.open(tmp_path / "s.sqlite")
    _rename(database, "solves", "away")
    solvers = Solvers(Plans(database), Metrics(), count=1, poll_s=POLL_S)
    solvers.start()
    try:
        for outages in (1, 2):
            _wait_for(lambda outages=outages: len(caplog.records) == outages)
            time.sleep(10 * POLL_S)
            assert len(caplog.records) == outages
            _rename(database, "away", "solves")
            time.sleep(10 * POLL_S)
            _rename(database, "solves", "away")
        _wait_for(lambda: len(caplog.records) == 3)
    finally:
        solvers.stop()
    assert all("plans wait" in record.getMessage() for record in caplog.records)


@pytest.mark.slow
def test_an_answer_outlives_an_outage_of_many_polls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = Database.open(tmp_path / "s.sqlite")
    plans = Plans(database)
    asked = PlanRequest.of(GRAPH, {})
    solvers = Solvers(plans, Metrics(), count=1, poll_s=POLL_S)
    solvers.start()
    try:
        plans.submit(asked, planner_version(), most_queued=1)
        _wait_for(lambda: plans.counts()["running"] == 1)
        _rename(database, "solves", "away")
        _wait_for(lambda: "an answer waits" in caplog.text)
        time.sleep(50 * POLL_S)
        _rename(database, "away", "solves")
        _wait_for(lambda: plans.counts()["done"] == 1)
    finally:
        solvers.stop()
    assert caplog.text.count("an answer waits") == 1
    assert caplog.text.count("is solved on") <= 1


def _rename(database: Database, old: str, new: str) -> None:
    with database.writing() as connection:
        connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))


def _wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not done():
        assert time.monotonic() < until
        time.sleep(POLL_S)
