"""The three best plans of some shapes, as recorded: a change of the model, the space or the profile shows here.

Where the change is meant, `make golden` records them anew (UPDATE_GOLDEN=1 pytest tests/kernels/test_golden.py); read
the difference before you commit it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from warpplan.kernels.gemm.kernel import Gemm
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Profile

GOLDEN = Path(__file__).parent / "golden"
SHAPES = (
    (1, 4096, 4096),
    (16, 14336, 4096),
    (64, 8192, 8192),
    (128, 4096, 4096),
    (512, 8192, 4096),
    (777, 1111, 1000),
    (1024, 1024, 16384),
    (2048, 2048, 2048),
    (4096, 2049, 4096),
    (4096, 4096, 4096),
    (8192, 8192, 256),
    (8192, 8192, 8192),
)
BEST = 3


def path(shape: tuple[int, int, int]) -> Path:
    return GOLDEN / f"gemm_{'x'.join(map(str, shape))}_bfloat16_h200.json"


def plans(shape: tuple[int, int, int], profile: Profile) -> list[dict[str, Any]]:
    ranked = Gemm().rank(shape, "bfloat16", H200, profile, limit=BEST)
    return [
        {
            "config": r.config.as_dict(),
            "time_us": float(f"{r.prediction.time_us:.4g}"),
            "bound_by": r.prediction.bound_by,
        }
        for r in ranked
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_plans_are_as_recorded(shape, profile):
    found = plans(shape, profile)
    if os.environ.get("UPDATE_GOLDEN"):
        path(shape).write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")  # a plan a line
        pytest.skip(f"recorded {path(shape).name} anew")
    recorded = json.loads(path(shape).read_text())
    assert [plan["config"] for plan in found] == [plan["config"] for plan in recorded], "if this is meant: make golden"
    for new, old in zip(found, recorded, strict=True):
        # A digit more than is recorded: another platform's logarithm may round the last one the other way.
        assert new["time_us"] == pytest.approx(old["time_us"], rel=1.1e-3), "if this is meant: make golden"
        assert new["bound_by"] == old["bound_by"], "if this is meant: make golden"


def test_no_recorded_plan_is_left_over():
    assert {file.name for file in GOLDEN.iterdir()} == {path(shape).name for shape in SHAPES}
