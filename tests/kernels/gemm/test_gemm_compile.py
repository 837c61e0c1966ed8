"""What ptxas says of the GEMM kernels: no spill and no serialised multiply, however the operands lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from warpplan.kernels.gemm.compile_gemm import compile_gemm
from warpplan.kernels.gemm.space import LAYOUTS, GemmConfig, violations
from warpplan.kernels.triton_compat import has_clusters
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import H200

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
    GemmConfig("cooperative", 192, 192, 64, 4, 4, epilogue_split=3),
    GemmConfig("cooperative", 256, 192, 64, 4, 3, epilogue_split=3),
    GemmConfig("cooperative", 192, 192, 64, 4, 4, epilogue_split=3, split_k=2),
    GemmConfig("single", 64, 192, 64, 4, 6, epilogue_split=3, swap=True),
    GemmConfig("single", 64, 96, 128, 4, 4, epilogue_split=3, swap=True, split_k=2),
    GemmConfig("pingpong", 128, 96, 64, 4, 6, epilogue_split=3),
    GemmConfig("single", 128, 160, 64, 8, 4, epilogue_split=5, split_k=2),
    GemmConfig("cooperative", 256, 160, 64, 4, 3, epilogue_split=5, swap=True),
    GemmConfig("pingpong", 64, 192, 64, 4, 4, epilogue_split=3, stream_k=True),
    GemmConfig("pipelined", 128, 256, 64, 8, 3),
    GemmConfig("pipelined", 64, 64, 128, 4, 4),
)

CLUSTERS = (
    GemmConfig("single", 256, 256, 64, 8, 4, epilogue_split=2, cluster=2),
    GemmConfig("single", 512, 128, 64, 8, 3, epilogue_split=2, swap=True, cluster=2),
    GemmConfig("cooperative", 256, 256, 64, 4, 4, epilogue_split=2, cluster=2),
    GemmConfig("cooperative", 384, 128, 64, 4, 4, epilogue_split=2, cluster=2),
    GemmConfig("pingpong", 128, 256, 64, 4, 4, epilogue_split=4, cluster=2),
    GemmConfig("pingpong", 256, 128, 64, 4, 4, epilogue_split=2, swap=True, cluster=2),
)


EARLY = (
    GemmConfig("single", 64, 64, 64, 4, 4, ctas_per_sm=2),
    GemmConfig("single", 64, 16, 128, 4, 5, swap=True, split_k=4, ctas_per_sm=2),
    GemmConfig("single", 64, 192, 64, 4, 6, epilogue_split=3),
    GemmConfig("cooperative", 128, 128, 64, 4, 4, split_k=3),
    GemmConfig("pingpong", 64, 128, 64, 4, 4),
)
CHUNKS_IN_SLOTS = (
    GemmConfig("single", 128, 256, 64, 8, 4, epilogue_split=4, staging="ring"),
    GemmConfig("single", 128, 256, 64, 8, 4, epilogue_split=4, staging="ring", swap=True),
    GemmConfig("pingpong", 64, 256, 64, 4, 4, epilogue_split=4, staging="ring"),
    GemmConfig("single", 128, 64, 64, 4, 4, epilogue_split=2, staging="ring"),
)


@pytest.mark.matrix
@pytest.mark.parametrize("config", EARLY, ids=repr)
@pytest.mark.parametrize("early", [False, True])
def test_the_next_launch_is_let_begin_where_the_plan_says_so(config, early):
    report = compile_gemm(replace(config, launch_dependents=early), "bfloat16")
    assert report.clean
    assert report.ptx.count("griddepcontrol.wait") == 1
    assert report.ptx.count("griddepcontrol.launch_dependents") == early


@pytest.mark.matrix
@pytest.mark.parametrize("config", CHUNKS_IN_SLOTS, ids=repr)
def test_chunks_smaller_than_the_slot_that_they_leave_through(config):
    assert not violations(config, "bfloat16", H200)
    assert compile_gemm(config, "bfloat16").clean


@pytest.mark.matrix
def test_the_kernel_of_one_partition_waits_for_the_kernel_before():
    report = compile_gemm(GemmConfig("pipelined", 64, 64, 64, 4, 4), "bfloat16")
    assert report.clean
    # Before it no global memory is read or written.
    before, _, after = report.ptx.partition("griddepcontrol.wait")
    assert "cp.async.bulk.tensor" not in before
    assert "cp.async.bulk.tensor" in after


@pytest.mark.matrix
@pytest.mark.parametrize("config", CLUSTERS, ids=repr)
def test_clusters_compile_cleanly_where_triton_has_them(config):
    if not has_clusters:
        with pytest.raises(InvalidConfig, match="has no TMA multicast"):
            compile_gemm(config, "bfloat16")
        return
    for layout in LAYOUTS:
        for tma_store in (True, False):
            report = compile_gemm(config, "bfloat16", layout=layout, tma_store=tma_store)
            assert report.clean
            assert report.shared_bytes <= config.smem_bytes(2)
            assert ".multicast::cluster" in report.ptx


@pytest.mark.matrix
@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
def test_clusters_of_fp8_compile_cleanly_where_triton_has_them(scales):
    if not has_clusters:
        pytest.skip("this Triton has no TMA multicast")
    promoted = scales == "block"
    config = GemmConfig("cooperative", 256, 128, 128, 4, 4, epilogue_split=2, promoted=promoted, cluster=2)
    report = compile_gemm(config, "float8_e4m3fn", scales=scales)
    assert report.clean
    assert ".multicast::cluster" in report.ptx


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", REPRESENTATIVES, ids=repr)
def test_every_kind_of_block_compiles_cleanly_in_every_layout(config, layout):
    report = compile_gemm(config, "bfloat16", layout=layout)
    assert report.clean
    assert report.warps == config.total_warps
    assert report.shared_bytes <= config.smem_bytes(2)
