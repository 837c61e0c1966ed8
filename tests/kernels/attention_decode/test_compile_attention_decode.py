"""Compiling without a GPU: no spills, no serialised multiplies, no more shared memory than the space allows for."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.attention_decode.compile_attention_decode import (
    combine_source,
    compile_attention_decode,
)
from warpplan.kernels.attention_decode.space import MAX_SPLITS, DecodeConfig
from warpplan.kernels.attention_decode.work import structures
from warpplan.kernels.attention_fwd.space import HEAD_DIMS
from warpplan.kernels.compile import compile_report
from warpplan.planner.errors import UnknownName
from warpplan.planner.values.device import H200

SPACE = [config for head_dim in HEAD_DIMS for config in structures(head_dim, "bfloat16", H200)]


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("config", SPACE, ids=repr)
@pytest.mark.parametrize("causal", [False, True])
def test_the_whole_space_compiles_clean(config, causal):
    for splits in (1, 2):
        made = DecodeConfig(config.head_dim, config.columns, config.depth, config.lookahead, splits)
        report = compile_attention_decode(made, "bfloat16", causal=causal)
        assert report.spill_bytes == 0
        assert not report.wgmma_serialized
        assert report.warps == config.attention.total_warps
        assert report.shared_bytes <= config.attention.smem_bytes(2)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("most", [2, MAX_SPLITS])
def test_the_kernel_that_combines_splits_compiles_clean(head_dim, most):
    for stores_lse in (False, True):
        source, options = combine_source("bf16", head_dim, most, stores_lse)
        assert compile_report(source, options, 90, what="combine").spill_bytes == 0


def test_unknown_names():
    with pytest.raises(UnknownName, match="float64"):
        compile_attention_decode(SPACE[0], "float64")
