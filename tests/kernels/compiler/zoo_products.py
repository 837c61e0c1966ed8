"""Matrix products in the styles that people write."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def pointers(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """The tutorial's: pointers advanced in the loop, masks in K, an activation by name."""
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = leaky_relu(accumulator)
    c = accumulator.to(tl.float16)
    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, c, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


@triton.jit
def block_pointers(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The older way to say what a descriptor says."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    a = tl.make_block_ptr(a_ptr, (M, K), (K, 1), (pid_m * BM, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (N, 1), (0, pid_n * BN), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        acc += tl.dot(tl.load(a, boundary_check=(0, 1)), tl.load(b, boundary_check=(0, 1)))
        a = tl.advance(a, (0, BK))
        b = tl.advance(b, (BK, 0))
    c = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (pid_m * BM, pid_n * BN), (BM, BN), (1, 0))
    tl.store(c, acc.to(tl.bfloat16), boundary_check=(0, 1))


@triton.jit
def persistent_flattened(
    a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NUM_SMS: tl.constexpr
):
    """Tiles and K in one loop, the epilogue's tile counted apart, as the persistent tutorial does."""
    start = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    last = start - NUM_SMS
    for tile in tl.range(start, rows * columns, NUM_SMS, flatten=True):
        pid_m, pid_n = tile // columns, tile % columns
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            acc = tl.dot(a_desc.load([pid_m * BM, k * BK]), b_desc.load([pid_n * BN, k * BK]).T, acc)
        last += NUM_SMS
        c_desc.store([last // columns * BM, last % columns * BN], acc.to(tl.bfloat16))


@triton.jit
def persistent_split_epilogue(
    a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NUM_SMS: tl.constexpr
):
    """The epilogue in two halves of the columns, to save shared memory."""
    columns = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * columns, NUM_SMS):
        row, column = tile // columns * BM, tile % columns * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(a_desc.load([row, k]), b_desc.load([column, k]).T, acc)
        halves = tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        c_desc.store([row, column], left.to(tl.bfloat16))
        c_desc.store([row, column + BN // 2], right.to(tl.bfloat16))


@triton.jit
def stream_k(
    a_desc, b_desc, c_ptr, lock_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SMS: tl.constexpr
):
    """Each program takes its share of all iterations; tiles that several share are added up atomically."""
    per_tile = tl.cdiv(K, BK)
    columns = tl.cdiv(N, BN)
    total = tl.cdiv(M, BM) * columns * per_tile
    share = tl.cdiv(total, SMS)
    at = tl.program_id(0) * share
    stop = min(at + share, total)
    while at < stop:
        tile = at // per_tile
        end = min(stop, (tile + 1) * per_tile)
        row, column = tile // columns * BM, tile % columns * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(at - tile * per_tile, end - tile * per_tile):
            acc = tl.dot(a_desc.load([row, k * BK]), b_desc.load([column, k * BK]).T, acc)
        offsets = (row + tl.arange(0, BM))[:, None] * N + (column + tl.arange(0, BN))[None, :]
        tl.atomic_add(c_ptr + offsets, acc)
        tl.atomic_add(lock_ptr + tile, 1)
        at = end


@triton.jit
def split_k(a_desc, b_desc, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr):
    """K shared out over the third grid dimension, added up with atomics."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.program_id(2) * BK, K, BK * PARTS):
        acc = tl.dot(a_desc.load([row, k]), b_desc.load([column, k]).T, acc)
    rows, columns = row + tl.arange(0, BM), column + tl.arange(0, BN)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.atomic_add(c_ptr + rows[:, None] * N + columns[None, :], acc, mask=inside)


@triton.jit
def fp8_scaled(
    a_desc, b_desc, a_scale_ptr, b_scale_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """fp8 with a scale for each row of A and block of K, and one for each 128 × 128 block of B."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    rows, columns = row + tl.arange(0, BM), column + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a_scale = tl.load(a_scale_ptr + k * M + rows, mask=rows < M, other=0.0)
        b_scale = tl.load(b_scale_ptr + column // 128 * tl.cdiv(K, BK) + k)
        a = a_desc.load([row, k * BK])
        b = b_desc.load([column, k * BK])
        acc += tl.dot(a, b.T) * (a_scale * b_scale)[:, None]
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16), mask=inside)


@triton.jit
def int8_weights(a_desc, b_desc, scale_ptr, c_desc, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """int8 weights, converted in registers and scaled by column at the end."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = a_desc.load([row, k])
        b = b_desc.load([column, k]).to(tl.bfloat16)
        acc = tl.dot(a, b.T, acc)
    scale = tl.load(scale_ptr + column + tl.arange(0, BN))
    c_desc.store([row, column], (acc * scale[None, :]).to(tl.bfloat16))


@triton.jit
def batched(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Batches in the grid, descriptors of three dimensions."""
    batch = tl.program_id(2)
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = a_desc.load([batch, row, k]).reshape(BM, BK)
        b = b_desc.load([batch, k, column]).reshape(BK, BN)
        acc = tl.dot(a, b, acc)
    c_desc.store([batch, row, column], acc.to(tl.bfloat16).reshape(1, BM, BN))


@triton.jit
def while_loop(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A loop whose end is a condition."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    k = 0
    while k < K:
        acc = tl.dot(a_desc.load([row, k]), b_desc.load([column, k]).T, acc)
        k += BK
    c_desc.store([row, column], acc.to(tl.bfloat16))


@triton.jit
def dual_swiglu(x_desc, gate_desc, up_desc, y_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """silu(X · Gᵀ) · (X · Uᵀ): two products that share an operand."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    gate = tl.zeros((BM, BN), dtype=tl.float32)
    up = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = x_desc.load([row, k])
        gate = tl.dot(x, gate_desc.load([column, k]).T, gate)
        up = tl.dot(x, up_desc.load([column, k]).T, up)
    y_desc.store([row, column], (gate * tl.sigmoid(gate) * up).to(tl.bfloat16))


@triton.jit
def convolution(x_desc, w_desc, y_desc, H, W, C, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr):
    """R × R convolution of [B, H, W, C] as an implicit product: a row of pixels against each tap, boxes past the edge
    zero."""
    line, column = tl.program_id(0), tl.program_id(1) * BN
    image, y = line // H, line % H
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for tap in range(R * R):
        for c in range(0, C, BK):
            x = x_desc.load([image, y + tap // R - R // 2, tap % R - R // 2, c]).reshape(BM, BK)
            acc = tl.dot(x, w_desc.load([tap * C + c, column]), acc)
    y_desc.store([line * W, column], acc.to(tl.bfloat16))


@triton.jit
def grouped_tutorial(
    a_ptrs, b_ptrs, c_ptrs, sizes_ptr, groups, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SMS: tl.constexpr
):
    """The grouped tutorial: groups of any size behind tables of pointers, descriptors made on the way."""
    tile = tl.program_id(0)
    last = 0
    for g in range(groups):
        m = tl.load(sizes_ptr + g * 3)
        n = tl.load(sizes_ptr + g * 3 + 1)
        k = tl.load(sizes_ptr + g * 3 + 2)
        columns = tl.cdiv(n, BN)
        here = tl.cdiv(m, BM) * columns
        if tile >= last and tile < last + here:
            a_ptr = tl.load(a_ptrs + g).to(tl.pointer_type(tl.bfloat16))
            b_ptr = tl.load(b_ptrs + g).to(tl.pointer_type(tl.bfloat16))
            c_ptr = tl.load(c_ptrs + g).to(tl.pointer_type(tl.bfloat16))
            a_desc = tl.make_tensor_descriptor(a_ptr, [m, k], [k, 1], [BM, BK])
            b_desc = tl.make_tensor_descriptor(b_ptr, [n, k], [k, 1], [BN, BK])
            c_desc = tl.make_tensor_descriptor(c_ptr, [m, n], [n, 1], [BM, BN])
            while tile >= last and tile < last + here:
                row, column = (tile - last) // columns * BM, (tile - last) % columns * BN
                acc = tl.zeros((BM, BN), dtype=tl.float32)
                for at in range(0, k, BK):
                    acc = tl.dot(a_desc.load([row, at]), b_desc.load([column, at]).T, acc)
                c_desc.store([row, column], acc.to(tl.bfloat16))
                tile += SMS
        last = last + here


@triton.jit
def gathered_experts(
    a_ptr, b_desc, c_ptr, token_ptr, expert_ptr, count_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Mixture of experts over gathered rows: A by pointers, B by TMA, an early way out."""
    block = tl.program_id(0)
    if block * BM >= tl.load(count_ptr):
        return
    tokens = tl.load(token_ptr + block * BM + tl.arange(0, BM))
    expert = tl.load(expert_ptr + block)
    column = tl.program_id(1) * BN
    offs_k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + tokens[:, None] * K + (k + offs_k)[None, :])
        acc = tl.dot(a, b_desc.load([expert * N + column, k]).T, acc)
    columns = column + tl.arange(0, BN)
    tl.store(c_ptr + tokens[:, None] * N + columns[None, :], acc.to(tl.bfloat16))
