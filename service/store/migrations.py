"""The store's schema, one migration after another, each in one transaction with its record.

A migration is never edited once released: a later one changes what it made. The SQL is the part that SQLite and
PostgreSQL share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Engine, inspect, select, text

from warpplan.planner.errors import StoreError
from warpplan.service.store.checksums import BY_TABLE, CONFIG, MEASUREMENT, Row, checksum
from warpplan.service.store.measured_times import (
    MEASURED_TIMES,
    MEASUREMENTS,
    TIME_REST,
    damaged_time_row,
    of_series,
    read_report,
    series_name,
    time_row,
)
from warpplan.service.store.upserts import insert_or_replace


@dataclass(frozen=True)
class Migration:
    """``statements`` that lead from schema ``version`` − 1 to ``version``; ``fill`` computes what SQL cannot."""

    version: int
    name: str
    statements: tuple[str, ...]
    fill: Callable[[Connection], None] | None = None


def fill_checksums(connection: Connection) -> None:
    """The checksum of every row that has none yet: what is there now is what will be trusted."""
    for name, columns in BY_TABLE.items():
        key = CONFIG[:6] if name == "configs" else ("id",)
        rows = connection.execute(text(f"SELECT {', '.join(columns)} FROM {name}")).mappings().all()
        where = " AND ".join(f"{part} = :key_{part}" for part in key)
        values = [{f"key_{part}": row[part] for part in key} | {"checksum": checksum(columns, row)} for row in rows]
        if values:
            connection.execute(text(f"UPDATE {name} SET checksum = :checksum WHERE {where}"), values)


def fill_measured_times(connection: Connection) -> None:
    """The series of every report, and what sums each up. Of a series with a damaged report nothing is summed up: its
    row has no checksum, so that a lookup says which report it is."""
    m = MEASUREMENTS.c
    columns = (*(m[name] for name in MEASUREMENT), m.checksum)
    of_one = (m.kernel, m.shape, m.dtype, m.device, m.config, m.environment)
    query = select(*columns).order_by(*of_one, m.created_at, m.id)
    streamed = connection.execute(query, execution_options={"stream_results": True, "max_row_buffer": 1000}).mappings()
    for name, rows in groupby(streamed, key=series_name):
        found = list(rows)
        values = [{"id": row["id"], "series": name} for row in found]
        connection.execute(text("UPDATE measurements SET series = :series WHERE id = :id"), values)
        connection.execute(insert_or_replace(connection, MEASURED_TIMES, ("series",), TIME_REST), _summed(name, found))


def _summed(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    try:
        return time_row(name, of_series([read_report(None, row) for row in rows]))
    except ValueError:
        return damaged_time_row(name, rows[0])


MIGRATIONS = (
    Migration(
        1,
        "plans, configs and measurements",
        (
            # One loop's plan serves many shapes: it is kept once, under the SHA-256 of its canonical JSON.
            "CREATE TABLE plans (id TEXT PRIMARY KEY, body TEXT NOT NULL)",
            # Profile and planner are part of the key: an answer of another profile or planner is never found.
            """CREATE TABLE configs (
                kernel TEXT NOT NULL, shape TEXT NOT NULL, dtype TEXT NOT NULL, device TEXT NOT NULL,
                profile TEXT NOT NULL, planner TEXT NOT NULL,
                config TEXT NOT NULL, plan TEXT REFERENCES plans (id), prediction TEXT NOT NULL,
                created_at TEXT NOT NULL,
                PRIMARY KEY (kernel, shape, dtype, device, profile, planner))""",
            # The id digests everything but the clock: a job that repeats a report after a lost reply adds no row.
            """CREATE TABLE measurements (
                id TEXT PRIMARY KEY,
                kernel TEXT NOT NULL, shape TEXT NOT NULL, dtype TEXT NOT NULL, device TEXT NOT NULL,
                config TEXT NOT NULL, time_us DOUBLE PRECISION NOT NULL, samples INTEGER NOT NULL,
                environment TEXT NOT NULL, run TEXT NOT NULL, created_at TEXT NOT NULL)""",
            "CREATE INDEX measurements_problem ON measurements (kernel, dtype, device, shape)",
        ),
    ),
    Migration(
        2,
        "plans asked for",
        (
            # The id digests the request. Solving holds a claim with an end: a server that dies leaves nothing to undo.
            """CREATE TABLE solves (
                id TEXT PRIMARY KEY, name TEXT NOT NULL, request TEXT NOT NULL, planner TEXT NOT NULL,
                state TEXT NOT NULL, status TEXT,
                submitted_at TEXT NOT NULL, started_at TEXT, finished_at TEXT,
                claim TEXT, claimed_until DOUBLE PRECISION, claims INTEGER NOT NULL,
                progress TEXT, outcome TEXT, failure TEXT)""",
            "CREATE INDEX solves_submitted ON solves (submitted_at, id)",
            "CREATE INDEX solves_state ON solves (state, submitted_at, id)",
        ),
    ),
    Migration(
        3,
        "decisions about kernels",
        # The id is the key of what a decision holds for: a later one of the same is the same question.
        (
            """CREATE TABLE kernel_plans (
                id TEXT PRIMARY KEY, kernel TEXT NOT NULL, body TEXT NOT NULL, created_at TEXT NOT NULL)""",
        ),
    ),
    Migration(
        4,
        "checksums of rows",
        tuple(f"ALTER TABLE {name} ADD COLUMN checksum TEXT" for name in BY_TABLE),
        fill_checksums,
    ),
    Migration(
        5,
        "artifacts of consumers' caches",
        (
            # Scope is the machine that a tuning result is for, empty for what holds everywhere. The body is text, in
            # base64, because the two databases name columns of bytes unlike.
            """CREATE TABLE artifacts (
                consumer TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, scope TEXT NOT NULL,
                size_bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, kept_bytes INTEGER NOT NULL,
                created_at TEXT NOT NULL, checksum TEXT NOT NULL, body TEXT NOT NULL,
                PRIMARY KEY (consumer, key, scope, name))""",
            # Covers the question how much is kept and since when, which every new file asks.
            "CREATE INDEX artifacts_age ON artifacts (consumer, key, created_at, kept_bytes)",
        ),
    ),
    Migration(
        6,
        "a median for each measured configuration",
        (
            "ALTER TABLE measurements ADD COLUMN series TEXT",
            # What lookups read: a row for each problem, configuration and environment, however many reports it has.
            """CREATE TABLE measured_times (
                series TEXT PRIMARY KEY, problem TEXT NOT NULL,
                kernel TEXT NOT NULL, shape TEXT NOT NULL, dtype TEXT NOT NULL, device TEXT NOT NULL,
                config TEXT NOT NULL, environment TEXT NOT NULL,
                time_us DOUBLE PRECISION NOT NULL, kept INTEGER NOT NULL, reports BIGINT NOT NULL,
                samples BIGINT NOT NULL, newest TEXT NOT NULL, checksum TEXT)""",
            # A series begins with its problem, so this finds the reports of either.
            "CREATE INDEX measurements_series ON measurements (series)",
            "CREATE INDEX measured_times_problem ON measured_times (problem)",
            "CREATE INDEX measured_times_kernel ON measured_times (kernel, device)",
            "DROP INDEX measurements_problem",
        ),
        fill_measured_times,
    ),
    Migration(
        7,
        "times that jobs' autotuners measured",
        (
            # The id digests kernel, source, key, configuration, device and environment.
            """CREATE TABLE tuning_times (
                id TEXT PRIMARY KEY,
                kernel TEXT NOT NULL, source TEXT NOT NULL, tuning_key TEXT NOT NULL, config TEXT NOT NULL,
                device TEXT NOT NULL, environment TEXT NOT NULL,
                time_us DOUBLE PRECISION, reports BIGINT NOT NULL, newest TEXT NOT NULL, checksum TEXT)""",
            "CREATE INDEX tuning_times_kernel ON tuning_times (kernel)",
        ),
    ),
    Migration(
        8,
        "answers about kernels that are not ours",
        (
            # The id digests kernel, source, shape, signature, device, profile and planner.
            """CREATE TABLE kernel_answers (
                id TEXT PRIMARY KEY,
                kernel TEXT NOT NULL, source TEXT NOT NULL, shape TEXT NOT NULL, signature TEXT NOT NULL,
                device TEXT NOT NULL, profile TEXT NOT NULL, planner TEXT NOT NULL, ranked TEXT NOT NULL,
                created_at TEXT NOT NULL, checksum TEXT NOT NULL)""",
            "CREATE INDEX kernel_answers_kernel ON kernel_answers (kernel)",
        ),
    ),
    Migration(
        9,
        "the Triton that an answer was captured with",
        # As JSON, like the other words of a row; of what is there nobody knows it.
        ("""ALTER TABLE kernel_answers ADD COLUMN triton TEXT NOT NULL DEFAULT '""'""",),
    ),
    Migration(
        10,
        "keys under which autotuners tune what was predicted",
        (
            # The id digests source and question.
            """CREATE TABLE launch_keys (
                id TEXT PRIMARY KEY,
                source TEXT NOT NULL, question TEXT NOT NULL, tuning_key TEXT NOT NULL, arguments TEXT NOT NULL,
                checksum TEXT NOT NULL)""",
            "CREATE INDEX launch_keys_source ON launch_keys (source)",
            # Until now what Triton had read from its disk cache was kept too: an exported prediction may be among what
            # autotuners reported. What warpplan tune measured is certain.
            "ALTER TABLE tuning_times ADD COLUMN certain INTEGER NOT NULL DEFAULT 0",
            """UPDATE tuning_times SET certain = 1 WHERE tuning_key LIKE '["warpplan tune"%'""",
            "CREATE INDEX tuning_times_source ON tuning_times (source)",
        ),
    ),
)

_ADVISORY_LOCK = 0x77617270
"""PostgreSQL has no BEGIN IMMEDIATE: processes that open one store together queue on this number ("warp")."""


def version(connection: Connection) -> int:
    """The schema that the store has; 0 for an empty one. :class:`StoreError` where the tables are someone else's."""
    tables = set(inspect(connection).get_table_names())
    if "warpplan_schema" in tables:
        found = connection.execute(text("SELECT MAX(version) FROM warpplan_schema")).scalar()
        return int(found or 0)
    if tables & {"configs", "plans", "measurements"} or (tables and connection.dialect.name == "sqlite"):
        raise StoreError(
            f"the database holds other tables ({', '.join(sorted(tables)[:3])}) and is no store of warpplan: "
            "name another one with --store",
            field="store",
        )
    return 0


def require_known(found: int, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Raise :class:`StoreError` where a later warpplan has written the store."""
    latest = migrations[-1].version
    if found > latest:
        raise StoreError(
            f"the store has schema {found}, newer than the {latest} of this warpplan: upgrade warpplan or name another "
            "store with --store",
            field="store", value=found, limit=latest,
        )  # fmt: skip


def migrate(engine: Engine, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the store to the latest schema. Safe when processes open it together: one migrates, the rest wait."""
    with engine.connect() as connection:
        found = version(connection)
    require_known(found, migrations)
    for migration in migrations:
        if migration.version > found:
            _apply(engine, migration)


def _apply(engine: Engine, migration: Migration) -> None:
    with engine.connect().execution_options(warpplan_write=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            # However long the migration of another process takes: what it leaves is what this one needs.
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        if version(connection) >= migration.version:
            return
        connection.execute(
            text(
                "CREATE TABLE IF NOT EXISTS warpplan_schema "
                "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL)"
            )
        )
        for statement in migration.statements:
            connection.execute(text(statement))
        if migration.fill is not None:
            migration.fill(connection)
        connection.execute(
            text("INSERT INTO warpplan_schema (version, name, applied_at) VALUES (:version, :name, :at)"),
            {
                "version": migration.version,
                "name": migration.name,
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
