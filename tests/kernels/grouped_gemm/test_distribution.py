"""Rows over groups: every named distribution gives out all rows, the same ones each time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.grouped_gemm.distribution import (
    BUSY_IN,
    DISTRIBUTIONS,
    FEW_ROWS,
    GroupedShape,
    ends,
    group_sizes,
)

ROWS = st.one_of(st.integers(1, 300), st.integers(1, 10**6))
GROUPS = st.integers(1, 1024)


@given(st.sampled_from(DISTRIBUTIONS), ROWS, GROUPS)
def test_a_named_distribution_gives_each_row_to_one_group(name, rows, groups):
    sizes = group_sizes(name, rows, groups)
    assert len(sizes) == groups
    assert sum(sizes) == rows
    assert min(sizes) >= 0
    assert sizes == group_sizes(name, rows, groups)


@given(ROWS, GROUPS)
def test_balanced_sizes_differ_by_one_row_at_most(rows, groups):
    sizes = group_sizes("balanced", rows, groups)
    assert max(sizes) - min(sizes) <= 1


@given(ROWS, GROUPS)
def test_skewed_groups_follow_zipfs_law(rows, groups):
    ranked = sorted(group_sizes("skewed", rows, groups), reverse=True)
    total = sum(rank**-1.25 for rank in range(1, groups + 1))
    for rank, size in enumerate(ranked, 1):
        assert abs(size - rows * rank**-1.25 / total) <= 1


def test_the_ten_busiest_of_64_skewed_groups_have_three_quarters_of_the_rows():
    sizes = sorted(group_sizes("skewed", 49152, 64))
    assert sum(sizes[-10:]) == pytest.approx(0.75 * 49152, rel=0.01)


@given(ROWS, GROUPS)
def test_few_leaves_most_groups_nearly_empty(rows, groups):
    sizes = group_sizes("few", rows, groups)
    busy = -(-groups // BUSY_IN)
    idle, rest = sorted(sizes)[: groups - busy], sorted(sizes)[groups - busy :]
    assert max(idle, default=0) <= FEW_ROWS
    assert max(rest) - min(rest) <= 1
    assert max(rest) >= rows / groups


@pytest.mark.parametrize("name", ["skewed", "few"])
def test_busy_groups_lie_apart(name):
    sizes = group_sizes(name, 49152, 64)
    busy = sorted(sorted(range(64), key=lambda g: -sizes[g])[:8])
    assert min(b - a for a, b in pairwise(busy)) >= 3


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_a_list_is_taken_as_it_is(sizes):
    assert group_sizes(",".join(map(str, sizes)), 10**6, len(sizes)) == tuple(sizes)


def test_ends_are_running_sums():
    assert ends((3, 0, 5)) == (3, 3, 8)


def test_only_rows_of_groups_count_as_work():
    assert GroupedShape(100, 8, 16, (3, 0, 5)).flops == 2 * 8 * 8 * 16
    assert GroupedShape(100, 8, 16, (3, 0, 5)).groups == 3
