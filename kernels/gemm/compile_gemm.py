"""Compile a configuration of the GEMM for a GPU that need not be there."""

from __future__ import annotations

from warpplan.kernels.compile import CompiledReport, compile_report, element_type, specialized
from warpplan.kernels.gemm.space import ELEMENT_BYTES, GemmConfig
from warpplan.kernels.triton_types import AstSource
from warpplan.planner.errors import UnknownName


def compile_gemm(
    config: GemmConfig,
    dtype: str,
    *,
    tma_store: bool = True,
    layout: str = "nt",
    scales: str = "none",
    target: int = 90,
) -> CompiledReport:
    """Compile ``config`` for capability ``target`` (major · 10 + minor), about a second of work.

    ``tma_store`` False compiles the plain stores that rows of C off 16 bytes take; ``layout`` is how A and B are stored
    (:func:`warpplan.kernels.gemm.gluon.majors`), ``scales`` how fp8 operands are scaled, "none" for others. Raises
    :class:`InvalidConfig` where Triton or ptxas refuses, in one line.
    """
    if dtype not in ELEMENT_BYTES:
        raise UnknownName("dtype", dtype, ELEMENT_BYTES)
    source, options = gemm_source(config, element_type(dtype), tma_store, layout, scales)
    return compile_report(source, options, target, what=repr(config))


def gemm_source(
    config: GemmConfig, element: str, tma_store: bool, layout: str = "nt", scales: str = "none"
) -> tuple[AstSource, dict[str, int]]:
    """(source, compile options) of one specialisation; ``element`` is Triton's short name of the operands' type."""
    if config.specialized:
        from warpplan.kernels.gemm import gluon
        from warpplan.kernels.triton_compat import GluonASTSource

        described = gluon.signature(config, element, tma_store, layout, scales)
        return specialized(gluon.gemm_kernel, *described, source=GluonASTSource), gluon.launch_options(config)
    from warpplan.kernels.gemm import tl

    return specialized(tl.gemm_kernel, *tl.signature(config, element, tma_store, layout)), tl.launch_options(config)
