"""The grouped GEMM's candidate configurations as arrays: few enough that a GPU can time all of them for a shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.gemm.candidates import (
    CandidateTable,
    planned_structures,
    round_up_to_power_of_two,
    tabulate,
)
from warpplan.kernels.gemm.space import ELEMENT_BYTES, GemmConfig
from warpplan.kernels.grouped_gemm.distribution import GroupedShape
from warpplan.kernels.grouped_gemm.space import K_STEP, Product, Scales, violations
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

GROUPS = (4, 16)
"""Row tiles of a group that sweep its columns together (``GROUP_M``)."""
MOST_OVERHANG = 1.5
"""Tiles are left out where they would compute at least this many times the rows that 64-row tiles (wgmma's least)
compute."""
TILES_PER_SM = 4
"""Tiles smaller than 128x128 are left out where they would make more than this many tiles an SM."""
SLOT_ROW_BYTES = 128
COARSE_SLOTS = 4
"""K blocks longer than ``SLOT_ROW_BYTES`` are left out where fewer than this many ring slots fit: twice as many slots
of half the length take the same bytes and keep more copies in flight."""


@lru_cache(maxsize=64)
def table(dtype: str, device: Device, costs: CostTable, product: Product, scales: Scales) -> CandidateTable:
    """Every valid block with every tile order. The epilogue has bytes of its own, so that its store runs under the next
    tile: groups make more and shorter tiles than one product does."""
    configs: list[GemmConfig] = []
    below: list[int] = []
    for base in planned_structures(dtype, device, costs, promoted=scales == "block"):
        coarse = base.block_k * ELEMENT_BYTES[dtype] > SLOT_ROW_BYTES and base.depth < COARSE_SLOTS
        if base.staging == "own" and not coarse and not violations(base, dtype, device, product):
            for previous, group in zip((0, *GROUPS), GROUPS, strict=False):
                configs.append(replace(base, group_m=group))
                below.append(previous)
    return tabulate(configs, below, device)


@dataclass(frozen=True, eq=False)
class GroupGrid:
    """How each row of a table covers one shape. Arrays [rows] but where said otherwise: [rows, distinct sizes] over the
    different group sizes of the shape, of which ``count`` says how many groups have each.

    ``depth`` is the extent that a group's product sums over, in ``k_blocks``, of wgrad counted to a step; ``units`` are
    tiles, those of empty groups too where they are filled with zeros; ``group_m`` is no more than the largest group's
    row tiles.
    """

    sizes: Ints
    count: Ints
    rows: Ints
    columns: int
    depth: Ints
    row_tiles: Ints
    column_tiles: Ints
    k_blocks: Floats
    group_m: Ints
    valid: Bools

    @property
    def group_tiles(self) -> Ints:
        """Tiles of a group of each size [rows, distinct sizes]."""
        return np.asarray(self.row_tiles * self.column_tiles[:, None])

    @property
    def units(self) -> Ints:
        """Tiles of all groups [rows]."""
        return np.asarray(self.group_tiles @ self.count)

    @property
    def iterations(self) -> Floats:
        """Loop iterations of all tiles [rows]; a K block of which not all steps run counts as a part."""
        return np.asarray((self.group_tiles * self.k_blocks) @ self.count)


def grid(t: CandidateTable, shape: GroupedShape) -> GroupGrid:
    """Lay every row's tiles over the groups of ``shape`` and say which rows are worth considering there.

    Left out: tiles that overhang the groups by much more than the smallest would, tiles far smaller than the device
    needs to be filled, and tile orders that coincide.
    """
    sizes, count = np.unique(np.array(shape.sizes, dtype=np.int64), return_counts=True)
    wgrad = shape.product == "wgrad"
    rows = np.full_like(sizes, shape.n) if wgrad else sizes
    columns = shape.n if shape.product == "forward" else shape.k
    depth = sizes if wgrad else np.full_like(sizes, shape.k if shape.product == "forward" else shape.n)
    # The gradient of an empty group's B is one step of zeros.
    row_tiles = -(-rows // t.block_m[:, None])
    step = k_step(t.block_k[:, None], shape.product)
    k_blocks = np.maximum(1, -(-depth // step)) * step / t.block_k[:, None]
    column_tiles = -(-columns // t.block_n)
    column_cover = round_up_to_power_of_two(columns)
    computed = (row_tiles @ count) * t.block_m
    least = int(-(-rows // 64) @ count) * 64
    most_tiles = row_tiles.max(axis=1)
    # The least area of a tile: what few columns allow, or what makes TILES_PER_SM tiles an SM, if that is less.
    area = np.minimum(t.block_m * min(128, column_cover), computed * columns // (TILES_PER_SM * t.sm_count))
    # Nearly all tiles of two waves are resident at once, so their order does not matter.
    few = (row_tiles @ count) * column_tiles <= 2 * t.sm_count
    valid = (
        ((t.block_m == 64) | (computed < MOST_OVERHANG * least))
        & (t.block_n <= max(16, column_cover))
        & (t.block_n >= min(64, column_cover))
        # Taller tiles load more for the same product; they are for few columns.
        & ((t.block_m <= 2 * t.block_n) | (t.block_n >= column_cover))
        & (t.block_m * t.block_n >= area)
        & (t.block_k <= max(64, round_up_to_power_of_two(int(depth.max()))))
        & (t.group_below < np.where(few, 1, np.maximum(1, most_tiles)))
    )
    group_m = np.minimum(t.group_m, np.maximum(1, most_tiles))
    return GroupGrid(sizes, count, rows, columns, depth, row_tiles, column_tiles, k_blocks, group_m, valid)


def k_step(block_k: Ints, product: Product) -> Ints:
    """What a group's depth is rounded up to: a K block, of wgrad a step of one."""
    return np.full_like(block_k, K_STEP) if product == "wgrad" else block_k


def candidates(shape: GroupedShape, dtype: str, device: Device, costs: CostTable) -> tuple[GemmConfig, ...]:
    """The configurations considered for ``shape``, in the order of :func:`table`."""
    t = table(dtype, device, costs, shape.product, shape.scales)
    g = grid(t, shape)
    return tuple(replace(t.configs[i], group_m=int(g.group_m[i])) for i in np.flatnonzero(g.valid))
