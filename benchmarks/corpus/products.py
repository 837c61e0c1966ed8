"""What the products share: tile lists, the grouped order of tiles, operands with their strides, references."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import triton
import triton.language as tl
from corpus_entry import Argument, Constants, Tensor, Tensors, cdiv, output, strides

Sizes = Mapping[str, int]
CUBE = {"M": 4096, "N": 4096, "K": 4096}
CHOICES = {"M": (64, 17, 300, 1024, 2048), "N": (128, 48, 520, 1024), "K": (128, 64, 200, 1024)}
EVEN = {"M": (128, 17, 300, 1024, 2048), "N": (256, 512, 1024), "K": (128, 256, 1024)}
"""Sizes for kernels whose descriptors or masks need rows of 16 bytes, or K in whole blocks."""


def tiles(*wanted: tuple[int, int, int, int, int], **more: Any) -> list[triton.Config]:
    """(BLOCK_M, BLOCK_N, BLOCK_K, stages, warps) each."""
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, **more}, num_stages=stages, num_warps=warps)
        for m, n, k, stages, warps in wanted
    ]


USUAL = (
    (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (128, 128, 64, 4, 8), (64, 64, 64, 5, 2),
)  # fmt: skip


@triton.jit
def tile_in_group(pid, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a tile in the order that walks down GROUP_M rows of tiles first."""
    rows = tl.cdiv(M, BLOCK_M)
    across = tl.cdiv(N, BLOCK_N)
    per_group = GROUP_M * across
    first = pid // per_group * GROUP_M
    height = min(rows - first, GROUP_M)
    return first + pid % per_group % height, pid % per_group // height


def product(t: Tensors) -> Any:
    return t["a"].float() @ t["b"].float()


def cublas(t: Tensors) -> Callable[[], object]:
    import torch

    return lambda: torch.mm(t["a"], t["b"], out=t["c"])


def operands(s: Sizes, dtype: str, transposed: bool = False) -> dict[str, Tensor]:
    """A [M, K], B [K, N] (stored [N, K] where ``transposed``) and C [M, N]."""
    b = (s["N"], s["K"]) if transposed else (s["K"], s["N"])
    return {"a": Tensor((s["M"], s["K"]), dtype), "b": Tensor(b, dtype), "c": output(s["M"], s["N"], dtype=dtype)}


def addresses(transposed: bool = False) -> dict[str, Argument]:
    """The three pointers and all of their strides."""
    return {
        "a_ptr": "a", "b_ptr": "b", "c_ptr": "c", **strides("a", "stride_a", "mk"),
        **strides("b", "stride_b", "nk" if transposed else "kn"), **strides("c", "stride_c", "mn"),
    }  # fmt: skip


def tile_grid(s: Sizes, parts: int = 1) -> Callable[[Constants], tuple[int, ...]]:
    """Tiles in one dimension, ``parts`` in the next."""
    return lambda c: (cdiv(s["M"], c["BLOCK_M"]) * cdiv(s["N"], c["BLOCK_N"]), parts, 1)


def flops(s: Sizes) -> float:
    return 2.0 * s["M"] * s["N"] * s["K"]


def product_transposed(t: Tensors) -> Any:
    return t["a"].float() @ t["b"].float().T


def cublas_transposed(t: Tensors) -> Callable[[], object]:
    import torch

    return lambda: torch.mm(t["a"], t["b"].T, out=t["c"])
