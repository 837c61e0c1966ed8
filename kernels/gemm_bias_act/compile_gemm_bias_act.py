"""Compile a configuration of the fused GEMM for a GPU that need not be there."""

from __future__ import annotations

from warpplan.kernels.compile import CompiledReport, compile_report, element_type, specialized
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.gemm_bias_act.space import ELEMENT_BYTES, FusedEpilogue
from warpplan.kernels.triton_types import AstSource
from warpplan.planner.errors import UnknownName


def compile_gemm_bias_act(
    config: GemmConfig,
    epilogue: FusedEpilogue,
    dtype: str,
    *,
    tma_store: bool = True,
    layout: str = "nt",
    target: int = 90,
) -> CompiledReport:
    """Compile ``config`` with ``epilogue`` for capability ``target`` (major · 10 + minor), a few seconds of work.

    ``tma_store`` False compiles the plain loads and stores that rows off 16 bytes take; ``layout`` is how A and B are
    stored. Raises :class:`InvalidConfig` where Triton or ptxas refuses, in one line.
    """
    if dtype not in ELEMENT_BYTES:
        raise UnknownName("dtype", dtype, ELEMENT_BYTES)
    source, options = fused_source(config, epilogue, element_type(dtype), tma_store, layout)
    return compile_report(source, options, target, what=f"{config!r} with {epilogue!r}")


def fused_source(
    config: GemmConfig, epilogue: FusedEpilogue, element: str, tma_store: bool, layout: str = "nt"
) -> tuple[AstSource, dict[str, int]]:
    """(source, compile options) of one specialisation; ``element`` is Triton's short name of the operands' type."""
    from warpplan.kernels.gemm.gluon import launch_options
    from warpplan.kernels.gemm_bias_act import gluon
    from warpplan.kernels.triton_compat import GluonASTSource

    described = gluon.signature(config, epilogue, element, tma_store, layout)
    return specialized(gluon.gemm_bias_act_kernel, *described, source=GluonASTSource), launch_options(config)
