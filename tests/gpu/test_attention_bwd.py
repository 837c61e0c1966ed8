"""Attention backward on a GPU against float64: every scheme, mask and head size. Each check runs in a child with a time
limit, for a wrong barrier hangs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.attention_bwd.candidates import structures  # noqa: E402
from warpplan.kernels.attention_bwd.space import HEAD_DIMS, AttentionBwdConfig, violations  # noqa: E402
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
    AttentionBwdConfig(64, 128, 64, 4),
    AttentionBwdConfig(64, 128, 64, 2, dq="separate", head_group=8),
    AttentionBwdConfig(64, 64, 64, 4, ds_in_registers=False, ctas_per_sm=2),
    AttentionBwdConfig(64, 64, 64, 2, dq="separate", persistent=False),
    AttentionBwdConfig(128, 128, 64, 2),
    AttentionBwdConfig(128, 128, 64, 2, ds_in_registers=False, head_group=32, persistent=False),
    AttentionBwdConfig(128, 128, 64, 4, dq="separate"),
    AttentionBwdConfig(128, 64, 64, 4, ds_in_registers=False),
)
PACKED = tuple(replace(config, packed=True) for config in CONFIGS[:7])
SPACE = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "bfloat16", H200)]


def run(monkeypatch, check, *arguments):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    result = run_isolated(f"attention_bwd_checks:{check}", arguments, time_limit_s=SILENCE_S)
    assert result.status == "ok", f"{result.status}: {result.reason}, after {len(result.items)} cases"
    assert result.items
    assert not [wrong for wrong in result.items if wrong]


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_right(monkeypatch, config):
    assert not violations(config, "bfloat16", H200)
    run(monkeypatch, "check_all", asdict(config), "bfloat16")


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[4], CONFIGS[6]], ids=repr)
def test_right_in_float16(monkeypatch, config):
    run(monkeypatch, "check_all", asdict(config), "float16")


@pytest.mark.parametrize("config", PACKED, ids=repr)
def test_packed_sequences(monkeypatch, config):
    assert not violations(config, "bfloat16", H200)
    run(monkeypatch, "check_packed", asdict(config), "bfloat16")


def test_packed_sequences_in_float16(monkeypatch):
    run(monkeypatch, "check_packed", asdict(PACKED[4]), "float16")


@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE, ids=repr)
def test_the_whole_space(monkeypatch, config):
    run(monkeypatch, "check_heads", asdict(config), "bfloat16")
