"""Triton 3.6: NVIDIA's ``make_ttgir``."""

from __future__ import annotations

from warpplan.kernels.compiler.pipeline import shared
from warpplan.kernels.compiler.pipeline.steps import Halves, step

LOWERING = (
    *shared.TIDY_LOOPS,
    step("ttgpuir.prefetch"),
    *shared.OPERANDS,
    step("ttnvgpuir.tma_lowering"),
    *shared.REORDER,
    *shared.TIDY,
)

HOPPER = Halves(shared.LAYOUTS + shared.HOPPER_LOOPS, shared.HOPPER_PIPELINE + LOWERING, stock=shared.HOPPER_STOCK)
BLACKWELL = Halves(shared.LAYOUTS + shared.BLACKWELL_LOOPS, shared.BLACKWELL_PIPELINE + LOWERING)
