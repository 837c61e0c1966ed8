"""Plain `tl` kernels as people write them: nothing in them knows of warp specialisation.

`tl_cases.py` says what they are run on. Descriptors are made by the host unless a name says otherwise. Each
kernel is written out whole, as a user's is.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm_2d(a_desc, b_desc, c_desc, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """C[M, N] = A[M, K] · B[N, K]ᵀ, a program a tile, in a grid of two dimensions."""
    row = tl.program_id(0) * BLOCK_M
    column = tl.program_id(1) * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([row, k])
        b = b_desc.load([column, k])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([row, column], acc.to(c_desc.dtype))


@triton.jit
def tile_of(tile, row_tiles, column_tiles, GROUP_M: tl.constexpr):
    """Row and column of a tile: bands of ``GROUP_M`` tile rows, for reuse in L2."""
    band = GROUP_M * column_tiles
    first = tile // band * GROUP_M
    height = min(row_tiles - first, GROUP_M)
    return first + tile % band % height, tile % band // height


@triton.jit
def gemm_grouped_order(
    a_desc, b_desc, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """The same with the tutorial's grouped launch order."""
    pid_m, pid_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = a_desc.load([pid_m * BLOCK_M, k * BLOCK_K])
        b = b_desc.load([pid_n * BLOCK_N, k * BLOCK_K])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], acc.to(c_desc.dtype))


@triton.jit
def gemm_device_descriptors(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """The same with descriptors that the kernel makes."""
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    pid_m, pid_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([pid_m * BLOCK_M, k])
        b = b_desc.load([pid_n * BLOCK_N, k])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], acc.to(tl.bfloat16))


@triton.jit
def gemm_persistent(
    a_desc, b_desc, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    """A program an SM, each walking over tiles."""
    row_tiles = tl.cdiv(M, BLOCK_M)
    column_tiles = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), row_tiles * column_tiles, NUM_SMS):
        pid_m, pid_n = tile_of(tile, row_tiles, column_tiles, GROUP_M)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([pid_m * BLOCK_M, k * BLOCK_K])
            b = b_desc.load([pid_n * BLOCK_N, k * BLOCK_K])
            acc = tl.dot(a, b.T, acc)
        c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], acc.to(c_desc.dtype))


@triton.jit
def gelu(x):
    """The tanh form: x · σ(2 · 0.7978845608 · (x + 0.044715 · x³))."""
    return x * tl.sigmoid(1.5957691216 * (x + 0.044715 * x * x * x))


@triton.jit
def gemm_bias_gelu(
    a_desc, b_desc, c_desc, bias_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """C = gelu(A · Bᵀ + bias[N]), stored through a descriptor."""
    pid_m, pid_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([pid_m * BLOCK_M, k])
        b = b_desc.load([pid_n * BLOCK_N, k])
        acc = tl.dot(a, b.T, acc)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    bias = tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], gelu(acc + bias[None, :]).to(c_desc.dtype))


@triton.jit
def grouped_gemm(
    a_desc, b_desc, c_ptr, tile_group_ptr, tile_row_ptr, offsets_ptr, N, K, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Mixture of experts: rows [offsets[g], offsets[g + 1]) of A[M, K] times expert g's B[G · N, K], into C[M, N].

    A table names each row tile's group and first row.
    """
    group = tl.load(tile_group_ptr + tl.program_id(1))
    row = tl.load(tile_row_ptr + tl.program_id(1))
    end = tl.load(offsets_ptr + group + 1)
    column = tl.program_id(0) * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([row, k])
        b = b_desc.load([group * N + column, k])
        acc = tl.dot(a, b.T, acc)
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    pointers = c_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(pointers, acc.to(tl.bfloat16), mask=(rows < end)[:, None] & (columns < N)[None, :])


@triton.jit
def attention(
    q_desc, k_desc, v_desc, o_desc, L, scale, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """O = softmax(scale · Q · Kᵀ) · V over [B · H · L, D], `scale` for powers of 2: full blocks, then the diagonal."""
    start = tl.program_id(0) * BLOCK_M
    base = tl.program_id(1) * L
    q = q_desc.load([base + start, 0])
    row_max = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    end = start if CAUSAL else L
    for n in range(0, end, BLOCK_N):
        k = k_desc.load([base + n, 0])
        s = tl.dot(q, k.T) * scale
        new_max = tl.maximum(row_max, tl.max(s, 1))
        p = tl.exp2(s - new_max[:, None])
        alpha = tl.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = v_desc.load([base + n, 0])
        acc = tl.dot(p.to(v.dtype), v, acc)
        row_max = new_max
    if CAUSAL:
        rows = start + tl.arange(0, BLOCK_M)
        for n in range(start, start + BLOCK_M, BLOCK_N):
            k = k_desc.load([base + n, 0])
            s = tl.dot(q, k.T) * scale
            columns = n + tl.arange(0, BLOCK_N)
            s = tl.where(rows[:, None] >= columns[None, :], s, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(s, 1))
            p = tl.exp2(s - new_max[:, None])
            alpha = tl.exp2(row_max - new_max)
            row_sum = row_sum * alpha + tl.sum(p, 1)
            acc = acc * alpha[:, None]
            v = v_desc.load([base + n, 0])
            acc = tl.dot(p.to(v.dtype), v, acc)
            row_max = new_max
    o_desc.store([base + start, 0], (acc / row_sum[:, None]).to(o_desc.dtype))


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, y_ptr, N, eps, BLOCK: tl.constexpr):
    """Y = (X − mean) / √(var + eps) · w + b, a program a row, in passes over blocks of it."""
    x_ptr += tl.program_id(0).to(tl.int64) * N
    y_ptr += tl.program_id(0).to(tl.int64) * N
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    mean = tl.sum(total) / N
    square = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
        x = tl.where(columns < N, x - mean, 0.0)
        square += x * x
    rstd = tl.rsqrt(tl.sum(square) / N + eps)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < N
        x = tl.load(x_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + columns, mask=inside).to(tl.float32)
        b = tl.load(b_ptr + columns, mask=inside).to(tl.float32)
        tl.store(y_ptr + columns, ((x - mean) * rstd * w + b).to(tl.bfloat16), mask=inside)


@triton.jit
def softmax(x_ptr, y_ptr, ROWS, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Softmax of rows, each program walking over them."""
    columns = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), ROWS, tl.num_programs(0), num_stages=STAGES):
        offset = row * N
        x = tl.load(x_ptr + offset + columns, mask=columns < N, other=-float("inf")).to(tl.float32)
        numerator = tl.exp(x - tl.max(x, 0))
        tl.store(y_ptr + offset + columns, (numerator / tl.sum(numerator, 0)).to(tl.bfloat16), mask=columns < N)


@triton.jit
def vector_add(x_ptr, y_ptr, z_ptr, N, BLOCK: tl.constexpr):
    """Z = X + Y."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < N
    x = tl.load(x_ptr + offsets, mask=inside)
    y = tl.load(y_ptr + offsets, mask=inside)
    tl.store(z_ptr + offsets, x + y, mask=inside)
