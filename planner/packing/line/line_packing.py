"""``warpplan pack``: offsets for buffers that are live during part of a line of time (MiniMalloc's problem).

Exact: offsets, or the proof that there are none, or "unknown" where a limit came first. There are two limits. The work
limit is counted in search steps, so that the same input gives the same answer on every machine; the deadline is the
caller's clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from warpplan.planner.errors import InvalidInput
from warpplan.planner.packing.line.line_portfolio import PackingBudget, pack_sections
from warpplan.planner.packing.offsets import DEFAULTS, Packing, PackingBlock, name_ids
from warpplan.planner.packing.pieces import LIMIT, pieces
from warpplan.planner.values.deadline import NO_DEADLINE, Deadline, DeadlineReached
from warpplan.planner.values.packing_params import PackingParams


def pack(
    blocks: Sequence[PackingBlock],
    capacity: int,
    *,
    work_limit_s: float = math.inf,
    deadline: Deadline = NO_DEADLINE,
    params: PackingParams = DEFAULTS,
) -> Packing:
    """Offsets within [0, ``capacity``) bytes at which no two blocks share a byte while both are live.

    ``work_limit_s`` is in work seconds (see :class:`PackingParams`), ``deadline`` by the caller's clock; with neither,
    the search ends with an answer or not at all. Blocks of no size or an empty life are placed at 0. Raises
    :class:`InvalidInput`, naming the block, for an id that appears twice, a size above the capacity, a negative size, a
    life that ends before it begins, an alignment below 1.
    """
    _validate(blocks, capacity)
    first, end, peak, at = sections(blocks)
    if peak > capacity:
        needed = tuple(i for i, b in enumerate(blocks) if b.size and b.lower <= at < b.upper)
        names = name_ids([blocks[i].id for i in needed])
        return Packing("infeasible", (), peak, f"at time {at} {names} need {peak} of {capacity} bytes", needed)
    problem = pieces([b.size for b in blocks], [b.alignment for b in blocks], capacity)
    budget = PackingBudget(work_limit_s)
    offsets = [0] * len(blocks)
    try:
        # Parts of time that no buffer joins are problems of their own.
        for part in _parts(first, end):
            spans = [first[i] - first[part[0]] for i in part], [end[i] - first[part[0]] for i in part]
            answer, placed = pack_sections(problem.some(part), *spans, budget, deadline, params)
            if answer == "unknown":
                return Packing("unknown", (), peak, f"the work limit of {work_limit_s:g} s ended the search")
            if answer == "no":
                names = name_ids([blocks[i].id for i in part])
                reason = f"no arrangement of {names} fits {capacity} bytes, {peak} of them live at once"
                return Packing("infeasible", (), peak, reason, tuple(sorted(part)))
            for i, offset in zip(part, placed, strict=True):
                offsets[i] = problem.unit * offset
    except DeadlineReached:
        return Packing("unknown", (), peak, "the time limit ended the search")
    return Packing("packed", tuple(offsets), peak)


def sections(blocks: Sequence[PackingBlock]) -> tuple[list[int], list[int], int, int]:
    """Of each block the maximal sets of blocks live at once, [first, end), counted by time; the peak load and when."""
    events = sorted(
        (time, starts, i)
        for i, b in enumerate(blocks)
        if b.size and b.lower < b.upper
        for time, starts in ((b.lower, True), (b.upper, False))
    )
    first, end = [0] * len(blocks), [0] * len(blocks)
    section, load, peak, at, grown = 0, 0, 0, 0, False
    for time, starts, i in events:  # ends before starts
        if starts:
            first[i], grown = section, True
            load += blocks[i].size
            if load > peak:
                peak, at = load, time
        else:
            section, grown = section + grown, False
            end[i] = section
            load -= blocks[i].size
    return first, end, peak, at


def _parts(first: Sequence[int], end: Sequence[int]) -> list[list[int]]:
    """Blocks by runs of sections that blocks join, the earliest block of each first; not those without a section."""
    parts: list[list[int]] = []
    reach = 0
    for i in sorted(range(len(first)), key=lambda i: (first[i], i)):
        if first[i] == end[i]:
            continue
        if first[i] >= reach:
            parts.append([])
        parts[-1].append(i)
        reach = max(reach, end[i])
    return parts


def _validate(blocks: Sequence[PackingBlock], capacity: int) -> None:
    if capacity > LIMIT:
        raise InvalidInput(f"a capacity of {capacity} bytes: expected at most 2**60", field="capacity", value=capacity)
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
