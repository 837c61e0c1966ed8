"""Reports of jobs, kept and read: see :mod:`warpplan.service.store.measured_times` for what is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from sqlalchemy import Connection, delete, func, select, update

from warpplan.planner.errors import StoreError
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.checksums import Row
from warpplan.service.store.database import Database, now
from warpplan.service.store.measured_times import (
    MEASURED_TIMES,
    MEASUREMENTS,
    MOST_REPORTS,
    TIME_REST,
    MeasuredTime,
    Measurement,
    UnknownMeasurement,
    damaged_time_row,
    of_series,
    problem_name,
    read_report,
    read_time,
    report_row,
    summarised,
    time_row,
)
from warpplan.service.store.stored_values import Unreadable
from warpplan.service.store.upserts import insert_new, insert_or_replace

_IN_LIMIT = 500
"""Values named in one statement; old SQLite takes 999 parameters."""
_M, _T = MEASUREMENTS.c, MEASURED_TIMES.c
_log = logging.getLogger(__name__)


class Measurements:
    """Reports and their series in one ``database``. Every method may raise :class:`StoreError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, reports: Sequence[Measurement]) -> list[bool]:
        """Keep ``reports`` in one transaction; False for each that is already there, in their order."""
        if not reports:
            return []
        at = now()
        rows = [report_row(report, at) for report in reports]
        by_series: dict[str, list[int]] = {}
        for number, report in enumerate(reports):
            by_series.setdefault(report.series, []).append(number)
        recorded = [False] * len(reports)
        with self._database.writing() as connection:
            # In a fixed order, so that two writers on PostgreSQL cannot wait for each other.
            for name in sorted(by_series):
                numbers = by_series[name]
                known = self._locked(connection, name, reports[numbers[0]])
                fresh = []
                for number in numbers:
                    insert = insert_new(connection, MEASUREMENTS).values(rows[number]).returning(_M.id)
                    if connection.execute(insert).first() is not None:
                        recorded[number] = True
                        fresh.append(reports[number])
                if fresh or known is None:
                    self._refresh(connection, name, known, fresh)
        return recorded

    def listed(self, problems: Iterable[ConfigRequest]) -> dict[ConfigRequest, tuple[Measurement, ...]]:
        """The kept reports of each problem that has any, oldest first.

        A damaged one cannot be measured anew here, and without it the answer would be another: :class:`StoreError`.
        """
        found: dict[ConfigRequest, tuple[Measurement, ...]] = {}
        with self._database.reading() as connection:
            for problem in problems:
                reports = self._reports(connection, problem_name(problem), problem)
                if reports:
                    found[problem] = tuple(reports)
        return found

    def times(
        self, connection: Connection, problems: Iterable[ConfigRequest]
    ) -> dict[ConfigRequest, tuple[MeasuredTime, ...]]:
        """The series of each problem that has any. A damaged one is computed anew from its problem's reports."""
        by_name = {problem_name(problem): problem for problem in problems}
        names = list(by_name)
        found: dict[ConfigRequest, tuple[MeasuredTime, ...]] = {}
        for start in range(0, len(names), _IN_LIMIT):
            chosen = names[start : start + _IN_LIMIT]
            query = select(MEASURED_TIMES).where(_T.problem.in_(chosen)).order_by(_T.problem, _T.series)
            for name, rows in groupby(connection.execute(query).mappings(), key=lambda row: row["problem"]):
                problem = by_name.get(name)
                if problem is not None:
                    found[problem] = self._series(connection, name, problem, list(rows))
        return found

    def every_time(self, *, kernel: str, device: str) -> Iterator[MeasuredTime]:
        """Every series of ``kernel`` on ``device`` by its name; a damaged one is left out with a line in the log."""
        with self._database.reading() as connection:
            query = select(MEASURED_TIMES).where(_T.kernel == kernel, _T.device == device).order_by(_T.series)
            streamed = query.execution_options(stream_results=True, max_row_buffer=1000)
            for row in connection.execute(streamed).mappings():
                try:
                    yield read_time(None, row)
                except (Unreadable, ValueError):
                    _log.warning("store %s is damaged: a measured time is left out", self._database.name)

    def devices(self) -> tuple[tuple[str, str, int], ...]:
        """(kernel, device, series) of everything that was measured."""
        query = select(_T.kernel, _T.device, func.count()).group_by(_T.kernel, _T.device).order_by(_T.kernel, _T.device)
        with self._database.reading() as connection:
            return tuple((str(k), str(d), int(n)) for k, d, n in connection.execute(query))

    def forget(self, measurement_id: str) -> None:
        """Remove a report: it counts no more. Raises :class:`UnknownMeasurement`."""
        with self._database.writing() as connection:
            query = delete(MEASUREMENTS).where(_M.id == measurement_id).returning(_M.series, _M.samples)
            gone = connection.execute(query).first()
            if gone is None:
                raise UnknownMeasurement(measurement_id)
            name = str(gone[0])
            try:
                reports = self._reports(connection, name)
            except StoreError:
                # Another damaged report of the series: the row that summed it up must not be believed either.
                connection.execute(update(MEASURED_TIMES).where(_T.series == name).values(checksum=None))
                return
            if not reports:
                connection.execute(delete(MEASURED_TIMES).where(_T.series == name))
                return
            known = self._known(connection, name)
            before = of_series(reports)
            time = before
            if known is not None:
                gone_reports = max(0, known.reports - known.kept)
                gone_samples = max(0, known.samples - int(gone[1]) - before.samples)
                time = of_series(reports, gone=gone_reports, gone_samples=gone_samples)
            self._write(connection, name, time)

    def _locked(self, connection: Connection, name: str, first: Measurement) -> MeasuredTime | None:
        """The series as it stands, its row locked until the end of the transaction; ``None`` for a new one, or one
        that is damaged."""
        if connection.dialect.name == "postgresql":
            # A row has to be there to be locked; its checksum says that it holds nothing yet.
            empty = damaged_time_row(name, report_row(first, ""))
            connection.execute(insert_new(connection, MEASURED_TIMES).values(empty))
            connection.execute(select(_T.series).where(_T.series == name).with_for_update())
        return self._known(connection, name)

    def _known(self, connection: Connection, name: str) -> MeasuredTime | None:
        row = connection.execute(select(MEASURED_TIMES).where(_T.series == name)).mappings().first()
        try:
            return None if row is None else read_time(None, row)
        except (Unreadable, ValueError):
            return None

    def _refresh(
        self, connection: Connection, name: str, known: MeasuredTime | None, fresh: Sequence[Measurement]
    ) -> None:
        """Sum the series up anew, ``fresh`` being what it gained, and drop what is beyond :data:`MOST_REPORTS`."""
        reports = self._reports(connection, name)
        if known is not None and len(reports) != known.kept + len(fresh):
            raise StoreError(
                f"store {self._database.name} is damaged: {len(reports) - len(fresh)} reports of {known.problem.label} "
                f"are left of {known.kept}: restore it from a copy, or move it away and plan again",
                field="store", value=self._database.name,
            )  # fmt: skip
        dropped, kept = reports[:-MOST_REPORTS], reports[-MOST_REPORTS:]
        for start in range(0, len(dropped), _IN_LIMIT):
            names = [report.id for report in dropped[start : start + _IN_LIMIT]]
            connection.execute(delete(MEASUREMENTS).where(_M.id.in_(names)))
        gone = len(dropped) + (known.reports - known.kept if known else 0)
        all_samples = sum(m.samples for m in fresh) + known.samples if known else sum(m.samples for m in reports)
        gone_samples = all_samples - sum(m.samples for m in kept)
        self._write(connection, name, of_series(kept, gone=gone, gone_samples=gone_samples))

    def _write(self, connection: Connection, name: str, time: MeasuredTime) -> None:
        statement = insert_or_replace(connection, MEASURED_TIMES, ("series",), TIME_REST)
        connection.execute(statement, time_row(name, time))

    def _series(
        self, connection: Connection, name: str, problem: ConfigRequest, rows: Sequence[Row]
    ) -> tuple[MeasuredTime, ...]:
        try:
            return tuple(read_time(problem, row) for row in rows)
        except (Unreadable, ValueError):
            _log.warning("store %s is damaged: the times of %s are summed up anew", self._database.name, problem.label)
            return summarised(self._reports(connection, name, problem))

    def _reports(self, connection: Connection, name: str, problem: ConfigRequest | None = None) -> list[Measurement]:
        """The reports of a series, or of a problem, oldest first. Raises :class:`StoreError` for a damaged one."""
        # Names are hexadecimal digits: "g" follows all that begin with this one.
        query = (
            select(MEASUREMENTS)
            .where(_M.series >= name, _M.series < f"{name}g")
            .order_by(_M.created_at, _M.id)
        )  # fmt: skip
        found = []
        for row in connection.execute(query).mappings():
            try:
                found.append(read_report(problem, row))
            except (Unreadable, ValueError):
                raise self._damaged(row) from None
        return found

    def _damaged(self, row: Row) -> StoreError:
        name, store = str(row["id"])[:80], self._database.name
        return StoreError(
            f"store {store} is damaged: measurement {name} does not match its checksum: restore the store from a "
            f"copy, or give the measurement up with DELETE /v1/measurements/{name}",
            field="store", value=store,
        )  # fmt: skip
