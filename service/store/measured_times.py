"""What jobs measured, as it is kept: one row a report, and one a series, which is what lookups read.

A series is all reports of one configuration for one problem in one environment. Its row has the median of its reports,
so that a lookup reads as many rows as configurations were measured, however often jobs report them. Of a series the
newest :data:`MOST_REPORTS` reports are kept; those before are counted, and no longer in the median.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import median
from typing import Any

from sqlalchemy import column, table

from warpplan.planner.errors import UnknownName, WarpplanError
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import ConfigRequest, canonical_json
from warpplan.service.store.checksums import MEASUREMENT, Row, checksum, intact, quick_checksum
from warpplan.service.store.stored_values import (
    Environment,
    Unreadable,
    config_text,
    environment_text,
    read_config,
    read_environment,
)

MEASUREMENTS = table("measurements", *(column(name) for name in (*MEASUREMENT, "series", "checksum")))
PROBLEM = ("kernel", "shape", "dtype", "device")
TIME = ("series", "config", "environment", "time_us", "kept", "reports", "samples", "newest")
"""What the checksum of a series' row covers, in this order; the series' name digests its problem."""
MEASURED_TIMES = table("measured_times", *(column(name) for name in (*TIME, *PROBLEM, "problem", "checksum")))
TIME_REST = tuple(c.name for c in MEASURED_TIMES.c if c.name != "series")

MOST_REPORTS = 512
"""Reports kept of one series. Chosen by hand: the median of the newest 512 follows a card whose clock changes, and
writing a report verifies 512 checksums at most. Doubled, both take twice as long."""
_HALF = 16
"""Hexadecimal digits of a problem in a series' name; the other half is the configuration's and environment's."""


@dataclass(frozen=True)
class Measurement:
    """What a job measured for ``config``: the median of ``samples`` runs in microseconds.

    Times of unlike ``environment`` are not compared; ``run`` tells two reports of equal content apart.
    """

    problem: ConfigRequest
    config: TuningConfig
    time_us: float
    samples: int = 1
    environment: Environment = ()
    run: str = ""
    created_at: str = ""

    @cached_property
    def id(self) -> str:
        """SHA-256 of everything but the clock."""
        p = self.problem
        content = [
            p.kernel,
            p.shape,
            p.dtype,
            p.device,
            config_text(self.config),
            self.time_us,
            self.samples,
            environment_text(self.environment),
            self.run,
        ]
        return hashlib.sha256(canonical_json(content)).hexdigest()

    @cached_property
    def series(self) -> str:
        """The name of the series that the report belongs to."""
        texts = {"config": config_text(self.config), "environment": environment_text(self.environment)}
        return series_name({**problem_row(self.problem), **texts})


@dataclass(frozen=True)
class SeriesTime:
    """A series: ``time_us`` is the median of its ``kept`` reports; ``reports`` and ``samples`` count all there ever
    were; ``newest`` is when the last one came (ISO 8601, UTC)."""

    problem: ConfigRequest
    config: TuningConfig
    environment: Environment
    time_us: float
    kept: int
    reports: int
    samples: int
    newest: str


class UnknownMeasurement(UnknownName):
    """No measurement has this id, or it was removed."""

    def __init__(self, measurement_id: str) -> None:
        WarpplanError.__init__(
            self, f"there is no measurement {measurement_id[:80]!r}", field="id", value=measurement_id
        )


def problem_name(problem: ConfigRequest) -> str:
    """The first half of the names of a problem's series."""
    return _half(problem_row(problem), "kernel", "shape", "dtype", "device")


def series_name(row: Row) -> str:
    """The name of the series that a report's row belongs to; it begins with its problem's."""
    return _half(row, "kernel", "shape", "dtype", "device") + _half(row, "config", "environment")


def _half(row: Row, *columns: str) -> str:
    # str: a damaged cell may hold anything.
    return hashlib.sha256("\n".join(str(row[name]) for name in columns).encode()).hexdigest()[:_HALF]


def summarised(reports: Iterable[Measurement]) -> tuple[SeriesTime, ...]:
    """The series that ``reports`` make, by name; each from all that is given."""
    ordered = sorted(reports, key=lambda m: (m.series, m.created_at, m.id))
    return tuple(of_series(list(group)) for _, group in groupby(ordered, key=lambda m: m.series))


def of_series(reports: Sequence[Measurement], *, gone: int = 0, gone_samples: int = 0) -> SeriesTime:
    """The series of ``reports``, at least one; ``gone`` were kept no longer."""
    first = reports[0]
    return SeriesTime(
        first.problem,
        first.config,
        first.environment,
        median(m.time_us for m in reports),
        len(reports),
        len(reports) + gone,
        sum(m.samples for m in reports) + gone_samples,
        max(m.created_at for m in reports),
    )


def report_row(report: Measurement, at: str) -> dict[str, Any]:
    row = {
        "id": report.id, **problem_row(report.problem), "config": config_text(report.config),
        "time_us": report.time_us, "samples": report.samples, "environment": environment_text(report.environment),
        "run": report.run, "created_at": report.created_at or at,
    }  # fmt: skip
    return {**row, "series": report.series, "checksum": checksum(MEASUREMENT, row)}


def read_report(problem: ConfigRequest | None, row: Row) -> Measurement:
    """The report in ``row``, of ``problem`` where that is known. Raises :class:`Unreadable` where it is damaged."""
    if not intact(MEASUREMENT, row) or (problem is not None and row["shape"] != problem.shape_json):
        raise Unreadable("its checksum is another")
    found = problem or ConfigRequest.read(row["kernel"], row["shape"], row["dtype"], row["device"])
    config, environment = read_config(row["config"]), read_environment(row["environment"])
    return Measurement(found, config, row["time_us"], row["samples"], environment, row["run"], row["created_at"])


def time_row(name: str, time: SeriesTime) -> dict[str, Any]:
    row = {
        "series": name, "config": config_text(time.config), "environment": environment_text(time.environment),
        "time_us": float(time.time_us), "kept": time.kept, "reports": time.reports, "samples": time.samples,
        "newest": time.newest,
    }  # fmt: skip
    guard = quick_checksum(tuple(row.values()))
    return {**row, **problem_row(time.problem), "problem": name[:_HALF], "checksum": guard}


def damaged_time_row(name: str, report: Row) -> dict[str, Any]:
    """The row of a series that cannot be summed up, as ``report`` is one of its damaged reports."""
    same = {key: str(report[key]) for key in ("kernel", "shape", "dtype", "device", "config", "environment")}
    nothing = {"time_us": 0.0, "kept": 0, "reports": 0, "samples": 0, "newest": ""}
    return {"series": name, "problem": name[:_HALF], **same, **nothing, "checksum": None}


def read_time(problem: ConfigRequest, name: str, row: Sequence[Any]) -> SeriesTime:
    """The series in ``row``, which has :data:`TIME` and the checksum; ``name`` is that of its problem. Raises
    :class:`Unreadable` where it is damaged."""
    *values, guard = row
    if guard != quick_checksum(tuple(values)) or values[0][:_HALF] != name:
        raise Unreadable("its checksum is another")
    _, config, environment, time_us, kept, reports, samples, newest = values
    return SeriesTime(
        problem, read_config(config), read_environment(environment), time_us, kept, reports, samples, newest
    )


def read_problem(row: Sequence[Any]) -> ConfigRequest:
    """The problem in ``row``, which has :data:`PROBLEM`. Raises :class:`Unreadable` where there is none."""
    try:
        return ConfigRequest.read(*row)
    except (ValueError, TypeError, AttributeError) as error:
        raise Unreadable(str(error)) from None


def problem_row(problem: ConfigRequest) -> dict[str, Any]:
    return {
        "kernel": problem.kernel, "shape": problem.shape_json, "dtype": problem.dtype, "device": problem.device,
    }  # fmt: skip
