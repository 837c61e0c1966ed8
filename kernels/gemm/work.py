"""What the candidates of the GEMM kernel ask of the device, for one shape: the input of
:mod:`warpplan.planner.predict.time_model`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.gemm.candidates import CandidateTable, Grid, grid, table
from warpplan.kernels.gemm.graph import loop_graph, sustained_ii
from warpplan.kernels.gemm.space import (
    ELEMENT_BYTES,
    RESULT_BYTES,
    ROW_ALIGNMENT_BYTES,
    WARP_GROUP,
    WIDE_COLUMNS,
    GemmConfig,
    Shape,
)
from warpplan.planner.errors import MissingCosts
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.costs import CostTable, OperationCost, Quantiles
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

Floats = NDArray[np.float64]

FIX_UP = "fix_up"
"""The cost of a stream's partial sums, without which no stream is ranked."""
RESIDUAL = "structure."
"""Prefix of the constants that calibrate one structure (:mod:`warpplan.planner.predict.time_model`)."""
ACCUMULATOR_BYTES = 4
SUMS_AT_ONCE, SLOTS_AT_ONCE = 64, 8
"""Partial sums that a thread loads at once, and of how many slots: those of :mod:`warpplan.kernels.device.stream_k`,
which this module cannot import where there is no Triton (compared in a test)."""
LINE_BYTES = 128
"""A cache line; rows of another length make every box row straddle two."""
L2_RESIDENT = 0.5
"""The part of L2 that operand strips can count on: it is two partitions, and lines that one fetched through the other
are held twice (seen as a fall of reuse from half the capacity on)."""


def family(config: GemmConfig) -> str:
    """The name under which constants of like blocks are calibrated."""
    kind = ("x2" if config.ctas_per_sm == 2 else "") + ("-promoted" if config.promoted else "")
    return f"{config.scheme}{config.consumer_warps}{kind}"


def structure(config: GemmConfig) -> str:
    c = config
    kind = ("-swap" if c.swap else "") + ("-promoted" if c.promoted else "") + ("-cluster" if c.cluster > 1 else "")
    return f"{family(c)}-{c.block_m}x{c.block_n}x{c.block_k}-d{c.depth}e{c.epilogue_split}{c.staging}{kind}"


def relatives(name: str) -> str:
    """What the names of structures that differ in ring or epilogue alone have in common."""
    return re.sub(r"-d\d+e\d+(own|ring)", "", name)


def calibrations(kernel: str, dtype: str, promoted: bool = False) -> tuple[str, ...]:
    """The names under which the time model of ``kernel`` may be calibrated, the closest first: fp8 has its own."""
    if ELEMENT_BYTES[dtype] > 1:
        return (kernel,)
    return (*((f"{kernel} promoted",) if promoted else ()), f"{kernel} fp8", kernel)


@lru_cache(maxsize=16)
def calibrated_constants(profile: Profile, names: tuple[str, ...], structures: tuple[str, ...]) -> Mapping[str, float]:
    """The constants of the first calibration of ``names`` that the profile has, without residuals where it is not the
    first name's own. A structure that it does not know has the residual of its nearest relatives, the same block with
    another ring or epilogue: most of what the model misses lies in the block."""
    found = next(((name, c) for name in names if (c := profile.calibration(name))), None)
    if found is None:
        return {}
    constants = {
        name: value for name, value in found[1].constants if found[0] == names[0] or not name.startswith(RESIDUAL)
    }
    known: dict[str, list[float]] = {}
    for name, value in constants.items():
        if name.startswith(RESIDUAL):
            known.setdefault(relatives(name), []).append(value)
    for name in structures:
        if (key := RESIDUAL + name) not in constants and (kin := known.get(relatives(key))):
            constants[key] = sum(kin) / len(kin)
    return constants


@dataclass(frozen=True, eq=False)
class SolvedTable:
    """The candidate table with every loop solved: float64 arrays, one element a row, cycles of one block.

    ``missing`` lists, row by row, the operations that the profile lacks; with any, the row's numbers are NaN.
    """

    table: CandidateTable
    families: tuple[str, ...]
    structures: tuple[str, ...]
    family: NDArray[np.int64]
    structure: NDArray[np.int64]
    ii_cycles: Floats
    load_bytes: Floats
    depth: Floats
    prologue_cycles: Floats
    epilogue_cycles: Floats
    drain_cycles: Floats
    fix_up_cycles: Floats
    thread_elements: Floats
    chunk_elements: Floats
    overlapped: Floats
    refilled: Floats
    dram_latency_cycles: Floats
    missing: tuple[tuple[str, ...], ...]

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Rows of which every operation was measured."""
        return np.array([not operations for operations in self.missing])


def solve_table(dtype: str, device: Device, costs: CostTable, t: CandidateTable | None = None) -> SolvedTable:
    """Solve each loop of ``t`` (by default, of every candidate) once. Raises :class:`MissingCosts` where the profile
    suffices for none."""
    t = table(dtype, device, costs) if t is None else t
    element = ELEMENT_BYTES[dtype]
    loops: dict[GemmConfig, Mapping[str, float]] = {}
    missing: dict[GemmConfig, tuple[str, ...]] = {}
    bases = [loop_of(c) for c in t.configs]
    for base in dict.fromkeys(bases):
        try:
            loops[base] = _loop(base, dtype, device, costs, element)
        except MissingCosts:
            missing[base] = _missing(base, dtype, device, costs, element)
    if not loops:
        raise MissingCosts(dict.fromkeys(name for names in missing.values() for name in names))
    unknown = dict.fromkeys(next(iter(loops.values())), math.nan)
    by_row = [loops.get(base, unknown) for base in bases]
    fix_ups = [_fix_up_cycles(config, costs) for config in t.configs]
    family_names = tuple(sorted({family(c) for c in t.configs}))
    structure_names = tuple(dict.fromkeys(structure(c) for c in t.configs))
    family_index = {name: i for i, name in enumerate(family_names)}
    structure_index = {name: i for i, name in enumerate(structure_names)}

    def column(name: str) -> Floats:
        return np.array([loop[name] for loop in by_row], dtype=np.float64)

    return SolvedTable(
        t,
        family_names,
        structure_names,
        np.array([family_index[family(c)] for c in t.configs], dtype=np.int64),
        np.array([structure_index[structure(c)] for c in t.configs], dtype=np.int64),
        column("ii"),
        column("load_bytes"),
        np.array([c.depth for c in t.configs], dtype=np.float64),
        column("prologue"),
        column("epilogue"),
        column("drain"),
        np.array([math.nan if cycles is None else cycles for cycles in fix_ups]),
        np.array([c.accumulator_registers for c in t.configs], dtype=np.float64),
        np.array([c.accumulator_registers / c.epilogue_split for c in t.configs], dtype=np.float64),
        np.array([c.scheme == "pingpong" or c.ctas_per_sm > 1 for c in t.configs], dtype=np.float64),
        np.array([not c.specialized for c in t.configs], dtype=np.float64),
        column("dram_latency"),
        tuple(
            missing.get(base) or ((FIX_UP,) if cycles is None else ())
            for base, cycles in zip(bases, fix_ups, strict=True)
        ),
    )


def _fix_up_cycles(config: GemmConfig, costs: CostTable) -> float | None:
    """Cycles from one CTA's last multiply of a part of a tile to the total in the registers of the tile's owner, by the
    tile's elements; 0 where K is no stream, ``None`` where it was not measured."""
    if not config.stream_k:
        return 0.0
    try:
        latency = costs.lookup(FIX_UP, config.block_m * config.block_n).latency
    except MissingCosts:
        return None
    return None if latency is None else latency.p50


def loop_of(config: GemmConfig) -> GemmConfig:
    """``config`` without what its loop does not depend on: candidates of one loop have the same."""
    return replace(config, swap=False, group_m=8, split_k=1, split_tail=False, stream_k=False, launch_dependents=False)


def _loop(config: GemmConfig, dtype: str, device: Device, costs: CostTable, element: int) -> dict[str, float]:
    ends = _ends(config, costs, element)
    return {
        "ii": float(sustained_ii(config, dtype, device, costs)),
        "load_bytes": config.loaded_bytes(element),
        **ends,
    }


def epilogue_cycles(config: GemmConfig, dtype: str, costs: CostTable) -> float:
    """What stands between a consumer's last multiply and its next tile. Raises :class:`MissingCosts`."""
    return _ends(config, costs, ELEMENT_BYTES[dtype])["epilogue"]


def _ends(config: GemmConfig, costs: CostTable, element: int) -> dict[str, float]:
    """What surrounds the main loop."""
    box = config.cta_rows * config.block_k * element
    load = costs.lookup("tma_load", box, source="l2")
    cold = costs.lookup("tma_load", box, source="dram")
    # A chunk leaves from registers to shared memory, measured for one warp group, then by TMA, which consumers share.
    chunk = config.consumer_rows * config.block_n // config.epilogue_split
    groups = config.consumer_warps // WARP_GROUP
    store = _latency(costs.lookup("epilogue_store", chunk // groups).latency, "epilogue_store")
    sharers = config.consumers if config.scheme == "cooperative" else 1
    flush = _latency(costs.lookup("tma_store", chunk * RESULT_BYTES * sharers).latency, "tma_store")
    # The last chunk drains under the next main loop, unless its bytes are a ring slot's or the loop is everybody's.
    waited = config.epilogue_split - (config.staging == "own" and config.specialized)
    return {
        "prologue": _latency(load.latency, "tma_load"),
        "dram_latency": _latency(cold.latency, "tma_load"),
        "epilogue": config.epilogue_split * store + waited * flush,
        "drain": flush,
    }


@dataclass(frozen=True)
class _UnmeasuredNoted(CostTable):
    """Notes what was never measured and answers with a cost of nothing, so that one reading finds all of it."""

    noted: dict[str, None] = field(default_factory=dict)

    def lookup(self, kind: str, size: int = 0, **text: str) -> OperationCost:
        try:
            return super().lookup(kind, size, **text)
        except MissingCosts as error:
            self.noted.update(dict.fromkeys(error.operations))
            nothing = Quantiles(0.0, 0.0, 0)
            return OperationCost(nothing, nothing, nothing)


def _missing(config: GemmConfig, dtype: str, device: Device, costs: CostTable, element: int) -> tuple[str, ...]:
    noting = _UnmeasuredNoted(costs.entries)
    for read in (lambda: loop_graph(config, dtype, device, noting), lambda: _ends(config, noting, element)):
        try:
            read()
        except MissingCosts as error:
            noting.noted.update(dict.fromkeys(error.operations))
    return tuple(noting.noted)


def _latency(measured: Quantiles | None, kind: str) -> float:
    if measured is None:
        raise MissingCosts([f"{kind} latency"])
    return measured.p50


def work(solved: SolvedTable, dtype: str, device: Device, shape: Shape, layout: str = "nt") -> tuple[DeviceWork, Grid]:
    """Every row of the table as :class:`DeviceWork` for ``shape``, and the grid that says which rows count."""
    t, element = solved.table, ELEMENT_BYTES[dtype]
    m, n, k = shape
    g = grid(t, shape)
    resident = t.resident.astype(np.float64)
    units = (g.whole_tiles + (g.tiles - g.whole_tiles) * t.split_k).astype(np.float64)
    blocks = np.minimum(units, resident)
    iterations = np.broadcast_to(g.k_blocks, units.shape).astype(np.float64)
    # The last range has a few K blocks more, which it multiplies while the others write their partial sums.
    per_split = np.ceil(iterations / t.split_k)
    whole_rounds = np.where(
        t.split_tail, g.whole_tiles // resident, np.where(t.split_k > 1, 0, np.ceil(units / resident))
    )
    split_rounds = np.where(t.split_k > 1, np.ceil((units - g.whole_tiles) / resident), 0)
    trips = whole_rounds * iterations + split_rounds * per_split
    blocks, length, stored, others = _streams(t, g, iterations, blocks, resident)
    whole_rounds = np.where(t.stream_k, g.whole_tiles // resident, whole_rounds)
    tile = (t.block_m * t.block_n).astype(np.float64)
    return (
        DeviceWork(
            flops=2.0 * m * n * k,
            families=solved.families,
            structures=solved.structures,
            family=solved.family,
            structure=solved.structure,
            executed_flops=2.0 * g.tiles * tile * iterations * t.block_k,
            loaded_bytes=g.tiles * t.cluster * iterations * solved.load_bytes,
            rounds=whole_rounds + np.where(t.stream_k, stored, split_rounds),
            trips=np.where(t.stream_k, whole_rounds * iterations + length, trips),
            iterations=np.where(
                whole_rounds > 0, iterations, np.where(t.stream_k, np.minimum(length, iterations), per_split)
            ),
            ii_cycles=solved.ii_cycles,
            load_bytes=solved.load_bytes,
            unaligned=_unaligned(t, layout, m, n, k, element),
            narrow=_narrow(t, layout, element),
            group_rows=np.minimum(t.group_m * t.block_m, np.where(t.swap, n, m)).astype(np.float64),
            slots_in_flight=solved.depth - 1.0,
            blocks_per_sm=np.ceil(blocks * t.cluster / t.sm_count),
            active_sms=np.minimum(blocks * t.cluster, t.sm_count),
            prologue_cycles=solved.prologue_cycles,
            epilogue_cycles=solved.epilogue_cycles,
            drain_cycles=solved.drain_cycles,
            plain_elements=solved.thread_elements * float(n * RESULT_BYTES % ROW_ALIGNMENT_BYTES != 0),
            overlapped=solved.overlapped,
            refilled=solved.refilled,
            dram_bytes=_dram_bytes(t, g, shape, element, device),
            dram_latency_cycles=solved.dram_latency_cycles,
            filled_bytes=_filled_bytes(t, g, element),
            split_k=t.split_k.astype(np.float64),
            split_rounds=split_rounds.astype(np.float64),
            reduced_bytes=np.where(t.split_k > 1, t.split_k * tile * ACCUMULATOR_BYTES, 0.0),
            reduction_trips=_reduction_trips(t, solved),
            fix_up_cycles=others * solved.fix_up_cycles,
            streamed=t.stream_k.astype(np.float64),
            launch_dependents=t.launch_dependents.astype(np.float64),
            early_part=np.clip((resident - blocks) / blocks, 0.0, 1.0),
        ),
        g,
    )


def _reduction_trips(t: CandidateTable, solved: SolvedTable) -> Floats:
    """How often a CTA that adds a split tile's partial sums waits for L2: once a group that it loads together."""
    pieces = np.maximum(1.0, solved.chunk_elements / SUMS_AT_ONCE)
    slots = np.clip(SUMS_AT_ONCE / solved.chunk_elements, 1, SLOTS_AT_ONCE)
    chunks = solved.thread_elements / solved.chunk_elements
    return np.asarray(chunks * pieces * np.ceil((t.split_k - 1) / np.floor(slots)))


def _streams(
    t: CandidateTable, g: Grid, iterations: Floats, blocks: Floats, resident: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """(CTAs, K blocks of the longest range, tiles that a CTA stores of its range, ranges of a tile beside its owner's):
    the most of each. Where K is no stream, ``blocks`` CTAs and 0.

    A range that touches T tiles stores T - 1, or the one: its first segment ends another CTA's tile.
    """
    streamed = (g.tiles - g.whole_tiles) * iterations
    ctas = np.where(t.stream_k, np.minimum(streamed, resident), blocks)
    length = np.where(t.stream_k, np.ceil(streamed / np.maximum(ctas, 1)), 0)
    stored = np.where(t.stream_k, np.maximum(np.ceil((length - 1) / iterations), 1), 0)
    others = np.where(t.stream_k, np.ceil((iterations - 1) / np.maximum(length, 1)), 0)
    return ctas, length, stored, others


def _unaligned(t: CandidateTable, layout: str, m: int, n: int, k: int, element: int) -> Floats:
    """The part of each row's loaded bytes that lies in matrix rows of no whole cache lines."""
    a = float((k if layout[0] == "n" else m) * element % LINE_BYTES != 0)
    b = float((k if layout[1] == "t" else n) * element % LINE_BYTES != 0)
    left, right = np.where(t.swap, b, a), np.where(t.swap, a, b)
    return np.asarray((t.block_m * left + t.block_n * right) / (t.block_m + t.block_n))


def _narrow(t: CandidateTable, layout: str, element: int) -> Floats:
    """How many bytes each row's boxes load less than if their rows were whole cache lines, as a part of what they load:
    the rows of a box of 32 columns of a matrix that lies by columns are half a line."""

    def beyond(columns: NDArray[np.int64]) -> NDArray[np.int64]:
        return -columns * element % LINE_BYTES // element

    # Of a wide tile, the first box has the largest power of two of its columns.
    main = np.where(np.isin(t.block_n, WIDE_COLUMNS), 2 ** np.floor(np.log2(t.block_n)).astype(np.int64), t.block_n)
    by_columns = np.where(t.swap, layout[0] == "t", layout[1] == "n")
    extra = np.where(by_columns, beyond(main) + np.where(t.block_n > main, beyond(t.block_n - main), 0), 0)
    return np.asarray(extra / (t.block_m + t.block_n))


def _filled_bytes(t: CandidateTable, g: Grid, element: int) -> Floats:
    """The bytes of all boxes that lie in rows beyond A's or B's last."""
    beyond_a = (g.row_tiles * t.block_m - g.rows) * g.column_tiles
    beyond_b = (g.column_tiles * t.block_n - g.columns) * g.row_tiles
    return np.asarray((beyond_a + beyond_b).astype(np.float64) * g.k_blocks * t.block_k * element)


def _dram_bytes(t: CandidateTable, g: Grid, shape: Shape, element: int, device: Device) -> Floats:
    """Compulsory traffic, plus what the tile order makes L2 forget.

    Tiles run in strips of ``group_m`` row tiles. A strip keeps its rows of A while it sweeps the columns of B, and
    every further strip reads B again. Each re-read reaches DRAM by the part that exceeds the resident L2.

    The CTAs of a stream are at different K blocks of their tiles: none finds what another has just read, and all that
    they load, but for the first time, reaches DRAM by the part of A and B that exceeds the resident L2.
    """
    _, _, k = shape
    resident = L2_RESIDENT * device.l2_bytes
    a_bytes = g.rows.astype(np.float64) * k * element
    b_bytes = g.columns.astype(np.float64) * k * element
    strips = np.ceil(g.row_tiles / g.group_m)
    strip_bytes = np.minimum(g.group_m * t.block_m, g.rows).astype(np.float64) * k * element
    waves = np.maximum(1.0, g.group_m * g.column_tiles / t.resident)
    forgotten_b = np.clip((b_bytes + strip_bytes) / resident - 1.0, 0.0, 1.0)
    forgotten_a = np.clip(strip_bytes / resident - 1.0, 0.0, 1.0)
    again = b_bytes * (strips - 1.0) * forgotten_b + a_bytes * (waves - 1.0) * forgotten_a
    streamed = (g.tiles - g.whole_tiles) * g.k_blocks * ((t.block_m + t.block_n) * t.block_k * element)
    forgotten = np.clip(1.0 - resident / (a_bytes + b_bytes), 0.0, 1.0)
    again += np.where(t.stream_k, np.maximum(streamed - a_bytes - b_bytes, 0.0) * forgotten, 0.0)
    c_bytes = g.rows.astype(np.float64) * g.columns * RESULT_BYTES
    return np.asarray(a_bytes + b_bytes + c_bytes + again)
