"""Compiling without a GPU: no spills, no serialised multiplies, no more shared memory than the space allows for."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.attention_bwd.candidates import structures
from warpplan.kernels.attention_bwd.compile_attention_bwd import compile_attention_bwd
from warpplan.kernels.attention_bwd.space import HEAD_DIMS, AttentionBwdConfig, deterministic
from warpplan.planner.errors import UnknownName
from warpplan.planner.values.device import H200

WIDE = AttentionBwdConfig(128, 128, 64, 2)
SPACE = [
    config
    for packed in (False, True)
    for head_dim in HEAD_DIMS
    for config in structures(head_dim, "bfloat16", H200, packed)
]
GLUON = ("key_gradients", "query_gradients")


def compiled_clean(config: AttentionBwdConfig, dtype: str, causal: bool, window: bool) -> None:
    reports = compile_attention_bwd(config, dtype, causal=causal, window=window)
    assert len(reports) == 3
    for name, report in reports.items():
        assert report.spill_bytes == 0, name
        assert not report.wgmma_serialized, name
        if name in GLUON:
            assert report.warps == config.total_warps
            assert report.shared_bytes <= config.smem_bytes(2)


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.parametrize("causal", [False, True])
def test_the_widest_blocks_compile_clean(causal):
    compiled_clean(WIDE, "bfloat16", causal, causal)
    compiled_clean(deterministic(WIDE), "float16", causal, False)
    compiled_clean(replace(WIDE, packed=True), "bfloat16", causal, causal)


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE, ids=repr)
def test_the_whole_space_compiles_clean(config):
    compiled_clean(config, "bfloat16", True, True)
    compiled_clean(config, "bfloat16", True, False)
    compiled_clean(config, "float16", False, False)


def test_dq_is_added_by_the_copy_engine():
    """In fp32 boxes of three dimensions; the form with a kernel of its own adds nothing."""
    for config, reduces in ((WIDE, True), (deterministic(WIDE), False)):
        ptx = compile_attention_bwd(config, "bfloat16")["key_gradients"].ptx
        assert ("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add" in ptx) == reduces


def test_unknown_names():
    with pytest.raises(UnknownName, match="float64"):
        compile_attention_bwd(WIDE, "float64")
