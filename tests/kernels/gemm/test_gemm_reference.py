from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the reference is torch's")

from warpplan.kernels.gemm.reference import reference, relative_error  # noqa: E402


def test_reference_is_exact_and_not_rounded_to_the_operands():
    a = torch.tensor([[1.0, 2.0**-9]], dtype=torch.bfloat16)
    b = torch.tensor([[1.0, 1.0], [2.0, 0.0]], dtype=torch.bfloat16)
    assert reference(a, b).tolist() == [[1.0 + 2.0**-9, 2.0]]


def test_relative_error():
    expected = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert relative_error(expected, expected) == 0.0
    assert relative_error(torch.tensor([[3.0, 4.5]]), expected) == pytest.approx(0.1)
    assert relative_error(torch.tensor([[0.5, 0.0]]), torch.zeros(1, 2)) == 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_result_that_is_not_finite_is_infinitely_wrong(bad):
    assert relative_error(torch.tensor([[3.0, bad]]), torch.tensor([[3.0, 4.0]])) == math.inf
