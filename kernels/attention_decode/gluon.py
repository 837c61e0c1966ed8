"""Decoding attention for Hopper: few queries, many keys, split among blocks (flash decoding, Dao et al. 2023).

    O[b, h, l] = softmax(scale · Q[b, h, l] · K[b, g]ᵀ + mask) · V[b, g],  g = h / (heads that share a key head)

A block has one tile of 64 rows: the queries of all heads that share key head g of sequence b, those of a query one
after the other, and rows of zeros behind them. It runs through one of ``SPLITS`` parts of the sequence's keys with the
loop of attention forward (:mod:`warpplan.kernels.attention_fwd.device.attention_consumer`). How many keys a sequence
has is read on the device; parts are whole blocks of keys, and a sequence of few keys has empty ones, of which the
result is zero and the log-sum-exp minus infinity. K and V have ragged descriptors
(:mod:`warpplan.kernels.device.boxes`), so that what lies behind a sequence's keys is never read. The results of several
splits are combined by :mod:`warpplan.kernels.attention_decode.tl`.
"""

from __future__ import annotations

from typing import NamedTuple

from warpplan.kernels.attention_decode.space import DecodeConfig
from warpplan.kernels.attention_fwd.device.attention_block import AttentionBlock, Extents, KeyRings, QueryTile
from warpplan.kernels.attention_fwd.device.attention_consumer import LN_2, attend_ahead, attend_serially
from warpplan.kernels.attention_fwd.device.attention_producer import allocate_slots, load_block
from warpplan.kernels.attention_fwd.device.query_tiles import key_box
from warpplan.kernels.attention_fwd.gluon import TYPES
from warpplan.kernels.attention_fwd.space import MMA_ROWS, PRODUCER_REGISTERS
from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS, wait_for_previous_kernel
from warpplan.kernels.device.epilogue import accumulator_layout, shared_layout
from warpplan.kernels.gemm.space import WARP, WARP_GROUP
from warpplan.kernels.triton_compat import fence_async_shared, gl, gluon, thread_barrier


class DecodeTensors(NamedTuple):
    """Pointers with their strides in elements. ``out`` and ``lse`` of several splits are fp32 [batch, kv_heads, splits,
    rows, D] and [batch, kv_heads, splits, rows]; of one they are the results."""

    q: gl.tensor
    q_batch: gl.tensor
    q_head: gl.tensor
    q_query: gl.tensor
    out: gl.tensor
    out_batch: gl.tensor
    out_head: gl.tensor
    out_query: gl.tensor
    lse: gl.tensor


class DecodeSplits(NamedTuple):
    """``lengths`` points to the keys of each sequence, 32-bit, or is None: all have ``keys``, which is also the most.
    Sequence b's first key is row b · ``key_rows`` of K and V."""

    lengths: gl.tensor
    keys: gl.tensor
    key_rows: gl.tensor
    kv_heads: gl.tensor
    queries: gl.tensor
    splits: gl.tensor


@gluon.constexpr_function
def decode_block(columns, width, depth, lookahead, bounded_right):
    return AttentionBlock(
        1, int(MMA_ROWS), columns, width, depth, lookahead, False, False, True, False, bounded_right, True, 1, True
    )


@gluon.jit
def locate_split(parts, BLOCK: gl.constexpr):
    """(which split of its sequence's keys this program has, where that lies)."""
    program = gl.program_id(0)
    split = program % parts.splits
    head = program // parts.splits % parts.kv_heads
    batch = program // parts.splits // parts.kv_heads
    k_length = parts.keys
    if parts.lengths is not None:
        k_length = gl.minimum(gl.maximum(gl.load(parts.lengths + batch), 0), k_length)
    each = gl.cdiv(gl.cdiv(k_length, parts.splits), BLOCK.columns) * BLOCK.columns
    first = split * each
    blocks = gl.maximum(gl.cdiv(gl.minimum(each, k_length - first), BLOCK.columns), 1)
    return split, QueryTile(batch, head, 0, first, blocks, 0, parts.queries, batch * parts.key_rows, k_length)


@gluon.jit
def decode_producer(k_desc, v_desc, rings, parts, BLOCK: gl.constexpr):
    _, tile = locate_split(parts, BLOCK)
    for i in range(tile.blocks):
        key = tile.key + i * BLOCK.columns
        box = key_box(tile, tile.head, key, BLOCK)
        load_block(k_desc, box, rings.k, rings.k_full, rings.k_empty, i, BLOCK)
        load_block(v_desc, box, rings.v, rings.v_full, rings.v_empty, i, BLOCK)


@gluon.constexpr_function
def query_layout(width, warps):
    """16 bytes a thread along the rows."""
    lanes = min(WARP, width // 8)
    return gl.BlockedLayout([1, 8], [WARP // lanes, lanes], [warps, 1], [1, 0])


@gluon.jit
def load_queries(tensors, tile, queries, extents, BLOCK: gl.constexpr):
    """Copy the rows of the tile to shared memory, zeros behind the last."""
    LAYOUT: gl.constexpr = query_layout(BLOCK.width, gl.num_warps())
    r = gl.arange(0, BLOCK.rows, layout=gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, BLOCK.width, layout=gl.SliceLayout(0, LAYOUT))
    head = tile.head * extents.sharers + r % extents.sharers
    first = gl.cast(tile.batch, gl.int64) * tensors.q_batch
    offset = first + gl.cast(head, gl.int64) * tensors.q_head + r // extents.sharers * tensors.q_query
    rows = tile.q_length * extents.sharers
    queries.store(gl.load(tensors.q + offset[:, None] + column[None, :], mask=(r < rows)[:, None], other=0.0))
    fence_async_shared()
    thread_barrier()


@gluon.jit
def decode_consumer(tensors, queries, rings, parts, extents, BLOCK: gl.constexpr, SPLIT: gl.constexpr):
    OUT: gl.constexpr = accumulator_layout(BLOCK.width, gl.num_warps())
    split, tile = locate_split(parts, BLOCK)
    load_queries(tensors, tile, queries, extents, BLOCK)
    index = gl.to_tensor(0)
    if BLOCK.lookahead:
        acc, row_max, row_sum, _ = attend_ahead(queries, rings, rings, index, index, tile, 0, extents, BLOCK, 0)
    else:
        acc, row_max, row_sum = attend_serially(queries, rings, rings, index, tile, 0, extents, BLOCK)
    inverse = gl.where(row_sum == 0.0, 0.0, 1.0 / row_sum)
    acc = acc * gl.convert_layout(inverse, gl.SliceLayout(1, OUT))[:, None]
    lse = gl.convert_layout((row_max + gl.log2(row_sum)) * LN_2, gl.SliceLayout(1, OUT))
    rows = tile.q_length * extents.sharers
    r = gl.arange(0, BLOCK.rows, layout=gl.SliceLayout(1, OUT))
    column = gl.arange(0, BLOCK.width, layout=gl.SliceLayout(0, OUT))
    if SPLIT:
        part = gl.cast((tile.batch * parts.kv_heads + tile.head) * parts.splits + split, gl.int64) * rows
        offset = (part + r) * BLOCK.width
        gl.store(tensors.lse + part + r, lse, mask=r < rows)
    else:
        head = tile.head * extents.sharers + r % extents.sharers
        query = r // extents.sharers
        first = gl.cast(tile.batch, gl.int64) * tensors.out_batch
        offset = first + gl.cast(head, gl.int64) * tensors.out_head + query * tensors.out_query
        if tensors.lse is not None:
            heads = parts.kv_heads * extents.sharers
            at = (gl.cast(tile.batch, gl.int64) * heads + head) * tile.q_length + query
            gl.store(tensors.lse + at, lse, mask=r < rows)
    converted = acc.to(tensors.out.dtype.element_ty)
    gl.store(tensors.out + offset[:, None] + column[None, :], converted, mask=(r < rows)[:, None])


STRIDES = ("Q_BATCH", "Q_HEAD", "Q_QUERY", "OUT_BATCH", "OUT_HEAD", "OUT_QUERY")
"""Multiples of 16 elements, as those of heads are; so a thread reads 16 bytes at once."""
RUNTIME_INTEGERS = ("SHARERS", "QUERIES", "KEYS", "KEY_ROWS", "KV_HEADS", "SPLITS")


@gluon.jit(do_not_specialize=[*RUNTIME_INTEGERS, "SCALE"])
def attention_decode_kernel(
    k_desc,
    v_desc,
    q,
    out,
    lse,
    lengths,
    Q_BATCH,
    Q_HEAD,
    Q_QUERY,
    OUT_BATCH,
    OUT_HEAD,
    OUT_QUERY,
    SHARERS,
    QUERIES,
    KEYS,
    KEY_ROWS,
    KV_HEADS,
    SPLITS,
    SCALE,
    HEAD_DIM: gl.constexpr,
    COLUMNS: gl.constexpr,
    DEPTH: gl.constexpr,
    LOOKAHEAD: gl.constexpr,
    CAUSAL: gl.constexpr,
    SPLIT: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):
    """One program for each split of each key head of each sequence. ``k_desc`` and ``v_desc`` are ragged, of [rows,
    kv_heads, HEAD_DIM]; ``SHARERS`` heads of Q share one of K and V; ``SCALE`` is times log2 e. ``SPLIT``: there are
    several splits, and ``out`` and ``lse`` are theirs. The launch's ``num_warps`` are the consumer's, 4."""
    BLOCK: gl.constexpr = decode_block(COLUMNS, HEAD_DIM, DEPTH, LOOKAHEAD, CAUSAL)
    LAYOUT: gl.constexpr = shared_layout((BLOCK.rows, HEAD_DIM), k_desc.dtype)
    queries = gl.allocate_shared_memory(k_desc.dtype, [BLOCK.rows, HEAD_DIM], LAYOUT)
    k, k_full, k_empty = allocate_slots(k_desc.dtype, BLOCK)
    v, v_full, v_empty = allocate_slots(v_desc.dtype, BLOCK)
    rings = KeyRings(k, v, k_full, k_empty, v_full, v_empty)
    tensors = DecodeTensors(q, Q_BATCH, Q_HEAD, Q_QUERY, out, OUT_BATCH, OUT_HEAD, OUT_QUERY, lse)
    parts = DecodeSplits(lengths, KEYS, KEY_ROWS, KV_HEADS, QUERIES, SPLITS)
    extents = Extents(None, None, 0, 0, 0, SHARERS, 0, 0, 0, 0, 1, SCALE)
    wait_for_previous_kernel()
    gl.warp_specialize(
        [
            (decode_consumer, (tensors, queries, rings, parts, extents, BLOCK, SPLIT)),
            (decode_producer, (k_desc, v_desc, rings, parts, BLOCK)),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )


def descriptor_box(config: DecodeConfig) -> tuple[int, ...]:
    """The TMA box of K and V, in elements."""
    return (1, 1, config.columns, 1, config.head_dim)


def constants(config: DecodeConfig, causal: bool) -> dict[str, object]:
    """The kernel's constexprs; ``causal`` where there are several queries, of which each sees one key more."""
    return {
        "HEAD_DIM": config.head_dim,
        "COLUMNS": config.columns,
        "DEPTH": config.depth,
        "LOOKAHEAD": config.lookahead,
        "CAUSAL": causal,
        "SPLIT": config.splits > 1,
        "PRODUCER_REGISTERS": PRODUCER_REGISTERS,
        "CONSUMER_REGISTERS": config.attention.consumer_registers,
    }


def launch_options(config: DecodeConfig) -> dict[str, int]:
    return {"num_warps": WARP_GROUP, "num_stages": 1, "maxnreg": config.attention.max_registers, **LAUNCH_OPTIONS}


def signature(
    config: DecodeConfig, element: str, causal: bool, *, has_lengths: bool = True, stores_lse: bool = True
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    split = config.splits > 1
    box = descriptor_box(config)
    kinds = {
        name: f"tensordesc<{element}{list(box)},{shared_layout(box, TYPES[element])!r}>"
        for name in ("k_desc", "v_desc")
    }
    pointers = {
        "q": f"*{element}",
        "out": "*fp32" if split else f"*{element}",
        "lse": "*fp32" if split or stores_lse else None,
        "lengths": "*i32" if has_lengths else None,
    }
    given = {name: kind for name, kind in pointers.items() if kind is not None}
    kinds |= given | dict.fromkeys((*STRIDES, *RUNTIME_INTEGERS), "i32") | {"SCALE": "fp32"}
    values = constants(config, causal) | {name: None for name in pointers if name not in given}
    return kinds, values, [*given, *STRIDES]
