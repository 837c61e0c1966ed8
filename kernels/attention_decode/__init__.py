"""Softmax attention of a few queries over many keys on Hopper: its configurations, what a shape asks of the device, the
Gluon source that a configuration drives, the kernel that combines splits, and how torch tensors get to them."""

EXPORTS = {"kernel": ("ATTENTION_DECODE",), "launch": ("key_rows", "prepare"), "space": ("MAX_ROWS",)}
