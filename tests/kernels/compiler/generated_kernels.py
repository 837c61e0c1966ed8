# ruff: noqa
"""Kernels as Inductor of torch 2.13.0 and Helion 1.5.1 generated them for an H200, at small sizes, each with the launch
that it was generated for.

Made without a GPU, by the generators' own code, told that an H200 is there. PyTorch's and Helion's, both BSD-3-Clause.
The functions' names, the layout of the lines and where constants stand are not theirs; of their runtimes' helpers those
that are called are written out first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from corpus_entry import Tensor
from triton.language.extra import libdevice


@triton.jit
def maximum(a, b):
    mask = a > b
    mask |= a != a
    return tl.where(mask, a, b)


@triton.jit
def _maximum_propagate_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def max_propagate_nan(x, dim: tl.constexpr):
    return tl.reduce(x.to(tl.float32), dim, _maximum_propagate_nan)


@triton.jit
def mm_pointers(arg_A, arg_B, out_ptr0):
    EVEN_K: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    ACC_TYPE: tl.constexpr = tl.float32
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 128
    BLOCK_K: tl.constexpr = 64
    GROUP_M: tl.constexpr = 8
    ALLOW_TF32: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32
    A = arg_A
    B = arg_B

    M = 2048
    N = 2048
    K = 1024
    if M * N == 0:
        # early exit due to zero-size input(s)
        return
    stride_am = 1024
    stride_ak = 1
    stride_bk = 1
    stride_bn = 1024

    # based on triton.ops.matmul
    pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_m = (M + BLOCK_M - 1) // BLOCK_M
    grid_n = (N + BLOCK_N - 1) // BLOCK_N

    # re-order program ID for better L2 performance
    width = GROUP_M * grid_n
    group_id = pid // width
    group_size = min(grid_m - group_id * GROUP_M, GROUP_M)
    pid_m = group_id * GROUP_M + (pid % group_size)
    pid_n = (pid % width) // (group_size)
    tl.assume(pid_m >= 0)
    tl.assume(pid_n >= 0)

    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    if ((stride_am == 1 and stride_ak == M) or (stride_am == K and stride_ak == 1)) and (M >= BLOCK_M and K > 1):
        offs_a_m = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    else:
        offs_a_m = rm % M
    if ((stride_bk == 1 and stride_bn == K) or (stride_bk == N and stride_bn == 1)) and (N >= BLOCK_N and K > 1):
        offs_b_n = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    else:
        offs_b_n = rn % N
    offs_k = tl.arange(0, BLOCK_K).to(INDEX_DTYPE)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)

    for k_idx in range(0, tl.cdiv(K, BLOCK_K)):
        a_k_idx_vals = offs_k[None, :] + (k_idx * BLOCK_K)
        b_k_idx_vals = offs_k[:, None] + (k_idx * BLOCK_K)

        idx_m = offs_a_m[:, None]
        idx_n = a_k_idx_vals
        xindex = idx_n + 1024 * idx_m
        a = tl.load(A + (xindex))

        idx_m = b_k_idx_vals
        idx_n = offs_b_n[None, :]
        xindex = idx_n + 2048 * idx_m
        b = tl.load(B + ((tl.broadcast_to(idx_m + 1024 * idx_n, [BLOCK_K, BLOCK_N])).broadcast_to(xindex.shape)))

        acc += tl.dot(a, b, allow_tf32=ALLOW_TF32, out_dtype=ACC_TYPE)

    # rematerialize rm and rn to save registers
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < M) & (idx_n < N)

    # inductor generates a suffix
    xindex = idx_n + 2048 * idx_m
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), acc, mask)


@triton.jit
def bmm(arg_A, arg_B, out_ptr0):
    EVEN_K: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    ACC_TYPE: tl.constexpr = tl.float32
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 128
    BLOCK_K: tl.constexpr = 64
    GROUP_M: tl.constexpr = 8
    ALLOW_TF32: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32
    A = arg_A
    B = arg_B

    M = 512
    N = 512
    K = 1024
    BATCH = 16

    stride_aq = 524288
    stride_am = 1024
    stride_ak = 1

    stride_bq = 524288
    stride_bk = 1
    stride_bn = 1024

    # based on triton.ops.matmul
    pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_m = (M + BLOCK_M - 1) // BLOCK_M
    grid_n = (N + BLOCK_N - 1) // BLOCK_N

    # re-order program ID for better L2 performance
    width = GROUP_M * grid_n
    group_id = pid // width
    group_size = min(grid_m - group_id * GROUP_M, GROUP_M)
    pid_m = group_id * GROUP_M + (pid % group_size)
    pid_n = (pid % width) // (group_size)
    tl.assume(pid_m >= 0)
    tl.assume(pid_n >= 0)

    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    if ((stride_am == 1 and stride_ak == M) or (stride_am == K and stride_ak == 1)) and (M >= BLOCK_M and K > 1):
        ram = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    else:
        ram = rm % M
    if ((stride_bk == 1 and stride_bn == K) or (stride_bk == N and stride_bn == 1)) and (N >= BLOCK_N and K > 1):
        rbn = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    else:
        rbn = rn % N

    rk = tl.arange(0, BLOCK_K).to(INDEX_DTYPE)

    # Reconstruct batch index from grid_y/grid_z split (handles batch > 65535)
    idx_q = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)).to(INDEX_DTYPE)
    # Clamp to valid range for safe pointer arithmetic; out-of-bounds CTAs are
    # masked off at the store below.
    idx_q_clamped = tl.minimum(idx_q, BATCH - 1)
    A = A + (ram[:, None] * stride_am + rk[None, :] * stride_ak + idx_q_clamped * stride_aq)
    B = B + (rk[:, None] * stride_bk + rbn[None, :] * stride_bn + idx_q_clamped * stride_bq)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
    for k in range(K, 0, -BLOCK_K):
        if EVEN_K:
            a = tl.load(A)
            b = tl.load(B)
        else:
            a = tl.load(A, mask=rk[None, :] < k, other=0.0)
            b = tl.load(B, mask=rk[:, None] < k, other=0.0)
        acc += tl.dot(a, b, allow_tf32=ALLOW_TF32)
        A += BLOCK_K * stride_ak
        B += BLOCK_K * stride_bk

    # rematerialize rm and rn to save registers
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    idx_q = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)).to(INDEX_DTYPE)
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < M) & (idx_n < N) & (idx_q < BATCH)

    # inductor generates a suffix
    xindex = idx_n + 512 * idx_m + 262144 * idx_q
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), acc, mask)


@triton.jit
def grouped_mm_do_tma_loads(
    g,
    a_desc,
    b_desc,
    m_offset,
    n_offset,
    k_offset,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    a = a_desc.load([m_offset, k_offset])
    b = b_desc.load([g, n_offset, k_offset]).reshape(BLOCK_N, BLOCK_K)

    return (a, b)


@triton.jit
def grouped_mm_do_mma(a, b, accumulator):
    accumulator += tl.dot(a, b.T)

    return accumulator


@triton.jit
def grouped_mm(arg_a_ptr, arg_b_ptr, arg_offsets_ptr, out_ptr0):
    SCALED: tl.constexpr = False
    A_IS_2D: tl.constexpr = True
    B_IS_2D: tl.constexpr = False
    A_IS_K_MAJOR: tl.constexpr = True
    B_IS_K_MAJOR: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    NUM_SMS: tl.constexpr = 132
    USE_TMA_LOAD: tl.constexpr = True
    USE_EXPERIMENTAL_MAKE_TENSOR_DESCRIPTOR: tl.constexpr = False
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 128
    BLOCK_K: tl.constexpr = 64
    NUM_CONSUMER_GROUPS: tl.constexpr = 1
    INDEX_DTYPE: tl.constexpr = tl.int32
    a_ptr = arg_a_ptr
    b_ptr = arg_b_ptr
    offsets_ptr = arg_offsets_ptr

    tidx = tl.program_id(0).to(INDEX_DTYPE)
    G: tl.constexpr = 8

    # the b_ptr tensor is given with its last two dims transposed, revert here

    M: tl.constexpr = 2048
    N: tl.constexpr = 1024
    K: tl.constexpr = 1024

    A_STRIDE_M: tl.constexpr = 1024
    A_STRIDE_K: tl.constexpr = 1
    B_STRIDE_N: tl.constexpr = 1024
    B_STRIDE_K: tl.constexpr = 1
    B_STRIDE_G: tl.constexpr = 1048576
    B_STRIDE_G = 1048576
    a_desc = tl.make_tensor_descriptor(
        a_ptr,
        shape=[M, K],
        strides=[A_STRIDE_M, A_STRIDE_K],
        block_shape=[BLOCK_M, BLOCK_K],
    )
    b_desc = tl.make_tensor_descriptor(
        b_ptr,
        shape=[G, N, K],
        strides=[B_STRIDE_G, B_STRIDE_N, B_STRIDE_K],
        block_shape=[1, BLOCK_N, BLOCK_K],
    )
    m_end_offset = 0
    iterated_tiles = 0
    for g in tl.range(G):
        # Move across groups
        m_start_offset = m_end_offset
        m_end_offset = tl.load(offsets_ptr + g)
        m_size = m_end_offset - m_start_offset
        n_start_offset = 0
        n_size = N

        if m_size > 0 and n_size > 0:
            k_start_offset = 0
            k_size = K

            num_m_tiles = tl.cdiv(m_size, BLOCK_M)
            num_n_tiles = tl.cdiv(n_size, BLOCK_N)
            num_tiles = num_m_tiles * num_n_tiles

            # Move across tiles
            while tidx >= iterated_tiles and tidx < iterated_tiles + num_tiles:
                gidx = tidx - iterated_tiles
                # Split M first and N second.
                tile_m_idx = gidx % num_m_tiles
                tile_n_idx = gidx // num_m_tiles

                accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                m_tile_offset = tile_m_idx * BLOCK_M
                n_tile_offset = tile_n_idx * BLOCK_N
                m_offset = (m_start_offset + m_tile_offset).to(tl.int32)
                n_offset = (n_start_offset + n_tile_offset).to(tl.int32)

                k_block_offset = 0
                for k in range(k_size // BLOCK_K):
                    k_offset = k_start_offset + k_block_offset
                    a, b = grouped_mm_do_tma_loads(
                        g, a_desc, b_desc, m_offset, n_offset, k_offset, BLOCK_M, BLOCK_N, BLOCK_K
                    )
                    accumulator = grouped_mm_do_mma(a, b, accumulator)
                    k_block_offset += BLOCK_K

                if k_size % BLOCK_K != 0:
                    k_offset = k_start_offset + k_block_offset
                    a, b = grouped_mm_do_tma_loads(
                        g, a_desc, b_desc, m_offset, n_offset, k_offset, BLOCK_M, BLOCK_N, BLOCK_K
                    )
                    accumulator = grouped_mm_do_mma(a, b, accumulator)

                offs_am = tile_m_idx * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
                offs_bn = tile_n_idx * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
                c = accumulator.to(tl.float32)
                idx_m = m_start_offset + offs_am[:, None]
                idx_n = offs_bn[None, :]
                mask = (offs_am[:, None] < m_size) & (offs_bn[None, :] < n_size)
                xindex = idx_n + 1024 * idx_m
                tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), c, mask)
                tidx += NUM_SMS

            iterated_tiles += num_tiles


@triton.jit
def grouped_mm_gradient_do_tma_loads(
    g,
    a_desc,
    b_desc,
    m_offset,
    n_offset,
    k_offset,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    a = a_desc.load([m_offset, k_offset])
    b = b_desc.load([n_offset, k_offset])

    return (a, b)


@triton.jit
def grouped_mm_gradient_do_mma(a, b, accumulator):
    accumulator += tl.dot(a, b.T)

    return accumulator


@triton.jit
def grouped_mm_gradient(arg_a_ptr, arg_b_ptr, arg_offsets_ptr, out_ptr0):
    SCALED: tl.constexpr = False
    A_IS_2D: tl.constexpr = True
    B_IS_2D: tl.constexpr = True
    A_IS_K_MAJOR: tl.constexpr = True
    B_IS_K_MAJOR: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    NUM_SMS: tl.constexpr = 132
    USE_TMA_LOAD: tl.constexpr = True
    USE_EXPERIMENTAL_MAKE_TENSOR_DESCRIPTOR: tl.constexpr = False
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 128
    BLOCK_K: tl.constexpr = 64
    NUM_CONSUMER_GROUPS: tl.constexpr = 1
    INDEX_DTYPE: tl.constexpr = tl.int32
    a_ptr = arg_a_ptr
    b_ptr = arg_b_ptr
    offsets_ptr = arg_offsets_ptr

    tidx = tl.program_id(0).to(INDEX_DTYPE)
    G: tl.constexpr = 8

    # the b_ptr tensor is given with its last two dims transposed, revert here

    M: tl.constexpr = 1024
    N: tl.constexpr = 1024
    K: tl.constexpr = 2048

    A_STRIDE_M: tl.constexpr = 2048
    A_STRIDE_K: tl.constexpr = 1
    B_STRIDE_N: tl.constexpr = 2048
    B_STRIDE_K: tl.constexpr = 1
    a_desc = tl.make_tensor_descriptor(
        a_ptr,
        shape=[M, K],
        strides=[A_STRIDE_M, A_STRIDE_K],
        block_shape=[BLOCK_M, BLOCK_K],
    )
    b_desc = tl.make_tensor_descriptor(
        b_ptr,
        shape=[N, K],
        strides=[B_STRIDE_N, B_STRIDE_K],
        block_shape=[BLOCK_N, BLOCK_K],
    )
    k_end_offset = 0
    iterated_tiles = 0
    for g in tl.range(G):
        m_start_offset = 0
        m_size = M
        n_start_offset = 0
        n_size = N

        if m_size > 0 and n_size > 0:
            # Move across groups
            k_start_offset = k_end_offset
            k_end_offset = tl.load(offsets_ptr + g)
            k_size = k_end_offset - k_start_offset

            num_m_tiles = tl.cdiv(m_size, BLOCK_M)
            num_n_tiles = tl.cdiv(n_size, BLOCK_N)
            num_tiles = num_m_tiles * num_n_tiles

            # Move across tiles
            while tidx >= iterated_tiles and tidx < iterated_tiles + num_tiles:
                gidx = tidx - iterated_tiles
                # Split M first and N second.
                tile_m_idx = gidx % num_m_tiles
                tile_n_idx = gidx // num_m_tiles

                accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                m_tile_offset = tile_m_idx * BLOCK_M
                n_tile_offset = tile_n_idx * BLOCK_N
                m_offset = (m_start_offset + m_tile_offset).to(tl.int32)
                n_offset = (n_start_offset + n_tile_offset).to(tl.int32)

                k_block_offset = 0
                for k in range(k_size // BLOCK_K):
                    k_offset = k_start_offset + k_block_offset
                    a, b = grouped_mm_gradient_do_tma_loads(
                        g, a_desc, b_desc, m_offset, n_offset, k_offset, BLOCK_M, BLOCK_N, BLOCK_K
                    )
                    accumulator = grouped_mm_gradient_do_mma(a, b, accumulator)
                    k_block_offset += BLOCK_K

                if k_size % BLOCK_K != 0:
                    k_offset = k_start_offset + k_block_offset
                    a, b = grouped_mm_gradient_do_tma_loads(
                        g, a_desc, b_desc, m_offset, n_offset, k_offset, BLOCK_M, BLOCK_N, BLOCK_K
                    )
                    group_offs = k_block_offset + tl.arange(0, BLOCK_K)
                    k_mask = group_offs < k_size
                    a = tl.where(k_mask[None, :], a, 0)
                    b = tl.where(k_mask[None, :], b, 0)
                    accumulator = grouped_mm_gradient_do_mma(a, b, accumulator)

                offs_am = tile_m_idx * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
                offs_bn = tile_n_idx * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
                c = accumulator.to(tl.float32)
                idx_m = offs_am[:, None]
                idx_n = offs_bn[None, :]
                mask = (offs_am[:, None] < m_size) & (offs_bn[None, :] < n_size)
                xindex = idx_n + 1024 * idx_m + 1048576 * g
                tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), c, mask)
                tidx += NUM_SMS

            iterated_tiles += num_tiles


@triton.jit
def scaled_mm(arg_A, arg_B, in_ptr2, in_ptr3, out_ptr0):
    EVEN_K: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    ACC_TYPE: tl.constexpr = tl.float32
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 128
    BLOCK_K: tl.constexpr = 128
    GROUP_M: tl.constexpr = 8
    ALLOW_TF32: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32
    A = arg_A
    B = arg_B

    M = 2048
    N = 2048
    K = 1024
    if M * N == 0:
        # early exit due to zero-size input(s)
        return
    stride_am = 1024
    stride_ak = 1
    stride_bk = 1
    stride_bn = 1024

    # based on triton.ops.matmul
    pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_m = (M + BLOCK_M - 1) // BLOCK_M
    grid_n = (N + BLOCK_N - 1) // BLOCK_N

    # re-order program ID for better L2 performance
    width = GROUP_M * grid_n
    group_id = pid // width
    group_size = min(grid_m - group_id * GROUP_M, GROUP_M)
    pid_m = group_id * GROUP_M + (pid % group_size)
    pid_n = (pid % width) // (group_size)
    tl.assume(pid_m >= 0)
    tl.assume(pid_n >= 0)

    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    if ((stride_am == 1 and stride_ak == M) or (stride_am == K and stride_ak == 1)) and (M >= BLOCK_M and K > 1):
        offs_a_m = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    else:
        offs_a_m = rm % M
    if ((stride_bk == 1 and stride_bn == K) or (stride_bk == N and stride_bn == 1)) and (N >= BLOCK_N and K > 1):
        offs_b_n = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    else:
        offs_b_n = rn % N
    offs_k = tl.arange(0, BLOCK_K).to(INDEX_DTYPE)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)

    for k_idx in range(0, tl.cdiv(K, BLOCK_K)):
        a_k_idx_vals = offs_k[None, :] + (k_idx * BLOCK_K)
        b_k_idx_vals = offs_k[:, None] + (k_idx * BLOCK_K)

        idx_m = offs_a_m[:, None]
        idx_n = a_k_idx_vals
        xindex = idx_n + 1024 * idx_m
        a = tl.load(A + (xindex))

        idx_m = b_k_idx_vals
        idx_n = offs_b_n[None, :]
        xindex = idx_n + 2048 * idx_m
        b = tl.load(B + ((tl.broadcast_to(idx_m + 1024 * idx_n, [BLOCK_K, BLOCK_N])).broadcast_to(xindex.shape)))

        acc += tl.dot(a, b, allow_tf32=ALLOW_TF32, out_dtype=ACC_TYPE)

    # rematerialize rm and rn to save registers
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < M) & (idx_n < N)

    # inductor generates a suffix
    xindex = idx_n + 2048 * idx_m
    tmp0 = tl.load(in_ptr2 + (tl.broadcast_to(idx_m, [BLOCK_M, BLOCK_N])), mask, eviction_policy="evict_last")
    tmp1 = tl.load(in_ptr3 + (tl.broadcast_to(idx_n, [BLOCK_M, BLOCK_N])), mask, eviction_policy="evict_last")
    tmp2 = tmp0 * tmp1
    tmp3 = acc * tmp2
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), tmp3, mask)


@triton.jit
def scaled_mm_tma(arg_A, arg_B, arg_A_inverse_scale, arg_B_inverse_scale, out_ptr0, ws_ptr):
    EVEN_K: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    ACC_TYPE: tl.constexpr = tl.float32
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 128
    BLOCK_K: tl.constexpr = 64
    GROUP_M: tl.constexpr = 8
    TMA_SIZE: tl.constexpr = 128
    NUM_SMS: tl.constexpr = 132
    TMA_EXPERIMENTAL_API: tl.constexpr = False
    SCALE_RECIPE_A: tl.constexpr = 1
    SCALE_RECIPE_B: tl.constexpr = 1
    ALLOW_TF32: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32
    A = arg_A
    B = arg_B
    A_inverse_scale = arg_A_inverse_scale
    B_inverse_scale = arg_B_inverse_scale

    M = 2048
    N = 2048
    K = 1024
    if M * N == 0:
        # early exit due to zero-size input(s)
        return

    stride_am = 1024
    stride_ak = 1
    stride_bk = 1
    stride_bn = 1024

    if SCALE_RECIPE_A == 1:  # ScalingType.RowWise
        stride_a_scale_m = 1
    else:
        stride_a_scale_m = 0

    if SCALE_RECIPE_B == 1:  # ScalingType.RowWise
        stride_b_scale_n = 1
    else:
        stride_b_scale_n = 0

    start_pid = tl.program_id(axis=0).to(INDEX_DTYPE)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_tiles = num_pid_m * num_pid_n
    stride_am = 1024
    stride_bn = 1024
    a_desc = triton.language.make_tensor_descriptor(
        base=A,
        shape=[M, K],
        strides=[stride_am, 1],
        block_shape=[BLOCK_M, BLOCK_K],
    )
    b_desc = triton.language.make_tensor_descriptor(
        base=B,
        shape=[N, K],
        strides=[stride_bn, 1],
        block_shape=[BLOCK_N, BLOCK_K],
    )

    tiles_per_SM = num_tiles // NUM_SMS
    if start_pid < num_tiles % NUM_SMS:
        tiles_per_SM += 1

    tile_id = start_pid - NUM_SMS
    ki = -1

    pid_m = 0
    pid_n = 0
    offs_am = 0
    offs_bn = 0

    num_pid_in_group = GROUP_M * num_pid_n
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
    a_scale = scaled_mm_tma_load_scales(A_inverse_scale, SCALE_RECIPE_A)
    b_scale = scaled_mm_tma_load_scales(B_inverse_scale, SCALE_RECIPE_B)

    for _ in range(0, k_tiles * tiles_per_SM):
        ki = tl.where(ki == k_tiles - 1, 0, ki + 1)
        if ki == 0:
            tile_id += NUM_SMS
            group_id = tile_id // num_pid_in_group
            first_pid_m = group_id * GROUP_M
            group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
            pid_m = first_pid_m + (tile_id % group_size_m)
            pid_n = (tile_id % num_pid_in_group) // group_size_m

            offs_am = pid_m * BLOCK_M
            offs_bn = pid_n * BLOCK_N

        offs_k = ki * BLOCK_K
        offs_am_desc = offs_am.to(tl.int32)
        offs_bn_desc = offs_bn.to(tl.int32)
        offs_k_desc = offs_k.to(tl.int32)
        a = tl.load_tensor_descriptor(a_desc, [offs_am_desc, offs_k_desc])
        b = tl.load_tensor_descriptor(b_desc, [offs_bn_desc, offs_k_desc])
        if USE_FAST_ACCUM:
            accumulator = tl.dot(a, b.T, accumulator)
        else:
            accumulator += tl.dot(a, b.T)

        if ki == k_tiles - 1:
            # Apply inverse scaling
            offs_cm = offs_am + tl.arange(0, BLOCK_M)
            offs_cn = offs_bn + tl.arange(0, BLOCK_N)
            # Apply scaling
            accumulator = scaled_mm_tma_apply_scaling(
                accumulator,
                a_scale,
                b_scale,
                SCALE_RECIPE_A,
                SCALE_RECIPE_B,
                offs_cm,
                offs_cn,
                M,
                N,
                stride_a_scale_m,
                stride_b_scale_n,
            )

            # inductor generates a suffix
            _tmp_var1 = offs_am
            _tmp_var0 = (_tmp_var1 + tl.arange(0, BLOCK_M))[:, None]
            _tmp_var2 = _tmp_var0 < 2048
            _tmp_var4 = offs_bn
            _tmp_var3 = (_tmp_var4 + tl.arange(0, BLOCK_N))[
                None,
                :,
            ]
            _tmp_var5 = _tmp_var3 < 2048
            _tmp_var6 = _tmp_var2 & _tmp_var5
            xindex = _tmp_var3 + 2048 * _tmp_var0
            tl.store(
                out_ptr0 + (tl.broadcast_to(_tmp_var3 + 2048 * _tmp_var0, [BLOCK_M, BLOCK_N])), accumulator, _tmp_var6
            )
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)


@triton.jit
def scaled_mm_tma_load_scales(scale_ptr, SCALE_RECIPE: tl.constexpr):
    if SCALE_RECIPE == 0:
        return tl.load(scale_ptr)  # For tensor-wise scaling, we'll load the scalar values
    else:
        return scale_ptr  # For all other scaling recipes, we'll return the pointers


@triton.jit
def scaled_mm_tma_apply_scaling(
    accumulator,
    a_scale,
    b_scale,
    SCALE_RECIPE_A: tl.constexpr,
    SCALE_RECIPE_B: tl.constexpr,
    offs_cm,
    offs_cn,
    M,
    N,
    stride_a_scale_m,
    stride_b_scale_n,
):
    if SCALE_RECIPE_A == 1 and SCALE_RECIPE_B == 1:  # (ScalingType.RowWise, ScalingType.RowWise)
        # For row-wise scaling, we need to load the scales for each row/column
        a_scales = tl.load(
            a_scale + (offs_cm * stride_a_scale_m),
            mask=offs_cm < M,
            other=0.0,
        )
        b_scales = tl.load(
            b_scale + (offs_cn * stride_b_scale_n),
            mask=offs_cn < N,
            other=0.0,
        )
        acc_scale = a_scales[:, None] * b_scales[None, :]
    else:  # (ScalingType.TensorWise, ScalingType.TensorWise)
        # For per-tensor scaling, we can directly use the loaded scalar values
        acc_scale = a_scale * b_scale

    return accumulator * acc_scale


@triton.jit
def scaled_mm_blocks(arg_A, arg_B, arg_A_inverse_scale, arg_B_inverse_scale, out_ptr0, ws_ptr):
    EVEN_K: tl.constexpr = True
    USE_FAST_ACCUM: tl.constexpr = False
    ACC_TYPE: tl.constexpr = tl.float32
    BLOCK_M: tl.constexpr = 128
    BLOCK_N: tl.constexpr = 128
    BLOCK_K: tl.constexpr = 64
    GROUP_M: tl.constexpr = 8
    TMA_SIZE: tl.constexpr = 128
    NUM_SMS: tl.constexpr = 132
    TMA_EXPERIMENTAL_API: tl.constexpr = False
    TILE_SIZE_A: tl.constexpr = 128
    TILE_SIZE_B: tl.constexpr = 128
    MIN_BLOCK_TILE_AM: tl.constexpr = 128
    MIN_BLOCK_TILE_AK: tl.constexpr = 64
    MIN_BLOCK_TILE_BK: tl.constexpr = 64
    MIN_BLOCK_TILE_BN: tl.constexpr = 128
    SCALE_RECIPE_A: tl.constexpr = 4
    SCALE_RECIPE_B: tl.constexpr = 5
    ALLOW_TF32: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32
    A = arg_A
    B = arg_B
    A_inverse_scale = arg_A_inverse_scale
    B_inverse_scale = arg_B_inverse_scale

    M = 2048
    N = 2048
    K = 1024
    if M * N == 0:
        # early exit due to zero-size input(s)
        return

    stride_am = 1024
    stride_bn = 1024

    start_pid = tl.program_id(axis=0).to(INDEX_DTYPE)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_tiles = num_pid_m * num_pid_n

    a_desc = triton.language.make_tensor_descriptor(
        base=A,
        shape=[M, K],
        strides=[stride_am, 1],
        block_shape=[BLOCK_M, BLOCK_K],
    )
    b_desc = triton.language.make_tensor_descriptor(
        base=B,
        shape=[N, K],
        strides=[stride_bn, 1],
        block_shape=[BLOCK_N, BLOCK_K],
    )

    num_pid_in_group = GROUP_M * num_pid_n

    am_blocks = tl.cdiv(M, TILE_SIZE_A)
    ak_blocks = tl.cdiv(K, TILE_SIZE_A)
    bn_blocks = tl.cdiv(N, TILE_SIZE_B)
    bk_blocks = tl.cdiv(K, TILE_SIZE_B)

    for tile_id in range(start_pid, num_tiles, NUM_SMS):
        group_id = tile_id // num_pid_in_group
        first_pid_m = group_id * GROUP_M
        group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
        pid_m = first_pid_m + (tile_id % group_size_m)
        pid_n = (tile_id % num_pid_in_group) // group_size_m

        offs_am = pid_m * BLOCK_M
        offs_bn = pid_n * BLOCK_N
        offs_am_desc = offs_am.to(tl.int32)
        offs_bn_desc = offs_bn.to(tl.int32)

        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
        for ki in range(0, k_tiles):
            offs_k = ki * BLOCK_K
            offs_k_desc = offs_k.to(tl.int32)

            a = tl.load_tensor_descriptor(a_desc, [offs_am_desc, offs_k_desc])
            b = tl.load_tensor_descriptor(b_desc, [offs_bn_desc, offs_k_desc])  # ScalingType.Blockwise1xTILESIZE
            scale_a_block = scaled_mm_blocks_blockwise1xTILESIZE_scaling(
                pid_m,
                A_inverse_scale,
                ki,
                M,
                am_blocks,
                ak_blocks,
                BLOCK_M,
                BLOCK_K,
                MIN_BLOCK_TILE_AK,
                TILE_SIZE_A,
            )  # ScalingType.Blockwise128x128
            scale_b_block = scaled_mm_blocks_blockwise128x128_scaling(
                pid_n,
                B_inverse_scale,
                ki,
                bn_blocks,
                bk_blocks,
                BLOCK_N,
                BLOCK_K,
                MIN_BLOCK_TILE_BN,
                MIN_BLOCK_TILE_BK,
            )

            a_scaled = a * scale_a_block
            b_scaled = b * scale_b_block
            accumulator = tl.dot(a_scaled, b_scaled.T, accumulator)

        offs_cm = offs_am + tl.arange(0, BLOCK_M)
        offs_cn = offs_bn + tl.arange(0, BLOCK_N)

        # inductor generates a suffix
        _tmp_var1 = offs_am
        _tmp_var0 = (_tmp_var1 + tl.arange(0, BLOCK_M))[:, None]
        _tmp_var2 = _tmp_var0 < 2048
        _tmp_var4 = offs_bn
        _tmp_var3 = (_tmp_var4 + tl.arange(0, BLOCK_N))[
            None,
            :,
        ]
        _tmp_var5 = _tmp_var3 < 2048
        _tmp_var6 = _tmp_var2 & _tmp_var5
        xindex = _tmp_var3 + 2048 * _tmp_var0
        tl.store(out_ptr0 + (tl.broadcast_to(_tmp_var3 + 2048 * _tmp_var0, [BLOCK_M, BLOCK_N])), accumulator, _tmp_var6)


@triton.jit
def scaled_mm_blocks_blockwise1xTILESIZE_scaling(
    pid,
    scale,
    ki,
    lhs_size,
    lhs_blocks,
    k_blocks,
    BLOCK_lhs: tl.constexpr,
    BLOCK_K: tl.constexpr,
    MIN_BLOCK_TILE_K: tl.constexpr,
    TILE_SIZE: tl.constexpr,
):
    row_offs_scale = pid * BLOCK_lhs + tl.arange(0, BLOCK_lhs)
    col_offs_scale = ki * tl.cdiv(BLOCK_K, TILE_SIZE) + tl.arange(0, (BLOCK_K + TILE_SIZE - 1) // TILE_SIZE)
    ptrs = scale + row_offs_scale[:, None] * k_blocks + col_offs_scale[None, :]
    mask = (row_offs_scale[:, None] < lhs_size) & (col_offs_scale[None, :] < k_blocks)
    scale_block = tl.load(ptrs, mask=mask, other=1.0)

    scale_expanded = scale_block[:, :, None]
    scale_expanded = tl.broadcast_to(
        scale_expanded, (BLOCK_lhs, (BLOCK_K + TILE_SIZE - 1) // TILE_SIZE, MIN_BLOCK_TILE_K)
    )
    scale_expanded = scale_expanded.reshape(BLOCK_lhs, ((BLOCK_K + TILE_SIZE - 1) // TILE_SIZE) * MIN_BLOCK_TILE_K)

    return scale_expanded


@triton.jit
def scaled_mm_blocks_blockwise128x128_scaling(
    pid,
    scale,
    ki,
    lhs_blocks,
    k_blocks,
    BLOCK_lhs: tl.constexpr,
    BLOCK_K: tl.constexpr,
    MIN_BLOCK_TILE_lhs: tl.constexpr,
    MIN_BLOCK_TILE_K: tl.constexpr,
):
    row_offs_scale = pid * tl.cdiv(BLOCK_lhs, 128) + tl.arange(0, (BLOCK_lhs + 128 - 1) // 128)
    col_offs_scale = ki * tl.cdiv(BLOCK_K, 128) + tl.arange(0, (BLOCK_K + 128 - 1) // 128)
    ptrs = scale + row_offs_scale[:, None] * k_blocks + col_offs_scale[None, :]
    mask = (row_offs_scale[:, None] < lhs_blocks) & (col_offs_scale[None, :] < k_blocks)
    scale_block = tl.load(ptrs, mask=mask, other=1.0)

    scale_expanded = scale_block[:, :, None, None]
    scale_expanded = tl.broadcast_to(
        scale_expanded, ((BLOCK_lhs + 128 - 1) // 128, (BLOCK_K + 128 - 1) // 128, MIN_BLOCK_TILE_lhs, MIN_BLOCK_TILE_K)
    )
    scale_expanded = scale_expanded.reshape(
        ((BLOCK_lhs + 128 - 1) // 128) * MIN_BLOCK_TILE_lhs, ((BLOCK_K + 128 - 1) // 128) * MIN_BLOCK_TILE_K
    )

    return scale_expanded


@triton.jit
def flex_decoding(
    arg_Q, arg_K, arg_V, arg_M, arg_L, arg_KV_NUM_BLKS, arg_KV_IDX, arg_FULL_KV_NUM_BLKS, arg_FULL_KV_IDX, out_ptr0
):
    PRESCALE_QK: tl.constexpr = False
    ROWS_GUARANTEED_SAFE: tl.constexpr = False
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr = False
    WRITE_DQ: tl.constexpr = True
    OUTPUT_LOGSUMEXP: tl.constexpr = True
    OUTPUT_MAX: tl.constexpr = False
    FLOAT32_PRECISION: tl.constexpr = "ieee"
    IS_DIVISIBLE: tl.constexpr = False
    GQA_SHARED_HEADS: tl.constexpr = 4
    HAS_FULL_BLOCKS: tl.constexpr = True
    SM_SCALE: tl.constexpr = 0.08838834764831843
    SPLIT_KV: tl.constexpr = 66
    QK_HEAD_DIM: tl.constexpr = 128
    QK_HEAD_DIM_ROUNDED: tl.constexpr = 128
    V_HEAD_DIM: tl.constexpr = 128
    V_HEAD_DIM_ROUNDED: tl.constexpr = 128
    SAFE_HEAD_DIM: tl.constexpr = True
    BLOCK_M: tl.constexpr = 16
    SAFE_M_BOUNDARY: tl.constexpr = False
    SAFE_N_BOUNDARY: tl.constexpr = True
    BLOCK_N: tl.constexpr = 64
    SPARSE_Q_BLOCK_SIZE: tl.constexpr = 128
    SPARSE_KV_BLOCK_SIZE: tl.constexpr = 128
    USE_TMA: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32
    Q = arg_Q
    K = arg_K
    V = arg_V
    M = arg_M
    L = arg_L
    KV_NUM_BLKS = arg_KV_NUM_BLKS
    KV_IDX = arg_KV_IDX
    FULL_KV_NUM_BLKS = arg_FULL_KV_NUM_BLKS
    FULL_KV_IDX = arg_FULL_KV_IDX

    # Sub notation for this kernel:
    # Q: Query, K: Key, V: Value
    # reduction buffers: M rowmax across local KV split, L local sumexp across local KV split
    # M: Number of queries, N: Number of keys/values
    # QK_HEAD_DIM: The dimension of the query and key embeddings
    # V_HEAD_DIM: The dimension of the value embeddings
    # BLOCK_M, QK_HEAD_DIM: M, and D dimemsion are always assigned to the same block
    # z: Batch size, h: Number of heads, m: Number of queries per head, k: Number of keys per head t: Number of kv splits
    # (Modifiable) Config options:
    # SPLIT_KV: number of blocks K & V are split into
    # TILE_KV: length of each local KV split
    # BLOCK_M: block size that Q is padded along seqlen dim.
    # BLOCK_N: block size of K & V along N dimension.
    # GQA_SHARED_HEADS: number of query heads sharing one kv head in GQA setups.
    #
    # change of base out of the loop
    # ROWS_GUARANTEED_SAFE: Is it guaranteed that at least one value in each row
    # is not masked out? If so, we can skip an extra safety check
    # SAFE_M_BOUNDARY: Is Q seqlen a multiple of BLOCK_M? If so, we can skip an extra boundary check for loading query.
    # SAFE_N_BOUNDARY: Is KV seqlen a multiple of BLOCK_N? If so, we can skip an extra boundary check for loading key/value.

    # PRESCALE_QK: Whether to pre-scale QK by 1/sqrt(d) and change of base.
    #
    # SPARSE_KV_BLOCK_SIZE: sparse mask block size along KV seqlen dim.
    # KV_NUM_BLKS: The number of KV blocks (that may or may not require masking) for each query.
    # KV_IDX: The indices of KV blocks (that may or may not require masking) for each query.
    #
    #
    # Output: ACC output accumulated across local KV split.

    tl.static_assert(SPARSE_KV_BLOCK_SIZE >= BLOCK_N and SPARSE_KV_BLOCK_SIZE % BLOCK_N == 0)

    # Define Q Strides
    stride_qz, stride_qh, stride_qg, stride_qm, stride_qk = 1024, 512, 128, 128, 1
    stride_kz, stride_kh, stride_kn, stride_kk = 262144, 131072, 128, 1
    stride_vz, stride_vh, stride_vn, stride_vk = 262144, 131072, 128, 1
    stride_mz, stride_mt, stride_mh, stride_mm = 528, 8, 1, 1
    stride_lz, stride_lt, stride_lh, stride_lm = 528, 8, 1, 1

    Z = 2
    ZKV = 2
    HKV = 2
    G: tl.constexpr = GQA_SHARED_HEADS
    HQ = HKV * G
    Q_LEN = 1
    KV_LEN = 1024

    MATMUL_PRECISION = Q.dtype.element_ty

    NUM_BLOCK_M = tl.cdiv(Q_LEN * G, BLOCK_M)

    off_block_m = tl.program_id(0).to(INDEX_DTYPE)

    off_z = tl.program_id(1).to(INDEX_DTYPE) // HKV
    off_zkv = off_z % ZKV
    off_hkv = tl.program_id(1).to(INDEX_DTYPE) % HKV
    off_t = tl.program_id(2).to(INDEX_DTYPE)

    q_offset = off_z * stride_qz + off_hkv * stride_qh
    k_offset = off_zkv * stride_kz + off_hkv * stride_kh
    v_offset = off_zkv * stride_vz + off_hkv * stride_vh

    K = K + k_offset
    V = V + v_offset

    SPARSE_Z = 1
    SPARSE_HQ = 1

    sparse_idx_z = off_z % SPARSE_Z
    sparse_idx_h = off_hkv % SPARSE_HQ

    SPARSE_KV_MULTIPLE: tl.constexpr = SPARSE_KV_BLOCK_SIZE // BLOCK_N
    SPARSE_KV_BLOCK_CNT = tl.cdiv(KV_LEN, SPARSE_KV_BLOCK_SIZE)

    # initialize pointer to m and l
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, V_HEAD_DIM_ROUNDED], dtype=tl.float32)

    # initialize offsets
    tl.device_assert(BLOCK_M % G == 0)
    BLOCK_M_PER_HQ: tl.constexpr = BLOCK_M // G
    off_g = tl.arange(0, G)  # [G]
    offs_g = tl.ravel(tl.broadcast_to(off_g[:, None], [G, BLOCK_M_PER_HQ]))  # [BLOCK_M]
    offs_hq = offs_g + off_hkv * G
    off_m = tl.arange(0, BLOCK_M_PER_HQ) + off_block_m * BLOCK_M_PER_HQ
    offs_m = tl.ravel(tl.broadcast_to(off_m[None, :], [G, BLOCK_M_PER_HQ]))  # [BLOCK_M]
    offs_d = tl.arange(0, QK_HEAD_DIM_ROUNDED)
    offs_vd = tl.arange(0, V_HEAD_DIM_ROUNDED)

    # Get HZ offsets for KV_NUM_BLKS and KV_IDX
    sparse_idx_m = off_block_m * BLOCK_M_PER_HQ // SPARSE_Q_BLOCK_SIZE
    stride_block_z, stride_block_h, stride_block_row = 1, 1, 1
    sparse_block_zhm_offset = (
        sparse_idx_z * stride_block_z + sparse_idx_h * stride_block_h + sparse_idx_m * stride_block_row
    )
    stride_kv_z, stride_kv_h, stride_kv_row, stride_kv_col = 8, 8, 8, 1
    sparse_idx_zhm_offset = sparse_idx_z * stride_kv_z + sparse_idx_h * stride_kv_h + sparse_idx_m * stride_kv_row

    q_range = stride_qg * off_g[:, None, None] + stride_qm * off_m[None, :, None] + stride_qk * offs_d[None, None, :]

    if not SAFE_M_BOUNDARY and not SAFE_HEAD_DIM:
        q = tl.load(Q + q_offset + q_range, mask=(offs_d[None, None, :] < QK_HEAD_DIM) & (off_m[None, :, None] < Q_LEN))
    elif SAFE_M_BOUNDARY and not SAFE_HEAD_DIM:
        q = tl.load(Q + q_offset + q_range, mask=offs_d[None, None, :] < QK_HEAD_DIM)
    elif not SAFE_M_BOUNDARY and SAFE_HEAD_DIM:
        q = tl.load(Q + q_offset + q_range, mask=off_m[None, :, None] < Q_LEN)
    else:
        q = tl.load(Q + q_offset + q_range)

    q = tl.reshape(q, [BLOCK_M, QK_HEAD_DIM_ROUNDED])

    # ~~~~~~~~~~~~~~ normal blocks ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    # find first kv block we are loading and the number of blocks we are loading
    # Offset the kv_indices tensor by the correct batch and head
    kv_indices = KV_IDX + sparse_idx_zhm_offset
    kv_num_blocks = tl.load(KV_NUM_BLKS + sparse_block_zhm_offset)

    # Make sure each split is a multiple of BLOCK_N
    if HAS_FULL_BLOCKS:
        # TODO do the optimization as partial blocks once vllm is
        # able to pass in full blocks:
        # https://github.com/vllm-project/vllm/blob/61249b177de1566027fc74e9b51b45a4c973eb47/vllm/v1/attention/backends/flex_attention.py#L615-L616
        TILE_KV_OG = tl.cdiv(KV_LEN, SPLIT_KV)
    else:
        TILE_KV_OG = tl.cdiv(kv_num_blocks * SPARSE_KV_BLOCK_SIZE, SPLIT_KV)
    TILE_KV = tl.cdiv(TILE_KV_OG, BLOCK_N) * BLOCK_N
    TILE_KV_MULTIPLE: tl.constexpr = TILE_KV // BLOCK_N

    # Calculate KV blocks that belong to this CTA.
    block_n_start = off_t * TILE_KV_MULTIPLE  # n_offset inside sparse block
    block_n_end = block_n_start + TILE_KV_MULTIPLE  # end BLOCK_N

    MAX_KV_IDX = 8
    indices_idx = (block_n_start // SPARSE_KV_MULTIPLE) % (MAX_KV_IDX)
    off_n_block_in_sparse = block_n_start % SPARSE_KV_MULTIPLE
    off_n = tl.load(kv_indices + indices_idx) * SPARSE_KV_BLOCK_SIZE + off_n_block_in_sparse * BLOCK_N
    # first kv block we're loading

    # last valid block according to sparse mask
    block_n_last_valid = tl.minimum(kv_num_blocks * SPARSE_KV_MULTIPLE, tl.maximum(tl.cdiv(KV_LEN, BLOCK_N), 1))

    offs_n = tl.arange(0, BLOCK_N) + off_n

    desc_k = None
    desc_v = None

    acc, l_i, m_i = flex_decoding_forward_inner(
        arg_Q,
        arg_K,
        arg_V,
        arg_M,
        arg_L,
        arg_KV_NUM_BLKS,
        arg_KV_IDX,
        arg_FULL_KV_NUM_BLKS,
        arg_FULL_KV_IDX,
        out_ptr0,
        q,
        K,
        V,
        desc_k,
        desc_v,
        Q_LEN,
        KV_LEN,
        # accumulatd values
        acc,
        l_i,
        m_i,
        # offsets
        off_z,
        offs_hq[:, None],
        offs_m[:, None],
        offs_n[None, :],
        off_n,
        # block sparse data
        kv_indices,
        kv_num_blocks,
        block_n_start,
        block_n_end if block_n_end <= block_n_last_valid else block_n_last_valid,
        MATMUL_PRECISION,
        stride_kk,
        stride_kn,
        stride_vn,
        stride_vk,
        IS_FULL_BLOCKS=False,
    )

    # ~~~~~~~~~~~~~~ "full" blocks ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    # We know these blocks are guaranteed to be "full", so we don't need to
    # apply mask_mod to them - only score_mod
    if HAS_FULL_BLOCKS:
        kv_indices = FULL_KV_IDX + sparse_idx_zhm_offset
        kv_num_blocks = tl.load(FULL_KV_NUM_BLKS + sparse_block_zhm_offset)
        # Assign full block in a reverse order for off_t. Prioritize the last CTA.
        block_n_start = (SPLIT_KV - off_t - 1) * TILE_KV_MULTIPLE
        block_n_end = block_n_start + TILE_KV_MULTIPLE
        indices_idx = (block_n_start // SPARSE_KV_MULTIPLE) % (MAX_KV_IDX)
        off_n_block_in_sparse = block_n_start % SPARSE_KV_MULTIPLE
        off_n = tl.load(kv_indices + indices_idx) * SPARSE_KV_BLOCK_SIZE + off_n_block_in_sparse * BLOCK_N

        # last valid block according to sparse mask
        block_n_last_valid = tl.minimum(kv_num_blocks * SPARSE_KV_MULTIPLE, tl.maximum(tl.cdiv(KV_LEN, BLOCK_N), 1))

        offs_n = tl.arange(0, BLOCK_N) + off_n

        acc, l_i, m_i = flex_decoding_forward_inner(
            arg_Q,
            arg_K,
            arg_V,
            arg_M,
            arg_L,
            arg_KV_NUM_BLKS,
            arg_KV_IDX,
            arg_FULL_KV_NUM_BLKS,
            arg_FULL_KV_IDX,
            out_ptr0,
            q,
            K,
            V,
            desc_k,
            desc_v,
            Q_LEN,
            KV_LEN,
            # accumulatd values
            acc,
            l_i,
            m_i,
            # offsets
            off_z,
            offs_hq[:, None],
            offs_m[:, None],
            offs_n[None, :],
            off_n,
            # block sparse data
            kv_indices,
            kv_num_blocks,
            block_n_start,
            block_n_end if block_n_end <= block_n_last_valid else block_n_last_valid,
            MATMUL_PRECISION,
            stride_kk,
            stride_kn,
            stride_vn,
            stride_vk,
            IS_FULL_BLOCKS=True,
        )

    m_offset = off_t * stride_mt + off_z * stride_mz
    l_offset = off_t * stride_lt + off_z * stride_lz

    ml_h_offsets = off_hkv * G + off_g[:, None]
    ml_m_offsets = off_m[None, :]
    m_ptrs = M + m_offset + ml_h_offsets * stride_mh + ml_m_offsets * stride_mm
    l_ptrs = L + l_offset + ml_h_offsets * stride_lh + ml_m_offsets * stride_lm

    # Store output, logsumexp and rowmax for cross CTA reduction. (all in float32, even when input data are in fp16)
    m_i = m_i.reshape(G, BLOCK_M_PER_HQ)
    l_i = l_i.reshape(G, BLOCK_M_PER_HQ)
    if SAFE_M_BOUNDARY:
        tl.store(m_ptrs, m_i)
        tl.store(l_ptrs, l_i)
    else:
        ml_mask = ml_m_offsets < Q_LEN
        tl.store(m_ptrs, m_i, mask=ml_mask)
        tl.store(l_ptrs, l_i, mask=ml_mask)

    # -- store output
    idx_z = off_z
    idx_t = off_t
    idx_hq = off_hkv * G + off_g[:, None, None]
    idx_m = off_m[None, :, None]
    idx_d = offs_vd[None, None, :]

    mask = (idx_m < Q_LEN) & (idx_d < V_HEAD_DIM)
    acc = acc.reshape(G, BLOCK_M_PER_HQ, V_HEAD_DIM_ROUNDED)
    xindex = idx_d + 128 * idx_hq + 128 * idx_m + 1024 * idx_t + 67584 * idx_z
    tl.store(
        out_ptr0
        + (
            tl.broadcast_to(
                idx_d + 128 * idx_hq + 1024 * idx_t + 67584 * idx_z,
                [GQA_SHARED_HEADS, BLOCK_M_PER_HQ, V_HEAD_DIM_ROUNDED],
            )
        ),
        acc,
        mask,
    )


# Utility triton funcs
@triton.jit
def flex_decoding_get_offset_for_next_block(
    loop_iter,
    col_indices,
    total_blocks,
    SPARSE_BLOCK,
    SPARSE_BLOCK_MULTIPLE,
    BLOCK,
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr,
):
    if BLOCKS_ARE_CONTIGUOUS:
        return BLOCK
    cur_block_idx = loop_iter // SPARSE_BLOCK_MULTIPLE
    cur_block = tl.load(col_indices + cur_block_idx, eviction_policy="evict_last")
    next_block = tl.load(
        col_indices + cur_block_idx + 1, eviction_policy="evict_last", mask=cur_block_idx + 1 < total_blocks
    )
    needs_jump = (loop_iter + 1) % SPARSE_BLOCK_MULTIPLE == 0
    jump_to_block = (next_block - cur_block) * SPARSE_BLOCK - (SPARSE_BLOCK_MULTIPLE - 1) * BLOCK
    offset = jump_to_block * needs_jump + (1 - needs_jump) * BLOCK
    return offset


@triton.jit
def flex_decoding_get_bounded_indices(indices, max_len=None):
    return indices % max_len if max_len is not None else indices


@triton.jit
def flex_decoding_load_checked_block(block_ptr, IS_DIVISIBLE: tl.constexpr, SAFE_HEAD_DIM: tl.constexpr):
    if IS_DIVISIBLE and SAFE_HEAD_DIM:
        return tl.load(block_ptr)
    elif IS_DIVISIBLE and not SAFE_HEAD_DIM:
        return tl.load(block_ptr, boundary_check=(1,), padding_option="zero")
    elif not IS_DIVISIBLE and SAFE_HEAD_DIM:
        return tl.load(block_ptr, boundary_check=(0,), padding_option="zero")
    else:
        return tl.load(block_ptr, boundary_check=(0, 1), padding_option="zero")


@triton.jit
def flex_decoding_load_checked_2d(
    ptr,
    offs_m,
    offs_n,
    stride_m,
    stride_n,
    IS_DIVISIBLE_M: tl.constexpr,
    IS_DIVISIBLE_N: tl.constexpr,
    M_LEN: tl.constexpr,
    N_LEN: tl.constexpr,
):
    # Calculate final pointer if strides are provided
    if stride_m is not None and stride_n is not None:
        ptr = ptr + offs_m[:, None] * stride_m + offs_n[None, :] * stride_n

    # Handle all masking cases
    if not IS_DIVISIBLE_M and not IS_DIVISIBLE_N:
        return tl.load(ptr, mask=(offs_m[:, None] < M_LEN) & (offs_n[None, :] < N_LEN), other=0.0)
    elif IS_DIVISIBLE_M and not IS_DIVISIBLE_N:
        return tl.load(ptr, mask=(offs_n[None, :] < N_LEN), other=0.0)
    elif not IS_DIVISIBLE_M and IS_DIVISIBLE_N:
        return tl.load(ptr, mask=(offs_m[:, None] < M_LEN), other=0.0)
    else:  # Both divisible
        return tl.load(ptr)


# Common Imports
@triton.jit
def flex_decoding_forward_block_mn(
    arg_Q,
    arg_K,
    arg_V,
    arg_M,
    arg_L,
    arg_KV_NUM_BLKS,
    arg_KV_IDX,
    arg_FULL_KV_NUM_BLKS,
    arg_FULL_KV_IDX,
    out_ptr0,
    q,
    K,
    V,
    desc_k,
    desc_v,
    Q_LEN,
    KV_LEN,
    # accumulated values
    acc,
    l_i,
    m_i,
    # Offsets
    off_z,
    off_h,
    offs_m,
    offs_n,
    # Offsets needed for TMA loads
    kv_start,
    kv_offset,
    MATMUL_PRECISION,
    RCP_LN2,
    # Strides for K and V
    stride_kk,
    stride_kn,
    stride_vn,
    stride_vk,
    IS_FULL_BLOCKS,
    CHECK_BLOCK_BOUNDARY=False,
):
    # Redefines all kernel parameters (BLOCK_M, etc.) so we don't need to plumb them all through
    PRESCALE_QK: tl.constexpr = False
    ROWS_GUARANTEED_SAFE: tl.constexpr = False
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr = False
    WRITE_DQ: tl.constexpr = True
    OUTPUT_LOGSUMEXP: tl.constexpr = True
    OUTPUT_MAX: tl.constexpr = False
    FLOAT32_PRECISION: tl.constexpr = "ieee"
    IS_DIVISIBLE: tl.constexpr = False
    GQA_SHARED_HEADS: tl.constexpr = 4
    HAS_FULL_BLOCKS: tl.constexpr = True
    SM_SCALE: tl.constexpr = 0.08838834764831843
    SPLIT_KV: tl.constexpr = 66
    QK_HEAD_DIM: tl.constexpr = 128
    QK_HEAD_DIM_ROUNDED: tl.constexpr = 128
    V_HEAD_DIM: tl.constexpr = 128
    V_HEAD_DIM_ROUNDED: tl.constexpr = 128
    SAFE_HEAD_DIM: tl.constexpr = True
    BLOCK_M: tl.constexpr = 16
    SAFE_M_BOUNDARY: tl.constexpr = False
    SAFE_N_BOUNDARY: tl.constexpr = True
    BLOCK_N: tl.constexpr = 64
    SPARSE_Q_BLOCK_SIZE: tl.constexpr = 128
    SPARSE_KV_BLOCK_SIZE: tl.constexpr = 128
    USE_TMA: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32

    # -- load k --
    # NB reversed order to since K is transposed
    kv_base_offset = kv_start + kv_offset

    # Load K as [BLOCK_N, QK_HEAD_DIM_ROUNDED] then transpose to [QK_HEAD_DIM_ROUNDED, BLOCK_N]
    offs_k = tl.arange(0, QK_HEAD_DIM_ROUNDED)
    offs_n_load = kv_base_offset + tl.arange(0, BLOCK_N)
    k = flex_decoding_load_checked_2d(
        K, offs_n_load, offs_k, stride_kn, stride_kk, IS_DIVISIBLE, SAFE_HEAD_DIM, KV_LEN, QK_HEAD_DIM
    )

    k = tl.trans(k)
    k = k.to(q.dtype)
    # -- compute qk ---
    qk = tl.dot(q, k, input_precision=FLOAT32_PRECISION)  # TODO: use cuda matmul when q_len <= 2.
    if not PRESCALE_QK:
        qk *= SM_SCALE
    # ~~~~~~~~~~~~~~~~~~~ Apply score modification  ~~~~~~~~~~~~~~~~~~~
    # If this is the last block of a non divisible seqlen, we still need to load [BLOCK_M, BLOCK_N] elements,
    # which is larger than the actual number of elements. To avoid access memory out of bound,
    # we need to mask out the elements that are out of Q_LEN & KV_LEN.
    m = flex_decoding_get_bounded_indices(offs_m, Q_LEN if CHECK_BLOCK_BOUNDARY else None)
    n = flex_decoding_get_bounded_indices(offs_n, KV_LEN if CHECK_BLOCK_BOUNDARY else None)

    tmp0 = qk
    post_mod_scores = tmp0

    if CHECK_BLOCK_BOUNDARY:
        # Mask out the elements that are out of the KV_LEN for non divisible seqlen.
        post_mod_scores = tl.where(offs_n < KV_LEN, post_mod_scores, float("-inf"))

    if not IS_FULL_BLOCKS:
        tmp1 = m
        tmp2 = n
        tmp3 = tmp1 >= tmp2
        mask_mod_output = tmp3

        if CHECK_BLOCK_BOUNDARY:
            mask_mod_output = tl.where(offs_n < KV_LEN, mask_mod_output, False)
        # apply mask for partially unmasked blocks
        post_mod_scores = tl.where(mask_mod_output, post_mod_scores, float("-inf"))

    if not PRESCALE_QK:
        post_mod_scores *= RCP_LN2
    # ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~

    # -- compute scaling constant ---
    m_ij = tl.maximum(m_i, tl.max(post_mod_scores, 1))
    if not ROWS_GUARANTEED_SAFE:
        masked_out_rows = m_ij == float("-inf")
        m_ij_masked = tl.where(masked_out_rows, 0, m_ij)
    else:
        m_ij_masked = m_ij

    alpha = tl.math.exp2(m_i - m_ij_masked)
    p = tl.math.exp2(post_mod_scores - m_ij_masked[:, None])

    # NB: l_i update is pulled up here since it's a bit faster
    # NB: For headdim=256, it's faster to move it back down to after m_i =
    # m_ij
    l_i = l_i * alpha + tl.sum(p, 1)
    # # -- scale and update acc --
    acc = acc * alpha[:, None]
    # Calculate offsets for V loading - reuse kv_base_offset from K loading
    offs_v = tl.arange(0, V_HEAD_DIM_ROUNDED)
    v = flex_decoding_load_checked_2d(
        V, offs_n_load, offs_v, stride_vn, stride_vk, IS_DIVISIBLE, SAFE_HEAD_DIM, KV_LEN, V_HEAD_DIM
    )
    acc = tl.dot(p.to(MATMUL_PRECISION), v.to(q.dtype), acc, input_precision=FLOAT32_PRECISION)

    # -- update m_i
    m_i = m_ij

    return acc, l_i, m_i


@triton.jit
def flex_decoding_forward_inner(
    arg_Q,
    arg_K,
    arg_V,
    arg_M,
    arg_L,
    arg_KV_NUM_BLKS,
    arg_KV_IDX,
    arg_FULL_KV_NUM_BLKS,
    arg_FULL_KV_IDX,
    out_ptr0,
    q,
    K,
    V,
    desc_k,
    desc_v,
    Q_LEN,
    KV_LEN,
    # accumulated values
    acc,
    l_i,
    m_i,
    # Offsets used as inputs to score_mod & mask_mod
    # of size [BLOCK_M, BLOCK_N] or scalar.
    off_z,
    off_h,
    offs_m,
    offs_n,
    # Offsets needed for TMA loads
    kv_start,
    # blocksparse data
    kv_indices,
    kv_num_blocks,
    # start kv and end kv block
    block_n_start,
    block_n_end,
    MATMUL_PRECISION,
    # Strides for K and V
    stride_kk,
    stride_kn,
    stride_vn,
    stride_vk,
    IS_FULL_BLOCKS,
):
    # Redefines all kernel parameters (BLOCK_M, etc.) so we don't need to plumb them all through
    PRESCALE_QK: tl.constexpr = False
    ROWS_GUARANTEED_SAFE: tl.constexpr = False
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr = False
    WRITE_DQ: tl.constexpr = True
    OUTPUT_LOGSUMEXP: tl.constexpr = True
    OUTPUT_MAX: tl.constexpr = False
    FLOAT32_PRECISION: tl.constexpr = "ieee"
    IS_DIVISIBLE: tl.constexpr = False
    GQA_SHARED_HEADS: tl.constexpr = 4
    HAS_FULL_BLOCKS: tl.constexpr = True
    SM_SCALE: tl.constexpr = 0.08838834764831843
    SPLIT_KV: tl.constexpr = 66
    QK_HEAD_DIM: tl.constexpr = 128
    QK_HEAD_DIM_ROUNDED: tl.constexpr = 128
    V_HEAD_DIM: tl.constexpr = 128
    V_HEAD_DIM_ROUNDED: tl.constexpr = 128
    SAFE_HEAD_DIM: tl.constexpr = True
    BLOCK_M: tl.constexpr = 16
    SAFE_M_BOUNDARY: tl.constexpr = False
    SAFE_N_BOUNDARY: tl.constexpr = True
    BLOCK_N: tl.constexpr = 64
    SPARSE_Q_BLOCK_SIZE: tl.constexpr = 128
    SPARSE_KV_BLOCK_SIZE: tl.constexpr = 128
    USE_TMA: tl.constexpr = False
    INDEX_DTYPE: tl.constexpr = tl.int32

    SPARSE_KV_MULTIPLE: tl.constexpr = SPARSE_KV_BLOCK_SIZE // BLOCK_N
    RCP_LN2: tl.constexpr = 1.44269504

    if PRESCALE_QK:
        q = (q * SM_SCALE * RCP_LN2).to(MATMUL_PRECISION)

    kv_offset = 0

    # loop over k, v and update accumulator until block_n_end
    for start_n in range(block_n_start, block_n_end):
        # Here IS_DIVISIBLE acts are the start_n = tl.multiple_of(start_n, BLOCK_N) from triton_fused_attention.
        if IS_DIVISIBLE:
            acc, l_i, m_i = flex_decoding_forward_block_mn(
                arg_Q,
                arg_K,
                arg_V,
                arg_M,
                arg_L,
                arg_KV_NUM_BLKS,
                arg_KV_IDX,
                arg_FULL_KV_NUM_BLKS,
                arg_FULL_KV_IDX,
                out_ptr0,
                q,
                K,
                V,
                desc_k,
                desc_v,
                Q_LEN,
                KV_LEN,
                # accumulated values
                acc,
                l_i,
                m_i,
                # Offsets
                off_z,
                off_h,
                offs_m,
                offs_n,
                # Offsets needed for TMA loads
                kv_start,
                kv_offset,
                MATMUL_PRECISION,
                RCP_LN2,
                # Strides for K and V
                stride_kk,
                stride_kn,
                stride_vn,
                stride_vk,
                IS_FULL_BLOCKS,
            )
        else:
            # Benchmark shows even we applied mod & mask to each block for non divisible seqlen,
            # it's on par or slightly faster than only applying to the last block in fwd.
            # However, we choose different strategy for bwd, where we only apply mod & mask
            # to the last block because it's faster a lot.
            acc, l_i, m_i = flex_decoding_forward_block_mn(
                arg_Q,
                arg_K,
                arg_V,
                arg_M,
                arg_L,
                arg_KV_NUM_BLKS,
                arg_KV_IDX,
                arg_FULL_KV_NUM_BLKS,
                arg_FULL_KV_IDX,
                out_ptr0,
                q,
                K,
                V,
                desc_k,
                desc_v,
                Q_LEN,
                KV_LEN,
                # accumulated values
                acc,
                l_i,
                m_i,
                # Offsets
                off_z,
                off_h,
                offs_m,
                offs_n,
                # Offsets needed for TMA loads
                kv_start,
                kv_offset,
                MATMUL_PRECISION,
                RCP_LN2,
                # Strides for K and V
                stride_kk,
                stride_kn,
                stride_vn,
                stride_vk,
                IS_FULL_BLOCKS,
                CHECK_BLOCK_BOUNDARY=True,
            )

        offset = flex_decoding_get_offset_for_next_block(
            start_n, kv_indices, kv_num_blocks, SPARSE_KV_BLOCK_SIZE, SPARSE_KV_MULTIPLE, BLOCK_N, BLOCKS_ARE_CONTIGUOUS
        )

        offs_n = offs_n + offset
        kv_offset += offset

    return acc, l_i, m_i


@triton.jit
def helion_matmul(x, y, out):
    _BLOCK_SIZE_0: tl.constexpr = 128
    _BLOCK_SIZE_1: tl.constexpr = 128
    _BLOCK_SIZE_2: tl.constexpr = 64
    num_blocks_0 = tl.cdiv(2048, _BLOCK_SIZE_0)
    pid_0 = tl.program_id(0) % num_blocks_0
    pid_1 = tl.program_id(0) // num_blocks_0
    offset_0 = pid_0 * _BLOCK_SIZE_0
    indices_0 = (offset_0 + tl.arange(0, _BLOCK_SIZE_0)).to(tl.int32)
    offset_1 = pid_1 * _BLOCK_SIZE_1
    indices_1 = (offset_1 + tl.arange(0, _BLOCK_SIZE_1)).to(tl.int32)
    acc = tl.full([_BLOCK_SIZE_0, _BLOCK_SIZE_1], 0.0, tl.float32)
    for offset_2 in tl.range(0, 2048, _BLOCK_SIZE_2):
        indices_2 = offset_2 + tl.arange(0, _BLOCK_SIZE_2).to(tl.int32)
        acc_copy = acc
        acc_copy_0 = acc_copy
        load = tl.load(x + (indices_0[:, None] * 2048 + indices_2[None, :] * 1), None)
        load_1 = tl.load(y + (indices_2[:, None] * 2048 + indices_1[None, :] * 1), None)
        acc = tl.dot(
            tl.cast(load, tl.bfloat16),
            tl.cast(load_1, tl.bfloat16),
            acc=acc_copy_0,
            input_precision="tf32",
            out_dtype=tl.float32,
        )
    v_0 = tl.cast(acc, tl.bfloat16)
    tl.store(out + (indices_0[:, None] * 2048 + indices_1[None, :] * 1), v_0, None)


@triton.jit
def helion_persistent_matmul(x, y, out, _NUM_SM: tl.constexpr):
    _BLOCK_SIZE_0: tl.constexpr = 128
    _BLOCK_SIZE_1: tl.constexpr = 256
    _BLOCK_SIZE_2: tl.constexpr = 64
    out_desc = tl.make_tensor_descriptor(out, [2048, 2048], [2048, 1], [_BLOCK_SIZE_0, _BLOCK_SIZE_1])
    total_pids = 128
    for virtual_pid in tl.range(tl.program_id(0), total_pids, _NUM_SM):
        num_pid_m = tl.cdiv(2048, _BLOCK_SIZE_0)
        num_pid_n = tl.cdiv(2048, _BLOCK_SIZE_1)
        inner_2d_pid = virtual_pid
        num_pid_in_group = 8 * num_pid_n
        group_id = inner_2d_pid // num_pid_in_group
        first_pid_m = group_id * 8
        group_size_m = min(num_pid_m - first_pid_m, 8)
        pid_0 = first_pid_m + inner_2d_pid % num_pid_in_group % group_size_m
        pid_1 = inner_2d_pid % num_pid_in_group // group_size_m
        offset_0 = pid_0 * _BLOCK_SIZE_0
        indices_0 = (offset_0 + tl.arange(0, _BLOCK_SIZE_0)).to(tl.int32)
        offset_1 = pid_1 * _BLOCK_SIZE_1
        indices_1 = (offset_1 + tl.arange(0, _BLOCK_SIZE_1)).to(tl.int32)
        acc = tl.full([_BLOCK_SIZE_0, _BLOCK_SIZE_1], 0.0, tl.float32)
        for offset_2 in tl.range(0, 2048, _BLOCK_SIZE_2):
            indices_2 = offset_2 + tl.arange(0, _BLOCK_SIZE_2).to(tl.int32)
            acc_copy = acc
            acc_copy_0 = acc_copy
            load = tl.load(x + (indices_0[:, None] * 2048 + indices_2[None, :] * 1), None)
            load_1 = tl.load(y + (indices_2[:, None] * 2048 + indices_1[None, :] * 1), None)
            acc = tl.dot(
                tl.cast(load, tl.bfloat16),
                tl.cast(load_1, tl.bfloat16),
                acc=acc_copy_0,
                input_precision="tf32",
                out_dtype=tl.float32,
            )
        v_0 = tl.cast(acc, tl.bfloat16)
        out_desc.store([offset_0, offset_1], tl.cast(v_0, tl.bfloat16))


@triton.jit
def helion_attention(q_view, k_view, v_view, out, _RDIM_SIZE_2: tl.constexpr):
    _BLOCK_SIZE_0: tl.constexpr = 1
    _BLOCK_SIZE_1: tl.constexpr = 128
    _BLOCK_SIZE_3: tl.constexpr = 128
    num_blocks_0 = 2
    pid_0 = tl.program_id(0) % num_blocks_0
    pid_1 = tl.program_id(0) // num_blocks_0
    offset_0 = pid_0
    indices_0 = offset_0 + tl.zeros([1], tl.int32)
    offset_1 = pid_1 * _BLOCK_SIZE_1
    indices_1 = (offset_1 + tl.arange(0, _BLOCK_SIZE_1)).to(tl.int32)
    indices_2 = tl.arange(0, _RDIM_SIZE_2).to(tl.int32)
    m_i = tl.full([_BLOCK_SIZE_0, _BLOCK_SIZE_1], float("-inf"), tl.float32)
    l_i = tl.full([_BLOCK_SIZE_0, _BLOCK_SIZE_1], 1.0, tl.float32)
    acc = tl.full([_BLOCK_SIZE_0, _BLOCK_SIZE_1, _RDIM_SIZE_2], 0.0, tl.float32)
    q = tl.load(
        q_view
        + (indices_0[:, None, None] * 262144 + indices_1[None, :, None] * 128 + (0 + indices_2)[None, None, :] * 1),
        None,
    )
    for offset_3 in tl.range(0, 2048, _BLOCK_SIZE_3):
        indices_3 = offset_3 + tl.arange(0, _BLOCK_SIZE_3).to(tl.int32)
        q_copy = q
        m_i_copy = m_i
        l_i_copy = l_i
        acc_copy = acc
        q_copy_0 = q_copy
        m_i_copy_0 = m_i_copy
        l_i_copy_0 = l_i_copy
        acc_copy_0 = acc_copy
        k = tl.load(
            k_view
            + (indices_0[:, None, None] * 262144 + (0 + indices_2)[None, :, None] * 1 + indices_3[None, None, :] * 128),
            None,
        )
        qk = tl.cast(
            tl.reshape(
                tl.dot(
                    tl.reshape(tl.cast(q_copy_0, tl.bfloat16), [_BLOCK_SIZE_1, _RDIM_SIZE_2]),
                    tl.reshape(tl.cast(k, tl.bfloat16), [_RDIM_SIZE_2, _BLOCK_SIZE_3]),
                    input_precision="tf32",
                    out_dtype=tl.float32,
                ),
                [_BLOCK_SIZE_0, _BLOCK_SIZE_1, _BLOCK_SIZE_3],
            ),
            tl.bfloat16,
        )
        amax = tl.cast(max_propagate_nan(qk, 2), tl.bfloat16)
        v_0 = tl.full([], 0.12751743074602467, tl.float32)
        v_1 = tl.cast(amax * v_0, tl.bfloat16)
        v_2 = tl.cast(v_1, tl.float32)
        v_3 = maximum(m_i_copy_0, v_2)
        v_4 = tl.full([], 0.12751743074602467, tl.float32)
        v_5 = tl.cast(qk * v_4, tl.bfloat16)
        subscript = v_3[:, :, None]
        v_6 = tl.cast(v_5, tl.float32)
        v_7 = v_6 - subscript
        v_8 = libdevice.exp2(v_7)
        l_ij = tl.cast(tl.sum(v_8.to(tl.float32), 2), tl.float32)
        v_9 = m_i_copy_0 - v_3
        v_10 = libdevice.exp2(v_9)
        v_11 = l_i_copy_0 * v_10
        l_i = v_11 + l_ij
        subscript_1 = v_10[:, :, None]
        v_13 = acc_copy_0 * subscript_1
        v = tl.load(
            v_view
            + (indices_0[:, None, None] * 262144 + indices_3[None, :, None] * 128 + (0 + indices_2)[None, None, :] * 1),
            None,
        )
        v_14 = tl.cast(v_8, tl.bfloat16)
        acc = tl.reshape(
            tl.dot(
                tl.reshape(tl.cast(v_14, tl.bfloat16), [_BLOCK_SIZE_1, _BLOCK_SIZE_3]),
                tl.reshape(tl.cast(v, tl.bfloat16), [_BLOCK_SIZE_3, _RDIM_SIZE_2]),
                acc=tl.reshape(v_13, [_BLOCK_SIZE_1, _RDIM_SIZE_2]),
                input_precision="tf32",
                out_dtype=tl.float32,
            ),
            [_BLOCK_SIZE_0, _BLOCK_SIZE_1, _RDIM_SIZE_2],
        )
        m_i = v_3
    subscript_2 = l_i[:, :, None]
    v_15 = acc / subscript_2
    v_16 = tl.cast(v_15, tl.bfloat16)
    tl.store(
        out + (indices_0[:, None, None] * 262144 + indices_1[None, :, None] * 128 + (0 + indices_2)[None, None, :] * 1),
        v_16,
        None,
    )


@triton.jit
def helion_softmax(x, out, _RDIM_SIZE_1: tl.constexpr):
    _BLOCK_SIZE_0: tl.constexpr = 1
    pid_0 = tl.program_id(0)
    offset_0 = pid_0
    indices_0 = offset_0 + tl.zeros([1], tl.int32)
    indices_1 = tl.arange(0, _RDIM_SIZE_1).to(tl.int32)
    load = tl.load(x + (indices_0[:, None] * 2048 + (0 + indices_1)[None, :] * 1), None)
    v_0 = tl.cast(load, tl.float32)
    amax = tl.cast(tl.reshape(max_propagate_nan(v_0, 1), [_BLOCK_SIZE_0, 1]), tl.float32)
    v_1 = v_0 - amax
    v_2 = libdevice.exp(v_1)
    sum_1 = tl.cast(tl.reshape(tl.sum(v_2.to(tl.float32), 1), [_BLOCK_SIZE_0, 1]), tl.float32)
    v_3 = v_2 / sum_1
    v_4 = tl.cast(v_3, tl.bfloat16)
    tl.store(out + (indices_0[:, None] * 2048 + (0 + indices_1)[None, :] * 1), v_4, None)


@triton.jit
def flex_backward(
    arg_Q,
    arg_K,
    arg_V,
    arg_LSE,
    arg_DELTA,
    arg_DO,
    arg_DQ,
    arg_DV,
    arg_KV_NUM_BLKS,
    arg_KV_IDX,
    arg_Q_NUM_BLKS,
    arg_Q_IDX,
    arg_FULL_KV_NUM_BLKS,
    arg_FULL_KV_IDX,
    arg_FULL_Q_NUM_BLKS,
    arg_FULL_Q_IDX,
    out_ptr0,
):
    PRESCALE_QK: tl.constexpr = False
    ROWS_GUARANTEED_SAFE: tl.constexpr = False
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr = False
    WRITE_DQ: tl.constexpr = True
    OUTPUT_LOGSUMEXP: tl.constexpr = True
    OUTPUT_MAX: tl.constexpr = False
    FLOAT32_PRECISION: tl.constexpr = "ieee"
    IS_DIVISIBLE: tl.constexpr = True
    SM_SCALE: tl.constexpr = 0.125
    GQA_SHARED_HEADS: tl.constexpr = 1
    HAS_FULL_BLOCKS: tl.constexpr = True
    QK_HEAD_DIM: tl.constexpr = 128
    QK_HEAD_DIM_ROUNDED: tl.constexpr = 128
    V_HEAD_DIM: tl.constexpr = 128
    V_HEAD_DIM_ROUNDED: tl.constexpr = 128
    SAFE_HEAD_DIM: tl.constexpr = True
    USE_TMA: tl.constexpr = False
    BLOCK_M1: tl.constexpr = 64
    BLOCK_N1: tl.constexpr = 64
    BLOCK_M2: tl.constexpr = 64
    BLOCK_N2: tl.constexpr = 64
    SPARSE_Q_BLOCK_SIZE: tl.constexpr = 128
    SPARSE_KV_BLOCK_SIZE: tl.constexpr = 128
    INDEX_DTYPE: tl.constexpr = tl.int32
    Q = arg_Q
    K = arg_K
    V = arg_V
    LSE = arg_LSE
    DELTA = arg_DELTA
    DO = arg_DO
    DQ = arg_DQ
    DV = arg_DV
    KV_NUM_BLKS = arg_KV_NUM_BLKS
    KV_IDX = arg_KV_IDX
    Q_NUM_BLKS = arg_Q_NUM_BLKS
    Q_IDX = arg_Q_IDX
    FULL_KV_NUM_BLKS = arg_FULL_KV_NUM_BLKS
    FULL_KV_IDX = arg_FULL_KV_IDX
    FULL_Q_NUM_BLKS = arg_FULL_Q_NUM_BLKS
    FULL_Q_IDX = arg_FULL_Q_IDX

    # Sub notation for this kernel:
    #
    # Q: Query, K: Key, V: Value
    # LSE: logsumexp (logsumexp is always stored in fp32 regardless of the input dtype)
    # DELTA: Precomputed sum(OUT*DO, axis=-1)
    # DO: Derivative of Output, DQ: Derivative of Query, DV: Derivative of Value
    # DK: Derivative of Key, is the written to via the store_output call due to some limitations with
    # inductor codegen
    # M: Number of queries, N: Number of keys/values
    # QK_HEAD_DIM: The dimension of the query and key embeddings
    # V_HEAD_DIM: The dimension of the value embeddings
    # z: Batch size, h: Number of heads, m: Number of queries or keys/values, d: Head dim
    # GQA_SHARED_HEADS: number of query heads sharing one kv head in GQA setups.
    # (Modifiable) Performance tuning options
    # BLOCK_M1: when calculating DK & DV, iterate over BLOCK_M1 across the seqlen dim of Q in each thread block.
    # BLOCK_N1: when calculating DK & DV, the thread block size across the seqlen dim of K/V.
    # BLOCK_M2: when calculating DQ, the thread block size across the seqlen dim of Q.
    # BLOCK_N2: when calculating DQ, iterate over BLOCK_N2 across the seqlen dim of K/V in each thread block.
    #
    # The following FULL_* and PARTIAL_* is defined in the block sparse mask grid, rather than the thread block grid.
    # KV_NUM_BLKS: The number of KV blocks (that may or may not require masking) for each query.
    # KV_IDX: The indices of KV blocks (that may or may not require masking) for each query.
    # Q_NUM_BLKS: The number of Q blocks (that may or may not require masking) for each query.
    # Q_IDX: The indices of Q blocks (that may or may not require masking) for each query.
    # FULL_KV_NUM_BLKS: The number of fully unmasked KV blocks (so we don't need masking) for each query.
    # FULL_KV_IDX: The indices of fully unmasked KV blocks (so we don't need masking) for each query.
    # FULL_Q_NUM_BLKS: The number of fully unmasked Q blocks (so we don't need masking) for each query.
    # FULL_Q_IDX: The indices of fully unmasked Q blocks (so we don't need masking) for each query.

    # The below are kernel options that can be applied for certain score_mods,
    # or involve a numerics vs. perf tradeoff
    # PRESCALE_QK: Whether to pre-scale QK by 1/sqrt(d) and change of base. Has
    # about 20% more numerical error, but slightly faster.

    # Define strides of inputs
    stride_qz, stride_qh, stride_qm, stride_qd = 131072, 65536, 128, 1
    stride_kz, stride_kh, stride_kn, stride_kd = 131072, 65536, 128, 1
    stride_vz, stride_vh, stride_vn, stride_vd = 131072, 65536, 128, 1
    stride_doz, stride_doh, stride_dom, stride_dod = 131072, 65536, 128, 1

    stride_dqz, stride_dqh, stride_dqm, stride_dqd = 131072, 65536, 128, 1
    stride_dvz, stride_dvh, stride_dvm, stride_dvd = 131072, 65536, 128, 1

    ZQ = 1
    HQ = 2
    HKV = 2
    Q_LEN = 512
    ZKV = 1
    KV_LEN = 512

    MATMUL_PRECISION = Q.dtype.element_ty

    pid = tl.program_id(0).to(INDEX_DTYPE)
    NUM_KV_BLOCKS = tl.cdiv(KV_LEN, BLOCK_N1)
    NUM_Q_BLOCKS = tl.cdiv(Q_LEN, BLOCK_M2)

    off_zq = tl.program_id(1).to(INDEX_DTYPE)  # q batch idx
    off_hkv = tl.program_id(2).to(INDEX_DTYPE)  # kv head idx
    off_zkv = off_zq % ZKV  # kv batch idx

    SPARSE_Z = 1
    SPARSE_HQ = 1

    sparse_idx_z = off_zq % SPARSE_Z

    k_adj = (stride_kh * off_hkv + stride_kz * off_zkv).to(tl.int64)
    v_adj = (stride_vh * off_hkv + stride_vz * off_zkv).to(tl.int64)
    # first compute broadcasted dv of shape [Bq, Hkv, KV_LEN, V_HEAD_DIM]
    # then reduce to dv of shape [Bkv, Hkv, KV_LEN, V_HEAD_DIM]
    dv_adj = (stride_dvh * off_hkv + stride_dvz * off_zq).to(tl.int64)

    # offset K, V, DV pointers for batch/kv-head
    K += k_adj
    V += v_adj
    DV += dv_adj

    RCP_LN2 = 1.44269504
    offs_k = tl.arange(0, QK_HEAD_DIM_ROUNDED)
    offs_v = tl.arange(0, V_HEAD_DIM_ROUNDED)

    if pid >= NUM_KV_BLOCKS:
        off_pid = pid - NUM_KV_BLOCKS
        # THIS BLOCK DOES DQ
        SPARSE_Q_MULTIPLE = SPARSE_Q_BLOCK_SIZE // BLOCK_M2
        SPARSE_KV_MULTIPLE = SPARSE_KV_BLOCK_SIZE // BLOCK_N2
        off_hq2 = off_pid // NUM_Q_BLOCKS + off_hkv * GQA_SHARED_HEADS
        start_m2_block = off_pid % NUM_Q_BLOCKS
        off_pid_mask = start_m2_block // SPARSE_Q_MULTIPLE
        stride_kv_num_blks_h = 4
        stride_kv_idx_h = 16
        stride_kv_idx_m = 4
        stride_full_kv_num_blks_h = 4
        stride_full_kv_idx_h = 16
        stride_full_kv_idx_m = 4

        sparse_idx_hq2 = off_hq2 % SPARSE_HQ
        sparse_hz_offset = sparse_idx_z * SPARSE_HQ + sparse_idx_hq2

        sparse_kv_num_blks_offset = sparse_hz_offset * stride_kv_num_blks_h + off_pid_mask
        sparse_kv_idx_offset = sparse_hz_offset * stride_kv_idx_h + off_pid_mask * stride_kv_idx_m
        sparse_full_kv_num_blks_offset = sparse_hz_offset * stride_full_kv_num_blks_h + off_pid_mask
        sparse_full_kv_idx_offset = sparse_hz_offset * stride_full_kv_idx_h + off_pid_mask * stride_full_kv_idx_m

        # Offset Q, DQ, DO, DELTA & LSE. These inputs are offsetted by query heads.
        q_adj2 = (stride_qh * off_hq2 + stride_qz * off_zq).to(tl.int64)
        do_adj2 = (stride_doh * off_hq2 + stride_doz * off_zq).to(tl.int64)
        dq_adj2 = (stride_dqh * off_hq2 + stride_dqz * off_zq).to(tl.int64)
        off_chz2 = ((off_zq * HQ + off_hq2) * Q_LEN).to(tl.int64)

        Q2 = Q + q_adj2
        DO2 = DO + do_adj2
        # TODO: This does not work if DQ is not the same layout as Q (for example,
        # if Q is broadcasted)
        DQ2 = DQ + dq_adj2
        LSE2 = LSE + off_chz2
        DELTA2 = DELTA + off_chz2

        dq = tl.zeros([BLOCK_M2, QK_HEAD_DIM_ROUNDED], dtype=tl.float32)

        start_m2 = start_m2_block * BLOCK_M2
        offs_m2 = start_m2 + tl.arange(0, BLOCK_M2)

        desc_q = None
        desc_do = None
        desc_k_dq = None
        desc_v_dq = None
        # load Q and do: they stay in SRAM throughout the inner loop.
        q = flex_backward_load_checked_2d(
            Q2, offs_m2, offs_k, stride_qm, stride_qd, IS_DIVISIBLE, SAFE_HEAD_DIM, Q_LEN, QK_HEAD_DIM
        )
        do = flex_backward_load_checked_2d(
            DO2, offs_m2, offs_v, stride_dom, stride_dod, IS_DIVISIBLE, SAFE_HEAD_DIM, Q_LEN, V_HEAD_DIM
        )
        if PRESCALE_QK:
            q = (q * SM_SCALE * RCP_LN2).to(MATMUL_PRECISION)

        if IS_DIVISIBLE:
            Di = tl.load(DELTA2 + offs_m2)
            lse = tl.load(LSE2 + offs_m2)
        else:
            Di = tl.load(DELTA2 + offs_m2, mask=offs_m2 < Q_LEN)
            lse = tl.load(LSE2 + offs_m2, mask=offs_m2 < Q_LEN)
        lse = tl.where(lse == -float("inf"), 0.0, lse)
        lse = lse[:, None]

        # ~~~~~~~~~~~ fully unmasked blocks ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
        # KV_IDX and KV_NUM_BLKS are always contiguous.
        kv_indices = KV_IDX + sparse_kv_idx_offset
        kv_start = tl.load(kv_indices) * SPARSE_KV_BLOCK_SIZE  # first kv block we're loading
        sparse_kv_num_blocks = tl.load(KV_NUM_BLKS + sparse_kv_num_blks_offset)

        dq = flex_backward_bwd_dq_inner(
            arg_Q,
            arg_K,
            arg_V,
            arg_LSE,
            arg_DELTA,
            arg_DO,
            arg_DQ,
            arg_DV,
            arg_KV_NUM_BLKS,
            arg_KV_IDX,
            arg_Q_NUM_BLKS,
            arg_Q_IDX,
            arg_FULL_KV_NUM_BLKS,
            arg_FULL_KV_IDX,
            arg_FULL_Q_NUM_BLKS,
            arg_FULL_Q_IDX,
            out_ptr0,
            K,
            V,
            desc_k_dq,
            desc_v_dq,
            kv_start,
            start_m2,
            dq,
            q,
            do,
            Di,
            lse,
            off_zq,
            off_hq2,
            stride_kn,
            stride_kd,
            stride_vn,
            stride_vd,
            kv_indices,
            sparse_kv_num_blocks,
            MATMUL_PRECISION,
            IS_FULL_BLOCKS=False,
        )

        if HAS_FULL_BLOCKS:
            # ~~~~~~~~~~~ partial unmasked blocks ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
            # FULL_KV_IDX and FULL_KV_NUM_BLKS are always contiguous.
            kv_indices = FULL_KV_IDX + sparse_full_kv_idx_offset
            kv_start = tl.load(kv_indices) * SPARSE_KV_BLOCK_SIZE  # first kv block we're loading
            sparse_kv_num_blocks = tl.load(FULL_KV_NUM_BLKS + sparse_full_kv_num_blks_offset)

            offs_n2 = kv_start + tl.arange(0, BLOCK_N2)
            dq = flex_backward_bwd_dq_inner(
                arg_Q,
                arg_K,
                arg_V,
                arg_LSE,
                arg_DELTA,
                arg_DO,
                arg_DQ,
                arg_DV,
                arg_KV_NUM_BLKS,
                arg_KV_IDX,
                arg_Q_NUM_BLKS,
                arg_Q_IDX,
                arg_FULL_KV_NUM_BLKS,
                arg_FULL_KV_IDX,
                arg_FULL_Q_NUM_BLKS,
                arg_FULL_Q_IDX,
                out_ptr0,
                K,
                V,
                desc_k_dq,
                desc_v_dq,
                kv_start,
                start_m2,
                dq,
                q,
                do,
                Di,
                lse,
                off_zq,
                off_hq2,
                stride_kn,
                stride_kd,
                stride_vn,
                stride_vd,
                kv_indices,
                sparse_kv_num_blocks,
                MATMUL_PRECISION,
                IS_FULL_BLOCKS=True,
            )

        # Write back dQ.
        dq_ptrs = DQ2 + offs_m2[:, None] * stride_dqm + offs_k[None, :] * stride_dqd
        dq *= SM_SCALE
        if IS_DIVISIBLE and SAFE_HEAD_DIM:
            tl.store(dq_ptrs, dq)
        else:
            tl.store(dq_ptrs, dq, mask=(offs_m2[:, None] < Q_LEN) & (offs_k[None, :] < QK_HEAD_DIM))
    else:
        # THIS BLOCK DOES DK & DV
        SPARSE_Q_MULTIPLE = SPARSE_Q_BLOCK_SIZE // BLOCK_M1
        SPARSE_KV_MULTIPLE = SPARSE_KV_BLOCK_SIZE // BLOCK_N1

        pid_mask = pid // SPARSE_KV_MULTIPLE

        stride_q_num_blks_h = 4
        stride_q_idx_h = 16
        stride_q_idx_n = 4
        stride_full_q_num_blks_h = 4
        stride_full_q_idx_h = 16
        stride_full_q_idx_n = 4

        dv = tl.zeros([BLOCK_N1, V_HEAD_DIM_ROUNDED], dtype=tl.float32)
        dk = tl.zeros([BLOCK_N1, QK_HEAD_DIM_ROUNDED], dtype=tl.float32)

        start_n1 = pid * BLOCK_N1
        offs_n1 = start_n1 + tl.arange(0, BLOCK_N1)
        # load K and V: they stay in SRAM throughout the inner loop.
        k = flex_backward_load_checked_2d(
            K, offs_n1, offs_k, stride_kn, stride_kd, IS_DIVISIBLE, SAFE_HEAD_DIM, KV_LEN, QK_HEAD_DIM
        )
        v = flex_backward_load_checked_2d(
            V, offs_n1, offs_v, stride_vn, stride_vd, IS_DIVISIBLE, SAFE_HEAD_DIM, KV_LEN, V_HEAD_DIM
        )
        if PRESCALE_QK:
            k = (k * SM_SCALE * RCP_LN2).to(MATMUL_PRECISION)

        for off_g in range(0, GQA_SHARED_HEADS):
            off_hq1 = off_hkv * GQA_SHARED_HEADS + off_g

            # Offset Q, DQ, DO, DELTA & LSE. These inputs are offsetted by query heads.
            q_adj1 = (stride_qh * off_hq1 + stride_qz * off_zq).to(tl.int64)
            do_adj1 = (stride_doh * off_hq1 + stride_doz * off_zq).to(tl.int64)
            dq_adj1 = (stride_dqh * off_hq1 + stride_dqz * off_zq).to(tl.int64)
            off_chz1 = ((off_zq * HQ + off_hq1) * Q_LEN).to(tl.int64)

            Q1 = Q + q_adj1
            DO1 = DO + do_adj1
            # TODO: This does not work if DQ is not the same layout as Q (for example,
            # if Q is broadcasted)
            LSE1 = LSE + off_chz1
            DELTA1 = DELTA + off_chz1

            sparse_idx_hq1 = off_hq1 % SPARSE_HQ
            sparse_hz_offset = sparse_idx_z * SPARSE_HQ + sparse_idx_hq1

            sparse_q_num_blks_offset = sparse_hz_offset * stride_q_num_blks_h + pid_mask
            sparse_q_idx_offset = sparse_hz_offset * stride_q_idx_h + pid_mask * stride_q_idx_n
            sparse_full_q_num_blks_offset = sparse_hz_offset * stride_full_q_num_blks_h + pid_mask
            sparse_full_q_idx_offset = sparse_hz_offset * stride_full_q_idx_h + pid_mask * stride_full_q_idx_n

            # ~~~~~~~~~~~~~~~ fully unmasked blocks ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
            # Q_IDX and Q_NUM_BLKS are always contiguous.
            q_indices = Q_IDX + sparse_q_idx_offset
            q_start = tl.load(q_indices) * SPARSE_Q_BLOCK_SIZE  # first q block we're loading
            sparse_q_num_blocks = tl.load(Q_NUM_BLKS + sparse_q_num_blks_offset)

            offs_m1 = q_start + tl.arange(0, BLOCK_M1)
            desc_q = None
            desc_do = None
            dk, dv = flex_backward_bwd_dkdv_inner(
                arg_Q,
                arg_K,
                arg_V,
                arg_LSE,
                arg_DELTA,
                arg_DO,
                arg_DQ,
                arg_DV,
                arg_KV_NUM_BLKS,
                arg_KV_IDX,
                arg_Q_NUM_BLKS,
                arg_Q_IDX,
                arg_FULL_KV_NUM_BLKS,
                arg_FULL_KV_IDX,
                arg_FULL_Q_NUM_BLKS,
                arg_FULL_Q_IDX,
                out_ptr0,
                Q1,
                DO1,
                DELTA1,
                LSE1,
                desc_q,
                desc_do,
                q_start,
                dk,
                dv,
                k,
                v,
                off_zq,
                off_hq1,
                offs_n1,
                offs_m1,
                stride_qm,
                stride_qd,
                stride_dom,
                stride_dod,
                q_indices,
                sparse_q_num_blocks,
                MATMUL_PRECISION,
                IS_FULL_BLOCKS=False,
            )

            if HAS_FULL_BLOCKS:
                # ~~~~~~~~~~~~~~~ fully unmasked blocks ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
                # FULL_Q_IDX and FULL_Q_NUM_BLKS are always contiguous.
                q_indices = FULL_Q_IDX + sparse_full_q_idx_offset
                q_start = tl.load(q_indices) * SPARSE_Q_BLOCK_SIZE  # first q block we're loading
                sparse_q_num_blocks = tl.load(FULL_Q_NUM_BLKS + sparse_full_q_num_blks_offset)

                offs_m1 = q_start + tl.arange(0, BLOCK_M1)
                dk, dv = flex_backward_bwd_dkdv_inner(
                    arg_Q,
                    arg_K,
                    arg_V,
                    arg_LSE,
                    arg_DELTA,
                    arg_DO,
                    arg_DQ,
                    arg_DV,
                    arg_KV_NUM_BLKS,
                    arg_KV_IDX,
                    arg_Q_NUM_BLKS,
                    arg_Q_IDX,
                    arg_FULL_KV_NUM_BLKS,
                    arg_FULL_KV_IDX,
                    arg_FULL_Q_NUM_BLKS,
                    arg_FULL_Q_IDX,
                    out_ptr0,
                    Q1,
                    DO1,
                    DELTA1,
                    LSE1,
                    desc_q,
                    desc_do,
                    q_start,
                    dk,
                    dv,
                    k,
                    v,
                    off_zq,
                    off_hq1,
                    offs_n1,
                    offs_m1,
                    stride_qm,
                    stride_qd,
                    stride_dom,
                    stride_dod,
                    q_indices,
                    sparse_q_num_blocks,
                    MATMUL_PRECISION,
                    IS_FULL_BLOCKS=True,
                )

        # Write back dV and dK.
        dv_ptrs = DV + offs_n1[:, None] * stride_dvm + offs_v[None, :] * stride_dvd

        index_n = offs_n1[:, None]
        index_k = offs_k[None, :]
        index_v = offs_v[None, :]

        if IS_DIVISIBLE and SAFE_HEAD_DIM:
            tl.store(dv_ptrs, dv)
        else:
            tl.store(dv_ptrs, dv, mask=(index_n < KV_LEN) & (index_v < V_HEAD_DIM))

        dk *= SM_SCALE

        if SAFE_HEAD_DIM:
            mask = index_n < KV_LEN
        else:
            mask = (index_n < KV_LEN) & (index_k < QK_HEAD_DIM)

        # first compute broadcasted dk of shape [Bq, Hkv, KV_LEN, V_HEAD_DIM]
        # then reduce to dk of shape [Bkv, Hkv, KV_LEN, V_HEAD_DIM]
        tl.static_assert(dk.shape == [BLOCK_N1, QK_HEAD_DIM_ROUNDED])
        xindex = index_k + 128 * index_n + 65536 * off_hkv + 131072 * off_zq
        tl.store(
            out_ptr0 + (tl.broadcast_to(index_k + 128 * index_n + 65536 * off_hkv, [BLOCK_N1, QK_HEAD_DIM_ROUNDED])),
            dk,
            mask,
        )


@triton.jit
def flex_backward_bwd_dq_inner(
    arg_Q,
    arg_K,
    arg_V,
    arg_LSE,
    arg_DELTA,
    arg_DO,
    arg_DQ,
    arg_DV,
    arg_KV_NUM_BLKS,
    arg_KV_IDX,
    arg_Q_NUM_BLKS,
    arg_Q_IDX,
    arg_FULL_KV_NUM_BLKS,
    arg_FULL_KV_IDX,
    arg_FULL_Q_NUM_BLKS,
    arg_FULL_Q_IDX,
    out_ptr0,
    K,
    V,
    desc_k,
    desc_v,
    kv_start,
    start_m2,
    dq,
    q,
    do,
    Di,
    lse,
    off_z,
    off_hq,
    stride_kn,
    stride_kd,
    stride_vn,
    stride_vd,
    kv_indices,
    sparse_kv_num_blocks,
    MATMUL_PRECISION,
    IS_FULL_BLOCKS,
):

    PRESCALE_QK: tl.constexpr = False
    ROWS_GUARANTEED_SAFE: tl.constexpr = False
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr = False
    WRITE_DQ: tl.constexpr = True
    OUTPUT_LOGSUMEXP: tl.constexpr = True
    OUTPUT_MAX: tl.constexpr = False
    FLOAT32_PRECISION: tl.constexpr = "ieee"
    IS_DIVISIBLE: tl.constexpr = True
    SM_SCALE: tl.constexpr = 0.125
    GQA_SHARED_HEADS: tl.constexpr = 1
    HAS_FULL_BLOCKS: tl.constexpr = True
    QK_HEAD_DIM: tl.constexpr = 128
    QK_HEAD_DIM_ROUNDED: tl.constexpr = 128
    V_HEAD_DIM: tl.constexpr = 128
    V_HEAD_DIM_ROUNDED: tl.constexpr = 128
    SAFE_HEAD_DIM: tl.constexpr = True
    USE_TMA: tl.constexpr = False
    BLOCK_M1: tl.constexpr = 64
    BLOCK_N1: tl.constexpr = 64
    BLOCK_M2: tl.constexpr = 64
    BLOCK_N2: tl.constexpr = 64
    SPARSE_Q_BLOCK_SIZE: tl.constexpr = 128
    SPARSE_KV_BLOCK_SIZE: tl.constexpr = 128
    INDEX_DTYPE: tl.constexpr = tl.int32

    SPARSE_KV_MULTIPLE: tl.constexpr = SPARSE_KV_BLOCK_SIZE // BLOCK_N2
    RCP_LN2: tl.constexpr = 1.44269504
    Q_LEN = 512
    KV_LEN = 512

    offs_k = tl.arange(0, QK_HEAD_DIM_ROUNDED)
    offs_v = tl.arange(0, V_HEAD_DIM_ROUNDED)

    # BLOCK_M2 must be a multiple of BLOCK_N2, otherwise the code wouldn't work.
    tl.static_assert(BLOCK_M2 % BLOCK_N2 == 0)

    hi = tl.minimum(sparse_kv_num_blocks * SPARSE_KV_MULTIPLE, tl.maximum(tl.cdiv(KV_LEN, BLOCK_N2), 1))

    kv_offset = 0
    for start_n in range(0, hi):
        dq = flex_backward_bwd_dq_block_mn(
            arg_Q,
            arg_K,
            arg_V,
            arg_LSE,
            arg_DELTA,
            arg_DO,
            arg_DQ,
            arg_DV,
            arg_KV_NUM_BLKS,
            arg_KV_IDX,
            arg_Q_NUM_BLKS,
            arg_Q_IDX,
            arg_FULL_KV_NUM_BLKS,
            arg_FULL_KV_IDX,
            arg_FULL_Q_NUM_BLKS,
            arg_FULL_Q_IDX,
            out_ptr0,
            dq,
            q,
            K,
            V,
            desc_k,
            desc_v,
            kv_start,
            kv_offset,
            start_m2,
            do,
            Di,
            lse,
            Q_LEN,
            KV_LEN,
            off_z,
            off_hq,
            offs_k,
            offs_v,
            stride_kn,
            stride_kd,
            stride_vn,
            stride_vd,
            kv_indices,
            sparse_kv_num_blocks,
            MATMUL_PRECISION,
            RCP_LN2,
            IS_FULL_BLOCKS,
        )

        # Increment pointers.
        offset = flex_backward_get_offset_for_next_block(
            start_n,
            kv_indices,
            sparse_kv_num_blocks,
            SPARSE_KV_BLOCK_SIZE,
            SPARSE_KV_MULTIPLE,
            BLOCK_N2,
            BLOCKS_ARE_CONTIGUOUS,
        )

        kv_offset += offset

    return dq


@triton.jit
def flex_backward_bwd_dq_block_mn(
    arg_Q,
    arg_K,
    arg_V,
    arg_LSE,
    arg_DELTA,
    arg_DO,
    arg_DQ,
    arg_DV,
    arg_KV_NUM_BLKS,
    arg_KV_IDX,
    arg_Q_NUM_BLKS,
    arg_Q_IDX,
    arg_FULL_KV_NUM_BLKS,
    arg_FULL_KV_IDX,
    arg_FULL_Q_NUM_BLKS,
    arg_FULL_Q_IDX,
    out_ptr0,
    dq,
    q,
    K,
    V,
    desc_k,
    desc_v,
    kv_start,
    kv_offset,
    start_m2,
    do,
    Di,
    lse,
    Q_LEN,
    KV_LEN,
    off_z,
    off_hq,
    offs_k,
    offs_v,
    stride_kn,
    stride_kd,
    stride_vn,
    stride_vd,
    kv_indices,
    sparse_kv_num_blocks,
    MATMUL_PRECISION,
    RCP_LN2,
    IS_FULL_BLOCKS,
):
    PRESCALE_QK: tl.constexpr = False
    ROWS_GUARANTEED_SAFE: tl.constexpr = False
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr = False
    WRITE_DQ: tl.constexpr = True
    OUTPUT_LOGSUMEXP: tl.constexpr = True
    OUTPUT_MAX: tl.constexpr = False
    FLOAT32_PRECISION: tl.constexpr = "ieee"
    IS_DIVISIBLE: tl.constexpr = True
    SM_SCALE: tl.constexpr = 0.125
    GQA_SHARED_HEADS: tl.constexpr = 1
    HAS_FULL_BLOCKS: tl.constexpr = True
    QK_HEAD_DIM: tl.constexpr = 128
    QK_HEAD_DIM_ROUNDED: tl.constexpr = 128
    V_HEAD_DIM: tl.constexpr = 128
    V_HEAD_DIM_ROUNDED: tl.constexpr = 128
    SAFE_HEAD_DIM: tl.constexpr = True
    USE_TMA: tl.constexpr = False
    BLOCK_M1: tl.constexpr = 64
    BLOCK_N1: tl.constexpr = 64
    BLOCK_M2: tl.constexpr = 64
    BLOCK_N2: tl.constexpr = 64
    SPARSE_Q_BLOCK_SIZE: tl.constexpr = 128
    SPARSE_KV_BLOCK_SIZE: tl.constexpr = 128
    INDEX_DTYPE: tl.constexpr = tl.int32

    offs_n2 = kv_start + kv_offset + tl.arange(0, BLOCK_N2)
    offs_m2 = start_m2 + tl.arange(0, BLOCK_M2)
    kT_ptrs = K + offs_n2[None, :] * stride_kn + offs_k[:, None] * stride_kd
    vT_ptrs = V + offs_n2[None, :] * stride_vn + offs_v[:, None] * stride_vd
    # NB reversed order to since K is transposed
    kT = flex_backward_load_checked_2d(
        kT_ptrs, offs_k, offs_n2, None, None, SAFE_HEAD_DIM, IS_DIVISIBLE, QK_HEAD_DIM, KV_LEN
    )
    qk = tl.dot(q, kT, input_precision=FLOAT32_PRECISION)
    if not PRESCALE_QK:
        qk *= SM_SCALE
    # ~~~~~~~~~~~~~~~~~~~ Apply score modification  ~~~~~~~~~~~~~~~~~~~
    pre_mod_scores = qk
    n = flex_backward_get_bounded_indices(offs_n2[None, :], KV_LEN if not IS_DIVISIBLE else None)
    # The boundary check is done for the outer loop, but here it's possible since we're iterating across N dim
    # that the M reads out of bounds for the PIDS spanning the Q_LEN boundary
    m = flex_backward_get_bounded_indices(offs_m2[:, None], Q_LEN if not IS_DIVISIBLE else None)

    tmp0 = qk
    post_mod_scores = tmp0

    if not IS_DIVISIBLE:
        post_mod_scores = tl.where(offs_n2[None, :] < KV_LEN, post_mod_scores, float("-inf"))

    if not IS_FULL_BLOCKS:
        tmp1 = m
        tmp2 = n
        tmp3 = tmp1 >= tmp2
        mask_mod_output = tmp3

        # apply mask for partial masked block
        post_mod_scores = tl.where(mask_mod_output, post_mod_scores, float("-inf"))
    # ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    if not PRESCALE_QK:
        post_mod_scores *= RCP_LN2
    p = tl.math.exp2(post_mod_scores - lse)
    # Compute dP and dS.
    # NB reversed order to since V is transposed
    vT = flex_backward_load_checked_2d(
        vT_ptrs, offs_v, offs_n2, None, None, SAFE_HEAD_DIM, IS_DIVISIBLE, V_HEAD_DIM, KV_LEN
    )
    dp = tl.dot(do, vT, input_precision=FLOAT32_PRECISION)
    ds = p * (dp - Di[:, None])
    # ~~~~~~~~~~~~~~~~~~~ Apply joint modification  ~~~~~~~~~~~~~~~~~~~
    tmp4 = ds
    grad_scores = tmp4

    if not IS_DIVISIBLE:
        grad_scores = tl.where(offs_n2[None, :] < KV_LEN, grad_scores, 0.0)

    # ~~~~~~~~~~~~~~~~~~~ Apply other buffer grad writes ~~~~~~~~~~~~~
    if WRITE_DQ:
        scatter_mask = (offs_m2[:, None] < Q_LEN) & (offs_n2[None, :] < KV_LEN)

    # ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    ds = grad_scores

    if not IS_FULL_BLOCKS:
        # (grads) apply mask for partially unmasked block
        ds = tl.where(mask_mod_output, ds, 0.0)
    # ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    ds = ds.to(MATMUL_PRECISION)
    # Compute dQ.
    dq += tl.dot(ds, tl.trans(kT), input_precision=FLOAT32_PRECISION)

    return dq


@triton.jit
def flex_backward_bwd_dkdv_inner(
    arg_Q,
    arg_K,
    arg_V,
    arg_LSE,
    arg_DELTA,
    arg_DO,
    arg_DQ,
    arg_DV,
    arg_KV_NUM_BLKS,
    arg_KV_IDX,
    arg_Q_NUM_BLKS,
    arg_Q_IDX,
    arg_FULL_KV_NUM_BLKS,
    arg_FULL_KV_IDX,
    arg_FULL_Q_NUM_BLKS,
    arg_FULL_Q_IDX,
    out_ptr0,
    Q,
    DO,
    DELTA,
    LSE,  # pointers
    desc_q,
    desc_do,
    q_start,
    dk,
    dv,
    k,
    v,
    off_z,
    off_hq,
    offs_n1,
    offs_m1,
    stride_qm,
    stride_qd,
    stride_dom,
    stride_dod,
    q_indices,
    sparse_q_num_blocks,
    MATMUL_PRECISION,
    IS_FULL_BLOCKS,
):
    PRESCALE_QK: tl.constexpr = False
    ROWS_GUARANTEED_SAFE: tl.constexpr = False
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr = False
    WRITE_DQ: tl.constexpr = True
    OUTPUT_LOGSUMEXP: tl.constexpr = True
    OUTPUT_MAX: tl.constexpr = False
    FLOAT32_PRECISION: tl.constexpr = "ieee"
    IS_DIVISIBLE: tl.constexpr = True
    SM_SCALE: tl.constexpr = 0.125
    GQA_SHARED_HEADS: tl.constexpr = 1
    HAS_FULL_BLOCKS: tl.constexpr = True
    QK_HEAD_DIM: tl.constexpr = 128
    QK_HEAD_DIM_ROUNDED: tl.constexpr = 128
    V_HEAD_DIM: tl.constexpr = 128
    V_HEAD_DIM_ROUNDED: tl.constexpr = 128
    SAFE_HEAD_DIM: tl.constexpr = True
    USE_TMA: tl.constexpr = False
    BLOCK_M1: tl.constexpr = 64
    BLOCK_N1: tl.constexpr = 64
    BLOCK_M2: tl.constexpr = 64
    BLOCK_N2: tl.constexpr = 64
    SPARSE_Q_BLOCK_SIZE: tl.constexpr = 128
    SPARSE_KV_BLOCK_SIZE: tl.constexpr = 128
    INDEX_DTYPE: tl.constexpr = tl.int32

    SPARSE_Q_MULTIPLE: tl.constexpr = SPARSE_Q_BLOCK_SIZE // BLOCK_M1
    RCP_LN2: tl.constexpr = 1.44269504
    Q_LEN = 512
    KV_LEN = 512

    offs_k = tl.arange(0, QK_HEAD_DIM_ROUNDED)
    offs_v = tl.arange(0, V_HEAD_DIM_ROUNDED)

    # BLOCK_N1 must be a multiple of BLOCK_M1, otherwise the code wouldn't work.
    tl.static_assert(BLOCK_N1 % BLOCK_M1 == 0)

    # The minimum is needed to handle the case where we run with a super large
    # SPARSE_BLOCK_SIZE (i.e. no block-mask!)
    hi = tl.minimum(sparse_q_num_blocks * SPARSE_Q_MULTIPLE, tl.maximum(tl.cdiv(Q_LEN, BLOCK_M1), 1))

    offset_block = 0
    for start_m in range(0, hi):
        dk, dv = flex_backward_bwd_dkdv_block_mn(
            arg_Q,
            arg_K,
            arg_V,
            arg_LSE,
            arg_DELTA,
            arg_DO,
            arg_DQ,
            arg_DV,
            arg_KV_NUM_BLKS,
            arg_KV_IDX,
            arg_Q_NUM_BLKS,
            arg_Q_IDX,
            arg_FULL_KV_NUM_BLKS,
            arg_FULL_KV_IDX,
            arg_FULL_Q_NUM_BLKS,
            arg_FULL_Q_IDX,
            out_ptr0,
            dk,
            dv,
            Q,
            k,
            v,
            DO,
            DELTA,
            LSE,
            desc_q,
            desc_do,
            q_start,
            offset_block,
            Q_LEN,
            KV_LEN,
            off_z,
            off_hq,
            offs_n1,
            offs_m1,
            offs_k,
            offs_v,
            stride_qm,
            stride_qd,
            stride_dom,
            stride_dod,
            q_indices,
            sparse_q_num_blocks,
            MATMUL_PRECISION,
            RCP_LN2,
            IS_FULL_BLOCKS,
        )
        # Increment pointers.
        offset = flex_backward_get_offset_for_next_block(
            start_m,
            q_indices,
            sparse_q_num_blocks,
            SPARSE_Q_BLOCK_SIZE,
            SPARSE_Q_MULTIPLE,
            BLOCK_M1,
            BLOCKS_ARE_CONTIGUOUS,
        )
        offs_m1 += offset
        offset_block += offset

    return dk, dv


@triton.jit
def flex_backward_bwd_dkdv_block_mn(
    arg_Q,
    arg_K,
    arg_V,
    arg_LSE,
    arg_DELTA,
    arg_DO,
    arg_DQ,
    arg_DV,
    arg_KV_NUM_BLKS,
    arg_KV_IDX,
    arg_Q_NUM_BLKS,
    arg_Q_IDX,
    arg_FULL_KV_NUM_BLKS,
    arg_FULL_KV_IDX,
    arg_FULL_Q_NUM_BLKS,
    arg_FULL_Q_IDX,
    out_ptr0,
    dk,
    dv,
    Q,
    k,
    v,
    DO,
    DELTA,
    LSE,
    desc_q,
    desc_do,
    q_start,
    offset,
    Q_LEN,
    KV_LEN,
    off_z,
    off_hq,
    offs_n1,
    offs_m1,
    offs_k,
    offs_v,
    stride_qm,
    stride_qd,
    stride_dom,
    stride_dod,
    q_indices,
    sparse_q_num_blocks,
    MATMUL_PRECISION,
    RCP_LN2,
    IS_FULL_BLOCKS,
):
    PRESCALE_QK: tl.constexpr = False
    ROWS_GUARANTEED_SAFE: tl.constexpr = False
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr = False
    WRITE_DQ: tl.constexpr = True
    OUTPUT_LOGSUMEXP: tl.constexpr = True
    OUTPUT_MAX: tl.constexpr = False
    FLOAT32_PRECISION: tl.constexpr = "ieee"
    IS_DIVISIBLE: tl.constexpr = True
    SM_SCALE: tl.constexpr = 0.125
    GQA_SHARED_HEADS: tl.constexpr = 1
    HAS_FULL_BLOCKS: tl.constexpr = True
    QK_HEAD_DIM: tl.constexpr = 128
    QK_HEAD_DIM_ROUNDED: tl.constexpr = 128
    V_HEAD_DIM: tl.constexpr = 128
    V_HEAD_DIM_ROUNDED: tl.constexpr = 128
    SAFE_HEAD_DIM: tl.constexpr = True
    USE_TMA: tl.constexpr = False
    BLOCK_M1: tl.constexpr = 64
    BLOCK_N1: tl.constexpr = 64
    BLOCK_M2: tl.constexpr = 64
    BLOCK_N2: tl.constexpr = 64
    SPARSE_Q_BLOCK_SIZE: tl.constexpr = 128
    SPARSE_KV_BLOCK_SIZE: tl.constexpr = 128
    INDEX_DTYPE: tl.constexpr = tl.int32

    qT_ptrs = Q + offs_m1[None, :] * stride_qm + offs_k[:, None] * stride_qd
    do_ptrs = DO + offs_m1[:, None] * stride_dom + offs_v[None, :] * stride_dod
    # NB reversed order since Q is transposed
    qT = flex_backward_load_checked_2d(
        qT_ptrs, offs_k, offs_m1, None, None, SAFE_HEAD_DIM, IS_DIVISIBLE, QK_HEAD_DIM, Q_LEN
    )
    # Load LSE before computing qk to reduce pipeline stall.
    if IS_DIVISIBLE:
        lse = tl.load(LSE + offs_m1)
    else:
        lse = tl.load(LSE + offs_m1, mask=offs_m1 < Q_LEN)
    lse = tl.where(lse == -float("inf"), 0.0, lse)
    qkT = tl.dot(k, qT, input_precision=FLOAT32_PRECISION)
    if not PRESCALE_QK:
        qkT *= SM_SCALE
    # ~~~~~~~~~~~~~~~~~~~ Apply score modification  ~~~~~~~~~~~~~~~~~~~
    m = flex_backward_get_bounded_indices(offs_m1[None, :], Q_LEN if not IS_DIVISIBLE else None)
    # The boundary check is done for the outer loop, but here it's possible since we're iterating across M dim
    # that the n reads out of bounds for the PIDS spanning the KV_LEN boundary
    n = flex_backward_get_bounded_indices(offs_n1[:, None], KV_LEN if not IS_DIVISIBLE else None)

    pre_mod_scores = qkT
    tmp5 = qkT
    post_mod_scores = tmp5

    if not IS_DIVISIBLE:
        post_mod_scores = tl.where(offs_m1[None, :] < Q_LEN, post_mod_scores, float("-inf"))

    if not IS_FULL_BLOCKS:
        tmp6 = m
        tmp7 = n
        tmp8 = tmp6 >= tmp7
        mask_mod_output = tmp8

        # (grads) apply mask for fully masked block
        post_mod_scores = tl.where(mask_mod_output, post_mod_scores, float("-inf"))
    # ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    if not PRESCALE_QK:
        post_mod_scores *= RCP_LN2
    pT = tl.math.exp2(post_mod_scores - lse[None, :])
    do = flex_backward_load_checked_2d(
        do_ptrs, offs_m1, offs_v, None, None, IS_DIVISIBLE, SAFE_HEAD_DIM, Q_LEN, V_HEAD_DIM
    )
    # Compute dV.
    ppT = pT
    dv += tl.dot(ppT.to(MATMUL_PRECISION), do, input_precision=FLOAT32_PRECISION)
    if IS_DIVISIBLE:
        Di = tl.load(DELTA + offs_m1)
    else:
        Di = tl.load(DELTA + offs_m1, mask=offs_m1 < Q_LEN)
    # Compute dP and dS.
    dpT = tl.dot(v, tl.trans(do), input_precision=FLOAT32_PRECISION)
    dsT = pT * (dpT - Di[None, :])
    # ~~~~~~~~~~~~~~~~~~~ Apply joint modification  ~~~~~~~~~~~~~~~~~~~
    tmp9 = dsT
    grad_scores = tmp9

    if not IS_DIVISIBLE:
        grad_scores = tl.where(offs_m1[None, :] < Q_LEN, grad_scores, 0.0)

    # ~~~~~~~~~~~~~~~~~~~ Apply other buffer grad writes ~~~~~~~~~~~~~
    if not WRITE_DQ:
        idx_b = off_z
        idx_h = off_hq
        idx_m = m
        idx_n = n
        scatter_mask = (offs_m1[None, :] < Q_LEN) & (offs_n1[:, None] < KV_LEN)

    # ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    dsT = grad_scores
    if not IS_FULL_BLOCKS:
        # (grads) apply mask for partially unmasked block
        dsT = tl.where(mask_mod_output, dsT, 0.0)
    # ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    dk += tl.dot(dsT.to(MATMUL_PRECISION), tl.trans(qT), input_precision=FLOAT32_PRECISION)

    return dk, dv


# Utility triton funcs
@triton.jit
def flex_backward_get_offset_for_next_block(
    loop_iter,
    col_indices,
    total_blocks,
    SPARSE_BLOCK,
    SPARSE_BLOCK_MULTIPLE,
    BLOCK,
    BLOCKS_ARE_CONTIGUOUS: tl.constexpr,
):
    if BLOCKS_ARE_CONTIGUOUS:
        return BLOCK
    cur_block_idx = loop_iter // SPARSE_BLOCK_MULTIPLE
    cur_block = tl.load(col_indices + cur_block_idx, eviction_policy="evict_last")
    next_block = tl.load(
        col_indices + cur_block_idx + 1, eviction_policy="evict_last", mask=cur_block_idx + 1 < total_blocks
    )
    needs_jump = (loop_iter + 1) % SPARSE_BLOCK_MULTIPLE == 0
    jump_to_block = (next_block - cur_block) * SPARSE_BLOCK - (SPARSE_BLOCK_MULTIPLE - 1) * BLOCK
    offset = jump_to_block * needs_jump + (1 - needs_jump) * BLOCK
    return offset


@triton.jit
def flex_backward_get_bounded_indices(indices, max_len=None):
    return indices % max_len if max_len is not None else indices


@triton.jit
def flex_backward_load_checked_block(block_ptr, IS_DIVISIBLE: tl.constexpr, SAFE_HEAD_DIM: tl.constexpr):
    if IS_DIVISIBLE and SAFE_HEAD_DIM:
        return tl.load(block_ptr)
    elif IS_DIVISIBLE and not SAFE_HEAD_DIM:
        return tl.load(block_ptr, boundary_check=(1,), padding_option="zero")
    elif not IS_DIVISIBLE and SAFE_HEAD_DIM:
        return tl.load(block_ptr, boundary_check=(0,), padding_option="zero")
    else:
        return tl.load(block_ptr, boundary_check=(0, 1), padding_option="zero")


@triton.jit
def flex_backward_load_checked_2d(
    ptr,
    offs_m,
    offs_n,
    stride_m,
    stride_n,
    IS_DIVISIBLE_M: tl.constexpr,
    IS_DIVISIBLE_N: tl.constexpr,
    M_LEN: tl.constexpr,
    N_LEN: tl.constexpr,
):
    # Calculate final pointer if strides are provided
    if stride_m is not None and stride_n is not None:
        ptr = ptr + offs_m[:, None] * stride_m + offs_n[None, :] * stride_n

    # Handle all masking cases
    if not IS_DIVISIBLE_M and not IS_DIVISIBLE_N:
        return tl.load(ptr, mask=(offs_m[:, None] < M_LEN) & (offs_n[None, :] < N_LEN), other=0.0)
    elif IS_DIVISIBLE_M and not IS_DIVISIBLE_N:
        return tl.load(ptr, mask=(offs_n[None, :] < N_LEN), other=0.0)
    elif not IS_DIVISIBLE_M and IS_DIVISIBLE_N:
        return tl.load(ptr, mask=(offs_m[:, None] < M_LEN), other=0.0)
    else:  # Both divisible
        return tl.load(ptr)


@dataclass(frozen=True)
class Generated:
    """A kernel's options and grid, its tensors in the order of its parameters, and the constants after them."""

    kernel: Any
    warps: int
    stages: int
    grid: tuple[int, int, int]
    tensors: dict[str, Tensor]
    constants: dict[str, int]


def _of(
    kernel: Any, warps: int, stages: int, grid: tuple[int, int, int], *tensors: Tensor, **constants: int
) -> Generated:
    names = [parameter.name for parameter in kernel.params if not parameter.is_constexpr]
    return Generated(kernel, warps, stages, grid, dict(zip(names, tensors, strict=True)), constants)


def _bf16(*shape: int) -> Tensor:
    return Tensor(shape)


def _fp8(*shape: int) -> Tensor:
    return Tensor(shape, "float8_e4m3fn")


def _scale(*shape: int) -> Tensor:
    return Tensor(shape, "float32", "uniform")


def _written(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return Tensor(shape, dtype, "nan")


def _table(*numbers: int) -> Tensor:
    return Tensor((len(numbers),), "int32", "values", values=lambda: numbers)


_WORKSPACE = Tensor((33792,), "uint8", "zero")
_BLOCKS = (
    _table(1, 1, 1, 1), _table(0, 1, 2, 3, 1, 0, 2, 3, 2, 0, 1, 3, 3, 0, 1, 2),
    _table(1, 1, 1, 1), _table(0, 1, 2, 3, 1, 0, 2, 3, 2, 0, 1, 3, 3, 0, 1, 2),
    _table(0, 1, 2, 3), _table(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3),
    _table(3, 2, 1, 0), _table(1, 2, 3, 0, 2, 3, 0, 1, 3, 0, 1, 2, 0, 1, 2, 3),
)  # fmt: skip
"""Of a causal mask, blocks of 128: partial ones by row and by column, then whole ones by row and by column."""
_ENDS = (200, 456, 456, 700, 1100, 1500, 2000, 2048)
# Where groups split columns, TMA begins at their ends: at multiples of 16 bytes, as torch._grouped_mm requires too.
_COLUMN_ENDS = (200, 456, 456, 704, 1104, 1504, 2000, 2048)

KERNELS = {
    "mm_pointers": _of(mm_pointers, 4, 3, (256, 1, 1), _bf16(2048, 1024), _bf16(2048, 1024), _written(2048, 2048)),
    "bmm": _of(bmm, 4, 3, (16, 16, 1), _bf16(8192, 1024), _bf16(8192, 1024), _written(8192, 512)),
    "grouped_mm": _of(
        grouped_mm, 4, 3, (132, 1, 1), _bf16(2048, 1024), _bf16(8192, 1024), _table(*_ENDS), _written(2048, 1024)
    ),
    "grouped_mm_gradient": _of(
        grouped_mm_gradient,
        4,
        3,
        (132, 1, 1),
        _bf16(1024, 2048),
        _bf16(1024, 2048),
        _table(*_COLUMN_ENDS),
        _written(8192, 1024),
    ),
    "scaled_mm": _of(
        scaled_mm,
        4,
        4,
        (256, 1, 1),
        _fp8(2048, 1024),
        _fp8(2048, 1024),
        _scale(2048),
        _scale(2048),
        _written(2048, 2048),
    ),
    "scaled_mm_tma": _of(
        scaled_mm_tma,
        8,
        3,
        (132, 1, 1),
        _fp8(2048, 1024),
        _fp8(2048, 1024),
        _scale(2048),
        _scale(2048),
        _written(2048, 2048),
        _WORKSPACE,
    ),
    "scaled_mm_blocks": _of(
        scaled_mm_blocks,
        8,
        3,
        (132, 1, 1),
        _fp8(2048, 1024),
        _fp8(2048, 1024),
        _scale(8, 2048),
        _scale(16, 8),
        _written(2048, 2048),
        _WORKSPACE,
    ),
    "flex_decoding": _of(
        flex_decoding,
        2,
        3,
        (1, 4, 66),
        _bf16(16, 128),
        _bf16(4096, 128),
        _bf16(4096, 128),
        _written(1056, dtype="float32"),
        _written(1056, dtype="float32"),
        _table(1),
        _table(*range(8)),
        _table(7),
        _table(*range(1, 8), 0),
        _written(1056, 128, dtype="float32"),
    ),
    "flex_backward": _of(
        flex_backward,
        4,
        1,
        (16, 1, 2),
        *(_bf16(1024, 128),) * 3,
        _scale(1024),
        _scale(1024),
        _bf16(1024, 128),
        _written(1024, 128),
        _written(1024, 128),
        *_BLOCKS,
        _written(1024, 128),
    ),
    "helion_matmul": _of(helion_matmul, 4, 3, (256, 1, 1), _bf16(2048, 2048), _bf16(2048, 2048), _written(2048, 2048)),
    "helion_persistent_matmul": _of(
        helion_persistent_matmul,
        8,
        3,
        (132, 1, 1),
        _bf16(2048, 2048),
        _bf16(2048, 2048),
        _written(2048, 2048),
        _NUM_SM=132,
    ),
    "helion_attention": _of(
        helion_attention,
        8,
        3,
        (32, 1, 1),
        _bf16(4096, 128),
        _bf16(4096, 128),
        _bf16(4096, 128),
        _written(4096, 128),
        _RDIM_SIZE_2=128,
    ),
    "helion_softmax": _of(
        helion_softmax, 4, 1, (2048, 1, 1), _bf16(2048, 2048), _written(2048, 2048), _RDIM_SIZE_1=2048
    ),
}
