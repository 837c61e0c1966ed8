"""Shared tiles as the boxes that TMA copies, and descriptors whose rows end where only the device knows.

A *ragged* descriptor has two dimensions more than its tensor, whose strides cancel modulo 2^64 (as
``triton.tools.ragged_tma`` does it): box row r at coordinates (2^30, e, 2^30 - e + r) is the tensor's row r, and the
row before e is the last that there is. What a box has beyond reads as zeros and is not written.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpplan.kernels.triton_compat import gl, gluon, reinterpret

RAGGED_ROWS = gl.constexpr(1 << 30)
"""Rows of a ragged descriptor, and the coordinate at which its two further strides cancel."""
MOST_COORDINATES = 0x7FFF0000
"""Of the two further dimensions."""


def ragged_form(sizes: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """(sizes, strides) of the ragged descriptor of a tensor, in elements, outermost first: its rows are dimension 0."""
    # The first stride, 2^34 less a row, times 2^30 cancels the third one's.
    row = strides[0]
    return [MOST_COORDINATES, MOST_COORDINATES, int(RAGGED_ROWS), *sizes[1:]], [2**34 - row, row, *strides]


@gluon.jit
def ragged_box(head, row, end):
    """Coordinates in a ragged descriptor of [rows, heads, D]: from ``row`` on, cut off at row ``end``."""
    return [RAGGED_ROWS, end, RAGGED_ROWS - end + row, head, 0]


@gluon.jit
def as_box(tile, desc):
    """A shared tile with the further dimensions, each of one, of the descriptor's box."""
    SHAPE: gl.constexpr = desc.block_type.shape
    return reinterpret(tile, tile.dtype, SHAPE, desc.layout)


@gluon.constexpr_function
def further_dimensions(shape, rank):
    """``shape`` behind as many dimensions of one as ``rank`` needs."""
    return [1] * (rank - len(shape)) + list(shape)


@gluon.jit
def as_boxes(tile, desc):
    """A shared tile with the further dimensions of the descriptor's box, to be sliced into such boxes. Triton 3.8
    reinterprets a tile, but no slice of one."""
    SHAPE: gl.constexpr = further_dimensions(tile.shape, len(desc.block_type.shape))
    return reinterpret(tile, tile.dtype, SHAPE, desc.layout)
