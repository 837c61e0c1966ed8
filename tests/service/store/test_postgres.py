"""The same store on PostgreSQL: a server from a wheel, or the empty database that ``WARPPLAN_TEST_POSTGRES`` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url

from warpplan.kernels.declaration import MAX_LIST_CHARACTERS
from warpplan.planner.errors import StoreError
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.cli.app import main
from warpplan.service.feeds.provenance import digest_of
from warpplan.service.feeds.remote_artifacts import packed
from warpplan.service.solving.plan_queue import Plans
from warpplan.service.solving.plan_request import PlanRequest
from warpplan.service.store.answer_store import Store
from warpplan.service.store.artifact_store import ArtifactKey, Artifacts, artifact
from warpplan.service.store.checksums import BY_TABLE
from warpplan.service.store.measured_times import Measurement
from warpplan.service.store.store_failures import ReadOnlyStore
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer, KernelAnswers
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.request import Item


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.open(url)
    yield opened
    with opened.database.engine.begin() as connection:
        for name in inspect(connection).get_table_names():
            connection.execute(text(f"DROP TABLE {name} CASCADE"))
    opened.close()


def test_planned_then_found(store: Store, url: str, gemm: Callable[..., Item]) -> None:
    first = Workflow(store).configure(gemm(512, 64, 64))
    again = Workflow(Store.open(url)).configure(gemm(512, 64, 64))
    assert (first.kind, first.kept) == ("planned", True)
    assert again == replace(first, kind="exact")


def test_measurements(store: Store, gemm: Callable[..., Item]) -> None:
    workflow = Workflow(store)
    config = workflow.candidates(gemm(512, 64, 64), 2)[1][1].config
    measurement, fresh = workflow.record(gemm(512, 64, 64), config, 0.5)
    assert fresh
    assert not workflow.record(gemm(512, 64, 64), config, 0.5)[1]
    assert workflow.configure(gemm(512, 64, 64)).config == config
    workflow.forget_measurement(measurement.id)
    assert workflow.configure(gemm(512, 64, 64)).measured is None


def test_the_longest_list_of_an_option_fits_into_an_index(store: Store, gemm: Callable[..., Item]) -> None:
    digits = Random(1).choices("123456789", k=MAX_LIST_CHARACTERS)
    digits[6::7] = "," * len(digits[6::7])
    answer = Workflow(store).configure(gemm(512, 64, 64))
    (kept,) = store.find([answer.problem], answer.profile, answer.planner).values()
    listed = replace(answer.problem, canonical=(*answer.problem.canonical, f"sizes={''.join(digits)}"))
    store.keep([replace(kept, problem=listed)])
    assert listed in store.find([listed], answer.profile, answer.planner)
    store.record(Measurement(listed, answer.config, 7.5))
    assert store.measured([listed])[listed][0].time_us == 7.5
    assert set(store.problems()) == {answer.problem, listed}


def test_a_damaged_row_is_planned_anew_and_replaced(store: Store, gemm: Callable[..., Item]) -> None:
    before = Workflow(store).configure(gemm(512, 64, 64))
    for change in ("configs SET config = replace(config, '64', '65')", "plans SET body = substr(body, 1, 40)"):
        with store.database.engine.begin() as connection:
            connection.execute(text(f"UPDATE {change}"))
        assert Workflow(store).configure(gemm(512, 64, 64)) == before
        assert Workflow(store).configure(gemm(512, 64, 64)) == replace(before, kind="exact")


def test_a_store_from_before_checksums(url: str, store: Store, gemm: Callable[..., Item]) -> None:
    ranked = Workflow(store).candidates(gemm(512, 64, 64), 2)[1]
    shorter_us = 0.8 * ranked[0].prediction.time_us
    for run in "ab":
        Workflow(store).record(gemm(512, 64, 64), ranked[1].config, shorter_us, run=run)
    before = Workflow(store).configure(gemm(512, 64, 64))
    assert before.measured is not None
    with store.database.engine.begin() as connection:
        for name in BY_TABLE:
            connection.execute(text(f"ALTER TABLE {name} DROP COLUMN checksum"))
        for undone in (
            "DROP TABLE artifacts",
            "DROP TABLE measured_times",
            "DROP TABLE tuning_times",
            "DROP TABLE kernel_answers",
            "DROP TABLE launch_keys",
            "ALTER TABLE measurements DROP COLUMN series",
            "CREATE INDEX measurements_problem ON measurements (kernel)",
            "DELETE FROM warpplan_schema WHERE version >= 4",
        ):
            connection.execute(text(undone))
    assert Workflow(Store.open(url)).configure(gemm(512, 64, 64)) == replace(before, kind="exact")


def test_reports_of_one_series_at_once_are_all_counted(store: Store, url: str, gemm: Callable[..., Item]) -> None:
    answer = Workflow(store).configure(gemm(512, 64, 64))

    def write(number: int) -> None:
        mine = Store.open(url)
        for m in range(20):
            assert mine.record(Measurement(answer.problem, answer.config, 5.0 + m, run=f"{number}"))
        mine.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    (time,) = store.times([answer.problem])[answer.problem]
    assert (time.time_us, time.kept, time.reports) == (14.5, 80, 80)


def test_artifacts(store: Store) -> None:
    size = len(packed(b"data"))
    artifacts = Artifacts(store.database, max_total_bytes=2 * size)
    first, second = (ArtifactKey("triton", letter * 52, "NVIDIA H200") for letter in "BA")
    for place in (first, second):
        assert artifacts.put(place, artifact("k.cubin", b"data", packed(b"data")))[1]
        assert not artifacts.put(place, artifact("k.cubin", b"other", packed(b"other")))[1]
    assert artifacts.keys("triton", 10) == (second.key, first.key)
    artifacts.put(second, artifact("k.json", b"data", packed(b"data")))
    assert artifacts.keys("triton", 10) == (second.key,), "the oldest key made way"
    assert {a.sha256 for a in artifacts.get(second, ["k.cubin", "k.json", "k.ptx"]).values()} == {digest_of(b"data")}
    artifacts.forget("triton", second.key)
    assert artifacts.get(second, ["k.json"]) == {}


def test_writers_at_once(store: Store, url: str, gemm: Callable[..., Item]) -> None:
    def write(number: int) -> None:
        workflow = Workflow(Store.open(url))
        shapes = [(m, gemm(16 * ((m + 10 * number) % 50 + 1), 64, 64)) for m in range(50)]
        assert all(r.answer for r in workflow.batch(shapes, must_keep=True, chunk=10))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(store.problems()) == 50


def test_plans_are_claimed_once_and_listed(store: Store) -> None:
    plans = Plans(store.database)
    graph = {
        "schema": "warpplan/graph-1",
        "ops": [{"id": "a", "unit": "ALU", "latency": 1, "occupancy": 1, "issue": 1}],
        "edges": [],
    }
    asked = [PlanRequest.of({**graph, "name": f"loop \0 {n}"}, {}) for n in range(20)]
    with ThreadPoolExecutor(4) as pool:
        assert all(fresh for _, fresh in pool.map(lambda r: plans.submit(r, "p", most_queued=100), asked))
    with ThreadPoolExecutor(6) as pool:
        claims = [c for c in pool.map(lambda _: plans.claim(60, "p"), range(60)) if c is not None]
    assert len({c.id for c in claims}) == len(claims) == 20
    assert plans.renew(claims[0], 60, {"ii_asked": 1})
    assert plans.finish(claims[0], {"status": "optimal"}, None)
    assert plans.release(claims[1])
    plans.forget(claims[2].id)
    assert not plans.holds(claims[2])
    assert plans.counts() == {"queued": 1, "running": 17, "done": 1, "failed": 0}
    first = plans.page(10)
    rest = plans.page(10, after=(first[-1].submitted_at, first[-1].id))
    assert {s.id for s in (*first, *rest)} == {r.id for r in asked} - {claims[2].id}


def test_a_newer_schema(store: Store, url: str) -> None:
    with store.database.engine.begin() as connection:
        connection.execute(text("INSERT INTO warpplan_schema VALUES (99, '', '')"))
    with pytest.raises(StoreError, match="schema 99, newer than"):
        Store.open(url)


def test_the_password_is_not_shown(store: Store, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shapes.csv").write_text("M,N,K\n512,64,64\n")
    with_password = make_url(url).set(drivername="postgresql", password="secret").render_as_string(hide_password=False)
    assert main(["batch", str(tmp_path / "shapes.csv"), "--store", with_password]) == 0
    assert main(["export", "--target", "inductor", "--kernel", "grouped_gemm", "--store", with_password]) == 2
    told = capsys.readouterr()
    assert "1 shapes in postgresql://" in told.err
    assert "secret" not in told.out + told.err


def test_who_holds_a_lock_is_not_waited_for_longer_than_said(store: Store, url: str, gemm: Callable[..., Item]) -> None:
    answer = Workflow(store).configure(gemm(512, 64, 64))
    with Store.open(url).database.engine.begin() as holder:
        holder.execute(text("LOCK TABLE configs IN ACCESS EXCLUSIVE MODE"))
        waiting = Store.open(url, timeout_s=0.2)
        with pytest.raises(StoreError, match="is locked by another process: wait for it to end"):
            waiting.find([answer.problem], answer.profile, answer.planner)
    assert waiting.find([answer.problem], answer.profile, answer.planner)


def test_a_lost_connection_costs_no_answer(store: Store, gemm: Callable[..., Item]) -> None:
    before = Workflow(store).configure(gemm(512, 64, 64))
    other = create_engine(store.database.engine.url)
    with other.begin() as connection:
        lost = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        connection.execute(text(f"{lost} AND datname = current_database()"))
    other.dispose()
    assert Workflow(store).configure(gemm(512, 64, 64)) == replace(before, kind="exact")


def test_a_role_that_may_only_read(store: Store, url: str, gemm: Callable[..., Item]) -> None:
    before = Workflow(store).configure(gemm(512, 64, 64))
    with store.database.engine.begin() as connection:
        if not connection.execute(text("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")).scalar():
            pytest.skip("the role of WARPPLAN_TEST_POSTGRES may not make others")
        connection.execute(text("CREATE ROLE warpplan_reader LOGIN"))
    reader = make_url(url).set(username="warpplan_reader").render_as_string(hide_password=False)
    try:
        with pytest.raises(StoreError, match="permission denied for table warpplan_schema: GRANT it the right"):
            Store.open(reader, readonly=True)
        with store.database.engine.begin() as connection:
            connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO warpplan_reader"))
        for readonly, refused in ((True, "is read-only: serve it without --readonly"), (False, "GRANT it the right")):
            workflow = Workflow(Store.open(reader, readonly=readonly))
            assert workflow.configure(gemm(512, 64, 64)) == replace(before, kind="exact")
            fresh = workflow.configure(gemm(1024, 64, 64))
            assert (fresh.kind, fresh.kept) == ("planned", False)
            with pytest.raises(ReadOnlyStore, match=refused):
                workflow.record(gemm(512, 64, 64), before.config, before.prediction.time_us)
    finally:
        with store.database.engine.begin() as connection:
            connection.execute(text("DROP OWNED BY warpplan_reader"))
            connection.execute(text("DROP ROLE warpplan_reader"))


def test_answers_about_kernels_of_others(store: Store) -> None:
    config = TuningConfig.of({"BM": 64}, num_warps=4, num_stages=3)
    answer = KernelAnswer(
        "kérnel\0", "source", (("K", 8), ("M", 3)), "a=*bf16", "NVIDIA H200", "profile", "planner", ((config, 2.5),)
    )
    answers = KernelAnswers(store.database)
    answers.keep([answer])
    (first,) = answers.of("kérnel\0")
    assert replace(first, date="") == answer
    answers.keep([replace(answer, ranked=((config, 3.5),)), replace(answer, planner="later", ranked=((config, 4.5),))])
    (newest,) = answers.of("kérnel\0")
    assert newest.ranked[0][1] in (3.5, 4.5)
    assert answers.of("kernel") == ()
