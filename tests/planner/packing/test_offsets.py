"""Offsets and columns under given conflicts, against trying everything."""

from __future__ import annotations

import ast
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpplan.planner
from warpplan.planner.errors import InvalidInput
from warpplan.planner.packing.columns import LANES, Columns, pack_columns
from warpplan.planner.packing.offsets import pack_conflicts
from warpplan.planner.values.packing_params import PackingParams

Conflicts = frozenset[frozenset[int]]


@st.composite
def conflicting(draw: st.DrawFn) -> tuple[list[int], list[int], Conflicts, int]:
    """Up to five pieces, and which of them conflict."""
    count = draw(st.integers(0, 5))
    sizes = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    alignments = draw(st.lists(st.sampled_from([1, 1, 2, 4]), min_size=count, max_size=count))
    pairs = [frozenset(pair) for pair in combinations(range(count), 2)]
    chosen = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    conflicts = frozenset(pair for pair, kept in zip(pairs, chosen, strict=True) if kept)
    return sizes, alignments, conflicts, draw(st.integers(1, 12))


def apart(sizes: list[int], conflicts: Conflicts, offsets: tuple[int, ...]) -> bool:
    return not any(
        offsets[a] < offsets[b] + sizes[b] and offsets[b] < offsets[a] + sizes[a] and sizes[a] and sizes[b]
        for a, b in map(sorted, conflicts)
    )


def fits(sizes: list[int], alignments: list[int], conflicts: Conflicts, capacity: int) -> bool:
    if any(size > capacity for size in sizes):
        return False
    places = [range(0, capacity - size + 1, a) for size, a in zip(sizes, alignments, strict=True)]
    return any(apart(sizes, conflicts, offsets) for offsets in product(*places))


@given(conflicting())
@settings(deadline=None)
def test_offsets_under_conflicts_are_exact(question):
    sizes, alignments, conflicts, capacity = question
    answer = pack_conflicts(sizes, alignments, conflicts, capacity)
    assert answer.status == ("packed" if fits(*question) else "infeasible")
    if answer.status == "packed":
        assert apart(sizes, conflicts, answer.offsets)
        assert all(
            offset % a == 0 and 0 <= offset <= capacity - size
            for offset, size, a in zip(answer.offsets, sizes, alignments, strict=True)
        )
    else:
        # The conflict is one: these pieces alone have no place either.
        named = [sizes[i] for i in answer.conflict], [alignments[i] for i in answer.conflict]
        number = {i: at for at, i in enumerate(answer.conflict)}
        inner = frozenset(frozenset(number[i] for i in pair) for pair in conflicts if pair <= number.keys())
        assert not fits(*named, inner, capacity)


@pytest.mark.parametrize("off", ["first_fit", "clique_model"])
@given(conflicting())
@settings(deadline=None, max_examples=40)
def test_a_technique_switched_off_never_makes_offsets_wrong(off, question):
    sizes, _, conflicts, _ = question
    answer = pack_conflicts(*question, params=PackingParams(**{off: False}))
    if answer.status == "packed":
        assert apart(sizes, conflicts, answer.offsets)
    assert answer.status in ("unknown", "packed" if fits(*question) else "infeasible")


@pytest.mark.parametrize("conflict", [{0}, {0, 1, 2}, {0, 3}, {-1, 0}])
def test_conflicts_are_pairs_of_known_pieces(conflict):
    with pytest.raises(InvalidInput, match="expected two different indices below 3"):
        pack_conflicts([1, 1, 1], [1, 1, 1], {frozenset(conflict)}, 10)


@pytest.mark.parametrize("params", [PackingParams(), PackingParams(first_fit=False)])
@given(st.lists(st.builds(Columns, st.sampled_from([64, 128]), st.integers(1, 4)), max_size=4), st.integers(1, 8))
@settings(deadline=None, max_examples=40)
def test_columns_are_exact(params, rects, columns):
    answer = pack_columns(rects, columns, params=params)
    choices = [list(product(range(0, LANES - r.lanes + 1, 64), range(columns - r.columns + 1))) for r in rects]

    def clear(places: tuple[tuple[int, int], ...]) -> bool:
        return not any(
            p[0] < q[0] + b.lanes and q[0] < p[0] + a.lanes and p[1] < q[1] + b.columns and q[1] < p[1] + a.columns
            for (a, p), (b, q) in combinations(list(zip(rects, places, strict=True)), 2)
        )

    assert answer.status == ("packed" if any(clear(places) for places in product(*choices)) else "infeasible")
    if answer.status == "packed":
        assert clear(answer.places)


def test_planning_never_reaches_the_search_behind_pack():
    root = Path(next(iter(warpplan.planner.__path__)))
    for module in root.rglob("*.py"):
        inside = module.is_relative_to(root / "packing" / "line")
        imported = {n.module or "" for n in ast.walk(ast.parse(module.read_text())) if isinstance(n, ast.ImportFrom)}
        assert inside or not any("packing.line" in name for name in imported), module
