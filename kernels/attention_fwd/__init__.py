"""Softmax attention forward on Hopper: its configurations, the loop over keys as a graph, what a shape asks of the
device, the Gluon source that a configuration drives, and how torch tensors get to it."""

EXPORTS = {
    "attention_shape": ("AttentionShape", "MAX_LENGTH"),
    "graph": (
        "BARRIER_BYTES",
        "TMA_ALIGNMENT",
        "arithmetic_operation",
        "blocked_cycles",
        "handoff_cycles",
        "load_operation",
        "measured_cycles",
        "product_operation",
    ),
    "kernel": ("ATTENTION_FWD", "AttentionFwd", "attention_shape"),
    "launch": (
        "LOG2_E",
        "checked_scale",
        "describe",
        "dtype_name",
        "overlaps",
        "require_addressable",
        "require_operands",
        "require_window",
    ),
    "reference": ("seen_keys",),
    "work": ("SUMMED_RANGES", "distinct_names", "measured_latency"),
}
