"""Kernels whose launches are priced in the tests: a product that loads through pointers, through block pointers, of
rows and experts that are looked up, sums over rows of unequal lengths, and loops that end by a comparison."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pointer_product(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    columns = tl.cdiv(N, BLOCK_N)
    rows = (pid // columns) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (pid % columns) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + depth[None, :]
    b_ptrs = b_ptr + depth[:, None] * stride_bk + cols[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=depth[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_bk
    c_ptrs = c_ptr + rows[:, None] * stride_cm + cols[None, :]
    tl.store(c_ptrs, acc.to(tl.bfloat16), mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def widened_product(
    a_ptr, b_ptr, c_ptr, K, stride_am, stride_bk, stride_cm, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The second operand has 8 bits, and is converted to the first one's type."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * stride_am + (k + inner)[None, :])
        b = tl.load(b_ptr + (k + inner)[:, None] * stride_bk + columns[None, :])
        acc = tl.dot(a, b.to(a.dtype), acc)
    tl.store(c_ptr + rows[:, None] * stride_cm + columns[None, :], acc)


@triton.jit
def row_twice(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """A row that two loops read."""
    start = x_ptr + tl.program_id(0) * N
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N, BLOCK):
        total += tl.load(start + k + tl.arange(0, BLOCK))
    mean = tl.sum(total) / N
    for k in range(0, N, BLOCK):
        x = tl.load(start + k + tl.arange(0, BLOCK))
        tl.store(out_ptr + tl.program_id(0) * N + k + tl.arange(0, BLOCK), x - mean)


@triton.jit
def block_pointer_product(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row, col = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    a_block = tl.make_block_ptr(a_ptr, (M, K), (K, 1), (row, 0), (BLOCK_M, BLOCK_K), (1, 0))
    b_block = tl.make_block_ptr(b_ptr, (K, N), (N, 1), (0, col), (BLOCK_K, BLOCK_N), (1, 0))
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_K):
        acc = tl.dot(tl.load(a_block), tl.load(b_block), acc)
        a_block = tl.advance(a_block, (0, BLOCK_K))
        b_block = tl.advance(b_block, (BLOCK_K, 0))
    c_block = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (row, col), (BLOCK_M, BLOCK_N), (1, 0))
    tl.store(c_block, acc.to(tl.bfloat16))


@triton.jit
def expert_product(
    a_ptr, b_ptr, c_ptr, ids_ptr, expert_ptr, count_ptr, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    count = tl.load(count_ptr)
    pid, columns = tl.program_id(0), tl.cdiv(N, BLOCK_N)
    first = pid // (GROUP_M * columns) * GROUP_M
    group = min(tl.cdiv(count, BLOCK_M) - first, GROUP_M)
    row = first + pid % (GROUP_M * columns) % group
    col = pid % (GROUP_M * columns) // group
    if row * BLOCK_M >= count:
        return
    ids = tl.load(ids_ptr + row * BLOCK_M + tl.arange(0, BLOCK_M))
    expert = tl.load(expert_ptr + row)
    cols, depth = col * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + ids[:, None] * K + depth[None, :]
    b_ptrs = b_ptr + expert * N * K + cols[None, :] * K + depth[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_K):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    tl.store(c_ptr + ids[:, None] * N + cols[None, :], acc.to(tl.bfloat16))


@triton.jit
def triangular_sum(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, row + 1, BLOCK):
        at = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * N + at, mask=at <= row, other=0.0)
    tl.store(out_ptr + row, tl.sum(acc, 0))


POINTERS = "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, M=i32:16, N=i32:16, K=i32:16"
STRIDES = "stride_am=i32:16, stride_bk=i32:16, stride_cm=i32:16"


@triton.jit
def while_product(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    columns = tl.cdiv(N, BLOCK_N)
    rows = (pid // columns) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (pid % columns) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    k = 0
    while k < K:
        depth = k + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * stride_am + depth[None, :])
        acc = tl.dot(a, tl.load(b_ptr + depth[:, None] * stride_bk + cols[None, :]), acc)
        k += BLOCK_K
    tl.store(c_ptr + rows[:, None] * stride_cm + cols[None, :], acc.to(tl.bfloat16))


@triton.jit
def tiles_by_turns(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    while tile * BLOCK < N:
        at = tile * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at))
        tile += tl.num_programs(0)


@triton.jit
def counting(out_ptr, N, STEP: tl.constexpr, KIND: tl.constexpr):
    n = 0
    if KIND == "down":
        n = N
        while n > 0:
            n -= STEP
    elif KIND == "up to":
        while n <= N:
            n += STEP
    elif KIND == "until":
        while n != N:
            n += STEP
    elif KIND == "doubling":
        n = 1
        while n < N:
            n *= STEP
    else:
        while tl.load(out_ptr + n) > 0:
            n += STEP
    tl.store(out_ptr, n)


@triton.jit
def sequence_sum(x_ptr, out_ptr, starts_ptr, N, BLOCK: tl.constexpr, HEADS: tl.constexpr):
    """The rows of a sequence, which begins where an array says, for each of its heads."""
    program = tl.program_id(0)
    sequence = program // HEADS
    start, end = tl.load(starts_ptr + sequence), tl.load(starts_ptr + sequence + 1)
    columns = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    if end > start:
        first = tl.load(x_ptr + start * N + columns)
        for row in range(start, end):
            acc += first * tl.load(x_ptr + row * N + columns)
        tl.store(out_ptr + program * N + columns, acc)


@triton.jit
def looked_up_rows(x_ptr, out_ptr, ids_ptr, N, BLOCK: tl.constexpr, HOW: tl.constexpr):
    """A row of a table for each program, whose number is what is looked up, guarded, limited, or a difference."""
    program = tl.program_id(0)
    row = tl.load(ids_ptr + program + 1)
    if HOW == "guarded":
        row = tl.where(row < 0, 0, row)
    if HOW == "limited":
        row = tl.minimum(row, N - 1)
    if HOW == "difference":
        row = row - tl.load(ids_ptr + program)
    columns = tl.arange(0, BLOCK)
    tl.store(out_ptr + program * BLOCK + columns, tl.load(x_ptr + row * BLOCK + columns))
