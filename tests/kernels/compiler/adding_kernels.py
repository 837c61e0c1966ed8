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
        if HOW == "converted":
            b = (2.0 * b).to(tl.bfloat16)
        part = tl.dot(a, b)
        acc += part
        if HOW == "every iteration" or HOW == "added and stored":
            tl.atomic_add(at, part, mask=inside, sem="relaxed")
        if HOW == "told in the loop":
            tl.atomic_add(at, part, mask=inside)
            tl.atomic_add(flag_ptr, 1)
    if HOW == "split" or HOW == "two tensors" or HOW == "told" or HOW == "read elsewhere" or HOW == "converted":
        tl.atomic_add(at, acc, mask=inside)
    if HOW == "added beside a store":
        tl.atomic_add(at, acc, mask=inside)
    if HOW == "added and stored" or HOW == "added beside a store":
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
    if HOW == "released":
        tl.atomic_add(at, acc, mask=inside, sem="release")
    if HOW == "a flag of fractions" or HOW == "polled":
        tl.atomic_add(at, acc, mask=inside)
    if HOW == "a flag of fractions":
        tl.atomic_add(d_ptr + tl.arange(0, 16), 1.0, sem="release")
    if HOW == "polled":
        tl.store(d_ptr + rm, tl.load(d_ptr + 1024 + rm, cache_modifier=".cv"))
    if HOW == "stored as no box":
        tl.store(d_ptr + rm[:, None] * stride_cm + rn[None, :], acc, mask=inside)
        tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc, mask=inside & (rn[None, :] <= rm[:, None]))
    if HOW == "for all to see":
        tl.atomic_add(at, acc, mask=inside, scope="sys")
    if HOW == "triangle":
        tl.atomic_add(at, acc, mask=inside & (rn[None, :] <= rm[:, None]))
    if HOW == "read elsewhere":
        tl.store(d_ptr + rm, tl.sum(tl.load(at, mask=inside, other=0.0), 1), mask=rm < M)


@triton.jit
def added_from_descriptors(a, b, c_ptr, K, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """No load through a pointer."""
    row = tl.program_id(0) * BM
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([row, k]), b.load([0, k]).T, acc)
    tl.atomic_add(c_ptr + (row + tl.arange(0, BM))[:, None] * stride_cm + tl.arange(0, BN)[None, :], acc)
