"""The corpus of kernels: its descriptions fit its kernels, and the tool that plans it, end to end for a few."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the corpus is Triton kernels")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_corpus
import bench_partitions
import corpus_entry
import corpus_play
import corpus_registry
import corpus_soak
import plan_corpus
from corpus_entry import STYLES, Box, Entry, Problem, Stride
from triton.backends.compiler import GPUTarget

ROOT = Path(__file__).parents[1]
ENTRIES = corpus_registry.entries()
every_entry = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


def test_the_corpus_has_every_style_and_most_kernels_have_a_product() -> None:
    assert len(ENTRIES) >= 60
    assert {entry.style for entry in ENTRIES.values()} >= set(STYLES) - {corpus_entry.BLOCK}
    assert sum(entry.has_dot for entry in ENTRIES.values()) >= 50
    assert Counter(entry.family for entry in ENTRIES.values())["norm"] >= 5


def test_its_folders_are_small_and_every_module_is_listed() -> None:
    corpus = ROOT / "benchmarks" / "corpus"
    files = [path for path in corpus.rglob("*.py") if path.stem not in ("__init__", "products")]
    names = {".".join(path.relative_to(corpus).with_suffix("").parts) for path in files}
    assert names == set(corpus_registry.MODULES)
    assert max(Counter(path.parent for path in files).values()) + 1 <= 12
    assert all(ast.get_docstring(ast.parse(path.read_text())) for path in files)


def check(entry: Entry, problem: Problem) -> None:
    """What is described fits the kernel's parameters, under every configuration."""
    names = [parameter.name for parameter in entry.jit.params]
    given = corpus_entry.resolved(problem)
    assert set(given) <= set(names)
    assert set(problem.constants) <= set(names)
    assert set(problem.outputs) <= set(problem.tensors)
    for value in problem.arguments.values():
        tensor = value.tensor if isinstance(value, Stride | Box) else value
        assert not isinstance(tensor, str) or tensor in problem.tensors
    for config in entry.configs:
        constants = entry.constants(problem, config)
        assert set(config.kwargs) <= set(names)
        for parameter in entry.jit.params:
            assert parameter.name in (constants if parameter.is_constexpr else given)
        assert all(1 <= size < 2**31 for size in problem.grid(constants))
        assert len(problem.grid(constants)) <= 3
        made = corpus_entry.source(entry, problem, config)
        assert list(made.signature) == names


@every_entry
def test_a_description_fits_its_kernel_at_the_benchmarks_sizes(entry: Entry) -> None:
    assert len({str(config) for config in entry.configs}) == len(entry.configs) >= 2
    problem = entry.problem()
    check(entry, problem)
    assert bool(problem.flops) == entry.has_dot
    for name, size in entry.choices.items():
        assert name in entry.sizes, size


@every_entry
def test_a_description_fits_its_kernel_at_each_size_of_the_soak(entry: Entry) -> None:
    for name, choices in entry.choices.items():
        for size in (choices[0], choices[-1]):
            for dtype in entry.dtypes:
                check(entry, entry.problem({**entry.smallest, name: size}, dtype))


@every_entry
def test_gaps_between_rows_reach_the_kernel_as_strides(entry: Entry) -> None:
    problem = entry.problem(entry.smallest)
    padded = problem.padded(dict.fromkeys(entry.padded, 8))
    before, after = corpus_entry.resolved(problem), corpus_entry.resolved(padded)
    for name in entry.padded:
        assert any(
            after[argument] != before[argument]
            for argument, value in problem.arguments.items()
            if isinstance(value, Stride) and value.tensor == name
        )


def test_a_kernel_compiles_from_its_description_with_what_the_launcher_would_know() -> None:
    entry = ENTRIES["gemm_wrapped_rows"]
    made = corpus_entry.source(entry, entry.problem({"M": 100, "N": 4096, "K": 1}), entry.configs[0])
    names = entry.jit.arg_names
    assert made.signature["stride_ak"] == "constexpr"
    assert made.signature["K"] == "constexpr"
    assert (names.index("N"),) in made.attrs
    assert (names.index("M"),) not in made.attrs
    optional = ENTRIES["w8a8_token_scaled"]
    found = corpus_entry.source(optional, optional.problem(), optional.configs[0])
    assert found.constants[(optional.jit.arg_names.index("bias_ptr"),)] is None


def test_heuristics_are_part_of_the_constants() -> None:
    entry = ENTRIES["gemm_split_k_atomic"]
    config = entry.configs[0]
    even, odd = (entry.constants(entry.problem({"K": k}), config)["EVEN_K"] for k in (1024, 1000))
    assert (even, odd) == (True, False)


REPRESENTATIVE = ("gemm_masked", "gemm_host_batched", "attention_backward_delta")


def test_a_compiled_kernel_is_launched_with_three_dimensions_whatever_its_grid_has() -> None:
    for index in range(len(bench_partitions.KERNELS)):
        entry, problem, config = bench_partitions.prepared(index)
        constants = entry.constants(problem, config)
        grid = tuple(problem.grid(constants))
        whole = corpus_entry.whole_grid(entry, problem, constants)
        assert len(whole) == 3
        assert whole[: len(grid)] == grid
        assert set(whole[len(grid) :]) <= {1}


@pytest.mark.parametrize("grid", [(), (2, 3, 4, 5), (7, 0)])
def test_a_grid_that_no_launch_has_is_named(grid: tuple[int, ...]) -> None:
    entry = ENTRIES["fused_moe_up"]
    problem = replace(entry.problem(), grid=lambda constants: grid)
    with pytest.raises(ValueError, match=rf"grid of fused_moe_up: {re.escape(str(grid))}, expected one to three"):
        corpus_entry.whole_grid(entry, problem, entry.constants(problem, entry.configs[0]))


def test_a_few_kernels_go_through_the_tool_and_every_refusal_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan_corpus.py", *REPRESENTATIVE, "--configs", "1", "--workers", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    plan_corpus.main()
    written = json.loads((tmp_path / plan_corpus.NAME).read_text())
    rows = {row["kernel"]: row for row in written["rows"]}
    assert set(rows) == set(REPRESENTATIVE)
    assert rows["gemm_host_batched"]["status"] == "planned"
    assert rows["gemm_host_batched"]["gain"] > 1
    assert rows["gemm_host_batched"]["waits_played"] > 100
    assert rows["gemm_host_batched"]["computes"] == "equal"
    assert written["summary"]["computes"] == {"equal": sum(row["status"] == "planned" for row in rows.values())}
    pointers = rows["gemm_masked"]
    assert pointers["status"] == "planned" or pointers["line"].startswith("gemm_pointers.py:")
    assert rows["attention_backward_delta"]["status"] == "refused"
    assert written["summary"]["kernels"] == 3
    assert written["summary"]["defects"] == []
    printed = capsys.readouterr().out
    assert "planned or no gain, of 2 with a product" in printed


@pytest.mark.parametrize("name", ["gemm_masked", "fused_moe_down", "attention_pointers", "w8a8_block_scaled"])
def test_what_is_played_is_small_and_the_code_that_is_planned(name: str) -> None:
    entry = ENTRIES[name]
    for config in entry.configs[:2]:
        sizes = corpus_play.small_sizes(entry, config)
        before, after = (corpus_entry.source(entry, entry.problem(s), config) for s in (None, sizes))
        assert corpus_play.key(before) == corpus_play.key(after)
        assert entry.problem(sizes).bytes < entry.problem().bytes / 2


def test_a_lowered_kernel_that_is_wrong_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpplan.kernels.compiler.inspection import finished
    from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

    finish = finished.finished_text

    def without_the_first_wait(*arguments: Any) -> str:
        lines = finish(*arguments).split("\n")
        lines.pop(next(i for i, text in enumerate(lines) if "ttng.wait_barrier" in text))
        return "\n".join(lines)

    entry, target = ENTRIES["gemm_host_batched"], GPUTarget("cuda", 90, 32)
    monkeypatch.setattr(finished, "finished_text", without_the_first_wait)
    found = corpus_play.computes(entry, 0, HopperStrategy(1, (3,), 8), target, seeds=(0,))
    assert found["computes"].startswith(corpus_play.WRONG)
    assert "gemm_descriptors.py:" in found["computes"]


def test_one_consumer_of_more_warps_than_the_kernel_is_lowered_beside_a_producer_that_copies() -> None:
    """The producer keeps four of the eight warps of layouts that are linear for products of 16 rows."""
    from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

    entry, target = ENTRIES["fused_moe_down"], GPUTarget("cuda", 90, 32)
    number = next(i for i, c in enumerate(entry.configs) if c.num_warps == 4 and c.kwargs["BLOCK_K"] == 128)
    found = corpus_play.computes(entry, number, HopperStrategy(1, (6,), 8, 1, 1, 1), target, seeds=(0,))
    assert found["computes"] == "equal"


def test_a_row_has_what_was_tried_of_its_list_and_why_it_failed(tmp_path: Path) -> None:
    from warpplan.kernels.compiler.launching.autotuned.list_decisions import (
        ListDecision,
        ListFolder,
        ListSituation,
        Tried,
    )
    from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

    assert bench_corpus.decided(tmp_path) == {"tried": [], "decided": []}
    scheme = HopperStrategy(2, (3,))
    situation = ListSituation("a.gemm", "abc", "(4096,)", ("BM: 64", "BM: 128"), "NVIDIA H200", "570.1", "3.6.0", "0.2")
    tried = Tried(1, scheme, None, "computes something else"), Tried(0, None, 14.0)
    ListFolder(tmp_path).settle(ListDecision(situation, 0, None, "", tried))
    found = bench_corpus.decided(tmp_path)
    assert found["tried"] == [
        {"number": 1, "scheme": str(scheme), "us": None, "reason": "computes something else"},
        {"number": 0, "scheme": None, "us": 14.0, "reason": ""},
    ]
    assert found["decided"] == ["a.gemm: (BM: 64), as it is, 1.00x as fast as the list's best as it is"]


def row(kernel: str, status: str, **more: Any) -> dict[str, Any]:
    entry = ENTRIES[kernel]
    known = {"operation": "tt.load", "line": "a.py:1"} if status == "refused" else {}
    return {"kernel": kernel, "style": entry.style, "has_dot": entry.has_dot, "status": status, **known, **more}


def test_a_kernel_counts_once_by_its_best_configuration_and_a_defect_outweighs_it() -> None:
    rows = [
        row("gemm_masked", "refused"), row("gemm_masked", "planned"), row("gemm_batched", "no gain"),
        row("gemm_int8", "refused", operation="", line=""), row("gemm_host_batched", "planned"),
        row("gemm_host_batched", "crash"), row("softmax_fused", "refused"),
    ]  # fmt: skip
    summary = plan_corpus.summarised(rows)
    assert summary["with_dot_by_style"]["affine pointer"] == {"planned": 1, "no gain": 1, "refused": 1}
    assert summary["with_dot"] == 4
    assert summary["with_dot_planned_or_no_gain"] == 0.5
    assert summary["defects"] == ["gemm_host_batched"]
    assert summary["refusals_without_operation_or_line"] == ["gemm_int8"]
    assert plan_corpus.table(summary).count("\n") == len(STYLES)


def test_configurations_are_the_first_and_the_largest() -> None:
    entry = ENTRIES["w8a16"]
    first, largest = plan_corpus.configurations(entry, 2)
    assert first == 0
    assert entry.configs[largest].kwargs["BLOCK_M"] * entry.configs[largest].kwargs["BLOCK_N"] == 128 * 128
    assert plan_corpus.configurations(entry, 1) == [0]


def test_an_exception_in_a_child_is_a_row() -> None:
    (found,) = plan_corpus.plan_jobs([("no such kernel", 0)])
    assert found["status"] == "error"
    assert "KeyError" in found["reason"]


def test_a_seed_says_what_the_soak_runs_and_seeds_reach_most_of_the_corpus() -> None:
    cases = [corpus_soak.case_of(seed, list(ENTRIES)) for seed in range(600)]
    assert cases == [corpus_soak.case_of(seed, sorted(ENTRIES)) for seed in range(600)]
    assert len({case["kernel"] for case in cases}) > 0.95 * len(ENTRIES)
    for case in cases[:100]:
        entry = ENTRIES[case["kernel"]]
        check(entry, entry.problem(case["sizes"], case["dtype"]).padded(case["pads"]))
        assert case["config"] < len(entry.configs)


def test_rows_of_the_gpu_compare_with_planned() -> None:
    side = {"planned": {"us": 100.0}, "autotuned": {"us": 130.0}, "cublas": {"us": 98.0}}
    times = {"cold": side, "warm": {**side, "planned": {"us": 65.0}}}
    result = {"status": "ok", "times": times, "errors": {}, "failed": {}, "chosen": {}, "overwritten": []}
    made = bench_corpus.compared("gemm_masked", result)
    assert made["over"] == {"autotuned": 1.3, "cublas": 0.98}
    assert made["over_warm"]["autotuned"] == 2.0
    lost = bench_corpus.compared("gemm_batched", {"status": "hang", "reason": "busy"})
    wrong = bench_corpus.compared("gemm_int8", {**result, "failed": {"planned": "error 1"}})
    summary = bench_corpus.summarised([made, lost, wrong])
    assert summary["with_dot_over_autotuned"] == 1.3
    assert summary["pointer_gemm_over_cublas"] == 0.98
    assert summary["not_compared"] == ["gemm_batched", "gemm_int8"]
    beside = {"waiting_s": 20.0, "settled_s": 9.0, "us_at_first": 30.0, "us_settled": 20.0}
    first = bench_corpus.summarised_first(
        [
            {
                "kernel": "a",
                "planned_s": 5.0,
                "autotuned_s": 10.0,
                "waiting_s": 20.0,
                "planned_again_s": 0.2,
                "listed": 7,
            }
            | beside,
            {"kernel": "b", "planned_s": 20.0, "autotuned_s": 10.0, "planned_again_s": 0.3, "listed": 2},
            {"kernel": "c", "planned_s": None},
        ]
    )
    assert (first["first_launch_over_autotune"], first["worst"], first["waiting_over_autotune"]) == (1.0, 2.0, 2.0)
    assert (first["later_process_s"], first["configurations"], first["kernels"]) == (0.3, 9, 2)
    assert (first["settled_s"], first["not_settled"], first["gain_when_settled"]) == (9.0, ["b"], 1.5)
    assert corpus_soak.summarised_soak([{"status": "ok"}, {"status": "wrong"}, {"status": "ok"}]) == {
        "ok": 2,
        "wrong": 1,
    }
