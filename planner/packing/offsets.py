"""Byte offsets in one linear memory: for buffers that are live for part of the time, or with given conflicts.

Each entry is exact: offsets, or the proof that there are none, or "unknown" where the limit came first. The limit is
in search steps, calibrated to a slow machine's seconds, so that the same input gives the same answer everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from warpplan.planner.errors import InvalidInput
from warpplan.planner.packing.line.pieces import LIMIT, pieces
from warpplan.planner.packing.line.portfolio import in_cliques, minimal, on_a_line

Status = Literal["packed", "infeasible", "unknown"]


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

    ``peak_bytes`` is the largest sum of sizes that must be apart at once: no capacity below it can do. ``conflict``
    are the indices of blocks that cannot be placed together, where ``status`` is "infeasible": no other matters.
    """

    status: Status
    offsets: tuple[int, ...]
    peak_bytes: int
    reason: str = ""
    conflict: tuple[int, ...] = ()


def pack(blocks: Sequence[Block], capacity: int, *, time_limit_s: float = 10.0) -> Packing:
    """Offsets within [0, ``capacity``) at which no two blocks share a byte while both are live.

    Blocks of no size or an empty life are placed at 0. Raises :class:`InvalidInput`, naming the block, for an id that
    appears twice, a size above the capacity, a negative size, a life that ends before it begins, an alignment below 1.
    """
    _validate(blocks, capacity)
    first, end, peak, at = _sections(blocks)
    if peak > capacity:
        needed = tuple(i for i, b in enumerate(blocks) if b.size and b.lower <= at < b.upper)
        names = _names([blocks[i].id for i in needed])
        return Packing("infeasible", (), peak, f"at time {at} {names} need {peak} of {capacity} bytes", needed)
    problem = pieces([b.size for b in blocks], [b.alignment for b in blocks], capacity)
    # Parts of time that no buffer joins are problems of their own.
    offsets = [0] * len(blocks)
    for part in _parts(first, end):
        spans = [first[i] - first[part[0]] for i in part], [end[i] - first[part[0]] for i in part]
        answer, placed = on_a_line(problem.some(part), *spans, time_limit_s)
        if answer == "unknown":
            return _out_of_time(peak, time_limit_s)
        if answer == "no":
            names = _names([blocks[i].id for i in part])
            reason = f"no arrangement of {names} fits {capacity} bytes, {peak} of them live at once"
            return Packing("infeasible", (), peak, reason, tuple(sorted(part)))
        for i, offset in zip(part, placed, strict=True):
            offsets[i] = problem.unit * offset
    return Packing("packed", tuple(offsets), peak)


def pack_conflicts(
    sizes: Sequence[int],
    alignments: Sequence[int],
    conflicts: Collection[frozenset[int]],
    capacity: int,
    *,
    time_limit_s: float = 10.0,
) -> Packing:
    """Offsets within [0, ``capacity``) at which no two pieces of a pair in ``conflicts`` share a byte.

    ``conflicts`` holds pairs of indices into ``sizes`` (bytes) and ``alignments``: what lives that wrap around the
    circle of II cycles come to. Pieces in no pair are placed at 0. A piece above the capacity is infeasible, not an
    error; ``Packing.conflict`` is then that one, and otherwise a set of pieces that cannot be placed together. Raises
    :class:`InvalidInput` for a negative size, an alignment below 1, a pair of other than two known indices.
    """
    count = len(sizes)
    if len(alignments) != count or any(s < 0 for s in sizes) or any(a < 1 for a in alignments):
        raise InvalidInput(f"sizes {list(sizes)} and alignments {list(alignments)}: expected as many, ≥ 0 and ≥ 1")
    for pair in conflicts:
        if len(pair) != 2 or not all(0 <= i < count for i in pair):
            raise InvalidInput(
                f"conflict {sorted(pair)}: expected two different indices below {count}", field="conflicts"
            )
    capacity = min(capacity, LIMIT)
    for i, size in enumerate(sizes):
        if size > capacity:
            return Packing("infeasible", (), size, f"piece {i} has {size} bytes, the memory {capacity}", (i,))
    import networkx as nx

    graph = nx.Graph(sorted(tuple(sorted(pair)) for pair in conflicts if all(sizes[i] for i in pair)))
    cliques = sorted(sorted(clique) for clique in nx.find_cliques(graph))
    loads = [sum(sizes[i] for i in clique) for clique in cliques]
    peak = max([*loads, *sizes], default=0)
    if peak > capacity:
        needed = tuple(cliques[loads.index(peak)])
        return Packing("infeasible", (), peak, f"{_pieces(needed)} need {peak} of {capacity} bytes", needed)
    problem = pieces(sizes, alignments, capacity)
    answer, offsets = in_cliques(problem, cliques, time_limit_s)
    if answer == "yes":
        return Packing("packed", tuple(problem.unit * offset for offset in offsets), peak)
    if answer == "unknown":
        return _out_of_time(peak, time_limit_s)

    def impossible(chosen: Sequence[int]) -> bool:
        number = {i: at for at, i in enumerate(chosen)}
        groups = [[number[i] for i in clique if i in number] for clique in cliques]
        return in_cliques(problem.some(chosen), groups, time_limit_s / count)[0] == "no"

    needed = minimal(sorted(graph), impossible)
    return Packing("infeasible", (), peak, f"no arrangement of {_pieces(needed)} fits {capacity} bytes", needed)


def _sections(blocks: Sequence[Block]) -> tuple[list[int], list[int], int, int]:
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


def _out_of_time(peak: int, seconds: float) -> Packing:
    return Packing("unknown", (), peak, f"the time limit of {seconds} s ended the search")


def _names(ids: Sequence[str]) -> str:
    return ", ".join(ids[:6]) + (f" and {len(ids) - 6} more" if len(ids) > 6 else "")


def _pieces(indices: Sequence[int]) -> str:
    return "pieces " + _names([str(i) for i in indices])


def _validate(blocks: Sequence[Block], capacity: int) -> None:
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
