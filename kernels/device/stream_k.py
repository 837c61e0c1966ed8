"""Stream-K (Osama et al. 2023, "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on
the GPU"): the K blocks of all tiles in one line, cut into one range a CTA, equal within one block.

A range covers the end of one tile, whole tiles, and the start of another; what it has of one tile is a *segment*. The
CTA with a tile's first K block owns the tile: it adds the partial sums of the ranges that follow, in their order, and
stores. A range that begins inside a tile leaves its first segment's partial sums in the workspace, where it has one
tile's bytes, and arrives at the tile's counter.

Range r of G is CTA G - 1 - r's. An owner thus waits for CTAs of lower numbers alone, and for their first segment,
before which they wait for nothing. A launch has no more CTAs than a free GPU holds at once; where other kernels hold
SMs too, CTAs start in the order of their numbers (NVIDIA does not document it), and none waits for one yet to start.
"""

from __future__ import annotations

from warpplan.kernels.device.epilogue import join_columns, split_columns
from warpplan.kernels.triton_compat import gl, gluon, thread_barrier

SUMS_AT_ONCE: gl.constexpr = gl.constexpr(64)
"""Partial sums that a thread loads at once: 128 beside as many of its own spill (ptxas of Triton 3.6.0)."""
SLOTS_AT_ONCE: gl.constexpr = gl.constexpr(8)
"""Slots of a small tile that are loaded at once, at most: one after the other, each waits for L2."""


@gluon.jit
def own_range():
    """The number of this CTA's range."""
    return gl.num_programs(0) - 1 - gl.program_id(0)


@gluon.jit
def range_start(number, total):
    """The first K block of a range of ``total`` K blocks, of which there are as many as CTAs or more."""
    ranges = gl.num_programs(0)
    return number * (total // ranges) + gl.minimum(number, total % ranges)


@gluon.jit
def range_of(block, total):
    """The range that K block ``block`` of ``total`` is in: the first ones have one block more than the others."""
    ranges = gl.num_programs(0)
    each = total // ranges
    longer = total % ranges
    beyond = gl.maximum(block - longer * (each + 1), 0)
    return gl.where(block < longer * (each + 1), block // (each + 1), longer + beyond // each)


@gluon.jit
def opaque(number):
    """``number``, of which the compiler no longer knows that it is the same for each unit: addresses made of it are not
    kept in registers over a main loop, where they would spill."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def segment_count(total, blocks):
    """How many tiles of ``blocks`` K blocks this CTA's range touches."""
    number = own_range()
    return (range_start(number + 1, total) - 1) // blocks - range_start(number, total) // blocks + 1


@gluon.jit
def segment(index, total, blocks):
    """(tile, its first K block here, how many) of a segment of this CTA's range."""
    start = range_start(own_range(), total)
    tile = start // blocks + index
    first = gl.maximum(start - tile * blocks, 0)
    return tile, first, gl.minimum(range_start(own_range() + 1, total) - tile * blocks, blocks) - first


@gluon.jit
def in_register_order(x):
    """An accumulator's elements in a line, as the threads hold them: what a warp writes of it at once is 512 bytes.

    Of 16 rows, thread 4 g + q holds columns 8 j + 2 q and the next one of rows g and g + 8 (PTX ISA, "wgmma", register
    fragment D); by rows, the same write touches 32 bytes of each of 8 rows.
    """
    rows: gl.constexpr = x.shape[0] // 16
    columns: gl.constexpr = x.shape[1] // 8
    parts = x.reshape([rows, 2, 8, columns, 4, 2]).permute(0, 3, 2, 4, 1, 5)
    return parts.reshape([x.shape[0] * x.shape[1]])


@gluon.jit
def from_register_order(line, like):
    """The accumulator, laid out as ``like``, of which ``line`` is :func:`in_register_order`."""
    rows: gl.constexpr = like.shape[0] // 16
    columns: gl.constexpr = like.shape[1] // 8
    parts = line.reshape([rows, columns, 8, 4, 2, 2]).permute(0, 4, 2, 1, 3, 5)
    return gl.convert_layout(parts.reshape([like.shape[0], like.shape[1]]), like.type.layout, assert_trivial=True)


@gluon.jit
def partial_sums(line, slot, workspace, SHARERS: gl.constexpr, PART: gl.constexpr, CHUNKS: gl.constexpr,
                 CHUNK: gl.constexpr):  # fmt: skip
    """Pointers to one chunk of a slot, :func:`in_register_order`: workspace[slot][consumer][chunk], fp32."""
    SIZE: gl.constexpr = line.shape[0]
    chunk = (slot * SHARERS + PART) * CHUNKS + CHUNK
    return workspace + gl.cast(chunk, gl.int64) * SIZE + gl.arange(0, SIZE, layout=line.type.layout)


@gluon.jit
def store_partial_sums(x, slot, workspace, SHARERS: gl.constexpr, PART: gl.constexpr, CHUNKS: gl.constexpr,
                       CHUNK: gl.constexpr):  # fmt: skip
    """Leave a chunk of an accumulator in a slot of the workspace."""
    if x.shape[0] * x.shape[1] > SUMS_AT_ONCE * 32 * gl.num_warps():
        left, right = split_columns(x, 2)
        store_partial_sums(left, slot, workspace, SHARERS, PART, 2 * CHUNKS, 2 * CHUNK)
        store_partial_sums(right, slot, workspace, SHARERS, PART, 2 * CHUNKS, 2 * CHUNK + 1)
    else:
        line = in_register_order(x)
        gl.store(partial_sums(line, slot, workspace, SHARERS, PART, CHUNKS, CHUNK), line)


@gluon.jit
def add_partial_sums(x, first, end, step, workspace, SHARERS: gl.constexpr, PART: gl.constexpr, CHUNKS: gl.constexpr,
                     CHUNK: gl.constexpr):  # fmt: skip
    """A chunk of an accumulator and those of the slots first, first + step, …, before end, added in this order."""
    if x.shape[0] * x.shape[1] > SUMS_AT_ONCE * 32 * gl.num_warps():
        left, right = split_columns(x, 2)
        left = add_partial_sums(left, first, end, step, workspace, SHARERS, PART, 2 * CHUNKS, 2 * CHUNK)
        right = add_partial_sums(right, first, end, step, workspace, SHARERS, PART, 2 * CHUNKS, 2 * CHUNK + 1)
        return join_columns(left, right, x)
    else:
        total = in_register_order(x)
        SLOTS: gl.constexpr = min(SUMS_AT_ONCE * 32 * gl.num_warps() // total.shape[0], SLOTS_AT_ONCE)
        for slot in range(first, end, SLOTS * step):
            for i in gl.static_range(SLOTS):
                sums = partial_sums(total, slot + i * step, workspace, SHARERS, PART, CHUNKS, CHUNK)
                total += gl.load(sums, slot + i * step < end, 0.0, cache_modifier=".cg")
        return from_register_order(total, x)


@gluon.jit
def arrive(counter):
    """Say that what this partition has written is there; every thread's writes are before the one release."""
    thread_barrier()
    gl.atomic_add(counter, 1, sem="release", scope="gpu")


@gluon.jit
def wait_for_arrivals(counter, count):
    """Wait until ``count`` others, above zero, have arrived, and leave zero for the next launch."""
    while gl.atomic_cas(counter, count, 0, sem="acquire", scope="gpu") != count:
        pass
