"""Pᵀ of a block of rows, in a consumer's registers, from Sᵀ and the forward pass's log-sum-exp."""

from __future__ import annotations

from warpplan.kernels.attention_bwd.device.key_tiles import first_seeing, keys_left
from warpplan.kernels.device.epilogue import accumulator_layout
from warpplan.kernels.triton_compat import gl, gluon

FAR = gl.constexpr(1 << 30)
"""More rows than there are, and more than a window has; twice as many are still an int32."""


@gluon.jit
def weigh(scores, lse, tile, row, extents, BLOCK: gl.constexpr):
    """Pᵀ of a block: keys down, rows across; ``lse`` in powers of two, infinite for a row that sees no key."""
    LAYOUT: gl.constexpr = accumulator_layout(BLOCK.rows, gl.num_warps())
    if sticks_out(tile, row, extents, BLOCK):
        scores = masked(scores, tile, row, extents, BLOCK)
    return gl.exp2(scores * extents.log_scale - lse.load(gl.SliceLayout(0, LAYOUT))[None, :])


@gluon.jit
def sticks_out(tile, row, extents, BLOCK: gl.constexpr):
    """Whether some of the tile's keys are hidden from some of a block's rows."""
    found = keys_left(tile, extents, BLOCK) < BLOCK.keys
    if BLOCK.bounded_left:
        found = found | (row + BLOCK.rows - 1 > first_seeing(tile, extents, BLOCK) + (extents.low + extents.high))
    if BLOCK.bounded_right:
        found = found | (row < first_seeing(tile, extents, BLOCK) + BLOCK.keys - 1)
    return found


@gluon.jit
def masked(scores, tile, row, extents, BLOCK: gl.constexpr):
    """Minus infinity where a row (across) does not see a key (down).

    A thread's columns come in groups of 8, of which it has the same two in each; the column within its group is hidden
    behind a move, for the reason that the forward kernel's ``masked`` gives.
    """
    GROUPS: gl.constexpr = BLOCK.rows // 8
    parts = scores.reshape([scores.shape[0], GROUPS, 8])
    LAYOUT: gl.constexpr = parts.type.layout
    k = gl.arange(0, BLOCK.keys, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    within = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    within = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [within], dtype=gl.int32, is_pure=False, pack=1)
    group = gl.arange(0, GROUPS, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT))) * 8
    exists = k < keys_left(tile, extents, BLOCK)
    if BLOCK.bounded_right:
        # Rows are counted from the first that sees the key; of a key that is missing, from far behind.
        first = gl.where(exists, k + (first_seeing(tile, extents, BLOCK) - row), FAR)
        behind = (within[None, None, :] - first[:, None, None]) + group[None, :, None]
        if BLOCK.bounded_left:
            seen = gl.cast(behind, gl.uint32) <= gl.cast(extents.low + extents.high, gl.uint32)
        else:
            seen = behind >= 0
    else:
        seen = exists[:, None, None]
    found = gl.where(seen, parts, float("-inf")).reshape([scores.shape[0], BLOCK.rows])
    return gl.convert_layout(found, scores.type.layout, assert_trivial=True)
