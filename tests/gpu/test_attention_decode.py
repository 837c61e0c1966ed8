"""Decoding attention on a GPU against float64: every block, several numbers of splits. Each check runs in a child with
a time limit, for a wrong barrier hangs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.attention_decode.space import DecodeConfig, violations  # noqa: E402
from warpplan.kernels.attention_decode.work import structures  # noqa: E402
from warpplan.kernels.attention_fwd.space import HEAD_DIMS  # noqa: E402
from warpplan.kernels.isolate import run_isolated  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

SILENCE_S = 120.0
"""Between two cases; the first starts torch and compiles the kernels."""
CONFIGS = (
    DecodeConfig(64, 64, 8, splits=1),
    DecodeConfig(64, 128, 4, False, splits=5),
    DecodeConfig(128, 128, 3, splits=1),
    DecodeConfig(128, 128, 3, splits=16),
    DecodeConfig(128, 64, 6, False, splits=128),
    DecodeConfig(256, 64, 3, splits=7),
)
SPACE = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "bfloat16", H200)]


def run(monkeypatch, config, dtype):
    assert not violations(config, dtype, H200)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    result = run_isolated("attention_decode_checks:check_all", (asdict(config), dtype), time_limit_s=SILENCE_S)
    assert result.status == "ok", f"{result.status}: {result.reason}, after {len(result.items)} cases"
    assert result.items
    assert not [wrong for wrong in result.items if wrong]


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_right(monkeypatch, config):
    run(monkeypatch, config, "bfloat16")


def test_right_in_float16(monkeypatch):
    run(monkeypatch, CONFIGS[3], "float16")


@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE, ids=repr)
def test_the_whole_space(monkeypatch, config):
    run(monkeypatch, replace(config, splits=4), "bfloat16")
