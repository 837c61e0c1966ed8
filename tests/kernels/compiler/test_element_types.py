"""Element types of the player: rounding to the nearest, bytes there and back, and what two results differ by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.compiler.inspection.player.comparison import MOST_ROUNDINGS, compare
from warpplan.kernels.compiler.inspection.player.tiles.element_types import (
    decoded,
    element_type,
    encoded,
    poison,
    rounded,
    unit_in_last_place,
)

NARROW = ("bf16", "f16", "f8E4M3FN", "f8E5M2")
LARGEST = {"bf16": 1e38, "f16": 65504.0, "f8E4M3FN": 448.0, "f8E5M2": 57344.0}


def every_value(name: str) -> np.ndarray:
    kind = element_type(name)
    return np.asarray(decoded(np.arange(1 << kind.bits).astype(kind.stored), kind))


@pytest.mark.parametrize("name", NARROW)
def test_every_value_comes_back_from_its_bytes_and_rounds_to_itself(name: str) -> None:
    kind, values = element_type(name), every_value(name)
    finite = values[np.isfinite(values)]
    np.testing.assert_array_equal(decoded(encoded(finite, kind), kind), finite)
    np.testing.assert_array_equal(rounded(finite, kind), finite)


@pytest.mark.parametrize("name", NARROW)
@given(share=st.floats(-1, 1), scale=st.integers(-20, 0))
def test_a_number_is_rounded_to_the_nearest_value(name: str, share: float, scale: int) -> None:
    kind = element_type(name)
    number = np.float32(share * LARGEST[name] * 2.0**scale)
    values = every_value(name)
    values = values[np.isfinite(values)].astype(np.float64)
    nearest = np.min(np.abs(values - float(number)))
    assert abs(float(rounded(np.array([number]), kind)[0]) - float(number)) == nearest


def test_eight_bit_floats_are_those_of_their_standard() -> None:
    assert np.nanmax(every_value("f8E4M3FN")) == 448
    assert sorted(set(np.abs(every_value("f8E4M3FN")[:3]))) == [0, 2**-9, 2**-8]
    assert np.isinf(every_value("f8E5M2")).sum() == 2
    assert float(rounded(np.float32(1e9), element_type("f8E4M3FN"))) == 448  # saturating


@pytest.mark.parametrize("name", [*NARROW, "f32", "i8", "i32", "i64", "i1"])
def test_what_nobody_wrote_is_no_number_that_a_kernel_makes(name: str) -> None:
    made = poison((4,), element_type(name))
    assert np.isnan(made).all() if element_type(name).is_float else (made != 0).all()


def buffers(*values: float) -> dict[str, np.ndarray]:
    kind = element_type("bf16")
    return {"c": encoded(rounded(np.array(values, np.float32), kind), kind).view(np.uint8)}


def test_results_are_equal_or_few_roundings_apart_or_they_differ() -> None:
    grain, one = element_type("bf16"), 2.0**-7
    elements = {"c": "bf16"}
    assert unit_in_last_place(1.5, grain) == one
    wanted = buffers(1.0, 0.25, float("nan"))
    assert str(compare(wanted, buffers(1.0, 0.25, float("nan")), elements, grain)) == "equal"
    assert str(compare(wanted, buffers(1.0, 0.25 + 2 * one, float("nan")), elements, grain)) == "within 2 roundings"
    far = compare(wanted, buffers(1.0, 0.25 + 2 * MOST_ROUNDINGS * one, float("nan")), elements, grain)
    assert far.differs.startswith("c[1] is 0.3125, not 0.25, and 1 of 3 differ")
    assert compare(wanted, buffers(1.0, 0.25, 0.5), elements, grain).differs  # written, where nothing should be


def test_whole_numbers_are_equal_or_differ() -> None:
    a, b = ({"c": np.array([n, 7], np.int32).view(np.uint8)} for n in (5, 6))
    assert compare(a, b, {"c": "i32"}, element_type("f32")).differs == "c[0] is 6, not 5, and 1 of 2 differ"
