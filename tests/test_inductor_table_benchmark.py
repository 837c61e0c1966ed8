"""The benchmark of Inductor's table, as far as it goes without a GPU: products, what is read, rows, figures."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the lists of sizes lie beside Triton kernels")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_inductor_table
from bench_inductor_table import TILE, code_has_tile, judged, summarised, tasks, tile_of

DESCRIBED = (
    "ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, BLOCK_M=128, BLOCK_N=256, EVEN_K=True, GROUP_M=8, "
    "USE_FAST_ACCUM=False, num_stages=4, num_warps=8"
)
OURS = dict(zip(TILE, (128, 256, 64, 8, 8, 4), strict=True))
CODE = """
async_compile.triton('triton_tem_fused_mm_0', '''
@triton_heuristics.template(num_stages=4, num_warps=8, triton_meta={})
def triton_tem_fused_mm_0(arg_A, arg_B, out_ptr0):
    EVEN_K : tl.constexpr = True
    GROUP_M : tl.constexpr = 8
    BLOCK_M : tl.constexpr = 128
    BLOCK_N : tl.constexpr = 256
    BLOCK_K : tl.constexpr = 64
''')
"""
EXPORT = {"status": "ok", "tile": OURS, "predicted_us": 200.0, "export_seconds": 1.5}
CHOICES = [[128, 256, 64, 8, 8, 4, 250.0], [128, 128, 64, 8, 4, 3, 200.0], [64, 64, 32, 8, 4, 2, None]]


def measured(times: dict[str, float], **more: Any) -> dict[str, Any]:
    return {
        "status": "ok", "hit": True, "choices": CHOICES, "times": {name: {"us": us} for name, us in times.items()},
        "seconds": {"table": 3.0, "max_autotune": 12.0}, **more,
    }  # fmt: skip


TIMES = {"table": 200.0, "max_autotune": 190.0, "best_tile": 210.0, "cublas": 180.0}


def test_forty_different_products_are_drawn_alike_everywhere() -> None:
    assert len(set(tasks())) == 40
    assert Counter(map(bench_inductor_table.split, tasks())) == {"train": 20, "heldout": 20}
    assert tasks()[0] == (256, 4096, 1024, "nt")
    assert {layout for *_, layout in tasks()} == {"nt", "nn"}
    assert len({bench_inductor_table.folder_of(task) for task in tasks()}) == 40


def test_a_choice_is_read_from_its_description() -> None:
    assert tile_of("triton_mm_12", DESCRIBED) == tuple(OURS.values())
    assert tile_of("mm", "") is None
    assert tile_of("triton_mm_persistent_tma_3", DESCRIBED) is None
    assert tile_of("triton_mm_1", DESCRIBED.replace("GROUP_M=8", "")) is None


@pytest.mark.parametrize("name", TILE)
def test_code_with_another_tile_is_no_hit(name: str) -> None:
    assert code_has_tile(CODE, OURS) is True
    assert code_has_tile(CODE, {**OURS, name: 2 * OURS[name]}) is False
    assert code_has_tile(CODE, {**OURS, name: OURS[name] // 2}) is False


def test_code_that_calls_aten_is_no_hit_and_code_without_a_template_says_nothing() -> None:
    assert code_has_tile(CODE + "extern_kernels.mm(arg0_1, arg1_1, out=buf0)", OURS) is False
    assert code_has_tile("cpp_fused_add_0", OURS) is None


def test_a_row_compares_the_table_with_its_peers_and_by_inductors_clock() -> None:
    row = judged(tasks()[0], EXPORT, measured(TIMES))
    assert (row["chosen_us"], row["predicted_us"], row["split"]) == (200.0, 200.0, "train")
    assert row["over"] == {"max_autotune": 0.95, "best_tile": 1.05, "cublas": 0.9}
    assert (row["triton_best_us"], row["tile_us"], row["tile_over_best"]) == (200.0, 250.0, 0.8)
    assert tuple(row["best_tile"].values()) == (128, 128, 64, 8, 4, 3)


def test_a_tile_that_inductor_does_not_list_has_no_time_by_its_clock() -> None:
    row = judged(tasks()[0], EXPORT, measured(TIMES, choices=CHOICES[1:]))
    assert (row["triton_best_us"], row["tile_us"], row["tile_over_best"]) == (200.0, None, None)


@pytest.mark.parametrize("result", [measured(TIMES, hit=False), measured({**TIMES, "table": 1.0}, hit=False)])
def test_a_table_that_was_not_hit_counts_as_infinitely_slow(result: dict[str, Any]) -> None:
    row = judged(tasks()[0], EXPORT, result)
    assert row["chosen_us"] is None
    summary = summarised([row])
    assert (summary["hits"], summary["max_autotune_over_table"], summary["worst_cublas_over_table"]) == (0, 0.0, 0.0)
    assert summary["met"] == {"max_autotune_over_table": False}


def test_figures_are_of_each_split_and_failed_rows_are_listed() -> None:
    slower = {**TIMES, "max_autotune": 210.0}
    rows = [
        judged(tasks()[0], EXPORT, measured(TIMES)),
        judged(tasks()[-1], EXPORT, measured(slower)),
        judged(tasks()[1], EXPORT, {"status": "timeout", "reason": "silent for 300 s"}),
    ]
    summary = summarised(rows)
    assert summary["max_autotune_over_table"] == pytest.approx((0.95 * 1.05) ** 0.5, abs=1e-4)
    assert summary["by_split"]["train"]["max_autotune_over_table"] == 0.95
    assert summary["by_split"]["heldout"]["worst_max_autotune_over_table"] == 1.05
    assert (summary["table_seconds"], summary["max_autotune_seconds"], summary["export_seconds"]) == (6.0, 24.0, 3.0)
    assert summary["failed"] == [[bench_inductor_table.label(tasks()[1]), "silent for 300 s"]]
    assert summary["met"] == {"max_autotune_over_table": True}
    assert summarised([])["met"] == {"max_autotune_over_table": False}


def test_a_wrong_peer_is_left_out_of_its_own_mean_alone() -> None:
    without = {name: us for name, us in TIMES.items() if name != "best_tile"}
    summary = summarised(
        [judged(task, EXPORT, measured(t)) for task, t in zip(tasks(), (TIMES, without), strict=False)]
    )
    assert (summary["best_tile_over_table"], summary["cublas_over_table"]) == (1.05, 0.9)


def test_the_feed_writes_a_table_for_each_layout(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (no GPU)")
    for layout in ("nt", "nn"):
        row = bench_inductor_table.exported((16, 1024, 512, layout), tmp_path / layout)
        assert row["status"] == "ok"
        assert set(row["tile"]) == set(TILE)
        assert row["predicted_us"] > 0
