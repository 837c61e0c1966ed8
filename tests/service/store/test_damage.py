"""Damaged files: every lookup gives the answer of before, or says in words what is wrong; never another answer."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from warpplan.planner.errors import StoreError, UnknownName
from warpplan.planner.values import codec
from warpplan.planner.values.plan import Outcome
from warpplan.service.http.app import create_app
from warpplan.service.solving.plan_queue import Plans
from warpplan.service.solving.plan_request import PlanRequest
from warpplan.service.store.answer_store import Store
from warpplan.service.store.checksums import BY_TABLE
from warpplan.service.store.database import sqlite_engine
from warpplan.service.store.migrations import MIGRATIONS, migrate
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.request import Item

SHAPES = [(64 * n, 512, 256 * n) for n in range(1, 13)]
GRAPH = {
    "schema": "warpplan/graph-1", "name": "loop", "edges": [],
    "ops": [{"id": "a", "unit": "ALU", "latency": 1, "occupancy": 1, "issue": 1}],
}  # fmt: skip
ASKED = PlanRequest.of(GRAPH, {})
DONE = codec.to_json(Outcome("optimal", None, 7, 0.5, "as it was solved"))


def items() -> list[Item]:
    return [Item("gemm", (("M", m), ("N", n), ("K", k))) for m, n, k in SHAPES]


def fill(path: Path) -> dict[Item, bytes]:
    """A store with plans, measurements and a solved loop; the bodies of its answers."""
    store = Store.open(path)
    workflow = Workflow(store)
    for item in items():
        workflow.configure(item)
    for item in items()[::2]:
        ranked = workflow.candidates(item, 2)[1]
        workflow.record(
            item, ranked[1].config, 0.9 * ranked[0].prediction.time_us + 1, environment=(("triton", "3.6.0"),)
        )
    plans = Plans(store.database)
    plans.submit(ASKED, "p", most_queued=9)
    claim = plans.claim(60, "p")
    assert claim is not None
    assert plans.finish(claim, DONE, None)
    after = Workflow(store)
    answers = {item: after.configure(item).body for item in items()}
    store.close()
    return answers


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[Item, bytes]]:
    path = tmp_path_factory.mktemp("whole") / "s.sqlite"
    answers = fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes(), answers


def damaged(data: bytes, pick: random.Random) -> bytes:
    """``data`` with some of it changed, in one of several ways."""
    out = bytearray(data)
    way = pick.randrange(5)
    at = pick.randrange(len(out))
    if way == 0:
        out[at] ^= 1 << pick.randrange(8)
    elif way == 1:
        for _ in range(pick.randint(2, 200)):
            out[pick.randrange(len(out))] = pick.randrange(256)
    elif way == 2:
        return bytes(out[:at])
    elif way == 3:
        size = pick.choice((8, 100, 512, 4096))
        out[at : at + size] = bytes(size) if pick.random() < 0.5 else pick.randbytes(size)
    else:  # a digit for another: the text stays text
        places = [i for i in range(at, min(at + 4096, len(out))) if 0x30 <= out[i] <= 0x39]
        for i in pick.sample(places, min(len(places), 3)):
            out[i] = pick.choice(b"0123456789")
    return bytes(out)


def same(body: bytes) -> bytes:
    """What an answer says, whether it was kept or had to be planned anew."""
    return body.replace(b'"kind":"planned"', b'"kind":"exact"').replace(b'"kept":false', b'"kept":true')


def look_up(path: Path, answers: dict[Item, bytes]) -> tuple[int, int]:
    """Look everything up in a damaged store: (right answers, refusals). Anything else fails."""
    right = refused = 0
    try:
        store = Store.open(path, timeout_s=1)
    except StoreError as error:
        require_one_line(error)
        return 0, 1
    try:
        workflow = Workflow(store)
        for item, expected in answers.items():
            try:
                assert same(workflow.configure(item).body) == same(expected), item
                right += 1
            except StoreError as error:
                require_one_line(error)
                refused += 1
        try:
            plan = Plans(store.database).get(ASKED.id)
            assert plan.summary.state == "queued" or plan.outcome == DONE
            assert plan.request == ASKED.text
        except (StoreError, UnknownName) as error:
            require_one_line(error)
        for read in (store.ping, store.problems, lambda: Plans(store.database).page(9), Plans(store.database).counts):
            try:
                read()
            except StoreError as error:
                require_one_line(error)
    finally:
        store.close()
    return right, refused


def require_one_line(error: BaseException) -> None:
    assert str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("seed", range(8))
def test_no_damage_changes_an_answer(tmp_path: Path, whole: tuple[bytes, dict[Item, bytes]], seed: int) -> None:
    logging.disable()
    data, answers = whole
    pick = random.Random(1_000 + seed)
    right = refused = 0
    for number in range(50):
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(damaged(data, pick))
        one, other = look_up(path, answers)
        right, refused = right + one, refused + other
    logging.disable(logging.NOTSET)
    assert right > 100
    assert refused > 0


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE configs SET config = replace(config, '64', '65')",
        "UPDATE configs SET prediction = substr(prediction, 1, 10)",
        "UPDATE configs SET plan = (SELECT id FROM plans LIMIT 1)",
        "UPDATE configs SET config = CAST(x'ff00fe' AS TEXT)",
        "UPDATE configs SET config = 7, prediction = NULL WHERE 0 OR config IS NOT NULL AND 0",
        "UPDATE configs SET checksum = NULL",
        "UPDATE plans SET body = substr(body, 1, 40)",
        "UPDATE plans SET body = replace(body, '1', '2')",
        "DELETE FROM plans",
    ],
)
def test_a_damaged_row_is_planned_anew_and_replaced(
    tmp_path: Path, whole: tuple[bytes, dict[Item, bytes]], change: str
) -> None:
    data, answers = whole
    path = tmp_path / "s.sqlite"
    path.write_bytes(data)
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    for _ in range(2):
        store = Store.open(path)
        assert {item: same(Workflow(store).configure(item).body) for item in answers} == {
            item: same(body) for item, body in answers.items()
        }
        store.close()
    store = Store.open(path)
    assert all(Workflow(store).configure(item).kind == "exact" for item in answers)
    store.close()


def test_a_damaged_measurement_is_named_until_it_is_taken_back(serve: Callable[[FastAPI], str], tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    fill(path)
    with sqlite3.connect(path) as connection:
        for table in ("measurements", "measured_times"):
            connection.execute(f"UPDATE {table} SET time_us = time_us * 0.99")
    url = serve(create_app(Workflow(Store.open(path))))
    sizes = dict(zip("MNK", SHAPES[0], strict=True))
    reply = httpx.get(f"{url}/v1/configs/gemm", params=sizes, timeout=60)
    assert (reply.status_code, reply.headers["content-type"]) == (503, "application/problem+json")
    detail = reply.json()["detail"]
    assert "does not match its checksum" in detail
    assert httpx.delete(url + detail.partition("DELETE ")[2]).status_code == 204
    assert httpx.get(f"{url}/v1/configs/gemm", params=sizes, timeout=60).json()["measured"] is None


def test_a_solved_plan_with_a_damaged_outcome_waits_again(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    fill(path)
    for change in ("substr(outcome, 1, 30)", "replace(outcome, '7', '8')", "NULL"):
        with sqlite3.connect(path) as connection:
            connection.execute(f"UPDATE solves SET outcome = {change}")
        store = Store.open(path)
        plans = Plans(store.database)
        assert plans.get(ASKED.id).summary.state == "queued"
        claim = plans.claim(60, "p")
        assert claim is not None
        assert plans.finish(claim, DONE, None)
        assert plans.get(ASKED.id).outcome == DONE
        store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE solves SET request = replace(request, 'ALU', 'SFU')")
    store = Store.open(path)
    with pytest.raises(StoreError, match="forget it with DELETE and ask for it again"):
        Plans(store.database).get(ASKED.id)
    store.close()


def test_a_store_from_before_checksums_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its rows stay, and from then on they are guarded."""
    path = tmp_path / "s.sqlite"
    answers = fill(path)
    old = tmp_path / "old.sqlite"
    engine = sqlite_engine(old, 1.0, readonly=False)
    migrate(engine, MIGRATIONS[:3])
    engine.dispose()
    with sqlite3.connect(old) as connection:
        connection.execute("ATTACH ? AS new", (str(path),))
        for table in ("plans", *BY_TABLE):
            columns = [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")]
            names = ", ".join(columns)
            connection.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM new.{table}")
    store = Store.open(old)
    workflow = Workflow(store)
    assert {item: workflow.configure(item).body for item in answers} == answers
    assert Plans(store.database).get(ASKED.id).outcome == DONE
    store.close()
