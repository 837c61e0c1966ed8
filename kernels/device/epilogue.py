"""From an accumulator in registers through shared memory to a matrix in global memory, by TMA or by plain stores."""

from __future__ import annotations

from warpplan.kernels.triton_compat import (
    fence_async_shared,
    gl,
    gluon,
    thread_barrier,
    tma_store,
    tma_store_wait,
)


@gluon.constexpr_function
def cta_bases(cluster, split):
    """How the CTAs of a cluster hold a tile of two dimensions, as keyword arguments of a layout: each of two has a half
    along dimension ``split``, or the same whole where that is None."""
    return {} if cluster == 1 else {"cga_layout": [[int(split == 0), int(split == 1)]]}


@gluon.constexpr_function
def shared_layout(shape, dtype, cluster=1, split=None):
    """The swizzle that TMA and wgmma share, of a tile that CTAs hold as :func:`cta_bases` says."""
    return gl.NVMMASharedLayout.get_default_for(list(shape), dtype, **cta_bases(cluster, split))


@gluon.constexpr_function
def accumulator_layout(columns, warps, operand_bits=16, cluster=1):
    """Where a wgmma of 64 rows and ``columns`` columns leaves its result; it takes 256 bits of K from each row. The
    CTAs of a cluster share the rows."""
    shape = [16, columns, 256 // operand_bits]
    bases = cta_bases(cluster, 0)
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[warps, 1], instr_shape=shape, **bases)


@gluon.constexpr_function
def row_layout(columns, warps, cluster=1, split=0):
    """Lanes side by side along rows of ``columns``: the widest stores that rows of any alignment allow."""
    lanes = min(32, columns)
    return gl.BlockedLayout([1, 1], [32 // lanes, lanes], [warps, 1], [1, 0], **cta_bases(cluster, split))


@gluon.jit
def split_columns(x, PARTS: gl.constexpr):
    """``x`` cut into ``PARTS`` (a power of two) blocks of adjacent columns; each thread keeps its own elements."""
    if PARTS == 1:
        return (x,)
    else:
        left, right = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()
        return split_columns(left, PARTS // 2) + split_columns(right, PARTS // 2)


@gluon.jit
def join_columns(left, right, like):
    """Two halves of :func:`split_columns` as the block that they were, laid out as ``like``."""
    halves = gl.join(left, right).permute(0, 2, 1)
    return gl.convert_layout(halves.reshape([like.shape[0], like.shape[1]]), like.type.layout, assert_trivial=True)


@gluon.jit
def column_chunks(acc, COLUMNS: gl.constexpr):
    """The accumulators ``acc``, side by side, cut into blocks of ``COLUMNS`` adjacent columns."""
    first = split_columns(acc[0], acc[0].shape[1] // COLUMNS)
    if len(acc) == 1:
        return first
    else:
        return first + split_columns(acc[1], acc[1].shape[1] // COLUMNS)


@gluon.jit
def store_staged(
    value, row, column, staging, out, row_stride, rows, columns,
    TILE_ROWS: gl.constexpr, TILE_COLUMNS: gl.constexpr, TRANSPOSED: gl.constexpr, TMA_STORE: gl.constexpr,
):  # fmt: skip
    """Convert ``value`` and send it to ``out`` at (``row``, ``column``) through ``staging``, which has a tile's size.

    ``value`` is the tile, or its transpose where ``TRANSPOSED``. ``out`` is a TMA descriptor, or a pointer to ``rows``
    rows of ``row_stride`` elements, ``columns`` of them used. On return a TMA store may still read ``staging``.
    """
    if TMA_STORE:
        tma_store_wait(0)
    thread_barrier()
    converted = value.to(staging.dtype)
    if TRANSPOSED:
        staging.permute((1, 0)).store(converted)
    else:
        staging.store(converted)
    if TMA_STORE:
        fence_async_shared()
        tma_store(out, [row, column], staging)
    else:
        thread_barrier()
        store_rows(staging, row, column, out, row_stride, rows, columns, TILE_ROWS, TILE_COLUMNS, TRANSPOSED)


@gluon.jit
def store_rows(
    staging, row, column, out, row_stride, rows, columns,
    TILE_ROWS: gl.constexpr, TILE_COLUMNS: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Plain masked stores, for rows that TMA cannot address."""
    LAYOUT: gl.constexpr = row_layout(TILE_COLUMNS, gl.num_warps(), gl.num_ctas(), 1 if TRANSPOSED else 0)
    r = row + gl.arange(0, TILE_ROWS, layout=gl.SliceLayout(1, LAYOUT))
    c = column + gl.arange(0, TILE_COLUMNS, layout=gl.SliceLayout(0, LAYOUT))
    pointers = out + gl.cast(r, gl.int64)[:, None] * row_stride + c[None, :]
    gl.store(pointers, staging.load(LAYOUT), mask=(r < rows)[:, None] & (c < columns)[None, :])
