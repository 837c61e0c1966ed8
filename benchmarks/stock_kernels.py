"""Plain kernels that ask Triton for its own warp specialisation, each in a form in which it fails on Hopper.

Each is written out whole, as a user would: a shared part would be inlined into another kernel than the one that fails.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm(
    a_desc, b_desc, c_ptr, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    DESCRIPTOR_STORE: tl.constexpr,
):  # fmt: skip
    """C[M, N] = A[M, K] · B[N, K]ᵀ, a tile a program."""
    row = tl.program_id(0) * BLOCK_M
    column = tl.program_id(1) * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in tl.range(0, K, BLOCK_K, warp_specialize=True):
        a = a_desc.load([row, k])
        b = b_desc.load([column, k])
        acc = tl.dot(a, b.T, acc)
    if DESCRIPTOR_STORE:
        c_desc.store([row, column], acc.to(tl.bfloat16))
    else:
        rows = row + tl.arange(0, BLOCK_M)
        columns = column + tl.arange(0, BLOCK_N)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16), mask=inside)


@triton.jit
def gemm_flattened(
    a_desc, b_desc, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NUM_SMS: tl.constexpr,
):  # fmt: skip
    """The persistent form that the tutorial has for Blackwell: tiles and K in one specialised loop."""
    columns = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * columns
    for tile in tl.range(tl.program_id(0), tiles, NUM_SMS, warp_specialize=True, flatten=True):
        row = tile // columns * BLOCK_M
        column = tile % columns * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            acc = tl.dot(a_desc.load([row, k]), b_desc.load([column, k]).T, acc)
        offsets = (row + tl.arange(0, BLOCK_M))[:, None] * N + (column + tl.arange(0, BLOCK_N))[None, :]
        tl.store(c_ptr + offsets, acc.to(tl.bfloat16))


@triton.jit
def attention(
    q_desc, k_desc, v_desc, o_ptr, L, scale, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The query's load and the output's store share one row offset."""
    base = tl.program_id(1) * L
    start = base + tl.program_id(0) * BLOCK_M
    q = q_desc.load([start, 0])
    row_max = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    for n in tl.range(0, L, BLOCK_N, warp_specialize=True):
        k = k_desc.load([base + n, 0])
        s = tl.dot(q, k.T) * scale
        new_max = tl.maximum(row_max, tl.max(s, 1))
        p = tl.exp2(s - new_max[:, None])
        alpha = tl.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = v_desc.load([base + n, 0])
        acc = tl.dot(p.to(tl.bfloat16), v, acc)
        row_max = new_max
    rows = start + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    tl.store(o_ptr + rows[:, None] * D + d[None, :], (acc / row_sum[:, None]).to(tl.bfloat16))


@triton.jit
def attention_device(
    q_ptr, k_ptr, v_ptr, o_ptr, ROWS, L, scale, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The same with descriptors that the kernel makes."""
    q_desc = tl.make_tensor_descriptor(q_ptr, [ROWS, D], [D, 1], [BLOCK_M, D])
    k_desc = tl.make_tensor_descriptor(k_ptr, [ROWS, D], [D, 1], [BLOCK_N, D])
    v_desc = tl.make_tensor_descriptor(v_ptr, [ROWS, D], [D, 1], [BLOCK_N, D])
    base = tl.program_id(1) * L
    start = tl.program_id(0) * BLOCK_M
    q = q_desc.load([base + start, 0])
    row_max = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    for n in tl.range(0, L, BLOCK_N, warp_specialize=True):
        k = k_desc.load([base + n, 0])
        s = tl.dot(q, k.T) * scale
        new_max = tl.maximum(row_max, tl.max(s, 1))
        p = tl.exp2(s - new_max[:, None])
        alpha = tl.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = v_desc.load([base + n, 0])
        acc = tl.dot(p.to(tl.bfloat16), v, acc)
        row_max = new_max
    rows = base + start + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    tl.store(o_ptr + rows[:, None] * D + d[None, :], (acc / row_sum[:, None]).to(tl.bfloat16))
