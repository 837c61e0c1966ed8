"""Compile a configuration of the grouped GEMM for a GPU that need not be there."""

from __future__ import annotations

from warpplan.kernels.compile import CompiledReport, compile_report, element_type, specialized
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.grouped_gemm.space import FP8, PRODUCTS, SIXTEEN_BIT
from warpplan.kernels.triton_types import AstSource
from warpplan.planner.errors import UnknownName


def compile_grouped_gemm(
    config: GemmConfig, dtype: str, product: str = "forward", *, groups: int = 64, target: int = 90
) -> CompiledReport:
    """Compile ``config`` for ``product`` and capability ``target`` (major · 10 + minor), a few seconds of work.

    ``groups`` as at a launch: a warp looks at up to 64 together. fp8 operands have scales of blocks where the sums are
    promoted, else of rows. Raises :class:`InvalidConfig` where Triton or ptxas refuses, in one line.
    """
    if dtype not in (*SIXTEEN_BIT, FP8):
        raise UnknownName("dtype", dtype, (*SIXTEEN_BIT, FP8))
    if product not in PRODUCTS:
        raise UnknownName("product", product, PRODUCTS)
    scales = "none"
    if dtype == FP8:
        scales = "block" if config.promoted else "row"
    source, options = grouped_gemm_source(config, element_type(dtype), product, groups, scales)
    return compile_report(source, options, target, what=f"{product} {config!r}")


def grouped_gemm_source(
    config: GemmConfig, element: str, product: str, groups: int, scales: str = "none"
) -> tuple[AstSource, dict[str, int]]:
    """(source, compile options) of one specialisation; ``element`` is Triton's short name of the operands' type."""
    from warpplan.kernels.device.groups import window_groups
    from warpplan.kernels.grouped_gemm import gluon
    from warpplan.kernels.triton_compat import GluonASTSource

    described = gluon.signature(config, element, product, window_groups(groups), scales)
    return specialized(gluon.grouped_gemm_kernel, *described, source=GluonASTSource), gluon.launch_options(config)
