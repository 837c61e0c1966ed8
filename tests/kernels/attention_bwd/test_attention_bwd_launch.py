"""Launching attention's gradients without a GPU: what is refused, and that each launch specialises exactly as the
compile report does."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="launching needs torch")
triton = pytest.importorskip("triton", reason="launching needs triton")

sys.path.insert(0, str(Path(__file__).parents[1]))
from hopper_launches import note_launches  # noqa: E402

from warpplan.kernels.attention_bwd import gluon, launch, tl  # noqa: E402
from warpplan.kernels.attention_bwd.compile_attention_bwd import attention_bwd_sources  # noqa: E402
from warpplan.kernels.attention_bwd.packed_sequences.launch import packed_backward, prepare_packed  # noqa: E402
from warpplan.kernels.attention_bwd.query_gradients import gluon as query_gradients  # noqa: E402
from warpplan.kernels.attention_bwd.space import AttentionBwdConfig  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidShape  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402

CONFIGS = (
    AttentionBwdConfig(64, 64, 64, 2, dq="separate"),
    AttentionBwdConfig(128, 64, 64, 2, dq="separate"),
    AttentionBwdConfig(64, 64, 64, 2, dq="reduce"),
)
STARTS = torch.tensor([0, 60, 60, 100], dtype=torch.int32)
KERNELS = {
    "row_statistics": (tl, "row_statistics_kernel"),
    "key_gradients": (gluon, "key_gradients_kernel"),
    "query_gradients": (query_gradients, "query_gradients_kernel"),
    "converted_queries": (tl, "converted_queries_kernel"),
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """CPU tensors pass for those of an H200."""
    from warpplan.kernels.attention_fwd import launch as forward

    monkeypatch.setattr(forward, "require_gpu", lambda *_: None)
    monkeypatch.setattr(launch, "device_limits", lambda index: H200)
    monkeypatch.setattr(launch, "sm_count", lambda index: 132)


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16)


def log_sums(*shape):
    """fp32 that begins off 16 bytes, as the compile report has it."""
    return torch.zeros(math.prod(shape) + 1)[1:].view(shape)


def batch(d, rows=100, heads=4, kv_heads=2):
    """(do, q, k, v, o, lse) of two batches."""
    q, k = zeros(2, heads, rows, d), zeros(2, kv_heads, rows, d)
    return q.clone(), q, k, k.clone(), q.clone(), log_sums(2, heads, rows)


def packed(d, rows=100, heads=4, kv_heads=2):
    """The same of packed sequences."""
    q, k = zeros(rows, heads, d), zeros(rows, kv_heads, d)
    return q.clone(), q, k, k.clone(), q.clone(), log_sums(heads, rows)


def launched(tensors, config, **options):
    _, q, k, v, _, _ = tensors
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if config.packed:
        prepare_packed(*tensors, STARTS, STARTS, 60, 60, config, *gradients, **options)()
    else:
        launch.prepare(*tensors, config, *gradients, **options)()


@pytest.mark.slow
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 5)])
@pytest.mark.parametrize("is_packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_launches_specialise_as_the_compile_report_does(monkeypatch, config, is_packed, causal, window):
    config = replace(config, packed=is_packed)
    sources = attention_bwd_sources(config, "bf16", window is not None, causal or window is not None, sequences=3)
    seen = note_launches(monkeypatch, *KERNELS.values())
    launched((packed if is_packed else batch)(config.head_dim), config, causal=causal, window=window)
    assert [noted.name for noted in seen] == [KERNELS[name][1] for name in sources]
    for noted, (source, _) in zip(seen, sources.values(), strict=True):
        noted.require_like(source)


def test_a_plan_of_the_other_kind_is_refused():
    with pytest.raises(InvalidConfig, match="packed"):
        launch.attention_backward(*batch(64), replace(CONFIGS[0], packed=True))
    with pytest.raises(InvalidConfig, match="packed"):
        packed_backward(*packed(64), STARTS, STARTS, 60, 60, CONFIGS[0])


def test_packed_tensors_that_do_not_fit_are_refused():
    do, q, k, v, o, lse = packed(64)
    config = replace(CONFIGS[0], packed=True)
    with pytest.raises(InvalidShape, match="do is"):
        packed_backward(do[:-1], q, k, v, o, lse, STARTS, STARTS, 60, 60, config)
    with pytest.raises(InvalidShape, match="lse"):
        packed_backward(do, q, k, v, o, lse.t(), STARTS, STARTS, 60, 60, config)
    with pytest.raises(InvalidShape, match="cu_seqlens"):
        packed_backward(do, q, k, v, o, lse, STARTS.long(), STARTS, 60, 60, config)


def test_nothing_to_see_is_zero(monkeypatch):
    seen = note_launches(monkeypatch, *KERNELS.values())
    do, q, _, _, o, lse = packed(64)
    none = zeros(0, 2, 64)
    config = replace(CONFIGS[0], packed=True)
    dq, dk, dv = packed_backward(do, q, none, none, o, lse, STARTS, torch.zeros(4, dtype=torch.int32), 60, 0, config)
    assert not seen
    assert not dq.any()
    assert dk.shape == dv.shape == none.shape
