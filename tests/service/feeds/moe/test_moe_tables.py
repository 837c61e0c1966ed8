"""Routed layers' tables where no consumer is installed: shapes, routing, choice, files, refusals."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.errors import InvalidInput, StoreError, UnknownName
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded
from warpplan.service.feeds import FeedRequest, sglang_moe, vllm_moe
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.moe.exported_layers import layer_difference, layers_of
from warpplan.service.feeds.moe.model_shapes import MODELS, MoeLayer, layer_of, model_named
from warpplan.service.feeds.moe.moe_choice import MoeChooser
from warpplan.service.feeds.moe.moe_feed import TESTED_TRITONS
from warpplan.service.feeds.moe.moe_launch import launch_facts, up_product
from warpplan.service.feeds.moe.routing import routed, unsorted
from warpplan.service.feeds.moe.table_files import (
    TableKey,
    WrittenTable,
    difference,
    provenance_path,
    record,
    recorded,
    write_table,
)
from warpplan.service.feeds.moe_facts.installed_consumer import (
    InstalledConsumer,
    find_consumer,
    require_tested,
    version_in,
)
from warpplan.service.feeds.moe_facts.moe_kernels import VLLM, MoeTile
from warpplan.service.feeds.moe_facts.moe_schemes import SCHEMES, scheme_named
from warpplan.service.feeds.moe_facts.shipped_facts import kernel_digest, shipped
from warpplan.service.feeds.moe_facts.tile_facts import kernel_source
from warpplan.service.feeds.moe_facts.tuning_space import TOKENS, MoeConfig, groups_by_preference, tiles, valid

ROOT = Path(__file__).parents[4]
PROFILE = embedded("NVIDIA H200")
MIXTRAL = {"model": "mixtral-8x7b", "tp": "8"}


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_installed(module_monkeypatch: pytest.MonkeyPatch) -> None:
    module_monkeypatch.setattr("warpplan.service.feeds.moe.moe_feed.find_consumer", lambda name, where: None)
    module_monkeypatch.setattr("warpplan.service.feeds.machine_here.machine_here", Machine)


@pytest.fixture(scope="module")
def module_monkeypatch() -> object:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def request(out: Path, **settings: str) -> FeedRequest:
    return FeedRequest(out, "NVIDIA H200", PROFILE, settings=settings, planner="test")


class TestModels:
    def test_a_name_or_its_sizes_give_one_layer(self) -> None:
        spelt = model_named("experts=256 hidden=7168 intermediate=2048 top-k=8")
        block = SCHEMES["fp8_w8a8_block"]
        assert layer_of(spelt, 8, block).sizes == layer_of(MODELS["deepseek-v3"], 8, block).sizes == (256, 7168, 256, 8)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("experts=8 hidden=16 intermediate=16", "lacks top-k"),
            ("experts=8 hidden=16 intermediate=16 top-k=9", "more than the 8 experts"),
            ("experts=8 hidden=0 intermediate=16 top-k=1", "from 1 to"),
            ("experts=8 hidden=16 intermediate=16 top-k=1 colour=3", "has 'colour'"),
            ("experts=64 experts=32 hidden=16 intermediate=16 top-k=1", "gives experts twice: 64 and 32"),
            ("experts=8 hidden=16 intermediate=² top-k=1", "intermediate=²: expected a whole number"),
            (f"experts=8 hidden=16 intermediate={'9' * 5000} top-k=1", "expected a whole number from 1 to"),
        ],
    )
    def test_sizes_that_are_no_layer_are_refused(self, text: str, told: str) -> None:
        with pytest.raises(InvalidInput, match=told):
            model_named(text)

    def test_an_unknown_model_lists_those_that_ship(self) -> None:
        with pytest.raises(UnknownName, match="deepseek-v3"):
            model_named("gpt-2")

    @pytest.mark.parametrize("tp", [3, 0])
    def test_experts_that_do_not_divide_are_refused(self, tp: int) -> None:
        with pytest.raises(InvalidInput, match="do not divide"):
            layer_of(MODELS["deepseek-v3"], tp, SCHEMES["bfloat16"])

    def test_a_share_that_is_no_whole_quantisation_block_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="quantisation block's 128"):
            layer_of(MODELS["deepseek-v3"], 32, SCHEMES["fp8_w8a8_block"])

    def test_every_model_gives_a_layer_for_each_of_its_consumers_schemes(self) -> None:
        for model in MODELS.values():
            assert 1 <= model.top_k <= model.experts
            assert layer_of(model, 1, SCHEMES["bfloat16"]).hidden % 64 == 0
            assert model.scheme in SCHEMES
        assert len(MODELS) >= 20


class TestRouting:
    @pytest.mark.parametrize(("tokens", "experts", "top_k", "block"), [(7, 16, 2, 4), (64, 8, 2, 16), (300, 60, 4, 32)])
    def test_expected_blocks_are_those_of_random_routing(
        self, tokens: int, experts: int, top_k: int, block: int
    ) -> None:
        rng = np.random.default_rng(0)
        blocks, hit = [], []
        for _ in range(300):
            chosen = rng.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)[:, :top_k]
            counts = np.bincount(chosen.ravel(), minlength=experts)
            blocks.append(np.sum(-(-counts // block)))
            hit.append(np.count_nonzero(counts))
        found = routed(tokens, experts, top_k, block)
        assert found.row_blocks == pytest.approx(np.mean(blocks), rel=0.03)
        assert found.hit == pytest.approx(np.mean(hit), rel=0.03)

    @given(
        tokens=st.integers(1, 4096), experts=st.integers(1, 512), share=st.floats(0, 1),
        block=st.sampled_from([16, 32, 64, 128, 256]),
    )  # fmt: skip
    @settings(deadline=None)
    def test_blocks_hold_all_rows_and_fit_the_grid(self, tokens: int, experts: int, share: float, block: int) -> None:
        top_k = max(1, round(share * experts))
        found = routed(tokens, experts, top_k, block)
        assert found.row_blocks * block >= found.rows * (1 - 1e-9)
        assert found.row_blocks <= found.launched + 1e-6
        assert 0 < found.hit <= experts + 1e-9

    def test_shared_experts_take_every_token(self) -> None:
        found = routed(100, 9, 3, 16, shared=1)
        without = routed(100, 8, 2, 16)
        assert found.hit == pytest.approx(without.hit + 1)
        assert found.row_blocks == pytest.approx(without.row_blocks + 7)

    def test_unsorted_rows_have_a_block_each(self) -> None:
        found = unsorted(3, 256, 8)
        assert found.row_blocks == found.rows == 24
        assert 8 < found.hit < 24


class TestSpace:
    def test_a_step_along_k_stays_within_one_quantisation_block(self) -> None:
        block = SCHEMES["fp8_w8a8_block"]
        assert {tile.k for tile in tiles(block)} == {64, 128}
        assert not valid(block, MoeTile(64, 128, 256, 4))
        assert len(tiles(SCHEMES["bfloat16"])) == 120

    def test_of_equal_groups_the_one_that_holds_an_experts_blocks_comes_first(self) -> None:
        assert groups_by_preference(1.0)[0] == 1
        assert groups_by_preference(12.0)[0] == 16
        assert groups_by_preference(40.0)[0] == 64


class TestChoice:
    @pytest.mark.parametrize("consumer", ["vllm", "sglang"])
    def test_facts_of_each_scheme_ship_for_every_tile(self, consumer: str) -> None:
        schemes = {"vllm": vllm_moe.SCHEMES, "sglang": sglang_moe.SCHEMES}[consumer]
        for name in schemes:
            found = shipped(consumer, name)
            assert found is not None
            assert set(found.tiles) == set(tiles(SCHEMES[name]))
            assert all(len(tile.facts.loops) == 1 for tile in found.tiles.values())

    def test_the_chosen_configuration_is_the_fastest_that_fits(self) -> None:
        scheme = SCHEMES["fp8_w8a8_block"]
        chooser = MoeChooser(kernel_source(VLLM, scheme, None), scheme, PROFILE, H200, sorts_always=False)
        layer = layer_of(MODELS["deepseek-v3"], 8, scheme)
        for tokens in (1, 64, 4096):
            every = list(chooser.predicted(layer, tokens))
            best = chooser.best(layer, tokens)
            assert best.total_us == pytest.approx(min(p.total_us for p in every), abs=1e-3)
            shared = best.config.stages * (best.config.tile.m + best.config.tile.n) * best.config.tile.k
            assert shared <= H200.smem_bytes_per_block

    def test_more_tokens_take_longer(self) -> None:
        scheme = SCHEMES["bfloat16"]
        chooser = MoeChooser(kernel_source(VLLM, scheme, None), scheme, PROFILE, H200, sorts_always=False)
        layer = MoeLayer("", 8, 4096, 1792, 2)
        times = [chooser.best(layer, tokens).total_us for tokens in (1, 16, 256, 4096)]
        assert times == sorted(times)

    def test_a_pair_shares_its_row_blocks(self) -> None:
        scheme = SCHEMES["bfloat16"]
        chooser = MoeChooser(kernel_source(VLLM, scheme, None), scheme, PROFILE, H200, sorts_always=True)
        layer = MoeLayer("", 8, 4096, 1792, 2)
        for tokens in (4, 1024):
            pair, one = chooser.best_pair(layer, tokens), chooser.best(layer, tokens)
            assert pair.up.tile.m == pair.down.tile.m
            assert pair.up_us + pair.down_us <= one.total_us + 1e-6


class TestLaunch:
    UP = up_product(MoeLayer("", 8, 4096, 7168, 2))

    def dram_bytes(self, scheme: str, tile: MoeTile, group: int = 16, tokens: int = 64) -> float:
        found = SCHEMES[scheme]
        facts = kernel_source(VLLM, found, None).tiles[tile].facts
        blocks = routed(tokens, 8, 2, tile.m)
        return launch_facts(self.UP, found, MoeConfig(tile, group, 3), blocks, facts, H200).dram_bytes

    def test_runs_of_half_a_cache_line_are_read_more_slowly(self) -> None:
        short, line = (self.dram_bytes("fp8_w8a8_block", MoeTile(16, 64, k, 4)) for k in (64, 128))
        assert 1.3 < short / line < 1.6
        line, long = (self.dram_bytes("bfloat16", MoeTile(16, 64, k, 4)) for k in (64, 128))
        assert 1.0 < line / long < 1.1

    def test_an_experts_groups_read_its_weights_again_unless_l2_holds_them(self) -> None:
        tile, tokens = MoeTile(64, 256, 64, 8), 1024  # Four row blocks an expert, 56 columns: two groups at once.
        one, apart = (self.dram_bytes("bfloat16", tile, group, tokens) for group in (64, 1))
        assert 1.5 < apart / one < 3.0


def test_a_kernel_has_one_digest_in_every_python(tmp_path: Path) -> None:
    """As Python 3.10 to 3.13 computed it: ``ast.dump`` is another text in 3.12 and in 3.13."""
    lines = (
        "def kernel(a_ptr, BLOCK: tl.constexpr = 16):",
        '    """Doc."""',
        "    # said",
        "    for k in range(0, BLOCK):",
        "        a = tl.load(a_ptr + k, mask=k < 3, other=0.0)",
    )
    (tmp_path / "k.py").write_text("\n".join(lines) + "\n")
    assert kernel_digest(tmp_path / "k.py", "kernel") == "2a26dde6dbf69725"
    (tmp_path / "k.py").write_text("\n".join(lines).replace("    # said\n", "").replace("k < 3", "(k<3)"))
    assert kernel_digest(tmp_path / "k.py", "kernel") == "2a26dde6dbf69725"
    (tmp_path / "k.py").write_text("\n".join(lines).replace("k < 3", "k < 4"))
    assert kernel_digest(tmp_path / "k.py", "kernel") not in ("2a26dde6dbf69725", "")


class TestFiles:
    def test_a_table_is_replaced_in_one_step_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        path = tmp_path / "configs" / "E=8,N=64,device_name=X.json"
        write_table(path, {1: {"BLOCK_SIZE_M": 16}})
        write_table(path, {1: {"BLOCK_SIZE_M": 32}, 2: {"BLOCK_SIZE_M": 64}})
        assert json.loads(path.read_text()) == {"1": {"BLOCK_SIZE_M": 32}, "2": {"BLOCK_SIZE_M": 64}}
        assert os.listdir(path.parent) == [path.name]

    def test_a_folder_that_cannot_be_written_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="cannot write"):
            vllm_moe.export(request(tmp_path / "file", **MIXTRAL))

    def test_provenance_of_both_consumers_is_kept_apart_and_added_to(self, tmp_path: Path) -> None:
        vllm_moe.export(request(tmp_path, **MIXTRAL))
        vllm_moe.export(request(tmp_path, model="mixtral-8x7b", tp="4"))
        found = recorded(tmp_path, "vllm")
        assert len(found) == 2
        (one, _) = found.values()
        assert set(one.provenance) >= {"consumer version", "kernel", "triton", "profile", "planner", "date", "device"}
        assert recorded(tmp_path, "sglang") == {}

    @pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"tables": ' * 100_000, "null", ""])
    def test_damaged_provenance_makes_every_table_foreign(self, tmp_path: Path, text: str) -> None:
        vllm_moe.export(request(tmp_path, **MIXTRAL))
        provenance_path(tmp_path, "vllm").write_text(text)
        report = vllm_moe.verify(request(tmp_path, **MIXTRAL))
        assert {e.reason.partition(",")[0] for e in report.entries} == {"not ours"}
        vllm_moe.export(request(tmp_path, **MIXTRAL))
        assert vllm_moe.verify(request(tmp_path, **MIXTRAL)).all_current

    def test_exports_at_one_time_all_have_their_provenance(self, tmp_path: Path) -> None:
        def export(number: int) -> None:
            for at in range(10):
                record(tmp_path, "vllm", {f"{number}-{at}": WrittenTable("", {})})

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(export, range(4)))
        assert len(recorded(tmp_path, "vllm")) == 40

    @pytest.mark.parametrize("consumer", [vllm_moe, sglang_moe])
    def test_a_table_that_was_tuned_by_hand_is_kept_beside_ours(self, tmp_path: Path, consumer: ModuleType) -> None:
        first = consumer.export(request(tmp_path, **MIXTRAL))
        paths = sorted({Path(entry.path) for entry in first.entries})
        for path in paths:
            path.write_text('{"1": {"BLOCK_SIZE_M": 16}}')
        report = consumer.export(request(tmp_path, **MIXTRAL))
        assert first.kept == ()
        assert [Path(kept).read_text() for kept in report.kept] == ['{"1": {"BLOCK_SIZE_M": 16}}'] * len(paths)
        assert [line for line in report.lines() if report.kept[0] in line]
        assert consumer.verify(request(tmp_path, **MIXTRAL)).all_current
        assert consumer.export(request(tmp_path, **MIXTRAL)).kept == ()

    def test_what_an_interrupted_export_has_written_needs_no_copy(self, tmp_path: Path) -> None:
        vllm_moe.export(request(tmp_path, **MIXTRAL))
        provenance_path(tmp_path, "vllm").unlink()
        assert vllm_moe.export(request(tmp_path, **MIXTRAL)).kept == ()
        assert vllm_moe.verify(request(tmp_path, **MIXTRAL)).all_current

    @pytest.mark.parametrize("consumer", [vllm_moe, sglang_moe])
    @pytest.mark.parametrize("text", ['{"1": 5}', '{"1": null}', '{"1": [16]}', "{}"])
    def test_a_table_without_configurations_is_a_miss(self, tmp_path: Path, consumer: ModuleType, text: str) -> None:
        for path in {e.path for e in consumer.export(request(tmp_path, **MIXTRAL)).entries}:
            Path(path).write_text(text)
        report = consumer.verify(request(tmp_path, **MIXTRAL))
        assert not any(e.hit for e in report.entries)
        assert {e.config for e in report.entries} == {None}
        assert "fails at its first launch" in report.entries[0].reason

    @pytest.mark.parametrize("consumer", [vllm_moe, sglang_moe])
    def test_tables_of_another_gpu_than_the_machines_are_a_miss(
        self, tmp_path: Path, consumer: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer.export(request(tmp_path, **MIXTRAL))
        for gpus, hits in ((("NVIDIA H200",), True), (("NVIDIA H100 80GB HBM3",), False)):
            here = Machine(gpus, "580.10")
            monkeypatch.setattr("warpplan.service.feeds.machine_here.machine_here", lambda here=here: here)
            report = consumer.verify(request(tmp_path, **MIXTRAL))
            assert {e.hit for e in report.entries} == {hits}
        assert "for NVIDIA H200, and the GPU here is NVIDIA H100 80GB HBM3: give that one" in report.entries[0].reason

    @pytest.mark.parametrize("consumer", [vllm_moe, sglang_moe])
    def test_tables_for_another_driver_are_a_miss_and_an_unknown_one_is_said(
        self, tmp_path: Path, consumer: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = Machine(("NVIDIA H200",), "580.10")
        unknown = "the driver that it was made for is not known, and here is 580.10"
        for told, current, why in (
            ("", False, unknown),
            ("580.10", True, ""),
            ("570.86", False, "driver 570.86, here"),
        ):
            settings = {**MIXTRAL, **({"driver": told} if told else {})}
            consumer.export(request(tmp_path / told, **settings))
            assert consumer.verify(request(tmp_path / told, **settings)).all_current
            with monkeypatch.context() as patch:
                patch.setattr("warpplan.service.feeds.machine_here.machine_here", lambda: here)
                report = consumer.verify(request(tmp_path / told, **MIXTRAL))
            assert report.all_current == current
            assert report.all_hit == (told != "570.86")
            assert why in report.entries[0].reason

    @pytest.mark.parametrize("consumer", [vllm_moe, sglang_moe])
    def test_a_table_that_nests_too_deeply_is_a_miss(self, tmp_path: Path, consumer: ModuleType) -> None:
        for path in {e.path for e in consumer.export(request(tmp_path, **MIXTRAL)).entries}:
            Path(path).write_text("[" * 100_000)
        report = consumer.verify(request(tmp_path, **MIXTRAL))
        assert not any(e.hit for e in report.entries)
        assert "the consumer fails on it (RecursionError" in report.entries[0].reason

    @pytest.mark.parametrize(
        ("title", "told"),
        [
            ("mixtral-8x7b tp=8 bfloat16", ""),
            ("experts=8 hidden=4096 intermediate=7168 top-k=2 tp=4 bfloat16", ""),
            (
                "experts=8,hidden=5120,intermediate=14336,top-k=1 tp=8 bfloat16",
                "hidden 5120, asked 4096; top-k 1, asked 2",
            ),
            ("a model of tomorrow tp=8 bfloat16", "a model of tomorrow tp=8 bfloat16"),
            ("mixtral-8x7b tp=3 bfloat16", "mixtral-8x7b tp=3 bfloat16"),
            ("dbrx tp=8 bfloat16", "dbrx tp=8 bfloat16"),
            ("", "not known"),
        ],
    )
    def test_a_title_tells_another_layer_from_the_same_one(self, title: str, told: str) -> None:
        asked = (layer_of(MODELS["mixtral-8x7b"], 8, SCHEMES["bfloat16"]), 0)
        assert layer_difference(title, asked, vllm_moe.SCHEMES, shares=False) == told

    def test_a_shared_expert_is_no_further_routed_one(self) -> None:
        scheme = SCHEMES["fp8_w8a8_block"]
        _, asked = layers_of(MODELS["deepseek-v3"], 8, scheme, shares=True)
        spelt = "experts=257 hidden=7168 intermediate=2048 top-k=9 tp=8 fp8_w8a8_block"
        told = layer_difference(spelt, asked, sglang_moe.SCHEMES, shares=True)
        assert told == "shared experts 0, asked 1"

    def test_the_nearest_table_says_which_key_differs(self, tmp_path: Path) -> None:
        asked = TableKey(256, 256, "NVIDIA_H200", "fp8_w8a8", (128, 128)).file_name(spaced=False)
        there = TableKey(256, 256, "NVIDIA_H100_80GB_HBM3", "fp8_w8a8", (128, 128)).file_name(spaced=False)
        write_table(tmp_path / there, {1: {}})
        told = difference(asked, tmp_path)
        assert "device_name NVIDIA_H100_80GB_HBM3, asked NVIDIA_H200" in told
        assert difference(asked, tmp_path / "none") == ""


class TestWithoutTheConsumer:
    def test_vllm_export_and_verify(self, tmp_path: Path) -> None:
        report = vllm_moe.export(request(tmp_path, **MIXTRAL))
        assert [e.shape[0] for e in report.entries] == list(TOKENS)
        verified = vllm_moe.verify(request(tmp_path, **MIXTRAL))
        assert verified.all_hit
        assert [e.config for e in verified.entries] == [e.config for e in report.entries]

    def test_sglang_export_and_verify(self, tmp_path: Path) -> None:
        report = sglang_moe.export(request(tmp_path, **MIXTRAL, triton="3.7.1"))
        assert {Path(e.path).parent.name for e in report.entries} == {"triton_3_7_1"}
        assert sglang_moe.verify(request(tmp_path, **MIXTRAL, triton="3.7.1")).all_hit
        assert not any(e.hit for e in sglang_moe.verify(request(tmp_path, **MIXTRAL)).entries)

    def test_an_older_plan_is_a_hit_with_a_remark(self, tmp_path: Path) -> None:
        report = vllm_moe.export(request(tmp_path, **MIXTRAL))
        path = Path(report.entries[0].path)
        table = json.loads(path.read_text())
        table["1"]["num_stages"] += 1
        digest = write_table(path, {int(k): v for k, v in table.items()})
        written = provenance_path(tmp_path, "vllm")
        plain = json.loads(written.read_text())
        plain["tables"][path.name]["sha256"] = digest
        written.write_text(json.dumps(plain))
        verified = vllm_moe.verify(request(tmp_path, **MIXTRAL))
        assert verified.all_hit
        assert verified.entries[0].reason == "not today's plan: an older one"
        assert verified.entries[1].reason == ""

    def test_int8_layers_of_vllm_cannot_be_told_from_bfloat16(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownName, match="int8_w8a8"):
            vllm_moe.export(request(tmp_path, **MIXTRAL, dtype="int8_w8a8_block"))
        assert scheme_named("float16", vllm_moe.SCHEMES).name == "bfloat16"

    def test_a_model_is_needed(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="needs --model"):
            sglang_moe.export(request(tmp_path))

    def test_a_triton_that_is_no_release_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="expected a release"):
            sglang_moe.export(request(tmp_path, **MIXTRAL, triton="../.."))

    @pytest.mark.parametrize("feed", [sglang_moe, vllm_moe])
    def test_a_triton_that_was_not_tested_is_refused(self, tmp_path: Path, feed: ModuleType) -> None:
        asked = request(tmp_path, **MIXTRAL, triton="3.99")
        for answer in (feed.export, feed.verify):
            with pytest.raises(
                InvalidInput, match=r"triton 3\.99 was not tested: .* Tested: 3\.6, .*3\.9\. Give --untested"
            ):
                answer(asked)
        assert not list(tmp_path.iterdir())
        assert feed.export(replace(asked, untested=True)).entries

    def test_tested_tritons_are_those_that_the_compile_matrix_has(self) -> None:
        tritons = re.search(r"^TRITONS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert tritons is not None
        assert [version.rpartition(".")[0] for version in tritons[1].split()] == list(TESTED_TRITONS)


def install(site: Path, metadata: str) -> None:
    """An empty vLLM 0.33.0 in the folder ``site``."""
    (site / "vllm").mkdir()
    (site / "vllm-0.33.0.dist-info").mkdir()
    (site / "vllm-0.33.0.dist-info" / "METADATA").write_text(metadata)


class TestInstalled:
    def test_a_folder_without_the_package_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="no installed vllm"):
            find_consumer("vllm", str(tmp_path))

    def test_the_packages_own_folder_will_do(self, tmp_path: Path) -> None:
        (tmp_path / "vllm").mkdir()
        info = tmp_path / "vllm-0.33.0+cu130.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0+cu130\n")
        found = find_consumer("vllm", str(tmp_path / "vllm"))
        assert found is not None
        assert found.site == tmp_path
        require_tested(found, vllm_moe.TESTED, untested=False)
        with pytest.raises(InvalidInput, match=r"was not tested.*1\.0"):
            require_tested(found, ("1.0",), untested=False)
        require_tested(found, ("1.0",), untested=True)

    def test_leftovers_of_other_packages_are_not_read(self, tmp_path: Path) -> None:
        install(tmp_path, "Name: vllm\nVersion: 0.33.0\n")
        (tmp_path / "~riton-3.6.0.dist-info").mkdir()
        (tmp_path / "broken-1.0.dist-info").mkdir()
        (tmp_path / "broken-1.0.dist-info" / "METADATA").write_bytes(b"\xff")
        found = find_consumer("vllm", str(tmp_path))
        assert found is not None
        assert found.version == "0.33.0"
        assert (version_in(tmp_path, "vllm"), version_in(tmp_path, "triton")) == ("0.33.0", None)

    @pytest.mark.parametrize("metadata", [b"Name: vllm\n", b"Name: vllm\nVersion: \xff\n", None])
    def test_a_version_that_is_not_written_is_told(self, tmp_path: Path, metadata: bytes | None) -> None:
        install(tmp_path, "")
        path = tmp_path / "vllm-0.33.0.dist-info" / "METADATA"
        path.unlink() if metadata is None else path.write_bytes(metadata)
        with pytest.raises(InvalidInput, match="does not say its version: its METADATA is damaged"):
            find_consumer("vllm", str(tmp_path))

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (None, f"no file .*{VLLM.path}: another version of the consumer than was tested has moved it"),
            ("", "has no Triton kernel fused_moe_kernel: another version of vllm than was tested"),
            (
                "import triton\n\n@triton.jit\ndef fused_moe_kernel(a_ptr, new_ptr):\n    pass\n",
                r"fused_moe_kernel is called otherwise than in the versions of vllm that were tested \(signature: ",
            ),
        ],
    )
    def test_a_kernel_that_moved_or_changed_is_told(self, tmp_path: Path, text: str | None, told: str) -> None:
        pytest.importorskip("triton")
        if text is not None:
            (tmp_path / VLLM.path).parent.mkdir(parents=True)
            (tmp_path / VLLM.path).write_text(text)
        with pytest.raises(InvalidInput, match=told):
            kernel_source(VLLM, scheme_named("bfloat16", SCHEMES), InstalledConsumer("vllm", "0.99.0", tmp_path))

    @pytest.mark.parametrize("consumer", [vllm_moe, sglang_moe])
    def test_a_reader_that_moved_is_no_fault_of_the_tables(
        self, tmp_path: Path, consumer: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer.export(request(tmp_path, **MIXTRAL))
        for path in (VLLM.path, sglang_moe.READER):
            (tmp_path / path).parent.mkdir(parents=True)
            (tmp_path / path).write_text("")
        feed = "warpplan.service.feeds.moe.moe_feed"
        moved = InstalledConsumer(consumer.TESTED[0], "0.99.0", tmp_path)
        monkeypatch.setattr(f"{feed}.find_consumer", lambda name, where: moved)
        monkeypatch.setattr(f"{feed}.kernel_source", lambda kernel, scheme, _: kernel_source(kernel, scheme, None))
        with pytest.raises(InvalidInput, match="has no get_moe_configs: another version of the consumer"):
            consumer.verify(replace(request(tmp_path, **MIXTRAL), untested=True))
