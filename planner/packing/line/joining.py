"""Pieces on a line of time that must lie at one offset, joined into one: fewer pieces, the same packings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from warpplan.planner.packing.pieces import Pieces


def joined(
    problem: Pieces, first: Sequence[int], end: Sequence[int]
) -> tuple[Pieces, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The problem with pieces joined that must lie at one offset, their sections, and the new index of each piece.

    Where two neighbouring sections are both full, one piece alone ends between them and one alone begins, all else is
    in both: the one takes exactly the place of the other, and together they are one piece.
    """
    count = max(end, default=0)
    change = [0] * (count + 1)
    begin: list[list[int]] = [[] for _ in range(count + 1)]
    stop: list[list[int]] = [[] for _ in range(count + 1)]
    for i, (a, b) in enumerate(zip(first, end, strict=True)):
        begin[a].append(i)
        stop[b].append(i)
        change[a] += problem.sizes[i]
        change[b] -= problem.sizes[i]
    full = [load == problem.capacity for load in accumulate(change)]
    lead, until, tops, section = list(range(len(first))), list(end), list(problem.tops), [0] * (count + 1)
    for t in range(1, count + 1):
        section[t] = section[t - 1] + 1
        if t < count and full[t - 1] and full[t] and len(begin[t]) == len(stop[t]) == 1:
            old, new = lead[stop[t][0]], begin[t][0]
            if problem.steps[old] == problem.steps[new]:
                lead[new], until[old], tops[old] = old, end[new], min(tops[old], tops[new])
                section[t] -= 1
    kept = [i for i in range(len(first)) if lead[i] == i]
    number = {i: at for at, i in enumerate(kept)}
    firsts, ends = tuple(section[first[i]] for i in kept), tuple(section[until[i]] for i in kept)
    fewer = replace(problem, tops=tuple(tops)).some(kept)
    return fewer, firsts, ends, tuple(number[i] for i in lead)
