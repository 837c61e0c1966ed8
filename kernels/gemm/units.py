"""Units of the GEMM's work on the device: which tile, and which range of its K, a unit is.

A unit is one tile of C, or one of the ``split_k`` ranges of its K; the first ``whole_tiles`` units are tiles that are
not split. ``BLOCK`` is the :class:`~warpplan.kernels.device.matmul.Block` of the launch.
"""

from __future__ import annotations

from typing import NamedTuple

from warpplan.kernels.device.matmul import Tile
from warpplan.kernels.device.tile_order import banded_tile
from warpplan.kernels.triton_compat import gl, gluon


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
    whole, split = tile_counts(sizes, BLOCK)
    return whole + split * sizes.split_k if BLOCK.split else whole


@gluon.jit
def tile_counts(sizes, BLOCK: gl.constexpr):
    """Tiles that are one unit each, and tiles whose K is split."""
    tiles = gl.cdiv(sizes.rows, BLOCK.block_m) * gl.cdiv(sizes.columns, BLOCK.block_n)
    if BLOCK.split:
        return sizes.whole_tiles, tiles - sizes.whole_tiles
    else:
        return tiles, 0


@gluon.jit
def place(unit, sizes, BLOCK: gl.constexpr):
    """The tile of a unit, which range of the tile's K the unit is, and how many such ranges there are."""
    if BLOCK.split:
        beyond = gl.maximum(unit - sizes.whole_tiles, 0)
        tile = gl.minimum(unit, sizes.whole_tiles) + beyond // sizes.split_k
        return tile, beyond % sizes.split_k, gl.where(unit < sizes.whole_tiles, 1, sizes.split_k)
    else:
        return unit, 0, 1


@gluon.jit
def k_range(unit, sizes, BLOCK: gl.constexpr):
    """The first K block of a unit and how many it has; the last split of a tile may have fewer."""
    blocks = gl.cdiv(sizes.depth, BLOCK.block_k)
    if BLOCK.split:
        _, split, splits = place(unit, sizes, BLOCK)
        each = gl.cdiv(blocks, splits)
        return split * each, gl.minimum(each, blocks - split * each)
    else:
        return 0, blocks


@gluon.jit
def locate(unit, sizes, BLOCK: gl.constexpr):
    """Where a unit lies, as a :class:`~warpplan.kernels.device.matmul.Tile`, and the sizes again."""
    number = place(unit, sizes, BLOCK)[0]
    row, column = banded_tile(number, sizes.rows, sizes.columns, sizes.group_m, BLOCK.block_m, BLOCK.block_n)
    first, blocks = k_range(unit, sizes, BLOCK)
    return Tile(row, first * BLOCK.block_k, column, first * BLOCK.block_k, blocks, row, column), sizes
