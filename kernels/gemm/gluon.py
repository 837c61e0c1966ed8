"""The warp-specialised GEMM for Hopper: one Gluon source, its plan in constexprs.

C[M, N] = A[M, K] · B[N, K]ᵀ with fp32 accumulation. One warp, the producer, copies A and B tiles by TMA into a ring of
``DEPTH`` slots; one to three consumers multiply them and store C. A *unit* of work is one tile of C, or one of the
``SPLIT_K`` ranges of its K; the first ``WHOLE_TILES`` units are tiles that are not split. CTA p of G takes units p,
p + G, p + 2G, …

Ring and barriers are those of :mod:`warpplan.kernels.device.rings`. Beside them, in the ping-pong scheme, barrier
``order[c]`` says that consumer c may run its main loop; the consumers take units alternately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from warpplan.kernels.device.epilogue import accumulator_layout, shared_layout, split_columns, store_staged
from warpplan.kernels.device.rings import init_ring, previous_slot, wait_empty, wait_full
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.gemm.units import Sizes, k_range, place, tile_counts, tile_origin, unit_count
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


@dataclass(frozen=True)
class Block:
    """Compile-time facts of one block: the plan, and what :func:`block` derives from it (sizes in elements)."""

    scheme: str
    consumers: int
    block_m: int
    block_n: int
    block_k: int
    depth: int
    chunks: int
    staging_in_ring: bool
    swap: bool
    tma_store: bool
    split: bool
    sharers: int
    rows: int
    chunk_columns: int
    tile: tuple[int, int]


class Ring(NamedTuple):
    """``a`` holds ``sharers`` tiles a slot, one for each consumer that works on the slot; they share ``b``."""

    a: gl.shared_memory_descriptor
    b: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    order: gl.shared_memory_descriptor


class Output(NamedTuple):
    """``c`` is a TMA descriptor, or a pointer to rows of ``row_stride`` elements; ``workspace`` takes partial sums."""

    c: gl.tensor
    row_stride: gl.tensor
    staging: gl.shared_memory_descriptor
    workspace: gl.tensor
    counters: gl.tensor


@gluon.constexpr_function
def block(scheme, consumers, block_m, block_n, block_k, depth, chunks, staging_in_ring, swap, tma_store, split):
    sharers = consumers if scheme == "cooperative" else 1
    rows = block_m // sharers
    columns = block_n // chunks
    return Block(
        scheme, consumers, block_m, block_n, block_k, depth, chunks, staging_in_ring, swap, tma_store, split,
        sharers=sharers,
        rows=rows,
        chunk_columns=columns,
        tile=(columns, rows) if swap else (rows, columns),
    )  # fmt: skip


@gluon.jit
def producer(a_desc, b_desc, ring, sizes, BLOCK: gl.constexpr):
    SHARERS: gl.constexpr = BLOCK.sharers
    SLOT_BYTES: gl.constexpr = SHARERS * a_desc.block_type.nbytes + b_desc.block_type.nbytes
    index = 0
    for unit in range(gl.program_id(0), unit_count(sizes, BLOCK), gl.num_programs(0)):
        row, column = tile_origin(unit, sizes, BLOCK)
        first, count = k_range(unit, sizes, BLOCK)
        for k in range(first, first + count):
            slot = index % BLOCK.depth
            with proton.scope("producer_wait"):
                wait_empty(ring.empty, index, BLOCK.depth)
            with proton.scope("tma_issue"):
                full = ring.full.index(slot)
                mbarrier.expect(full, SLOT_BYTES)
                for part in gl.static_range(SHARERS):
                    a_tile = ring.a.index(slot * SHARERS + part)
                    tma_load(a_desc, [row + part * BLOCK.rows, k * BLOCK.block_k], full, a_tile)
                tma_load(b_desc, [column, k * BLOCK.block_k], full, ring.b.index(slot))
            index += 1


@gluon.jit
def consumer(out, ring, sizes, BLOCK: gl.constexpr, ID: gl.constexpr):
    PART: gl.constexpr = ID % BLOCK.sharers
    PINGPONG: gl.constexpr = BLOCK.scheme == "pingpong"
    ROWS: gl.constexpr = BLOCK.rows
    COLUMNS: gl.constexpr = BLOCK.block_n
    LAYOUT: gl.constexpr = accumulator_layout(COLUMNS, gl.num_warps())
    programs = gl.num_programs(0)
    start = gl.program_id(0)
    stride = programs
    index = 0
    done = 0
    if PINGPONG:
        start += ID * programs
        stride = 2 * programs
        if ID == 1:
            index = k_range(gl.program_id(0), sizes, BLOCK)[1]
    for unit in range(start, unit_count(sizes, BLOCK), stride):
        row, column = tile_origin(unit, sizes, BLOCK)
        count = k_range(unit, sizes, BLOCK)[1]
        if PINGPONG:
            with proton.scope("consumer_wait"):
                mbarrier.wait(ring.order.index(ID), (done & 1) ^ (1 - ID))
            done += 1
        acc = gl.zeros((ROWS, COLUMNS), gl.float32, LAYOUT)
        for k in range(count):
            slot = index % BLOCK.depth
            with proton.scope("consumer_wait"):
                wait_full(ring.full, index, BLOCK.depth)
            with proton.scope("mma"):
                a = ring.a.index(slot * BLOCK.sharers + PART)
                b = ring.b.index(slot).permute((1, 0))
                pending = warpgroup_mma(a, b, acc, use_acc=k > 0, is_async=True)
                acc = warpgroup_mma_wait(num_outstanding=1, deps=[pending])
            # This multiply may still read its slot; the one before has finished with the previous slot.
            mbarrier.arrive(ring.empty.index(previous_slot(index, BLOCK.depth)), count=1, pred=k > 0)
            index += 1
        if PINGPONG:
            mbarrier.arrive(ring.order.index(1 - ID), count=1)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
        last = previous_slot(index, BLOCK.depth)
        with proton.scope("epilogue"):
            if BLOCK.staging_in_ring:
                # The other warps' multiplies read these bytes until here.
                thread_barrier()
                finish(
                    acc,
                    unit,
                    row + PART * BLOCK.rows,
                    column,
                    ring_staging(ring, last, BLOCK, PART),
                    out,
                    sizes,
                    BLOCK,
                    PART,
                )
                if BLOCK.tma_store:
                    tma_store_wait(0)
                else:
                    # The producer's copy must come after these plain writes to its slot.
                    fence_async_shared()
                thread_barrier()
                mbarrier.arrive(ring.empty.index(last), count=1)
            else:
                mbarrier.arrive(ring.empty.index(last), count=1)
                finish(acc, unit, row + PART * BLOCK.rows, column, out.staging.index(ID), out, sizes, BLOCK, PART)
        if PINGPONG:
            index += k_range(unit + programs, sizes, BLOCK)[1]
    if BLOCK.tma_store:
        tma_store_wait(0)


@gluon.jit
def ring_staging(ring, slot, BLOCK: gl.constexpr, PART: gl.constexpr):
    """A C chunk's view of bytes that this consumer alone still holds: its A tile, or B's where nobody shares B."""
    LAYOUT: gl.constexpr = shared_layout(BLOCK.tile, ring.a.dtype)
    if BLOCK.sharers == 1 and BLOCK.block_n > BLOCK.block_m:
        return reinterpret(ring.b.index(slot), ring.a.dtype, BLOCK.tile, LAYOUT)
    else:
        return reinterpret(ring.a.index(slot * BLOCK.sharers + PART), ring.a.dtype, BLOCK.tile, LAYOUT)


@gluon.jit
def finish(acc, unit, row, column, staging, out, sizes, BLOCK: gl.constexpr, PART: gl.constexpr):
    """Store a unit's accumulator; of a split tile, only the last unit to arrive stores, all partial sums added up."""
    CHUNKS: gl.constexpr = BLOCK.chunks
    parts = split_columns(acc, CHUNKS)
    if BLOCK.split:
        tile, split, splits = place(unit, sizes, BLOCK)
        # The workspace and the counters are those of split tiles alone.
        tile -= sizes.whole_tiles
        tiles = tile_counts(sizes, BLOCK)[1]
        last = True
        if splits > 1:
            for i in gl.static_range(CHUNKS):
                gl.store(partial(parts[i], split, tiles, tile, out, BLOCK, PART, i), parts[i])
            # Every thread's partial sums are written before the one release below, which then covers them all.
            thread_barrier()
            counter = out.counters + tile * BLOCK.sharers + PART
            last = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == sizes.split_k - 1
            if last:
                gl.store(counter, 0)
        if last:
            for i in gl.static_range(CHUNKS):
                total = parts[i]
                if splits > 1:
                    # In the order of the splits, not of their arrival, so that every run rounds alike.
                    total = gl.zeros_like(parts[i])
                    for s in range(splits):
                        total += gl.load(partial(parts[i], s, tiles, tile, out, BLOCK, PART, i), cache_modifier=".cg")
                store_chunk(total, row, column + i * BLOCK.chunk_columns, staging, out, sizes, BLOCK)
    else:
        for i in gl.static_range(CHUNKS):
            store_chunk(parts[i], row, column + i * BLOCK.chunk_columns, staging, out, sizes, BLOCK)


@gluon.jit
def partial(like, split, tiles, tile, out, BLOCK: gl.constexpr, PART: gl.constexpr, CHUNK: gl.constexpr):
    """Pointers to one chunk of partial sums, laid out as ``like``: workspace[split][tile][consumer][chunk]."""
    ROWS: gl.constexpr = BLOCK.rows
    COLUMNS: gl.constexpr = BLOCK.chunk_columns
    r = gl.arange(0, ROWS, layout=gl.SliceLayout(1, like.type.layout))
    c = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, like.type.layout))
    chunk = ((split * tiles + tile) * BLOCK.sharers + PART) * BLOCK.chunks + CHUNK
    return out.workspace + gl.cast(chunk, gl.int64) * (ROWS * COLUMNS) + (r[:, None] * COLUMNS + c[None, :])


@gluon.jit
def store_chunk(chunk, row, column, staging, out, sizes, BLOCK: gl.constexpr):
    """Send ``chunk`` to C through ``staging``; where the operands are swapped, it is a chunk of C's transpose."""
    if BLOCK.swap:
        store_staged(
            chunk, column, row, staging, out.c, out.row_stride, sizes.columns, sizes.rows,
            BLOCK.tile[0], BLOCK.tile[1], True, BLOCK.tma_store,
        )  # fmt: skip
    else:
        store_staged(
            chunk, row, column, staging, out.c, out.row_stride, sizes.rows, sizes.columns,
            BLOCK.tile[0], BLOCK.tile[1], False, BLOCK.tma_store,
        )  # fmt: skip


@gluon.jit
def order_barriers():
    """One barrier a ping-pong consumer: it may run its main loop."""
    order = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(order.index(i), count=1)
    return order


RUNTIME_INTEGERS = ["M", "N", "K", "GROUP_M", "SPLIT_K", "WHOLE_TILES", "C_ROW_STRIDE"]


@gluon.jit(do_not_specialize=["c", *RUNTIME_INTEGERS])
def gemm_kernel(
    a_desc,
    b_desc,
    c,
    workspace,
    counters,
    M,
    N,
    K,
    GROUP_M,
    SPLIT_K,
    WHOLE_TILES,
    C_ROW_STRIDE,
    SCHEME: gl.constexpr,
    CONSUMERS: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    DEPTH: gl.constexpr,
    EPILOGUE_SPLIT: gl.constexpr,
    STAGING_IN_RING: gl.constexpr,
    SWAP: gl.constexpr,
    TMA_STORE: gl.constexpr,
    SPLIT: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """M, N, K of the computed matrix; ``workspace`` and ``counters`` are None unless ``SPLIT``.

    Counters are zero between launches. The launch's ``num_warps`` are one consumer's: 4 or 8, of several consumers 4.
    """
    BLOCK: gl.constexpr = block(
        SCHEME, CONSUMERS, BLOCK_M, BLOCK_N, BLOCK_K, DEPTH, EPILOGUE_SPLIT, STAGING_IN_RING, SWAP, TMA_STORE, SPLIT
    )
    a = gl.allocate_shared_memory(a_desc.dtype, [DEPTH * BLOCK.sharers, BLOCK.rows, BLOCK_K], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [DEPTH, BLOCK_N, BLOCK_K], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [DEPTH, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [DEPTH, 1], mbarrier.MBarrierLayout())
    init_ring(full, empty, DEPTH, BLOCK.sharers)
    # Barriers that nobody uses would die here, and their bytes, still armed, would become the staging's.
    order = full
    if SCHEME == "pingpong":
        order = order_barriers()
    if STAGING_IN_RING:
        staging = a
    else:
        STAGING: gl.constexpr = shared_layout(BLOCK.tile, a_desc.dtype)
        staging = gl.allocate_shared_memory(a_desc.dtype, [BLOCK.consumers, BLOCK.tile[0], BLOCK.tile[1]], STAGING)
    ring = Ring(a, b, full, empty, order)
    sizes = Sizes(M, N, K, GROUP_M, SPLIT_K, WHOLE_TILES)
    out = Output(c, C_ROW_STRIDE, staging, workspace, counters)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [(consumer, (out, ring, sizes, BLOCK, 0)), (producer, (a_desc, b_desc, ring, sizes, BLOCK))],
            [1],
            [PRODUCER_REGISTERS],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consumer, (out, ring, sizes, BLOCK, 0)),
                (consumer, (out, ring, sizes, BLOCK, 1)),
                (producer, (a_desc, b_desc, ring, sizes, BLOCK)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consumer, (out, ring, sizes, BLOCK, 0)),
                (consumer, (out, ring, sizes, BLOCK, 1)),
                (consumer, (out, ring, sizes, BLOCK, 2)),
                (producer, (a_desc, b_desc, ring, sizes, BLOCK)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )


def descriptor_blocks(config: GemmConfig) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """The TMA boxes of A', B' and C in elements; A' and B' are swapped operands where the plan swaps."""
    columns = config.block_n // config.epilogue_split
    c = (columns, config.consumer_rows) if config.swap else (config.consumer_rows, columns)
    return (config.consumer_rows, config.block_k), (config.block_n, config.block_k), c


def constants(config: GemmConfig, tma_store: bool) -> dict[str, object]:
    """The kernel's constexprs."""
    return {
        "SCHEME": config.scheme,
        "CONSUMERS": config.consumers,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "DEPTH": config.depth,
        "EPILOGUE_SPLIT": config.epilogue_split,
        "STAGING_IN_RING": config.staging == "ring",
        "SWAP": config.swap,
        "TMA_STORE": tma_store,
        "SPLIT": config.split_k > 1,
        "PRODUCER_REGISTERS": config.producer_registers,
        "CONSUMER_REGISTERS": config.consumer_registers,
    }


def launch_options(config: GemmConfig) -> dict[str, int]:
    return {"num_warps": config.consumer_warps, "num_stages": 1, "maxnreg": config.max_registers}


def signature(config: GemmConfig, element: str, tma_store: bool) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    dtype = {"bf16": gl.bfloat16, "fp16": gl.float16}[element]
    a, b, c = (f"tensordesc<{element}{list(box)},{shared_layout(box, dtype)!r}>" for box in descriptor_blocks(config))
    types = {"a_desc": a, "b_desc": b, "c": c if tma_store else f"*{element}"}
    types |= dict.fromkeys(RUNTIME_INTEGERS, "i32")
    values = constants(config, tma_store)
    if config.split_k > 1:
        types |= {"workspace": "*fp32", "counters": "*i32"}
        return types, values, ["workspace", "counters"]
    return types, values | {"workspace": None, "counters": None}, []
