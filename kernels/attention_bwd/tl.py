"""What stands before and behind the kernels of the gradients, in Triton: statistics of rows, and dQ in 16 bits."""

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 32
"""Query rows of a program."""
LAUNCH_OPTIONS = {"num_warps": 8, "num_stages": 1}
LOG2_E = tl.constexpr(1.4426950408889634)
STATISTICS_INTEGERS = ["HEADS", "LENGTH", "PITCH", "O_B", "O_H", "O_L", "DO_B", "DO_H", "DO_L"]
CONVERSION_INTEGERS = ["HEADS", "LENGTH", "DQ_B", "DQ_H", "DQ_L"]


@triton.jit(do_not_specialize=STATISTICS_INTEGERS)
def row_statistics_kernel(
    o, do, lse, statistics, summed, HEADS, LENGTH, PITCH, O_B, O_H, O_L, DO_B, DO_H, DO_L,
    D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Fill ``statistics``, fp32 [2 · batches · HEADS, PITCH]: ``lse`` (contiguous, natural) in powers of two, infinite
    for a row that sees no key, so that its weights are 0; and behind all of those the row sums of dO * O. Where
    ``summed`` is not None, that fp32 [batches · HEADS, LENGTH, D] becomes zeros. Program (h, i): block i of head h of
    all batches; strides in elements, of the last dimension 1."""
    line = tl.program_id(0)
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    inside = r < LENGTH
    batch = (line // HEADS).to(tl.int64)
    head = (line % HEADS).to(tl.int64)
    wide = r.to(tl.int64)[:, None]
    o_tile = tl.load(o + batch * O_B + head * O_H + wide * O_L + d[None, :], mask=inside[:, None], other=0.0)
    do_tile = tl.load(do + batch * DO_B + head * DO_H + wide * DO_L + d[None, :], mask=inside[:, None], other=0.0)
    delta = tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), 1)
    first = line.to(tl.int64)
    found = tl.load(lse + first * LENGTH + r, mask=inside, other=0.0)
    found = tl.where(found == float("-inf"), float("inf"), found * LOG2_E)
    tl.store(statistics + first * PITCH + r, found, mask=inside)
    tl.store(statistics + (first + tl.num_programs(0)) * PITCH + r, delta, mask=inside)
    if summed is not None:
        zeros = tl.zeros([ROWS, D], tl.float32)
        tl.store(summed + (first * LENGTH + wide) * D + d[None, :], zeros, mask=inside[:, None])


@triton.jit(do_not_specialize=[*CONVERSION_INTEGERS, "SCALE"])
def converted_queries_kernel(
    summed, dq, HEADS, LENGTH, DQ_B, DQ_H, DQ_L, SCALE, D: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """dQ = SCALE · ``summed``, fp32 [batches · HEADS, LENGTH, D], in its own type. Programs and strides as above."""
    line = tl.program_id(0)
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    inside = (r < LENGTH)[:, None]
    wide = r.to(tl.int64)[:, None]
    value = tl.load(summed + (line.to(tl.int64) * LENGTH + wide) * D + d[None, :], mask=inside, other=0.0) * SCALE
    place = (line // HEADS).to(tl.int64) * DQ_B + (line % HEADS).to(tl.int64) * DQ_H + wide * DQ_L
    tl.store(dq + place + d[None, :], value.to(dq.dtype.element_ty), mask=inside)


def statistics_signature(
    element: str, head_dim: int, sums: bool
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them; with
    ``sums`` zeros are written for the sums of dQ."""
    types = {"o": f"*{element}", "do": f"*{element}", "lse": "*fp32", "statistics": "*fp32"}
    types |= dict.fromkeys(STATISTICS_INTEGERS, "i32")
    values: dict[str, object] = {"D": head_dim, "ROWS": ROWS}
    aligned = ["o", "do", "statistics"]
    if sums:
        return types | {"summed": "*fp32"}, values, [*aligned, "summed"]
    return types, values | {"summed": None}, aligned


def conversion_signature(element: str, head_dim: int) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """As :func:`statistics_signature`, of the conversion."""
    types = {"summed": "*fp32", "dq": f"*{element}"} | dict.fromkeys(CONVERSION_INTEGERS, "i32") | {"SCALE": "fp32"}
    return types, {"D": head_dim, "ROWS": ROWS}, ["summed", "dq"]
