"""The consumer of dK and dV, a warp group for each 64 keys: its products, and its sums' way out.

It computes the transposes Sᵀ = K · Qᵀ and dPᵀ = V · dOᵀ: then Pᵀ and dSᵀ are in registers as wgmma takes its left
operand, and dV and dK stay in registers until the unit ends. For dQ, which sums over keys, dSᵀ goes through shared
memory, and each block's product is added to an fp32 matrix by TMA reduction.
"""

from __future__ import annotations

from warpplan.kernels.attention_bwd.device.gradient_weights import weigh
from warpplan.kernels.attention_bwd.device.key_gradient_block import query_layout
from warpplan.kernels.attention_bwd.device.key_tiles import first_row, key_box, locate
from warpplan.kernels.device.boxes import as_box
from warpplan.kernels.device.epilogue import accumulator_layout
from warpplan.kernels.device.rings import wait_full
from warpplan.kernels.device.stream_k import opaque
from warpplan.kernels.triton_compat import (
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    thread_barrier,
    tma_reduce_add,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)


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
