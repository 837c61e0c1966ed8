"""Whether pieces of memory fit together: the exact search behind :mod:`warpplan.planner.packing`.

A *clique* is a set of pieces that must all be apart: what is live at one time, or a clique of a conflict graph. Every
pair that conflicts is in some clique, so keeping each clique apart is the whole problem, for lives on a line, on a
circle, or for any conflict graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

from warpplan.planner.cpsat import Answer, run


@dataclass(frozen=True)
class Pieces:
    """What to place, in units: piece i takes ``sizes[i]`` at a multiple of ``steps[i]`` up to ``tops[i]``.

    ``unit`` bytes make one unit. ``cliques`` are maximal and together hold every piece of nonzero size.
    """

    unit: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    tops: tuple[int, ...]
    cliques: tuple[tuple[int, ...], ...]

    @property
    def capacity(self) -> int:
        """Units up to the end of the highest piece."""
        return max((top + size for top, size in zip(self.tops, self.sizes, strict=True)), default=0)


def pieces(sizes: Sequence[int], alignments: Sequence[int], cliques: Sequence[Sequence[int]], capacity: int) -> Pieces:
    """The problem in the coarsest unit that loses no packing; every size is at most ``capacity``.

    All offsets are multiples of the alignments' common divisor, so sizes round up to it (but for the piece on top:
    hence ``tops``). And where a packing exists, one exists whose pieces all rest on the bottom or on another piece:
    its offsets are multiples of whatever divides every size and every alignment that is not a divisor of it.
    """
    grain = reduce(gcd, alignments, 0) or 1
    rounded = [-(-size // grain) * grain for size in sizes]
    unit = reduce(gcd, rounded, 0) or 1
    while any(unit % a and a % unit for a in alignments):
        unit = reduce(gcd, (a for a in alignments if unit % a), unit)
    tops = [(capacity - size) // a * a // unit for size, a in zip(sizes, alignments, strict=True)]
    steps = [max(1, a // unit) for a in alignments]
    return Pieces(unit, tuple(size // unit for size in rounded), tuple(steps), tuple(tops), _maximal(cliques))


def search(problem: Pieces, seconds: float) -> tuple[Answer, tuple[int, ...]]:
    """ "yes" with offsets in units, "no" where it is proven that there are none, else "unknown"."""
    for order in _orders(problem):
        offsets = first_fit(problem, order)
        if offsets is not None:
            return "yes", offsets
    return _disjunctive(problem, seconds)


def first_fit(problem: Pieces, order: Sequence[int]) -> tuple[int, ...] | None:
    """Each piece in turn at the lowest place free; None where one would end above its top."""
    neighbours: list[set[int]] = [set() for _ in problem.sizes]
    for clique in problem.cliques:
        for i in clique:
            neighbours[i].update(clique)
    offsets: dict[int, int] = {}
    for i in order:
        offset, size, step = 0, problem.sizes[i], problem.steps[i]
        for low, high in sorted((offsets[j], offsets[j] + problem.sizes[j]) for j in neighbours[i] if j in offsets):
            if offset + size <= low:
                break
            if high > offset:
                offset = -(-high // step) * step
        if offset > problem.tops[i]:
            return None
        offsets[i] = offset
    return tuple(offsets[i] for i in range(len(offsets)))


def _orders(problem: Pieces) -> Iterator[list[int]]:
    everyone = range(len(problem.sizes))
    spans = [0] * len(problem.sizes)
    for clique in problem.cliques:
        for i in clique:
            spans[i] += 1
    yield sorted(everyone, key=lambda i: (-problem.steps[i], -problem.sizes[i], i))
    yield sorted(everyone, key=lambda i: (-problem.sizes[i], i))
    yield sorted(everyone, key=lambda i: (-problem.sizes[i] * spans[i], i))
    yield sorted(everyone, key=lambda i: (-spans[i], -problem.sizes[i], i))


def _disjunctive(problem: Pieces, seconds: float) -> tuple[Answer, tuple[int, ...]]:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    offsets = [
        step * model.new_int_var(0, top // step, "") for step, top in zip(problem.steps, problem.tops, strict=True)
    ]
    places = [
        model.new_fixed_size_interval_var(offset, size, "") for offset, size in zip(offsets, problem.sizes, strict=True)
    ]
    for clique in problem.cliques:
        model.add_no_overlap([places[i] for i in clique])
    answer, solver = run(model, seconds)
    return answer, tuple(solver.value(offset) for offset in offsets) if answer == "yes" else ()


def _maximal(cliques: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    kept: list[frozenset[int]] = []
    for clique in sorted(map(frozenset, cliques), key=lambda c: (-len(c), sorted(c))):
        if not any(clique <= other for other in kept):
            kept.append(clique)
    return tuple(tuple(sorted(clique)) for clique in kept)
