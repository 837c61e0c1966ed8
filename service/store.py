"""Where answers and measurements are kept: SQLite in WAL mode by default, PostgreSQL by URL."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, column, create_engine, event, select, table, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.expression import TableClause

from warpplan.planner.errors import StoreError
from warpplan.service.migrations import MIGRATIONS, migrate, require_known, version
from warpplan.service.problem import Problem, canonical_json
from warpplan.service.store_errors import ReadOnlyStore, translated

PLANS = table("plans", column("id"), column("body"))
CONFIGS = table(
    "configs", column("kernel"), column("shape"), column("dtype"), column("device"), column("profile"),
    column("planner"), column("config"), column("plan"), column("prediction"), column("created_at"),
)  # fmt: skip
MEASUREMENTS = table(
    "measurements", column("id"), column("kernel"), column("shape"), column("dtype"), column("device"),
    column("config"), column("time_us"), column("samples"), column("environment"), column("run"), column("created_at"),
)  # fmt: skip

_IN_LIMIT = 500
"""Shapes asked for in one statement; old SQLite takes 999 parameters."""


@dataclass(frozen=True)
class Kept:
    """A planned answer. ``config``, ``plan`` and ``prediction`` are canonical JSON text; ``plan`` may be ``None``.

    ``profile`` is the key of the profile and ``planner`` the version of the planner that it came from.
    """

    problem: Problem
    profile: str
    planner: str
    config: str
    plan: str | None
    prediction: str


@dataclass(frozen=True)
class Measurement:
    """What a job measured for ``config`` (canonical JSON): the median of ``samples`` runs in microseconds.

    ``environment`` is canonical JSON of what must be equal for times to be compared (driver, cuda, triton, torch);
    ``run`` tells two reports of equal content apart.
    """

    problem: Problem
    config: str
    time_us: float
    samples: int = 1
    environment: str = "{}"
    run: str = ""
    created_at: str = ""

    @property
    def id(self) -> str:
        """SHA-256 of everything but the clock."""
        p = self.problem
        content = [
            p.kernel,
            p.shape,
            p.dtype,
            p.device,
            self.config,
            self.time_us,
            self.samples,
            self.environment,
            self.run,
        ]
        return hashlib.sha256(canonical_json(content)).hexdigest()


class Store:
    """One database. Every method may raise :class:`StoreError`; writing to a read-only one raises ``ReadOnlyStore``."""

    def __init__(self, engine: Engine, name: str, *, readonly: bool) -> None:
        self._engine = engine
        self.name = name
        self.readonly = readonly

    @classmethod
    def open(cls, where: str | Path, *, timeout_s: float = 10.0) -> Store:
        """Open or create the store at a path or a database URL, and bring it to the current schema.

        ``timeout_s`` is how long to wait for another writer. A file that may not be written opens read-only.
        """
        place = str(where)
        if "://" in place:
            return cls._open_url(place, timeout_s)
        path = Path(place)
        readonly = path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        if path.is_dir():
            raise StoreError(f"store {place} is a folder: name a file in it", field="store", value=place)
        if not path.parent.is_dir():
            raise StoreError(f"store {place}: folder {path.parent} does not exist", field="store", value=place)
        store = cls(_sqlite_engine(path, timeout_s, readonly=readonly), place, readonly=readonly)
        store._prepare()
        return store

    @classmethod
    def _open_url(cls, place: str, timeout_s: float) -> Store:
        try:
            url = make_url(place)
        except ArgumentError:
            raise StoreError(
                f"store {place!r} is no database URL: expected a file or postgresql://user@host/name",
                field="store", value=place,
            ) from None  # fmt: skip
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        elif url.get_backend_name() == "sqlite":
            return cls.open(url.database or "", timeout_s=timeout_s)
        name = url.render_as_string(hide_password=True)
        if url.get_backend_name() != "postgresql":
            raise StoreError(f"store {name}: expected a file or postgresql://user@host/name", field="store", value=name)
        try:
            engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": max(1, round(timeout_s))})
        except ModuleNotFoundError as error:
            raise StoreError(
                f"store {name} needs the package {error.name}: pip install 'psycopg[binary]'", field="store", value=name
            ) from None
        store = cls(engine, name, readonly=False)
        store._prepare()
        return store

    def _prepare(self) -> None:
        try:
            with translated(self.name):
                if not self.readonly:
                    return migrate(self._engine)
                with self._engine.connect() as connection:
                    found = version(connection)
                require_known(found)
                if found < MIGRATIONS[-1].version:
                    raise ReadOnlyStore(
                        f"store {self.name} is read-only and has schema {found}, older than {MIGRATIONS[-1].version}: "
                        "make it writable once, so that it can be brought up to date",
                        field="store", value=found, limit=MIGRATIONS[-1].version,
                    )  # fmt: skip
        except StoreError:
            self.close()
            raise

    def find(self, problems: Iterable[Problem], profile: str, planner: str) -> dict[Problem, Kept]:
        """What is kept for ``problems`` under this profile and planner; one that is missing was never planned so."""
        found: dict[Problem, Kept] = {}
        with self._reading() as connection:
            for group, chosen in _chunks(problems):
                query = (
                    select(CONFIGS.c.shape, CONFIGS.c.config, PLANS.c.body, CONFIGS.c.prediction)
                    .select_from(CONFIGS.outerjoin(PLANS, CONFIGS.c.plan == PLANS.c.id))
                    .where(*_same(CONFIGS, group), CONFIGS.c.profile == profile, CONFIGS.c.planner == planner)
                    .where(CONFIGS.c.shape.in_([p.shape_json for p in chosen]))
                )
                by_shape = {p.shape_json: p for p in chosen}
                for shape, config, plan, prediction in connection.execute(query):
                    problem = by_shape[shape]
                    found[problem] = Kept(problem, profile, planner, config, plan, prediction)
        return found

    def keep(self, answers: Sequence[Kept]) -> None:
        """Keep ``answers`` in one transaction. What another process has kept meanwhile stays: it is the same answer."""
        now = _now()
        plans = {_digest(a.plan): a.plan for a in answers if a.plan is not None}
        rows = [
            {
                **_row(a.problem), "profile": a.profile, "planner": a.planner, "config": a.config,
                "plan": None if a.plan is None else _digest(a.plan), "prediction": a.prediction, "created_at": now,
            }
            for a in answers
        ]  # fmt: skip
        if not rows:
            return
        with self._writing() as connection:
            # In a fixed order, so that two writers on PostgreSQL cannot wait for each other.
            if plans:
                connection.execute(_insert_new(connection, PLANS), [{"id": k, "body": plans[k]} for k in sorted(plans)])
            rows.sort(key=lambda r: (r["kernel"], r["shape"], r["dtype"], r["device"]))
            connection.execute(_insert_new(connection, CONFIGS), rows)

    def record(self, measurement: Measurement) -> bool:
        """Keep a measurement; False where the same report is already there."""
        row = {
            "id": measurement.id, **_row(measurement.problem), "config": measurement.config,
            "time_us": measurement.time_us, "samples": measurement.samples, "environment": measurement.environment,
            "run": measurement.run, "created_at": measurement.created_at or _now(),
        }  # fmt: skip
        with self._writing() as connection:
            fresh = _insert_new(connection, MEASUREMENTS).values(row).returning(MEASUREMENTS.c.id)
            return connection.execute(fresh).first() is not None

    def measured(self, problems: Iterable[Problem]) -> dict[Problem, tuple[Measurement, ...]]:
        """All measurements of each problem that has any, oldest first."""
        found: dict[Problem, list[Measurement]] = {}
        m = MEASUREMENTS.c
        with self._reading() as connection:
            for group, chosen in _chunks(problems):
                by_shape = {p.shape_json: p for p in chosen}
                query = (
                    select(m.shape, m.config, m.time_us, m.samples, m.environment, m.run, m.created_at)
                    .where(*_same(MEASUREMENTS, group), m.shape.in_(list(by_shape)))
                    .order_by(m.created_at, m.id)
                )
                for shape, config, time_us, samples, environment, run, at in connection.execute(query):
                    problem = by_shape[shape]
                    found.setdefault(problem, []).append(
                        Measurement(problem, config, time_us, samples, environment, run, at)
                    )
        return {problem: tuple(rows) for problem, rows in found.items()}

    def problems(self) -> tuple[Problem, ...]:
        """Every problem with a planned answer, of any profile and planner, in a fixed order."""
        c = CONFIGS.c
        query = select(c.kernel, c.shape, c.dtype, c.device).distinct().order_by(c.kernel, c.dtype, c.device, c.shape)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        shapes = [json.loads(shape) for _, shape, _, _ in rows]
        return tuple(
            Problem(kernel, tuple(shape), tuple(shape.values()), dtype, device)
            for (kernel, _, dtype, device), shape in zip(rows, shapes, strict=True)
        )

    def ping(self) -> None:
        """Raise :class:`StoreError` where the store does not answer."""
        with self._reading() as connection:
            connection.execute(text("SELECT version FROM warpplan_schema LIMIT 1")).all()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with translated(self.name), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self.readonly:
            raise ReadOnlyStore(
                f"store {self.name} is read-only: make the file and its folder writable, or name another with --store",
                field="store", value=self.name,
            )  # fmt: skip
        with (
            translated(self.name),
            self._engine.connect().execution_options(warpplan_write=True) as connection,
            connection.begin(),
        ):
            yield connection


def _insert_new(connection: Connection, into: TableClause) -> postgresql.Insert | sqlite.Insert:
    """INSERT … ON CONFLICT DO NOTHING, in the database's own words."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(into).on_conflict_do_nothing()
    return sqlite.insert(into).on_conflict_do_nothing()


def _sqlite_engine(path: Path, timeout_s: float, *, readonly: bool) -> Engine:
    def connect() -> sqlite3.Connection:
        # isolation_level None: the begin event below opens transactions, DDL included (the driver would not).
        connection = sqlite3.connect(
            _uri(path, readonly=readonly), uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )
        if not readonly:
            connection.execute("PRAGMA journal_mode=WAL")
            # WAL with NORMAL loses no consistency, only the last commits on power loss: they can be planned again.
            connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer that starts as a reader may fail on upgrade without waiting; IMMEDIATE waits its turn.
        write = connection.get_execution_options().get("warpplan_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _uri(path: Path, *, readonly: bool) -> str:
    uri = path.absolute().as_uri()
    if not readonly:
        return uri
    # A WAL database needs its -shm file even to be read; where nobody has it open, only "immutable" reads it.
    return f"{uri}?mode=ro" + ("" if Path(f"{path}-wal").exists() else "&immutable=1")


Group = tuple[str, str, str]


def _chunks(problems: Iterable[Problem]) -> Iterator[tuple[Group, list[Problem]]]:
    groups: dict[Group, dict[Problem, None]] = {}
    for problem in problems:
        groups.setdefault((problem.kernel, problem.dtype, problem.device), {})[problem] = None
    for group, members in groups.items():
        unique = list(members)
        for start in range(0, len(unique), _IN_LIMIT):
            yield group, unique[start : start + _IN_LIMIT]


def _same(of: TableClause, group: Group) -> tuple[Any, ...]:
    return (of.c.kernel == group[0], of.c.dtype == group[1], of.c.device == group[2])


def _row(problem: Problem) -> dict[str, Any]:
    return {
        "kernel": problem.kernel, "shape": problem.shape_json, "dtype": problem.dtype, "device": problem.device,
    }  # fmt: skip


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
