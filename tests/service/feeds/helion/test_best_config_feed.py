"""Entries for kernels of Helion, read by its own unmodified cache. No GPU: what a job calls is recorded on a machine
that has one on paper."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (no GPU): make test-feeds installs it")
pytest.importorskip("triton", reason="needs triton (no GPU): make test-feeds installs it")
pytest.importorskip("helion", reason="needs helion: make test-feeds installs it")

import torch
from helion.autotuner.local_cache import LocalAutotuneCache

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.device import device
from warpplan.profiler.embedded import embedded
from warpplan.service.cli.app import main
from warpplan.service.feeds.helion import best_config_feed, config_search
from warpplan.service.feeds.helion.recorded_kernels import helion_on_paper, record_kernels
from warpplan.service.feeds.targets import FeedRequest

H200 = "NVIDIA H200"
JOB = """
import helion
import helion.language as hl
import torch


def matmul_body(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    k2, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


matmul = helion.kernel(matmul_body, static_shapes=True)


@helion.kernel(static_shapes=True)
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + x[tile]
    return out


@helion.kernel(config=helion.Config(block_sizes=[64, 64]), static_shapes=True)
def given(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out


LISTED = [
    helion.Config(block_sizes=[m, n, 64], l2_groupings=4, num_warps=w, num_stages=3)
    for m, n, w in ((16, 16, 4), (128, 128, 8))
]  # a grouping in the short form that Helion takes, too
listed = helion.kernel(matmul_body, configs=LISTED, static_shapes=True)


WALKS = [
    helion.Config(block_sizes=[16, 16, 16], num_warps=4, num_stages=3, pid_type="persistent_blocked"),
    helion.Config(block_sizes=[128, 128, 64], num_warps=8, num_stages=3),
]
walking = helion.kernel(matmul_body, configs=WALKS, static_shapes=True)


@helion.kernel(static_shapes=True)
def applied(x: torch.Tensor, function=lambda value: value * 2) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = function(x[tile])
    return out


@helion.kernel(static_shapes=False)
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * factor
    return out


def empty(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def many():
    for n in range(1, 25):
        doubled(given(empty(64 * n, 256)))


def product():
    matmul(doubled(empty(2048, 1024)), empty(1024, 2048))


@helion.kernel(static_shapes=True, autotune_effort="none")
def untuned(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + x[tile]
    return out


@helion.kernel(static_shapes=True, autotune_cache="StrictLocalAutotuneCache")
def strictly(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + x[tile]
    return out


def never_read():
    untuned(empty(64, 64))
    strictly(empty(64, 64))
    doubled(empty(64, 64))


def with_function():
    applied(empty(64, 64))
    doubled(empty(64, 64))


def of_any_size():
    scaled(empty(100, 64), 2.0)


def large():
    matmul(empty(8192, 4096), empty(4096, 2048))


def chosen():
    listed(empty(2048, 1024), empty(1024, 2048))


def walked():
    walking(empty(8192, 8192), empty(8192, 8192))


def none():
    given(empty(64, 64))


def raises():
    raise RuntimeError("no such layer")
"""


@pytest.fixture(autouse=True)
def on_paper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Part of Helion's key; torch for CPUs has none."""
    monkeypatch.setattr(torch.version, "cuda", torch.version.cuda or "12.8")
    with helion_on_paper(device(H200)):
        yield


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., FeedRequest]:
    (tmp_path / "kernels.py").write_text(JOB)

    def request(function: str, gpu: str = H200) -> FeedRequest:
        consumer = f"{tmp_path / 'kernels.py'}:{function}"
        return FeedRequest(tmp_path / "out", gpu, embedded(gpu), consumer, planner="1")

    return request


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default and two neighbours."""
    monkeypatch.setattr(config_search, "SIDES", ())
    monkeypatch.setattr(config_search, "MOST", 3)


def read(request: FeedRequest, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Helion's own cache answers for each key that is called."""
    monkeypatch.setenv("HELION_CACHE_DIR", str(request.out))
    return [LocalAutotuneCache(kernel.search()).get() for kernel in record_kernels(request.consumer, device(H200))]


@pytest.mark.usefixtures("few")
def test_helion_hits_every_key(asked: Callable[..., FeedRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked("many")
    assert read(request, monkeypatch) == [None] * 24
    report = best_config_feed.export(request)
    assert len(report.entries) == 24, "and none for the kernel whose configuration is given"
    assert {path.is_dir() for path in request.out.iterdir()} == {False}, "nothing of what was compiled is left"
    found = read(request, monkeypatch)
    assert all(config is not None for config in found)
    assert [config.config["num_warps"] for config in found] == [entry.config.num_warps for entry in report.entries]
    verified = best_config_feed.verify(request)
    assert verified.all_current
    assert len(verified.entries) == 24
    assert len({entry.path for entry in verified.entries}) == 24


@pytest.mark.usefixtures("few")
def test_another_gpu_profile_or_a_changed_file_is_a_miss_with_its_reason(asked: Callable[..., FeedRequest]) -> None:
    request = asked("product")
    best_config_feed.export(request)
    with helion_on_paper(device("NVIDIA H100 80GB HBM3")):
        away = best_config_feed.verify(asked("product", "NVIDIA H100 80GB HBM3"))
    assert not any(entry.hit for entry in away.entries)
    assert "NVIDIA H200" in away.entries[0].reason, "Helion asks for the GPU's name once a process"
    other = replace(request, profile=replace(request.profile, notes=("another",)))
    assert "another profile" in best_config_feed.verify(other).entries[0].reason
    later = best_config_feed.verify(replace(request, planner="2"))
    assert later.all_hit
    assert not later.all_current
    path = Path(best_config_feed.verify(request).entries[0].path)
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "more": 1}))
    assert "changed since" in best_config_feed.verify(request).entries[0].reason
    path.write_text("{")
    assert "no usable entry" in best_config_feed.verify(request).entries[0].reason


@pytest.mark.usefixtures("few")
def test_an_entry_that_was_tuned_is_kept(asked: Callable[..., FeedRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked("product")
    monkeypatch.setenv("HELION_CACHE_DIR", str(request.out))
    kernel = record_kernels(request.consumer, device(H200))[0]
    LocalAutotuneCache(kernel.search()).put(kernel.bound.config_spec.default_config())
    (tuned,) = request.out.glob("*.best_config")
    before = tuned.read_text()
    (copy,) = best_config_feed.export(request).kept
    assert Path(copy).read_text() == before
    assert best_config_feed.export(request).kept == ()


def test_the_fastest_that_is_priced_is_chosen_and_the_same_each_time(
    asked: Callable[..., FeedRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_search, "MOST", 14)
    request = asked("product")
    kernel = record_kernels(request.consumer, device(H200))[-1]
    config, us = config_search.search(kernel, request.profile, device(H200), {})
    assert (config.to_json(), us) == tuple(
        part.to_json() if hasattr(part, "to_json") else part
        for part in config_search.search(kernel, request.profile, device(H200), {})
    )
    prices = config_search.RecordedPrices(request.profile, device(H200), {})
    default = prices.priced(*kernel.launch(kernel.bound.config_spec.default_config()))
    assert not isinstance(default, str)
    assert us <= 1.001 * default.time_us
    assert min(config.config["block_sizes"][:2]) >= 64, "a small tile loads too much for its products"


def test_of_a_kernels_own_list_the_best_is_chosen(asked: Callable[..., FeedRequest]) -> None:
    (entry,) = best_config_feed.export(asked("chosen")).entries
    assert dict(entry.config.kwargs)["block_sizes"] == "128,128,64"


def test_a_walk_of_unknown_length_does_not_compete_with_known_loops(asked: Callable[..., FeedRequest]) -> None:
    """A persistent program's loop over tiles would count as a nominal length, whatever the grid."""
    (entry,) = best_config_feed.export(asked("walked")).entries
    assert dict(entry.config.kwargs)["block_sizes"] == "128,128,64"


def test_deep_pipelines_are_found_and_the_default_stays_where_little_is_gained(
    asked: Callable[..., FeedRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its default's one stage every neighbour in one setting may be slower where two changed settings are faster."""
    request = asked("large")
    kernel = record_kernels(request.consumer, device(H200))[-1]
    config, _ = config_search.search(kernel, request.profile, device(H200), {})
    assert config.config["num_stages"] >= 3
    assert min(config.config["block_sizes"][:2]) >= 128
    monkeypatch.setattr(config_search, "LEAST_GAIN", 1e9)
    monkeypatch.setattr(config_search, "MOST", 5)
    kept, _ = config_search.search(kernel, request.profile, device(H200), {})
    assert kept == kernel.bound.config_spec.default_config()


@pytest.mark.usefixtures("few")
def test_a_torch_with_cuda_needs_no_gpu(asked: Callable[..., FeedRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a torch would start the GPU that it believes in with the first tensor without data."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: "cuda")
    assert best_config_feed.export(asked("product")).entries


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("none", "called no kernel"),
        ("raises", "RuntimeError: no such layer"),
        ("absent", "absent"),
        ("LISTED", "not a"),
    ],
)
def test_a_consumer_that_calls_nothing_is_refused(asked: Callable[..., FeedRequest], function: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        best_config_feed.export(asked(function))


@pytest.mark.parametrize("function", ["product", "of_any_size"])
def test_keys_are_those_of_a_jobs_own_tensors(asked: Callable[..., FeedRequest], function: str) -> None:
    """Helion's key is a text, and a tensor without data has another class. A CPU's tensors stand for a job's here."""
    for kernel in record_kernels(asked(function).consumer, device(H200)):
        given = kernel.arguments
        real = [torch.empty(a.shape, dtype=a.dtype) if isinstance(a, torch.Tensor) else a for a in given]
        assert type(real[0]) is torch.Tensor
        assert type(given[0]) is not torch.Tensor
        decorated, key = kernel.bound.kernel, LocalAutotuneCache(kernel.search()).key
        for recorded, ours in zip(given, real, strict=True):
            assert repr(decorated._specialization_key(recorded)) == repr(decorated._specialization_key(ours))
        assert repr(key.extra_results) == repr(tuple(extra(real) for extra in kernel.bound._specialize_extra()))


@pytest.mark.usefixtures("few")
def test_a_key_of_one_process_is_refused(asked: Callable[..., FeedRequest]) -> None:
    """Of a function that is passed Helion's key has the address."""
    request = asked("with_function")
    report = best_config_feed.export(request)
    assert [skipped.shape[0] for skipped in report.skipped] == ["applied"]
    assert "no other process" in report.skipped[0].reason
    verified = best_config_feed.verify(request)
    assert {entry.shape[0]: entry.hit for entry in verified.entries} == {"applied": False, "doubled": True}


def test_what_helion_raises_for_one_kernel_is_that_ones_miss(
    asked: Callable[..., FeedRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked("many")
    kernels = len(best_config_feed.verify(request).entries)
    made, calls = best_config_feed._cache, []

    def fails_once(kernel: Any) -> Any:
        calls.append(kernel)
        if len(calls) == 1:
            raise ValueError("no such thing")
        return made(kernel)

    monkeypatch.setattr(best_config_feed, "_cache", fails_once)
    first, *others = best_config_feed.verify(request).entries
    assert (first.hit, first.config, first.reason) == (False, None, "ValueError: no such thing")
    assert len(others) == kernels - 1 > 0
    assert all("export it" in other.reason for other in others)


@pytest.mark.usefixtures("few")
def test_what_helion_does_not_read_is_not_written(asked: Callable[..., FeedRequest]) -> None:
    report = best_config_feed.export(asked("never_read"))
    assert [entry.shape[0] for entry in report.entries] == ["doubled"]
    (skipped,) = report.skipped
    assert skipped.shape[0] == "strictly", "one that is not tuned asks for nothing"
    assert "StrictLocalAutotuneCache" in skipped.reason


def test_a_helion_that_cannot_be_imported_is_named(
    asked: Callable[..., FeedRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 1.5.1 cannot with torch 2.11."""
    monkeypatch.setitem(sys.modules, "helion", None)
    with pytest.raises(InvalidInput, match=r"Helion [\d.]+ cannot be imported.*torch 2\.11"):
        best_config_feed.export(asked("product"))


def test_without_cudas_release_there_is_no_key(
    asked: Callable[..., FeedRequest], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    request = asked("product")
    arguments = ["--target", "helion", "--consumer", request.consumer, "--out", str(request.out)]
    assert main(["export", *arguments]) == 2
    assert "part of Helion's key" in capsys.readouterr().err
