"""What every packing search places: pieces in the coarsest unit that loses no packing; and first fit (Johnson 1973)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
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

    @cached_property
    def capacity(self) -> int:
        """Units up to the end of the highest piece."""
        return max((top + size for top, size in zip(self.tops, self.sizes, strict=True)), default=0)

    def some(self, chosen: Sequence[int]) -> Pieces:
        """The problem with only the pieces ``chosen``."""
        sizes, steps, tops = (tuple(values[i] for i in chosen) for values in (self.sizes, self.steps, self.tops))
        return Pieces(self.unit, sizes, steps, tops)


def pieces(sizes: Sequence[int], alignments: Sequence[int], capacity: int) -> Pieces:
    """Pieces of ``sizes`` bytes, none above ``capacity``.

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


Meets = Callable[[int], NDArray[np.bool_]]
"""``meets(i)`` marks the pieces that must be apart from piece i."""


def first_fit_decreasing(
    problem: Pieces, meets: Meets, widths: Sequence[int], check: Callable[[], None] = lambda: None
) -> tuple[int, ...] | None:
    """Offsets in units by first fit, widest alignment first: by size, by size x width, by width; None where all fail.

    ``widths[i]`` is how much piece i meets: sections of time, or conflicts. ``check`` is called once a piece and may
    raise to end the search.
    """
    sizes, everyone = problem.sizes, range(len(problem.sizes))
    keys: tuple[Callable[[int], int], ...] = (
        lambda i: sizes[i],
        lambda i: sizes[i] * widths[i],
        lambda i: widths[i],
    )
    for key in keys:
        order = sorted(everyone, key=lambda i: (-problem.steps[i], -key(i), -sizes[i], i))
        offsets = first_fit(problem, order, meets, check)
        if offsets is not None:
            return offsets
    return None


def first_fit(
    problem: Pieces, order: Iterable[int], meets: Meets, check: Callable[[], None] = lambda: None
) -> tuple[int, ...] | None:
    """Each piece of ``order`` at the lowest free offset; None where one would end too high."""
    sizes = np.array(problem.sizes, dtype=np.int64)
    offsets = np.full(len(sizes), -1, dtype=np.int64)
    for i in order:
        check()
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
    """The positions of the set bits of ``mask``, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
