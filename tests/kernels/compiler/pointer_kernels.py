"""Plain `tl` kernels that load through pointers, as people write them: what a TMA load can stand for, and what not."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tutorial_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Programs in groups, rows and columns that wrap, a mask on the depth alone, pointers advanced in the loop."""
    pid = tl.program_id(0)
    num_pid_m = tl.cdiv(M, BM)
    num_pid_n = tl.cdiv(N, BN)
    num_pid_in_group = GROUP_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BM + tl.arange(0, BM)) % M
    offs_bn = (pid_n * BN + tl.arange(0, BN)) % N
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    c = acc.to(tl.bfloat16)
    offs_cm = pid_m * BM + tl.arange(0, BM)
    offs_cn = pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, c, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


@triton.jit
def masked_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Masks that are the tensors' bounds; B lies as [N, K]; pointers made anew in each iteration."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        in_a = (rm[:, None] < M) & (rk[None, :] < K)
        in_b = (rn[None, :] < N) & (rk[:, None] < K)
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :], mask=in_a, other=0.0)
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None], mask=in_b, other=0.0)
        acc = tl.dot(a, b, acc)
    c_ptrs = c_ptr + rm[:, None] * stride_cm + rn[None, :]
    tl.store(c_ptrs, acc.to(tl.bfloat16), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def block_pointer_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    a = tl.make_block_ptr(a_ptr, (M, K), (stride_am, 1), (m, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (stride_bk, 1), (0, n), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(a, boundary_check=(0, 1)), tl.load(b, boundary_check=(0, 1)), acc)
        a = tl.advance(a, (0, BK))
        b = tl.advance(b, (BK, 0))
    c = tl.make_block_ptr(c_ptr, (M, N), (stride_cm, 1), (m, n), (BM, BN), (1, 0))
    tl.store(c, acc.to(tl.bfloat16), boundary_check=(0, 1))


@triton.jit
def block_pointer_attention(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, stride_z, stride_h, stride_m, H, L,
    CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0)
    batch = tl.program_id(1) // H
    head = tl.program_id(1) % H
    offset = batch.to(tl.int64) * stride_z + head.to(tl.int64) * stride_h
    q_block = tl.make_block_ptr(q_ptr + offset, (L, D), (stride_m, 1), (start * BM, 0), (BM, D), (1, 0))
    k_block = tl.make_block_ptr(k_ptr + offset, (D, L), (1, stride_m), (0, 0), (D, BN), (0, 1))
    v_block = tl.make_block_ptr(v_ptr + offset, (L, D), (stride_m, 1), (0, 0), (BN, D), (1, 0))
    o_block = tl.make_block_ptr(o_ptr + offset, (L, D), (stride_m, 1), (start * BM, 0), (BM, D), (1, 0))
    offs_m = start * BM + tl.arange(0, BM)
    offs_n = tl.arange(0, BN)
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    q = tl.load(q_block)
    end = L
    if CAUSAL:
        end = (start + 1) * BM
    for n in range(0, end, BN):
        s = tl.dot(q, tl.load(k_block)) * scale
        if CAUSAL:
            s = tl.where(offs_m[:, None] >= (n + offs_n)[None, :], s, float("-inf"))
        largest = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - largest[:, None])
        alpha = tl.exp2(m - largest)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), tl.load(v_block), acc * alpha[:, None])
        m = largest
        k_block = tl.advance(k_block, (0, BN))
        v_block = tl.advance(v_block, (BN, 0))
    tl.store(o_block, (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def unmasked_store(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Rows of A wrap, and what they give is stored."""
    rm = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :])
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def summed_columns(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Rows of A are clamped; the store's mask leaves them out, a sum over rows does not."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = tl.where(rm < M, rm, 0)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + inside[:, None] * stride_am + rk[None, :])
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        acc = tl.dot(a, b, acc)
    acc += tl.sum(acc, 0)[None, :]
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16), mask=rm[:, None] < M)


@triton.jit
def clamped_rows(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Rows are clamped, and neither stored nor added to other rows; columns that are added up are masked."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = tl.minimum(rm, M - 1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + inside[:, None] * stride_am + rk[None, :], mask=rk[None, :] < K, other=0.0)
        in_b = (rn[None, :] < N) & (rk[:, None] < K)
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None], mask=in_b, other=0.0)
        acc = tl.dot(a * 2, b, acc)
    acc = tl.maximum(acc, tl.sum(acc, 1)[:, None])
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def gathered(
    a_ptr, b_ptr, c_ptr, rows_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows of A by a list."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rows = tl.load(rows_ptr + rm)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * stride_am + rk[None, :])
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def filled_with_ones(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :], mask=rm[:, None] < M, other=1.0)
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def triangle(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """A's upper triangle is not read."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :], mask=rk[None, :] <= rm[:, None], other=0.0)
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def before_the_tensor(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """A's tile starts a column before what the pointer points to, in each iteration."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = tl.arange(0, BK) - k
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :])
        b = tl.load(b_ptr + rn[None, :] * stride_bn + (k + tl.arange(0, BK))[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def odd_column(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """A's tile starts four columns, 8 bytes, behind where the loop's counter says."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + 4 + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :], mask=rk[None, :] < K, other=0.0)
        b = tl.load(b_ptr + rn[None, :] * stride_bn + (k + tl.arange(0, BK))[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def in_place(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """The result goes to where A is."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :])
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(a_ptr + rm[:, None] * stride_am + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def ragged_attention(
    q_ptr, k_ptr, v_ptr, o_ptr, starts_ptr, scale, stride_m, stride_h,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Sequences one after the other, their lengths in memory; keys masked by the length of each."""
    first = tl.load(starts_ptr + tl.program_id(1))
    length = tl.load(starts_ptr + tl.program_id(1) + 1) - first
    head = tl.program_id(2) * stride_h
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    rd = tl.arange(0, D)
    q = tl.load(q_ptr + head + (first + rm)[:, None] * stride_m + rd[None, :], mask=rm[:, None] < length, other=0.0)
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, length, BN):
        keys = first + n + rn
        k = tl.load(k_ptr + head + keys[None, :] * stride_m + rd[:, None], mask=(n + rn)[None, :] < length, other=0.0)
        v = tl.load(v_ptr + head + keys[:, None] * stride_m + rd[None, :], mask=(n + rn)[:, None] < length, other=0.0)
        s = tl.where((n + rn)[None, :] < length, tl.dot(q, k) * scale, float("-inf"))
        largest = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - largest[:, None])
        alpha = tl.exp2(m - largest)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v, acc * alpha[:, None])
        m = largest
    place = o_ptr + head + (first + rm)[:, None] * stride_m + rd[None, :]
    tl.store(place, (acc / total[:, None]).to(tl.bfloat16), mask=rm[:, None] < length)


@triton.jit
def two_stage_attention(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, stride_z, stride_h, stride_m, H, L,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Blocks below the diagonal without a mask, those on it with one; block pointers go on where they are."""
    start = tl.program_id(0)
    offset = (tl.program_id(1) // H).to(tl.int64) * stride_z + (tl.program_id(1) % H).to(tl.int64) * stride_h
    q_block = tl.make_block_ptr(q_ptr + offset, (L, D), (stride_m, 1), (start * BM, 0), (BM, D), (1, 0))
    k_block = tl.make_block_ptr(k_ptr + offset, (D, L), (1, stride_m), (0, 0), (D, BN), (0, 1))
    v_block = tl.make_block_ptr(v_ptr + offset, (L, D), (stride_m, 1), (0, 0), (BN, D), (1, 0))
    o_block = tl.make_block_ptr(o_ptr + offset, (L, D), (stride_m, 1), (start * BM, 0), (BM, D), (1, 0))
    offs_m = start * BM + tl.arange(0, BM)
    offs_n = tl.arange(0, BN)
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    q = tl.load(q_block)
    for _ in range(0, start * BM, BN):
        s = tl.dot(q, tl.load(k_block)) * scale
        largest = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - largest[:, None])
        alpha = tl.exp2(m - largest)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), tl.load(v_block), acc * alpha[:, None])
        m = largest
        k_block = tl.advance(k_block, (0, BN))
        v_block = tl.advance(v_block, (BN, 0))
    for n in range(start * BM, (start + 1) * BM, BN):
        s = tl.dot(q, tl.load(k_block)) * scale
        s = tl.where(offs_m[:, None] >= (n + offs_n)[None, :], s, float("-inf"))
        largest = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - largest[:, None])
        alpha = tl.exp2(m - largest)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), tl.load(v_block), acc * alpha[:, None])
        m = largest
        k_block = tl.advance(k_block, (0, BN))
        v_block = tl.advance(v_block, (BN, 0))
    tl.store(o_block, (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def persistent_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm, BLOCKS,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Walks over its tiles by itself, with indices wrapped and masks as the persistent tutorial has them."""
    across = tl.cdiv(N, BN)
    offs_k = tl.arange(0, BK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, BLOCKS):
        rm = (tile // across) * BM + tl.arange(0, BM)
        rn = (tile % across) * BN + tl.arange(0, BN)
        inside_m = tl.max_contiguous(tl.multiple_of(tl.where(rm < M, rm, 0), BM), BM)
        inside_n = tl.max_contiguous(tl.multiple_of(tl.where(rn < N, rn, 0), BN), BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for i in range(tl.cdiv(K, BK)):
            rk = i * BK + offs_k
            left = K - i * BK
            a = tl.load(a_ptr + inside_m[:, None] * stride_am + rk[None, :], mask=offs_k[None, :] < left, other=0.0)
            b = tl.load(b_ptr + rk[:, None] * stride_bk + inside_n[None, :], mask=offs_k[:, None] < left, other=0.0)
            acc = tl.dot(a, b, acc)
        c_ptrs = c_ptr + rm[:, None] * stride_cm + rn[None, :]
        tl.store(c_ptrs, acc.to(tl.bfloat16), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def split_k_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Parts of the depth added up in memory; A is halved on the way."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.program_id(2) * BK + tl.arange(0, BK)
    a_ptrs = a_ptr + (rm % M)[:, None] * stride_am + rk[None, :]
    b_ptrs = b_ptr + rk[:, None] * stride_bk + (rn % N)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(K, BK * SPLIT)):
        left = K - i * (BK * SPLIT)
        a = tl.load(a_ptrs, mask=rk[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=rk[:, None] < left, other=0.0)
        acc += tl.dot((a.to(tl.float32) * 0.5).to(tl.bfloat16), b)
        a_ptrs += BK * SPLIT
        b_ptrs += BK * SPLIT * stride_bk
    tl.atomic_add(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def template_matmul(
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, stride_am: tl.constexpr,
    stride_bk: tl.constexpr, stride_cm: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As generated for one size: numbers in place of arguments, indices that wrap, with hints."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_m = tl.max_contiguous(tl.multiple_of(rm % M, BM), BM)
    offs_n = tl.max_contiguous(tl.multiple_of(rn % N, BN), BN)
    offs_k = tl.arange(0, BK).to(tl.int32)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(K, BK)):
        at_a = offs_k[None, :] + i * BK
        at_b = offs_k[:, None] + i * BK
        a = tl.load(a_ptr + (at_a + stride_am * offs_m[:, None]), mask=offs_k[None, :] < (K - i * BK), other=0.0)
        b = tl.load(b_ptr + (offs_n[None, :] + stride_bk * at_b), mask=offs_k[:, None] < (K - i * BK), other=0.0)
        acc += tl.dot(a, b, allow_tf32=False)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    place = rn[None, :] + stride_cm * rm[:, None]
    tl.store(c_ptr + tl.broadcast_to(place, [BM, BN]), acc.to(tl.bfloat16), mask=inside)
