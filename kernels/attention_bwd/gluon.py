"""Attention backward for Hopper, the gradients of keys and values (and of queries by reduction): one Gluon source.

    P = exp(scale · Q · Kᵀ + mask - lse)        dV = Pᵀ · dO        dP = dO · Vᵀ
    dS = P * (dP - delta)                       dK = scale · dSᵀ · Q        dQ = scale · dS · K

with ``lse`` the log-sum-exp of the forward pass and ``delta`` the row sums of dO * O, as FlashAttention-2 has it (Dao
2023, arXiv 2307.08691) and FlashAttention-3 runs it on Hopper (Shah et al. 2024, arXiv 2407.08608). A *unit* of work is
a tile of ``keys`` of one key head. One warp, the producer, copies its K and V by TMA once, and then Q with ``lse`` and
dO with ``delta``, block by block of ``rows`` queries, for each query head that shares the key head in turn, so that dK
and dV are summed in one order always. CTA p of G takes units p, p + G, p + 2G, …

The consumer, a warp group for each 64 keys, computes the transposes Sᵀ = K · Qᵀ and dPᵀ = V · dOᵀ: then Pᵀ and dSᵀ are
in registers as wgmma takes its left operand, and dV and dK stay in registers until the unit ends. For dQ, which sums
over keys, dSᵀ goes through shared memory, and each block's product is added to an fp32 matrix by TMA reduction: in no
fixed order of units, so that the last bits of dQ may differ from run to run. Without ``reduces`` it is left out, and
:mod:`~warpplan.kernels.attention_bwd.query_gradients` computes dQ.

The mask is that of the forward kernel: a band, the last query at the last key. Blocks of rows that see no key of the
tile are skipped. TMA reads zeros behind the end of every operand: a row of zeros in dO and ``delta`` adds nothing.

Sequences of unlike lengths lie *packed* one behind the other, [rows, heads, D], as in the forward kernel: operands and
dK and dV have ragged descriptors, and a unit finds its sequence by :mod:`warpplan.kernels.device.sequence_slots`. What
has a block's rows but is no operand, the statistics and the fp32 dQ, lies *spread*: sequence s begins at row
``q_starts[s]`` rounded down to 4, and ``GAP`` rows more for each sequence before it. So it begins on 16 bytes, and what
a block has beyond its sequence's end falls into a gap, where weights are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.kernels.attention_bwd.space import ALIGNED_ROWS, AttentionBwdConfig
from warpplan.kernels.device.boxes import as_box, ragged_box
from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS, wait_for_previous_kernel
from warpplan.kernels.device.epilogue import accumulator_layout, shared_layout
from warpplan.kernels.device.groups import window_groups
from warpplan.kernels.device.rings import init_ring, wait_empty, wait_full
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
    tma_reduce_add,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)

FAR = gl.constexpr(1 << 30)
"""More rows than there are, and more than a window has; twice as many are still an int32."""
ALIGNED = gl.constexpr(ALIGNED_ROWS)


@dataclass(frozen=True)
class KeyGradientBlock:
    """Compile-time facts: the plan, the head size ``width``, which sides of the mask's band are bounded, the left one
    never alone, and at how many packed sequences a warp looks together: 0 where none are."""

    keys: int
    rows: int
    width: int
    depth: int
    ds_in_registers: bool
    reduces: bool
    bounded_left: bool
    bounded_right: bool
    window: int
    gap: int


class HeldKeys(NamedTuple):
    """K and V of a unit, a ring of one slot. dK and dV leave through them."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


class RowRings(NamedTuple):
    """Blocks of Q with log-sum-exps, and of dO with deltas, in rings of their own: dO is let go before Q."""

    q: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    do_full: gl.shared_memory_descriptor
    do_empty: gl.shared_memory_descriptor


class GradientExtents(NamedTuple):
    """``units`` of work, ``tiles`` of them for each of ``key_heads`` of all batches; ``kv_heads`` of one, each shared
    by ``sharers`` query heads; lengths in rows; the rows that see key k are those from k - ``low`` to k + ``high``
    where the mask is bounded; ``head_group`` key heads that run together; ``scale`` as it is and times log2 e. What the
    host can compute it does: a kernel's argument takes no register, a number made of two of them does.

    Of ``sequences`` that are packed, ``q_starts`` and ``k_starts`` point to one 32-bit row number more than there are
    of them; the lengths are those of all, and ``low`` and ``high`` those of a sequence with as many keys as queries."""

    q_starts: gl.tensor
    k_starts: gl.tensor
    sequences: gl.tensor
    units: gl.tensor
    tiles: gl.tensor
    key_heads: gl.tensor
    kv_heads: gl.tensor
    sharers: gl.tensor
    q_length: gl.tensor
    k_length: gl.tensor
    low: gl.tensor
    high: gl.tensor
    head_group: gl.tensor
    scale: gl.tensor
    log_scale: gl.tensor


class KeyTile(NamedTuple):
    """Where a unit lies: its first key, the first query row that sees one of its keys, how many blocks of rows
    follow from there, and the end of the rows that do.

    Of packed sequences ``key`` counts through all of them up to its own's ``k_end``, the rows as they lie spread:
    ``shift`` further on in Q and dO, up to ``q_end``. There are ``left`` keys from ``key`` on, whose first one rows
    from ``seen_from`` on see."""

    batch: gl.tensor
    head: gl.tensor
    key: gl.tensor
    row: gl.tensor
    blocks: gl.tensor
    end: gl.tensor
    k_end: gl.tensor
    q_end: gl.tensor
    shift: gl.tensor
    left: gl.tensor
    seen_from: gl.tensor


class GradientOutput(NamedTuple):
    """TMA descriptors of dK, dV and the fp32 dQ, and the shared memory that dSᵀ and dQ pass through."""

    dk: gl.tensor
    dv: gl.tensor
    dq: gl.tensor
    ds: gl.shared_memory_descriptor
    staging: gl.shared_memory_descriptor


@gluon.constexpr_function
def key_gradient_block(*fields):
    return KeyGradientBlock(*fields)


@gluon.constexpr_function
def query_layout(rows, width, warps):
    """Where a wgmma leaves a block of dQ: warp groups that rows do not occupy share out the columns."""
    down = min(rows // 16, warps)
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[down, warps // down], instr_shape=[16, width * down // warps, 16]
    )


@gluon.constexpr_function
def vector_layout():
    return gl.SwizzledSharedLayout(1, 1, 1, [0])


@gluon.jit
def locate(unit, extents, BLOCK: gl.constexpr):
    """Where a unit lies. Units count through bands of ``head_group`` key heads, tile by tile; under a causal mask the
    first tiles are seen by most rows, so that the longest come first."""
    if BLOCK.window:
        return locate_packed(unit, extents, BLOCK)
    else:
        key_head, tile = banded_tile(unit, extents.key_heads, extents.tiles, extents.head_group, 1, 1)
        key = tile * BLOCK.keys
        first = first_row(key - extents.low, BLOCK)
        blocks = row_blocks(key, first, extents.q_length, extents.k_length, extents.high, BLOCK)
        batch = key_head // extents.kv_heads
        return KeyTile(
            batch, key_head % extents.kv_heads, key, first, blocks, first + blocks * BLOCK.rows, 0, 0, 0, 0, 0
        )


@gluon.jit
def locate_packed(unit, extents, BLOCK: gl.constexpr):
    """The same of packed sequences, one after the other in a band. A unit beyond its sequence's last tile has no keys
    and no blocks."""
    KEYS: gl.constexpr = BLOCK.keys
    # Units of a band are counted anew: kept over the loop they would spill.
    head, slot = banded_tile(unit, extents.key_heads, extents.tiles, opaque(extents.head_group), 1, 1)
    sequence = find_sequence(slot, extents.k_starts, extents.sequences, KEYS, 1, BLOCK.window)
    k_first, k_end = sequence_rows(extents.k_starts, sequence, extents.k_length)
    q_first, q_end = sequence_rows(extents.q_starts, sequence, extents.q_length)
    key = gl.maximum(slot - (k_first // KEYS + sequence), 0) * KEYS
    more = k_end - k_first - (q_end - q_first)
    seen_from = key - (extents.low + more)
    first = first_row(seen_from, BLOCK)
    left = k_end - k_first - key
    blocks = row_blocks(key, first, q_end - q_first, k_end - k_first, extents.high - more, BLOCK)
    blocks = gl.where(left > 0, blocks, 0)
    place = (q_first & -ALIGNED) + sequence * BLOCK.gap
    row = place + first
    return KeyTile(
        0, head, k_first + key, row, blocks, row + blocks * BLOCK.rows, k_end, q_end, q_first - place, left,
        place + seen_from,
    )  # fmt: skip


@gluon.jit
def first_row(seen_from, BLOCK: gl.constexpr):
    """The first query row that sees a key of a tile whose first key is seen from ``seen_from`` on, or one of the few
    before it: their statistics must begin on 16 bytes (``PITCH`` of the launch), or TMA stops the kernel with an
    illegal instruction."""
    row = 0
    if BLOCK.bounded_right:
        row = gl.maximum(seen_from, 0) & -ALIGNED
    return row


@gluon.jit
def row_blocks(key, first, q_length, k_length, high, BLOCK: gl.constexpr):
    """Blocks of rows from ``first`` on that see a key of the tile at ``key``, of a sequence of these lengths."""
    end = q_length
    if BLOCK.bounded_left:
        last_key = gl.minimum(key + BLOCK.keys, k_length) - 1
        end = gl.minimum(last_key + high + 1, end)
    return gl.cdiv(gl.maximum(end - first, 0), BLOCK.rows)


@gluon.jit
def first_seeing(tile, extents, BLOCK: gl.constexpr):
    """The row from which on the tile's first key is seen."""
    if BLOCK.window:
        return tile.seen_from
    else:
        return tile.key - extents.low


@gluon.jit
def keys_left(tile, extents, BLOCK: gl.constexpr):
    """Keys from the tile's first one on."""
    if BLOCK.window:
        return tile.left
    else:
        return extents.k_length - tile.key


@gluon.jit
def key_box(tile, head, BLOCK: gl.constexpr):
    """Coordinates of the tile in K, V, dK and dV."""
    if BLOCK.window:
        return ragged_box(head, tile.key, tile.k_end)
    else:
        return [tile.batch, head, tile.key, 0]


@gluon.jit
def row_box(tile, head, row, BLOCK: gl.constexpr):
    """Coordinates in Q and dO of the block at ``row``."""
    if BLOCK.window:
        return ragged_box(head, tile.shift + row, tile.q_end)
    else:
        return [tile.batch, head, row, 0]


@gluon.jit
def producer(q_desc, k_desc, v_desc, do_desc, statistics, held, rings, extents, BLOCK: gl.constexpr):
    KEY_BYTES: gl.constexpr = k_desc.block_type.nbytes + v_desc.block_type.nbytes
    index = 0
    done = 0
    for unit in range(gl.program_id(0), extents.units, gl.num_programs(0)):
        tile = locate(unit, extents, BLOCK)
        wait_empty(held.empty, done, 1)
        full = held.full.index(0)
        mbarrier.expect(full, KEY_BYTES)
        tma_load(k_desc, key_box(tile, tile.head, BLOCK), full, as_box(held.k, k_desc))
        tma_load(v_desc, key_box(tile, tile.head, BLOCK), full, as_box(held.v, v_desc))
        for sharer in range(extents.sharers):
            head = tile.head * extents.sharers + sharer
            line = tile.batch * extents.kv_heads * extents.sharers + head
            lines = extents.key_heads * extents.sharers
            for i in range(tile.blocks):
                row = tile.row + i * BLOCK.rows
                slot = index % BLOCK.depth
                box = row_box(tile, head, row, BLOCK)
                wait_empty(rings.q_empty, index, BLOCK.depth)
                load_rows(q_desc, statistics, box, line, row, rings.q, rings.lse, rings.q_full, slot)
                wait_empty(rings.do_empty, index, BLOCK.depth)
                load_rows(do_desc, statistics, box, lines + line, row, rings.do, rings.delta, rings.do_full, slot)
                index += 1
        done += 1  # noqa: SIM113


@gluon.jit
def load_rows(desc, statistics, box, line, row, tiles, vectors, full, slot):
    """Copy the block of rows at ``box`` and what the ``line`` of the statistics has for them."""
    BYTES: gl.constexpr = desc.block_type.nbytes + statistics.block_type.nbytes
    mbarrier.expect(full.index(slot), BYTES)
    tma_load(desc, box, full.index(slot), as_box(tiles.index(slot), desc))
    tma_load(statistics, [line, row], full.index(slot), as_box(vectors.index(slot), statistics))


@gluon.jit
def consumer(out, held, rings, extents, BLOCK: gl.constexpr):
    KEYS: gl.constexpr = BLOCK.keys
    D: gl.constexpr = BLOCK.width
    GRADIENT: gl.constexpr = accumulator_layout(D, gl.num_warps())
    first = 0
    for unit in range(gl.program_id(0), extents.units, gl.num_programs(0)):
        tile = locate(unit, extents, BLOCK)
        # (How many units came before is not kept either.)
        wait_full(held.full, unit // gl.num_programs(0), 1)
        dk = gl.zeros([KEYS, D], gl.float32, GRADIENT)
        dv = gl.zeros([KEYS, D], gl.float32, GRADIENT)
        # One loop over the blocks of all sharers: in a nest of two ptxas keeps more registers. It counts from 0: with
        # range(first, …) Triton 3.6.0 takes the carried ``first`` for its initial value (found by playing, 2026-11).
        line = (tile.batch * extents.kv_heads + tile.head) * extents.sharers
        row = tile.row
        for i in range(extents.sharers * tile.blocks):
            dk, dv = add_block(dk, dv, tile, line, row, first + i, out, held, rings, extents, BLOCK)
            row += BLOCK.rows
            if row >= tile.end:
                row = begin_again(tile, extents, BLOCK)
                line += 1
        # Located again from a number that ptxas cannot trace: what is not kept over the loop leaves registers to it.
        again = locate(opaque(unit), extents, BLOCK)
        store_gradients(dk * extents.scale, dv, again, held, out, BLOCK)
        first += extents.sharers * tile.blocks
        mbarrier.arrive(held.empty.index(0), count=1)
    tma_store_wait(0)


@gluon.jit
def begin_again(tile, extents, BLOCK: gl.constexpr):
    """The first row of the tile, for the next sharer."""
    if BLOCK.window:
        return tile.row
    else:
        # Computed anew, and hidden from ptxas, which would keep it over the loop.
        return first_row(opaque(tile.key) - extents.low, BLOCK)


@gluon.jit
def multiply_rows(keys, slots, full, index, BLOCK: gl.constexpr):
    """Issue K · Qᵀ, or V · dOᵀ, of ring index ``index``."""
    KEYS: gl.constexpr = BLOCK.keys
    ROWS: gl.constexpr = BLOCK.rows
    empty = gl.zeros([KEYS, ROWS], gl.float32, accumulator_layout(ROWS, gl.num_warps()))
    wait_full(full, index, BLOCK.depth)
    rows = slots.index(index % BLOCK.depth).permute((1, 0))
    return warpgroup_mma(keys, rows, empty, use_acc=False, is_async=True)


@gluon.jit
def add_block(dk, dv, tile, line, row, index, out, held, rings, extents, BLOCK: gl.constexpr):
    """Add a block of rows to dK and dV, and its product with the tile's keys to dQ."""
    SCORES: gl.constexpr = accumulator_layout(BLOCK.rows, gl.num_warps())
    GRADIENT: gl.constexpr = accumulator_layout(BLOCK.width, gl.num_warps())
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, GRADIENT, 2)
    slot = index % BLOCK.depth
    scores = multiply_rows(held.k, rings.q, rings.q_full, index, BLOCK)
    dp = multiply_rows(held.v, rings.do, rings.do_full, index, BLOCK)
    scores = warpgroup_mma_wait(num_outstanding=1, deps=[scores])
    weights = weigh(scores, rings.lse.index(slot), tile, row, extents, BLOCK)
    p = gl.convert_layout(weights.to(rings.q.dtype), OPERAND)
    dp = warpgroup_mma_wait(num_outstanding=0, deps=[dp])
    dv = warpgroup_mma(p, rings.do.index(slot), dv, is_async=True)
    delta = rings.delta.index(slot).load(gl.SliceLayout(0, SCORES))
    slopes = (weights * (dp - delta[None, :])).to(rings.q.dtype)
    if BLOCK.reduces:
        # The reduction before has read its bytes, and the product before its slopes in every warp: each had waited for
        # it when the barrier of ``reduce_queries`` was passed.
        tma_store_wait(0)
        out.ds.store(slopes)
        fence_async_shared()
        thread_barrier()
    if BLOCK.ds_in_registers:
        dk = warpgroup_mma(gl.convert_layout(slopes, OPERAND), rings.q.index(slot), dk, is_async=True)
    else:
        dk = warpgroup_mma(out.ds, rings.q.index(slot), dk, is_async=True)
    # Waiting here, not after dQ's product was issued, leaves that the registers of P.
    dv = warpgroup_mma_wait(num_outstanding=1, deps=[dv])
    mbarrier.arrive(rings.do_empty.index(slot), count=1)
    if BLOCK.reduces:
        dq = multiply_slopes(held.k, out.ds, BLOCK)
        dk = warpgroup_mma_wait(num_outstanding=1, deps=[dk])
        mbarrier.arrive(rings.q_empty.index(slot), count=1)
        reduce_queries(warpgroup_mma_wait(num_outstanding=0, deps=[dq]), line, row, out)
    else:
        dk = warpgroup_mma_wait(num_outstanding=0, deps=[dk])
        mbarrier.arrive(rings.q_empty.index(slot), count=1)
    return dk, dv


@gluon.jit
def reduce_queries(dq, line, row, out):
    """Add a block to the fp32 dQ."""
    out.staging.store(dq)
    fence_async_shared()
    thread_barrier()
    tma_reduce_add(out.dq, [line, row, 0], as_box(out.staging, out.dq))


@gluon.jit
def multiply_slopes(k, ds, BLOCK: gl.constexpr):
    """Issue dS · K of the tile's keys."""
    ROWS: gl.constexpr = BLOCK.rows
    D: gl.constexpr = BLOCK.width
    LAYOUT: gl.constexpr = query_layout(ROWS, D, gl.num_warps())
    empty = gl.zeros([ROWS, D], gl.float32, LAYOUT)
    return warpgroup_mma(ds.permute((1, 0)), k, empty, use_acc=False, is_async=True)


@gluon.jit
def weigh(scores, lse, tile, row, extents, BLOCK: gl.constexpr):
    """Pᵀ of a block: keys down, rows across; ``lse`` in powers of two, infinite for a row that sees no key."""
    LAYOUT: gl.constexpr = accumulator_layout(BLOCK.rows, gl.num_warps())
    if sticks_out(tile, row, extents, BLOCK):
        scores = masked(scores, tile, row, extents, BLOCK)
    return gl.exp2(scores * extents.log_scale - lse.load(gl.SliceLayout(0, LAYOUT))[None, :])


@gluon.jit
def sticks_out(tile, row, extents, BLOCK: gl.constexpr):
    """Whether some of the tile's keys are hidden from some of a block's rows."""
    found = keys_left(tile, extents, BLOCK) < BLOCK.keys
    if BLOCK.bounded_left:
        found = found | (row + BLOCK.rows - 1 > first_seeing(tile, extents, BLOCK) + (extents.low + extents.high))
    if BLOCK.bounded_right:
        found = found | (row < first_seeing(tile, extents, BLOCK) + BLOCK.keys - 1)
    return found


@gluon.jit
def masked(scores, tile, row, extents, BLOCK: gl.constexpr):
    """Minus infinity where a row (across) does not see a key (down).

    A thread's columns come in groups of 8, of which it has the same two in each; the column within its group is hidden
    behind a move, for the reason that the forward kernel's ``masked`` gives.
    """
    GROUPS: gl.constexpr = BLOCK.rows // 8
    parts = scores.reshape([scores.shape[0], GROUPS, 8])
    LAYOUT: gl.constexpr = parts.type.layout
    k = gl.arange(0, BLOCK.keys, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    within = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    within = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [within], dtype=gl.int32, is_pure=False, pack=1)
    group = gl.arange(0, GROUPS, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT))) * 8
    exists = k < keys_left(tile, extents, BLOCK)
    if BLOCK.bounded_right:
        # Rows are counted from the first that sees the key; of a key that is missing, from far behind.
        first = gl.where(exists, k + (first_seeing(tile, extents, BLOCK) - row), FAR)
        behind = (within[None, None, :] - first[:, None, None]) + group[None, :, None]
        if BLOCK.bounded_left:
            seen = gl.cast(behind, gl.uint32) <= gl.cast(extents.low + extents.high, gl.uint32)
        else:
            seen = behind >= 0
    else:
        seen = exists[:, None, None]
    found = gl.where(seen, parts, float("-inf")).reshape([scores.shape[0], BLOCK.rows])
    return gl.convert_layout(found, scores.type.layout, assert_trivial=True)


@gluon.jit
def store_gradients(dk, dv, tile, held, out, BLOCK: gl.constexpr):
    """Send dK and dV to where they belong, through the bytes of K and V, which no product reads any more."""
    thread_barrier()
    held.k.store(dk.to(held.k.dtype))
    held.v.store(dv.to(held.v.dtype))
    fence_async_shared()
    thread_barrier()
    tma_store(out.dk, key_box(tile, tile.head, BLOCK), as_box(held.k, out.dk))
    tma_store(out.dv, key_box(tile, tile.head, BLOCK), as_box(held.v, out.dv))
    tma_store_wait(0)
    thread_barrier()


@gluon.jit
def allocate_keys(dtype: gl.constexpr, BLOCK: gl.constexpr):
    KEYS: gl.constexpr = BLOCK.keys
    D: gl.constexpr = BLOCK.width
    LAYOUT: gl.constexpr = shared_layout((KEYS, D), dtype)
    k = gl.allocate_shared_memory(dtype, [KEYS, D], LAYOUT)
    v = gl.allocate_shared_memory(dtype, [KEYS, D], LAYOUT)
    full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    init_ring(full, empty, 1, 1)
    return HeldKeys(k, v, full, empty)


@gluon.jit
def allocate_rows(dtype: gl.constexpr, BLOCK: gl.constexpr):
    """A ring of blocks of Q or of dO: (slots, vectors, full, empty)."""
    ROWS: gl.constexpr = BLOCK.rows
    D: gl.constexpr = BLOCK.width
    DEPTH: gl.constexpr = BLOCK.depth
    slots = gl.allocate_shared_memory(dtype, [DEPTH, ROWS, D], shared_layout((ROWS, D), dtype))
    vectors = gl.allocate_shared_memory(gl.float32, [DEPTH, ROWS], vector_layout())
    full = gl.allocate_shared_memory(gl.int64, [DEPTH, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [DEPTH, 1], mbarrier.MBarrierLayout())
    init_ring(full, empty, DEPTH, 1)
    return slots, vectors, full, empty


RUNTIME_INTEGERS = [
    "SEQUENCES", "UNITS", "TILES", "KEY_HEADS", "KV_HEADS", "SHARERS", "Q_LENGTH", "K_LENGTH", "LOW", "HIGH",
    "HEAD_GROUP",
]  # fmt: skip
STARTS = ("q_starts", "k_starts")


@gluon.jit(do_not_specialize=[*RUNTIME_INTEGERS, "SCALE", "LOG_SCALE"])
def key_gradients_kernel(
    q_desc,
    k_desc,
    v_desc,
    do_desc,
    statistics,
    dk_desc,
    dv_desc,
    dq_desc,
    q_starts,
    k_starts,
    SEQUENCES,
    UNITS,
    TILES,
    KEY_HEADS,
    KV_HEADS,
    SHARERS,
    Q_LENGTH,
    K_LENGTH,
    LOW,
    HIGH,
    HEAD_GROUP,
    SCALE,
    LOG_SCALE,
    KEYS: gl.constexpr,
    ROWS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    DEPTH: gl.constexpr,
    DS_IN_REGISTERS: gl.constexpr,
    REDUCES: gl.constexpr,
    BOUNDED_LEFT: gl.constexpr,
    BOUNDED_RIGHT: gl.constexpr,
    WINDOW: gl.constexpr,
    GAP: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):
    """Descriptors of [batch, heads, length, HEAD_DIM], of the statistics [2 · heads, Q_LENGTH] (log-sum-exps in powers
    of two, then deltas), and of the fp32 dQ [heads, Q_LENGTH, HEAD_DIM], which holds zeros before, or None without
    ``REDUCES``. ``KEY_HEADS`` are those of all batches. The launch's ``num_warps`` are the consumer's.

    ``SEQUENCES`` that are packed, at which a warp looks ``WINDOW`` at a time, have ragged descriptors of [rows, heads,
    HEAD_DIM], 32-bit ``q_starts`` and ``k_starts`` [SEQUENCES + 1], and spread statistics and sums; else ``WINDOW`` is
    0 and the starts are None."""
    BLOCK: gl.constexpr = key_gradient_block(
        KEYS, ROWS, HEAD_DIM, DEPTH, DS_IN_REGISTERS, REDUCES, BOUNDED_LEFT, BOUNDED_RIGHT, WINDOW, GAP
    )
    held = allocate_keys(k_desc.dtype, BLOCK)
    q, lse, q_full, q_empty = allocate_rows(q_desc.dtype, BLOCK)
    do, delta, do_full, do_empty = allocate_rows(do_desc.dtype, BLOCK)
    ds = q
    staging = q
    if REDUCES or not DS_IN_REGISTERS:
        ds = gl.allocate_shared_memory(q_desc.dtype, [KEYS, ROWS], shared_layout((KEYS, ROWS), q_desc.dtype))
    if REDUCES:
        LAYOUT: gl.constexpr = shared_layout((ROWS, HEAD_DIM), gl.float32)
        staging = gl.allocate_shared_memory(gl.float32, [ROWS, HEAD_DIM], LAYOUT)
    rings = RowRings(q, lse, q_full, q_empty, do, delta, do_full, do_empty)
    extents = GradientExtents(
        q_starts, k_starts, SEQUENCES, UNITS, TILES, KEY_HEADS, KV_HEADS, SHARERS, Q_LENGTH, K_LENGTH, LOW, HIGH,
        HEAD_GROUP, SCALE, LOG_SCALE,
    )  # fmt: skip
    out = GradientOutput(dk_desc, dv_desc, dq_desc, ds, staging)
    wait_for_previous_kernel()
    gl.warp_specialize(
        [
            (consumer, (out, held, rings, extents, BLOCK)),
            (producer, (q_desc, k_desc, v_desc, do_desc, statistics, held, rings, extents, BLOCK)),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )


TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16}
"""Triton's short names of element types."""


def descriptor_boxes(config: AttentionBwdConfig) -> dict[str, tuple[int, ...]]:
    """The TMA boxes of each descriptor, in elements."""
    rows, keys = config.box(config.rows), config.box(config.keys)
    boxes = dict.fromkeys(("q_desc", "do_desc"), rows) | dict.fromkeys(("k_desc", "v_desc", "dk_desc", "dv_desc"), keys)
    return boxes | {"statistics": (1, config.rows), "dq_desc": (1, config.rows, config.head_dim)}


def constants(
    config: AttentionBwdConfig, bounded_left: bool, bounded_right: bool, sequences: int = 1
) -> dict[str, object]:
    """The kernel's constexprs; ``sequences`` are those that are packed."""
    return {
        "KEYS": config.keys,
        "ROWS": config.rows,
        "HEAD_DIM": config.head_dim,
        "DEPTH": config.depth,
        "DS_IN_REGISTERS": config.ds_in_registers,
        "REDUCES": config.dq == "reduce",
        "BOUNDED_LEFT": bounded_left,
        # Without a bound the consumer of packed sequences spills three registers: theirs is then out of reach.
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
    types, values = {}, constants(config, bounded_left, bounded_right, sequences)
    for name, box in descriptor_boxes(config).items():
        short = "fp32" if name in ("statistics", "dq_desc") else element
        layout = shared_layout(box, gl.float32 if short == "fp32" else TYPES[element])
        types[name] = f"tensordesc<{short}{list(box)},{layout!r}>"
    types |= dict.fromkeys(RUNTIME_INTEGERS, "i32") | {"SCALE": "fp32", "LOG_SCALE": "fp32"}
    if config.dq != "reduce":
        del types["dq_desc"]
        values |= {"dq_desc": None}
    if config.packed:
        return types | dict.fromkeys(STARTS, "*i32"), values, list(STARTS)
    return types, values | dict.fromkeys(STARTS), []
