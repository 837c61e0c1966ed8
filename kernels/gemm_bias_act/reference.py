"""What the right fused GEMM is, in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpplan.kernels.gemm_bias_act.space import ACTIVATIONS
from warpplan.planner.errors import UnknownName

if TYPE_CHECKING:
    from warpplan.kernels.torch_types import Tensor


def reference(
    a: Tensor, b: Tensor, *, bias: Tensor | None = None, activation: str = "none", residual: Tensor | None = None
) -> Tensor:
    """activation(A[M, K] · B[N, K]ᵀ + bias) + residual in float64 of the given values, not rounded to their dtype."""
    product = a.double() @ b.double().T
    value = activated(product if bias is None else product + bias.double(), activation)
    return value if residual is None else value + residual.double()


def activated(x: Tensor, activation: str) -> Tensor:
    """``activation`` of ``x``; "swiglu" halves the last dimension. Raises :class:`UnknownName`."""
    from torch.nn import functional

    if activation == "none":
        return x
    if activation == "relu":
        return functional.relu(x)
    if activation in ("gelu", "gelu_tanh"):
        return functional.gelu(x, approximate="none" if activation == "gelu" else "tanh")
    if activation == "silu":
        return functional.silu(x)
    if activation == "swiglu":
        return functional.silu(x[..., 0::2]) * x[..., 1::2]
    raise UnknownName("activation", activation, ACTIVATIONS)
