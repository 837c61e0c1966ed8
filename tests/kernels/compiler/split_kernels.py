"""Plain `tl` kernels whose rows are shared out in the tests, and some whose rows cannot be."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bias_residual(a, b, c_ptr, bias_ptr, residual_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        acc = tl.dot(a.load([pid_m * BM, k * BK]), b.load([pid_n * BN, k * BK]).T, acc)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    offsets = rm[:, None] * N + rn[None, :]
    acc += tl.load(bias_ptr + rn, mask=rn < N, other=0.0)[None, :]
    acc = acc * tl.sigmoid(acc) + tl.load(residual_ptr + offsets, mask=mask, other=0.0)
    tl.store(c_ptr + offsets, acc.to(tl.bfloat16), mask=mask)


@triton.jit
def box_store(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        acc = tl.dot(a.load([m, k * BK]), b.load([n, k * BK]).T, acc)
    c.store([m, n], acc.to(tl.bfloat16))


@triton.jit
def transposed(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Both operands turned: A is stored [K, M], and the result [N, M]."""
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([k, m]).T, b.load([k, n]), acc)
    c.store([n, m], acc.to(tl.bfloat16).T)


@triton.jit
def persistent(a_ptr, b_ptr, c_ptr, M, N, K, BLOCKS, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BN, BK])
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN // 2])
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, BLOCKS):
        m = (tile // across) * BM
        n = (tile % across) * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
        low, high = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
        c.store([m, n], low.to(tl.bfloat16))
        c.store([m, n + BN // 2], high.to(tl.bfloat16))


@triton.jit
def normalised(
    a, b, c_ptr, scale_ptr, mean_ptr, count_ptr, M, N, K, eps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """One range is both rows and columns (BM is BN), and one store does not depend on rows."""
    pid = tl.program_id(0)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        acc = tl.dot(a.load([pid * BM, k * BK]), b.load([k * BK, 0]), acc)
    rm = pid * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    mean = tl.sum(acc, 1) / N
    centred = tl.where((rn < N)[None, :], acc - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / N
    scale = tl.load(scale_ptr + rn, mask=rn < N, other=0.0)
    y = centred * tl.rsqrt(variance + eps)[:, None] * scale[None, :]
    tl.store(mean_ptr + rm, mean, mask=rm < M)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], y, mask=(rm < M)[:, None] & (rn < N)[None, :])
    tl.store(count_ptr + pid, tl.minimum(M - pid * BM, BM))


@triton.jit
def attention(q, k, v, o, lse_ptr, L, scale, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """The query's row and the output's are one value, which must not be shifted twice."""
    pid = tl.program_id(0)
    base = tl.program_id(1) * L
    row = base + pid * BM
    x = q.load([row, 0])
    offs_m = pid * BM + tl.arange(0, BM)
    offs_n = tl.arange(0, BN)
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = L
    if CAUSAL:
        end = (pid + 1) * BM
    for j in range(0, end, BN):
        s = tl.dot(x, k.load([base + j, 0]).T) * scale
        if CAUSAL:
            s = tl.where(offs_m[:, None] >= (j + offs_n)[None, :], s, float("-inf"))
        largest = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - largest[:, None])
        alpha = tl.exp2(m - largest)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v.load([base + j, 0]), acc * alpha[:, None])
        m = largest
    tl.store(lse_ptr + base + offs_m, m + tl.log2(total))
    o.store([row, 0], (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def branches(a, b, c_ptr, M, N, K, relu, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A tile that a branch returns."""
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([k, 0]), acc)
    if relu > 0:
        acc = tl.maximum(acc, 0.0)
    rm = m + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def batched(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Blocks with a leading dimension of one, and a tile of zeros stored where there is no depth."""
    batch = tl.program_id(1)
    m = tl.program_id(0) * BM
    if K > 0:
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            x = tl.reshape(a.load([batch, m, k]), (BM, BK))
            acc = tl.dot(x, tl.reshape(b.load([batch, k, 0]), (BK, BN)), acc)
        c.store([batch, m, 0], tl.reshape(acc.to(tl.bfloat16), (1, BM, BN)))
    else:
        c.store([batch, m, 0], tl.zeros((1, BM, BN), tl.bfloat16))


@triton.jit
def columns_sum(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    tl.store(c_ptr + tl.arange(0, BN), tl.sum(acc, 0))


@triton.jit
def rows_as_columns(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The first product's rows are the second one's depth."""
    p = tl.dot(a.load([0, 0]), b.load([0, 0]))
    acc = tl.dot(p.to(tl.bfloat16).T, a.load([0, 0]))
    rm = tl.arange(0, BN)
    rn = tl.arange(0, BK)
    tl.store(c_ptr + rm[:, None] * K + rn[None, :], acc)


@triton.jit
def counted(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * N + tl.arange(0, BN)[None, :], acc)
    tl.atomic_add(c_ptr + M * N, 1.0)


@triton.jit
def in_place(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = c.load([0, 0]).to(tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    c.store([0, 0], acc.to(tl.bfloat16))


@triton.jit
def shared_memory(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The second operand is overwritten by the result."""
    rm = tl.arange(0, BM)
    rn = tl.arange(0, BN)
    where = c_ptr + rm[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(c_ptr + (k + tl.arange(0, BK))[:, None] * N + rn[None, :])
        acc = tl.dot(a.load([0, k]), x.to(tl.bfloat16), acc)
    tl.store(where, acc)


@triton.jit
def copied(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """One of the tiles that are loaded goes to memory as it is."""
    rk = tl.arange(0, BK)
    rn = tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
        tl.store(c_ptr + (M + k + rk)[:, None] * N + rn[None, :], b.load([k, BN]).to(tl.float32))
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * N + rn[None, :], acc)


@triton.jit
def added(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1.0, mask=at < n)


@triton.jit
def gathered(
    a_ptr, rows_ptr, b, c_ptr, M, N, K, HINT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Rows of A by their numbers, as in a fused mixture of experts, and what its author knows about them."""
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    if HINT == "range":
        at = tl.max_contiguous(tl.multiple_of(at, BM), BM)
    rows = tl.load(rows_ptr + at, mask=at < M, other=0) // 2
    if HINT == "rows":
        rows = tl.max_constancy(tl.multiple_of(rows, 1), 2)
    rk = tl.arange(0, BK)
    where = rows[:, None] * K + rk[None, :]
    if HINT == "tile":
        where = tl.max_contiguous(tl.multiple_of(where, (1, BK)), (1, BK))
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, num_stages=1):
        acc = tl.dot(tl.load(a_ptr + where + k), b.load([0, k]).T, acc)
    rn = tl.arange(0, BN)
    tl.store(c_ptr + at[:, None] * N + rn[None, :], acc.to(tl.bfloat16), mask=(at < M)[:, None] & (rn < N)[None, :])
