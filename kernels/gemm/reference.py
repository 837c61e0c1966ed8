"""What the right GEMM is, in torch, and how far a result is from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpplan.kernels.torch_types import Tensor


def reference(a: Tensor, b: Tensor) -> Tensor:
    """A[M, K] · B[N, K]ᵀ in float64 of the given values, not rounded to their dtype; shape [M, N], on their device."""
    return a.double() @ b.double().T


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of ``expected``; infinite where ``result`` holds a NaN or an infinity.

    Rounding the exact product to bfloat16 alone gives about 1.7e-3, to float16 about 2e-4.
    """
    if not bool(result.isfinite().all()):
        return float("inf")
    difference = (result.double() - expected.double()).norm()
    scale = expected.double().norm()
    return float(difference / scale) if float(scale) > 0.0 else float(difference)
