"""Softmax attention as models call it: torch's ``scaled_dot_product_attention`` with its gradients, planned."""

EXPORTS = {"autograd": ("attention",), "packed_autograd": ("packed_attention",)}
