"""Small kernels in the styles of serving: a few queries against a long cache, and blocks of keys that a table lists."""

import triton
import triton.language as tl


@triton.jit
def decode(q_ptr, k_ptr, v_ptr, o_ptr, scale, L, stride_z, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """16 rows of queries a program, their own keys: products by mma.sync, loads from DRAM."""
    program = tl.program_id(0)
    rows = tl.arange(0, BM)
    keys = tl.arange(0, BN)
    dims = tl.arange(0, D)
    q = tl.load(q_ptr + (program * BM + rows)[:, None] * D + dims[None, :])
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, L, BN):
        at = n + keys
        k = tl.load(k_ptr + program * stride_z + at[:, None] * D + dims[None, :], mask=at[:, None] < L, other=0.0)
        v = tl.load(v_ptr + program * stride_z + at[:, None] * D + dims[None, :], mask=at[:, None] < L, other=0.0)
        s = tl.where(at[None, :] < L, tl.dot(q, k.T) * scale, float("-inf"))
        largest = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - largest[:, None])
        alpha = tl.exp2(m - largest)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v, acc * alpha[:, None])
        m = largest
    tl.store(o_ptr + (program * BM + rows)[:, None] * D + dims[None, :], acc / total[:, None])


@triton.jit
def listed_blocks(
    q_ptr, k_ptr, v_ptr, o_ptr, list_ptr, scale, count, stride_m, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Attention over the blocks of keys whose numbers a table lists; they may be negative."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * stride_m + dims[None, :])
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for i in range(count):
        keys = tl.load(list_ptr + i) * BN + tl.arange(0, BN)
        k = tl.load(k_ptr + keys[:, None] * stride_m + dims[None, :])
        v = tl.load(v_ptr + keys[:, None] * stride_m + dims[None, :])
        p = tl.exp2(tl.dot(q, k.T) * scale)
        total += tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), v, acc)
    tl.store(o_ptr + rows[:, None] * stride_m + dims[None, :], acc / total[:, None])


@triton.jit
def two_passes(x_ptr, w_ptr, out_ptr, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """A row is read twice by its program: the second time it is in the cache."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(2):
        for n in range(0, N, BN):
            at = n + tl.arange(0, BN)
            acc += tl.load(x_ptr + rows[:, None] * stride + at[None, :]) * tl.load(w_ptr + at)[None, :]
    tl.store(out_ptr + rows, tl.sum(acc, 1))


@triton.jit
def row_sums(x_ptr, w_ptr, out_ptr, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """What is loaded at a row is the program's own; the weights are everybody's."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    acc = tl.zeros((BM, BN), tl.float32)
    for n in range(0, N, BN):
        at = n + tl.arange(0, BN)
        x = tl.load(x_ptr + rows[:, None] * stride + at[None, :])
        acc += x * tl.load(w_ptr + at)[None, :]
    tl.store(out_ptr + rows, tl.sum(acc, 1))
