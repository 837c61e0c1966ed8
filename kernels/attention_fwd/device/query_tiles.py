"""Units of attention forward: which tile of query rows a unit is, which keys its rows see, and where both lie.

The mask is a band: the query at position p sees keys p - LEFT to p + RIGHT, where the last query stands at the last key
(bottom right, also where the lengths differ). Blocks of keys that no row of a unit sees are not among its keys.

Sequences of unlike lengths lie *packed* one behind the other, [rows, heads, D]: where each begins is read on the
device, by :mod:`warpplan.kernels.device.groups`, and all four tensors have ragged descriptors
(:mod:`warpplan.kernels.device.boxes`) that end with the sequence. Positions count from the sequence's own first row.
"""

from __future__ import annotations

from warpplan.kernels.attention_fwd.device.attention_block import QueryTile
from warpplan.kernels.attention_fwd.fp8.gluon import KEY_GROUP
from warpplan.kernels.device.boxes import ragged_box
from warpplan.kernels.device.groups import Groups, count_units, find_group, first_window
from warpplan.kernels.device.tile_order import banded_tile
from warpplan.kernels.triton_compat import gl, gluon


@gluon.jit
def query_groups(extents):
    """The packed sequences of queries as groups of rows."""
    return Groups(extents.q_starts + 1, extents.batch, extents.q_length)


@gluon.jit
def begin(extents, BLOCK: gl.constexpr):
    """Where a partition looks for the sequence of its first unit."""
    if BLOCK.window:
        TILE: gl.constexpr = BLOCK.consumers * BLOCK.rows
        return first_window(query_groups(extents), extents.heads, TILE, False, BLOCK.window)
    else:
        return 0


@gluon.jit
def unit_count(search, extents, BLOCK: gl.constexpr):
    TILE: gl.constexpr = BLOCK.consumers * BLOCK.rows
    if BLOCK.window:
        return count_units(search, query_groups(extents), extents.heads, TILE, False, BLOCK.window)
    else:
        return extents.batch_heads * gl.cdiv(extents.q_length, TILE)


@gluon.jit
def locate(unit, search, extents, BLOCK: gl.constexpr):
    """(where a unit lies, where the next one is to be looked up)."""
    TILE: gl.constexpr = BLOCK.consumers * BLOCK.rows
    if BLOCK.window:
        group, search = find_group(unit, search, query_groups(extents), extents.heads, TILE, False, BLOCK.window)
        # Starts need not be right: whatever they hold, the keys are within those that there are.
        k_first = gl.minimum(gl.maximum(gl.load(extents.k_starts + group.index), 0), extents.k_length)
        k_end = gl.minimum(gl.load(extents.k_starts + group.index + 1), extents.k_length)
        k_length = gl.maximum(k_end - k_first, 0)
        q_length = group.end - group.first
        tile = locate_tile(group.unit, extents.heads, group.first, q_length, k_first, k_length, extents, BLOCK)
        return tile, search
    else:
        tile = locate_tile(unit, extents.batch_heads, 0, extents.q_length, 0, extents.k_length, extents, BLOCK)
        return tile, search


@gluon.jit
def locate_tile(unit, heads, q_first, q_length, k_first, k_length, extents, BLOCK: gl.constexpr):
    """Where a unit lies. Units count through bands of ``head_group`` heads, tile by tile; the longest tiles come first
    where the mask makes the last rows see most."""
    TILE: gl.constexpr = BLOCK.consumers * BLOCK.rows
    tiles = gl.cdiv(q_length, TILE)
    batch_head, tile = banded_tile(unit, heads, tiles, extents.head_group, 1, 1)
    if BLOCK.bounded_right:
        tile = tiles - 1 - tile
    row = tile * TILE
    shift = k_length - q_length
    first = 0
    end = k_length
    if BLOCK.bounded_left:
        first = gl.maximum(row + shift - extents.left, 0)
    if BLOCK.bounded_right:
        last_row = gl.minimum(row + TILE, q_length) - 1
        end = gl.minimum(last_row + shift + extents.right + 1, end)
    if BLOCK.bits == 8:
        first = first // KEY_GROUP * KEY_GROUP
    # Rows that see no key take one block all the same, of which nothing is left.
    blocks = gl.maximum(gl.cdiv(end - first, BLOCK.columns), 1)
    batch = batch_head // extents.heads
    head = batch_head % extents.heads
    return QueryTile(batch, head, row, first, blocks, q_first, q_length, k_first, k_length)


@gluon.jit
def query_box(tile, row, BLOCK: gl.constexpr):
    """Coordinates in Q and O of the rows from ``row`` on."""
    if BLOCK.window:
        return ragged_box(tile.head, tile.q_first + row, tile.q_first + tile.q_length)
    else:
        return [tile.batch, tile.head, row, 0]


@gluon.jit
def key_box(tile, head, key, BLOCK: gl.constexpr):
    """Coordinates in K and V of the rows from ``key`` on."""
    if BLOCK.window:
        return ragged_box(head, tile.k_first + key, tile.k_first + tile.k_length)
    else:
        return [tile.batch, head, key, 0]


@gluon.jit
def value_box(tile, head, key, BLOCK: gl.constexpr):
    """Coordinates in V of the keys from ``key`` on."""
    if BLOCK.bits == 8:
        return [tile.batch, head, 0, key]
    else:
        return key_box(tile, head, key, BLOCK)
