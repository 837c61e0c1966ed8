"""C = activation(A·Bᵀ + bias) + residual on Hopper: the GEMM's configurations with a fused epilogue."""

EXPORTS: dict[str, tuple[str, ...]] = {}
