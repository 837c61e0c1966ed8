"""The GEMM's candidate configurations as arrays, so that all of them are ranked at once with numpy.

A row is a block structure (tile, scheme, ring depth, epilogue) with one tile order, one K split or a stream of K
blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.gemm.graph import robust_depth
from warpplan.kernels.gemm.space import (
    CHUNK_COLUMNS,
    ELEMENT_BYTES,
    MAX_DEPTH,
    MMA_ROWS,
    PIPELINED_DEPTH,
    SPLIT_REGISTERS,
    WIDE_COLUMNS,
    GemmConfig,
    Scheme,
    Shape,
    Staging,
    violations,
)
from warpplan.planner.errors import MissingCosts
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import Device

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

GROUPS = (4, 8, 16)
"""Values of ``group_m``: tile rows in a band of the tile order."""
SPLITS = (2, 3, 4, 6, 8, 16)
"""Values of ``split_k``: ranges that the K of a tile is split into."""
SWAP_MAX_ROWS = 128
"""The largest M at which A and B are swapped whatever the tile: above it, unswapped tiles of every aspect ratio fit,
but for :data:`UNTRANSPOSED_ROWS`."""
UNTRANSPOSED_ROWS = 3 * MMA_ROWS
"""Rows of the tiles whose transpose no structure has, but where wide ones are ranked."""
MIN_SPLIT_ITERATIONS = 3
"""The fewest K blocks of a split, or of a CTA's range in a stream."""
MAX_WHOLE_WAVES = 6
"""The K of the tiles in a partial last wave is split or streamed only after at most this many full waves: after more of
them the last wave is too small a part of the time."""
TILES_PER_SM = 8
"""Tiles smaller than 128x128 are left out where there would be more than this many tiles an SM."""

EPILOGUES: tuple[tuple[Staging, int], ...] = tuple((s, n) for s in ("own", "ring") for n in (1, 2, 4))
"""(staging, split), best first: a staging buffer of its own lets the store overlap the next tile, and each chunk of a
split epilogue waits for the one before."""

# scheme, warps a consumer, (rows, columns) of the tile, CTAs an SM
_STRUCTURES: tuple[tuple[Scheme, int, tuple[tuple[int, int], ...], int], ...] = (
    ("single", 8, ((128, 64), (128, 128), (128, 256), (256, 64), (256, 128)), 1),
    ("single", 4, ((64, 16), (64, 32), (64, 64), (64, 128), (64, 256), (128, 16), (128, 32), (128, 64), (128, 128)), 1),
    ("single", 4, ((64, 16), (64, 32), (64, 64), (64, 128), (128, 16), (128, 32), (128, 64), (128, 128)), 2),
    ("cooperative", 4, ((128, 128), (128, 256), (192, 128), (256, 128)), 1),
    ("pingpong", 4, ((64, 128), (64, 256), (128, 64), (128, 128)), 1),
    ("pipelined", 8, ((128, 256), (256, 128), (128, 128)), 1),
    ("pipelined", 4, ((128, 128), (64, 128), (128, 64), (64, 64)), 1),
)

# scheme, warps a consumer, rows of the tile
_WIDE_STRUCTURES: tuple[tuple[Scheme, int, tuple[int, ...]], ...] = (
    ("single", 8, (128,)),
    ("single", 4, (64,)),
    ("cooperative", 4, (128, 192, 256)),
    ("pingpong", 4, (64, 128)),
)
WIDE = "wgmma_pair"
"""The cost of a K step by two accumulators, without which no wide tile of as many columns is ranked."""
MULTICAST = "tma_multicast"
"""The cost of one copy into the CTAs of a cluster, without which no clusters are ranked."""
CLUSTER = 2
"""CTAs of a cluster."""
SHARED_COLUMNS = 128
"""The fewest columns of a cluster's tile: with fewer, what its CTAs share is little beside what each loads."""

SWIZZLE_BYTES = 128
"""The widest row of a swizzled tile (CUDA Driver API, ``CUtensorMapSwizzle``); a K block is one such row or two."""


@lru_cache(maxsize=16)
def structures(
    dtype: str, device: Device, promoted: bool = False, cluster: int = 1, wide: tuple[int, ...] = ()
) -> tuple[GemmConfig, ...]:
    """Every valid block structure: tile, scheme, depth and epilogue, with the shape-dependent fields at their defaults;
    of clusters, each CTA has the tile of one alone. ``wide`` asks for the structures with these column counts instead.

    Depth is the largest that fits, at most ``MAX_DEPTH``; the pipelined scheme tries the two deepest. An epilogue
    variant stays only where it buys depth. What depth the loop needs is the planner's to say
    (:func:`planned_structures`).
    """
    found: list[GemmConfig] = []
    of_wide = tuple((s, w, tuple((m, n) for n in wide for m in rows), 1) for s, w, rows in _WIDE_STRUCTURES)
    for scheme, warps, tiles, ctas in of_wide if wide else _STRUCTURES:
        if cluster > 1 and (ctas > 1 or scheme == "pipelined"):
            continue
        for block_m, block_n in tiles:
            if cluster > 1 and block_n < SHARED_COLUMNS:
                continue
            for swizzled_rows in (1,) if wide else (1, 2):
                block_k = swizzled_rows * SWIZZLE_BYTES // ELEMENT_BYTES[dtype]
                base = GemmConfig(
                    scheme, block_m * cluster, block_n, block_k, warps, 2, ctas_per_sm=ctas, promoted=promoted,
                    cluster=cluster,
                )  # fmt: skip
                found += _pipelined(base, dtype, device) if scheme == "pipelined" else _epilogues(base, dtype, device)
    return tuple(dict.fromkeys(found))


def _deepest(config: GemmConfig, dtype: str, device: Device) -> GemmConfig | None:
    for depth in range(MAX_DEPTH, 1, -1):
        candidate = replace(config, depth=depth)
        if not violations(candidate, dtype, device):
            return candidate
    return None


def _pipelined(base: GemmConfig, dtype: str, device: Device) -> list[GemmConfig]:
    deepest = _deepest(base, dtype, device)
    if deepest is None or deepest.depth < 3:
        return []
    depth = min(deepest.depth, PIPELINED_DEPTH)
    return [replace(base, depth=d) for d in (depth, depth - 1) if d >= 3]


def _epilogues(base: GemmConfig, dtype: str, device: Device) -> list[GemmConfig]:
    """``base`` with each of :data:`EPILOGUES` that makes room for a deeper ring than those before it."""
    kept: list[GemmConfig] = []
    for staging, split in _epilogue_options(base):
        option = _deepest(replace(base, staging=staging, epilogue_split=split), dtype, device)
        if option is not None and option.depth > max((c.depth for c in kept), default=2):
            kept.append(option)
    return kept


def _epilogue_options(base: GemmConfig) -> tuple[tuple[Staging, int], ...]:
    return (("own", base.wide_chunks),) if base.wide else EPILOGUES


@dataclass(frozen=True, eq=False)
class CandidateTable:
    """The shape-independent rows, in a fixed order; every array has one element a row.

    ``group_below`` is the next smaller ``group_m`` among the rows of the same block, 0 for the smallest: with no more
    row tiles than that, both give the same tile order.
    """

    configs: tuple[GemmConfig, ...]
    block_m: Ints
    block_n: Ints
    block_k: Ints
    group_m: Ints
    group_below: Ints
    split_k: Ints
    split_tail: Bools
    stream_k: Bools
    swap: Bools
    specialized: Bools
    ctas_per_sm: Ints
    cluster: Ints
    launch_dependents: Bools
    sm_count: int

    @property
    def resident(self) -> Ints:
        """Tiles that the device works on at once."""
        return self.sm_count * self.ctas_per_sm // self.cluster


class TileGrid(Protocol):
    """What ranking needs of how each row of a table covers a shape: the rows that can, and their order of tiles."""

    @property
    def valid(self) -> Bools: ...

    @property
    def group_m(self) -> Ints: ...


@dataclass(frozen=True, eq=False)
class Grid:
    """How each row's tiles cover one shape; one element a row.

    ``rows`` and ``columns`` are those of the computed matrix in elements, ``row_tiles`` and ``column_tiles`` the same
    in tiles. ``whole_tiles`` of the ``tiles`` are not split in K. ``k_blocks`` are loop iterations over all of K.
    """

    rows: Ints
    columns: Ints
    row_tiles: Ints
    column_tiles: Ints
    tiles: Ints
    whole_tiles: Ints
    group_m: Ints
    k_blocks: Ints
    valid: Bools


def planned_structures(
    dtype: str, device: Device, costs: CostTable, promoted: bool = False, cluster: int = 1, wide: tuple[int, ...] = ()
) -> tuple[GemmConfig, ...]:
    """:func:`structures`, whose rings are as deep as fits, each followed by the same block at its robust depth.

    Operands that no SM has read yet come from DRAM, so that is the latency a ring must be robust against. A shallower
    ring leaves shared memory for the first of :data:`EPILOGUES` that then fits. A block whose robust depth does not
    fit, or whose loop was not measured, has its deepest ring alone.
    """
    depths: dict[tuple[object, ...], int | None] = {}
    found: dict[GemmConfig, None] = {}
    for base in structures(dtype, device, promoted, cluster, wide):
        found[base] = None
        if base.loop_key not in depths:
            depths[base.loop_key] = _usable_robust_depth(base, dtype, device, costs)
        depth = depths[base.loop_key]
        options = (replace(base, depth=depth or 0, staging=t, epilogue_split=n) for t, n in _epilogue_options(base))
        fitting = next((c for c in options if not violations(c, dtype, device)), None)
        if fitting is not None:
            found[fitting] = None
    return tuple(found)


def measured_wide(dtype: str, costs: CostTable) -> tuple[int, ...]:
    """The column counts of :data:`~warpplan.kernels.gemm.space.WIDE_COLUMNS` to rank: those whose products the profile
    has a cost of. fp8 kernels with narrow chunks were not timed, and are left out."""
    pairs = [dict(entry.parameters) for entry in costs.entries if entry.kind == WIDE]
    known = {pair["n"] for pair in pairs if pair["dtype"] == dtype}
    return tuple(n for n in WIDE_COLUMNS if n in known and (ELEMENT_BYTES[dtype] > 1 or n % CHUNK_COLUMNS == 0))


def _usable_robust_depth(config: GemmConfig, dtype: str, device: Device, costs: CostTable) -> int | None:
    try:
        depth = robust_depth(config, dtype, device, costs, "dram")
    except MissingCosts:
        return None
    return depth if 2 <= depth <= (MAX_DEPTH if config.specialized else PIPELINED_DEPTH) else None


@lru_cache(maxsize=16)
def table(dtype: str, device: Device, costs: CostTable | None = None, promoted: bool = False) -> CandidateTable:
    """The rows of :func:`planned_structures`, or of :func:`structures` without ``costs``; ``promoted`` rows add up the
    products of K blocks in fp32 registers. Wide tiles and clusters are among them where what they need was measured."""
    configs: list[GemmConfig] = []
    below: list[int] = []
    bases = structures(dtype, device, promoted) if costs is None else planned_structures(dtype, device, costs, promoted)
    if costs is not None and MULTICAST in costs.kinds():
        bases += planned_structures(dtype, device, costs, promoted, CLUSTER)
    if costs is not None and (wide := measured_wide(dtype, costs)):
        bases += planned_structures(dtype, device, costs, promoted, wide=wide)
    for base in bases:
        for swap in (False, True) if base.specialized and not promoted else (False,):
            for previous, group in zip((0, *GROUPS), GROUPS, strict=False):
                configs.append(replace(base, swap=swap, group_m=group))
                below.append(previous)
            if _splits(base):
                for tail in (False, True) if not swap else (False,):
                    configs += [replace(base, swap=swap, split_k=split, split_tail=tail) for split in SPLITS]
                    below += [0] * len(SPLITS)
    # Last: where two candidates are predicted equal, the one without a stream stays first.
    for base in bases:
        streams = [replace(base, swap=swap, stream_k=True) for swap in ((False,) if promoted else (False, True))]
        configs += streams if _splits(base) else []
        below += [0] * len(streams) if _splits(base) else []
    return tabulate(configs, below, device)


def _splits(base: GemmConfig) -> bool:
    """Whether the K of such a block's tiles may be split. Partial sums of chunks of 32 columns are exchanged slowly: 51
    splits of such tiles took 13 % longer than predicted (``gemm_many_h100_tiles.json``), and none was the fastest."""
    fits = base.specialized and base.cluster == 1 and base.accumulator_registers <= SPLIT_REGISTERS
    return fits and not base.has_narrow_chunks


def tabulate(configs: Sequence[GemmConfig], group_below: Sequence[int], device: Device) -> CandidateTable:
    """A table of ``configs`` in their order, each with its ``group_below`` (:class:`CandidateTable`)."""

    def column(name: str) -> Ints:
        return np.array([getattr(c, name) for c in configs], dtype=np.int64)

    return CandidateTable(
        tuple(configs),
        column("block_m"),
        column("block_n"),
        column("block_k"),
        column("group_m"),
        np.array(group_below, dtype=np.int64),
        column("split_k"),
        column("split_tail").astype(bool),
        column("stream_k").astype(bool),
        column("swap").astype(bool),
        column("specialized").astype(bool),
        column("ctas_per_sm"),
        column("cluster"),
        column("launch_dependents").astype(bool),
        device.sm_count,
    )


def grid(t: CandidateTable, shape: Shape) -> Grid:
    """Lay every row's tiles over ``shape`` and say which rows are worth considering there.

    Not worth it: tiles that overhang the matrix by more than half, tiles far smaller than what fills the device, a tile
    order that equals another row's, K splits with an empty range, with fewer than :data:`MIN_SPLIT_ITERATIONS`
    K blocks in a range, of a whole matrix into more than two waves, or of a tail into at most half a wave, and streams
    where the last wave is full or a CTA's range has fewer K blocks than that.
    """
    m, n, k = shape
    rows, columns = np.where(t.swap, n, m), np.where(t.swap, m, n)
    row_tiles, column_tiles = -(-rows // t.block_m), -(-columns // t.block_n)
    tiles = row_tiles * column_tiles
    k_blocks = -(-k // t.block_k)
    m_cover, n_cover = round_up_to_power_of_two(m), round_up_to_power_of_two(n)
    row_cover, column_cover = np.where(t.swap, n_cover, m_cover), np.where(t.swap, m_cover, n_cover)
    one_wave = tiles * t.cluster <= t.sm_count
    resident = t.resident
    split = t.split_k > 1
    whole = np.where(split, np.where(t.split_tail, tiles // resident * resident, 0), tiles)
    whole = np.where(t.stream_k, np.maximum(tiles // resident - 1, 0) * resident, whole)
    split_units = (tiles - whole) * t.split_k
    per_split = -(-k_blocks // t.split_k)
    shortest = max(64, int(t.block_k.min())) if t.block_k.size else 64
    # The elements of a tile that is never far too small: 128 by 128, or as much of it as a narrow matrix fills.
    ample = np.clip(row_cover, 64, 128) * np.clip(column_cover, 16, 128)
    valid = (
        (~t.swap | (m <= SWAP_MAX_ROWS) | (t.block_m == UNTRANSPOSED_ROWS) | np.isin(t.block_n, WIDE_COLUMNS))
        & (t.block_m <= np.maximum(64, row_cover))
        & (t.block_n <= np.maximum(16, column_cover))
        & (t.block_n >= np.minimum(64, column_cover))
        & (t.block_m * t.block_n >= np.minimum(ample, rows * columns // (TILES_PER_SM * t.sm_count)))
        & (t.block_k <= max(shortest, round_up_to_power_of_two(k)))
        & (split | np.where(one_wave, t.group_m == 8, t.group_below < row_tiles))
        & (~split | t.split_tail | (split_units <= 2 * resident))
        # A split tail must fit into one wave, and fill more than half of it.
        & (~t.split_tail | ((whole > 0) & (split_units <= resident) & (2 * split_units > resident)))
        & (~t.split_tail | (whole <= MAX_WHOLE_WAVES * resident))
        & (~t.stream_k | ((tiles % resident > 0) & (tiles // resident <= MAX_WHOLE_WAVES)))
        & (~t.stream_k | ((tiles - whole) * k_blocks >= MIN_SPLIT_ITERATIONS * resident))
        & (~split | ((k_blocks // t.split_k >= MIN_SPLIT_ITERATIONS) & (-(-k_blocks // per_split) == t.split_k)))
    )
    return Grid(
        rows, columns, row_tiles, column_tiles, tiles, whole, np.minimum(t.group_m, row_tiles), k_blocks, valid
    )  # fmt: skip


def candidates(shape: Shape, dtype: str, device: Device, costs: CostTable | None = None) -> tuple[GemmConfig, ...]:
    """The configurations considered for ``shape``, in the order of :func:`table`."""
    t = table(dtype, device, costs)
    g = grid(t, shape)
    return tuple(replace(t.configs[i], group_m=int(g.group_m[i])) for i in np.flatnonzero(g.valid))


def round_up_to_power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
