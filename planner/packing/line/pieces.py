"""What every packing search places: pieces in the coarsest unit that loses no packing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from math import gcd

import numpy as np
from numpy.typing import NDArray

LIMIT = 1 << 60
"""No memory is larger: offsets and their sums stay within 64 bits."""


@dataclass(frozen=True)
class Pieces:
    """Piece i takes ``sizes[i]`` units of ``unit`` bytes from a multiple of ``steps[i]`` on, at most ``tops[i]``."""

    unit: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    tops: tuple[int, ...]

    @property
    def capacity(self) -> int:
        """Units up to the end of the highest piece."""
        return max((top + size for top, size in zip(self.tops, self.sizes, strict=True)), default=0)

    def some(self, chosen: Sequence[int]) -> Pieces:
        """The problem with only the pieces ``chosen``."""
        sizes, steps, tops = (tuple(values[i] for i in chosen) for values in (self.sizes, self.steps, self.tops))
        return Pieces(self.unit, sizes, steps, tops)


def pieces(sizes: Sequence[int], alignments: Sequence[int], capacity: int) -> Pieces:
    """Pieces of so many bytes, none above ``capacity``.

    All offsets are multiples of the alignments' common divisor, so sizes round up to it (but for the piece on top:
    hence ``tops``). And where a packing exists, one exists whose pieces all rest on the bottom or on another piece:
    its offsets are multiples of whatever divides every size and is a multiple or a divisor of every alignment.
    """
    grain = reduce(gcd, alignments, 0) or 1
    rounded = [-(-size // grain) * grain for size in sizes]
    unit = reduce(gcd, rounded, 0) or 1
    while any(unit % a and a % unit for a in alignments):
        unit = reduce(gcd, (a for a in alignments if unit % a), unit)
    tops = tuple((capacity - size) // a * a // unit for size, a in zip(sizes, alignments, strict=True))
    return Pieces(unit, tuple(size // unit for size in rounded), tuple(max(1, a // unit) for a in alignments), tops)


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


def first_fit(
    problem: Pieces, order: Iterable[int], meets: Callable[[int], NDArray[np.bool_]]
) -> tuple[int, ...] | None:
    """Each piece in turn at the lowest place free; None where one would end too high.

    ``meets(i)`` marks the pieces that must be apart from piece i.
    """
    sizes = np.array(problem.sizes, dtype=np.int64)
    offsets = np.full(len(sizes), -1, dtype=np.int64)
    for i in order:
        others = np.flatnonzero(meets(i) & (offsets >= 0))
        others = others[np.argsort(offsets[others], kind="stable")]
        ends = np.maximum.accumulate(offsets[others] + sizes[others])
        starts = np.concatenate(([0], -(-ends // problem.steps[i]) * problem.steps[i]))
        until = np.concatenate((offsets[others], [LIMIT]))
        offset = int(starts[np.argmax(starts + sizes[i] <= until)])
        if offset > problem.tops[i]:
            return None
        offsets[i] = offset
    return tuple(offsets.tolist())


def bits(mask: int) -> Iterator[int]:
    """The places of the ones in ``mask``, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
