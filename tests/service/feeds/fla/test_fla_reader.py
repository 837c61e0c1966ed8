"""FLA's own reader, unmodified, hits the exported files; nothing stale counts as a hit."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (no GPU): make test-feeds installs it")
pytest.importorskip("triton", reason="needs triton (no GPU): make test-feeds installs it")
pytest.importorskip("fla", reason="needs fla-core: make test-feeds installs it")

from warpplan.planner.errors import InvalidInput, StoreError
from warpplan.planner.values.device import device
from warpplan.profiler.embedded import embedded
from warpplan.service.feeds import FeedRequest
from warpplan.service.feeds.fla import config_feed
from warpplan.service.feeds.fla.launch_recorder import fla_on_paper, record_launches
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.provenance import SUFFIX, beside, planned

LAYERS = Path(__file__).with_name("fla_layers.py")
H200 = device("NVIDIA H200")
KERNEL = "chunk_local_cumsum_scalar_kernel"


def request(out: Path, function: str = "sums", **changes: Any) -> FeedRequest:
    given = {"consumer": f"{LAYERS}:{function}", "planner": "1.0+abc", **changes}
    return FeedRequest(out, "NVIDIA H200", embedded("NVIDIA H200"), **given)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fla")
    report = config_feed.export(request(out))
    assert (len(report.entries), report.skipped) == (24, ())
    return out


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    for path in exported.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_flas_own_lookup_returns_every_entry(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fla.ops.utils import cache

    launches = record_launches(f"{LAYERS}:sums", H200)
    monkeypatch.setenv("FLA_CONFIG_DIR", str(exported))
    monkeypatch.setattr(cache, "FLA_CACHE_MODE", cache.FlaCacheMode.STRICT)
    cache.load_config_file.cache_clear()
    found = [cache.load_cached_config(launch.kernel, launch.key) for launch in launches]
    assert len(found) == 24
    written = json.loads((exported / f"{KERNEL}.json").read_text())["autotune_entries"]
    for launch, config in zip(launches, found, strict=True):
        assert config == written[cache.AutotuneKey.key_hash(launch.key.autotune_key)]["config"]
    cache.load_config_file.cache_clear()


def test_its_autotuner_runs_that_configuration_and_tunes_nothing(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fla.ops.utils import cache
    from triton.runtime.jit import JITFunction

    (launch, *_) = record_launches(f"{LAYERS}:sums", H200)
    ran: list[int] = []
    monkeypatch.setenv("FLA_CONFIG_DIR", str(exported))
    monkeypatch.setattr(cache, "FLA_CACHE_MODE", cache.FlaCacheMode.STRICT)
    monkeypatch.setattr(JITFunction, "run", lambda *_, **told: ran.append(told["num_warps"]))
    monkeypatch.setattr(launch.tuner, "_bench", lambda *_, **__: pytest.fail("it tunes"))
    cache.load_config_file.cache_clear()
    with fla_on_paper(H200):
        launch.tuner.run(*launch.positional, grid=launch.grid, warmup=False, **launch.keywords)
    config = cache.load_cached_config(launch.kernel, launch.key)
    assert config is not None
    assert ran == [config["num_warps"]]
    cache.load_config_file.cache_clear()
    launch.tuner.cache.clear()


def test_verify_says_hit_and_leaves_no_trace(exported: Path) -> None:
    before = dict(os.environ)
    report = config_feed.verify(request(exported))
    assert report.all_hit
    assert len(report.entries) == 24
    assert dict(os.environ) == before


def test_a_kernel_with_products_is_predicted_and_added(copy: Path) -> None:
    said: list[tuple[int, int, str]] = []
    report = config_feed.export(request(copy, "outputs", progress=lambda *told: said.append(told)))
    (entry,) = report.entries
    assert entry.predicted_us is not None
    assert entry.predicted_us > 0
    assert said == [(0, 1, entry.shape[0])]
    assert config_feed.verify(request(copy, "outputs")).all_hit
    assert config_feed.verify(request(copy)).all_hit, "the other kernel's file is as it was"


def test_what_spills_is_not_chosen_and_launches_that_specialise_alike_are_assembled_once() -> None:
    from warpplan.service.feeds.fla.recorded_ranking import Reports, rank_configs

    (launch,) = record_launches(f"{LAYERS}:value_gradients", H200)
    reports: Reports = {}
    with fla_on_paper(H200):
        ranked = rank_configs(launch, embedded("NVIDIA H200"), H200, reports)
        again = rank_configs(launch, embedded("NVIDIA H200"), H200, dict(reports))
    assert ranked == again
    assert any(report.spill_bytes > 1_000 for report in reports.values() if not isinstance(report, str))
    assert ranked[0][0].num_warps == 8


def test_nothing_exported_is_a_miss_with_its_reason(tmp_path: Path) -> None:
    report = config_feed.verify(request(tmp_path))
    assert not any(e.hit for e in report.entries)
    assert "nothing was exported" in report.entries[0].reason
    assert list(tmp_path.iterdir()) == []


def test_exports_at_one_time_lose_no_entry(tmp_path: Path) -> None:
    made = planned("fla", device=H200.name, driver="", profile="p", planner="1", versions={"triton": "3.9.0"})
    path = tmp_path / f"{KERNEL}.json"

    def write(number: int) -> None:
        for at in range(10):
            assert config_feed._write(path, KERNEL, {f"{number}-{at}": {}}, made) == ()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(json.loads(path.read_text())["autotune_entries"]) == 40


@pytest.mark.parametrize("damage", ["cut short", "foreign", "a key less", "of another GPU", "of another Triton"])
def test_what_is_damaged_foreign_or_stale_is_a_miss_with_its_reason(copy: Path, damage: str) -> None:
    path = copy / f"{KERNEL}.json"
    sidecar = beside(path)
    fields = json.loads(sidecar.read_text())
    body = json.loads(path.read_text())
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-50])
    elif damage == "foreign":
        sidecar.unlink()
    elif damage == "a key less":
        body["autotune_entries"].popitem()
        path.write_text(json.dumps(body))
    elif damage == "of another GPU":
        sidecar.write_text(json.dumps({**fields, "device": "NVIDIA H100 80GB HBM3"}))
    else:
        sidecar.write_text(json.dumps({**fields, "versions": {**fields["versions"], "triton": "3.0.0"}}))
    report = config_feed.verify(request(copy))
    assert not any(e.hit for e in report.entries)
    reason = {
        "of another GPU": "made for NVIDIA H100", "of another Triton": "triton (was 3.0.0",
    }.get(damage, "not written by export, or was changed since")  # fmt: skip
    assert reason in report.entries[0].reason


def test_a_driver_that_changed_makes_it_stale(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = copy / f"{KERNEL}.json{SUFFIX}"
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), "driver": "570.86"}))
    monkeypatch.setattr(config_feed, "machine_here", lambda: Machine(("NVIDIA H200",), "580.10"))
    assert "the driver (was 570.86, is 580.10)" in config_feed.verify(request(copy)).entries[0].reason
    monkeypatch.setattr(config_feed, "machine_here", lambda: Machine(("NVIDIA H200",), "570.86"))
    assert config_feed.verify(request(copy)).all_hit


def test_another_planners_entries_are_hits_that_strict_counts_as_misses(copy: Path) -> None:
    assert config_feed.verify(request(copy)).all_current
    report = config_feed.verify(request(copy, planner="2.0+def"))
    assert report.all_hit
    assert not report.all_current
    assert report.entries[0].reason == "planned by 1.0+abc, not today's planner: export again"


def test_a_file_that_was_tuned_is_kept_beside_ours(copy: Path) -> None:
    path = copy / "chunk_fwd_kernel_o.json"
    path.write_text('{"autotune_entries": {}}')
    report = config_feed.export(request(copy, "outputs"))
    assert [Path(kept).read_text() for kept in report.kept] == ['{"autotune_entries": {}}']
    assert config_feed.verify(request(copy, "outputs")).all_current
    assert config_feed.export(request(copy, "outputs")).kept == ()


def test_what_cannot_be_exported_says_why(tmp_path: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="launched no autotuned kernel"):
        config_feed.export(request(tmp_path, "nothing"))
    with pytest.raises(InvalidInput, match="raised RuntimeError: out of layers"):
        config_feed.export(request(tmp_path, "broken"))
    with pytest.raises(InvalidInput, match="raised SystemExit: 3"):
        config_feed.export(request(tmp_path, "left"))
    with pytest.raises(InvalidInput, match="--target fla needs --consumer"):
        config_feed.export(request(tmp_path, consumer=""))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        config_feed.export(request(tmp_path / "file", "outputs"))
    monkeypatch.setattr(config_feed, "TESTED", ("0.5.0",))
    with pytest.raises(InvalidInput, match=r"Tested: 0.5.0. Give --untested"):
        config_feed.verify(request(exported))
    assert config_feed.verify(request(exported, untested=True)).all_hit
