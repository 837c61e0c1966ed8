"""Units of the GEMM's work on the device: which tile, and which range of its K, a unit is.

The first ``whole_tiles`` units are tiles whose K is not split. Of the others, a unit is one of the ``split_k`` ranges
of a tile's K (``BLOCK.split`` "equal"), or a segment of a CTA's range of K blocks ("stream",
:mod:`warpplan.kernels.device.stream_k`). ``BLOCK`` is the :class:`~warpplan.kernels.device.block.Block` of the launch.
"""

from __future__ import annotations

from typing import NamedTuple

from warpplan.kernels.device.matmul import Tile
from warpplan.kernels.device.stream_k import opaque, own_range, range_of, segment, segment_count
from warpplan.kernels.device.tile_order import banded_tile
from warpplan.kernels.triton_compat import gl, gluon

LEAD: gl.constexpr = gl.constexpr(4)
"""K blocks that the last range of a split tile has more than the others, which write their partial sums meanwhile: of
0, 2, 4 and 8 the fastest on an H100 (``leads`` in ``benchmarks/results/partial_sums_h100.json``)."""


class Sizes(NamedTuple):
    """Of the computed matrix: C, or Cᵀ where the operands are swapped."""

    rows: gl.tensor
    columns: gl.tensor
    depth: gl.tensor
    group_m: gl.tensor
    split_k: gl.tensor
    whole_tiles: gl.tensor


@gluon.jit
def unit_count(sizes, BLOCK: gl.constexpr):
    """A bound of this CTA's units: p, p + G, p + 2G, … of CTA p of G. In a stream each CTA has its own bound: as many
    units as it has segments follow its share of the whole tiles, whose number is a multiple of G."""
    whole, split = tile_counts(sizes, BLOCK)
    if BLOCK.split == "stream":
        blocks = gl.cdiv(sizes.depth, BLOCK.block_k)
        return whole + segment_count(split * blocks, blocks) * gl.num_programs(0)
    elif BLOCK.split == "equal":
        return whole + split * sizes.split_k
    else:
        return whole


@gluon.jit
def tile_counts(sizes, BLOCK: gl.constexpr):
    """Tiles that are one unit each, and tiles whose K is split."""
    tiles = gl.cdiv(sizes.rows, BLOCK.block_m) * gl.cdiv(sizes.columns, BLOCK.block_n)
    if BLOCK.split == "none":
        return tiles, 0
    else:
        return sizes.whole_tiles, tiles - sizes.whole_tiles


@gluon.jit
def place(unit, sizes, BLOCK: gl.constexpr):
    """The tile of a unit, which equal range of the tile's K the unit is, and how many such ranges there are."""
    if BLOCK.split == "equal":
        beyond = gl.maximum(unit - sizes.whole_tiles, 0)
        tile = gl.minimum(unit, sizes.whole_tiles) + beyond // sizes.split_k
        return tile, beyond % sizes.split_k, gl.where(unit < sizes.whole_tiles, 1, sizes.split_k)
    else:
        return unit, 0, 1


@gluon.jit
def k_range(unit, sizes, BLOCK: gl.constexpr):
    """The tile of a unit, its first K block and how many it has; the last equal range of a tile has up to ``LEAD`` more
    than the others, or fewer where they do not divide."""
    blocks = gl.cdiv(sizes.depth, BLOCK.block_k)
    if BLOCK.split == "stream":
        whole, streamed = tile_counts(sizes, BLOCK)
        index = gl.maximum(unit - whole, 0) // gl.num_programs(0)
        tile, first, count = segment(index, streamed * blocks, blocks)
        streams = unit >= whole
        return gl.where(streams, whole + tile, unit), gl.where(streams, first, 0), gl.where(streams, count, blocks)
    elif BLOCK.split == "equal":
        tile, split, splits = place(unit, sizes, BLOCK)
        lead = gl.minimum(LEAD, blocks // (2 * splits))
        each = gl.cdiv(blocks - lead, splits)
        return tile, split * each, gl.where(split == splits - 1, blocks - split * each, each)
    else:
        return unit, 0, blocks


@gluon.jit
def shared_tile(unit, sizes, BLOCK: gl.constexpr):
    """(Whether this unit's CTA stores its tile, the tile's number among those that are split, first, step, end): of
    the workspace's slots, those that hold the partial sums of the tile's other units are first, first + step, …, before
    end; one that does not store puts its own in slot first. Of equal ranges the last one stores, so that a CTA waits
    for units of lower numbers alone, and those for nobody; of a stream's the first. A tile that is one unit's has no
    slot."""
    if BLOCK.split == "stream":
        mine = opaque(own_range())
        tile, first, count = k_range(unit, sizes, BLOCK)
        end = last_range(tile, count, sizes, BLOCK) + 1
        return first == 0, opaque(tile - sizes.whole_tiles), gl.where(first == 0, mine + 1, mine), 1, end
    else:
        tile, split, splits = place(unit, sizes, BLOCK)
        tiles = gl.maximum(tile_counts(sizes, BLOCK)[1], 1)
        number = opaque(tile - sizes.whole_tiles)
        owns = split == splits - 1
        return owns, number, gl.where(owns, number, number + split * tiles), tiles, number + (splits - 1) * tiles


@gluon.jit
def last_range(tile, count, sizes, BLOCK: gl.constexpr):
    """The last range with K blocks of ``tile``, of which this CTA has the first ``count``."""
    blocks = gl.cdiv(sizes.depth, BLOCK.block_k)
    whole, streamed = tile_counts(sizes, BLOCK)
    end = gl.maximum((tile - whole + 1) * blocks, 1)
    return gl.where(count == blocks, own_range(), range_of(end - 1, streamed * blocks))


@gluon.jit
def locate(unit, sizes, BLOCK: gl.constexpr):
    """Where a unit lies, as a :class:`~warpplan.kernels.device.matmul.Tile`, and the sizes again."""
    number, first, blocks = k_range(unit, sizes, BLOCK)
    row, column = banded_tile(number, sizes.rows, sizes.columns, sizes.group_m, BLOCK.block_m, BLOCK.block_n)
    return Tile(row, first * BLOCK.block_k, column, first * BLOCK.block_k, blocks, row, column), sizes
