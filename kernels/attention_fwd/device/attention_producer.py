"""The producer of attention forward: one warp that copies Q once a unit, and K and V block by block into two rings."""

from __future__ import annotations

from warpplan.kernels.attention_fwd.device.attention_block import Queries
from warpplan.kernels.attention_fwd.device.query_tiles import begin, key_box, locate, query_box, unit_count, value_box
from warpplan.kernels.device.boxes import as_box
from warpplan.kernels.device.epilogue import shared_layout
from warpplan.kernels.device.rings import ring_barriers, wait_empty
from warpplan.kernels.triton_compat import gl, gluon, mbarrier, tma_load


@gluon.jit
def allocate_queries(dtype: gl.constexpr, BLOCK: gl.constexpr):
    CONSUMERS: gl.constexpr = BLOCK.consumers
    ROWS: gl.constexpr = BLOCK.rows
    D: gl.constexpr = BLOCK.width
    LAYOUT: gl.constexpr = shared_layout((ROWS, D), dtype)
    tiles = gl.allocate_shared_memory(dtype, [CONSUMERS, ROWS, D], LAYOUT)
    full, empty = ring_barriers(1, CONSUMERS)
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
    full, empty = ring_barriers(DEPTH, BLOCK.consumers)
    return slots, full, empty


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
