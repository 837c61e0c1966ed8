"""A product that loads through pointers, in the manner of Inductor's ``mm`` template, to be priced and never launched.

As there: programs in groups of ``GROUP_M`` rows of tiles; rows and columns that wrap where they are not a multiple of
the tile; a mask on the depth alone, and none where the tile divides it; addresses made anew in each iteration.
"""

import triton
import triton.language as tl


@triton.jit
def pointer_product(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """C [M, N] = A [M, K] · B [K, N], strides in elements."""
    program = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = program // (GROUP_M * columns) * GROUP_M
    height = min(rows - first, GROUP_M)
    row = first + program % height
    column = program % (GROUP_M * columns) // height
    rm = row * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = column * BLOCK_N + tl.arange(0, BLOCK_N)
    am = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    bn = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        a_at = a_ptr + am[:, None] * stride_am + k[None, :] * stride_ak
        b_at = b_ptr + k[:, None] * stride_bk + bn[None, :] * stride_bn
        if EVEN_K:
            a = tl.load(a_at)
            b = tl.load(b_at)
        else:
            a = tl.load(a_at, mask=k[None, :] < K, other=0.0)
            b = tl.load(b_at, mask=k[:, None] < K, other=0.0)
        total = tl.dot(a, b, total)
    c_at = c_ptr + rm[:, None] * N + rn[None, :]
    tl.store(c_at, total.to(c_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))
