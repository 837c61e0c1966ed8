from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warpplan.planner.errors import StoreError
from warpplan.planner.predict.time_model import Prediction
from warpplan.planner.values.plan import Outcome, Placement, Plan, Schedule
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.answer_store import Kept, Store
from warpplan.service.store.measured_times import Measurement
from warpplan.service.store.store_failures import ReadOnlyStore

EIGHT_WARPS = TuningConfig.of({"BLOCK_M": 128}, num_warps=8, num_stages=1)
LONG = TuningConfig.of({"NOTE": "x" * 2000}, num_warps=8, num_stages=1)
PLAN = Outcome("optimal", Plan("loop", Schedule(512, (Placement("a", 0, 0, 0, 0),)), (), (), (), 0), 512)


def problem(m: int = 64, dtype: str = "bfloat16") -> ConfigRequest:
    return ConfigRequest("gemm", ("M", "N", "K"), (m, 128, 256), dtype, "NVIDIA H200")


def kept(m: int = 64, **changes: object) -> Kept:
    row = Kept(problem(m), "profile-a", "planner-1", EIGHT_WARPS, PLAN, Prediction(10.0, 0.5, "issue", ()))
    return replace(row, **changes)


def test_keeps_and_finds(store: Store) -> None:
    rows = [kept(1), kept(2), kept(3, plan=None)]
    store.keep(rows)
    found = store.find([problem(m) for m in (1, 2, 3, 4)], "profile-a", "planner-1")
    assert found == {row.problem: row for row in rows}
    assert store.problems() == (problem(1), problem(2), problem(3))


@pytest.mark.parametrize(("profile", "planner"), [("profile-b", "planner-1"), ("profile-a", "planner-2")])
def test_another_profile_or_planner_is_not_found(store: Store, profile: str, planner: str) -> None:
    store.keep([kept()])
    assert store.find([problem()], profile, planner) == {}


def test_same_sizes_of_another_dtype_or_device_are_not_found(store: Store) -> None:
    store.keep([kept()])
    others = [problem(dtype="float16"), replace(problem(), device="NVIDIA H100 80GB HBM3")]
    assert store.find(others, "profile-a", "planner-1") == {}


def test_the_first_of_two_writers_stays(store: Store) -> None:
    store.keep([kept()])
    store.keep([kept(config=replace(EIGHT_WARPS, num_warps=4)), kept(2)])
    found = store.find([problem(), problem(2)], "profile-a", "planner-1")
    assert found == {problem(): kept(), problem(2): kept(2)}


def test_more_problems_than_one_statement_takes(store: Store) -> None:
    rows = [kept(m) for m in range(1, 1202)]
    store.keep(rows)
    assert len(store.find([r.problem for r in rows], "profile-a", "planner-1")) == 1201


def test_equal_plans_are_kept_once(store: Store) -> None:
    store.keep([kept(m) for m in range(1, 11)])
    with sqlite3.connect(store.name) as connection:
        assert connection.execute("SELECT COUNT(*) FROM plans").fetchone() == (1,)


def test_a_repeated_report_is_recorded_once(store: Store) -> None:
    report = Measurement(problem(), EIGHT_WARPS, 12.5, samples=20, run="job-1")
    assert store.record(report)
    assert not store.record(report)
    assert store.record(replace(report, run="job-2"))
    (recorded,) = store.measured([problem(), problem(2)]).values()
    assert [(m.time_us, m.samples, m.run) for m in recorded] == [(12.5, 20, "job-1"), (12.5, 20, "job-2")]


def test_what_is_kept_outlives_the_process(tmp_path: Path) -> None:
    first = Store.open(tmp_path / "s.sqlite")
    first.keep([kept()])
    first.close()
    assert Store.open(tmp_path / "s.sqlite").find([problem()], "profile-a", "planner-1") == {problem(): kept()}


def test_sqlite_is_in_wal_mode(store: Store) -> None:
    with sqlite3.connect(store.name) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_others_write_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at it finds another time of writing."""
    path, writings, look = tmp_path / "busy.sqlite", itertools.count(), os.stat

    def busy(place: object, **options: Any) -> os.stat_result:
        if place == path:
            os.utime(path, ns=(0, next(writings)))
        return look(place, **options)

    store = Store.open(path)
    monkeypatch.setattr(os, "stat", busy)
    for m in range(3):
        store.keep([kept(m)])
    assert len(store.problems()) == 3
    store.close()


def test_paths_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "a b%20?#ü.sqlite"
    Store.open(path).keep([kept()])
    assert path.exists()
    assert Store.open(path).problems() == (problem(),)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert text
    return text


def test_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"this is no database, " * 100)
    with pytest.raises(StoreError, match=r"is not a database: move the file away") as caught:
        Store.open(path)
    assert str(path) in one_line(caught.value)
    assert path.read_bytes().startswith(b"this is no database")


def test_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = Store.open(path)
    store.keep([kept(m, config=LONG) for m in range(1, 100)])
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match="damaged or cut short: restore it") as caught:
        Store.open(path).find([problem(m) for m in range(1, 100)], "profile-a", "planner-1")
    one_line(caught.value)


def test_a_damaged_page(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = Store.open(path)
    store.keep([kept(m, config=LONG) for m in range(1, 100)])
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged") as caught:
        Store.open(path).find([problem(1)], "profile-a", "planner-1")
    one_line(caught.value)


def test_someone_elses_database(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER)")
    with pytest.raises(StoreError, match=r"invoices.* is no store of warpplan"):
        Store.open(path)


def test_newer_schema(store: Store) -> None:
    with sqlite3.connect(store.name) as connection:
        connection.execute("INSERT INTO warpplan_schema VALUES (99, 'of the future', '2030-01-01')")
    with pytest.raises(StoreError, match=r"schema 99, newer than the \d+ of this warpplan: upgrade") as caught:
        Store.open(store.name)
    assert caught.value.value == 99


def test_locked(store: Store) -> None:
    other = sqlite3.connect(store.name, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    impatient = Store.open(store.name, timeout_s=0.05)
    with pytest.raises(StoreError, match="locked by another process: wait") as caught:
        impatient.keep([kept()])
    one_line(caught.value)
    assert impatient.find([problem()], "profile-a", "planner-1") == {}
    other.execute("ROLLBACK")
    impatient.keep([kept()])
    assert impatient.problems() == (problem(),)


def test_locked_even_for_reading(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="locked by another process"):
        Store.open(path, timeout_s=0.05)
    other.close()


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        Store.open(tmp_path / "no" / "s.sqlite")
    with pytest.raises(StoreError, match="is a folder"):
        Store.open(tmp_path)


@pytest.mark.parametrize(
    ("url", "way_out"),
    [
        ("mysql://u:secret@h/d", "expected a file or postgresql://user@host:port/name"),
        ("nonsense://", "expected a file or postgresql://"),
        ("://", "expected a file or postgresql://"),
        ("postgresql://u:secret@h:port/d", "expected a file or postgresql://"),
        ("postgresql://u:sec@ret@[::1/d?sslpassword=secret", "expected a file or postgresql://"),
        ("postgresql+psycopg2://u:secret@h/d", "expected a file or postgresql://"),
        ("postgresql://u:secret@127.0.0.1:1/d", "check that the server runs"),
        ("postgresql://127.0.0.1:1/d?user=u&password=secret", "check that the server runs"),
    ],
)
def test_urls_that_lead_nowhere(url: str, way_out: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store.open(url, timeout_s=1)
    told = one_line(caught.value)
    assert way_out in told
    assert "secret" not in f"{told} {caught.value.value}"
    assert "ret@" not in told


@pytest.mark.parametrize("open_elsewhere", [False, True])
def test_read_only(tmp_path: Path, open_elsewhere: bool) -> None:
    """In a process without root's right to write everything: it reads what is there and is refused the rest."""
    folder = tmp_path / "folder"
    folder.mkdir()
    store = Store.open(folder / "s.sqlite")
    store.keep([kept()])
    # A reader that stays keeps the write-ahead log in place: the other way for SQLite to read without writing.
    holder = sqlite3.connect(store.name) if open_elsewhere else None
    if holder:
        holder.execute("SELECT COUNT(*) FROM configs").fetchone()
        store.keep([kept(2)])
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    script = textwrap.dedent(
        f"""
        import sys
        from warpplan.service.config_request import ConfigRequest
        from warpplan.service.store.answer_store import Kept, Store
        from warpplan.planner.errors import StoreError
        from warpplan.planner.predict.time_model import Prediction
        from warpplan.planner.values.tuning import TuningConfig
        store = Store.open({store.name!r}, timeout_s=0.05)
        print(store.readonly, [p.canonical for p in store.problems()])
        p = ConfigRequest("gemm", ("M", "N", "K"), (9, 9, 9), "bfloat16", "NVIDIA H200")
        try:
            config = TuningConfig.of({{}}, num_warps=4, num_stages=1)
            store.keep([Kept(p, "a", "b", config, None, Prediction(1.0, 1.0, "issue", ()))])
        except StoreError as error:
            print(type(error).__name__, error)
        """
    )
    done = _as_nobody(script, tmp_path)
    if holder:
        holder.close()
    folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == ("True [(2, 128, 256), (64, 128, 256)]" if open_elsewhere else "True [(64, 128, 256)]")
    assert second.startswith("ReadOnlyStore store ")
    assert "is read-only: make the file and its folder writable" in second


def test_a_new_store_in_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o555)
    script = f"""
from warpplan.service.store.answer_store import Store
from warpplan.planner.errors import StoreError
try:
    Store.open({str(folder / "s.sqlite")!r})
except StoreError as error:
    print(error)
"""
    done = _as_nobody(script, tmp_path)
    folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert "cannot be opened: check that its folder exists and may be written" in done.stdout


def test_writing_to_a_read_only_store_is_refused(store: Store) -> None:
    store.database.readonly = True
    with pytest.raises(ReadOnlyStore):
        store.keep([kept()])


def _as_nobody(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in a process that has given up root's right to read and write everything."""
    if os.geteuid() == 0:
        for folder in (tmp_path, *tmp_path.parents):
            if not folder.stat().st_mode & 0o001:
                folder.chmod(folder.stat().st_mode | 0o011)
    # Opened once before, because the interpreter itself may lie where only root reads.
    first = f"""
import os
from warpplan.service.store.answer_store import Store
warm = Store.open({str(tmp_path / "warm.sqlite")!r})
warm.problems()
if os.geteuid() == 0:
    os.setuid(65534)
"""
    return subprocess.run([sys.executable, "-c", first + script], capture_output=True, text=True, check=False)
