"""What right means, against products written out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="the reference is torch's")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from warpplan.kernels.grouped_gemm.reference import bounds, reference, scaled  # noqa: E402
from warpplan.planner.errors import UnknownName  # noqa: E402


@given(ends=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9), rows=st.integers(0, 40))
def test_groups_are_disjoint_in_order_and_within_the_rows(ends, rows):
    groups = bounds(torch.tensor(ends, dtype=torch.int32), rows)
    flat = [0, *(edge for group in groups for edge in group), rows]
    assert len(groups) == len(ends)
    assert flat == sorted(flat)
    assert all(earlier[1] == later[0] for earlier, later in pairwise(groups))


def test_ascending_ends_are_taken_as_they_are():
    assert bounds(torch.tensor([2, 2, 7], dtype=torch.int32), 9) == [(0, 2), (2, 2), (2, 7)]


def test_each_product_by_hand():
    a, b, dc = torch.randn(9, 4), torch.randn(3, 5, 4), torch.randn(9, 5)
    ends = torch.tensor([2, 2, 7], dtype=torch.int32)
    c, da, db = reference("forward", a, b, ends), reference("dgrad", dc, b, ends), reference("wgrad", dc, a, ends)
    for row, group in enumerate((0, 0, 2, 2, 2, 2, 2)):
        torch.testing.assert_close(c[row], b[group].double() @ a[row].double())
        torch.testing.assert_close(da[row], dc[row].double() @ b[group].double())
    assert not c[7:].any()
    assert not da[7:].any()
    torch.testing.assert_close(db[2], sum(torch.outer(dc[r].double(), a[r].double()) for r in range(2, 7)))
    assert not db[1].any()


def test_a_nan_stays_in_its_group():
    a, b = torch.ones(4, 2), torch.ones(2, 3, 2)
    a[0, 0] = float("nan")
    found = reference("forward", a, b, torch.tensor([2, 4]))
    assert found[0].isnan().all()
    assert found[1:].isfinite().all()


def test_an_unknown_product():
    with pytest.raises(UnknownName, match="backward"):
        reference("backward", torch.zeros(2, 2), torch.zeros(1, 2, 2), torch.tensor([2]))


def test_scales_of_rows_and_of_blocks():
    values = torch.ones(3, 130, 260)
    by_row = torch.rand(3, 130)
    assert torch.equal(scaled(values, by_row), by_row.double()[..., None].expand(3, 130, 260))
    by_block = torch.rand(3, 2, 3)
    blocks = scaled(values, by_block)
    assert blocks[1, 127, 255] == by_block[1, 0, 1]
    assert blocks[1, 128, 256] == by_block[1, 1, 2]
    by_row_and_block = torch.rand(3, 130, 3)
    assert scaled(values, by_row_and_block)[2, 129, 128] == by_row_and_block[2, 129, 1]
