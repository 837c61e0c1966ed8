"""Where answers and measurements are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import column, select, table
from sqlalchemy.sql.expression import TableClause

from warpplan.service.store.database import Database, insert_new, now
from warpplan.service.workflow.request import ConfigRequest, canonical_json

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

    problem: ConfigRequest
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

    problem: ConfigRequest
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
    """Answers and measurements in one ``database``. Every method may raise :class:`StoreError`; writing to a read-only
    one raises ``ReadOnlyStore``."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, where: str | Path, *, timeout_s: float = 10.0) -> Store:
        """Open or create the store at a path or a database URL: see :meth:`Database.open`."""
        return cls(Database.open(where, timeout_s=timeout_s))

    @property
    def name(self) -> str:
        return self.database.name

    @property
    def readonly(self) -> bool:
        return self.database.readonly

    def ping(self) -> None:
        """Raise :class:`StoreError` where the store does not answer."""
        self.database.ping()

    def close(self) -> None:
        self.database.close()

    def find(self, problems: Iterable[ConfigRequest], profile: str, planner: str) -> dict[ConfigRequest, Kept]:
        """What is kept for ``problems`` under this profile and planner; one that is missing was never planned so."""
        found: dict[ConfigRequest, Kept] = {}
        with self.database.reading() as connection:
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
        at = now()
        plans = {_digest(a.plan): a.plan for a in answers if a.plan is not None}
        rows = [
            {
                **_row(a.problem), "profile": a.profile, "planner": a.planner, "config": a.config,
                "plan": None if a.plan is None else _digest(a.plan), "prediction": a.prediction, "created_at": at,
            }
            for a in answers
        ]  # fmt: skip
        if not rows:
            return
        with self.database.writing() as connection:
            # In a fixed order, so that two writers on PostgreSQL cannot wait for each other.
            if plans:
                connection.execute(insert_new(connection, PLANS), [{"id": k, "body": plans[k]} for k in sorted(plans)])
            rows.sort(key=lambda r: (r["kernel"], r["shape"], r["dtype"], r["device"]))
            connection.execute(insert_new(connection, CONFIGS), rows)

    def record(self, measurement: Measurement) -> bool:
        """Keep a measurement; False where the same report is already there."""
        row = {
            "id": measurement.id, **_row(measurement.problem), "config": measurement.config,
            "time_us": measurement.time_us, "samples": measurement.samples, "environment": measurement.environment,
            "run": measurement.run, "created_at": measurement.created_at or now(),
        }  # fmt: skip
        with self.database.writing() as connection:
            fresh = insert_new(connection, MEASUREMENTS).values(row).returning(MEASUREMENTS.c.id)
            return connection.execute(fresh).first() is not None

    def measured(self, problems: Iterable[ConfigRequest]) -> dict[ConfigRequest, tuple[Measurement, ...]]:
        """All measurements of each problem that has any, oldest first."""
        found: dict[ConfigRequest, list[Measurement]] = {}
        m = MEASUREMENTS.c
        with self.database.reading() as connection:
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

    def problems(self) -> tuple[ConfigRequest, ...]:
        """Every problem with a planned answer, of any profile and planner, in a fixed order."""
        c = CONFIGS.c
        query = select(c.kernel, c.shape, c.dtype, c.device).distinct().order_by(c.kernel, c.dtype, c.device, c.shape)
        with self.database.reading() as connection:
            rows = connection.execute(query).all()
        shapes = [json.loads(shape) for _, shape, _, _ in rows]
        return tuple(
            ConfigRequest(kernel, tuple(shape), tuple(shape.values()), dtype, device)
            for (kernel, _, dtype, device), shape in zip(rows, shapes, strict=True)
        )


Group = tuple[str, str, str]


def _chunks(problems: Iterable[ConfigRequest]) -> Iterator[tuple[Group, list[ConfigRequest]]]:
    groups: dict[Group, dict[ConfigRequest, None]] = {}
    for problem in problems:
        groups.setdefault((problem.kernel, problem.dtype, problem.device), {})[problem] = None
    for group, members in groups.items():
        unique = list(members)
        for start in range(0, len(unique), _IN_LIMIT):
            yield group, unique[start : start + _IN_LIMIT]


def _same(of: TableClause, group: Group) -> tuple[Any, ...]:
    return (of.c.kernel == group[0], of.c.dtype == group[1], of.c.device == group[2])


def _row(problem: ConfigRequest) -> dict[str, Any]:
    return {
        "kernel": problem.kernel, "shape": problem.shape_json, "dtype": problem.dtype, "device": problem.device,
    }  # fmt: skip


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
