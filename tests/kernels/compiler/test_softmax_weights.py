"""Exponentials without the instructions for subnormal results: softmax weights alone, the same to the bit."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from cut_kernels import HOPPER
from interpreter import BUFFER
from played import DEPTH, ROWS, cut, own_source, same, tensors

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.analysis.operation_kinds import FLUSHED
from warpplan.kernels.compiler.costing.hopper_ranking import rank
from warpplan.kernels.compiler.inspection.finished import written_text
from warpplan.kernels.compiler.inspection.player.tiles.elementwise import _exponential, _flushed
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.pointers.softmax_weights import with_flushed_weights
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.stage_hook import compile_with
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

SCHEMES = (HopperStrategy(2, (2,)), HopperStrategy(1, (2,), persistent=1))
SOFTMAX = "online_softmax"


def marked(text: str) -> list[str]:
    """The types of the exponentials that are marked in ``text``."""
    lines = [line for line in text.split("\n") if FLUSHED in line]
    assert all("math.exp " in line for line in lines)
    return [line.partition("}")[2] for line in lines]


def written(edit: Callable[[str], str] = str) -> str:
    """The kernel as it is written, edited."""
    text = written_text(own_source(SOFTMAX), HOPPER, {"num_warps": 4})
    changed = edit(text)
    assert edit is str or changed != text
    return with_flushed_weights(changed)


def test_the_weights_of_a_tile_are_marked_and_the_factor_of_a_row_is_not() -> None:
    (kind,) = marked(written())
    assert "128x64xf32" in kind
    assert not marked(with_flushed_weights(cut("masked_scores")))


@pytest.mark.parametrize("edit", [
    lambda text: text.replace("0xFF800000", "0.000000e+00"),  # a maximum of 0 before any score: a sum of less than 1
    lambda text: text.replace("0xFF800000", "-1.000000e+04"),
    lambda text: text.replace("arith.maxnumf", "arith.minnumf"),
    lambda text: re.sub(r"arith.addf (%total\S*, %total\S* : tensor<128xf32>)", r"arith.mulf \1", text),
    lambda text: re.sub(r"(%p\S* = )arith.subf (%s\S*),", r"\1arith.addf \2,", text),
], ids=["from zero", "from a possible score", "minimum", "a sum that is multiplied", "a sum of both"])  # fmt: skip
def test_exponentials_of_which_small_ones_may_be_kept_stay(edit: Callable[[str], str]) -> None:
    assert not marked(written(edit))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_plan_takes_the_marked_ones_to_the_power_of_two(scheme: HopperStrategy) -> None:
    text = with_flushed_weights(cut(SOFTMAX))
    made, buffers = tensors((ROWS, 64), (DEPTH, 64), (DEPTH, 64), (ROWS, 64))
    values = dict(zip("qkv", made, strict=False)) | {"c_ptr": 3 * BUFFER, "d_ptr": 4 * BUFFER, "count": 3}
    buffers.append(np.zeros(ROWS))
    lowered = same(text, scheme, values, buffers, seeds=1, launched=1)
    assert lowered.count("math.exp2 ") == lowered.count("math.exp ") > 0, "those of rows are left"
    assert FLUSHED not in lowered
    assert "math.exp2 " not in specialize(cut(SOFTMAX), scheme)


def test_what_both_compute_differs_in_subnormal_results_alone() -> None:
    x = np.concatenate([np.linspace(-110, 88, 100_001), [-np.inf, np.inf, 0, np.nan]]).astype(np.float32)
    kept, flushed = _exponential(x), _flushed(x * np.float32(1.4426950408889634))
    small = kept < np.finfo(np.float32).tiny
    np.testing.assert_array_equal(flushed, np.where(small, np.float32(0), kept))
    assert small.any()
    assert kept[small].any()


def test_a_plan_is_costed_without_the_instructions_that_it_avoids() -> None:
    flushed, kept = capture(with_flushed_weights(cut(SOFTMAX))), capture(cut(SOFTMAX))
    profile = embedded(H200.name)
    best, other = rank(flushed, profile, H200), rank(kept, profile, H200)
    assert best[0].predicted_cycles < other[0].predicted_cycles
    alone = [next(r.predicted_cycles for r in ranked if r.scheme is None) for ranked in (best, other)]
    assert alone[0] == alone[1]


def test_the_instructions_for_subnormal_results_are_gone(tmp_path: Path) -> None:
    compiled = compile_with(own_source(SOFTMAX), HOPPER, {"num_warps": 4}, SCHEMES[0], tmp_path)
    found = re.findall(r"ex2\.approx\.(?:ftz\.)?f32", compiled.asm["ptx"])
    kept = sum("ftz" not in each for each in found)
    assert 0 < kept < len(found) / 8, "the factors of rows alone are kept"
