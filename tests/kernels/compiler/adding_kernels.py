"""Products that are added to memory: split over the depth, or one of each step of a loop."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def added(
    a_ptr, b_ptr, c_ptr, d_ptr, flag_ptr, M, N, K, stride_am, stride_bn, stride_cm, HOW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A product over the program's part of K, which HOW says how to add."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    at = c_ptr + rm[:, None] * stride_cm + rn[None, :]
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    first = tl.program_id(1) * 2 * BK
    for k in range(first, first + 2 * BK, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * stride_am + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + rn[None, :] * stride_bn + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < K), other=0.0
        )
        part = tl.dot(a, b)
        acc += part
        if HOW == "every iteration" or HOW == "added and stored":
            tl.atomic_add(at, part, mask=inside, sem="relaxed")
        if HOW == "told in the loop":
            tl.atomic_add(at, part, mask=inside)
            tl.atomic_add(flag_ptr, 1)
    if HOW == "split" or HOW == "two tensors" or HOW == "told" or HOW == "read elsewhere":
        tl.atomic_add(at, acc, mask=inside)
    if HOW == "added and stored":
        tl.store(d_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16), mask=inside)
    if HOW == "everywhere":
        tl.atomic_add(at, acc, sem="relaxed")
    if HOW == "two tensors":
        tl.atomic_add(d_ptr + rm[:, None] * stride_cm + rn[None, :], 2 * acc, mask=inside)
    if HOW == "told":
        tl.atomic_add(flag_ptr, 1)
    if HOW == "exchanged":
        tl.atomic_xchg(at, acc, mask=inside)
    if HOW == "what was there":
        tl.store(d_ptr + rm[:, None] * stride_cm + rn[None, :], tl.atomic_add(at, acc, mask=inside), mask=inside)
    if HOW == "for all to see":
        tl.atomic_add(at, acc, mask=inside, scope="sys")
    if HOW == "triangle":
        tl.atomic_add(at, acc, mask=inside & (rn[None, :] <= rm[:, None]))
    if HOW == "read elsewhere":
        tl.store(d_ptr + rm, tl.sum(tl.load(at, mask=inside, other=0.0), 1), mask=rm < M)
