"""C = activation(A·Bᵀ + bias) + residual on Hopper: the GEMM's configurations with a fused epilogue."""

EXPORTS = {
    "launch": ("gemm_bias_act",),
}
