"""Gradients of sequences of unlike lengths, packed one behind the other: how torch tensors get to the kernels."""

EXPORTS = {"launch": ("prepare_packed",)}
