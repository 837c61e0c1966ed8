"""What ptxas says of the fused kernels: no spill and no serialised multiply, whatever the epilogue."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.gemm_bias_act.compile_gemm_bias_act import compile_gemm_bias_act
from warpplan.kernels.gemm_bias_act.space import ACTIVATIONS, FusedEpilogue, epilogue_violations
from warpplan.planner.errors import UnknownName

REPRESENTATIVES = (
    GemmConfig("single", 128, 256, 64, 8, 3),
    GemmConfig("single", 64, 32, 128, 4, 4, ctas_per_sm=2),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring"),
    GemmConfig("cooperative", 192, 128, 64, 4, 4, epilogue_split=2, split_k=3, split_tail=True),
    GemmConfig("pingpong", 64, 256, 64, 4, 4),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring", stream_k=True),
    GemmConfig("pingpong", 128, 128, 64, 4, 4, stream_k=True),
    GemmConfig("cooperative", 128, 96, 64, 4, 6, epilogue_split=3),
    GemmConfig("cooperative", 256, 160, 64, 4, 3, epilogue_split=5),
    GemmConfig("pingpong", 128, 128, 64, 4, 5, epilogue_split=2, staging="ring", swap=True),
)


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("config", REPRESENTATIVES, ids=repr)
def test_every_kind_of_block_compiles_cleanly_with_every_epilogue(config, activation):
    epilogue = FusedEpilogue(activation, True, True)
    if any(epilogue_violations(config, epilogue)):
        pytest.skip("the space leaves it out")
    report = compile_gemm_bias_act(config, epilogue, "bfloat16")
    assert report.clean
    assert report.warps == config.total_warps
    assert report.shared_bytes <= config.smem_bytes(2)


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_layouts_and_plain_stores_compile_cleanly(layout):
    config = GemmConfig("cooperative", 128, 128, 64, 4, 4)
    epilogue = FusedEpilogue("gelu", True, True)
    assert compile_gemm_bias_act(config, epilogue, "float16", layout=layout).clean
    plain = FusedEpilogue("gelu", True)
    assert compile_gemm_bias_act(config, plain, "float16", layout=layout, tma_store=False).clean


@pytest.mark.slow
def test_the_arithmetic_is_the_hardwares_own():
    """One exponential an element of GELU and no division; bias and residual arrive two elements a load."""
    config = GemmConfig("single", 64, 64, 64, 4, 4)
    ptx = compile_gemm_bias_act(config, FusedEpilogue("gelu", True, True), "bfloat16").ptx
    per_thread = 64 * 64 // 128
    assert ptx.count("ex2.approx.ftz.f32") == per_thread
    assert "div.full" not in ptx
    assert "call.uni" not in ptx
    assert ptx.count("ld.global.b32") == (64 // 4 + per_thread) // 2
    silu = compile_gemm_bias_act(config, FusedEpilogue("silu"), "bfloat16").ptx
    assert silu.count("ex2.approx.ftz.f32") == silu.count("rcp.approx.ftz.f32") == per_thread


def test_unknown_dtype():
    with pytest.raises(UnknownName, match="float8_e4m3fn"):
        compile_gemm_bias_act(REPRESENTATIVES[0], FusedEpilogue(), "float8_e4m3fn")
