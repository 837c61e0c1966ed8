from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.store.answer_store import Store
from warpplan.service.store.database import Database, sqlite_engine
from warpplan.service.store.migrations import MIGRATIONS, Migration, migrate
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer, KernelAnswers
from warpplan.service.store.tuned.kernel_answer_store import _row as row_of


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = sqlite_engine(tmp_path / "s.sqlite", 1.0, readonly=False)
    yield engine
    engine.dispose()


def versions(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT version FROM warpplan_schema ORDER BY version")).scalars())


NEXT = Migration(
    MIGRATIONS[-1].version + 1, "next", ("CREATE TABLE later (x TEXT)", "INSERT INTO later VALUES ('kept')")
)


def test_versions_count_up() -> None:
    assert [m.version for m in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_an_older_store_is_brought_up_to_date_and_keeps_its_rows(engine: Engine) -> None:
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO plans VALUES ('id', 'body')"))
    migrate(engine, (*MIGRATIONS, NEXT))
    migrate(engine, (*MIGRATIONS, NEXT))
    assert versions(engine) == [m.version for m in (*MIGRATIONS, NEXT)]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT * FROM later")).all() == [("kept",)]
        assert connection.execute(text("SELECT * FROM plans")).all() == [("id", "body")]


def test_a_migration_that_fails_leaves_nothing(engine: Engine) -> None:
    migrate(engine)
    broken = Migration(NEXT.version, "broken", (*NEXT.statements, "CREATE NONSENSE"))
    with pytest.raises(OperationalError):
        migrate(engine, (*MIGRATIONS, broken))
    assert versions(engine) == [m.version for m in MIGRATIONS]
    migrate(engine, (*MIGRATIONS, NEXT))
    assert versions(engine)[-1] == NEXT.version


def test_the_schema_is_recorded_with_its_date(tmp_path: Path) -> None:
    Store.open(tmp_path / "s.sqlite").close()
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        rows = connection.execute("SELECT version, name, applied_at FROM warpplan_schema ORDER BY version").fetchall()
    assert [(version, name) for version, name, _ in rows] == [(m.version, m.name) for m in MIGRATIONS]
    assert all(at.startswith("20") for _, _, at in rows)


def test_answers_of_schema_8_are_read_without_a_triton(engine: Engine) -> None:
    migrate(engine, MIGRATIONS[:8])
    config = TuningConfig.of({"BM": 64}, num_warps=4, num_stages=3)
    answer = KernelAnswer("k", "s", (("M", 3),), "a=*bf16", "NVIDIA H200", "p", "1", ((config, 2.5),), "2026-01-01")
    row = {name: value for name, value in row_of(answer, "").items() if name != "triton"}
    with engine.begin() as connection:
        names = ", ".join(row)
        connection.execute(
            text(f"INSERT INTO kernel_answers ({names}) VALUES ({', '.join(f':{n}' for n in row)})"), row
        )
    migrate(engine)
    answers = KernelAnswers(Database(engine, "s", readonly=False))
    assert answers.of("k") == (answer,)
    with engine.begin() as connection:
        connection.execute(text("UPDATE kernel_answers SET triton = '\"3.6.0\"'"))
    assert answers.of("k") == (), "no checksum guards that"
