"""Triton 3.6: NVIDIA's ``make_ttgir``."""

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

LOWERING = (
    *TIDY_LOOPS,
    step("ttgpuir.prefetch"),
    *OPERANDS,
    step("ttnvgpuir.tma_lowering"),
    *REORDER,
    *TIDY,
)

HOPPER = Halves(LAYOUTS + HOPPER_LOOPS, HOPPER_PIPELINE + LOWERING, stock=HOPPER_STOCK)
BLACKWELL = Halves(LAYOUTS + BLACKWELL_LOOPS, BLACKWELL_PIPELINE + LOWERING)
