"""Accumulators of wgmma whose rows as many warps share lie alike in registers: no conversion between them is work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from played import cut

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.ttgir.accumulator_layouts import with_one_accumulator_layout

WIDE = (("BN", 128), ("k", (128, 64)), ("v", (128, 64)))
"""Scores of 128 columns, and a product of 64."""


def mma(name: str, warps: int, columns: int, version: int = 3) -> str:
    return (
        f"{name} = #ttg.nvidia_mma<{{versionMajor = {version}, versionMinor = 0, warpsPerCTA = [{warps}, 1], "
        f"instrShape = [16, {columns}, 16]}}>\n"
    )


def test_a_row_factor_moves_to_the_other_products_accumulator_for_nothing() -> None:
    text = cut("online_softmax", WIDE)
    assert "instrShape = [16, 128, 16]" in text
    assert "instrShape = [16, 64, 16]" in text
    assert "#mma> -> tensor<128x1xf32, #mma1>" in text, "a conversion from the scores' layout to the product's"
    (loop,) = capture(text).loading
    assert not loop.of_kind("convert_layout")
    # With the rows of one shared by other warps it is work.
    apart = text.replace(
        "warpsPerCTA = [4, 1], instrShape = [16, 64, 16]", "warpsPerCTA = [2, 2], instrShape = [16, 64, 16]"
    )
    (other,) = capture(apart).loading
    assert other.of_kind("convert_layout")


def test_only_layouts_that_lie_alike_get_one_name() -> None:
    use = "%1 = ttg.convert_layout %0 : tensor<64x1xf32, #mma> -> tensor<64x1xf32, #mma1>"
    same = with_one_accumulator_layout(mma("#mma", 4, 128) + mma("#mma1", 4, 64) + use)
    assert same == mma("#mma", 4, 128) + use.replace("#mma1", "#mma")
    for other in (mma("#mma1", 8, 64), mma("#mma1", 4, 64, version=2)):
        text = mma("#mma", 4, 128) + other + use
        assert with_one_accumulator_layout(text) == text
    three = mma("#mma", 4, 128) + mma("#mma1", 8, 64) + mma("#mma10", 4, 64) + use + ", #mma10"
    assert with_one_accumulator_layout(three) == mma("#mma", 4, 128) + mma("#mma1", 8, 64) + use + ", #mma"
