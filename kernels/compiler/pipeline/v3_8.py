"""Triton 3.8: no prefetch after Ampere, reductions at tensor-memory loads, a floating-point sanitizer."""

from __future__ import annotations

from warpplan.kernels.compiler.pipeline.shared import (
    BLACKWELL_LOOPS,
    BLACKWELL_PIPELINE,
    HOPPER_LOOPS,
    HOPPER_PIPELINE,
    HOPPER_STOCK,
    LAYOUTS,
    OPERANDS,
    REORDER,
    TIDY,
    TIDY_LOOPS,
)
from warpplan.kernels.compiler.pipeline.steps import Halves, step

SANITIZER = (
    step("ttgpuir.fp_sanitizer", only="fpsan"),
    step("ttgpuir.remove_layout_conversions", only="fpsan"),
    step("common.canonicalizer", only="fpsan"),
    step("common.cse", only="fpsan"),
)
LOWERING = (
    *TIDY_LOOPS,
    *OPERANDS,
    step("ttnvgpuir.tmem_load_reduce"),
    step("ttnvgpuir.tma_lowering"),
    *REORDER,
    *TIDY,
    *SANITIZER,
)

HOPPER = Halves(LAYOUTS + HOPPER_LOOPS, HOPPER_PIPELINE + LOWERING, stock=HOPPER_STOCK)
BLACKWELL = Halves(LAYOUTS + BLACKWELL_LOOPS, BLACKWELL_PIPELINE + LOWERING)
