"""What the right grouped GEMM is, in torch: a product a group, in float64 of the given values, on their device."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from warpplan.planner.errors import UnknownName

if TYPE_CHECKING:
    from warpplan.kernels.torch_types import Tensor

SCALE_BLOCK = 128
"""Elements of K, and of N for B, that share a block scale."""


def bounds(ends: Tensor, rows: int) -> list[tuple[int, int]]:
    """First and last row (exclusive) of each group: ends that fall are taken as the largest before them, ends outside
    of 0 to ``rows`` as the nearest of the two. Waits for the device."""
    held = ends.clamp(0, rows).cummax(0).values.tolist() if ends.numel() else []
    return list(pairwise([0, *held]))


def reference(product: str, left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """``product`` of each group: "forward" ``left`` [M, K] · ``right`` [G, N, K]ᵀ -> [M, N]; "dgrad" [M, N] · [G, N, K]
    -> [M, K]; "wgrad" [M, N]ᵀ · [M, K] -> [G, N, K].

    A row of no group is zero, and so is an empty group's wgrad. What a NaN or an infinity of one group reaches is
    within that group, and there as in a product of torch's.
    """
    left, right = left.double(), right.double()
    groups = bounds(ends, left.shape[0])
    if product == "wgrad":
        found = left.new_zeros(len(groups), left.shape[1], right.shape[1])
        for g, (first, end) in enumerate(groups):
            found[g] = left[first:end].T @ right[first:end]
        return found
    if product not in ("forward", "dgrad"):
        raise UnknownName("product", product, ("forward", "dgrad", "wgrad"))
    factors = right.transpose(1, 2) if product == "forward" else right
    found = left.new_zeros(left.shape[0], factors.shape[2])
    for g, (first, end) in enumerate(groups):
        found[first:end] = left[first:end] @ factors[g]
    return found


def scaled(values: Tensor, scales: Tensor) -> Tensor:
    """``values`` [..., rows, K] with their scales multiplied in, in float64.

    ``scales`` is [..., rows], one a row; or [..., rows, ceil(K / 128)], one for 128 adjacent elements; or
    [..., ceil(rows / 128), ceil(K / 128)], one a block.
    """
    values, scales = values.double(), scales.double()
    if scales.dim() < values.dim():
        return values * scales.unsqueeze(-1)
    spread = scales.repeat_interleave(SCALE_BLOCK, -1)[..., : values.shape[-1]]
    if spread.shape[-2] != values.shape[-2]:
        spread = spread.repeat_interleave(SCALE_BLOCK, -2)[..., : values.shape[-2], :]
    return values * spread
