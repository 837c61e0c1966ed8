"""Workers over a real SQLite store that goes away and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from warpplan.service.metrics import Metrics
from warpplan.service.solving.plan_queue import Plans
from warpplan.service.solving.workers import Solvers
from warpplan.service.store.database import Database

POLL_S = 0.01


def test_one_line_says_that_the_store_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = Database.open(tmp_path / "s.sqlite")

    def rename(old: str, new: str) -> None:
        with database.writing() as connection:
            connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

    rename("solves", "away")
    solvers = Solvers(Plans(database), Metrics(), count=1, poll_s=POLL_S)
    solvers.start()
    try:
        for outages in (1, 2):
            _wait_for(lambda outages=outages: len(caplog.records) == outages)
            time.sleep(10 * POLL_S)
            assert len(caplog.records) == outages
            rename("away", "solves")
            time.sleep(10 * POLL_S)
            rename("solves", "away")
        _wait_for(lambda: len(caplog.records) == 3)
    finally:
        solvers.stop()
    assert all("plans wait" in record.getMessage() for record in caplog.records)


def _wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not done():
        assert time.monotonic() < until
        time.sleep(POLL_S)
