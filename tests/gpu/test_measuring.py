"""``warpplan measure`` and ``warpplan tune --measure`` with their own children on a GPU: every kernel's operands are
what it takes, and times are kept under this machine's name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

sys.path.insert(0, str(Path(__file__).parents[1] / "service" / "tuning"))
from tuned_product import ALL, KERNELS  # noqa: E402

from warpplan.kernels import registry  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402
from warpplan.service.cli.app import main  # noqa: E402
from warpplan.service.measuring.kernel_child import time_kernels  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_name() != H200.name, reason="needs an NVIDIA H200"
    ),
]
GROUPED = {"M": 1024, "N": 512, "K": 1024, "G": 8}
CASES = [
    ("gemm", {"M": 512, "N": 1024, "K": 2048}, "bfloat16"),
    ("gemm", {"M": 512, "N": 1024, "K": 2048, "layout": "tn"}, "float16"),
    *(("gemm", {"M": 512, "N": 1024, "K": 2048, "scales": s}, "float8_e4m3fn") for s in ("tensor", "row", "block")),
    ("gemm_bias_act", {"M": 512, "N": 1024, "K": 2048, "activation": "swiglu", "bias": "yes"}, "bfloat16"),
    ("gemm_bias_act", {"M": 512, "N": 1024, "K": 2048, "residual": "yes"}, "bfloat16"),
    *(
        ("grouped_gemm", {**GROUPED, "product": p, "sizes": "skewed"}, "bfloat16")
        for p in ("forward", "dgrad", "wgrad")
    ),
    *(("grouped_gemm", {**GROUPED, "scales": s}, "float8_e4m3fn") for s in ("row", "block")),
    ("vector_add", {"N": 1 << 20}, "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "dtype"), CASES, ids=str)
def test_every_kernel_can_be_measured(name: str, shape: dict[str, Any], dtype: str) -> None:
    kernel = registry.kernel(name)
    parsed = kernel.parse_shape(shape, dtype)
    first = kernel.rank(parsed, dtype, H200, embedded(H200.name), limit=2)
    jobs = [{"kernel": name, "shape": list(parsed), "dtype": dtype, "config": r.config.as_dict()} for r in first]
    started, *found = time_kernels(jobs)
    assert started == {"started": True}
    for ranked, result in zip(first, found, strict=True):
        assert "reason" not in result, result
        assert 0.3 < result["time_us"] / ranked.prediction.time_us < 3.0


def test_a_budget_is_spent_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shapes.csv").write_text("M,N,K\n512,1024,2048\n4096,4096,4096\n")
    words = ("measure", tmp_path / "shapes.csv", "--store", tmp_path / "store.sqlite", "--budget-s", 90, "--json")
    assert main([*map(str, words)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [m["status"] for m in found["measured"]].count("ok") >= 8
    assert main([*map(str, words), "--dry-run"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert all(row["measured_us"] for row in after["shapes"])


def test_somebodys_list_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(KERNELS)
    words = (f"{tmp_path / 'mine.py'}:product", *ALL, "--measure", "2", "--store", str(tmp_path / "store.sqlite"))
    assert main(["tune", *words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["shapes"]
    assert [r["measured"]["status"] for r in found["ranked"]] == ["ok", "ok"]
    assert found["answer"]["measured_us"] == min(r["measured"]["time_us"] for r in found["ranked"])
