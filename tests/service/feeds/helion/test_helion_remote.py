"""Helion's own remote cache, unmodified, over a live service: what one job put, another gets. No GPU: keys are computed
from tensors without data, on a machine that has one on paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (no GPU): make test-feeds installs it")
pytest.importorskip("triton", reason="needs triton (no GPU): make test-feeds installs it")
pytest.importorskip("helion", reason="needs helion: make test-feeds installs it")

import helion
import helion.language as hl
import torch
from helion.autotuner import PatternSearch
from helion.autotuner.local_cache import LocalAutotuneCache
from helion.autotuner.remote_cache import RemoteAutotuneCache
from torch._subclasses.fake_tensor import FakeTensorMode

from warpplan.planner.values.device import device
from warpplan.service.feeds import remote_artifacts
from warpplan.service.feeds.fla.launch_recorder import fla_on_paper
from warpplan.service.feeds.helion import helion_remote
from warpplan.service.feeds.helion.helion_remote import HelionRecords
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.http.app import create_app
from warpplan.service.workflow.configure import Workflow

SIZES = [64 * n for n in range(1, 25)]


@helion.kernel(static_shapes=True)
def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


@pytest.fixture(scope="module")
def searches() -> Iterator[list[Any]]:
    """Helion's search for each size, bound as on an H200; none of them is run."""
    with pytest.MonkeyPatch.context() as patch, fla_on_paper(device("NVIDIA H200")):
        # Part of Helion's key; torch for CPUs has none.
        patch.setattr(torch.version, "cuda", torch.version.cuda or "12.8")
        found = []
        for size in SIZES:
            with FakeTensorMode(allow_non_fake_inputs=True):
                x = torch.empty(size, 128, device="cuda", dtype=torch.bfloat16)
            found.append(PatternSearch(added.bind((x, x)), (x, x)))
        yield found


@pytest.fixture
def job(
    serve: Callable[..., str], workflow: Workflow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., None]:
    """What follows runs as job number N on a machine, with a folder of its own."""
    url = serve(create_app(workflow))
    monkeypatch.setenv("HELION_REMOTE_CACHE_BACKEND", "warpplan.service.feeds.helion.helion_remote.HelionRecords")
    monkeypatch.setattr(remote_artifacts, "_warned", set())

    def begun(number: int, machine: Machine = H200, at: str = url) -> None:
        monkeypatch.setenv("WARPPLAN_URL", at)
        monkeypatch.setenv("WARPPLAN_CACHE_TIMEOUT_S", "10")
        monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / str(number)))
        monkeypatch.setattr(helion_remote, "machine_here", lambda: machine)

    return begun


H200 = Machine(("NVIDIA H200",), "570.86")


def config_of(search: Any, warps: int) -> Any:
    return helion.Config(**{**search.kernel.config_spec.default_config().config, "num_warps": warps})


def test_another_job_hits_every_key(searches: list[Any], job: Callable[..., None], tmp_path: Path) -> None:
    job(1)
    put = [config_of(search, 2 ** (1 + n % 4)) for n, search in enumerate(searches)]
    for search, config in zip(searches, put, strict=True):
        assert RemoteAutotuneCache(search).get() is None
        RemoteAutotuneCache(search).put(config)
    job(2)
    got = [RemoteAutotuneCache(search).get() for search in searches]
    assert len(got) == 24
    assert [dict(c.config)["num_warps"] for c in got] == [dict(c.config)["num_warps"] for c in put]
    assert len(list((tmp_path / "2").glob("*.best_config"))) == 24
    assert [LocalAutotuneCache(search).get() for search in searches] == got, "and its files, which it wrote"
    assert len(list(HelionRecords().list())) == 24
    assert len(list(HelionRecords().list(max_results=3))) == 3
    job(2, at="http://127.0.0.1:1")
    with pytest.warns(RuntimeWarning, match="does not answer"):
        assert RemoteAutotuneCache(searches[0]).get() == got[0], "the files answer where the service is away"


@pytest.mark.parametrize("machine", [Machine(("NVIDIA H200",), "580.10"), Machine(("NVIDIA H100",), "570.86")])
def test_another_driver_or_gpu_is_a_miss(searches: list[Any], job: Callable[..., None], machine: Machine) -> None:
    job(1)
    RemoteAutotuneCache(searches[0]).put(config_of(searches[0], 4))
    job(2, machine)
    assert RemoteAutotuneCache(searches[0]).get() is None
    assert list(HelionRecords().list()) == []


@pytest.mark.parametrize("unknown", [Machine(), Machine(driver="570.86")])
def test_a_machine_that_is_not_known_shares_no_record(job: Callable[..., None], unknown: Machine) -> None:
    record = '{"config": "{}"}'
    job(1, unknown)
    HelionRecords().put("a" * 64, record)
    job(2, unknown)
    assert HelionRecords().get("a" * 64) is None
    job(3)
    HelionRecords().put("a" * 64, record)
    job(4, unknown)
    assert HelionRecords().get("a" * 64) is None
    assert list(HelionRecords().list()) == []


def test_another_version_is_a_miss(
    searches: list[Any], job: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job(1)
    RemoteAutotuneCache(searches[0]).put(config_of(searches[0], 4))
    job(2)
    monkeypatch.setattr(helion_remote, "_version", lambda name: "0.0")
    assert RemoteAutotuneCache(searches[0]).get() is None


@pytest.mark.parametrize("record", ["{", "[]", "{}", '{"config": 1}', '{"config": "["}', '{"config": "[]"}'])
def test_what_is_no_record_is_a_miss_that_is_said(searches: list[Any], job: Callable[..., None], record: str) -> None:
    """Helion itself raises on it."""
    job(1)
    cache = RemoteAutotuneCache(searches[0])
    HelionRecords().put(cache.key.stable_hash(), record)
    with pytest.warns(RuntimeWarning, match="no record of Helion"):
        assert cache.get() is None
