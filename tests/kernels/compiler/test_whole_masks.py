"""When a mask lets a whole tile through, or nothing of it, is told by scalars: exactly then."""

from __future__ import annotations

import operator
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs triton")
sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import given, settings
from hypothesis import strategies as st
from played import cut

from warpplan.kernels.compiler.analysis.operation_kinds import SELDOM
from warpplan.kernels.compiler.pointers.affine_tiles import NotAffine, TileReader
from warpplan.kernels.compiler.pointers.masks.seldom_masks import with_seldom_masks
from warpplan.kernels.compiler.pointers.masks.whole_masks import NOT, whole
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.parsing import parse

ROWS, COLUMNS = 8, 4
TILE = f"{ROWS}x{COLUMNS}"
COMPARE = {"slt": operator.lt, "sle": operator.le, "sgt": operator.gt, "sge": operator.ge}


def masks(predicate: str, down: int, across: int) -> IrOperation:
    """Masks ``rows · down + a <predicate> columns · across + b``, %not, which is false there, and %both, which is also
    a bound on the rows."""
    lines = [
        f"%rows = tt.make_range {{end = {ROWS} : i32, start = 0 : i32}} : tensor<{ROWS}xi32>",
        f"%columns = tt.make_range {{end = {COLUMNS} : i32, start = 0 : i32}} : tensor<{COLUMNS}xi32>",
        f"%down = arith.constant dense<{down}> : tensor<{TILE}xi32>",
        f"%across = arith.constant dense<{across}> : tensor<{TILE}xi32>",
        f"%true = arith.constant dense<true> : tensor<{TILE}xi1>",
        f"%r1 = tt.expand_dims %rows {{axis = 1 : i32}} : tensor<{ROWS}xi32> -> tensor<{ROWS}x1xi32>",
        f"%r = tt.broadcast %r1 : tensor<{ROWS}x1xi32> -> tensor<{TILE}xi32>",
        f"%c1 = tt.expand_dims %columns {{axis = 0 : i32}} : tensor<{COLUMNS}xi32> -> tensor<1x{COLUMNS}xi32>",
        f"%c = tt.broadcast %c1 : tensor<1x{COLUMNS}xi32> -> tensor<{TILE}xi32>",
        f"%a2 = tt.splat %a : i32 -> tensor<{TILE}xi32>",
        f"%b2 = tt.splat %b : i32 -> tensor<{TILE}xi32>",
        f"%rd = arith.muli %r, %down : tensor<{TILE}xi32>",
        f"%left = arith.addi %rd, %a2 : tensor<{TILE}xi32>",
        f"%ca = arith.muli %c, %across : tensor<{TILE}xi32>",
        f"%right = arith.addi %ca, %b2 : tensor<{TILE}xi32>",
        f"%mask = arith.cmpi {predicate}, %left, %right : tensor<{TILE}xi32>",
        f"%not = arith.xori %mask, %true : tensor<{TILE}xi1>",
        f"%bound = arith.cmpi slt, %r, %b2 : tensor<{TILE}xi32>",
        f"%both = arith.andi %mask, %bound : tensor<{TILE}xi1>",
        f"%equal = arith.cmpi eq, %left, %right : tensor<{TILE}xi32>",
        "tt.return",
    ]
    body = "\n".join(f"{line} loc(unknown)" for line in lines)
    head = "tt.func public @k(%a: i32 loc(unknown), %b: i32 loc(unknown)) attributes {noinline = false} {"
    return parse(f"module {{\n{head}\n{body}\n}} loc(unknown)\n}} loc(unknown)\n").function


def holds(conditions: frozenset[Polynomial], values: dict[str, int]) -> bool:
    return all(
        sum(c * int(np.prod([values[name] for name in monomial])) for monomial, c in condition.terms) > 0
        for condition in conditions
    )


STEPS = st.integers(-3, 3)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(COMPARE)), STEPS, STEPS, st.integers(-40, 40), st.integers(-40, 40), st.booleans())
def test_the_conditions_hold_exactly_where_the_whole_mask_does(
    predicate: str, down: int, across: int, a: int, b: int, outcome: bool
) -> None:
    tiles = TileReader(ScalarReader(masks(predicate, down, across)))
    rows, columns = np.arange(ROWS)[:, None], np.arange(COLUMNS)[None, :]
    mask = COMPARE[predicate](rows * down + a, columns * across + b)
    both = mask & (rows < b)
    values = {"%a": a, "%b": b}
    assert holds(whole(tiles, "%mask", outcome), values) == bool((mask == outcome).all())
    assert holds(whole(tiles, "%not", outcome), values) == bool((mask != outcome).all())
    assert holds(whole(tiles, "%both"), values) == bool(both.all())


def test_what_is_no_comparison_by_order_is_not_known() -> None:
    tiles = TileReader(ScalarReader(masks("slt", 1, 1)))
    with pytest.raises(NotAffine, match="compares by eq"):
        whole(tiles, "%equal")
    with pytest.raises(NotAffine, match="hold for a whole tile"):
        whole(tiles, "%both", outcome=False)  # either part may be what hides a position


def test_a_comparison_and_its_opposite() -> None:
    assert {NOT[NOT[predicate]] for predicate in COMPARE} == set(COMPARE)
    for predicate, opposite in NOT.items():
        for a, b in ((1, 2), (2, 2), (3, 2)):
            assert COMPARE[predicate](a, b) != COMPARE[opposite](a, b)


def test_masks_up_to_an_end_are_marked_and_others_are_not() -> None:
    text = with_seldom_masks(cut("masked_scores"))
    marked = [line for line in text.split("\n") if SELDOM in line]
    assert sum("arith.select" in line for line in marked) == 3
    assert with_seldom_masks(cut("scores")) == cut("scores")
    rising = cut("masked_scores").replace("cmpi sge", "cmpi sle").replace("cmpi slt", "cmpi sgt")
    assert SELDOM not in with_seldom_masks(rising)
