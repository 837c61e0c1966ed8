"""What the right sum is, in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpplan.kernels.torch_types import Tensor


def reference(x: Tensor, y: Tensor) -> Tensor:
    """``x + y`` in float64 of the given values, rounded to their dtype once: shape [N], on their device.

    A float64 holds the exact sum of two values of the kernel's dtypes unless their magnitudes lie more than 2²⁸ apart,
    so that the kernel's own sum, which is rounded once too, has to match it to the bit.
    """
    return (x.double() + y.double()).to(x.dtype)
