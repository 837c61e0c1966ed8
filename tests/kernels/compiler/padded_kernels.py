"""Plain `tl` kernels whose row strides are sums: padded matrices, and queries, keys and values packed in one tensor."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_stride(K, N, HOW: tl.constexpr):
    """The elements from one row to the next, as HOW says."""
    if HOW == "K + 16":
        return K + 16
    if HOW == "K + 8":
        return K + 8
    if HOW == "K + 4":
        return K + 4
    if HOW == "K + 64":
        return K + 64
    if HOW == "K * 2 + 16":
        return K * 2 + 16
    if HOW == "K + N":
        return K + N
    if HOW == "K * 2 - N":
        return K * 2 - N
    return K * 2


@triton.jit
def padded(
    a_ptr, b_ptr, c_ptr, M, N, K, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, BATCHED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A is [M, K] and B is [K, N] in rows that A and B say, the result in rows that C says; a batch behind the other
    where BATCHED."""
    lda = row_stride(K, N, A)
    ldb = row_stride(N, K, B)
    ldc = row_stride(N, K, C)
    batch = tl.program_id(2)
    if BATCHED:
        a_ptr += batch * M * lda
        c_ptr += batch * M * ldc
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    ok = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + ok
        a = tl.load(a_ptr + rm[:, None] * lda + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        b = tl.load(b_ptr + rk[:, None] * ldb + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(c_ptr + rm[:, None] * ldc + rn[None, :], acc.to(tl.bfloat16), mask=inside)


@triton.jit
def advanced(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Pointers advanced in the loop, B by rows of N + 16; both begin some rows and columns into their tensors."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a_ptrs = a_ptr + (rm[:, None] + 2) * (K + 16) + rk[None, :] + 8
    b_ptrs = b_ptr + (rk[:, None] + 3) * (N + 16) + rn[None, :] + 16
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptrs, mask=(rm[:, None] < M) & (rk[None, :] < K - k), other=0.0)
        b = tl.load(b_ptrs, mask=(rk[:, None] < K - k) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK
        b_ptrs += BK * (N + 16)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16), mask=inside)


@triton.jit
def packed(
    qkv_ptr, o_ptr, L, H, HK, WHERE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Attention without a softmax over [batch, L, H + 2 HK, D]; a head's offset is added to the pointer or the tile."""
    head = tl.program_id(1) % H
    stride = (H + 2 * HK) * D
    start = (tl.program_id(1) // H) * L * stride
    q_at = head * D
    k_at = (H + head // (H // HK)) * D
    v_at = (H + HK + head // (H // HK)) * D
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rd = tl.arange(0, D)
    base = qkv_ptr + start
    acc = tl.zeros((BM, D), tl.float32)
    q = tl.load(base + q_at + rm[:, None] * stride + rd[None, :], mask=rm[:, None] < L, other=0.0)
    for n in range(0, L, BN):
        rn = n + tl.arange(0, BN)
        if WHERE == "pointer":
            k = tl.load(base + k_at + rn[None, :] * stride + rd[:, None], mask=rn[None, :] < L, other=0.0)
            v = tl.load(base + v_at + rn[:, None] * stride + rd[None, :], mask=rn[:, None] < L, other=0.0)
        else:
            k = tl.load(base + (k_at + rn[None, :] * stride + rd[:, None]), mask=rn[None, :] < L, other=0.0)
            v = tl.load(base + (v_at + rn[:, None] * stride + rd[None, :]), mask=rn[:, None] < L, other=0.0)
        s = tl.dot(q, k)
        acc = tl.dot(s.to(tl.bfloat16), v, acc)
    o_ptrs = o_ptr + (tl.program_id(1) * L + rm[:, None]) * D + rd[None, :]
    tl.store(o_ptrs, acc.to(tl.bfloat16), mask=rm[:, None] < L)
