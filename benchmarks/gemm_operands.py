"""Random operands for timing, rotated so that L2 holds none of the next launch's data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

COLD_BYTES = 192 * 2**20
"""Three times the L2 of an H200."""
MAX_SETS = 64


@dataclass(frozen=True, eq=False)
class Operands:
    """One launch's tensors: A [M, K], B [N, K], C [M, N] poisoned with NaN."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor


def operands(shape: tuple[int, int, int], dtype: torch.dtype, *, sets: int | None = None) -> list[Operands]:
    m, n, k = shape
    each = (m * k + n * k + m * n) * dtype.itemsize
    count = sets or min(MAX_SETS, max(1, -(-COLD_BYTES // each)))
    return [
        Operands(
            torch.randn(m, k, device="cuda", dtype=dtype),
            torch.randn(n, k, device="cuda", dtype=dtype),
            torch.full((m, n), float("nan"), device="cuda", dtype=dtype),
        )
        for _ in range(count)
    ]
