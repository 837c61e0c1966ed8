"""Softmax attention backward on Hopper: its configurations, the loop over queries as a graph, what a shape asks of the
device, the device code that a configuration drives, and how torch tensors get to it."""

EXPORTS = {
    "kernel": ("ATTENTION_BWD",),
    "launch": ("prepare",),
    "reference": ("gradients",),
    "space": ("AttentionBwdConfig", "HEAD_DIMS", "PRODUCER_REGISTERS"),
}
