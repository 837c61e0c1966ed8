"""Compiling without a GPU: no spills, no serialised multiplies, no more shared memory than the space allows for."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs triton")

from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.grouped_gemm.compile_grouped_gemm import compile_grouped_gemm
from warpplan.kernels.grouped_gemm.space import violations
from warpplan.planner.errors import UnknownName
from warpplan.planner.values.device import H200

PRODUCTS = ("forward", "dgrad", "wgrad")
CONFIGS = (
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=2),
    GemmConfig("cooperative", 192, 128, 64, 4, 4),
    GemmConfig("single", 128, 256, 64, 8, 3),
    GemmConfig("single", 64, 256, 64, 4, 4),
    GemmConfig("pingpong", 64, 256, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 4),
    GemmConfig("cooperative", 192, 192, 64, 4, 4, epilogue_split=3),
    GemmConfig("cooperative", 256, 192, 64, 4, 3, epilogue_split=3),
    GemmConfig("pingpong", 128, 192, 64, 4, 4, epilogue_split=3),
    GemmConfig("cooperative", 256, 160, 64, 4, 3, epilogue_split=5),
    GemmConfig("pingpong", 64, 96, 64, 4, 6, epilogue_split=3),
)


FP8_CONFIGS = (
    GemmConfig("cooperative", 128, 256, 128, 4, 4, epilogue_split=2),
    GemmConfig("pingpong", 64, 256, 128, 4, 4, epilogue_split=2),
    GemmConfig("single", 128, 192, 128, 8, 5, epilogue_split=3),
    GemmConfig("cooperative", 128, 128, 128, 4, 6, promoted=True),
    GemmConfig("pingpong", 64, 128, 128, 4, 6, promoted=True),
)


@pytest.mark.slow
@pytest.mark.parametrize("config", FP8_CONFIGS, ids=repr)
def test_fp8_compiles_clean(config):
    assert not violations(config, "float8_e4m3fn", H200)
    report = compile_grouped_gemm(config, "float8_e4m3fn", groups=1024)
    assert report.clean
    assert report.shared_bytes <= config.smem_bytes(1)


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_compiles_clean(config, product):
    assert not violations(config, "bfloat16", H200, product)
    report = compile_grouped_gemm(config, "bfloat16", product, groups=1024)
    assert report.clean
    assert report.shared_bytes <= config.smem_bytes(2)


@pytest.mark.matrix
@pytest.mark.parametrize("product", PRODUCTS)
def test_every_triton_compiles_it(product):
    """A tile whose two accumulators have boxes of different widths for wgrad's last rows."""
    assert compile_grouped_gemm(CONFIGS[-1], "bfloat16", product).spill_bytes == 0


def test_unknown_names():
    with pytest.raises(UnknownName, match="float64"):
        compile_grouped_gemm(CONFIGS[0], "float64")
    with pytest.raises(UnknownName, match="backward"):
        compile_grouped_gemm(CONFIGS[0], "bfloat16", "backward")
