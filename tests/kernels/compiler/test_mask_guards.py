"""Masks behind a branch: what is computed is the same to the bit, and what cannot be told from scalars stays."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from cut_kernels import HOPPER
from interpreter import BUFFER
from played import DEPTH, ROWS, cut, own_source, same, tensors
from triton import knobs

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.fusing import lowered
from warpplan.kernels.compiler.costing.hopper_ranking import rank
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.lowering.mask_guards import with_mask_guards
from warpplan.kernels.compiler.pointers.masks.seldom_masks import with_seldom_masks
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.stage_hook import compile_with
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

SCHEMES = (HopperStrategy(2, (2,)), HopperStrategy(2, (2,), in_flight=0), HopperStrategy(1, (2,), persistent=1))
MASKED = "_masked = arith.select"


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize(
    ("count", "first", "length"), [(0, 0, 448), (3, 64, 448), (3, 0, 448), (7, 320, 448), (7, 400, 417), (2, 0, 0)]
)
def test_scores_masked_behind_a_branch_are_the_same(
    count: int, first: int, length: int, scheme: HopperStrategy
) -> None:
    made, buffers = tensors((ROWS, 64), (DEPTH, 64), (DEPTH, 64), (ROWS, 64))
    values = dict(zip("qkv", made, strict=False))
    values |= {"c_ptr": 3 * BUFFER, "count": count, "first": first, "L": length}
    lowered = same(cut("masked_scores"), scheme, values, buffers, seeds=1, launched=1)
    assert MASKED in lowered


def test_two_masks_in_a_row_are_one_branch_and_read_nothing_outside_of_it() -> None:
    function = with_mask_guards(unique_names(parse(cut("masked_scores")).function))
    loop = next(op for op in function.walk() if op.name == "scf.for")
    branches = [op for op in loop.regions[0].operations if op.name == "scf.if"]
    assert [sum(op.name == "arith.select" for op in branch.walk()) for branch in branches] == [2, 1]
    assert not any(op.name == "arith.select" for op in loop.regions[0].operations)
    compared = [op for op in loop.regions[0].operations if op.name == "arith.cmpi" and "tensor<128x64" in op.signature]
    assert not compared


@pytest.mark.parametrize(("old", "new"), [("arith.cmpi slt", "arith.cmpi ult"), ("arith.cmpi sge", "arith.cmpi eq")])
def test_a_mask_that_scalars_do_not_tell_of_is_left(old: str, new: str) -> None:
    text = cut("masked_scores")
    assert specialize(text, SCHEMES[0]).count(MASKED) > specialize(text.replace(old, new), SCHEMES[0]).count(MASKED)


def test_masks_outside_of_loops_are_left() -> None:
    for name in ("scores", "twice", "between"):
        assert MASKED not in specialize(cut(name), SCHEMES[2])


def test_a_plan_is_costed_without_the_masks_that_seldom_hide_anything() -> None:
    text = cut("masked_scores")
    seldom, always = capture(with_seldom_masks(text)), capture(text)
    assert any(work.seldom for work in seldom.loading[0].work)
    assert lowered(always.loading[0]) is always.loading[0]
    profile = embedded(H200.name)
    best, other = rank(seldom, profile, H200)[0], rank(always, profile, H200)[0]
    assert best.predicted_cycles < other.predicted_cycles
    alone = [next(r for r in rank(captured, profile, H200) if r.scheme is None) for captured in (seldom, always)]
    assert alone[0].predicted_cycles == pytest.approx(alone[1].predicted_cycles, rel=0.02)


def test_it_compiles_for_hopper_without_spills(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True
        compile_with(own_source("masked_scores"), HOPPER, {"num_warps": 4}, SCHEMES[0], tmp_path)
    assert re.findall(r"(\d+) bytes spill", capfd.readouterr().out) == ["0", "0"]
