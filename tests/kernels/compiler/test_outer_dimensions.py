"""Offsets of a batch as outer dimensions of a descriptor: which are, which are not, and what is then computed."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import batched_kernels as kernels
from interpreter import BUFFER
from played import HOPPER, same

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.lowering.hopper.load_rings import WALK
from warpplan.kernels.compiler.lowering.hopper.persistent import walking
from warpplan.kernels.compiler.pointers import outer_dimensions
from warpplan.kernels.compiler.pointers.planned_cut import PlannedCut, planned_cut
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir.parsing import parse

pytestmark = pytest.mark.matrix

SIGNATURE = (
    "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, table_ptr=*i32, M=i32, N=i32, K=i32, H=i32, stride_ab=i32:16, "
    "stride_ah=i32:16, stride_am=i32:16, stride_bb=i32:16, stride_bn=i32:16, stride_cb=i32, stride_cm=i32, "
    "OFFSET='{}', BM=128, BN=64, BK=64"
)
ROWS, COLUMNS, DEPTH, STRIDE = 136, 80, 90, 96
GRID = (2, 2, 3)
VALUES = {
    "a_ptr": 0, "b_ptr": BUFFER, "c_ptr": 2 * BUFFER, "table_ptr": 3 * BUFFER, "M": ROWS, "N": COLUMNS, "K": DEPTH,
    "H": 2, "stride_ab": ROWS * STRIDE, "stride_ah": 16 * STRIDE, "stride_am": STRIDE, "stride_bb": COLUMNS * STRIDE,
    "stride_bn": STRIDE, "stride_cb": ROWS * COLUMNS, "stride_cm": COLUMNS,
}  # fmt: skip
DIMENSIONS = {"plain": 3, "heads": 4, "wide heads": 4, "fixed": 3, "sized": 3}
BASES = {
    "looked up": "the number of a batch may be negative",
    "behind": "its stride is negative",
    "squared": "a product of two numbers may leave 32 bits",
    "ragged": "its end changes with the batch, so that its descriptor does",
}


@cache
def at_cut(offset: str, signature: str = SIGNATURE) -> tuple[str, PlannedCut]:
    source = source_of(kernels.batched, signature.format(offset))
    return pipeline.cut(source, HOPPER, {"num_warps": 4}).text, planned_cut(source, HOPPER, {"num_warps": 4})


def memory() -> list[np.ndarray]:
    draw = np.random.default_rng(11)
    data = [draw.integers(-4, 5, 1 << 16) / 4.0 for _ in range(3)]
    return [*data, np.array([1, 0, 2])]


def dimensions(text: str) -> list[int]:
    """Of the descriptors of A and B, in the order of the kernel."""
    made = re.findall(r"tt.make_tensor_descriptor [^\n]*?\[([^\]]*)\]", text)
    return [found.count(",") + 1 for found in made]


def made_in_walk(text: str) -> int:
    """How many descriptors a walk makes for each program that it comes to."""
    function = walking(parse(text))
    (walk,) = [op for op in function.walk() if WALK in op.attributes]
    return sum(op.name == "tt.make_tensor_descriptor" for op in walk.walk())


@pytest.mark.parametrize("offset", DIMENSIONS)
def test_an_index_times_a_stride_is_a_dimension_and_its_descriptor_is_made_once_a_walk(offset: str) -> None:
    _, planned = at_cut(offset)
    assert not planned.described.unchanged
    assert dimensions(planned.text) == [DIMENSIONS[offset], 3]
    assert made_in_walk(planned.text) == 0


@pytest.mark.parametrize("offset", BASES)
def test_what_is_no_dimension_for_sure_stays_in_the_base(offset: str) -> None:
    _, planned = at_cut(offset)
    assert not planned.described.unchanged
    assert dimensions(planned.text) == [2, 3], BASES[offset]
    assert made_in_walk(planned.text) == 1


@pytest.mark.parametrize("persistent", [0, 1])
@pytest.mark.parametrize("offset", [*DIMENSIONS, *BASES])
def test_each_batch_is_multiplied_as_before(offset: str, persistent: int) -> None:
    original, planned = at_cut(offset)
    scheme = HopperStrategy(2, (2,), persistent=persistent)
    same(planned.text, scheme, VALUES, memory(), GRID, launched=5, seeds=1, original=original)


def test_a_stride_of_0_as_of_a_tensor_that_is_expanded_gives_the_same_batch_each_time() -> None:
    original, planned = at_cut("plain")
    values = {**VALUES, "stride_bb": 0}
    same(planned.text, HopperStrategy(2, (2,)), values, memory(), GRID, seeds=1, original=original)
    assert dict(planned.described.least)["stride_bb"] == 0


def test_a_stride_that_is_not_known_to_be_aligned_stays_in_the_base() -> None:
    _, planned = at_cut("plain", SIGNATURE.replace("stride_bb=i32:16", "stride_bb=i32"))
    assert dimensions(planned.text) == [3]  # without alignment, there is no TMA load either
    assert len(planned.described.unchanged) == 1


def test_four_offsets_are_more_than_a_tensor_map_has_dimensions_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_dimensions, "MOST_OUTER", 1)
    at_cut.cache_clear()
    assert dimensions(at_cut("heads")[1].text) == [2, 3]
    at_cut.cache_clear()


def test_switched_off_offsets_stay_in_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_dimensions, "ENABLED", False)
    at_cut.cache_clear()
    text = at_cut("plain")[1].text
    at_cut.cache_clear()
    assert dimensions(text) == [2, 2]
    assert made_in_walk(text) == 2


WHOLE_ROWS = SIGNATURE.replace("stride_am=i32:16", "stride_am=96")


def test_an_offset_of_whole_rows_is_a_dimension_where_the_tensors_end_moves_with_it() -> None:
    _, planned = at_cut("fixed", WHOLE_ROWS)
    assert dimensions(planned.text) == [3, 3]
    assert made_in_walk(planned.text) == 0


@pytest.mark.parametrize("persistent", [0, 1])
def test_each_batch_of_whole_rows_ends_where_it_ended(persistent: int) -> None:
    original, planned = at_cut("fixed", WHOLE_ROWS)
    scheme = HopperStrategy(2, (2,), persistent=persistent)
    same(planned.text, scheme, {**VALUES, "M": 130}, memory(), GRID, launched=5, seeds=1, original=original)
