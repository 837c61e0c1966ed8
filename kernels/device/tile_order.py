"""Which tile of a matrix comes n-th: an order in which tiles that run together share operands in L2."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def banded_tile(tile, rows, columns, group, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """First row and first column of a tile: bands of ``group`` tile rows, column by column. A tile beyond the last one
    lies somewhere. For Gluon kernels too: it needs scalars alone."""
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    column_tiles = tl.cdiv(columns, BLOCK_COLUMNS)
    band = group * column_tiles
    first = tile // band * group
    height = tl.maximum(tl.minimum(row_tiles - first, group), 1)
    inside = tile % band
    return (first + inside % height) * BLOCK_ROWS, inside // height * BLOCK_COLUMNS
