"""Attention backward for Hopper, the gradients of keys and values (and of queries by reduction): one Gluon source.

    P = exp(scale · Q · Kᵀ + mask - lse)        dV = Pᵀ · dO        dP = dO · Vᵀ
    dS = P * (dP - delta)                       dK = scale · dSᵀ · Q        dQ = scale · dS · K

with ``lse`` the log-sum-exp of the forward pass and ``delta`` the row sums of dO * O, as FlashAttention-2 has it (Dao
2023, arXiv 2307.08691) and FlashAttention-3 runs it on Hopper (Shah et al. 2024, arXiv 2407.08608). A *unit* of work is
a tile of ``keys`` of one key head (:mod:`~warpplan.kernels.attention_bwd.device.key_tiles`). One warp, the producer,
copies its K and V by TMA once, and then Q with ``lse`` and dO with ``delta``, block by block of ``rows`` queries, for
each query head that shares the key head in turn, so that dK and dV are summed in one order always. The consumer
(:mod:`~warpplan.kernels.attention_bwd.device.gradient_consumer`) keeps both in registers until the unit ends. CTA p of
G takes units p, p + G, p + 2G, …

dQ is added up in no fixed order of units, so that its last bits may differ from run to run. Without ``reduces`` it is
left out, and :mod:`~warpplan.kernels.attention_bwd.query_gradients` computes dQ.
"""

from __future__ import annotations

from warpplan.kernels.attention_bwd.device.gradient_consumer import consumer
from warpplan.kernels.attention_bwd.device.key_gradient_block import (
    GradientExtents,
    GradientOutput,
    RowRings,
    key_gradient_block,
)
from warpplan.kernels.attention_bwd.device.row_producer import allocate_keys, allocate_rows, producer
from warpplan.kernels.attention_bwd.space import AttentionBwdConfig
from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS, wait_for_previous_kernel
from warpplan.kernels.device.epilogue import shared_layout
from warpplan.kernels.device.groups import window_groups
from warpplan.kernels.triton_compat import gl, gluon

RUNTIME_INTEGERS = [
    "SEQUENCES", "UNITS", "TILES", "KEY_HEADS", "KV_HEADS", "SHARERS", "Q_LENGTH", "K_LENGTH", "LOW", "HIGH",
    "HEAD_GROUP",
]  # fmt: skip


STARTS = ("q_starts", "k_starts")


@gluon.jit(do_not_specialize=[*RUNTIME_INTEGERS, "SCALE", "LOG_SCALE"])
def key_gradients_kernel(
    q_desc,
    k_desc,
    v_desc,
    do_desc,
    statistics,
    dk_desc,
    dv_desc,
    dq_desc,
    q_starts,
    k_starts,
    SEQUENCES,
    UNITS,
    TILES,
    KEY_HEADS,
    KV_HEADS,
    SHARERS,
    Q_LENGTH,
    K_LENGTH,
    LOW,
    HIGH,
    HEAD_GROUP,
    SCALE,
    LOG_SCALE,
    KEYS: gl.constexpr,
    ROWS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    DEPTH: gl.constexpr,
    DS_IN_REGISTERS: gl.constexpr,
    REDUCES: gl.constexpr,
    BOUNDED_LEFT: gl.constexpr,
    BOUNDED_RIGHT: gl.constexpr,
    WINDOW: gl.constexpr,
    GAP: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):
    """Descriptors of [batch, heads, length, HEAD_DIM], of the statistics [2 · heads, Q_LENGTH] (log-sum-exps in powers
    of two, then deltas), and of the fp32 dQ [heads, Q_LENGTH, HEAD_DIM], which holds zeros before, or None without
    ``REDUCES``. ``KEY_HEADS`` are those of all batches. The launch's ``num_warps`` are the consumer's.

    ``SEQUENCES`` that are packed, at which a warp looks ``WINDOW`` at a time, have ragged descriptors of [rows, heads,
    HEAD_DIM], 32-bit ``q_starts`` and ``k_starts`` [SEQUENCES + 1], and spread statistics and sums; else ``WINDOW`` is
    0 and the starts are None."""
    BLOCK: gl.constexpr = key_gradient_block(
        KEYS, ROWS, HEAD_DIM, DEPTH, DS_IN_REGISTERS, REDUCES, BOUNDED_LEFT, BOUNDED_RIGHT, WINDOW, GAP
    )
    held = allocate_keys(k_desc.dtype, BLOCK)
    q, lse, q_full, q_empty = allocate_rows(q_desc.dtype, BLOCK)
    do, delta, do_full, do_empty = allocate_rows(do_desc.dtype, BLOCK)
    ds = q
    staging = q
    if REDUCES or not DS_IN_REGISTERS:
        ds = gl.allocate_shared_memory(q_desc.dtype, [KEYS, ROWS], shared_layout((KEYS, ROWS), q_desc.dtype))
    if REDUCES:
        LAYOUT: gl.constexpr = shared_layout((ROWS, HEAD_DIM), gl.float32)
        staging = gl.allocate_shared_memory(gl.float32, [ROWS, HEAD_DIM], LAYOUT)
    rings = RowRings(q, lse, q_full, q_empty, do, delta, do_full, do_empty)
    extents = GradientExtents(
        q_starts, k_starts, SEQUENCES, UNITS, TILES, KEY_HEADS, KV_HEADS, SHARERS, Q_LENGTH, K_LENGTH, LOW, HIGH,
        HEAD_GROUP, SCALE, LOG_SCALE,
    )  # fmt: skip
    out = GradientOutput(dk_desc, dv_desc, dq_desc, ds, staging)
    wait_for_previous_kernel()
    gl.warp_specialize(
        [
            (consumer, (out, held, rings, extents, BLOCK)),
            (producer, (q_desc, k_desc, v_desc, do_desc, statistics, held, rings, extents, BLOCK)),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )


TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16}
"""Triton's short names of element types."""


def descriptor_boxes(config: AttentionBwdConfig) -> dict[str, tuple[int, ...]]:
    """The TMA boxes of each descriptor, in elements."""
    rows, keys = config.box(config.rows), config.box(config.keys)
    boxes = dict.fromkeys(("q_desc", "do_desc"), rows) | dict.fromkeys(("k_desc", "v_desc", "dk_desc", "dv_desc"), keys)
    return boxes | {"statistics": (1, config.rows), "dq_desc": (1, config.rows, config.head_dim)}


def constants(
    config: AttentionBwdConfig, bounded_left: bool, bounded_right: bool, sequences: int = 1
) -> dict[str, object]:
    """The kernel's constexprs; ``sequences`` are those that are packed."""
    return {
        "KEYS": config.keys,
        "ROWS": config.rows,
        "HEAD_DIM": config.head_dim,
        "DEPTH": config.depth,
        "DS_IN_REGISTERS": config.ds_in_registers,
        "REDUCES": config.dq == "reduce",
        "BOUNDED_LEFT": bounded_left,
        # Without a bound the consumer of packed sequences spills three registers: theirs is then out of reach.
        "BOUNDED_RIGHT": bounded_right or config.packed,
        "WINDOW": window_groups(sequences) if config.packed else 0,
        "GAP": config.gap_rows,
        "PRODUCER_REGISTERS": config.producer_registers,
    }


def launch_options(config: AttentionBwdConfig) -> dict[str, int]:
    return {"num_warps": config.consumer_warps, "num_stages": 1, "maxnreg": config.max_registers, **LAUNCH_OPTIONS}


def signature(
    config: AttentionBwdConfig, element: str, bounded_left: bool, bounded_right: bool, sequences: int = 1
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    types, values = {}, constants(config, bounded_left, bounded_right, sequences)
    for name, box in descriptor_boxes(config).items():
        short = "fp32" if name in ("statistics", "dq_desc") else element
        layout = shared_layout(box, gl.float32 if short == "fp32" else TYPES[element])
        types[name] = f"tensordesc<{short}{list(box)},{layout!r}>"
    types |= dict.fromkeys(RUNTIME_INTEGERS, "i32") | {"SCALE": "fp32", "LOG_SCALE": "fp32"}
    if config.dq != "reduce":
        del types["dq_desc"]
        values |= {"dq_desc": None}
    if config.packed:
        return types | dict.fromkeys(STARTS, "*i32"), values, list(STARTS)
    return types, values | dict.fromkeys(STARTS), []
