"""Stretches of NVIDIA's ``make_ttgir`` that several releases of Triton have in common.

Source: ``triton/backends/nvidia/compiler.py`` of each release; tests/kernels/compiler/test_pipeline.py records what the
installed release really runs and compares.
"""

from __future__ import annotations

from warpplan.kernels.compiler.pipeline.steps import step

# 3.6 to 3.8: from Triton's IR to layouts and the target's matrix operations.
LAYOUTS = (
    step("ttir.convert_to_ttgpuir", "target", "num_warps", 32, "num_ctas"),
    step("ttgpuir.coalesce"),
    step("ttgpuir.f32_dot_tc", True),
    step("ttnvgpuir.plan_cta"),
    step("ttgpuir.remove_layout_conversions"),
    step("ttgpuir.optimize_thread_locality"),
    step("ttgpuir.accelerate_matmul"),
    step("ttgpuir.remove_layout_conversions"),
    step("ttgpuir.optimize_dot_operands", True),
    step("ttnvgpuir.optimize_descriptor_encoding"),
    step("ttir.loop_aware_cse"),
)

HOPPER_LOOPS = (
    step("ttgpuir.fuse_nested_loops"),
    step("common.canonicalizer"),
    step("ttir.triton_licm"),
    step("common.canonicalizer"),
    step("ttgpuir.combine_tensor_select_and_if"),
)
HOPPER_STOCK = (step("hopper.hopper_warpspec", "num_stages", "debug"),)
HOPPER_PIPELINE = (
    step("ttgpuir.assign_latencies", "num_stages"),
    step("ttgpuir.schedule_loops"),
    step("ttgpuir.pipeline", "num_stages", "debug"),
)

BLACKWELL_LOOPS = (
    step("ttgpuir.fuse_nested_loops"),
    step("common.canonicalizer"),
    step("ttir.triton_licm"),
    step("ttgpuir.optimize_accumulator_init"),
    step("ttgpuir.hoist_tmem_alloc", False),
    step("ttnvgpuir.promote_lhs_to_tmem"),
)
BLACKWELL_PIPELINE = (
    step("ttgpuir.assign_latencies", "num_stages"),
    step("ttgpuir.schedule_loops"),
    step("ttgpuir.warp_specialize", "num_stages"),
    step("ttgpuir.pipeline", "num_stages", "debug"),
    step("ttgpuir.optimize_partition_warps"),
    step("ttgpuir.combine_tensor_select_and_if"),
    step("ttgpuir.hoist_tmem_alloc", True),
    step("ttnvgpuir.remove_tmem_tokens"),
)

# The rest of the way, in the pieces between which the releases differ.
TIDY_LOOPS = (
    step("common.canonicalizer"),
    step("ttir.loop_aware_cse"),
)
OPERANDS = (
    step("ttgpuir.optimize_dot_operands", True),
    step("ttgpuir.coalesce_async_copy"),
    step("ttnvgpuir.optimize_tmem_layouts"),
)
REORDER = (
    step("ttgpuir.remove_layout_conversions"),
    step("ttnvgpuir.interleave_tmem"),
    step("ttgpuir.reduce_data_duplication"),
    step("ttgpuir.reorder_instructions"),
    step("ttir.loop_aware_cse"),
    step("common.symbol_dce"),
    step("ttnvgpuir.fence_insertion", "capability"),
    step("ttnvgpuir.lower_mma"),
)
TIDY = (
    step("common.sccp"),
    step("common.cse"),
    step("common.canonicalizer"),
)
