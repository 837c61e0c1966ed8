"""Reports and the series that sum them up: whatever is reported, taken back or damaged, they agree."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warpplan.planner.errors import StoreError
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store import measurement_store
from warpplan.service.store.answer_store import Store
from warpplan.service.store.database import sqlite_engine
from warpplan.service.store.measured_times import MOST_REPORTS, Measurement, summarised
from warpplan.service.store.migrations import MIGRATIONS, migrate

CONFIGS = tuple(TuningConfig.of({"BLOCK_M": m}, num_warps=8, num_stages=1) for m in (64, 128))
ENVIRONMENTS = ((("triton", "3.6.0"),), (("triton", "3.9.0"),))


def problem(m: int) -> ConfigRequest:
    return ConfigRequest("gemm", ("M", "N", "K"), (m, 128, 256), "bfloat16", "NVIDIA H200")


def report(time_us: float = 7.0, run: str = "", at: int = 0) -> Measurement:
    return Measurement(problem(1), CONFIGS[0], time_us, 3, ENVIRONMENTS[0], run, f"2026-01-01T00:00:00.{at:06}+00:00")


REPORTS = st.builds(
    Measurement,
    problem=st.sampled_from([problem(1), problem(2)]),
    config=st.sampled_from(CONFIGS),
    time_us=st.floats(1.0, 1e6).map(lambda t: round(t, 3)),
    samples=st.integers(1, 50),
    environment=st.sampled_from(ENVIRONMENTS),
    run=st.sampled_from(["", "a"]),
    created_at=st.integers(0, 9).map(lambda second: f"2026-01-01T00:00:0{second}.000000+00:00"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reports=st.lists(REPORTS, max_size=25), gone=st.sets(st.integers(0, 24)), cuts=st.sets(st.integers(1, 24)))
def test_series_say_what_their_reports_say(
    tmp_path: Path, reports: list[Measurement], gone: set[int], cuts: set[int]
) -> None:
    """In batches, with repeats, and with some taken back."""
    store = Store.open(tmp_path / "s.sqlite")
    try:
        ends = [0, *sorted(cut for cut in cuts if cut < len(reports)), len(reports)]
        fresh = [f for a, b in pairwise(ends) for f in store.measurements.record(reports[a:b])]
        first = {m.id: m for m in reversed(reports)}
        assert sum(fresh) == len(first)
        for number in sorted(gone):
            if number < len(reports) and first.pop(reports[number].id, None):
                store.forget_measurement(reports[number].id)
        for p in (problem(1), problem(2)):
            expected = summarised(m for m in first.values() if m.problem == p)
            assert store.times([p]).get(p, ()) == expected
            assert sorted(m.id for m in store.measured([p]).get(p, ())) == sorted(
                m.id for m in first.values() if m.problem == p
            )
        every = store.measurements.every_time(kernel="gemm", device="NVIDIA H200")
        assert sorted(map(repr, every)) == sorted(map(repr, summarised(first.values())))
    finally:
        for m in store.measured([problem(1), problem(2)]).values():
            for kept in m:
                store.forget_measurement(kept.id)
        store.close()


def test_a_thousand_replays_count_once(store: Store) -> None:
    assert sum(store.record(report()) for _ in range(1000)) == 1
    (time,) = store.times([problem(1)])[problem(1)]
    assert (time.time_us, time.reports, time.samples) == (7.0, 1, 3)


def test_of_many_reports_the_newest_are_kept_and_all_are_counted(store: Store) -> None:
    many = [report(float(n), at=n) for n in range(1, MOST_REPORTS + 101)]
    assert all(store.measurements.record(many[:400]))
    assert all(store.measurements.record(many[400:]))
    (time,) = store.times([problem(1)])[problem(1)]
    newest = [m.time_us for m in many[-MOST_REPORTS:]]
    assert (time.kept, time.reports, time.samples) == (MOST_REPORTS, len(many), 3 * len(many))
    assert time.time_us == median(newest)
    assert [m.time_us for m in store.measured([problem(1)])[problem(1)]] == newest
    store.forget_measurement(many[-1].id)
    (after,) = store.times([problem(1)])[problem(1)]
    assert (after.kept, after.reports, after.samples) == (MOST_REPORTS - 1, len(many) - 1, 3 * len(many) - 3)


def test_a_damaged_series_is_summed_up_from_its_reports(store: Store) -> None:
    store.measurements.record([report(5.0), report(9.0)])
    (before,) = store.times([problem(1)])[problem(1)]
    with sqlite3.connect(store.name) as connection:
        connection.execute("UPDATE measured_times SET time_us = 1.0")
    assert store.times([problem(1)])[problem(1)] == (before,)
    assert list(store.measurements.every_time(kernel="gemm", device="NVIDIA H200")) == []
    assert store.record(report(8.0))
    assert [t.time_us for t in store.measurements.every_time(kernel="gemm", device="NVIDIA H200")] == [8.0]


def test_a_lost_report_is_noticed_when_the_next_one_comes(store: Store) -> None:
    store.measurements.record([report(5.0), report(9.0)])
    with sqlite3.connect(store.name) as connection:
        connection.execute("DELETE FROM measurements WHERE time_us = 5.0")
    with pytest.raises(StoreError, match=r"1 reports of gemm M=1 .* are left of 2"):
        store.record(report(8.0))


def test_damaged_reports_are_given_up_one_by_one(store: Store) -> None:
    reports = [report(5.0), report(9.0), report(11.0)]
    store.measurements.record(reports)
    with sqlite3.connect(store.name) as connection:
        connection.execute("UPDATE measurements SET time_us = 1.0 WHERE time_us < 10")
    for damaged in reports[:2]:
        with pytest.raises(StoreError, match="does not match its checksum"):
            store.measured([problem(1)])
        store.forget_measurement(damaged.id)
    assert [t.time_us for t in store.times([problem(1)])[problem(1)]] == [11.0]


def test_a_store_of_reports_alone_is_summed_up_when_it_is_opened(tmp_path: Path) -> None:
    path, old = tmp_path / "new.sqlite", tmp_path / "old.sqlite"
    reports = [report(5.0), report(9.0, run="b"), replace(report(4.0), config=CONFIGS[1]), report(11.0)]
    store = Store.open(path)
    store.measurements.record(reports)
    before = store.times([problem(1)])
    store.close()
    engine = sqlite_engine(old, 1.0, readonly=False)
    migrate(engine, MIGRATIONS[:4])
    engine.dispose()
    with sqlite3.connect(old) as connection:
        connection.execute("ATTACH ? AS new", (str(path),))
        names = ", ".join(row[1] for row in connection.execute("PRAGMA main.table_info(measurements)"))
        connection.execute(f"INSERT INTO main.measurements ({names}) SELECT {names} FROM new.measurements")
        connection.execute("UPDATE main.measurements SET time_us = 6 WHERE time_us = 4")
    store = Store.open(old)
    with pytest.raises(StoreError, match="does not match its checksum"):
        store.times([problem(1)])
    store.forget_measurement(reports[2].id)
    (whole,) = store.times([problem(1)])[problem(1)]
    assert whole == next(t for t in before[problem(1)] if t.config == CONFIGS[0])
    store.close()


def test_many_problems_are_looked_up_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement_store, "_IN_LIMIT", 3)
    asked = [problem(m) for m in range(1, 12)]
    store.measurements.record([Measurement(p, CONFIGS[0], 5.0) for p in asked])
    assert set(store.times(asked)) == set(asked)
