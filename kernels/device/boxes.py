"""Shared tiles as the boxes that TMA copies: the same bytes with the further dimensions of a descriptor."""

from __future__ import annotations

from warpplan.kernels.triton_compat import gl, gluon, reinterpret


@gluon.jit
def as_box(tile, desc):
    """A shared tile with the further dimensions, each of one, of the descriptor's box."""
    SHAPE: gl.constexpr = desc.block_type.shape
    return reinterpret(tile, tile.dtype, SHAPE, desc.layout)
