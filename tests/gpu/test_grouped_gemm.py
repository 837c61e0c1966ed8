"""The grouped GEMM on a GPU: every scheme and product, to the bit. Each check runs in a child with a time limit, for a
wrong barrier hangs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.gemm.space import GemmConfig  # noqa: E402
from warpplan.kernels.grouped_gemm.space import violations  # noqa: E402
from warpplan.kernels.isolate import run_isolated  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

SILENCE_S = 120.0
"""Between two cases; the first starts torch and compiles the kernel."""
CONFIGS = (
    GemmConfig("single", 64, 256, 64, 4, 4),
    GemmConfig("single", 128, 256, 64, 8, 3),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=2),
    GemmConfig("cooperative", 192, 128, 64, 4, 4),
    GemmConfig("pingpong", 64, 256, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 4, epilogue_split=2, group_m=4),
    GemmConfig("pingpong", 64, 128, 128, 4, 3, epilogue_split=2, staging="ring"),
    GemmConfig("single", 64, 32, 128, 4, 3, ctas_per_sm=2),
    GemmConfig("cooperative", 256, 192, 64, 4, 3, epilogue_split=3),
    GemmConfig("pingpong", 128, 192, 64, 4, 4, epilogue_split=3),
    GemmConfig("cooperative", 256, 160, 64, 4, 3, epilogue_split=5),
    GemmConfig("pingpong", 64, 96, 64, 4, 6, epilogue_split=3),
)
FP8_CONFIGS = (
    GemmConfig("cooperative", 128, 256, 128, 4, 4, epilogue_split=2),
    GemmConfig("pingpong", 64, 256, 128, 4, 4, epilogue_split=2),
    GemmConfig("single", 64, 128, 256, 4, 3),
    GemmConfig("single", 128, 192, 128, 8, 5, epilogue_split=3),
    GemmConfig("cooperative", 128, 128, 128, 4, 6, promoted=True),
    GemmConfig("pingpong", 64, 128, 128, 4, 6, promoted=True),
    GemmConfig("single", 128, 64, 128, 8, 5, promoted=True),
)


def run(monkeypatch, check, *arguments):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    result = run_isolated(f"grouped_gemm_checks:{check}", arguments, time_limit_s=SILENCE_S)
    assert result.status == "ok", f"{result.status}: {result.reason}, after {len(result.items)} cases"
    assert result.items
    assert not [wrong for wrong in result.items if wrong]


@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_exact(monkeypatch, config, product):
    if found := violations(config, "bfloat16", H200, product):
        pytest.skip(found[0])
    run(monkeypatch, "check_product", asdict(config), product, "bfloat16")


@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
def test_exact_in_float16(monkeypatch, product):
    run(monkeypatch, "check_sizes", asdict(CONFIGS[2]), product, "float16")


@pytest.mark.parametrize("config", FP8_CONFIGS, ids=repr)
def test_scaled(monkeypatch, config):
    assert not violations(config, "float8_e4m3fn", H200)
    run(monkeypatch, "check_scaled", asdict(config))


def test_gradients(monkeypatch):
    run(monkeypatch, "check_gradients")
