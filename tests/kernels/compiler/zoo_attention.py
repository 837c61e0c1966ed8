"""Attention in the styles that people write."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def inner(
    acc, total, highest, q, k_desc, v_desc, base, low, high, rows, scale, BN: tl.constexpr, DIAGONAL: tl.constexpr
):
    """The tutorial's inner loop over keys [low, high)."""
    for n in range(low, high, BN):
        n = tl.multiple_of(n, BN)
        s = tl.dot(q, k_desc.load([base + n, 0]).T) * scale
        if DIAGONAL:
            s = tl.where(rows[:, None] >= (n + tl.arange(0, BN))[None, :], s, -1.0e6)
        new = tl.maximum(highest, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        alpha = tl.math.exp2(highest - new)
        total = total * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(tl.bfloat16), v_desc.load([base + n, 0]), acc)
        highest = new
    return acc, total, highest


@triton.jit
def tutorial_causal(
    q_desc, k_desc, v_desc, o_desc, m_ptr, L, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """The fused-attention tutorial: full blocks, then the diagonal, the row maxima kept for the backward pass."""
    start, head = tl.program_id(0) * BM, tl.program_id(1)
    base = head * L
    rows = start + tl.arange(0, BM)
    highest = tl.zeros((BM,), dtype=tl.float32) - float("inf")
    total = tl.zeros((BM,), dtype=tl.float32) + 1.0
    acc = tl.zeros((BM, D), dtype=tl.float32)
    q = q_desc.load([base + start, 0])
    acc, total, highest = inner(acc, total, highest, q, k_desc, v_desc, base, 0, start, rows, scale, BN, False)
    acc, total, highest = inner(acc, total, highest, q, k_desc, v_desc, base, start, start + BM, rows, scale, BN, True)
    tl.store(m_ptr + head * L + rows, highest + tl.math.log2(total))
    o_desc.store([base + start, 0], (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def alibi_and_bias(
    q_desc, k_desc, v_desc, bias_ptr, slope_ptr, o_desc, H, L, scale, BM: tl.constexpr, BN: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """A slope for each head and a dense bias [L, L] added to the scores."""
    start, head = tl.program_id(0) * BM, tl.program_id(1)
    base = head * L
    rows = start + tl.arange(0, BM)
    slope = tl.load(slope_ptr + head % H)
    highest = tl.full((BM,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BM,), dtype=tl.float32)
    acc = tl.zeros((BM, D), dtype=tl.float32)
    q = q_desc.load([base + start, 0])
    for n in range(0, L, BN):
        columns = n + tl.arange(0, BN)
        bias = tl.load(bias_ptr + rows[:, None] * L + columns[None, :]).to(tl.float32)
        s = tl.dot(q, k_desc.load([base + n, 0]).T) * scale + bias
        s -= slope * (rows[:, None] - columns[None, :]).to(tl.float32)
        new = tl.maximum(highest, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        alpha = tl.exp2(highest - new)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v_desc.load([base + n, 0]), acc * alpha[:, None])
        highest = new
    o_desc.store([base + start, 0], (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def flash_decoding(
    q_ptr, k_desc, v_desc, o_ptr, lse_ptr, L, per_part, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """A few queries of one head against a part of its keys; the parts are merged by another kernel."""
    head, part = tl.program_id(0), tl.program_id(1)
    rows, d = tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(q_ptr + (head * BM + rows)[:, None] * D + d[None, :])
    highest = tl.full((BM,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BM,), dtype=tl.float32)
    acc = tl.zeros((BM, D), dtype=tl.float32)
    low = part * per_part
    for n in range(low, min(low + per_part, L), BN):
        s = tl.dot(q, k_desc.load([head * L + n, 0]).T) * scale
        s = tl.where((n + tl.arange(0, BN))[None, :] < L, s, -float("inf"))
        new = tl.maximum(highest, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        alpha = tl.exp2(highest - new)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v_desc.load([head * L + n, 0]), acc * alpha[:, None])
        highest = new
    at = (head * tl.num_programs(1) + part) * BM + rows
    tl.store(lse_ptr + at, highest + tl.log2(total))
    tl.store(o_ptr + at[:, None] * D + d[None, :], acc / total[:, None])


@triton.jit
def linear_attention(q_desc, k_desc, v_desc, o_desc, L, BM: tl.constexpr, D: tl.constexpr):
    """Causal attention without softmax: a state [D, D] carried over chunks of the sequence."""
    base = tl.program_id(0) * L
    rows = tl.arange(0, BM)
    state = tl.zeros((D, D), dtype=tl.float32)
    for n in range(0, L, BM):
        q = q_desc.load([base + n, 0])
        k = k_desc.load([base + n, 0])
        v = v_desc.load([base + n, 0])
        s = tl.where(rows[:, None] >= rows[None, :], tl.dot(q, k.T), 0.0)
        o = tl.dot(s.to(tl.bfloat16), v) + tl.dot(q, state.to(tl.bfloat16))
        state += tl.dot(k.T, v)
        o_desc.store([base + n, 0], o.to(tl.bfloat16))
