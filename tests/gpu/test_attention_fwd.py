"""Attention forward on a GPU against float64: every scheme, mask and head size. Each check runs in a child with a time
limit, for a wrong barrier hangs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.attention_fwd.candidates import structures  # noqa: E402
from warpplan.kernels.attention_fwd.space import HEAD_DIMS, AttentionConfig, violations  # noqa: E402
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
    AttentionConfig(64, 3, 64, 128, 4),
    AttentionConfig(64, 3, 64, 128, 2, pingpong=True, head_group=8),
    AttentionConfig(64, 2, 128, 64, 3, lookahead=False, persistent=False),
    AttentionConfig(64, 2, 128, 64, 3, q_in_registers=True),
    AttentionConfig(128, 2, 64, 128, 2),
    AttentionConfig(128, 2, 64, 128, 3, pingpong=True, staging="q", head_group=32),
    AttentionConfig(128, 2, 64, 128, 2, q_in_registers=True, persistent=False),
    AttentionConfig(128, 3, 64, 64, 4, pingpong=True),
    AttentionConfig(128, 1, 64, 128, 2, lookahead=False),
    AttentionConfig(256, 2, 64, 64, 2, staging="q"),
    AttentionConfig(256, 2, 64, 64, 2, lookahead=False, staging="q", persistent=False),
    AttentionConfig(256, 1, 64, 64, 2),
)
PACKED = tuple(replace(config, packed=True) for config in CONFIGS[2:])
"""The first two, three consumers of 128 keys, have no registers left for them."""
EIGHT_BIT = (
    AttentionConfig(64, 3, 64, 128, 4),
    AttentionConfig(64, 3, 64, 128, 3, pingpong=True, head_group=8),
    AttentionConfig(64, 2, 128, 64, 4, q_in_registers=True),
    AttentionConfig(128, 2, 64, 128, 4),
    AttentionConfig(128, 2, 64, 128, 4, pingpong=True, head_group=32),
    AttentionConfig(128, 2, 64, 128, 2, q_in_registers=True, persistent=False),
    AttentionConfig(128, 3, 64, 64, 4, lookahead=False),
    AttentionConfig(256, 2, 64, 64, 4, q_in_registers=True),
    AttentionConfig(256, 2, 64, 128, 2, lookahead=False),
)
EIGHT_BIT_SPACE = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "float8_e4m3fn", H200)]
SPACE = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "bfloat16", H200)]


def run(monkeypatch, check, *arguments):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    result = run_isolated(f"attention_fwd_checks:{check}", arguments, time_limit_s=SILENCE_S)
    assert result.status == "ok", f"{result.status}: {result.reason}, after {len(result.items)} cases"
    assert result.items
    assert not [wrong for wrong in result.items if wrong]


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_right(monkeypatch, config):
    assert not violations(config, "bfloat16", H200)
    run(monkeypatch, "check_all", asdict(config), "bfloat16")


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[4], CONFIGS[9]], ids=repr)
def test_right_in_float16(monkeypatch, config):
    run(monkeypatch, "check_all", asdict(config), "float16")


@pytest.mark.parametrize("config", PACKED, ids=repr)
def test_packed_sequences(monkeypatch, config):
    assert not violations(config, "bfloat16", H200)
    run(monkeypatch, "check_packed", asdict(config), "bfloat16")


def test_packed_sequences_in_float16(monkeypatch):
    run(monkeypatch, "check_packed", asdict(PACKED[0]), "float16")


@pytest.mark.parametrize("config", EIGHT_BIT, ids=repr)
def test_right_in_fp8(monkeypatch, config):
    assert not violations(config, "float8_e4m3fn", H200)
    run(monkeypatch, "check_fp8", asdict(config))


@pytest.mark.parametrize("config", [EIGHT_BIT[0], EIGHT_BIT[3], EIGHT_BIT[7]], ids=repr)
def test_many_keys_in_fp8(monkeypatch, config):
    run(monkeypatch, "check_long_fp8", asdict(config))


@pytest.mark.slow
@pytest.mark.parametrize("config", EIGHT_BIT_SPACE, ids=repr)
def test_the_whole_space_in_fp8(monkeypatch, config):
    run(monkeypatch, "check_fp8", asdict(config))


@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE, ids=repr)
def test_the_whole_space(monkeypatch, config):
    run(monkeypatch, "check_heads", asdict(config), "bfloat16")
