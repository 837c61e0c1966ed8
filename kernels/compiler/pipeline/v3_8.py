"""Triton 3.8: no prefetch after Ampere, reductions at tensor-memory loads, a floating-point sanitizer."""

from __future__ import annotations

from warpplan.kernels.compiler.pipeline import shared
from warpplan.kernels.compiler.pipeline.steps import Halves, step

SANITIZER = (
    step("ttgpuir.fp_sanitizer", only="fpsan"),
    step("ttgpuir.remove_layout_conversions", only="fpsan"),
    step("common.canonicalizer", only="fpsan"),
    step("common.cse", only="fpsan"),
)
LOWERING = (
    *shared.TIDY_LOOPS,
    *shared.OPERANDS,
    step("ttnvgpuir.tmem_load_reduce"),
    step("ttnvgpuir.tma_lowering"),
    *shared.REORDER,
    *shared.TIDY,
    *SANITIZER,
)

HOPPER = Halves(shared.LAYOUTS + shared.HOPPER_LOOPS, shared.HOPPER_PIPELINE + LOWERING, stock=shared.HOPPER_STOCK)
BLACKWELL = Halves(shared.LAYOUTS + shared.BLACKWELL_LOOPS, shared.BLACKWELL_PIPELINE + LOWERING)
