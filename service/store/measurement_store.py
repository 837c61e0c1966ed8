"""Reports of jobs, kept and read: see :mod:`warpplan.service.store.measured_times` for what is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, delete, func, select, update

from warpplan.planner.errors import StoreError
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.checksums import Row
from warpplan.service.store.database import Database, now
from warpplan.service.store.measured_times import (
    MEASURED_TIMES,
    MEASUREMENTS,
    MOST_REPORTS,
    PROBLEM,
    TIME,
    TIME_REST,
    Measurement,
    SeriesTime,
    UnknownMeasurement,
    damaged_time_row,
    of_series,
    problem_name,
    read_problem,
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
_TIME_COLUMNS = tuple(_T[name] for name in (*TIME, "checksum"))
_log = logging.getLogger(__name__)

# Statements are made once: SQLAlchemy takes longer to make one than SQLite to run it.
_NAMES: BindParameter[Any] = bindparam("names", expanding=True)
_TIMES_OF_PROBLEMS = select(_T.problem, *_TIME_COLUMNS).where(_T.problem.in_(_NAMES)).order_by(_T.problem, _T.series)
_TIMES_OF_PROBLEM = select(_T.problem, *_TIME_COLUMNS).where(_T.problem == bindparam("name")).order_by(_T.series)
_TIMES_OF_SERIES = select(*_TIME_COLUMNS).where(_T.series.in_(_NAMES))
_REPORTS_OF_SERIES = select(MEASUREMENTS).where(_M.series.in_(_NAMES)).order_by(_M.created_at, _M.id)
# Names are hexadecimal digits: "g" follows all that begin with a problem's name.
_REPORTS_OF_PROBLEM = (
    select(MEASUREMENTS).where(_M.series >= bindparam("first"), _M.series < bindparam("after"))
    .order_by(_M.created_at, _M.id)
)  # fmt: skip
_KNOWN_IDS = select(_M.id).where(_M.id.in_(_NAMES))
_LOCK_SERIES = select(_T.series).where(_T.series.in_(_NAMES)).order_by(_T.series).with_for_update()


class Measurements:
    """Reports and their series in one ``database``. Every method may raise :class:`StoreError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, reports: Sequence[Measurement]) -> list[bool]:
        """Keep ``reports`` in one transaction; False for each that is already there, in their order."""
        at = now()
        groups: dict[str, list[Measurement]] = {}
        for report in reports:
            groups.setdefault(report.series, []).append(report)
        names, fresh = sorted(groups), set[str]()
        if names:
            with self._database.writing() as connection:
                for some in _chunks(names):
                    fresh |= self._record(connection, {name: groups[name] for name in some}, at)
        recorded = []
        for report in reports:
            recorded.append(report.id in fresh)
            fresh.discard(report.id)
        return recorded

    def _record(self, connection: Connection, groups: dict[str, list[Measurement]], at: str) -> set[str]:
        """Keep the reports of some series, by name and in its order; the ids of those that are new."""
        names = list(groups)
        if connection.dialect.name == "postgresql":
            # A row has to be there to be locked; its lack of a checksum says that it holds nothing yet.
            empty = [damaged_time_row(name, report_row(groups[name][0], at)) for name in names]
            connection.execute(insert_new(connection, MEASURED_TIMES), empty)
            connection.execute(_LOCK_SERIES, {"names": names})
        given = {report.id: report for name in names for report in reversed(groups[name])}
        for ids in _chunks(list(given)):
            for (known,) in connection.execute(_KNOWN_IDS, {"names": ids}):
                given.pop(known, None)
        if given:
            rows = [report_row(report, at) for report in given.values()]
            connection.execute(MEASUREMENTS.insert(), rows)
        gained: dict[str, list[Measurement]] = {}
        for report in given.values():
            gained.setdefault(report.series, []).append(report)
        self._refresh(connection, {name: groups[name][0].problem for name in names}, gained)
        return set(given)

    def listed(self, problems: Iterable[ConfigRequest]) -> dict[ConfigRequest, tuple[Measurement, ...]]:
        """The kept reports of each problem that has any, oldest first.

        A damaged one cannot be measured anew here, and without it the answer would be another: :class:`StoreError`.
        """
        found: dict[ConfigRequest, tuple[Measurement, ...]] = {}
        with self._database.reading() as connection:
            for problem in problems:
                reports = self._reports_of(connection, problem)
                if reports:
                    found[problem] = tuple(reports)
        return found

    def times(
        self, connection: Connection, problems: Iterable[ConfigRequest]
    ) -> dict[ConfigRequest, tuple[SeriesTime, ...]]:
        """The series of each problem that has any. A damaged one is computed anew from its problem's reports."""
        by_name = {problem_name(problem): problem for problem in problems}
        rows: dict[str, list[Sequence[Any]]] = {}
        for names in _chunks(list(by_name)):
            if len(names) == 1:
                found = connection.execute(_TIMES_OF_PROBLEM, {"name": names[0]})
            else:
                found = connection.execute(_TIMES_OF_PROBLEMS, {"names": names})
            for row in found:
                rows.setdefault(row[0], []).append(row[1:])
        return {
            problem: self._read_times(connection, problem, name, rows[name])
            for name, problem in by_name.items()
            if name in rows
        }

    def every_time(self, *, kernel: str, device: str) -> Iterator[SeriesTime]:
        """Every series of ``kernel`` on ``device`` by its name; a damaged one is left out with a line in the log."""
        columns = (*(_T[name] for name in PROBLEM), *_TIME_COLUMNS)
        query = select(*columns).where(_T.kernel == kernel, _T.device == device).order_by(_T.series)
        streamed = query.execution_options(stream_results=True, max_row_buffer=1000)
        with self._database.reading() as connection:
            for row in connection.execute(streamed):
                try:
                    problem = read_problem(row[:4])
                    yield read_time(problem, problem_name(problem), row[4:])
                except Unreadable:
                    _log.warning("store %s is damaged: a measured time is left out", self._database.name)

    def kernels(self) -> tuple[tuple[str, str, int], ...]:
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
                reports = self._reports(connection, [name]).get(name, [])
            except StoreError:
                # Another damaged report of the series: the row that sums it up must not be believed either.
                connection.execute(update(MEASURED_TIMES).where(_T.series == name).values(checksum=None))
                return
            if not reports:
                connection.execute(delete(MEASURED_TIMES).where(_T.series == name))
                return
            known = self._known(connection, {name: reports[0].problem}).get(name)
            left = of_series(reports)
            if known is not None:
                more = max(0, known.samples - int(gone[1]) - left.samples)
                left = of_series(reports, gone=max(0, known.reports - known.kept), gone_samples=more)
            self._write(connection, [time_row(name, left)])

    def _known(self, connection: Connection, problems: dict[str, ConfigRequest]) -> dict[str, SeriesTime]:
        """The series of these names as they stand; one that is damaged is not among them."""
        found = {}
        for row in connection.execute(_TIMES_OF_SERIES, {"names": list(problems)}):
            try:
                problem = problems[row[0]]
                found[str(row[0])] = read_time(problem, problem_name(problem), row)
            except Unreadable:
                continue
        return found

    def _refresh(
        self, connection: Connection, problems: dict[str, ConfigRequest], gained: dict[str, list[Measurement]]
    ) -> None:
        """Sum up anew the series that ``gained`` reports or are damaged, and drop what is beyond
        :data:`MOST_REPORTS`."""
        known = self._known(connection, problems)
        changed = [name for name in problems if name in gained or name not in known]
        rows, dropped = [], []
        for name, reports in self._reports(connection, changed).items():
            fresh, before = gained.get(name, []), known.get(name)
            if before is not None and len(reports) != before.kept + len(fresh):
                raise StoreError(
                    f"store {self._database.name} is damaged: {len(reports) - len(fresh)} reports of "
                    f"{before.problem.label} are left of {before.kept}: restore it from a copy, or move it away and "
                    "plan again",
                    field="store", value=self._database.name,
                )  # fmt: skip
            kept = reports[-MOST_REPORTS:]
            dropped += [report.id for report in reports[:-MOST_REPORTS]]
            samples = sum(m.samples for m in (fresh if before else reports)) + (before.samples if before else 0)
            gone = len(reports) - len(kept) + (before.reports - before.kept if before else 0)
            time = of_series(kept, gone=gone, gone_samples=samples - sum(m.samples for m in kept))
            rows.append(time_row(name, time))
        if rows:
            self._write(connection, rows)
        for ids in _chunks(dropped):
            connection.execute(delete(MEASUREMENTS).where(_M.id.in_(ids)))

    def _write(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        connection.execute(insert_or_replace(connection, MEASURED_TIMES, ("series",), TIME_REST), rows)

    def _read_times(
        self, connection: Connection, problem: ConfigRequest, name: str, rows: Sequence[Sequence[Any]]
    ) -> tuple[SeriesTime, ...]:
        try:
            return tuple(read_time(problem, name, row) for row in rows)
        except Unreadable:
            _log.warning("store %s is damaged: the times of %s are summed up anew", self._database.name, problem.label)
            return summarised(self._reports_of(connection, problem))

    def _reports_of(self, connection: Connection, problem: ConfigRequest) -> list[Measurement]:
        """All reports of a problem, oldest first. Raises :class:`StoreError` for a damaged one."""
        name = problem_name(problem)
        rows = connection.execute(_REPORTS_OF_PROBLEM, {"first": name, "after": f"{name}g"}).mappings()
        return [self._read_report(problem, row) for row in rows]

    def _reports(self, connection: Connection, names: Sequence[str]) -> dict[str, list[Measurement]]:
        """The reports of some series, oldest first. Raises :class:`StoreError` for a damaged one."""
        found: dict[str, list[Measurement]] = {}
        for some in _chunks(names):
            for row in connection.execute(_REPORTS_OF_SERIES, {"names": some}).mappings():
                found.setdefault(str(row["series"]), []).append(self._read_report(None, row))
        return found

    def _read_report(self, problem: ConfigRequest | None, row: Row) -> Measurement:
        try:
            return read_report(problem, row)
        except (Unreadable, ValueError):
            name, store = str(row["id"])[:80], self._database.name
            raise StoreError(
                f"store {store} is damaged: measurement {name} does not match its checksum: restore the store from a "
                f"copy, or give the measurement up with DELETE /v1/measurements/{name}",
                field="store", value=store,
            ) from None  # fmt: skip


def _chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), _IN_LIMIT):
        yield values[start : start + _IN_LIMIT]
