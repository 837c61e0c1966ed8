"""Scales of fp8 products: one or two numbers for the whole, a number a row and a column, or a number a block of K.

Scales multiply, as those of ``torch._scaled_mm`` do. A product scaled by blocks (1 x 128 of A, 128 x 128 of B, as
DeepSeek-V3 trains, arXiv 2412.19437, section 3.3.2) leaves the tensor cores after every 128 of K and is summed up in
fp32 registers: this promotion also keeps what the tensor cores' own short sums would drop.
"""

from __future__ import annotations

from typing import NamedTuple

from warpplan.kernels.device.epilogue import accumulator_layout
from warpplan.kernels.device.rings import wait_full
from warpplan.kernels.triton_compat import gl, gluon, proton, warpgroup_mma, warpgroup_mma_wait

SCALE_BLOCK = gl.constexpr(128)
"""Elements of K, and of B's rows, that share a scale."""


class Scales(NamedTuple):
    """fp32 pointers: ``row`` scales the rows of the computed matrix, ``column`` its columns, each with its strides in
    elements from one row to the next and from one block of K to the next. ``rows`` and ``columns`` are how many scales
    there are along the matrix."""

    row: gl.tensor
    row_stride: gl.tensor
    row_k_stride: gl.tensor
    rows: gl.tensor
    column: gl.tensor
    column_stride: gl.tensor
    column_k_stride: gl.tensor
    columns: gl.tensor


@gluon.jit
def scale_chunk(chunk, scales, row, column, BLOCK: gl.constexpr):
    """``chunk``, a piece of the product with its first element at (``row``, ``column``), times its scales."""
    if BLOCK.scales == "tensor":
        return chunk * (gl.load(scales.row) * gl.load(scales.column))
    elif BLOCK.scales == "row":
        r = row + gl.arange(0, chunk.shape[0], layout=gl.SliceLayout(1, chunk.type.layout))
        c = column + gl.arange(0, chunk.shape[1], layout=gl.SliceLayout(0, chunk.type.layout))
        by_row = gl.load(scales.row + r * scales.row_stride, mask=r < scales.rows, other=0.0)
        by_column = gl.load(scales.column + c * scales.column_stride, mask=c < scales.columns, other=0.0)
        return chunk * by_row[:, None] * by_column[None, :]
    else:
        return chunk


@gluon.jit
def multiply_promoted(
    ring, index, tile, scales, BLOCK: gl.constexpr, OPERANDS: gl.constexpr, RELEASE: gl.constexpr, PART: gl.constexpr
):
    """The product of a tile's ring slots from ring index ``index`` on, each promoted with its block's scales.

    ``OPERANDS(ring, slot, BLOCK, PART)`` gives a slot's two tiles, ``RELEASE(ring, slot, BLOCK)`` lets go of them: of
    every slot, in the end. The scales of the next
    block are read while the tensor cores work on this one.
    """
    ROWS: gl.constexpr = BLOCK.rows
    COLUMNS: gl.constexpr = BLOCK.block_n
    BITS: gl.constexpr = ring.a.dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = accumulator_layout(COLUMNS, gl.num_warps(), BITS, BLOCK.cluster)
    acc = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
    empty = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
    r = tile.a_row + PART * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    inside = r < scales.rows
    k_block = tile.a_k // SCALE_BLOCK
    row_at = scales.row + r * scales.row_stride + k_block * scales.row_k_stride
    column_at = scales.column + tile.b_row // SCALE_BLOCK * scales.column_stride + k_block * scales.column_k_stride
    scale = gl.load(row_at, mask=inside & (tile.blocks > 0), other=0.0)
    scale *= gl.load(column_at, mask=tile.blocks > 0, other=0.0)
    for k in range(tile.blocks):
        slot = index % BLOCK.depth
        with proton.scope("consumer_wait"):
            wait_full(ring.full, index, BLOCK.depth)
        with proton.scope("mma"):
            a, b = OPERANDS(ring, slot, BLOCK, PART)
            pending = warpgroup_mma(a, b, empty, use_acc=False, is_async=True)
            more = k + 1 < tile.blocks
            row_at += scales.row_k_stride
            column_at += scales.column_k_stride
            following = gl.load(row_at, mask=inside & more, other=0.0) * gl.load(column_at, mask=more, other=0.0)
            partial = warpgroup_mma_wait(num_outstanding=0, deps=[pending])
        RELEASE(ring, slot, BLOCK)
        acc += partial * scale[:, None]
        scale = following
        index += 1
    return acc
