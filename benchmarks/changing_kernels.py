"""Ten kernels for jobs whose shapes change: matrix products by pointers and by descriptors at several tiles, attention,
and a softmax that nothing can be planned of. Each with its launch at a size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

HEADS = 16


@triton.jit
def pointer_product(
    a, b, c, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """C = A·Bᵀ, by pointers with masks."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x_inside = (rows < M)[:, None] & (k + inner < K)[None, :]
        y_inside = (columns < N)[None, :] & (k + inner < K)[:, None]
        x = tl.load(a + rows[:, None] * stride_am + (k + inner)[None, :], mask=x_inside, other=0.0)
        y = tl.load(b + columns[None, :] * stride_bn + (k + inner)[:, None], mask=y_inside, other=0.0)
        acc = tl.dot(x, y, acc)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c + rows[:, None] * stride_cm + columns[None, :], acc.to(tl.bfloat16), mask=inside)


@triton.jit
def described_product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A·Bᵀ, by descriptors made on the host."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([row, k]), b.load([column, k]).T, acc)
    c.store([row, column], acc.to(tl.bfloat16))


@triton.jit
def attended(q, k, v, o, L, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Attention over L positions of one head after the other."""
    base = tl.program_id(1) * L
    start = base + tl.program_id(0) * BM
    query = q.load([start, 0])
    highest = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, L, BN):
        s = tl.dot(query, k.load([base + n, 0]).T)
        new = tl.maximum(highest, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new[:, None])
        alpha = tl.exp2(highest - new)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v.load([base + n, 0]), acc * alpha[:, None])
        highest = new
    o.store([start, 0], (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def softmax_rows(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * columns + at, e / tl.sum(e, 0), mask=at < columns)


Make = Callable[..., Any]
"""A bfloat16 tensor of a shape."""
Describe = Callable[[Any, list[int]], Any]
"""A tensor's descriptor with a block."""


@dataclass(frozen=True)
class ChangingKernel:
    """``jit`` is this one's own, so that ten kernels are ten; ``tile`` is BM, BN and BK or D."""

    name: str
    jit: Any
    style: str
    tile: tuple[int, int, int]
    warps: int

    def launch(self, m: int, n: int, k: int, make: Make, describe: Describe) -> tuple[tuple[Any, ...], Any, Any]:
        """Positional arguments, options and grid of a launch at ``m`` rows. Attention takes ``m`` as its length,
        rounded up to whole tiles, softmax ``n`` as its columns."""
        bm, bn, bk = self.tile
        options = {"num_warps": self.warps}
        if self.style == "softmax":
            return (make(m, n), make(m, n), n), {"BLOCK": triton.next_power_of_2(n), **options}, (m,)
        if self.style == "attention":
            length = triton.cdiv(m, bm) * bm
            q, key, v, o = (make(HEADS * length, bk) for _ in range(4))
            described = describe(q, [bm, bk]), describe(key, [bn, bk]), describe(v, [bn, bk]), describe(o, [bm, bk])
            return (*described, length, 1.0), {"BM": bm, "BN": bn, "D": bk, **options}, (length // bm, HEADS)
        a, b, c = make(m, k), make(n, k), make(m, n)
        grid = triton.cdiv(m, bm), triton.cdiv(n, bn)
        tile = {"BM": bm, "BN": bn, "BK": bk, **options}
        if self.style == "pointers":
            return (a, b, c, m, n, k, k, k, n), tile, grid
        return (describe(a, [bm, bk]), describe(b, [bn, bk]), describe(c, [bm, bn]), m, n, k), tile, grid


def _kernel(name: str, jit: Any, style: str, tile: tuple[int, int, int], warps: int) -> ChangingKernel:
    return ChangingKernel(name, JITFunction(jit.fn), style, tile, warps)


def kernels() -> tuple[ChangingKernel, ...]:
    """The ten, made anew: nothing of them is compiled or decided."""
    return (
        _kernel("pointers 128x128", pointer_product, "pointers", (128, 128, 64), 4),
        _kernel("pointers 128x256", pointer_product, "pointers", (128, 256, 64), 8),
        _kernel("pointers 64x128", pointer_product, "pointers", (64, 128, 64), 4),
        _kernel("pointers 128x64", pointer_product, "pointers", (128, 64, 64), 4),
        _kernel("descriptors 128x128", described_product, "descriptors", (128, 128, 64), 4),
        _kernel("descriptors 128x256", described_product, "descriptors", (128, 256, 64), 8),
        _kernel("descriptors 64x256", described_product, "descriptors", (64, 256, 64), 4),
        _kernel("attention D 64", attended, "attention", (128, 128, 64), 4),
        _kernel("attention D 128", attended, "attention", (128, 128, 128), 8),
        _kernel("softmax", softmax_rows, "softmax", (1, 1, 1), 4),
    )
