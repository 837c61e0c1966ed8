"""Attention forward for Hopper: one Gluon source, its plan in constexprs.

    O[b, h] = softmax(scale · Q[b, h] · K[b, g]ᵀ + mask) · V[b, g],  g = h / (heads that share a key head)

by online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867) over blocks of keys, as FlashAttention-3 runs it on
Hopper (Shah et al. 2024, arXiv 2407.08608). A *unit* of work is a tile of query rows of one head, shared out among one
to three consumers of ``rows`` rows each. One warp, the producer, copies Q by TMA once a unit, and K and V block by
block into two rings of ``depth`` slots that all consumers read. CTA p of G takes units p, p + G, p + 2G, …

The mask is a band: the query at position p sees keys p - LEFT to p + RIGHT, where the last query stands at the last key
(bottom right, also where the lengths differ). Blocks that no row of the unit sees are skipped; what sticks out of the
band or of the keys within a block is set to minus infinity. A row that sees no key is zero, its log-sum-exp minus
infinity. TMA reads zeros behind the end of Q, K and V and writes nothing behind that of O.

Sequences of unlike lengths lie *packed* one behind the other, [rows, heads, D]: where each begins is read on the
device, by :mod:`warpplan.kernels.device.groups`, and all four tensors have ragged descriptors
(:mod:`warpplan.kernels.device.boxes`) that end with the sequence. Positions count from the sequence's own first row.

Two orders of a consumer's products are compiled in:

    serial     Q·K(i), wait, softmax(i), P·V(i), wait
    lookahead  Q·K(i) and P·V(i - 1) issued together; softmax(i) runs while P·V(i - 1) does

and with ``pingpong`` the consumers of a lookahead issue their products one after the other, so that one's softmax runs
under another's products.

Of Q, K and V in 8 bits (e4m3) the result has 16. Hopper multiplies 8-bit operands in shared memory only with adjacent
elements along the sum, so V lies transposed, [batch, heads, D, keys]
(:mod:`warpplan.kernels.attention_fwd.fp8.tl`), its keys in an order in which P goes from the accumulator to the operand
of the next product without leaving its thread (:mod:`warpplan.kernels.attention_fwd.fp8.gluon`). P is 2 to the power
:data:`WEIGHT_BITS` times as large, as are its sums, of which the result is a quotient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.kernels.attention_fwd.fp8.gluon import (
    KEY_GROUP,
    left_layout,
    move_packed,
    pack_columns,
    unpack_columns,
)
from warpplan.kernels.attention_fwd.space import AttentionConfig
from warpplan.kernels.device.boxes import as_box, ragged_box
from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS, wait_for_previous_kernel
from warpplan.kernels.device.epilogue import accumulator_layout, shared_layout
from warpplan.kernels.device.groups import Groups, count_units, find_group, first_window, window_groups
from warpplan.kernels.device.rings import init_ring, previous_slot, wait_empty, wait_full
from warpplan.kernels.device.tile_order import banded_tile
from warpplan.kernels.gemm.space import WARP_GROUP
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

LOWEST = gl.constexpr(-3.4028234663852886e38)
"""The least finite fp32 number. A maximum begins here, not at minus infinity, of which a difference would be NaN."""
LN_2 = gl.constexpr(0.6931471805599453)
WEIGHT_BITS = gl.constexpr(8)
"""An 8-bit P is at most 2 to this power: e4m3 has 3 bits of fraction from 2^-6 to 448, so that those weights keep them
that are down to 2^-14 of a row's largest, and those below 2^-18 are lost. Not scaled, it would be 2^-6 and 2^-10. A
power of two costs nothing, for it is subtracted from the exponents (FlashAttention-3's fp8 does the same)."""


@dataclass(frozen=True)
class AttentionBlock:
    """Compile-time facts: the plan, the head size ``width``, which sides of the mask's band are bounded, whether the
    log-sum-exp is stored, and at the ends of how many packed sequences a warp looks together: 0 where none are.
    ``heads_in_rows``: a tile has all heads that share a key head, those of a query one after the other. ``bits`` are
    those of an element of Q, K and V."""

    consumers: int
    rows: int
    columns: int
    width: int
    depth: int
    lookahead: bool
    pingpong: bool
    q_in_registers: bool
    staging_in_q: bool
    bounded_left: bool
    bounded_right: bool
    stores_lse: bool
    window: int
    heads_in_rows: bool = False
    bits: int = 16


class Queries(NamedTuple):
    """Q of a unit: a tile a consumer, in a ring of one slot. ``order[c]`` says that consumer c may issue products."""

    tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    order: gl.shared_memory_descriptor


class KeyRings(NamedTuple):
    """Blocks of K and of V, in rings of their own: K is let go an iteration before V."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor


class Extents(NamedTuple):
    """``batch_heads`` heads of all batches, ``heads`` of one, ``sharers`` of which share a key head; lengths in rows;
    ``head_group`` heads that run together; ``scale`` times log2 e. Of packed sequences ``q_starts`` and ``k_starts``
    point to ``batch`` + 1 32-bit row numbers, the first row of each sequence and the end of the last; the lengths are
    those of all, and ``batch_heads`` is not used."""

    q_starts: gl.tensor
    k_starts: gl.tensor
    batch: gl.tensor
    batch_heads: gl.tensor
    heads: gl.tensor
    sharers: gl.tensor
    q_length: gl.tensor
    k_length: gl.tensor
    left: gl.tensor
    right: gl.tensor
    head_group: gl.tensor
    scale: gl.tensor


class HeadScales(NamedTuple):
    """fp32 pointers to what 8-bit Q, K and V are multiplied by, with their strides in elements from one batch and from
    one head to the next; None of 16 bits."""

    q: gl.tensor
    q_batch: gl.tensor
    q_head: gl.tensor
    k: gl.tensor
    k_batch: gl.tensor
    k_head: gl.tensor
    v: gl.tensor
    v_batch: gl.tensor
    v_head: gl.tensor


class QueryTile(NamedTuple):
    """Where a unit lies: its first query row, its first key and how many blocks of keys follow from there, counted
    within its sequence, which has ``q_length`` rows from ``q_first`` on and ``k_length`` keys from ``k_first`` on."""

    batch: gl.tensor
    head: gl.tensor
    row: gl.tensor
    key: gl.tensor
    blocks: gl.tensor
    q_first: gl.tensor
    q_length: gl.tensor
    k_first: gl.tensor
    k_length: gl.tensor


class AttentionOutput(NamedTuple):
    """``o`` is a TMA descriptor, ``lse`` a pointer to [batch_heads, q_length], or None; of packed sequences to [heads,
    q_length]."""

    o: gl.tensor
    staging: gl.shared_memory_descriptor
    lse: gl.tensor


@gluon.constexpr_function
def attention_block(*fields):
    return AttentionBlock(*fields)


@gluon.jit
def query_groups(extents):
    """The packed sequences of queries as groups of rows."""
    return Groups(extents.q_starts + 1, extents.batch, extents.q_length)


@gluon.jit
def begin(extents, BLOCK: gl.constexpr):
    """Where a partition looks for the sequence of its first unit."""
    if BLOCK.window:
        TILE: gl.constexpr = BLOCK.consumers * BLOCK.rows
        return first_window(query_groups(extents), extents.heads, TILE, False, BLOCK.window)
    else:
        return 0


@gluon.jit
def unit_count(search, extents, BLOCK: gl.constexpr):
    TILE: gl.constexpr = BLOCK.consumers * BLOCK.rows
    if BLOCK.window:
        return count_units(search, query_groups(extents), extents.heads, TILE, False, BLOCK.window)
    else:
        return extents.batch_heads * gl.cdiv(extents.q_length, TILE)


@gluon.jit
def locate(unit, search, extents, BLOCK: gl.constexpr):
    """(where a unit lies, where the next one is to be looked up)."""
    TILE: gl.constexpr = BLOCK.consumers * BLOCK.rows
    if BLOCK.window:
        group, search = find_group(unit, search, query_groups(extents), extents.heads, TILE, False, BLOCK.window)
        # Starts need not be right: whatever they hold, the keys are within those that there are.
        k_first = gl.minimum(gl.maximum(gl.load(extents.k_starts + group.index), 0), extents.k_length)
        k_end = gl.minimum(gl.load(extents.k_starts + group.index + 1), extents.k_length)
        k_length = gl.maximum(k_end - k_first, 0)
        q_length = group.end - group.first
        tile = locate_tile(group.unit, extents.heads, group.first, q_length, k_first, k_length, extents, BLOCK)
        return tile, search
    else:
        tile = locate_tile(unit, extents.batch_heads, 0, extents.q_length, 0, extents.k_length, extents, BLOCK)
        return tile, search


@gluon.jit
def locate_tile(unit, heads, q_first, q_length, k_first, k_length, extents, BLOCK: gl.constexpr):
    """Where a unit lies. Units count through bands of ``head_group`` heads, tile by tile; the longest tiles come first
    where the mask makes the last rows see most."""
    TILE: gl.constexpr = BLOCK.consumers * BLOCK.rows
    tiles = gl.cdiv(q_length, TILE)
    batch_head, tile = banded_tile(unit, heads, tiles, extents.head_group, 1, 1)
    if BLOCK.bounded_right:
        tile = tiles - 1 - tile
    row = tile * TILE
    shift = k_length - q_length
    first = 0
    end = k_length
    if BLOCK.bounded_left:
        first = gl.maximum(row + shift - extents.left, 0)
    if BLOCK.bounded_right:
        last_row = gl.minimum(row + TILE, q_length) - 1
        end = gl.minimum(last_row + shift + extents.right + 1, end)
    if BLOCK.bits == 8:
        first = first // KEY_GROUP * KEY_GROUP
    # Rows that see no key take one block all the same, of which nothing is left.
    blocks = gl.maximum(gl.cdiv(end - first, BLOCK.columns), 1)
    batch = batch_head // extents.heads
    head = batch_head % extents.heads
    return QueryTile(batch, head, row, first, blocks, q_first, q_length, k_first, k_length)


@gluon.jit
def query_box(tile, row, BLOCK: gl.constexpr):
    """Coordinates in Q and O of the rows from ``row`` on."""
    if BLOCK.window:
        return ragged_box(tile.head, tile.q_first + row, tile.q_first + tile.q_length)
    else:
        return [tile.batch, tile.head, row, 0]


@gluon.jit
def key_box(tile, head, key, BLOCK: gl.constexpr):
    """Coordinates in K and V of the rows from ``key`` on."""
    if BLOCK.window:
        return ragged_box(head, tile.k_first + key, tile.k_first + tile.k_length)
    else:
        return [tile.batch, head, key, 0]


@gluon.jit
def value_box(tile, head, key, BLOCK: gl.constexpr):
    """Coordinates in V of the keys from ``key`` on."""
    if BLOCK.bits == 8:
        return [tile.batch, head, 0, key]
    else:
        return key_box(tile, head, key, BLOCK)


@gluon.jit
def producer(q_desc, k_desc, v_desc, queries, rings, extents, BLOCK: gl.constexpr):
    CONSUMERS: gl.constexpr = BLOCK.consumers
    Q_BYTES: gl.constexpr = q_desc.block_type.nbytes * CONSUMERS
    index = 0
    done = 0
    search = begin(extents, BLOCK)
    for unit in range(gl.program_id(0), unit_count(search, extents, BLOCK), gl.num_programs(0)):
        tile, search = locate(unit, search, extents, BLOCK)
        wait_empty(queries.empty, done, 1)
        mbarrier.expect(queries.full.index(0), Q_BYTES)
        for c in gl.static_range(CONSUMERS):
            row = tile.row + c * BLOCK.rows
            q = as_box(queries.tiles.index(c), q_desc)
            tma_load(q_desc, query_box(tile, row, BLOCK), queries.full.index(0), q)
        key_head = tile.head // extents.sharers
        for i in range(tile.blocks):
            key = tile.key + i * BLOCK.columns
            k_box = key_box(tile, key_head, key, BLOCK)
            v_box = value_box(tile, key_head, key, BLOCK)
            load_block(k_desc, k_box, rings.k, rings.k_full, rings.k_empty, index, BLOCK)
            load_block(v_desc, v_box, rings.v, rings.v_full, rings.v_empty, index, BLOCK)
            index += 1
        done += 1  # noqa: SIM113


@gluon.jit
def load_block(desc, box, slots, full, empty, index, BLOCK: gl.constexpr):
    """Copy a block of K or of V, at coordinates ``box``, into the slot of ring index ``index``, once it is empty."""
    slot = index % BLOCK.depth
    wait_empty(empty, index, BLOCK.depth)
    mbarrier.expect(full.index(slot), desc.block_type.nbytes)
    tma_load(desc, box, full.index(slot), as_box(slots.index(slot), desc))


@gluon.jit
def consumer(out, queries, rings, extents, scales, BLOCK: gl.constexpr, ID: gl.constexpr):
    OUT: gl.constexpr = accumulator_layout(BLOCK.width, gl.num_warps(), BLOCK.bits)
    index = 0
    turn = 0
    done = 0
    search = begin(extents, BLOCK)
    for unit in range(gl.program_id(0), unit_count(search, extents, BLOCK), gl.num_programs(0)):
        tile, search = locate(unit, search, extents, BLOCK)
        row = tile.row + ID * BLOCK.rows
        scale, value_scale = unit_scales(extents.scale, scales, extents.sharers, tile)
        asked = Extents(
            extents.q_starts, extents.k_starts, extents.batch, extents.batch_heads, extents.heads, extents.sharers,
            extents.q_length, extents.k_length, extents.left, extents.right, extents.head_group, scale,
        )  # fmt: skip
        wait_full(queries.full, done, 1)
        q = query_operand(queries, BLOCK, ID)
        if BLOCK.lookahead:
            acc, row_max, row_sum, turn = attend_ahead(q, queries, rings, index, turn, tile, row, asked, BLOCK, ID)
        else:
            acc, row_max, row_sum = attend_serially(q, queries, rings, index, tile, row, asked, BLOCK)
        index += tile.blocks
        # Of a row that saw no key nothing was summed up, and its log-sum-exp is LOWEST plus minus infinity.
        inverse = gl.where(row_sum == 0.0, 0.0, value_scale / row_sum)
        acc = acc * gl.convert_layout(inverse, gl.SliceLayout(1, OUT))[:, None]
        store_tile(acc, tile, row, queries, out, BLOCK, ID)
        if BLOCK.stores_lse:
            r = row + gl.arange(0, BLOCK.rows, layout=row_max.type.layout)
            first = gl.cast(tile.batch * extents.heads + tile.head, gl.int64) * extents.q_length + tile.q_first
            gl.store(out.lse + first + r, (row_max + gl.log2(row_sum)) * LN_2, mask=r < tile.q_length)
        done += 1  # noqa: SIM113
    tma_store_wait(0)


@gluon.jit
def unit_scales(scale, scales, sharers, tile):
    """(``scale`` times those of Q and K, the scale of V) for the head of ``tile``."""
    if scales.q is None:
        return scale, 1.0
    else:
        key_head = tile.head // sharers
        q_scale = gl.load(scales.q + tile.batch * scales.q_batch + tile.head * scales.q_head)
        k_scale = gl.load(scales.k + tile.batch * scales.k_batch + key_head * scales.k_head)
        return scale * q_scale * k_scale, gl.load(scales.v + tile.batch * scales.v_batch + key_head * scales.v_head)


@gluon.jit
def query_operand(queries, BLOCK: gl.constexpr, ID: gl.constexpr):
    """This consumer's rows of Q: where they lie, or in registers, their slot let go."""
    SCORES: gl.constexpr = accumulator_layout(BLOCK.columns, gl.num_warps(), BLOCK.bits)
    q = queries.tiles.index(ID)
    if BLOCK.q_in_registers:
        loaded = q.load(gl.DotOperandLayout(0, SCORES, 32 // BLOCK.bits))
        if not BLOCK.staging_in_q:
            # One thread arrives for all, and each reads its own. Without the fence a load may still be under way when
            # TMA writes the next rows: the barrier waits for none (rows of the next tile were seen in one launch of 20
            # that began with cold instruction caches, on an H200 with triton 3.6.0).
            fence_async_shared()
            thread_barrier()
            mbarrier.arrive(queries.empty.index(0), count=1)
        return loaded
    else:
        return q


@gluon.jit
def release_queries(queries, BLOCK: gl.constexpr):
    """Let go of Q once its last product is done, unless it was let go before, or the result leaves through it."""
    if not (BLOCK.q_in_registers or BLOCK.staging_in_q):
        mbarrier.arrive(queries.empty.index(0), count=1)


@gluon.jit
def multiply_keys(q, rings, index, BLOCK: gl.constexpr):
    """Issue Q · Kᵀ of ring index ``index``."""
    ROWS: gl.constexpr = BLOCK.rows
    COLUMNS: gl.constexpr = BLOCK.columns
    empty = gl.zeros([ROWS, COLUMNS], gl.float32, accumulator_layout(COLUMNS, gl.num_warps(), BLOCK.bits))
    wait_full(rings.k_full, index, BLOCK.depth)
    k = rings.k.index(index % BLOCK.depth).permute((1, 0))
    return warpgroup_mma(q, k, empty, use_acc=False, is_async=True)


@gluon.jit
def multiply_values(weights, acc, rings, index, BLOCK: gl.constexpr):
    """Issue ``acc`` + P · V of ring index ``index``."""
    wait_full(rings.v_full, index, BLOCK.depth)
    v = rings.v.index(index % BLOCK.depth)
    if BLOCK.bits == 8:
        v = v.permute((1, 0))
    return warpgroup_mma(weights, v, acc, is_async=True)


@gluon.jit
def attend_serially(q, queries, rings, index, tile, row, extents, BLOCK: gl.constexpr):
    """(unscaled output, row maxima, row sums) of a unit, its products one after the other."""
    acc, row_max, row_sum = first_state(BLOCK)
    for i in range(tile.blocks):
        pending = multiply_keys(q, rings, index, BLOCK)
        scores = warpgroup_mma_wait(num_outstanding=0, deps=[pending])
        mbarrier.arrive(rings.k_empty.index(index % BLOCK.depth), count=1)
        key = tile.key + i * BLOCK.columns
        weights, alpha, row_max, row_sum = weigh(
            scores, row_max, row_sum, key, row, tile, extents, BLOCK, rings.v.dtype
        )
        acc = rescale(acc, alpha)
        pending = multiply_values(left_operand(weights, BLOCK), acc, rings, index, BLOCK)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=[pending])
        mbarrier.arrive(rings.v_empty.index(index % BLOCK.depth), count=1)
        index += 1
    release_queries(queries, BLOCK)
    return acc, row_max, row_sum


@gluon.jit
def attend_ahead(q, queries, rings, index, turn, tile, row, extents, BLOCK: gl.constexpr, ID: gl.constexpr):
    """The same, each block's Q · Kᵀ issued with the P · V of the block before; and the consumer's turns so far."""
    acc, row_max, row_sum = first_state(BLOCK)
    first_scores = multiply_keys(q, rings, index, BLOCK)
    first_scores = warpgroup_mma_wait(num_outstanding=0, deps=[first_scores])
    mbarrier.arrive(rings.k_empty.index(index % BLOCK.depth), count=1)
    weights, _, row_max, row_sum = weigh(
        first_scores, row_max, row_sum, tile.key, row, tile, extents, BLOCK, rings.v.dtype
    )
    index += 1
    for i in range(1, tile.blocks):
        previous = previous_slot(index, BLOCK.depth)
        if BLOCK.pingpong:
            mbarrier.wait(queries.order.index(ID), (turn & 1) ^ (ID == 0))
        operand = left_operand(weights, BLOCK)
        scores = multiply_keys(q, rings, index, BLOCK)
        pending = multiply_values(operand, acc, rings, index - 1, BLOCK)
        if BLOCK.pingpong:
            mbarrier.arrive(queries.order.index((ID + 1) % BLOCK.consumers), count=1)
            turn += 1
        scores = warpgroup_mma_wait(num_outstanding=1, deps=[scores])
        mbarrier.arrive(rings.k_empty.index(index % BLOCK.depth), count=1)
        key = tile.key + i * BLOCK.columns
        following, alpha, row_max, row_sum = weigh(
            scores, row_max, row_sum, key, row, tile, extents, BLOCK, rings.v.dtype
        )
        # This wait is over at once: its branch keeps ptxas from moving the softmax below the wait for the product.
        wait_full(rings.v_full, index - 1, BLOCK.depth)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=[pending])
        mbarrier.arrive(rings.v_empty.index(previous), count=1)
        acc = rescale(acc, alpha)
        weights = hand_over(following, BLOCK)
        index += 1
    release_queries(queries, BLOCK)
    last = multiply_values(left_operand(weights, BLOCK), acc, rings, index - 1, BLOCK)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=[last])
    mbarrier.arrive(rings.v_empty.index(previous_slot(index, BLOCK.depth)), count=1)
    return acc, row_max, row_sum, turn


@gluon.jit
def first_state(BLOCK: gl.constexpr):
    """(output, row maxima, row sums) before the first block."""
    ROWS: gl.constexpr = BLOCK.rows
    D: gl.constexpr = BLOCK.width
    OUT: gl.constexpr = accumulator_layout(D, gl.num_warps(), BLOCK.bits)
    STATISTIC: gl.constexpr = gl.SliceLayout(1, accumulator_layout(BLOCK.columns, gl.num_warps(), BLOCK.bits))
    acc = gl.zeros([ROWS, D], gl.float32, OUT)
    return acc, gl.full([ROWS], LOWEST, gl.float32, STATISTIC), gl.zeros([ROWS], gl.float32, STATISTIC)


@gluon.jit
def rescale(acc, alpha):
    return acc * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]


@gluon.jit
def weigh(scores, row_max, row_sum, key, row, tile, extents, BLOCK: gl.constexpr, DTYPE: gl.constexpr):
    """A step of online softmax: (P as the left operand of P · V, what the sums so far are multiplied by, maxima, sums),
    in powers of two."""
    if sticks_out(key, row, tile, extents, BLOCK):
        scores = masked(scores, key, row, tile, extents, BLOCK)
    block_max = gl.max(scores, 1) * extents.scale
    if BLOCK.bits == 8:
        block_max -= WEIGHT_BITS
    new_max = gl.maximum(row_max, block_max)
    alpha = gl.exp2(row_max - new_max)
    weights = gl.exp2(scores * extents.scale - new_max[:, None])
    row_sum = row_sum * alpha + gl.sum(weights, 1)
    return as_weights(weights, BLOCK, DTYPE), alpha, new_max, row_sum


@gluon.jit
def as_weights(weights, BLOCK: gl.constexpr, DTYPE: gl.constexpr):
    """P rounded to ``DTYPE``, as a consumer keeps it until its product: in 16 bits the left operand."""
    if BLOCK.bits == 8:
        return pack_columns(weights)
    else:
        return gl.convert_layout(weights.to(DTYPE), left_layout(BLOCK.width, gl.num_warps(), BLOCK.bits))


@gluon.jit
def left_operand(weights, BLOCK: gl.constexpr):
    """The left operand of P · V, of what :func:`as_weights` gave."""
    if BLOCK.bits == 8:
        return unpack_columns(weights, BLOCK.columns, left_layout(BLOCK.width, gl.num_warps(), BLOCK.bits))
    else:
        return weights


@gluon.jit
def hand_over(weights, BLOCK: gl.constexpr):
    """The weights for the next product, once the one before has read its own."""
    if BLOCK.bits == 8:
        return move_packed(weights)
    else:
        return weights


@gluon.jit
def sticks_out(key, row, tile, extents, BLOCK: gl.constexpr):
    """Whether some of a block's keys are hidden from some of the rows."""
    position = row + tile.k_length - tile.q_length
    found = key + BLOCK.columns > tile.k_length
    if BLOCK.bounded_left:
        found = found | (key < position + BLOCK.rows - 1 - extents.left)
    if BLOCK.bounded_right:
        found = found | (key + BLOCK.columns - 1 > position + extents.right)
    return found


@gluon.jit
def masked(scores, key, row, tile, extents, BLOCK: gl.constexpr):
    """Minus infinity where a row does not see a key.

    A thread's columns come in groups of 8, of which it has the same two in each. Written as one range of all columns,
    ptxas computes every column before the loop and keeps them in registers, and spills; so the column within its group
    is hidden behind a move, and what is added for the group is a constant of the instruction.
    """
    GROUPS: gl.constexpr = BLOCK.columns // 8
    parts = scores.reshape([scores.shape[0], GROUPS, 8])
    LAYOUT: gl.constexpr = parts.type.layout
    r = row + tile.k_length - tile.q_length - key
    place = gl.arange(0, BLOCK.rows, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    if BLOCK.heads_in_rows:
        place = place // extents.sharers
    r += place
    within = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    within = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [within], dtype=gl.int32, is_pure=False, pack=1)
    group = gl.arange(0, GROUPS, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT))) * 8
    c = group[None, :, None] + within[None, None, :]
    seen = c < tile.k_length - key
    if BLOCK.bounded_left:
        seen = seen & (c >= (r - extents.left)[:, None, None])
    if BLOCK.bounded_right:
        seen = seen & (c <= (r + extents.right)[:, None, None])
    found = gl.where(seen, parts, float("-inf")).reshape([scores.shape[0], BLOCK.columns])
    return gl.convert_layout(found, scores.type.layout, assert_trivial=True)


@gluon.jit
def store_tile(acc, tile, row, queries, out, BLOCK: gl.constexpr, ID: gl.constexpr):
    """Send a consumer's rows to O, through bytes of their own or through those of Q, which are then let go."""
    if BLOCK.staging_in_q:
        staging = queries.tiles.index(ID)
    else:
        staging = out.staging.index(ID)
        tma_store_wait(0)
    thread_barrier()
    staging.store(acc.to(staging.dtype))
    fence_async_shared()
    tma_store(out.o, query_box(tile, row, BLOCK), as_box(staging, out.o))
    if BLOCK.staging_in_q:
        tma_store_wait(0)
        thread_barrier()
        mbarrier.arrive(queries.empty.index(0), count=1)


@gluon.jit
def allocate_queries(dtype: gl.constexpr, BLOCK: gl.constexpr):
    CONSUMERS: gl.constexpr = BLOCK.consumers
    ROWS: gl.constexpr = BLOCK.rows
    D: gl.constexpr = BLOCK.width
    LAYOUT: gl.constexpr = shared_layout((ROWS, D), dtype)
    tiles = gl.allocate_shared_memory(dtype, [CONSUMERS, ROWS, D], LAYOUT)
    full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    init_ring(full, empty, 1, CONSUMERS)
    # Barriers that nobody uses would die here, and their bytes, still armed, would become the staging's.
    order = full
    if BLOCK.pingpong:
        order = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
        for c in gl.static_range(CONSUMERS):
            mbarrier.init(order.index(c), count=1)
    return Queries(tiles, full, empty, order)


@gluon.jit
def allocate_slots(dtype: gl.constexpr, BLOCK: gl.constexpr, TRANSPOSED: gl.constexpr = False):
    """A ring of blocks of K or of V: (slots, full, empty)."""
    ROWS: gl.constexpr = BLOCK.width if TRANSPOSED else BLOCK.columns
    COLUMNS: gl.constexpr = BLOCK.columns if TRANSPOSED else BLOCK.width
    DEPTH: gl.constexpr = BLOCK.depth
    slots = gl.allocate_shared_memory(dtype, [DEPTH, ROWS, COLUMNS], shared_layout((ROWS, COLUMNS), dtype))
    full = gl.allocate_shared_memory(gl.int64, [DEPTH, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [DEPTH, 1], mbarrier.MBarrierLayout())
    init_ring(full, empty, DEPTH, BLOCK.consumers)
    return slots, full, empty


@gluon.jit
def specialize(
    q_desc, k_desc, v_desc, out, queries, rings, extents, scales, BLOCK: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Run the producer and the consumers; the launch's ``num_warps`` are one consumer's, 4."""
    wait_for_previous_kernel()
    # A tuple of arguments that is bound to a name loses its constexprs.
    if BLOCK.consumers == 1:
        gl.warp_specialize(
            [
                (consumer, (out, queries, rings, extents, scales, BLOCK, 0)),
                (producer, (q_desc, k_desc, v_desc, queries, rings, extents, BLOCK)),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )
    elif BLOCK.consumers == 2:
        gl.warp_specialize(
            [
                (consumer, (out, queries, rings, extents, scales, BLOCK, 0)),
                (consumer, (out, queries, rings, extents, scales, BLOCK, 1)),
                (producer, (q_desc, k_desc, v_desc, queries, rings, extents, BLOCK)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consumer, (out, queries, rings, extents, scales, BLOCK, 0)),
                (consumer, (out, queries, rings, extents, scales, BLOCK, 1)),
                (consumer, (out, queries, rings, extents, scales, BLOCK, 2)),
                (producer, (q_desc, k_desc, v_desc, queries, rings, extents, BLOCK)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )


STARTS = ("q_starts", "k_starts")
SCALES = ("q_scale", "k_scale", "v_scale")
SCALE_STRIDES = [f"{name}_SCALE_{step}" for name in "QKV" for step in ("BATCH", "HEAD")]
RUNTIME_INTEGERS = [
    "BATCH", "BATCH_HEADS", "HEADS", "SHARERS", "Q_LENGTH", "K_LENGTH", "LEFT", "RIGHT", "HEAD_GROUP", *SCALE_STRIDES,
]  # fmt: skip


@gluon.jit(do_not_specialize=[*RUNTIME_INTEGERS, "SCALE"])
def attention_fwd_kernel(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    lse,
    q_starts,
    k_starts,
    q_scale,
    k_scale,
    v_scale,
    BATCH,
    BATCH_HEADS,
    HEADS,
    SHARERS,
    Q_LENGTH,
    K_LENGTH,
    LEFT,
    RIGHT,
    HEAD_GROUP,
    Q_SCALE_BATCH,
    Q_SCALE_HEAD,
    K_SCALE_BATCH,
    K_SCALE_HEAD,
    V_SCALE_BATCH,
    V_SCALE_HEAD,
    SCALE,
    CONSUMERS: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    DEPTH: gl.constexpr,
    LOOKAHEAD: gl.constexpr,
    PINGPONG: gl.constexpr,
    Q_IN_REGISTERS: gl.constexpr,
    STAGING_IN_Q: gl.constexpr,
    BOUNDED_LEFT: gl.constexpr,
    BOUNDED_RIGHT: gl.constexpr,
    WINDOW: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """Descriptors of [batch, heads, length, HEAD_DIM]; ``SHARERS`` heads of Q share one of K and V. ``LEFT`` and
    ``RIGHT`` count where the mask is bounded; ``SCALE`` is times log2 e. ``lse`` is fp32 [BATCH_HEADS, Q_LENGTH] or
    None. Packed sequences, whose ends a warp looks at ``WINDOW`` at a time, have descriptors of [rows, heads, HEAD_DIM]
    that are ragged, 32-bit ``q_starts`` and ``k_starts`` [BATCH + 1], and ``lse`` [HEADS, Q_LENGTH]; else ``WINDOW`` is
    0 and the starts are None. 8-bit tensors have fp32 scales, whose strides are in elements, and V is [batch, heads,
    HEAD_DIM, keys] as :mod:`warpplan.kernels.attention_fwd.fp8.tl` leaves it; of others the scales are None. The
    launch's ``num_warps`` are one consumer's, 4."""
    BLOCK: gl.constexpr = attention_block(
        CONSUMERS, ROWS, COLUMNS, HEAD_DIM, DEPTH, LOOKAHEAD, PINGPONG, Q_IN_REGISTERS, STAGING_IN_Q, BOUNDED_LEFT,
        BOUNDED_RIGHT, lse is not None, WINDOW, False, q_desc.dtype.primitive_bitwidth,
    )  # fmt: skip
    queries = allocate_queries(q_desc.dtype, BLOCK)
    k, k_full, k_empty = allocate_slots(k_desc.dtype, BLOCK)
    v, v_full, v_empty = allocate_slots(v_desc.dtype, BLOCK, BLOCK.bits == 8)
    staging = queries.tiles
    if not STAGING_IN_Q:
        LAYOUT: gl.constexpr = shared_layout((ROWS, HEAD_DIM), o_desc.dtype)
        staging = gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, ROWS, HEAD_DIM], LAYOUT)
    rings = KeyRings(k, v, k_full, k_empty, v_full, v_empty)
    extents = Extents(
        q_starts, k_starts, BATCH, BATCH_HEADS, HEADS, SHARERS, Q_LENGTH, K_LENGTH, LEFT, RIGHT, HEAD_GROUP, SCALE
    )
    scales = HeadScales(
        q_scale, Q_SCALE_BATCH, Q_SCALE_HEAD, k_scale, K_SCALE_BATCH, K_SCALE_HEAD, v_scale, V_SCALE_BATCH, V_SCALE_HEAD
    )
    out = AttentionOutput(o_desc, staging, lse)
    specialize(
        q_desc, k_desc, v_desc, out, queries, rings, extents, scales, BLOCK, PRODUCER_REGISTERS, CONSUMER_REGISTERS
    )


TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp8e4nv": gl.float8e4nv}
"""Triton's short names of element types."""
RESULTS = {"bf16": "bf16", "fp16": "fp16", "fp8e4nv": "bf16"}
"""Of the result by that of the operands."""


def descriptor_boxes(config: AttentionConfig, element: str) -> dict[str, tuple[int, ...]]:
    """The TMA boxes of Q, K, V and O, in elements."""
    c = config
    if c.packed:
        ragged = (1, 1, c.columns, 1, c.head_dim)
        queries = (1, 1, c.rows, 1, c.head_dim)
        return {"q": queries, "k": ragged, "v": ragged, "o": queries}
    rows, keys = (1, 1, c.rows, c.head_dim), (1, 1, c.columns, c.head_dim)
    values = (1, 1, c.head_dim, c.columns) if TYPES[element].primitive_bitwidth == 8 else keys
    return {"q": rows, "k": keys, "v": values, "o": rows}


def constants(
    config: AttentionConfig, bounded_left: bool, bounded_right: bool, sequences: int = 1
) -> dict[str, object]:
    """The kernel's constexprs; ``sequences`` are those that are packed."""
    return {
        "CONSUMERS": config.consumers,
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        "HEAD_DIM": config.head_dim,
        "DEPTH": config.depth,
        "LOOKAHEAD": config.lookahead,
        "PINGPONG": config.pingpong,
        "Q_IN_REGISTERS": config.q_in_registers,
        "STAGING_IN_Q": config.staging == "q",
        "BOUNDED_LEFT": bounded_left,
        "BOUNDED_RIGHT": bounded_right,
        "WINDOW": window_groups(sequences) if config.packed else 0,
        "PRODUCER_REGISTERS": config.producer_registers,
        "CONSUMER_REGISTERS": config.consumer_registers,
    }


def launch_options(config: AttentionConfig) -> dict[str, int]:
    return {"num_warps": WARP_GROUP, "num_stages": 1, "maxnreg": config.max_registers, **LAUNCH_OPTIONS}


def signature(
    config: AttentionConfig, element: str, bounded_left: bool, bounded_right: bool, stores_lse: bool = True,
    sequences: int = 1,
) -> tuple[dict[str, str], dict[str, object], list[str]]:  # fmt: skip
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    elements = {"q": element, "k": element, "v": element, "o": RESULTS[element]}
    types = {
        f"{name}_desc": f"tensordesc<{elements[name]}{list(box)},{shared_layout(box, TYPES[elements[name]])!r}>"
        for name, box in descriptor_boxes(config, element).items()
    }
    types |= dict.fromkeys(RUNTIME_INTEGERS, "i32") | {"SCALE": "fp32"}
    values = constants(config, bounded_left, bounded_right, sequences)
    scaled = TYPES[element].primitive_bitwidth == 8
    pointers = {"lse": "*fp32" if stores_lse else None, **dict.fromkeys(STARTS, "*i32" if config.packed else None)}
    pointers |= dict.fromkeys(SCALES, "*fp32" if scaled else None)
    given = {name: kind for name, kind in pointers.items() if kind is not None}
    return types | given, values | {name: None for name in pointers if name not in given}, list(given)
