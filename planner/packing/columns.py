"""Places in Blackwell's tensor memory: rectangles of 64 or 128 lanes × columns (PTX ISA, "Tensor Memory").

First fit, then CP-SAT with one two-dimensional no-overlap a clique of conflicting rectangles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import networkx as nx

from warpplan.planner.cpsat.runner import run
from warpplan.planner.errors import InvalidInput
from warpplan.planner.packing.offsets import DEFAULTS, PackingStatus
from warpplan.planner.values.deadline import NO_DEADLINE, Deadline
from warpplan.planner.values.packing_params import PackingParams

LANES = 128
HALF = 64


@dataclass(frozen=True)
class Columns:
    """``columns`` columns of 64 lanes, from lane 0 or 64, or of all 128."""

    lanes: int
    columns: int


@dataclass(frozen=True)
class ColumnPacking:
    """``places`` are (first lane, first column) in the order of the rectangles where ``status`` is "packed".

    ``reason`` says what binds otherwise; ``conflict`` are then the indices of rectangles that do not fit together.
    """

    status: PackingStatus
    places: tuple[tuple[int, int], ...]
    reason: str = ""
    conflict: tuple[int, ...] = ()


def pack_columns(
    rects: Sequence[Columns],
    columns: int,
    conflicts: Collection[frozenset[int]] | None = None,
    *,
    work_limit_s: float = 10.0,
    deadline: Deadline = NO_DEADLINE,
    params: PackingParams = DEFAULTS,
) -> ColumnPacking:
    """Places within 128 lanes × ``columns`` at which no two rectangles of a pair in ``conflicts`` meet.

    ``conflicts`` holds pairs of indices into ``rects``; None keeps all apart. Exact: "infeasible" is proven, "unknown"
    only where a limit came first: ``work_limit_s``, in work seconds, or
    ``deadline``. Raises :class:`InvalidInput` for other lanes than 64 or 128, negative columns, a
    pair of other than two known indices.
    """
    count = len(rects)
    for i, rect in enumerate(rects):
        if rect.lanes not in (HALF, LANES) or rect.columns < 0:
            raise InvalidInput(
                f"rectangle {i} has {rect.lanes} lanes × {rect.columns} columns: expected 64 or 128 × ≥ 0"
            )
    pairs = set(map(frozenset, combinations(range(count), 2))) if conflicts is None else set(conflicts)
    for pair in pairs:
        if len(pair) != 2 or not all(0 <= i < count for i in pair):
            raise InvalidInput(
                f"conflict {sorted(pair)}: expected two different indices below {count}", field="conflicts"
            )
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(sorted(tuple(sorted(pair)) for pair in pairs))
    cliques = sorted(sorted(clique) for clique in nx.find_cliques(graph))
    for clique in cliques:
        # Area, each half lane as one unit: the least columns that the clique needs.
        need = -(-sum(rects[i].columns * (rects[i].lanes // HALF) for i in clique) // 2)
        need = max([need, *(rects[i].columns for i in clique)])
        if need > columns:
            reason = f"rectangles {', '.join(map(str, clique))} need {need} of {columns} columns"
            return ColumnPacking("infeasible", (), reason, tuple(clique))
    places = _first_fit(rects, columns, graph) if params.first_fit else None
    if places is not None:
        return ColumnPacking("packed", places)
    if not params.clique_model:
        return ColumnPacking("unknown", (), "first fit failed, and the exact search is switched off")
    return _search(rects, columns, cliques, work_limit_s, deadline)


def _first_fit(rects: Sequence[Columns], columns: int, graph: nx.Graph) -> tuple[tuple[int, int], ...] | None:
    """Widest first, all lanes before half of them, each at the lowest column free, of the lower lane among equals."""
    places: dict[int, tuple[int, int]] = {}
    for i in sorted(range(len(rects)), key=lambda i: (-rects[i].lanes, -rects[i].columns, i)):
        best: tuple[int, int] | None = None
        for lane in range(0, LANES - rects[i].lanes + 1, HALF):
            column = 0
            for j in sorted((j for j in graph[i] if j in places), key=lambda j: places[j][1]):
                meet = places[j][0] < lane + rects[i].lanes and lane < places[j][0] + rects[j].lanes
                if meet and places[j][1] < column + rects[i].columns:
                    column = max(column, places[j][1] + rects[j].columns)
            if best is None or column < best[1]:
                best = lane, column
        assert best is not None
        if best[1] + rects[i].columns > columns:
            return None
        places[i] = best
    return tuple(places[i] for i in range(len(rects)))


def _search(
    rects: Sequence[Columns], columns: int, cliques: Sequence[Sequence[int]], seconds: float, deadline: Deadline
) -> ColumnPacking:
    from warpplan.planner.cpsat.lean_model import LeanModel

    model = LeanModel()
    firsts = [model.new_int_var(0, columns - rect.columns, "") for rect in rects]
    lanes = [model.new_int_var(0, (LANES - rect.lanes) // HALF, "") for rect in rects]
    across = [model.new_fixed_size_interval_var(x, rect.columns, "") for x, rect in zip(firsts, rects, strict=True)]
    down = [model.new_fixed_size_interval_var(y, rect.lanes // HALF, "") for y, rect in zip(lanes, rects, strict=True)]
    for clique in cliques:
        model.add_no_overlap_2d([across[i] for i in clique], [down[i] for i in clique])
        model.add_cumulative([across[i] for i in clique], [rects[i].lanes // HALF for i in clique], LANES // HALF)
    answer, solver = run(model, seconds, deadline=deadline)
    if answer == "yes":
        places = (((HALF * solver.value(lane)), solver.value(x)) for lane, x in zip(lanes, firsts, strict=True))
        return ColumnPacking("packed", tuple(places))
    if answer == "no":
        return ColumnPacking("infeasible", (), f"no arrangement fits {columns} columns", tuple(range(len(rects))))
    return ColumnPacking("unknown", (), f"the work limit of {seconds} s, or the deadline, ended the search")
