"""Units of dK and dV: which tile of keys a unit is, which rows see them, and where both lie.

The mask is that of the forward kernel: a band, the last query at the last key. Blocks of rows that see no key of the
tile are skipped.

Sequences of unlike lengths lie *packed* one behind the other, [rows, heads, D], as in the forward kernel: operands and
dK and dV have ragged descriptors, and a unit finds its sequence by :mod:`warpplan.kernels.device.sequence_slots`. What
has a block's rows but is no operand, the statistics and the fp32 dQ, lies *spread*: sequence s begins at row
``q_starts[s]`` rounded down to 4, and ``GAP`` rows more for each sequence before it. So it begins on 16 bytes, and what
a block has beyond its sequence's end falls into a gap, where weights are 0.
"""

from __future__ import annotations

from warpplan.kernels.attention_bwd.device.key_gradient_block import KeyTile
from warpplan.kernels.attention_bwd.space import ALIGNED_ROWS
from warpplan.kernels.device.boxes import ragged_box
from warpplan.kernels.device.sequence_slots import find_sequence, sequence_rows
from warpplan.kernels.device.stream_k import opaque
from warpplan.kernels.device.tile_order import banded_tile
from warpplan.kernels.triton_compat import gl, gluon

ALIGNED = gl.constexpr(ALIGNED_ROWS)


@gluon.jit
def locate(unit, extents, BLOCK: gl.constexpr):
    """Where a unit lies. Units count through bands of ``head_group`` key heads, tile by tile; under a causal mask the
    first tiles are seen by most rows, so that the longest come first."""
    if BLOCK.window:
        return locate_packed(unit, extents, BLOCK)
    else:
        key_head, tile = banded_tile(unit, extents.key_heads, extents.tiles, extents.head_group, 1, 1)
        key = tile * BLOCK.keys
        first = first_row(key - extents.low, BLOCK)
        blocks = row_blocks(key, first, extents.q_length, extents.k_length, extents.high, BLOCK)
        batch = key_head // extents.kv_heads
        return KeyTile(
            batch, key_head % extents.kv_heads, key, first, blocks, first + blocks * BLOCK.rows, 0, 0, 0, 0, 0
        )


@gluon.jit
def locate_packed(unit, extents, BLOCK: gl.constexpr):
    """The same of packed sequences, one after the other in a band. A unit beyond its sequence's last tile has no keys
    and no blocks."""
    KEYS: gl.constexpr = BLOCK.keys
    # Units of a band are counted anew: kept over the loop they would spill.
    head, slot = banded_tile(unit, extents.key_heads, extents.tiles, opaque(extents.head_group), 1, 1)
    sequence = find_sequence(slot, extents.k_starts, extents.sequences, KEYS, 1, BLOCK.window)
    k_first, k_end = sequence_rows(extents.k_starts, sequence, extents.k_length)
    q_first, q_end = sequence_rows(extents.q_starts, sequence, extents.q_length)
    key = gl.maximum(slot - (k_first // KEYS + sequence), 0) * KEYS
    more = k_end - k_first - (q_end - q_first)
    seen_from = key - (extents.low + more)
    first = first_row(seen_from, BLOCK)
    left = k_end - k_first - key
    blocks = row_blocks(key, first, q_end - q_first, k_end - k_first, extents.high - more, BLOCK)
    blocks = gl.where(left > 0, blocks, 0)
    place = (q_first & -ALIGNED) + sequence * BLOCK.gap
    row = place + first
    return KeyTile(
        0, head, k_first + key, row, blocks, row + blocks * BLOCK.rows, k_end, q_end, q_first - place, left,
        place + seen_from,
    )  # fmt: skip


@gluon.jit
def first_row(seen_from, BLOCK: gl.constexpr):
    """The first query row that sees a key of a tile whose first key is seen from ``seen_from`` on, or one of the few
    before it: their statistics must begin on 16 bytes (``PITCH`` of the launch), or TMA stops the kernel with an
    illegal instruction."""
    row = 0
    if BLOCK.bounded_right:
        row = gl.maximum(seen_from, 0) & -ALIGNED
    return row


@gluon.jit
def row_blocks(key, first, q_length, k_length, high, BLOCK: gl.constexpr):
    """Blocks of rows from ``first`` on that see a key of the tile at ``key``, of a sequence of these lengths."""
    end = q_length
    if BLOCK.bounded_left:
        last_key = gl.minimum(key + BLOCK.keys, k_length) - 1
        end = gl.minimum(last_key + high + 1, end)
    return gl.cdiv(gl.maximum(end - first, 0), BLOCK.rows)


@gluon.jit
def first_seeing(tile, extents, BLOCK: gl.constexpr):
    """The row from which on the tile's first key is seen."""
    if BLOCK.window:
        return tile.seen_from
    else:
        return tile.key - extents.low


@gluon.jit
def keys_left(tile, extents, BLOCK: gl.constexpr):
    """Keys from the tile's first one on."""
    if BLOCK.window:
        return tile.left
    else:
        return extents.k_length - tile.key


@gluon.jit
def key_box(tile, head, BLOCK: gl.constexpr):
    """Coordinates of the tile in K, V, dK and dV."""
    if BLOCK.window:
        return ragged_box(head, tile.key, tile.k_end)
    else:
        return [tile.batch, head, tile.key, 0]


@gluon.jit
def row_box(tile, head, row, BLOCK: gl.constexpr):
    """Coordinates in Q and dO of the block at ``row``."""
    if BLOCK.window:
        return ragged_box(head, tile.shift + row, tile.q_end)
    else:
        return [tile.batch, head, row, 0]
