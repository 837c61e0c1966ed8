"""Boxes beyond their tensor: what is read where, and that it compiles without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton")

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_tma_fill
from results_file import RESULTS

from warpplan.kernels.compile import compile_report, specialized
from warpplan.kernels.triton_compat import GluonASTSource, gl


def test_boxes_lie_inside_as_far_as_they_say() -> None:
    assert len(set(bench_tma_fill.BOXES)) == len(bench_tma_fill.BOXES)
    for box in bench_tma_fill.BOXES:
        assert 0 <= box.rows_inside <= box.rows
        assert 0 <= box.columns_inside <= box.columns
        # Columns are cut off by a descriptor of two dimensions alone.
        assert box.columns_inside == box.columns or not box.ragged


@pytest.mark.parametrize("ragged", [False, True])
def test_the_kernel_compiles(ragged: bool) -> None:
    block = [1, 1, 16, 64] if ragged else [64, 64]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    types = {"desc": f"tensordesc<bf16{block},{layout!r}>", "cycles": "*i64"}
    types |= dict.fromkeys(("row", "column", "end", "stride"), "i32")
    constants = {"COPIES": 64, "DEPTH": 4, "RAGGED": ragged, "SLOTS": (4, *block)}
    source = specialized(bench_tma_fill.copy_boxes, types, constants, [], source=GluonASTSource)
    assert compile_report(source, {"num_warps": 4}, 90, what="copies").clean


def test_recorded_boxes_are_those_of_the_benchmark() -> None:
    recorded_file = json.loads((RESULTS / "tma_fill_h100.json").read_text())
    rows = recorded_file["rows"]
    assert recorded_file["summary"] == bench_tma_fill.summary(rows)
    assert set(recorded_file["summary"]) == set(bench_tma_fill.NAMED)
    names = bench_tma_fill.Box.__dataclass_fields__
    recorded = {bench_tma_fill.Box(**{name: row[name] for name in names}) for row in rows}
    assert recorded <= set(bench_tma_fill.BOXES)
    assert all(row["cycles"] > 0 for row in rows)
