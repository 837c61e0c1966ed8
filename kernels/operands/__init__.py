"""Torch tensors on their way to a kernel: how they lie, whether they are plain ones and TMA can address them, their
scales, their GPU."""

EXPORTS = {
    "contexts": ("bind_context",),
    "gpus": ("device_limits", "hopper_name", "sm_count"),
    "matrices": (
        "layout_of",
        "require_operands",
        "require_output",
        "result_dtype",
        "row_strides",
        "stored",
        "TMA_ALIGNMENT_BYTES",
        "tma_stores",
    ),
    "scales": ("operand_scales", "OperandScales"),
    "tensor_forms": ("active_transform", "is_batched", "special_form"),
}
