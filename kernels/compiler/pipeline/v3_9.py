"""Triton 3.9: layouts of clusters assigned and checked, cluster launch control, barriers hoisted."""

from __future__ import annotations

from warpplan.kernels.compiler.pipeline import shared
from warpplan.kernels.compiler.pipeline.steps import Halves, step

LAYOUTS = (
    step("ttir.convert_to_ttgpuir", "target", "num_warps", 32, "num_ctas"),
    step("ttnvgpuir.to_clc", only="clc"),
    step("ttgpuir.coalesce"),
    step("ttgpuir.f32_dot_tc", True),
    step("ttnvgpuir.assign_cga_layouts"),
    step("ttgpuir.remove_layout_conversions"),
    step("ttnvgpuir.optimize_cta_locality"),
    step("ttgpuir.remove_layout_conversions"),
    step("ttgpuir.optimize_thread_locality"),
    step("ttgpuir.accelerate_matmul"),
    step("ttnvgpuir.check_matmul_two_cta"),
    step("ttgpuir.remove_layout_conversions"),
    step("ttgpuir.optimize_dot_operands", True),
    step("ttnvgpuir.optimize_descriptor_encoding"),
    step("ttir.loop_aware_cse"),
)
SANITIZER = (
    step("ttgpuir.fp_sanitizer", "fpsan_homomorphic_casts", only="fpsan"),
    step("ttgpuir.remove_layout_conversions", True, only="fpsan"),
    step("common.canonicalizer", only="fpsan"),
    step("common.cse", only="fpsan"),
)
COPIES = (
    *shared.TIDY_LOOPS,
    *shared.OPERANDS,
    step("ttnvgpuir.tmem_load_reduce"),
    step("ttnvgpuir.tma_lowering"),
)
LOWERING = (
    *shared.REORDER,
    step("ttnvgpuir.hoist_mbarrier_lifecycle", "capability"),
    *shared.TIDY,
    *SANITIZER,
)

HOPPER = Halves(LAYOUTS + shared.HOPPER_LOOPS, shared.HOPPER_PIPELINE + COPIES + LOWERING, stock=shared.HOPPER_STOCK)
BLACKWELL = Halves(
    LAYOUTS + shared.BLACKWELL_LOOPS,
    shared.BLACKWELL_PIPELINE + COPIES + (step("ttnvgpuir.lower_clc"),) + LOWERING,
)
