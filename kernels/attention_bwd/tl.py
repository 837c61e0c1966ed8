"""What stands before and behind the kernels of the gradients, in Triton: statistics of rows, and dQ in 16 bits."""

from __future__ import annotations

import triton
import triton.language as tl

from warpplan.kernels.attention_bwd.space import ALIGNED_ROWS, AttentionBwdConfig

ROWS = 32
"""Query rows of a program."""
LAUNCH_OPTIONS = {"num_warps": 8, "num_stages": 1}
LOG2_E = tl.constexpr(1.4426950408889634)
WINDOW = 64
"""Packed sequences whose starts a program compares with its rows together."""
STATISTICS_INTEGERS = [
    "SEQUENCES", "HEADS", "LENGTH", "PITCH", "O_B", "O_H", "O_L", "DO_B", "DO_H", "DO_L", "GAP",
]  # fmt: skip
CONVERSION_INTEGERS = ["SEQUENCES", "HEADS", "LENGTH", "PITCH", "DQ_B", "DQ_H", "DQ_L", "GAP"]


@triton.jit
def begun(places, starts, SEQUENCES, GAP, ROUNDED: tl.constexpr, ROWS: tl.constexpr, WINDOW: tl.constexpr):
    """The last of the packed sequences that begins at each of ``places`` or before it, with ``GAP`` rows more for each
    before it, its first row a multiple of ``ROUNDED``."""
    found = tl.zeros([ROWS], tl.int32)
    for base in range(0, SEQUENCES, WINDOW):
        at = base + tl.arange(0, WINDOW)
        first = (tl.load(starts + at, mask=at < SEQUENCES, other=0) & -ROUNDED) + at * GAP
        before = (first[None, :] <= places[:, None]) & (at < SEQUENCES)[None, :]
        found += tl.sum(before.to(tl.int32), 1)
    return tl.maximum(found - 1, 0)


@triton.jit(do_not_specialize=STATISTICS_INTEGERS)
def row_statistics_kernel(
    o, do, lse, statistics, summed, q_starts, SEQUENCES, HEADS, LENGTH, PITCH, O_B, O_H, O_L, DO_B, DO_H, DO_L, GAP,
    ALIGNED: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Fill ``statistics``, fp32 [2 · batches · HEADS, PITCH]: ``lse`` (contiguous, natural) in powers of two, infinite
    for a row that sees no key, so that its weights are 0; and behind all of those the row sums of dO * O. Where
    ``summed`` is not None, that fp32 [batches · HEADS, PITCH, D] becomes zeros. Program (h, i): block i of head h of
    all batches; strides in elements, of the last dimension 1.

    Where ``q_starts`` is not None, the rows of SEQUENCES that are packed lie spread, as the kernel of dK and dV has it;
    between them the weights are 0 too."""
    line = tl.program_id(0)
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    row = r
    inside = r < LENGTH
    if q_starts is not None:
        sequence = begun(r, q_starts, SEQUENCES, GAP, ALIGNED, ROWS, WINDOW)
        begin = tl.minimum(tl.maximum(tl.load(q_starts + sequence), 0), LENGTH)
        end = tl.minimum(tl.load(q_starts + sequence + 1), LENGTH)
        row = begin + r - ((begin & -ALIGNED) + sequence * GAP)
        inside = (row >= begin) & (row < end)
    batch = (line // HEADS).to(tl.int64)
    head = (line % HEADS).to(tl.int64)
    wide = row.to(tl.int64)[:, None]
    o_tile = tl.load(o + batch * O_B + head * O_H + wide * O_L + d[None, :], mask=inside[:, None], other=0.0)
    do_tile = tl.load(do + batch * DO_B + head * DO_H + wide * DO_L + d[None, :], mask=inside[:, None], other=0.0)
    delta = tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), 1)
    first = line.to(tl.int64)
    found = tl.load(lse + first * LENGTH + row, mask=inside, other=float("-inf"))
    found = tl.where(found == float("-inf"), float("inf"), found * LOG2_E)
    tl.store(statistics + first * PITCH + r, found, mask=r < PITCH)
    tl.store(statistics + (first + tl.num_programs(0)) * PITCH + r, delta, mask=r < PITCH)
    if summed is not None:
        zeros = tl.zeros([ROWS, D], tl.float32)
        tl.store(summed + (first * PITCH + r.to(tl.int64)[:, None]) * D + d[None, :], zeros, mask=(r < PITCH)[:, None])


@triton.jit(do_not_specialize=[*CONVERSION_INTEGERS, "SCALE"])
def converted_queries_kernel(
    summed, dq, q_starts, SEQUENCES, HEADS, LENGTH, PITCH, DQ_B, DQ_H, DQ_L, GAP, SCALE,
    ALIGNED: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """dQ = SCALE · ``summed``, fp32 [batches · HEADS, PITCH, D], in its own type. Programs, strides and packed
    sequences as above; rows of no sequence are left as they are."""
    line = tl.program_id(0)
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    place = r
    inside = r < LENGTH
    if q_starts is not None:
        sequence = begun(r, q_starts, SEQUENCES, 0, 1, ROWS, WINDOW)
        begin = tl.minimum(tl.maximum(tl.load(q_starts + sequence), 0), LENGTH)
        end = tl.minimum(tl.load(q_starts + sequence + 1), LENGTH)
        place = r - begin + (begin & -ALIGNED) + sequence * GAP
        inside = (r >= begin) & (r < end)
    wide = place.to(tl.int64)[:, None]
    summed += line.to(tl.int64) * PITCH * D
    value = tl.load(summed + wide * D + d[None, :], mask=inside[:, None], other=0.0) * SCALE
    out = (line // HEADS).to(tl.int64) * DQ_B + (line % HEADS).to(tl.int64) * DQ_H + r.to(tl.int64)[:, None] * DQ_L
    tl.store(dq + out + d[None, :], value.to(dq.dtype.element_ty), mask=inside[:, None])


def constants(config: AttentionBwdConfig) -> dict[str, object]:
    """The constexprs of both kernels."""
    return {"ALIGNED": ALIGNED_ROWS, "D": config.head_dim, "ROWS": ROWS, "WINDOW": WINDOW}


def statistics_signature(
    config: AttentionBwdConfig, element: str
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    types = {"o": f"*{element}", "do": f"*{element}", "lse": "*fp32", "statistics": "*fp32"}
    return _completed(config, types, STATISTICS_INTEGERS, ["o", "do", "statistics"])


def conversion_signature(
    config: AttentionBwdConfig, element: str
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """As :func:`statistics_signature`, of the conversion."""
    return _completed(config, {"dq": f"*{element}", "SCALE": "fp32"}, CONVERSION_INTEGERS, ["dq"])


def _completed(
    config: AttentionBwdConfig, types: dict[str, str], integers: list[str], aligned: list[str]
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """With the integers, and what there is of sums and packed sequences."""
    given = {"summed": "*fp32"} if config.dq == "reduce" else {}
    given |= {"q_starts": "*i32"} if config.packed else {}
    missing = [name for name in ("summed", "q_starts") if name not in given]
    all_types = types | dict.fromkeys(integers, "i32") | given
    return all_types, constants(config) | dict.fromkeys(missing), [*aligned, *given]
