"""What ptxas says of the GEMM kernels: no spill and no serialised multiply, however the operands lie."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from warpplan.kernels.gemm.compile_gemm import compile_gemm
from warpplan.kernels.gemm.space import LAYOUTS, GemmConfig

REPRESENTATIVES = (
    GemmConfig("single", 128, 256, 64, 8, 3),
    GemmConfig("single", 64, 16, 128, 4, 4, swap=True, ctas_per_sm=2),
    GemmConfig("single", 128, 32, 64, 4, 4, split_k=2),
    GemmConfig("single", 256, 64, 64, 8, 4),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring"),
    GemmConfig("cooperative", 192, 128, 64, 4, 4, epilogue_split=2, split_k=3, split_tail=True),
    GemmConfig("cooperative", 256, 128, 64, 4, 3),
    GemmConfig("single", 128, 256, 64, 8, 3, stream_k=True),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring", stream_k=True),
    GemmConfig("pingpong", 64, 256, 64, 4, 4, stream_k=True),
    GemmConfig("pingpong", 64, 256, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 5, epilogue_split=2, staging="ring", swap=True),
    GemmConfig("pipelined", 128, 256, 64, 8, 3),
    GemmConfig("pipelined", 64, 64, 128, 4, 4),
)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", REPRESENTATIVES, ids=repr)
def test_every_kind_of_block_compiles_cleanly_in_every_layout(config, layout):
    report = compile_gemm(config, "bfloat16", layout=layout)
    assert report.clean
    assert report.warps == config.total_warps
    assert report.shared_bytes <= config.smem_bytes(2)
