"""What loops leave of the numbers that they count with, written in closed form: the same numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs triton")
sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import run_together

from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode
from warpplan.kernels.compiler.pointers.exit_values import with_exit_values
from warpplan.kernels.compiler.ttgir.parsing import parse

ARGUMENTS = ("lower", "upper", "first", "added")


def kernel(step: int, added: str = "%added", product: str = "tt.dot %half, %half, %acc") -> str:
    """A loop that adds ``added`` to a number in each iteration, and a store of what it leaves."""
    arguments = ", ".join(["%out: !tt.ptr<i32> loc(unknown)", *(f"%{name}: i32 loc(unknown)" for name in ARGUMENTS)])
    half, whole = "tensor<16x16xbf16>", "tensor<16x16xf32>"
    loop = "%left:2 = scf.for %i = %lower to %upper step %step iter_args(%acc = %zero, %at = %first)"
    body = f"""
      %step = arith.constant {step} : i32 loc(unknown)
      %half = arith.constant dense<0.000000e+00> : {half} loc(unknown)
      %zero = arith.constant dense<0.000000e+00> : {whole} loc(unknown)
      {loop} -> ({whole}, i32)  : i32 {{
        %next = {product} : {half} * {half} -> {whole} loc(unknown)
        %more = arith.addi %at, {added} : i32 loc(unknown)
        scf.yield %next, %more : {whole}, i32 loc(unknown)
      }} loc(unknown)
      tt.store %out, %left#1 : !tt.ptr<i32> loc(unknown)
      tt.return loc(unknown)"""
    head = f"tt.func public @k({arguments}) attributes {{noinline = false}} {{"
    return f"module {{\n{head}{body}\n}} loc(unknown)\n}} loc(unknown)\n"


@settings(max_examples=60, deadline=None)
@given(st.integers(-9, 9), st.integers(-9, 40), st.integers(-5, 5), st.integers(-70, 70), st.sampled_from([1, 3, 64]))
def test_the_closed_form_is_what_the_loop_leaves(lower: int, upper: int, first: int, added: int, step: int) -> None:
    text = kernel(step)
    closed = with_exit_values(text)
    assert "%left#1" in text
    assert "#1 : !tt.ptr<i32>" not in closed
    values = dict(zip(ARGUMENTS, (lower, upper, first, added), strict=True)) | {"out": 0}
    for each in (text, closed):
        _, left = run_together(ReadyCode(parse(each)), values, [np.full(4, 123_456)], [(0, 0, 0)], (1, 1, 1))
        assert left.tolist() == [first + added * len(range(lower, upper, step))]


@pytest.mark.parametrize(
    "text", [kernel(1, "%i"), kernel(1, "%at"), kernel(1).replace("tt.store %out, %left#1", "tt.store %out, %first")]
)
def test_what_changes_in_the_loop_and_what_nobody_reads_stays(text: str) -> None:
    assert with_exit_values(text) == text
