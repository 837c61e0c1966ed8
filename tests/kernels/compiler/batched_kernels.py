"""Plain `tl` products with batches, through pointers: offsets that are outer dimensions of a descriptor, and that are
not; stores of their results that a TMA store can stand for, and that one cannot."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def batched(
    a_ptr, b_ptr, c_ptr, table_ptr, M, N, K, H, stride_ab, stride_ah, stride_am, stride_bb, stride_bn, stride_cb,
    stride_cm, OFFSET: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A product for each of program_id(2), which OFFSET says how to find."""
    number = tl.program_id(2)
    rows = M
    a_at = number.to(tl.int64) * stride_ab
    if OFFSET == "heads":
        a_at = (number // H).to(tl.int64) * stride_ab + (number % H).to(tl.int64) * stride_ah
    if OFFSET == "wide heads":
        a_at = number.to(tl.int64) // H * stride_ab + number.to(tl.int64) % H * stride_ah
    if OFFSET == "fixed":
        a_at = number * 13056
    if OFFSET == "looked up":
        a_at = tl.load(table_ptr + number) * stride_ab
    if OFFSET == "behind":
        a_at = (2 - number) * stride_ab
    if OFFSET == "squared":
        a_at = number * number * stride_ab
    if OFFSET == "sized":
        a_at = number * H * 8
    if OFFSET == "ragged":
        rows = M - tl.load(table_ptr + number)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        in_a = (rm[:, None] < rows) & (rk[None, :] < K)
        in_b = (rn[None, :] < N) & (rk[:, None] < K)
        a = tl.load(a_ptr + a_at + rm[:, None] * stride_am + rk[None, :], mask=in_a, other=0.0)
        b = tl.load(b_ptr + number * stride_bb + rn[None, :] * stride_bn + rk[:, None], mask=in_b, other=0.0)
        acc = tl.dot(a, b, acc)
    c_ptrs = c_ptr + number * stride_cb + rm[:, None] * stride_cm + rn[None, :]
    tl.store(c_ptrs, acc.to(tl.bfloat16), mask=(rm[:, None] < rows) & (rn[None, :] < N))


@triton.jit
def stored(
    a_ptr, b_ptr, c_ptr, d_ptr, flag_ptr, M, N, K, top, stride_am, stride_bn, stride_cm, HOW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A product whose result HOW says how to store."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    at = c_ptr + rm[:, None] * stride_cm + rn[None, :]
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    if HOW == "read before":
        acc += tl.load(at, mask=inside, other=0.0)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * stride_am + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + rn[None, :] * stride_bn + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < K), other=0.0
        )
        acc = tl.dot(a, b, acc)
        if HOW == "every iteration":
            tl.store(at, acc.to(tl.bfloat16), mask=inside)
    c = acc.to(tl.bfloat16)
    if HOW == "tighter":
        inside = inside & (rm[:, None] < top)
    if HOW == "columns alone":
        inside = rn[None, :] < N
    if HOW == "from a row on":
        inside = inside & (rm[:, None] >= top)
    if HOW == "triangle":
        inside = inside & (rn[None, :] <= rm[:, None])
    if HOW == "wrapped":
        at = c_ptr + (rm % M)[:, None] * stride_cm + rn[None, :]
        inside = rn[None, :] < N
    if HOW == "turned":
        at = c_ptr + rm[:, None] + rn[None, :] * stride_cm
    if HOW == "shifted":
        at = c_ptr + 4 + rm[:, None] * stride_cm + rn[None, :]
    if HOW == "everywhere":
        tl.store(at, c)
    elif HOW == "sometimes":
        if top > 0:
            tl.store(at, c, mask=inside)
    elif HOW == "past caches":
        tl.store(at, c, mask=inside, cache_modifier=".wt")
    elif HOW != "every iteration":
        tl.store(at, c, mask=inside)
    if HOW == "two tensors":
        tl.store(d_ptr + rm[:, None] * stride_cm + rn[None, :], (2 * acc).to(tl.bfloat16), mask=inside)
    if HOW == "stored again":
        tl.store(at, (2 * acc).to(tl.bfloat16), mask=inside)
    if HOW == "read after":
        tl.store(d_ptr + rm, tl.sum(tl.load(at, mask=inside, other=0.0), 1), mask=rm < M)
    if HOW == "told":
        tl.atomic_add(flag_ptr, 1)
    if HOW == "met":
        tl.debug_barrier()
        tl.store(flag_ptr, 1)
