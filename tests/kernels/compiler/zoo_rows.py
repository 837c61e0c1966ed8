"""Kernels without matrix products: nothing of them is worth specialising, and they must be left as they are."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dropout(x_ptr, y_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    keep = tl.rand(seed, offsets) > p
    tl.store(y_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=offsets < n)


@triton.jit
def cross_entropy(logits_ptr, label_ptr, loss_ptr, V, BLOCK: tl.constexpr):
    """Online log-sum-exp over a vocabulary in blocks."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(label_ptr + row)
    highest = -float("inf")
    total = 0.0
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * V + columns, mask=columns < V, other=-float("inf")).to(tl.float32)
        new = tl.maximum(highest, tl.max(x, 0))
        total = total * tl.exp(highest - new) + tl.sum(tl.exp(x - new), 0)
        highest = new
    chosen = tl.load(logits_ptr + row * V + label).to(tl.float32)
    tl.store(loss_ptr + row, tl.log(total) + highest - chosen)


@triton.jit
def rms_norm(x_ptr, w_ptr, y_ptr, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + columns, mask=columns < N, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / N + eps) * w
    tl.store(y_ptr + row * N + columns, y.to(tl.bfloat16), mask=columns < N)


@triton.jit
def swiglu(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        gate = tl.load(x_ptr + row * 2 * n + at, mask=at < n, other=0.0).to(tl.float32)
        up = tl.load(x_ptr + row * 2 * n + n + at, mask=at < n, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n + at, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=at < n)


@triton.jit
def combine(a, b):
    return a + b


@triton.jit
def scan(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A running sum carried over blocks of a row, by an associative scan with its own combining function."""
    carry = 0.0
    for start in range(0, n, BLOCK):
        at = tl.program_id(0) * n + start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=start + tl.arange(0, BLOCK) < n, other=0.0)
        tl.store(y_ptr + at, tl.associative_scan(x, 0, combine) + carry, mask=start + tl.arange(0, BLOCK) < n)
        carry += tl.sum(x, 0)


@triton.jit
def histogram(x_ptr, counts_ptr, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x_ptr + at, mask=at < n, other=0), BINS)
    tl.atomic_add(counts_ptr + tl.arange(0, BINS), counts)


@triton.jit
def transposed_copy(x_desc, y_desc, COLUMNS, BLOCK: tl.constexpr):
    """Tiles by TMA with no product in sight."""
    row = tl.program_id(0) * BLOCK
    for column in range(0, COLUMNS, BLOCK):
        y_desc.store([column, row], x_desc.load([row, column]).T)
