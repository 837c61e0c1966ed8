"""Softmax attention forward on Hopper: its configurations, the loop over keys as a graph, what a shape asks of the
device, the Gluon source that a configuration drives, and how torch tensors get to it."""

EXPORTS = {
    "attention_shape": ("MAX_LENGTH",),
    "kernel": ("ATTENTION_FWD",),
    "launch": ("addressable", "prepare"),
    "reference": ("reference",),
    "space": ("HEAD_DIMS",),
}
