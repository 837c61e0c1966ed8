"""Byte offsets for buffers that are live for part of the time, in one linear memory.

Two buffers may share bytes where their live ranges [lower, upper) do not meet. Largest first is tried before the exact
search: without alignment gaps it is enough whenever all buffers are live together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from warpplan.planner.cpsat import run
from warpplan.planner.errors import InvalidInput


@dataclass(frozen=True)
class Block:
    """``size`` bytes at a multiple of ``alignment``, live during the half-open [``lower``, ``upper``)."""

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1


@dataclass(frozen=True)
class Packing:
    """``offsets`` in the order of the blocks where ``status`` is "packed". ``reason`` says what binds otherwise.

    ``peak_bytes`` is the largest sum of sizes live at once: no capacity below it can do.
    """

    status: Literal["packed", "infeasible", "unknown"]
    offsets: tuple[int, ...]
    peak_bytes: int
    reason: str = ""


def pack(blocks: Sequence[Block], capacity: int, *, time_limit_s: float = 10.0) -> Packing:
    """Offsets within [0, ``capacity``), or the proof that there are none, or "unknown" at the time limit."""
    _validate(blocks, capacity)
    peak, at = _peak(blocks)
    if peak > capacity:
        names = [b.id for b in blocks if b.lower <= at < b.upper]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        return Packing("infeasible", (), peak, f"at time {at} {shown} need {peak} of {capacity} bytes")
    offsets = _largest_first(blocks, capacity)
    if offsets is not None:
        return Packing("packed", offsets, peak)
    return _search(blocks, capacity, peak, time_limit_s)


def _peak(blocks: Sequence[Block]) -> tuple[int, int]:
    """The most bytes live at once and when; sweeping the ends, releases before acquisitions."""
    events = sorted((time, change) for b in blocks for time, change in ((b.lower, b.size), (b.upper, -b.size)))
    live, peak, at = 0, 0, 0
    for time, change in events:
        live += change
        if live > peak:
            peak, at = live, time
    return peak, at


def _largest_first(blocks: Sequence[Block], capacity: int) -> tuple[int, ...] | None:
    """Each block at the lowest place free during its life; widest alignment, then size, decides who goes first."""
    offsets: dict[int, int] = {}
    for i in sorted(range(len(blocks)), key=lambda i: (-blocks[i].alignment, -blocks[i].size, i)):
        block = blocks[i]
        offset = 0
        for low, high in sorted(
            (offsets[j], offsets[j] + blocks[j].size)
            for j in offsets
            if blocks[j].lower < block.upper and block.lower < blocks[j].upper
        ):
            if offset + block.size <= low:
                break
            offset = max(offset, -(-high // block.alignment) * block.alignment)
        if offset + block.size > capacity:
            return None
        offsets[i] = offset
    return tuple(offsets[i] for i in range(len(blocks)))


def _search(blocks: Sequence[Block], capacity: int, peak: int, time_limit_s: float) -> Packing:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    offsets, times, places = [], [], []
    for block in blocks:
        step = model.new_int_var(0, (capacity - block.size) // block.alignment, "")
        offsets.append(block.alignment * step)
        times.append(model.new_fixed_size_interval_var(block.lower, block.upper - block.lower, ""))
        places.append(model.new_fixed_size_interval_var(block.alignment * step, block.size, ""))
    model.add_no_overlap_2d(times, places)
    model.add_cumulative(times, [block.size for block in blocks], capacity)
    answer, solver = run(model, time_limit_s)
    if answer == "yes":
        return Packing("packed", tuple(solver.value(offset) for offset in offsets), peak)
    if answer == "no":
        return Packing("infeasible", (), peak, f"no arrangement fits {capacity} bytes, {peak} of them live at once")
    return Packing("unknown", (), peak, f"the time limit of {time_limit_s} s ended the search")


def _validate(blocks: Sequence[Block], capacity: int) -> None:
    seen: set[str] = set()
    for block in blocks:
        if block.id in seen:
            raise InvalidInput(f"buffer {block.id!r} appears twice: ids must be unique", field="id", value=block.id)
        seen.add(block.id)
        if block.size < 0 or block.upper < block.lower or block.alignment < 1:
            raise InvalidInput(
                f"buffer {block.id!r} has size {block.size}, life [{block.lower}, {block.upper}) and alignment "
                f"{block.alignment}: expected size ≥ 0, lower ≤ upper and alignment ≥ 1",
                field="buffers", value=block.id,
            )  # fmt: skip
        if block.size > capacity:
            raise InvalidInput(
                f"buffer {block.id!r} has {block.size} bytes, more than the whole capacity of {capacity}",
                field="size", value=block.size, limit=capacity,
            )  # fmt: skip
