"""Softmax attention backward on Hopper: its configurations, the loop over queries as a graph, what a shape asks of the
device, the device code that a configuration drives, and how torch tensors get to it."""

EXPORTS = {
    "kernel": ("ATTENTION_BWD",),
    "launch": ("Gradients", "SequenceStarts", "checked", "gradient_launches", "prepare", "require_results"),
    "reference": ("gradients", "packed_gradients"),
    "space": ("ALIGNED_ROWS", "AttentionBwdConfig", "HEAD_DIMS"),
}
