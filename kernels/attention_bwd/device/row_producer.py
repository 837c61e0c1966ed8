"""The producer of dK and dV: one warp that copies K and V once a unit, and then Q with ``lse`` and dO with ``delta``
block by block, for each query head that shares the key head in turn.

TMA reads zeros behind the end of every operand: a row of zeros in dO and ``delta`` adds nothing.
"""

from __future__ import annotations

from warpplan.kernels.attention_bwd.device.key_gradient_block import HeldKeys, vector_layout
from warpplan.kernels.attention_bwd.device.key_tiles import key_box, locate, row_box
from warpplan.kernels.device.boxes import as_box
from warpplan.kernels.device.epilogue import shared_layout
from warpplan.kernels.device.rings import ring_barriers, wait_empty
from warpplan.kernels.triton_compat import gl, gluon, mbarrier, tma_load


@gluon.jit
def allocate_keys(dtype: gl.constexpr, BLOCK: gl.constexpr):
    KEYS: gl.constexpr = BLOCK.keys
    D: gl.constexpr = BLOCK.width
    LAYOUT: gl.constexpr = shared_layout((KEYS, D), dtype)
    k = gl.allocate_shared_memory(dtype, [KEYS, D], LAYOUT)
    v = gl.allocate_shared_memory(dtype, [KEYS, D], LAYOUT)
    full, empty = ring_barriers(1, 1)
    return HeldKeys(k, v, full, empty)


@gluon.jit
def allocate_rows(dtype: gl.constexpr, BLOCK: gl.constexpr):
    """A ring of blocks of Q or of dO: (slots, vectors, full, empty)."""
    ROWS: gl.constexpr = BLOCK.rows
    D: gl.constexpr = BLOCK.width
    DEPTH: gl.constexpr = BLOCK.depth
    slots = gl.allocate_shared_memory(dtype, [DEPTH, ROWS, D], shared_layout((ROWS, D), dtype))
    vectors = gl.allocate_shared_memory(gl.float32, [DEPTH, ROWS], vector_layout())
    full, empty = ring_barriers(DEPTH, 1)
    return slots, vectors, full, empty


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
