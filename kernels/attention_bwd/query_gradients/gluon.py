"""Attention backward for Hopper, the gradients of queries alone: what the plan calls ``dq="separate"``.

    P = exp(scale · Q · Kᵀ + mask - lse)        dS = P * (dO · Vᵀ - delta)        dQ = scale · dS · K

The sibling of the kernel of dK and dV with rows and keys exchanged: a unit of work is a tile of ``held`` query rows of
one head, whose Q and dO stay in shared memory while K and V come by TMA in blocks of ``columns`` keys. A CTA owns the
rows that it writes, so that every run gives the same bits; Q · Kᵀ and dO · Vᵀ are computed a second time. Packed
sequences and their statistics lie as they do there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.kernels.attention_bwd.space import ALIGNED_ROWS, AttentionBwdConfig
from warpplan.kernels.device.boxes import as_box, ragged_box
from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS, wait_for_previous_kernel
from warpplan.kernels.device.epilogue import accumulator_layout, shared_layout
from warpplan.kernels.device.groups import window_groups
from warpplan.kernels.device.rings import ring_barriers, wait_empty, wait_full
from warpplan.kernels.device.sequence_slots import find_sequence, sequence_rows
from warpplan.kernels.device.stream_k import opaque
from warpplan.kernels.device.tile_order import banded_tile
from warpplan.kernels.triton_compat import (
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    thread_barrier,
    tma_load,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ALIGNED = gl.constexpr(ALIGNED_ROWS)


@dataclass(frozen=True)
class QueryGradientBlock:
    """Compile-time facts: the plan, the head size ``width``, which sides of the mask's band are bounded, and at how
    many packed sequences a warp looks together: 0 where none are."""

    held: int
    columns: int
    width: int
    depth: int
    bounded_left: bool
    bounded_right: bool
    window: int
    gap: int


class HeldQueries(NamedTuple):
    """Q and dO of a unit, a ring of one slot. dQ leaves through Q."""

    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


class KeyBlocks(NamedTuple):
    """Blocks of K with those of V: a ring."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


class QueryExtents(NamedTuple):
    """``units`` of work, ``tiles`` of them for each of ``batch_heads`` query heads of all batches; ``heads`` of one,
    ``sharers`` of which share a key head; lengths in rows; row r sees keys r - ``high`` to r + ``low`` where the mask
    is bounded; ``head_group`` heads that run together; ``scale`` as it is and times log2 e. Of ``sequences`` that are
    packed as in the kernel of dK and dV, ``low`` and ``high`` are those of one with as many keys as queries."""

    q_starts: gl.tensor
    k_starts: gl.tensor
    sequences: gl.tensor
    units: gl.tensor
    tiles: gl.tensor
    batch_heads: gl.tensor
    heads: gl.tensor
    sharers: gl.tensor
    q_length: gl.tensor
    k_length: gl.tensor
    low: gl.tensor
    high: gl.tensor
    head_group: gl.tensor
    scale: gl.tensor
    log_scale: gl.tensor


class RowTile(NamedTuple):
    """Where a unit lies: its first row, where its statistics lie, the first key that one of its rows sees, and how many
    blocks of keys follow.

    Of packed sequences the row counts through all of them up to its own's ``q_end``, and so do ``k_first`` and
    ``k_end``; ``key`` counts from ``k_first``, and ``position`` is the key at which the first row stands."""

    batch: gl.tensor
    head: gl.tensor
    row: gl.tensor
    place: gl.tensor
    key: gl.tensor
    blocks: gl.tensor
    q_end: gl.tensor
    k_first: gl.tensor
    k_end: gl.tensor
    position: gl.tensor


class RowStatistics(NamedTuple):
    """Pointer to the log-sum-exps in powers of two [batch_heads, pitch], the deltas behind them; row pitch."""

    pointer: gl.tensor
    pitch: gl.tensor


@gluon.constexpr_function
def query_gradient_block(*fields):
    return QueryGradientBlock(*fields)


@gluon.jit
def locate(unit, extents, BLOCK: gl.constexpr):
    """Where a unit lies. Units count through bands of ``head_group`` heads, tile by tile; under a causal mask the last
    rows see most keys and come first."""
    if BLOCK.window:
        return locate_packed(unit, extents, BLOCK)
    else:
        line, tile = banded_tile(unit, extents.batch_heads, extents.tiles, extents.head_group, 1, 1)
        if BLOCK.bounded_right:
            tile = extents.tiles - 1 - tile
        row = tile * BLOCK.held
        first, blocks = key_blocks(row, extents.q_length - row, extents.k_length, extents, BLOCK)
        return RowTile(
            line // extents.heads, line % extents.heads, row, row, first, blocks, extents.q_length, 0,
            extents.k_length, row,
        )  # fmt: skip


@gluon.jit
def locate_packed(unit, extents, BLOCK: gl.constexpr):
    """The same of packed sequences, the last one first. A unit beyond its sequence's last row has none."""
    HELD: gl.constexpr = BLOCK.held
    head, tile = banded_tile(unit, extents.batch_heads, extents.tiles, opaque(extents.head_group), 1, 1)
    slot = extents.tiles - 1 - tile
    sequence = find_sequence(slot, extents.q_starts, extents.sequences, HELD, 1, BLOCK.window)
    q_first, q_end = sequence_rows(extents.q_starts, sequence, extents.q_length)
    k_first, k_end = sequence_rows(extents.k_starts, sequence, extents.k_length)
    row = gl.maximum(slot - (q_first // HELD + sequence), 0) * HELD
    left = q_end - q_first - row
    position = row + k_end - k_first - (q_end - q_first)
    first, blocks = key_blocks(position, left, k_end - k_first, extents, BLOCK)
    blocks = gl.where(left > 0, blocks, 0)
    place = (q_first & -ALIGNED) + sequence * BLOCK.gap + row
    return RowTile(0, head, q_first + row, place, first, blocks, q_end, k_first, k_end, position)


@gluon.jit
def key_blocks(position, left, k_length, extents, BLOCK: gl.constexpr):
    """(the first key that a tile's rows see, blocks of keys from there on) of a tile whose first row stands at key
    ``position``, with ``left`` rows from there on."""
    first = 0
    end = k_length
    if BLOCK.bounded_left:
        first = gl.maximum(position - extents.high, 0)
    if BLOCK.bounded_right:
        end = gl.minimum(position + gl.minimum(BLOCK.held, left) + extents.low, end)
    return first, gl.cdiv(gl.maximum(end - first, 0), BLOCK.columns)


@gluon.jit
def row_box(tile, BLOCK: gl.constexpr):
    """Coordinates of the tile in Q, dO and dQ."""
    if BLOCK.window:
        return ragged_box(tile.head, tile.row, tile.q_end)
    else:
        return [tile.batch, tile.head, tile.row, 0]


@gluon.jit
def key_box(tile, head, key, BLOCK: gl.constexpr):
    """Coordinates in K and V of the block at ``key``."""
    if BLOCK.window:
        return ragged_box(head, tile.k_first + key, tile.k_end)
    else:
        return [tile.batch, head, key, 0]


@gluon.jit
def producer(q_desc, k_desc, v_desc, do_desc, held, rings, extents, BLOCK: gl.constexpr):
    ROW_BYTES: gl.constexpr = q_desc.block_type.nbytes + do_desc.block_type.nbytes
    KEY_BYTES: gl.constexpr = k_desc.block_type.nbytes + v_desc.block_type.nbytes
    index = 0
    done = 0
    for unit in range(gl.program_id(0), extents.units, gl.num_programs(0)):
        tile = locate(unit, extents, BLOCK)
        wait_empty(held.empty, done, 1)
        full = held.full.index(0)
        mbarrier.expect(full, ROW_BYTES)
        tma_load(q_desc, row_box(tile, BLOCK), full, as_box(held.q, q_desc))
        tma_load(do_desc, row_box(tile, BLOCK), full, as_box(held.do, do_desc))
        key_head = tile.head // extents.sharers
        for i in range(tile.blocks):
            key = tile.key + i * BLOCK.columns
            slot = index % BLOCK.depth
            wait_empty(rings.empty, index, BLOCK.depth)
            full = rings.full.index(slot)
            mbarrier.expect(full, KEY_BYTES)
            tma_load(k_desc, key_box(tile, key_head, key, BLOCK), full, as_box(rings.k.index(slot), k_desc))
            tma_load(v_desc, key_box(tile, key_head, key, BLOCK), full, as_box(rings.v.index(slot), v_desc))
            index += 1
        done += 1  # noqa: SIM113


@gluon.jit
def consumer(dq_desc, statistics, held, rings, extents, BLOCK: gl.constexpr):
    ROWS: gl.constexpr = BLOCK.held
    D: gl.constexpr = BLOCK.width
    GRADIENT: gl.constexpr = accumulator_layout(D, gl.num_warps())
    SCORES: gl.constexpr = accumulator_layout(BLOCK.columns, gl.num_warps())
    index = 0
    done = 0
    for unit in range(gl.program_id(0), extents.units, gl.num_programs(0)):
        tile = locate(unit, extents, BLOCK)
        line = tile.batch * extents.heads + tile.head
        r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
        places = statistics.pointer + gl.cast(line, gl.int64) * statistics.pitch + tile.place + r
        lse = gl.load(places, mask=r < tile.q_end - tile.row, other=0.0)
        places += gl.cast(extents.batch_heads, gl.int64) * statistics.pitch
        delta = gl.load(places, mask=r < tile.q_end - tile.row, other=0.0)
        wait_full(held.full, done, 1)
        dq = gl.zeros([ROWS, D], gl.float32, GRADIENT)
        for i in range(tile.blocks):
            key = tile.key + i * BLOCK.columns
            dq = add_keys(dq, lse, delta, tile, key, index, held, rings, extents, BLOCK)
            index += 1
        store_queries(dq * extents.scale, tile, held, dq_desc, BLOCK)
        mbarrier.arrive(held.empty.index(0), count=1)
        done += 1  # noqa: SIM113


@gluon.jit
def add_keys(dq, lse, delta, tile, key, index, held, rings, extents, BLOCK: gl.constexpr):
    """Add a block of keys to dQ."""
    ROWS: gl.constexpr = BLOCK.held
    COLUMNS: gl.constexpr = BLOCK.columns
    SCORES: gl.constexpr = accumulator_layout(COLUMNS, gl.num_warps())
    GRADIENT: gl.constexpr = accumulator_layout(BLOCK.width, gl.num_warps())
    slot = index % BLOCK.depth
    empty = gl.zeros([ROWS, COLUMNS], gl.float32, SCORES)
    k = rings.k.index(slot)
    v = rings.v.index(slot)
    wait_full(rings.full, index, BLOCK.depth)
    scores = warpgroup_mma(held.q, k.permute((1, 0)), empty, use_acc=False, is_async=True)
    dp = warpgroup_mma(held.do, v.permute((1, 0)), empty, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(num_outstanding=1, deps=[scores])
    if sticks_out(tile, key, extents, BLOCK):
        scores = masked(scores, tile, key, extents, BLOCK)
    weights = gl.exp2(scores * extents.log_scale - lse[:, None])
    dp = warpgroup_mma_wait(num_outstanding=0, deps=[dp])
    slopes = (weights * (dp - delta[:, None])).to(k.dtype)
    operand = gl.convert_layout(slopes, gl.DotOperandLayout(0, GRADIENT, 2))
    dq = warpgroup_mma(operand, k, dq, is_async=True)
    dq = warpgroup_mma_wait(num_outstanding=0, deps=[dq])
    mbarrier.arrive(rings.empty.index(slot), count=1)
    return dq


@gluon.jit
def sticks_out(tile, key, extents, BLOCK: gl.constexpr):
    """Whether some of a block's keys are hidden from some of the tile's rows."""
    found = key + BLOCK.columns > tile.k_end - tile.k_first
    if BLOCK.bounded_left:
        found = found | (key < tile.position + BLOCK.held - 1 - extents.high)
    if BLOCK.bounded_right:
        found = found | (key + BLOCK.columns - 1 > tile.position + extents.low)
    return found


@gluon.jit
def masked(scores, tile, key, extents, BLOCK: gl.constexpr):
    """Minus infinity where a row does not see a key, in groups of columns as the forward kernel's ``masked``."""
    GROUPS: gl.constexpr = BLOCK.columns // 8
    parts = scores.reshape([scores.shape[0], GROUPS, 8])
    LAYOUT: gl.constexpr = parts.type.layout
    r = tile.position - key + gl.arange(0, BLOCK.held, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    within = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    within = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [within], dtype=gl.int32, is_pure=False, pack=1)
    group = gl.arange(0, GROUPS, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT))) * 8
    c = group[None, :, None] + within[None, None, :]
    seen = c < tile.k_end - tile.k_first - key
    if BLOCK.bounded_left:
        seen = seen & (c >= (r - extents.high)[:, None, None])
    if BLOCK.bounded_right:
        seen = seen & (c <= (r + extents.low)[:, None, None])
    found = gl.where(seen, parts, float("-inf")).reshape([scores.shape[0], BLOCK.columns])
    return gl.convert_layout(found, scores.type.layout, assert_trivial=True)


@gluon.jit
def store_queries(dq, tile, held, dq_desc, BLOCK: gl.constexpr):
    """Send dQ to where it belongs, through the bytes of Q, which no product reads any more."""
    thread_barrier()
    held.q.store(dq.to(held.q.dtype))
    fence_async_shared()
    thread_barrier()
    tma_store(dq_desc, row_box(tile, BLOCK), as_box(held.q, dq_desc))
    tma_store_wait(0)
    thread_barrier()


@gluon.jit
def allocate_queries(dtype: gl.constexpr, BLOCK: gl.constexpr):
    ROWS: gl.constexpr = BLOCK.held
    D: gl.constexpr = BLOCK.width
    LAYOUT: gl.constexpr = shared_layout((ROWS, D), dtype)
    q = gl.allocate_shared_memory(dtype, [ROWS, D], LAYOUT)
    do = gl.allocate_shared_memory(dtype, [ROWS, D], LAYOUT)
    full, empty = ring_barriers(1, 1)
    return HeldQueries(q, do, full, empty)


@gluon.jit
def allocate_blocks(dtype: gl.constexpr, BLOCK: gl.constexpr):
    COLUMNS: gl.constexpr = BLOCK.columns
    D: gl.constexpr = BLOCK.width
    DEPTH: gl.constexpr = BLOCK.depth
    LAYOUT: gl.constexpr = shared_layout((COLUMNS, D), dtype)
    k = gl.allocate_shared_memory(dtype, [DEPTH, COLUMNS, D], LAYOUT)
    v = gl.allocate_shared_memory(dtype, [DEPTH, COLUMNS, D], LAYOUT)
    full, empty = ring_barriers(DEPTH, 1)
    return KeyBlocks(k, v, full, empty)


RUNTIME_INTEGERS = [
    "PITCH", "SEQUENCES", "UNITS", "TILES", "BATCH_HEADS", "HEADS", "SHARERS", "Q_LENGTH", "K_LENGTH", "LOW", "HIGH",
    "HEAD_GROUP",
]  # fmt: skip
STARTS = ("q_starts", "k_starts")


@gluon.jit(do_not_specialize=[*RUNTIME_INTEGERS, "SCALE", "LOG_SCALE"])
def query_gradients_kernel(
    q_desc,
    k_desc,
    v_desc,
    do_desc,
    dq_desc,
    statistics,
    q_starts,
    k_starts,
    PITCH,
    SEQUENCES,
    UNITS,
    TILES,
    BATCH_HEADS,
    HEADS,
    SHARERS,
    Q_LENGTH,
    K_LENGTH,
    LOW,
    HIGH,
    HEAD_GROUP,
    SCALE,
    LOG_SCALE,
    HELD: gl.constexpr,
    COLUMNS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    DEPTH: gl.constexpr,
    BOUNDED_LEFT: gl.constexpr,
    BOUNDED_RIGHT: gl.constexpr,
    WINDOW: gl.constexpr,
    GAP: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):
    """Descriptors of [batch, heads, length, HEAD_DIM]; ``statistics`` points to fp32 [2 · BATCH_HEADS, PITCH], the
    log-sum-exps in powers of two, then the deltas. The launch's ``num_warps`` are the consumer's. Packed sequences as
    in the kernel of dK and dV."""
    BLOCK: gl.constexpr = query_gradient_block(HELD, COLUMNS, HEAD_DIM, DEPTH, BOUNDED_LEFT, BOUNDED_RIGHT, WINDOW, GAP)
    held = allocate_queries(q_desc.dtype, BLOCK)
    rings = allocate_blocks(k_desc.dtype, BLOCK)
    extents = QueryExtents(
        q_starts, k_starts, SEQUENCES, UNITS, TILES, BATCH_HEADS, HEADS, SHARERS, Q_LENGTH, K_LENGTH, LOW, HIGH,
        HEAD_GROUP, SCALE, LOG_SCALE,
    )  # fmt: skip
    rows = RowStatistics(statistics, PITCH)
    wait_for_previous_kernel()
    gl.warp_specialize(
        [
            (consumer, (dq_desc, rows, held, rings, extents, BLOCK)),
            (producer, (q_desc, k_desc, v_desc, do_desc, held, rings, extents, BLOCK)),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )


TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16}
"""Triton's short names of element types."""


def descriptor_boxes(config: AttentionBwdConfig) -> dict[str, tuple[int, ...]]:
    """The TMA boxes of each descriptor, in elements: rows and keys of the plan change places."""
    held, blocks = config.box(config.keys), config.box(config.rows)
    return {"q_desc": held, "k_desc": blocks, "v_desc": blocks, "do_desc": held, "dq_desc": held}


def constants(
    config: AttentionBwdConfig, bounded_left: bool, bounded_right: bool, sequences: int = 1
) -> dict[str, object]:
    """The kernel's constexprs; ``sequences`` are those that are packed."""
    return {
        "HELD": config.keys,
        "COLUMNS": config.rows,
        "HEAD_DIM": config.head_dim,
        "DEPTH": config.depth,
        "BOUNDED_LEFT": bounded_left,
        "BOUNDED_RIGHT": bounded_right or config.packed,
        "WINDOW": window_groups(sequences) if config.packed else 0,
        "GAP": config.gap_rows,
        "PRODUCER_REGISTERS": config.producer_registers,
    }


def launch_options(config: AttentionBwdConfig) -> dict[str, int]:
    return {"num_warps": config.consumer_warps, "num_stages": 1, "maxnreg": config.max_registers, **LAUNCH_OPTIONS}


def signature(
    config: AttentionBwdConfig, element: str, bounded_left: bool, bounded_right: bool, sequences: int = 1
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    types = {
        name: f"tensordesc<{element}{list(box)},{shared_layout(box, TYPES[element])!r}>"
        for name, box in descriptor_boxes(config).items()
    }
    types |= dict.fromkeys(RUNTIME_INTEGERS, "i32") | {"SCALE": "fp32", "LOG_SCALE": "fp32", "statistics": "*fp32"}
    values = constants(config, bounded_left, bounded_right, sequences)
    if config.packed:
        return types | dict.fromkeys(STARTS, "*i32"), values, ["statistics", *STARTS]
    return types, values | dict.fromkeys(STARTS), ["statistics"]
