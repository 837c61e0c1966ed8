"""`tl` kernels whose loads only `cp.async` can run ahead with, as people write them; some cannot be copied either."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def routed(
    a_ptr, b_ptr, c_ptr, rows_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows of A by a list, two of C for each, rows past the end left out: the shape of an expert's product."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = tl.load(rows_ptr + rm)
    inside = rows < M
    a_ptrs = a_ptr + (rows[:, None] // 2) * stride_am + tl.arange(0, BK)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        rk = tl.arange(0, BK)
        a = tl.load(a_ptrs, mask=inside[:, None] & (rk[None, :] < K - k * BK), other=0.0)
        b = tl.load(b_ptr + rn[None, :] * stride_bn + (k * BK + rk)[:, None], mask=rk[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK
    out = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16), mask=out)


@triton.jit
def both_gathered(
    a_ptr, b_ptr, c_ptr, rows_ptr, M, N, K, stride_am, stride_bk, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Nothing for TMA: rows of A and rows of B, along K, by lists."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = tl.load(rows_ptr + rm)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * stride_am + rk[None, :], mask=rk[None, :] < K, other=0.0)
        index = tl.load(rows_ptr + rk, mask=rk < K, other=0)
        b = tl.load(b_ptr + index[:, None] * stride_bk + rn[None, :], mask=rk[:, None] < K, other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def scaled(
    a_ptr, b_ptr, c_ptr, rows_ptr, s_ptr, t_ptr, M, N, K, stride_am, stride_bn, stride_cm, stride_s,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows by a list, each block of K with scales of rows and of columns."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = tl.load(rows_ptr + rm)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * stride_am + rk[None, :])
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        s = tl.load(s_ptr + rows * stride_s + k)
        t = tl.load(t_ptr + rn * stride_s + k)
        acc += tl.dot(a, b) * s[:, None] * t[None, :]
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def dequantised(
    a_ptr, q_ptr, c_ptr, s_ptr, M, N, K, stride_am, stride_qk, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Two weights of B in a byte, one row of bytes for two of B, with a zero point where there is no row."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    scale = tl.load(s_ptr + rn)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :])
        packed = tl.load(q_ptr + (rk[:, None] // 2) * stride_qk + rn[None, :], mask=rk[:, None] < K, other=8)
        nibble = (packed >> ((rk[:, None] % 2) * 4)) & 15
        acc = tl.dot(a, ((nibble - 8) * 0.25).to(tl.bfloat16), acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], (acc * scale[None, :]).to(tl.bfloat16))


@triton.jit
def zero_points(
    a_ptr, w_ptr, c_ptr, z_ptr, M, N, K, stride_am, stride_wk, stride_zk, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """4-bit weights, eight along K in an int32, and a zero for each 128 of them, eight along N: lanes that copy zeros
    lie along K, lanes that read them along N."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :], mask=rk[None, :] < K, other=0.0)
        z = tl.load(z_ptr + (rk // 128)[:, None] * stride_zk + (rn // 8)[None, :])
        z = (z >> (rn % 8 * 4)[None, :]) & 15
        w = tl.load(w_ptr + (rk // 8)[:, None] * stride_wk + rn[None, :], mask=rk[:, None] < K, other=0)
        w = (w >> (rk % 8 * 4)[:, None]) & 15
        acc = tl.dot(a, (w - z).to(tl.bfloat16), acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16), mask=rm[:, None] < M)


@triton.jit
def attended(
    q_ptr, k_ptr, v_ptr, o_ptr, slots_ptr, L, scale, stride_m,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Keys and values by a table of slots, as in a paged cache."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rd = tl.arange(0, D)
    q = tl.load(q_ptr + rm[:, None] * stride_m + rd[None, :])
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, L, BN):
        at = n + tl.arange(0, BN)
        slot = tl.load(slots_ptr + at, mask=at < L, other=0)
        k = tl.load(k_ptr + slot[None, :] * stride_m + rd[:, None], mask=at[None, :] < L, other=0.0)
        s = tl.where(at[None, :] < L, tl.dot(q, k) * scale, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        alpha = tl.exp2(top - new)
        total = total * alpha + tl.sum(p, 1)
        v = tl.load(v_ptr + slot[:, None] * stride_m + rd[None, :], mask=at[:, None] < L, other=0.0)
        acc = tl.dot(p.to(tl.bfloat16), v, acc * alpha[:, None])
        top = new
    tl.store(o_ptr + rm[:, None] * stride_m + rd[None, :], (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def chased(
    a_ptr, b_ptr, c_ptr, rows_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The next rows depend on the last product."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = tl.load(rows_ptr + rm)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * stride_am + rk[None, :])
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        acc = tl.dot(a, b, acc)
        rows = (tl.max(acc, 1) > 0).to(tl.int32)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def rewritten(
    a_ptr, b_ptr, c_ptr, rows_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The list of rows is written in the loop that reads it."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        rows = tl.load(rows_ptr + rm)
        a = tl.load(a_ptr + rows[:, None] * stride_am + rk[None, :])
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        acc = tl.dot(a, b, acc)
        tl.store(rows_ptr + rm, rows)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def scattered(
    a_ptr, b_ptr, c_ptr, rows_ptr, M, N, K, stride_am, stride_ak, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """No two elements of A beside each other, two bytes each."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = tl.load(rows_ptr + rm)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * stride_am + rk[None, :] * stride_ak)
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))
