"""The readers of an installed vLLM and SGLang, unmodified, take what was exported: their own return value says so.

They run without a GPU and without torch: imports of the rest of the consumer stand empty. ``make test-feeds`` installs
the wheels; without them these tests skip.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.device import DEVICES
from warpplan.profiler.embedded import embedded
from warpplan.service.feeds import FeedRequest, sglang_moe, vllm_moe
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.moe.model_shapes import MODELS
from warpplan.service.feeds.moe.table_files import TableKey
from warpplan.service.feeds.moe_facts.absent_imports import absent_packages, run_file
from warpplan.service.feeds.moe_facts.moe_kernels import SGLANG, VLLM
from warpplan.service.feeds.moe_facts.moe_schemes import SCHEMES
from warpplan.service.feeds.moe_facts.shipped_facts import kernel_digest, shipped
from warpplan.service.feeds.moe_facts.tuning_space import TOKENS

ROOT = Path(__file__).parents[4]
SITE = Path(os.environ.get("WARPPLAN_CONSUMERS", ROOT / "build" / "feeds" / "site"))
H200 = "NVIDIA H200"

needs_vllm = pytest.mark.skipif(not (SITE / "vllm").is_dir(), reason="needs vLLM's wheel: make test-feeds")
needs_sglang = pytest.mark.skipif(not (SITE / "sglang").is_dir(), reason="needs SGLang's wheel: make test-feeds")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpplan.service.feeds.machine_here.machine_here", Machine)


def request(out: Path, **settings: str) -> FeedRequest:
    return FeedRequest(out, H200, embedded(H200), str(SITE), settings=settings)


def of_vllm(out: Path, device: str = "NVIDIA_H200") -> dict[str, dict[str, Any]]:
    """What the rest of vLLM says to its reader."""
    return {
        "vllm.envs": {"VLLM_TUNED_CONFIG_FOLDER": str(out), "VLLM_BATCH_INVARIANT": False},
        "vllm.utils.platform_utils": {"get_device_name_as_file_name": lambda *_: device},
        "vllm.model_executor.layers.fused_moe": {"get_config": lambda: None},
    }


def vllm_reader(out: Path, device: str = "NVIDIA_H200") -> ModuleType:
    return run_file(SITE / VLLM.path, ("vllm", "torch"), of_vllm(out, device))


def of_sglang(triton: str, device: str = "NVIDIA H200") -> dict[str, dict[str, Any]]:
    return {
        "sglang.srt.utils": {"get_device_name": lambda *_: device, "is_hip": lambda: False},
        "sglang.srt.layers.moe.moe_runner.triton_utils": {"get_config": lambda: None},
        "triton": {"__version__": triton},
    }


def sglang_reader(triton: str = "3.8.0", device: str = "NVIDIA H200") -> ModuleType:
    return run_file(SITE / sglang_moe.READER, ("sglang", "torch", "triton"), of_sglang(triton, device))


def key_of(model: str, tp: int, scheme_name: str, **more: bool) -> TableKey:
    found, scheme = MODELS[model], SCHEMES[scheme_name]
    return TableKey(
        found.experts,
        found.intermediate // tp,
        "NVIDIA_H200",
        scheme.selector,
        scheme.block,
        scheme.per_channel,
        **more,
    )


def every_key(schemes: tuple[str, ...]) -> Iterator[TableKey]:
    for model in MODELS:
        for tp in (1, 2, 4, 8):
            for scheme in schemes:
                yield key_of(model, tp, scheme)


@needs_vllm
class TestVllm:
    @pytest.fixture(scope="class")
    @classmethod
    def out(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        out = tmp_path_factory.mktemp("vllm")
        vllm_moe.export(request(out, model="deepseek-v3", tp="8"))
        vllm_moe.export(request(out, model="qwen3-30b-a3b", tp="2"))
        return out

    def test_our_names_are_its_names_for_every_model_and_dtype(self, tmp_path: Path) -> None:
        reader = vllm_reader(tmp_path)
        keys = list(every_key(vllm_moe.SCHEMES))
        for key in keys:
            block = list(key.block) if key.block else None
            theirs = reader.get_config_file_name(key.experts, key.columns, key.selector or None, block)
            assert key.file_name(spaced=False) == theirs
        assert len(keys) >= 20

    @pytest.mark.parametrize("device", DEVICES)
    def test_our_spelling_of_a_device_is_its_own(self, tmp_path: Path, device: str) -> None:
        theirs = vllm_reader(tmp_path, device.replace(" ", "_")).get_config_file_name(8, 64, None)
        assert TableKey(8, 64, vllm_moe.device_in_name(device)).file_name(spaced=False) == theirs

    def test_its_own_choice_is_our_entry_for_every_number_of_tokens(self, out: Path) -> None:
        hits = 0
        for model, tp, scheme, hidden in (
            ("deepseek-v3", 8, "fp8_w8a8_block", 7168),
            ("qwen3-30b-a3b", 2, "bfloat16", 2048),
        ):
            key = key_of(model, tp, scheme)
            ours = json.loads((out / key.file_name(spaced=False)).read_text())
            shapes = ((key.experts, 2 * key.columns, hidden), (key.experts, hidden, key.columns))
            reader = vllm_reader(out)
            with absent_packages(("vllm", "torch"), of_vllm(out)):
                for tokens in TOKENS:
                    block = list(key.block) if key.block else None
                    found = reader.try_get_optimal_moe_config(*shapes, 8, key.selector or None, tokens, block)
                    hits += found == ours[str(tokens)]
        assert hits == 2 * len(TOKENS)

    def test_verify_counts_the_same_hits(self, out: Path) -> None:
        report = vllm_moe.verify(request(out, model="deepseek-v3", tp="8"))
        assert report.all_hit
        assert len(report.entries) == len(TOKENS)
        assert [e.reason for e in report.entries] == [""] * len(TOKENS)

    def test_a_damaged_table_would_stop_the_job_and_verify_says_so(self, tmp_path: Path) -> None:
        (path,) = {e.path for e in vllm_moe.export(request(tmp_path, model="mixtral-8x7b", tp="8")).entries}
        Path(path).write_text('{"1": ')
        with pytest.raises(ValueError):
            vllm_reader(tmp_path).get_moe_configs(8, 1792, None)
        report = vllm_moe.verify(request(tmp_path, model="mixtral-8x7b", tp="8"))
        assert not any(e.hit for e in report.entries)
        assert "remove" in report.entries[0].reason

    def test_a_foreign_table_is_read_and_is_a_miss(self, tmp_path: Path) -> None:
        (path,) = {e.path for e in vllm_moe.export(request(tmp_path, model="mixtral-8x7b", tp="8")).entries}
        Path(path).write_text(json.dumps({"1": {"BLOCK_SIZE_M": 16}, "triton_version": "3.8.0"}))
        report = vllm_moe.verify(request(tmp_path, model="mixtral-8x7b", tp="8"))
        assert not any(e.hit for e in report.entries)
        assert "not ours" in report.entries[0].reason

    def test_a_stale_table_is_a_miss_with_what_changed(self, out: Path, tmp_path: Path) -> None:
        stale = FeedRequest(
            tmp_path, H200, embedded(H200), str(SITE), settings={"model": "mixtral-8x7b", "tp": "8", "triton": "3.7.0"}
        )
        vllm_moe.export(stale)
        report = vllm_moe.verify(request(tmp_path, model="mixtral-8x7b", tp="8", triton="3.8.0"))
        assert not any(e.hit for e in report.entries)
        assert "triton 3.7.0, here 3.8.0" in report.entries[0].reason

    def test_a_missing_table_names_the_nearest_one_and_the_package_table_that_is_read_instead(self, out: Path) -> None:
        report = vllm_moe.verify(request(out, model="deepseek-v3", tp="4"))
        assert not any(e.hit for e in report.entries)
        assert "N 256, asked 512" in report.entries[0].reason
        assert "falls back" in report.entries[0].reason  # vLLM ships E=256,N=512 for this GPU

    def test_the_installed_kernel_is_the_one_whose_facts_ship(self) -> None:
        for scheme in vllm_moe.SCHEMES:
            recorded = shipped("vllm", scheme)
            assert recorded is not None
            assert recorded.kernel == kernel_digest(SITE / VLLM.path, VLLM.function)

    def test_another_version_is_refused_with_those_that_were_tested(self, tmp_path: Path) -> None:
        (tmp_path / "vllm").mkdir()
        info = tmp_path / "vllm-0.99.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n")
        asked = FeedRequest(tmp_path / "o", H200, embedded(H200), str(tmp_path), settings={"model": "dbrx"})
        with pytest.raises(InvalidInput, match=r"0\.99\.0 was not tested.*0\.33\.0.*--untested"):
            vllm_moe.export(asked)


@needs_sglang
class TestSglang:
    @pytest.fixture(scope="class")
    @classmethod
    def out(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        out = tmp_path_factory.mktemp("sglang")
        sglang_moe.export(request(out, model="deepseek-v3", tp="8"))
        return out

    def test_our_names_are_its_names_for_every_model_and_dtype(self) -> None:
        reader = sglang_reader()
        keys = list(every_key(sglang_moe.SCHEMES))
        for key in keys:
            for down in (False, True):
                block = list(key.block) if key.block else None
                theirs = reader.get_config_file_name(
                    key.experts, key.columns, key.selector or None, block, key.per_channel, down
                )
                ours = TableKey(key.experts, key.columns, key.device, key.selector, key.block, key.per_channel, down)
                assert ours.file_name(spaced=True) == theirs
        assert len(keys) >= 20

    @pytest.mark.parametrize("experts", [256, 257])
    def test_its_own_choice_is_our_pair_for_every_number_of_tokens(
        self, out: Path, experts: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(out))
        folder = out / "configs" / "triton_3_8_0"
        name = f"E={experts},N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]"
        up, down = (json.loads((folder / f"{name}{end}.json").read_text()) for end in ("", "_down"))
        shapes = ((experts, 512, 7168), (experts, 7168, 256))
        reader, hits = sglang_reader(), 0
        with absent_packages(("sglang", "torch", "triton"), of_sglang("3.8.0")):
            for tokens in TOKENS:
                first, (second, most) = reader.try_get_optimal_moe_config(
                    *shapes, 8, "fp8_w8a8", tokens, block_shape=[128, 128], return_down_config=True
                )
                hits += first == up[str(tokens)] and second == down[str(tokens)]
                assert most >= second["BLOCK_SIZE_M"] == first["BLOCK_SIZE_M"]
        assert hits == len(TOKENS)

    def test_verify_counts_the_same_hits(self, out: Path) -> None:
        report = sglang_moe.verify(request(out, model="deepseek-v3", tp="8"))
        assert report.all_hit
        assert len(report.entries) == 4 * len(TOKENS)  # up and down, with and without the shared expert as one of them

    def test_another_triton_falls_back_to_our_table_and_verify_calls_that_a_miss(self, out: Path) -> None:
        report = sglang_moe.verify(request(out, model="deepseek-v3", tp="8", triton="3.9.0"))
        assert not any(e.hit for e in report.entries)
        assert "falls back" in report.entries[0].reason

    def test_a_damaged_table_would_stop_the_job_and_verify_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = sglang_moe.export(request(tmp_path, model="mixtral-8x7b", tp="8"))
        Path(report.entries[0].path).write_text("[]")
        monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(tmp_path))
        with pytest.raises(AttributeError):
            sglang_reader().get_moe_configs(8, 1792, None)
        verified = sglang_moe.verify(request(tmp_path, model="mixtral-8x7b", tp="8"))
        damaged = [e for e in verified.entries if not e.hit]
        assert len(damaged) == len(TOKENS)
        assert "remove" in damaged[0].reason

    def test_nothing_exported_yet_is_a_miss(self, tmp_path: Path) -> None:
        report = sglang_moe.verify(request(tmp_path, model="mixtral-8x7b", tp="8"))
        assert not any(e.hit for e in report.entries)

    def test_the_installed_kernel_is_the_one_whose_facts_ship(self) -> None:
        for scheme in sglang_moe.SCHEMES:
            recorded = shipped("sglang", scheme)
            assert recorded is not None
            assert recorded.kernel == kernel_digest(SITE / SGLANG.path, SGLANG.function)
