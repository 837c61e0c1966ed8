"""The grouped products of the layer, whose configurations a job fetches at its start."""

from __future__ import annotations

from layer import LayerSizes

from warpplan.kernels.declaration import Shape
from warpplan.kernels.grouped_gemm.autograd import rounded_rows
from warpplan.kernels.registry import kernel

PRODUCTS = ("forward", "dgrad", "wgrad")


def shapes(sizes: LayerSizes) -> list[tuple[str, Shape]]:
    """The six grouped products of a training step: both projections, each forward and for its two gradients. The load
    balancing loss keeps the groups alike, so the plans are asked for as balanced, and for the rows that autograd rounds
    to."""
    declaration = kernel("grouped_gemm").declaration
    rows = rounded_rows(sizes.rows)
    return [
        (
            "grouped_gemm",
            declaration.parse_shape({"M": rows, "N": n, "K": k, "G": sizes.experts, "product": product}),
        )
        for n, k in ((2 * sizes.hidden, sizes.width), (sizes.width, sizes.hidden))
        for product in PRODUCTS
    ]
