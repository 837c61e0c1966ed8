"""The warp-specialised main loop of a matrix product on Hopper: one producer, and one to three consumers.

One warp, the producer, copies tiles of A and B by TMA into a ring of ``depth`` slots; the consumers multiply them with
fp32 accumulation and hand each finished tile to the kernel's own epilogue. CTA p of G takes units p, p + G, p + 2G, …
Ring and barriers are those of :mod:`warpplan.kernels.device.rings`. Beside them, in the ping-pong scheme, barrier
``order[c]`` says that consumer c may run its main loop; the consumers take units alternately.

A kernel brings three functions, as constexprs, and may replace three more; ``work`` is whatever its own functions need
of the launch:

    COUNT(work, BLOCK)                                   how many units of work there are
    LOCATE(unit, work, BLOCK) -> Tile, work              where a unit's operands and its result lie
    FINISH(acc, unit, tile, staging, out, work, BLOCK, PART)    store consumer PART's rows of a unit
    BEGIN(work, BLOCK) -> work                           each partition's own ``work``, made once
    LOAD(a_desc, b_desc, tile, k, slot, ring, BLOCK)     copy a unit's K block ``k`` into ``slot``

A partition locates its units in ascending order, some of them twice, each with the ``work`` that came with the one
before. ``b_desc`` has a descriptor of B for each of the block's widths (:func:`by_width`). ``out`` is a named tuple of
the kernel's; its ``staging`` is shared memory, a tile a consumer, and where the product is scaled by blocks its
``scales`` are :class:`~warpplan.kernels.device.scaling.Scales`.

Where ``BLOCK.k_steps`` is more than 1, a tile has two fields more: ``whole`` counts its full K blocks; of a partial
last block only the first ``last_steps`` steps are copied and multiplied. TMA fills what lies beyond a matrix with zeros
at 15 bytes a cycle (``benchmarks/results/tma_fill_h100.json``). The kernel copies these steps:

    LOAD_STEPS(tile, k, slot, ring, work, BLOCK)
"""

from __future__ import annotations

from typing import NamedTuple

from warpplan.kernels.device.early_launch import launch_dependents, wait_for_previous_kernel
from warpplan.kernels.device.epilogue import accumulator_layout, shared_layout
from warpplan.kernels.device.rings import allocate_barriers, init_ring, previous_slot, wait_empty, wait_full
from warpplan.kernels.device.scaling import multiply_promoted
from warpplan.kernels.triton_compat import (
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    proton,
    reinterpret,
    thread_barrier,
    tma_load,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)


class Ring(NamedTuple):
    """``a`` holds ``sharers`` tiles a slot, one for each consumer that works on the slot; they share those of ``b``,
    which has one for each of the block's widths. ``all_empty`` are the barriers that a cluster's CTAs share, ``empty``
    again where it is one CTA."""

    a: gl.shared_memory_descriptor
    b: tuple[gl.shared_memory_descriptor, ...]
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    all_empty: gl.shared_memory_descriptor
    order: gl.shared_memory_descriptor


class Tile(NamedTuple):
    """Where a unit of work lies, in elements: first row of A and first row of B (as [rows, K] matrices, however they
    are stored), the first element of K in each, how many K blocks there are, and the result's first row and column."""

    a_row: gl.tensor
    a_k: gl.tensor
    b_row: gl.tensor
    b_k: gl.tensor
    blocks: gl.tensor
    row: gl.tensor
    column: gl.tensor


@gluon.jit
def by_width(desc, rest_desc, BLOCK: gl.constexpr):
    """The descriptors of B: ``desc``, and ``rest_desc`` where the block has two widths."""
    if len(BLOCK.widths) == 1:
        return (desc,)
    else:
        return (desc, rest_desc)


@gluon.jit
def same_work(work, BLOCK: gl.constexpr):
    return work


@gluon.jit
def load_tiles(a_desc, b_desc, tile, k, slot, ring, BLOCK: gl.constexpr):
    """Copy one K block of A and B, of the matrices as they lie."""
    SHARERS: gl.constexpr = BLOCK.sharers
    full = ring.full.index(slot)
    for part in gl.static_range(SHARERS):
        a_row = tile.a_row + part * BLOCK.rows
        a_k = tile.a_k + k * BLOCK.block_k
        a_at = [a_row, a_k] if BLOCK.a_major == "k" else [a_k, a_row]
        tma_load(a_desc, a_at, full, ring.a.index(slot * SHARERS + part))
    b_k = tile.b_k + k * BLOCK.block_k
    WIDTHS: gl.constexpr = len(BLOCK.widths)
    for i in gl.static_range(WIDTHS):
        b_row = tile.b_row + i * BLOCK.widths[0]
        b_at = [b_row, b_k] if BLOCK.b_major == "k" else [b_k, b_row]
        into = ring.b[i].index(slot)
        if BLOCK.cluster == 1:
            tma_load(b_desc[i], b_at, full, into)
        else:
            tma_load(b_desc[i], b_at, full, into, multicast=True)


@gluon.jit
def no_steps(tile, k, slot, ring, work, BLOCK: gl.constexpr):
    """Of kernels whose K blocks are all whole."""


@gluon.jit
def whole_blocks(tile, BLOCK: gl.constexpr):
    """How many of a tile's K blocks are copied and multiplied whole."""
    if BLOCK.k_steps == 1:
        return tile.blocks
    else:
        return tile.whole


@gluon.jit
def wait_free(ring, index, BLOCK: gl.constexpr):
    """Wait until the slot of ring index ``index`` may be filled, by all CTAs of a cluster."""
    wait_empty(ring.empty, index, BLOCK.depth)
    if BLOCK.cluster > 1:
        wait_empty(ring.all_empty, index, BLOCK.depth)


@gluon.jit
def load_rest(
    tile, index, ring, work, SLOT_BYTES: gl.constexpr, BLOCK: gl.constexpr, LOAD_STEPS: gl.constexpr
):  # fmt: skip
    """Copy the steps of a tile's last K block, where it is not whole; the ring index that follows."""
    STEPS: gl.constexpr = BLOCK.k_steps
    if tile.whole < tile.blocks:
        with proton.scope("producer_wait"):
            wait_free(ring, index, BLOCK)
        with proton.scope("tma_issue"):
            slot = index % BLOCK.depth
            for i in gl.static_range(STEPS):
                mbarrier.expect(ring.full.index(slot), SLOT_BYTES // STEPS * (i + 1), pred=tile.last_steps == i + 1)
            LOAD_STEPS(tile, tile.whole, slot, ring, work, BLOCK)
        index += 1
    return index


@gluon.jit
def producer(
    a_desc, b_desc, ring, work, BLOCK: gl.constexpr, COUNT: gl.constexpr, LOCATE: gl.constexpr, BEGIN: gl.constexpr,
    LOAD: gl.constexpr, LOAD_STEPS: gl.constexpr,
):  # fmt: skip
    A_BYTES: gl.constexpr = BLOCK.sharers * a_desc.block_type.nbytes // BLOCK.cluster
    # The tiles of B hold as many bytes for each of the block's columns.
    B_BYTES: gl.constexpr = b_desc[0].block_type.nbytes * BLOCK.block_n // BLOCK.widths[0]
    SLOT_BYTES: gl.constexpr = A_BYTES + B_BYTES
    index = 0
    work = BEGIN(work, BLOCK)
    for unit in range(gl.program_id(0), COUNT(work, BLOCK), gl.num_programs(0)):
        tile, work = LOCATE(unit, work, BLOCK)
        for k in range(whole_blocks(tile, BLOCK)):
            with proton.scope("producer_wait"):
                wait_free(ring, index, BLOCK)
            with proton.scope("tma_issue"):
                slot = index % BLOCK.depth
                mbarrier.expect(ring.full.index(slot), SLOT_BYTES)
                LOAD(a_desc, b_desc, tile, k, slot, ring, BLOCK)
            index += 1
        if BLOCK.k_steps > 1:
            index = load_rest(tile, index, ring, work, SLOT_BYTES, BLOCK, LOAD_STEPS)
    if BLOCK.launch_dependents:
        launch_dependents()


@gluon.jit
def consumer(
    out, ring, work, BLOCK: gl.constexpr, COUNT: gl.constexpr, LOCATE: gl.constexpr, FINISH: gl.constexpr,
    BEGIN: gl.constexpr, ID: gl.constexpr,
):  # fmt: skip
    PART: gl.constexpr = ID % BLOCK.sharers
    PINGPONG: gl.constexpr = BLOCK.scheme == "pingpong"
    programs = gl.num_programs(0)
    start = gl.program_id(0)
    stride = programs
    index = 0
    done = 0
    work = BEGIN(work, BLOCK)
    units = COUNT(work, BLOCK)
    if PINGPONG:
        start += ID * programs
        stride = 2 * programs
        if ID == 1:
            other, work = LOCATE(gl.program_id(0), work, BLOCK)
            index = other.blocks
    else:
        tile, work = LOCATE(gl.minimum(start, units - 1), work, BLOCK)
    for unit in range(start, units, stride):
        if PINGPONG:
            tile, work = LOCATE(unit, work, BLOCK)
            with proton.scope("consumer_wait"):
                mbarrier.wait(ring.order.index(ID), (done & 1) ^ (1 - ID))
            done += 1
        if BLOCK.scales == "block":
            acc = (multiply_promoted(ring, index, tile, out.scales, BLOCK, operands, release, PART),)
        else:
            acc = multiply(ring, index, tile, BLOCK, PART)
        index += tile.blocks
        last = previous_slot(index, BLOCK.depth)
        if PINGPONG:
            mbarrier.arrive(ring.order.index(1 - ID), count=1)
            other, work = LOCATE(gl.minimum(unit + programs, units - 1), work, BLOCK)
            index += other.blocks
        else:
            # Found while the last multiply is in flight: the next one then waits for the epilogue alone.
            following, work = LOCATE(gl.minimum(unit + stride, units - 1), work, BLOCK)
        if BLOCK.scales != "block":
            acc = finished(acc, 0)
        with proton.scope("epilogue"):
            if BLOCK.staging_in_ring:
                # The other warps' multiplies read these bytes until here.
                thread_barrier()
                FINISH(acc, unit, tile, ring_staging(ring, last, BLOCK, PART), out, work, BLOCK, PART)
                if BLOCK.tma_store:
                    tma_store_wait(0)
                else:
                    # The producer's copy must come after these plain writes to its slot.
                    fence_async_shared()
                thread_barrier()
                release(ring, last, BLOCK)
            else:
                if BLOCK.scales != "block":
                    release(ring, last, BLOCK)
                FINISH(acc, unit, tile, out.staging.index(ID), out, work, BLOCK, PART)
        if not PINGPONG:
            tile = following
    if BLOCK.tma_store:
        tma_store_wait(0)


@gluon.jit
def multiply(ring, index, tile, BLOCK: gl.constexpr, PART: gl.constexpr):
    """The product of a tile's ring slots, from ring index ``index`` on, an accumulator for each of the block's widths;
    the multiplies of the last slot may still be in flight, every other slot has been let go."""
    acc = accumulators(ring, BLOCK)
    for k in range(whole_blocks(tile, BLOCK)):
        slot = index % BLOCK.depth
        with proton.scope("consumer_wait"):
            wait_full(ring.full, index, BLOCK.depth)
        with proton.scope("mma"):
            acc = finished(multiply_slot(ring, slot, acc, k > 0, BLOCK, PART), 1)
        # This multiply may still read its slot; the one before has finished with the previous slot.
        release(ring, previous_slot(index, BLOCK.depth), BLOCK, k > 0)
        index += 1
    if BLOCK.k_steps > 1:
        acc = multiply_rest(ring, index, acc, tile, BLOCK, PART)
    return acc


@gluon.jit
def accumulators(ring, BLOCK: gl.constexpr):
    """Zeros of a consumer's rows, for each of the block's widths."""
    main = accumulator(ring, BLOCK, BLOCK.widths[0])
    if len(BLOCK.widths) == 1:
        return (main,)
    else:
        return (main, accumulator(ring, BLOCK, BLOCK.widths[1]))


@gluon.jit
def accumulator(ring, BLOCK: gl.constexpr, COLUMNS: gl.constexpr):
    ROWS: gl.constexpr = BLOCK.rows
    BITS: gl.constexpr = ring.a.dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = accumulator_layout(COLUMNS, gl.num_warps(), BITS, BLOCK.cluster)
    return gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)


@gluon.jit
def multiply_slot(ring, slot, acc, use_acc, BLOCK: gl.constexpr, PART: gl.constexpr):
    """``acc`` with a slot's product added, in flight."""
    a, b = operands(ring, slot, BLOCK, PART)
    main = warpgroup_mma(a, b, acc[0], use_acc=use_acc, is_async=True)
    if len(BLOCK.widths) == 1:
        return (main,)
    else:
        return (main, warpgroup_mma(a, right_tile(ring, slot, BLOCK, 1), acc[1], use_acc=use_acc, is_async=True))


@gluon.jit
def multiply_rest(ring, index, acc, tile, BLOCK: gl.constexpr, PART: gl.constexpr):
    """``acc`` with the last slot's product added, finished, where not all of the tile's K blocks are whole."""
    if tile.whole < tile.blocks:
        acc = finished(acc, 0)
        release(ring, previous_slot(index, BLOCK.depth), BLOCK, tile.whole > 0)
        with proton.scope("consumer_wait"):
            wait_full(ring.full, index, BLOCK.depth)
        with proton.scope("mma"):
            acc = multiply_steps(ring, index % BLOCK.depth, acc, tile.last_steps, BLOCK, PART)
    return acc


@gluon.jit
def multiply_steps(ring, slot, acc, steps, BLOCK: gl.constexpr, PART: gl.constexpr):
    """``acc`` with the product of a slot's first ``steps`` of K added, finished."""
    STEPS: gl.constexpr = BLOCK.k_steps
    STEP: gl.constexpr = BLOCK.block_k // STEPS
    a, b = operands(ring, slot, BLOCK, PART)
    for i in gl.static_range(STEPS):
        # Each branch waits: an accumulator that multiplies are in flight to is of another type for Gluon (3.6).
        if i < steps:
            left = a.slice(i * STEP, STEP, dim=1)
            main = warpgroup_mma(left, b.slice(i * STEP, STEP, dim=0), acc[0], is_async=True)
            if len(BLOCK.widths) == 1:
                acc = finished((main,), 0)
            else:
                right = right_tile(ring, slot, BLOCK, 1).slice(i * STEP, STEP, dim=0)
                acc = finished((main, warpgroup_mma(left, right, acc[1], is_async=True)), 0)
    return acc


@gluon.jit
def finished(acc, SLOTS: gl.constexpr):
    """``acc`` when the multiplies of all slots but the last ``SLOTS`` have finished."""
    if len(acc) == 1:
        return (warpgroup_mma_wait(num_outstanding=SLOTS, deps=[acc[0]]),)
    else:
        return warpgroup_mma_wait(num_outstanding=2 * SLOTS, deps=[acc[0], acc[1]])


@gluon.jit
def release(ring, slot, BLOCK: gl.constexpr, pred=True):
    """Let go of a slot."""
    mbarrier.arrive(ring.empty.index(slot), count=1, pred=pred)
    if BLOCK.cluster > 1:
        mbarrier.arrive(ring.all_empty.index(slot), count=1, pred=pred)


@gluon.jit
def operands(ring, slot, BLOCK: gl.constexpr, PART: gl.constexpr):
    """[rows, K] of A and [K, columns] of B in a slot, seen through wgmma however they lie; of columns in two widths,
    the wider."""
    a = ring.a.index(slot * BLOCK.sharers + PART)
    if BLOCK.a_major == "m":
        a = a.permute((1, 0))
    return a, right_tile(ring, slot, BLOCK, 0)


@gluon.jit
def right_tile(ring, slot, BLOCK: gl.constexpr, WIDTH: gl.constexpr):
    """[K, columns] of B: those of the block's width number ``WIDTH``."""
    b = ring.b[WIDTH].index(slot)
    if BLOCK.b_major == "k":
        b = b.permute((1, 0))
    return b


@gluon.jit
def ring_staging(ring, slot, BLOCK: gl.constexpr, PART: gl.constexpr):
    """A chunk's view of bytes that this consumer alone still holds: its A tile, or B's where nobody shares B. The
    result has the operands' type."""
    if BLOCK.sharers == 1 and BLOCK.block_n > BLOCK.block_m:
        return first_chunk(ring.b[0].index(slot), BLOCK)
    else:
        return first_chunk(ring.a.index(slot * BLOCK.sharers + PART), BLOCK)


@gluon.jit
def first_chunk(operand, BLOCK: gl.constexpr):
    """The first of the chunks of the result that an operand's tile has room for. Triton 3.8 takes no view that is
    smaller than what it views, so the chunk is one of a view of all of them."""
    LAYOUT: gl.constexpr = shared_layout(BLOCK.tile, operand.dtype)
    CHUNKS: gl.constexpr = operand.shape[0] * operand.shape[1] // (BLOCK.tile[0] * BLOCK.tile[1])
    return reinterpret(operand, operand.dtype, [CHUNKS, BLOCK.tile[0], BLOCK.tile[1]], LAYOUT).index(0)


@gluon.jit
def allocate_ring(a_desc, b_desc, BLOCK: gl.constexpr):
    """The ring of a block with its barriers armed; the last two dimensions of the TMA boxes give a slot's tiles."""
    A_TILE: gl.constexpr = a_desc.block_type.shape[-2:]
    DEPTH: gl.constexpr = BLOCK.depth
    SLOTS: gl.constexpr = DEPTH * BLOCK.sharers
    A_SPLIT: gl.constexpr = 0 if BLOCK.a_major == "k" else 1
    A_LAYOUT: gl.constexpr = shared_layout(A_TILE, a_desc.dtype, BLOCK.cluster, A_SPLIT)
    a = gl.allocate_shared_memory(a_desc.dtype, [SLOTS, A_TILE[0], A_TILE[1]], A_LAYOUT)
    b = right_tiles(b_desc, BLOCK)
    full = allocate_barriers(DEPTH, BLOCK.cluster)
    empty = allocate_barriers(DEPTH, BLOCK.cluster)
    init_ring(full, empty, DEPTH, BLOCK.sharers)
    all_empty = empty
    if BLOCK.cluster > 1:
        all_empty = allocate_barriers(DEPTH, BLOCK.cluster, True)
        for slot in gl.static_range(DEPTH):
            mbarrier.init(all_empty.index(slot), count=BLOCK.sharers)
    # Barriers that nobody uses would die here, and their bytes, still armed, would become the staging's.
    order = full
    if BLOCK.scheme == "pingpong":
        order = order_barriers(BLOCK.cluster)
    return Ring(a, b, full, empty, all_empty, order)


@gluon.jit
def right_tiles(b_desc, BLOCK: gl.constexpr):
    """The ring's tiles of B, for each of the block's widths."""
    main = right_ring(b_desc[0], BLOCK)
    if len(BLOCK.widths) == 1:
        return (main,)
    else:
        return (main, right_ring(b_desc[1], BLOCK))


@gluon.jit
def right_ring(desc, BLOCK: gl.constexpr):
    TILE: gl.constexpr = desc.block_type.shape[-2:]
    LAYOUT: gl.constexpr = shared_layout(TILE, desc.dtype, BLOCK.cluster)
    return gl.allocate_shared_memory(desc.dtype, [BLOCK.depth, TILE[0], TILE[1]], LAYOUT)


@gluon.jit
def order_barriers(CLUSTER: gl.constexpr):
    """One barrier a ping-pong consumer: it may run its main loop."""
    order = allocate_barriers(2, CLUSTER)
    for i in gl.static_range(2):
        mbarrier.init(order.index(i), count=1)
    return order


@gluon.jit
def allocate_staging(dtype: gl.constexpr, BLOCK: gl.constexpr):
    """A chunk of the result for each consumer."""
    LAYOUT: gl.constexpr = shared_layout(BLOCK.tile, dtype, BLOCK.cluster, 1 if BLOCK.swap else 0)
    return gl.allocate_shared_memory(dtype, [BLOCK.consumers, BLOCK.tile[0], BLOCK.tile[1]], LAYOUT)


@gluon.jit
def specialize(
    a_desc, b_desc, out, ring, work, BLOCK: gl.constexpr, COUNT: gl.constexpr, LOCATE: gl.constexpr,
    FINISH: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    BEGIN: gl.constexpr = same_work, LOAD: gl.constexpr = load_tiles, LOAD_STEPS: gl.constexpr = no_steps,
):  # fmt: skip
    """Run the producer and the consumers; the launch's ``num_warps`` are one consumer's: 8, or 4 where several are."""
    wait_for_previous_kernel()
    if BLOCK.consumers == 1:
        gl.warp_specialize(
            [
                (consumer, (out, ring, work, BLOCK, COUNT, LOCATE, FINISH, BEGIN, 0)),
                (producer, (a_desc, b_desc, ring, work, BLOCK, COUNT, LOCATE, BEGIN, LOAD, LOAD_STEPS)),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )
    elif BLOCK.consumers == 2:
        gl.warp_specialize(
            [
                (consumer, (out, ring, work, BLOCK, COUNT, LOCATE, FINISH, BEGIN, 0)),
                (consumer, (out, ring, work, BLOCK, COUNT, LOCATE, FINISH, BEGIN, 1)),
                (producer, (a_desc, b_desc, ring, work, BLOCK, COUNT, LOCATE, BEGIN, LOAD, LOAD_STEPS)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consumer, (out, ring, work, BLOCK, COUNT, LOCATE, FINISH, BEGIN, 0)),
                (consumer, (out, ring, work, BLOCK, COUNT, LOCATE, FINISH, BEGIN, 1)),
                (consumer, (out, ring, work, BLOCK, COUNT, LOCATE, FINISH, BEGIN, 2)),
                (producer, (a_desc, b_desc, ring, work, BLOCK, COUNT, LOCATE, BEGIN, LOAD, LOAD_STEPS)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
