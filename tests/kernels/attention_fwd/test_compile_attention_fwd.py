"""Compiling without a GPU: no spills, no serialised multiplies, no more shared memory than the space allows for."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.attention_fwd.candidates import structures
from warpplan.kernels.attention_fwd.compile_attention_fwd import compile_attention_fwd
from warpplan.kernels.attention_fwd.space import HEAD_DIMS, AttentionConfig
from warpplan.planner.errors import UnknownName
from warpplan.planner.values.device import H200

WIDE = AttentionConfig(128, 2, 64, 128, 2, pingpong=True)
SPACE = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "bfloat16", H200)]


def compiled_clean(config: AttentionConfig, dtype: str, causal: bool, window: bool) -> None:
    report = compile_attention_fwd(config, dtype, causal=causal, window=window)
    assert report.spill_bytes == 0
    assert not report.wgmma_serialized
    assert report.warps == config.total_warps
    assert report.shared_bytes <= config.smem_bytes(2)


def test_the_widest_blocks_compile_clean():
    compiled_clean(WIDE, "bfloat16", True, True)
    compiled_clean(replace(WIDE, q_in_registers=True, pingpong=False), "float16", True, False)


@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE, ids=repr)
def test_the_whole_space_compiles_clean(config):
    """With the mask that has the most to compute."""
    compiled_clean(config, "bfloat16", True, True)


@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE[::5], ids=repr)
def test_other_masks_and_float16_compile_clean(config):
    compiled_clean(config, "float16", True, False)
    compiled_clean(config, "bfloat16", False, False)


def test_unknown_names():
    with pytest.raises(UnknownName, match="float64"):
        compile_attention_fwd(WIDE, "float64")
