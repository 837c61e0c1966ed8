"""Online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867) in a consumer's registers: from the scores of a block
of keys to P, the left operand of P · V.

What sticks out of the mask's band, or of the keys, within a block is set to minus infinity. Of 8-bit operands P is 2 to
the power :data:`WEIGHT_BITS` times as large, as are its sums, of which the result is a quotient.
"""

from __future__ import annotations

from warpplan.kernels.attention_fwd.fp8.gluon import left_layout, move_packed, pack_columns, unpack_columns
from warpplan.kernels.device.epilogue import accumulator_layout
from warpplan.kernels.triton_compat import gl, gluon

LOWEST = gl.constexpr(-3.4028234663852886e38)
"""The least finite fp32 number. A maximum begins here, not at minus infinity, of which a difference would be NaN."""


WEIGHT_BITS = gl.constexpr(8)
"""An 8-bit P is at most 2 to this power: e4m3 has 3 bits of fraction from 2^-6 to 448, so that those weights keep them
that are down to 2^-14 of a row's largest, and those below 2^-18 are lost. Not scaled, it would be 2^-6 and 2^-10. A
power of two costs nothing, for it is subtracted from the exponents (FlashAttention-3's fp8 does the same)."""


@gluon.jit
def first_state(BLOCK: gl.constexpr):
    """(output, row maxima, row sums) before the first block."""
    ROWS: gl.constexpr = BLOCK.rows
    D: gl.constexpr = BLOCK.width
    OUT: gl.constexpr = accumulator_layout(D, gl.num_warps(), BLOCK.bits)
    STATISTIC: gl.constexpr = gl.SliceLayout(1, accumulator_layout(BLOCK.columns, gl.num_warps(), BLOCK.bits))
    acc = gl.zeros([ROWS, D], gl.float32, OUT)
    return acc, gl.full([ROWS], LOWEST, gl.float32, STATISTIC), gl.zeros([ROWS], gl.float32, STATISTIC)


@gluon.jit
def rescale(acc, alpha):
    return acc * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]


@gluon.jit
def weigh(scores, row_max, row_sum, key, row, tile, extents, BLOCK: gl.constexpr, DTYPE: gl.constexpr):
    """A step of online softmax: (P as the left operand of P · V, what the sums so far are multiplied by, maxima, sums),
    in powers of two."""
    if sticks_out(key, row, tile, extents, BLOCK):
        scores = masked(scores, key, row, tile, extents, BLOCK)
    block_max = gl.max(scores, 1) * extents.scale
    if BLOCK.bits == 8:
        block_max -= WEIGHT_BITS
    new_max = gl.maximum(row_max, block_max)
    alpha = gl.exp2(row_max - new_max)
    weights = gl.exp2(scores * extents.scale - new_max[:, None])
    row_sum = row_sum * alpha + gl.sum(weights, 1)
    return as_weights(weights, BLOCK, DTYPE), alpha, new_max, row_sum


@gluon.jit
def as_weights(weights, BLOCK: gl.constexpr, DTYPE: gl.constexpr):
    """P rounded to ``DTYPE``, as a consumer keeps it until its product: in 16 bits the left operand."""
    if BLOCK.bits == 8:
        return pack_columns(weights)
    else:
        return gl.convert_layout(weights.to(DTYPE), left_layout(BLOCK.width, gl.num_warps(), BLOCK.bits))


@gluon.jit
def left_operand(weights, BLOCK: gl.constexpr):
    """The left operand of P · V, of what :func:`as_weights` gave."""
    if BLOCK.bits == 8:
        return unpack_columns(weights, BLOCK.columns, left_layout(BLOCK.width, gl.num_warps(), BLOCK.bits))
    else:
        return weights


@gluon.jit
def hand_over(weights, BLOCK: gl.constexpr):
    """The weights for the next product, once the one before has read its own."""
    if BLOCK.bits == 8:
        return move_packed(weights)
    else:
        return weights


@gluon.jit
def sticks_out(key, row, tile, extents, BLOCK: gl.constexpr):
    """Whether some of a block's keys are hidden from some of the rows."""
    position = row + tile.k_length - tile.q_length
    found = key + BLOCK.columns > tile.k_length
    if BLOCK.bounded_left:
        found = found | (key < position + BLOCK.rows - 1 - extents.left)
    if BLOCK.bounded_right:
        found = found | (key + BLOCK.columns - 1 > position + extents.right)
    return found


@gluon.jit
def masked(scores, key, row, tile, extents, BLOCK: gl.constexpr):
    """Minus infinity where a row does not see a key.

    A thread's columns come in groups of 8, of which it has the same two in each. Written as one range of all columns,
    ptxas computes every column before the loop and keeps them in registers, and spills; so the column within its group
    is hidden behind a move, and what is added for the group is a constant of the instruction.
    """
    GROUPS: gl.constexpr = BLOCK.columns // 8
    parts = scores.reshape([scores.shape[0], GROUPS, 8])
    LAYOUT: gl.constexpr = parts.type.layout
    r = row + tile.k_length - tile.q_length - key
    place = gl.arange(0, BLOCK.rows, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    if BLOCK.heads_in_rows:
        place = place // extents.sharers
    r += place
    within = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    within = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [within], dtype=gl.int32, is_pure=False, pack=1)
    group = gl.arange(0, GROUPS, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT))) * 8
    c = group[None, :, None] + within[None, None, :]
    seen = c < tile.k_length - key
    if BLOCK.bounded_left:
        seen = seen & (c >= (r - extents.left)[:, None, None])
    if BLOCK.bounded_right:
        seen = seen & (c <= (r + extents.right)[:, None, None])
    found = gl.where(seen, parts, float("-inf")).reshape([scores.shape[0], BLOCK.columns])
    return gl.convert_layout(found, scores.type.layout, assert_trivial=True)
