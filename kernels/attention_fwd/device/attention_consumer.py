"""A consumer of attention forward: its products, in one of two orders, and its rows' way out.

    serial     Q·K(i), wait, softmax(i), P·V(i), wait
    lookahead  Q·K(i) and P·V(i - 1) issued together; softmax(i) runs while P·V(i - 1) does

With ``pingpong`` the consumers of a lookahead issue their products one after the other, so that one's softmax runs
under another's products. A row that sees no key is zero, its log-sum-exp minus infinity.
"""

from __future__ import annotations

from warpplan.kernels.attention_fwd.device.attention_block import Extents
from warpplan.kernels.attention_fwd.device.online_softmax import first_state, hand_over, left_operand, rescale, weigh
from warpplan.kernels.attention_fwd.device.query_tiles import begin, locate, query_box, unit_count
from warpplan.kernels.device.boxes import as_box
from warpplan.kernels.device.epilogue import accumulator_layout
from warpplan.kernels.device.rings import previous_slot, wait_full
from warpplan.kernels.triton_compat import (
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    thread_barrier,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)

LN_2 = gl.constexpr(0.6931471805599453)


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
