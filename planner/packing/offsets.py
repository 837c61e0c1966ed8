"""Byte offsets in one linear memory under given conflicts: first fit, then CP-SAT with one no-overlap a clique.

This is what planning uses: lives that wrap around the circle of II cycles come to pairs of buffers that must be apart.
Buffers that are live for part of a line of time, as ``warpplan pack`` takes them, are placed by
:mod:`warpplan.planner.packing.line`.

Each answer is exact: offsets, or the proof that there are none, or "unknown" where the limit came first. The limit is
in work seconds (see :class:`~warpplan.planner.values.packing_params.PackingParams`), so that the same input gives the
same answer everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from warpplan.planner.cpsat.runner import Answer, run
from warpplan.planner.errors import InvalidInput
from warpplan.planner.packing.pieces import LIMIT, Pieces, first_fit_decreasing, pieces
from warpplan.planner.values.deadline import NO_DEADLINE, Deadline
from warpplan.planner.values.packing_params import PackingParams

PackingStatus = Literal["packed", "infeasible", "unknown"]


DEFAULTS = PackingParams()


@dataclass(frozen=True)
class PackingBlock:
    """``size`` bytes at a multiple of ``alignment``, live during the half-open [``lower``, ``upper``)."""

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1


@dataclass(frozen=True)
class Packing:
    """``offsets`` (bytes) in the order of what was to be placed where ``status`` is "packed"; ``reason`` says what
    binds otherwise.

    ``peak_bytes`` is the largest sum of sizes that must be apart at once: no capacity below it can do. ``conflict``
    are the indices of blocks that cannot be placed together, where ``status`` is "infeasible": no other matters.
    """

    status: PackingStatus
    offsets: tuple[int, ...]
    peak_bytes: int
    reason: str = ""
    conflict: tuple[int, ...] = ()


def pack_conflicts(
    sizes: Sequence[int],
    alignments: Sequence[int],
    conflicts: Collection[frozenset[int]],
    capacity: int,
    *,
    work_limit_s: float = 10.0,
    deadline: Deadline = NO_DEADLINE,
    params: PackingParams = DEFAULTS,
) -> Packing:
    """Offsets within [0, ``capacity``) at which no two pieces of a pair in ``conflicts`` share a byte.

    ``conflicts`` holds pairs of indices into ``sizes`` (bytes) and ``alignments``: what lives that wrap around the
    circle of II cycles come to. ``work_limit_s`` is in work seconds; ``deadline`` ends the search too. Pieces in no
    pair are placed at 0. A piece above the capacity is infeasible, not an error; ``Packing.conflict`` is then that one,
    and otherwise a set of pieces that cannot be placed together. Raises :class:`InvalidInput` for a negative size, an
    alignment below 1, a pair of other than two known indices.
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
    found = []
    for clique in nx.find_cliques(graph):  # There may be exponentially many.
        deadline.check()
        found.append(sorted(clique))
        if len(found) > params.most_cliques:
            return Packing("unknown", (), 0, f"the conflicts have more than {params.most_cliques} maximal cliques")
    cliques = sorted(found)
    loads = [sum(sizes[i] for i in clique) for clique in cliques]
    peak = max([*loads, *sizes], default=0)
    if peak > capacity:
        needed = tuple(cliques[loads.index(peak)])
        return Packing("infeasible", (), peak, f"{_name_pieces(needed)} need {peak} of {capacity} bytes", needed)
    problem = pieces(sizes, alignments, capacity)
    answer, offsets = _in_cliques(problem, cliques, work_limit_s, params, deadline)
    if answer == "yes":
        return Packing("packed", tuple(problem.unit * offset for offset in offsets), peak)
    if answer == "unknown":
        return Packing("unknown", (), peak, f"the work limit of {work_limit_s} s, or the deadline, ended the search")

    def impossible(chosen: Sequence[int]) -> bool:
        number = {i: at for at, i in enumerate(chosen)}
        groups = [[number[i] for i in clique if i in number] for clique in cliques]
        return _in_cliques(problem.some(chosen), groups, work_limit_s / count, params, deadline)[0] == "no"

    needed = _minimal(sorted(graph), impossible)
    return Packing("infeasible", (), peak, f"no arrangement of {_name_pieces(needed)} fits {capacity} bytes", needed)


def _in_cliques(
    problem: Pieces, cliques: Sequence[Sequence[int]], seconds: float, params: PackingParams, deadline: Deadline
) -> tuple[Answer, tuple[int, ...]]:
    """The answer, and where it is "yes" the offsets in units at which no two pieces of one clique meet."""
    if params.first_fit:
        apart = np.zeros((len(problem.sizes), len(problem.sizes)), dtype=np.bool_)
        for clique in cliques:
            deadline.check()
            apart[np.ix_(clique, clique)] = True
        found = first_fit_decreasing(problem, lambda i: apart[i], [int(row.sum()) for row in apart])
        if found is not None:
            return "yes", found
    return _by_cpsat(problem, cliques, seconds, params, deadline) if params.clique_model else ("unknown", ())


def _minimal(indices: Sequence[int], impossible: Callable[[Sequence[int]], bool]) -> tuple[int, ...]:
    """A part of ``indices`` that is ``impossible`` too and, where every answer is known, has no such part itself: a
    deletion filter (Chinneck and Dravnieks 1991)."""
    kept = list(indices)
    for i in indices:
        rest = [j for j in kept if j != i]
        if impossible(rest):
            kept = rest
    return tuple(kept)


def _by_cpsat(
    problem: Pieces, cliques: Sequence[Sequence[int]], seconds: float, params: PackingParams, deadline: Deadline
) -> tuple[Answer, tuple[int, ...]]:
    from warpplan.planner.cpsat.lean_model import LeanModel

    model = LeanModel()
    offsets = [
        step * model.new_int_var(0, top // step, "") for step, top in zip(problem.steps, problem.tops, strict=True)
    ]
    places = [
        model.new_fixed_size_interval_var(offset, size, "") for offset, size in zip(offsets, problem.sizes, strict=True)
    ]
    for clique in cliques:
        deadline.check()
        model.add_no_overlap([places[i] for i in clique])
    answer, solver = run(model, params.clique_model_rate * seconds, deadline=deadline)
    return answer, tuple(solver.value(offset) for offset in offsets) if answer == "yes" else ()


def name_ids(ids: Sequence[str]) -> str:
    """The first six of ``ids``, and how many more there are."""
    return ", ".join(ids[:6]) + (f" and {len(ids) - 6} more" if len(ids) > 6 else "")


def _name_pieces(indices: Sequence[int]) -> str:
    return "pieces " + name_ids([str(i) for i in indices])
