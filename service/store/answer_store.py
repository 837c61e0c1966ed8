"""Where answers and measurements are kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, bindparam, column, select, table

from warpplan.planner.errors import StoreError
from warpplan.planner.predict.time_model import Prediction
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.checksums import CONFIG, Row, checksum, digest, intact
from warpplan.service.store.database import Database, now
from warpplan.service.store.measured_times import Measurement, SeriesTime, problem_row
from warpplan.service.store.measurement_store import Measurements
from warpplan.service.store.stored_values import (
    Unreadable,
    config_text,
    plan_text,
    prediction_text,
    read_config,
    read_plan,
    read_prediction,
)
from warpplan.service.store.upserts import insert_new, insert_or_replace

PLANS = table("plans", column("id"), column("body"))
CONFIGS = table("configs", *(column(name) for name in (*CONFIG, "created_at", "checksum")))
CONFIG_KEY = ("kernel", "shape", "dtype", "device", "profile", "planner")

# Made once: SQLAlchemy takes longer to make a statement than SQLite to run it.
_KEPT = (
    select(*CONFIGS.c, PLANS.c.body)
    .select_from(CONFIGS.outerjoin(PLANS, CONFIGS.c.plan == PLANS.c.id))
    .where(*(CONFIGS.c[name] == bindparam(name) for name in CONFIG_KEY if name != "shape"))
)
_KEPT_OF_ONE = _KEPT.where(CONFIGS.c.shape == bindparam("shape"))
_KEPT_OF_SHAPES = _KEPT.where(CONFIGS.c.shape.in_(bindparam("shapes", expanding=True)))

_IN_LIMIT = 500
"""Shapes asked for in one statement; old SQLite takes 999 parameters."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kept:
    """A planned answer; ``plan`` is ``None`` where the kernel has no loop to plan. The plan's seconds are 0 and the
    prediction has no parts: neither is kept.

    ``profile`` is the key of the profile and ``planner`` the version of the planner that it came from.
    """

    problem: ConfigRequest
    profile: str
    planner: str
    config: TuningConfig
    plan: Outcome | None
    prediction: Prediction


class Store:
    """Answers and measurements in one ``database``. Every method may raise :class:`StoreError`; writing to a read-only
    one raises ``ReadOnlyStore``."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.measurements = Measurements(database)
        self._damaged: set[tuple[ConfigRequest, str, str]] = set()

    @classmethod
    def open(cls, where: str | Path, *, timeout_s: float = 10.0, readonly: bool = False) -> Store:
        """Open or create the store at a path or a database URL: see :meth:`Database.open`."""
        return cls(Database.open(where, timeout_s=timeout_s, readonly=readonly))

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
        """What is kept for ``problems`` under this profile and planner; one that is missing was never planned so.

        A damaged row is as good as missing: it is logged, and :meth:`keep` replaces it.
        """
        with self.database.reading() as connection:
            return self._find(connection, problems, profile, planner)

    def look_up(
        self, problems: Iterable[ConfigRequest], profile: str, planner: str
    ) -> tuple[dict[ConfigRequest, Kept], dict[ConfigRequest, tuple[SeriesTime, ...]]]:
        """:meth:`find`, and :meth:`times` of what was found: an answer's two parts over one connection."""
        with self.database.reading() as connection:
            found = self._find(connection, problems, profile, planner)
            return found, self.measurements.times(connection, found) if found else {}

    def _find(
        self, connection: Connection, problems: Iterable[ConfigRequest], profile: str, planner: str
    ) -> dict[ConfigRequest, Kept]:
        found: dict[ConfigRequest, Kept] = {}
        for (kernel, dtype, device), chosen in _chunks(problems):
            by_shape = {p.shape_json: p for p in chosen}
            given = {"kernel": kernel, "dtype": dtype, "device": device, "profile": profile, "planner": planner}
            if len(by_shape) == 1:
                rows = connection.execute(_KEPT_OF_ONE, {**given, "shape": next(iter(by_shape))}).mappings()
            else:
                rows = connection.execute(_KEPT_OF_SHAPES, {**given, "shapes": list(by_shape)}).mappings()
            for row in rows:
                problem = by_shape.get(row["shape"])
                if problem is None:
                    continue
                kept = _read_kept(problem, row, profile, planner)
                if kept is not None:
                    found[problem] = kept
                else:
                    self._damaged.add((problem, profile, planner))
                    _log.warning("store %s is damaged: %s is planned anew", self.name, problem.label)
        return found

    def keep(self, answers: Sequence[Kept]) -> None:
        """Keep ``answers`` in one transaction. What another process has kept meanwhile stays: it is the same answer."""
        if not answers:
            return
        at = now()
        plans = {digest(plan_text(a.plan)): plan_text(a.plan) for a in answers if a.plan is not None}
        fresh = [(a.problem, a.profile, a.planner) for a in answers]
        repaired = [key for key in fresh if key in self._damaged]
        rows = {key: _config_row(a, at) for key, a in zip(fresh, answers, strict=True)}
        with self.database.writing() as connection:
            # In a fixed order, so that two writers on PostgreSQL cannot wait for each other.
            if plans:
                ordered = [{"id": k, "body": plans[k]} for k in sorted(plans)]
                # Equal but where a body is damaged.
                connection.execute(insert_or_replace(connection, PLANS, ("id",), ("body",)), ordered)
            for statement, keys in (
                (insert_new(connection, CONFIGS), [key for key in fresh if key not in self._damaged]),
                (insert_or_replace(connection, CONFIGS, CONFIG_KEY, _CONFIG_REST), repaired),
            ):
                if keys:
                    chosen = [rows[key] for key in keys]
                    chosen.sort(key=lambda r: (r["kernel"], r["shape"], r["dtype"], r["device"]))
                    connection.execute(statement, chosen)
        self._damaged.difference_update(repaired)

    def record(self, measurement: Measurement) -> bool:
        """Keep a measurement; False where the same report is already there."""
        return self.measurements.record([measurement])[0]

    def measured(self, problems: Iterable[ConfigRequest]) -> dict[ConfigRequest, tuple[Measurement, ...]]:
        """The kept reports of each problem that has any, oldest first; :class:`StoreError` for a damaged one."""
        return self.measurements.listed(problems)

    def times(self, problems: Iterable[ConfigRequest]) -> dict[ConfigRequest, tuple[SeriesTime, ...]]:
        """What was measured of each problem that has anything, a value for each configuration and environment."""
        with self.database.reading() as connection:
            return self.measurements.times(connection, problems)

    def forget_measurement(self, measurement_id: str) -> None:
        """Remove a measurement: it outranks nothing any more. Raises :class:`UnknownMeasurement`."""
        self.measurements.forget(measurement_id)

    def problems(self) -> tuple[ConfigRequest, ...]:
        """Every problem with a planned answer, of any profile and planner, in a fixed order."""
        c = CONFIGS.c
        query = select(*(c[name] for name in (*CONFIG, "checksum"))).order_by(c.kernel, c.dtype, c.device, c.shape)
        found: dict[ConfigRequest, None] = {}
        with self.database.reading() as connection:
            for row in connection.execute(query).mappings():
                if not intact(CONFIG, row):
                    raise StoreError(
                        f"store {self.name} is damaged: a row of {str(row['shape'])[:80]!r} does not match its "
                        "checksum: restore it from a copy, or move it away and plan again",
                        field="store", value=self.name,
                    )  # fmt: skip
                found[ConfigRequest.read(row["kernel"], row["shape"], row["dtype"], row["device"])] = None
        return tuple(found)


Group = tuple[str, str, str]
_CONFIG_REST = ("config", "plan", "prediction", "created_at", "checksum")


def _read_kept(problem: ConfigRequest, row: Row, profile: str, planner: str) -> Kept | None:
    """The answer in ``row``; ``None`` where it is damaged."""
    if not intact(CONFIG, row) or (row["profile"], row["planner"]) != (profile, planner):
        return None
    body = row["body"]
    if row["plan"] is not None and (not isinstance(body, str) or digest(body) != row["plan"]):
        return None
    try:
        plan = None if row["plan"] is None else read_plan(body)
        return Kept(problem, profile, planner, read_config(row["config"]), plan, read_prediction(row["prediction"]))
    except Unreadable:
        return None


def _config_row(answer: Kept, at: str) -> dict[str, Any]:
    row = {
        **problem_row(answer.problem), "profile": answer.profile, "planner": answer.planner,
        "config": config_text(answer.config), "plan": None if answer.plan is None else digest(plan_text(answer.plan)),
        "prediction": prediction_text(answer.prediction), "created_at": at,
    }  # fmt: skip
    return {**row, "checksum": checksum(CONFIG, row)}


def _chunks(problems: Iterable[ConfigRequest]) -> Iterator[tuple[Group, list[ConfigRequest]]]:
    groups: dict[Group, dict[ConfigRequest, None]] = {}
    for problem in problems:
        groups.setdefault((problem.kernel, problem.dtype, problem.device), {})[problem] = None
    for group, members in groups.items():
        unique = list(members)
        for start in range(0, len(unique), _IN_LIMIT):
            yield group, unique[start : start + _IN_LIMIT]


def kept_plan(outcome: Outcome) -> Outcome:
    """``outcome`` as it is kept: without the seconds of this machine."""
    return replace(outcome, seconds=0.0)
