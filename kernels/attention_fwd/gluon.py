"""Attention forward for Hopper: one Gluon source, its plan in constexprs.

    O[b, h] = softmax(scale · Q[b, h] · K[b, g]ᵀ + mask) · V[b, g],  g = h / (heads that share a key head)

by online softmax over blocks of keys, as FlashAttention-3 runs it on Hopper (Shah et al. 2024, arXiv 2407.08608). A
*unit* of work is a tile of query rows of one head (:mod:`~warpplan.kernels.attention_fwd.device.query_tiles`), shared
out among one to three consumers of ``rows`` rows each
(:mod:`~warpplan.kernels.attention_fwd.device.attention_consumer`). One warp, the producer, copies Q by TMA once a unit,
and K and V block by block into two rings of ``depth`` slots that all consumers read. CTA p of G takes units p, p + G,
p + 2G, …

TMA reads zeros behind the end of Q, K and V and writes nothing behind that of O.

Of Q, K and V in 8 bits (e4m3) the result has 16. Hopper multiplies 8-bit operands in shared memory only with adjacent
elements along the sum, so V lies transposed, [batch, heads, D, keys]
(:mod:`warpplan.kernels.attention_fwd.fp8.tl`), its keys in an order in which P goes from the accumulator to the operand
of the next product without leaving its thread (:mod:`warpplan.kernels.attention_fwd.fp8.gluon`).
"""

from __future__ import annotations

from warpplan.kernels.attention_fwd.device.attention_block import (
    AttentionOutput,
    Extents,
    HeadScales,
    KeyRings,
    attention_block,
)
from warpplan.kernels.attention_fwd.device.attention_consumer import consumer
from warpplan.kernels.attention_fwd.device.attention_producer import allocate_queries, allocate_slots, producer
from warpplan.kernels.attention_fwd.space import AttentionConfig
from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS, wait_for_previous_kernel
from warpplan.kernels.device.epilogue import shared_layout
from warpplan.kernels.device.groups import window_groups
from warpplan.kernels.gemm.space import WARP_GROUP
from warpplan.kernels.triton_compat import gl, gluon


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
