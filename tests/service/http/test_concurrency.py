"""Several processes on one store, as the ranks of a job are."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.store.answer_store import Store
from warpplan.service.store.migrations import MIGRATIONS
from warpplan.service.store.stored_values import config_text
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.request import Item

PROCESSES = 4


def item(m: int) -> Item:
    return Item("gemm", (("M", m), ("N", 256), ("K", 256)))


def rank(number: int, path: str, config: str) -> list[str]:
    """What one process does: open the store while the others do, plan shapes that partly overlap, report times."""
    workflow = Workflow(Store.open(path, timeout_s=60))
    fields = json.loads(config)
    tuning = TuningConfig.of(fields.pop("kwargs"), **fields)
    bodies = []
    for m in range(1, 41):
        result = next(workflow.batch([(m, item(16 * ((m + 10 * number) % 50 + 1)))], must_keep=True))
        assert result.answer is not None, result.error
        bodies.append(f"{result.answer.problem.shape_json} {config_text(result.answer.config)}")
        workflow.record(item(16), tuning, 1000.0 + m, run=f"rank {number}")
        workflow.record(item(16), tuning, 1000.0 + m, run="all ranks")
    return bodies


def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    path = str(tmp_path / "new.sqlite")
    config = json.dumps(Workflow().configure(item(16)).config.as_dict())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        answers = list(pool.map(rank, range(PROCESSES), [path] * PROCESSES, [config] * PROCESSES))
    assert len(set().union(*answers)) == 50, "two ranks got different answers for one shape"
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT COUNT(*), COUNT(DISTINCT shape) FROM configs").fetchone() == (50, 50)
        reports = dict(connection.execute("SELECT run, COUNT(*) FROM measurements GROUP BY run").fetchall())
        assert reports == {"all ranks": 40} | {f"rank {n}": 40 for n in range(PROCESSES)}
        assert connection.execute("SELECT COUNT(*) FROM warpplan_schema").fetchone() == (len(MIGRATIONS),)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
