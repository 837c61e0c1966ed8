"""What every packing search places: pieces in the coarsest unit that loses no packing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
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
