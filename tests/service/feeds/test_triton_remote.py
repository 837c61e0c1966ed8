"""Triton's own remote cache manager, unmodified, over a live service: the second process makes nothing anew."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from warpplan.service.feeds import provenance, remote_artifacts, triton_remote
from warpplan.service.feeds.machine_here import Machine, machine_here
from warpplan.service.feeds.remote_artifacts import RemoteArtifacts, within
from warpplan.service.http.app import create_app
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow

JOB = Path(__file__).with_name("remote_job.py")
KEY = "A" * 52
TUNED = json.dumps({"key": [1], "configs_timings": [[{"kwargs": {"BLOCK": 64}}, [0.1, 0.1, 0.1]]]}).encode()
NOWHERE = Machine()
H200 = Machine(("NVIDIA H200",), "570.86")
H100 = Machine(("NVIDIA H100 80GB HBM3",), "570.86")


@pytest.fixture
def url(serve: Callable[..., str], workflow: Workflow) -> str:
    return serve(create_app(workflow))


@pytest.fixture
def backend(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., triton_remote.Backend]:
    """A backend as a process on a machine makes one."""
    monkeypatch.setattr(remote_artifacts, "_warned", set())
    monkeypatch.setattr(triton_remote, "_cache_folder", lambda: tmp_path / "cache")

    def made(machine: Machine = NOWHERE, at: str = url, key: str = KEY) -> triton_remote.Backend:
        remote = RemoteArtifacts("triton", at, timeout_s=5)
        monkeypatch.setattr(triton_remote, "_shared", lambda process: (remote, machine))
        return triton_remote.Backend(key)

    return made


def put_locally(tmp_path: Path, name: str, data: bytes) -> Path:
    path = tmp_path / "cache" / KEY / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def run_job(cache: Path, url: str | None, blocks: str = "128,256") -> tuple[dict[str, Any], str]:
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_CACHE_MANAGER": "triton.runtime.cache:RemoteCacheManager",
        "TRITON_REMOTE_CACHE_BACKEND": "warpplan.service.feeds.triton_remote:Backend",
        "WARPPLAN_CACHE_TIMEOUT_S": "20",  # a second passes on a machine that does other things
    }
    environment.pop("WARPPLAN_URL", None)
    if url is not None:
        environment["WARPPLAN_URL"] = url
    done = subprocess.run(
        [sys.executable, str(JOB), blocks], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


class TestJobs:
    @pytest.fixture(autouse=True)
    def _triton(self) -> None:
        pytest.importorskip("triton", reason="needs triton (no GPU) to compile")

    def test_what_one_process_made_no_other_makes(self, url: str, tmp_path: Path) -> None:
        first, _ = run_job(tmp_path / "one", url)
        assert first["compiled"] == [False, False]
        assert first["hits"] == [False] * 24
        assert first["benchmarked"] == 24 * 3
        assert first["heavy_imports"] == [], "the backend needs the standard library only"
        second, said = run_job(tmp_path / "two", url)
        assert second["compiled"] == [True, True]
        assert second["hits"] == [True] * 24
        assert second["benchmarked"] == 0
        assert second["taken"] == first["taken"]
        assert "warpplan" not in said
        third, said = run_job(tmp_path / "two", "http://127.0.0.1:1", blocks="128")
        assert third["compiled"] == [True], "the files on disk answer where the service is away"
        assert third["hits"] == [True] * 24
        assert said.count("RuntimeWarning: warpplan: http://127.0.0.1:1 does not answer") == 1, (
            "once, not for every kernel"
        )

    def test_without_a_url_it_is_tritons_file_cache(self, tmp_path: Path) -> None:
        first, said = run_job(tmp_path, None, blocks="")
        assert first["hits"] == [False] * 24
        assert said.count("RuntimeWarning: warpplan: WARPPLAN_URL=''") == 1
        assert run_job(tmp_path, None, blocks="")[0]["hits"] == [True] * 24


class TestServices:
    @pytest.mark.parametrize("url", ["http://[::1", "http://planner:port", "http://", "planner:8000"])
    def test_a_url_that_is_none_costs_a_warning_and_no_job(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        monkeypatch.setattr(remote_artifacts, "_warned", set())
        monkeypatch.setenv("WARPPLAN_URL", url)
        with pytest.warns(RuntimeWarning, match="names no service"):
            remote = RemoteArtifacts.of_environment("triton")
        assert remote.get(KEY, ["a"]) is None

    @pytest.mark.parametrize("body", [b"[]", b"5", b"{}", b'{"keys": 5, "files": 5}', b"<html>"])
    def test_another_server_is_left_alone(
        self, page: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch, body: bytes
    ) -> None:
        for ask in (lambda r: r.keys(), lambda r: r.get(KEY, ["a"])):
            monkeypatch.setattr(remote_artifacts, "_warned", set())
            remote = RemoteArtifacts("triton", page(body), timeout_s=5)
            with pytest.warns(RuntimeWarning, match="the job goes on with its local files"):
                assert ask(remote) is None
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert remote.put(KEY, "a", b"1") is None


class TestBackend:
    def test_a_kernel_is_whole_or_missing(self, backend: Callable[..., triton_remote.Backend]) -> None:
        one = backend()
        one.put("k.json", b"{}")
        one.put("k.cubin", b"\x7fELF")
        assert one.get(["k.json", "k.cubin"]) == {"k.json": b"{}", "k.cubin": b"\x7fELF"}
        assert one.get(["k.json", "k.cubin", "k.ptx"]) == {}, "without its PTX Triton would fail on the rest"
        assert one.get(["k.ptx"]) == {}

    def test_tuning_of_another_gpu_or_driver_is_a_miss(self, backend: Callable[..., triton_remote.Backend]) -> None:
        name = "matmul.autotune.json"
        backend(H200).put(name, TUNED)
        assert backend(H200).get([name]) == {name: TUNED}
        assert backend(H100).get([name]) == {}
        assert backend(Machine(H200.gpus, "580.10")).get([name]) == {}

    @pytest.mark.parametrize("unknown", [NOWHERE, Machine(driver="570.86"), Machine(H200.gpus)])
    def test_tuning_of_a_machine_that_is_not_known_stays_there(
        self, backend: Callable[..., triton_remote.Backend], unknown: Machine, tmp_path: Path
    ) -> None:
        name = "matmul.autotune.json"
        backend(unknown).put(name, TUNED)
        assert [backend(machine).get([name]) for machine in (unknown, NOWHERE, H200)] == [{}, {}, {}]
        backend(H200).put("other.autotune.json", TUNED)
        assert backend(unknown).get(["other.autotune.json"]) == {}
        path = put_locally(tmp_path, name, TUNED)
        assert backend(unknown).get([name]) == {name: TUNED}, "as Triton's own manager finds it"
        path.unlink()
        assert backend(unknown).get([name]) == {}, "what only the disk had was not sent either"

    def test_a_compiled_kernel_is_for_every_gpu_of_its_key(self, backend: Callable[..., triton_remote.Backend]) -> None:
        backend(H200).put("k.cubin", b"x")
        assert backend(H100).get(["k.cubin"]) == {"k.cubin": b"x"}

    def test_local_tuning_of_another_machine_is_a_miss_that_is_said(
        self, backend: Callable[..., triton_remote.Backend], tmp_path: Path
    ) -> None:
        name = "matmul.autotune.json"
        path = put_locally(tmp_path, name, TUNED)
        provenance.write_beside(path, provenance.measured("triton", TUNED, H100))
        with pytest.warns(RuntimeWarning, match="the GPU .was NVIDIA H100 80GB HBM3, is NVIDIA H200"):
            assert backend(H200, at="").get([name]) == {}
        assert backend(H100, at="").get([name]) == {name: TUNED}

    def test_shared_libraries_stay_on_the_host(
        self, backend: Callable[..., triton_remote.Backend], tmp_path: Path
    ) -> None:
        name = "launcher.cpython-311-x86_64-linux-gnu.so"
        one = backend()
        one.put(name, b"\x7fELF")
        assert one.get([name]) == {}
        put_locally(tmp_path, name, b"\x7fELF")
        assert one.get([name]) == {name: b"\x7fELF"}

    def test_what_only_the_disk_has_is_told_to_the_service(
        self, backend: Callable[..., triton_remote.Backend], tmp_path: Path
    ) -> None:
        path = put_locally(tmp_path, "k.cubin", b"made while the service was away")
        assert backend().get(["k.cubin"]) == {"k.cubin": path.read_bytes()}
        path.unlink()
        assert backend().get(["k.cubin"]) == {"k.cubin": b"made while the service was away"}

    @pytest.mark.parametrize(
        ("name", "data"),
        [("__grp__k.json", b"{"), ("__grp__k.json", b"{}"), ("m.autotune.json", b"[]"), ("m.autotune.json", b"{}")],
    )
    def test_a_damaged_file_is_a_miss_that_is_said(
        self, backend: Callable[..., triton_remote.Backend], tmp_path: Path, name: str, data: bytes
    ) -> None:
        put_locally(tmp_path, name, data)
        with pytest.warns(RuntimeWarning, match="is damaged"):
            assert backend().get([name]) == {}

    def test_the_services_damaged_row_is_a_miss_and_is_replaced(
        self, backend: Callable[..., triton_remote.Backend], store: Store
    ) -> None:
        one = backend()
        one.put("k.cubin", b"first")
        with store.database.writing() as connection:
            connection.execute(text("UPDATE artifacts SET body = replace(body, substr(body, 9, 1), '!')"))
        assert one.get(["k.cubin"]) == {}
        one.put("k.cubin", b"second")
        assert one.get(["k.cubin"]) == {"k.cubin": b"second"}

    def test_a_reply_that_does_not_match_its_checksum_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_artifacts, "_warned", set())
        reply = {
            "files": {"a": {"sha256": "0" * 64, "data": remote_artifacts.packed(b"x")}, "b": {"data": "?"}, "c": 1}
        }
        monkeypatch.setattr(remote_artifacts, "_read", lambda *_: json.dumps(reply).encode())
        with pytest.warns(RuntimeWarning, match="does not match its checksum"):
            assert RemoteArtifacts("triton", "http://service").get(KEY, ["a", "b", "c"]) == {}


class TestPatience:
    def test_a_service_that_says_nothing_costs_one_timeout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_artifacts, "_warned", set())
        with socket.create_server(("127.0.0.1", 0)) as silent:
            remote = RemoteArtifacts("triton", f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
            with pytest.warns(RuntimeWarning, match="does not answer"):
                assert remote.get(KEY, ["k"]) is None
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                connections = threading.active_count()
                assert [remote.get(KEY, ["k"]) for _ in range(100)] == [None] * 100
                assert remote.put(KEY, "k", b"x") is None
                assert threading.active_count() <= connections, "left alone: nobody was asked"

    def test_a_reply_that_trickles_in_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_artifacts, "_warned", set())
        over = threading.Event()

        def trickle(connection: socket.socket) -> None:
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not over.wait(0.05):
                    connection.sendall(b" ")

        with socket.create_server(("127.0.0.1", 0)) as server:
            serving = threading.Thread(target=lambda: trickle(server.accept()[0]), daemon=True)
            serving.start()
            remote = RemoteArtifacts("triton", f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.3)
            with pytest.warns(RuntimeWarning, match="does not answer"):
                assert remote.get(KEY, ["k"]) is None
            assert serving.is_alive(), "the server was still sending"
            over.set()
            serving.join(5)

    def test_within(self) -> None:
        assert within(5, lambda: 1) == 1
        with pytest.raises(KeyError):
            within(5, lambda: {}[1])
        with pytest.raises(TimeoutError):
            within(0.01, lambda: time.sleep(0.5))

    def test_a_service_without_a_store_serves_nothing_and_stops_nobody(
        self, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(remote_artifacts, "_warned", set())
        remote = RemoteArtifacts("triton", serve(create_app(Workflow())))
        with pytest.warns(RuntimeWarning, match="answers 503"):
            assert remote.put(KEY, "k", b"x") is None
        with pytest.warns(RuntimeWarning, match="answers 503"):
            assert remote.get(KEY, ["k"]) is None

    def test_a_name_that_is_refused_costs_the_others_nothing(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_artifacts, "_warned", set())
        remote = RemoteArtifacts("triton", url, timeout_s=5)
        assert remote.put(KEY, "k", b"x")
        with pytest.warns(RuntimeWarning, match="answers 422"):
            assert remote.get(KEY, ["a/b"]) is None
        with pytest.warns(RuntimeWarning, match="keeps no artifacts .* 422"):
            assert remote.put(KEY, "a/b", b"x") is None
        assert remote.get(KEY, ["k"]) == {"k": b"x"}
        assert remote.put(KEY, "l", b"y")

    @pytest.mark.parametrize("given", ["nonsense", "-1", "0", "1e9", "nan"])
    def test_a_wrong_timeout_is_said_and_the_default_holds(self, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_artifacts, "_warned", set())
        monkeypatch.setenv("WARPPLAN_URL", "http://service:1")
        monkeypatch.setenv("WARPPLAN_CACHE_TIMEOUT_S", given)
        with pytest.warns(RuntimeWarning, match="WARPPLAN_CACHE_TIMEOUT_S"):
            assert RemoteArtifacts.of_environment("triton")._timeout_s == remote_artifacts.TIMEOUT_S


class TestMachine:
    def test_read_from_the_drivers_files(self, tmp_path: Path) -> None:
        for number in range(2):
            folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
            folder.mkdir(parents=True)
            (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\n")
        version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 1\nGCC version:  gcc\n"
        (tmp_path / "version").write_text(version)
        assert machine_here(tmp_path) == Machine(("NVIDIA H200",), "570.86.15")
        assert machine_here(tmp_path).label == "NVIDIA H200, driver 570.86.15"

    def test_none(self, tmp_path: Path) -> None:
        assert machine_here(tmp_path / "none") == Machine()
        assert [m.label for m in (Machine(), Machine(driver="570.86"), Machine(H200.gpus))] == [""] * 3
