"""Compile a configuration of the vector addition for a GPU that need not be there."""

from __future__ import annotations

from warpplan.kernels.compile import CompiledReport, compile_report, element_type, specialized
from warpplan.kernels.vector_add import tl
from warpplan.kernels.vector_add.space import VectorAddConfig


def compile_vector_add(
    config: VectorAddConfig, dtype: str, *, aligned: bool = True, target: int = 90
) -> CompiledReport:
    """Compile ``config`` for capability ``target`` (major · 10 + minor); ``aligned`` says whether the operands start on
    16 bytes. Raises :class:`InvalidConfig` where Triton or ptxas refuses, in one line."""
    signature, constants, aligned_names = tl.signature(config, element_type(dtype))
    source = specialized(tl.vector_add_kernel, signature, constants, aligned_names if aligned else ())
    return compile_report(source, tl.launch_options(config), target, what=repr(config))
