"""Looking costs up: exact where measured, linear between, never below the smallest outside."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.planner.errors import InvalidInput, MalformedFile, MissingCosts
from warpplan.planner.values import codec
from warpplan.planner.values.costs import CostEntry, CostTable, OperationCost, Quantiles
from warpplan.planner.values.profile import Identity, Profile

from ..conftest import entry

IDENTITY = Identity("NVIDIA H200", "580", "13.0", "3.6.0", "2.11.0", "3.12.3", "2026-01-01", "warpplan profile")

POINTS = st.dictionaries(st.integers(1, 10**6), st.floats(0.0, 1e6), min_size=1, max_size=8)


def curve(points: dict[int, float]) -> CostTable:
    return CostTable(tuple(entry("load", value, None, None, bytes=size) for size, value in points.items()))


def latency(table: CostTable, size: int) -> float:
    cost = table.lookup("load", size)
    assert cost.latency is not None
    assert cost.occupancy is cost.issue is None
    return cost.latency.p50


@given(POINTS)
def test_measured_points_come_back_as_measured(points):
    table = curve(points)
    for size, value in points.items():
        assert table.lookup("load", size).latency == Quantiles(value, 1.1 * value, 100)


@given(POINTS, st.integers(0, 2 * 10**6))
def test_between_points_a_cost_lies_between_theirs(points, size):
    found = latency(curve(points), size)
    assert found >= min(points.values())
    below, above = [s for s in points if s <= size], [s for s in points if s >= size]
    if below and above:
        ends = points[max(below)], points[min(above)]
        assert min(ends) - 1e-6 <= found <= max(ends) + 1e-6


@given(st.floats(0.0, 100.0), st.floats(0.0, 10.0), st.sets(st.integers(1, 1000), min_size=2), st.integers(1, 3000))
def test_a_straight_line_is_continued(offset, slope, sizes, size):
    table = curve({s: offset + slope * s for s in sizes})
    expected = offset + slope * max(size, min(sizes))  # never below the smallest measured
    assert latency(table, size) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_a_falling_line_stops_at_the_smallest():
    table = curve({100: 50.0, 200: 10.0})
    assert latency(table, 150) == 30.0
    assert latency(table, 400) == 10.0
    assert latency(table, 50) == 70.0


def test_a_single_point_stands_for_every_size():
    assert latency(curve({64: 7.0}), 10_000) == 7.0


def test_the_order_of_entries_does_not_matter():
    points = {1: 5.0, 10: 50.0, 100: 80.0}
    backwards = curve(dict(reversed(points.items())))
    assert [latency(backwards, s) for s in (1, 5, 50, 200)] == [latency(curve(points), s) for s in (1, 5, 50, 200)]


def test_text_parameters_are_matched_exactly():
    table = CostTable(
        (entry("load", 1, None, None, bytes=64, source="l2"), entry("load", 9, None, None, bytes=64, source="dram"))
    )
    near, far = table.lookup("load", 64, source="l2").latency, table.lookup("load", 64, source="dram").latency
    assert near is not None
    assert far is not None
    assert (near.p50, far.p50) == (1.0, 9.0)
    for text in ({}, {"source": "l3"}, {"source": "l2", "extra": "x"}):
        with pytest.raises(MissingCosts):
            table.lookup("load", 64, **text)


def test_unmeasured_parts_are_none_and_measured_ones_are_interpolated_alone():
    both = OperationCost(Quantiles(10, 11, 5), Quantiles(1, 2, 5))
    half = OperationCost(Quantiles(30, 33, 3))
    table = CostTable((CostEntry("mma", (("n", 8),), both), CostEntry("mma", (("n", 16),), half)))
    cost = table.lookup("mma", 12)
    assert cost.latency == Quantiles(20.0, 22.0, 3)
    assert cost.occupancy == Quantiles(1, 2, 5)
    assert cost.issue is None


@pytest.mark.parametrize(
    ("text", "label"),
    [({}, "mma"), ({"dtype": "bfloat16", "a": "shared"}, r"mma\(a=shared, dtype=bfloat16\)")],
)
def test_what_was_never_measured_is_named(text, label):
    with pytest.raises(MissingCosts, match=rf"^the profile has no measured cost for {label}: record") as caught:
        CostTable(()).lookup("mma", 64, **text)
    assert caught.value.field == "profile"
    assert "\n" not in str(caught.value)


def test_kinds_and_labels():
    table = CostTable((entry("b", 1, 1, 1), entry("a", 1, 1, 1, n=3, x="y"), entry("a", 1, 1, 1, n=4, x="y")))
    assert table.kinds() == ("a", "b")
    assert [e.label for e in table.entries] == ["b()", "a(n=3, x=y)", "a(n=4, x=y)"]


def test_two_entries_that_answer_one_lookup_are_refused():
    twice = (entry("load", 1, None, None, bytes=64, source="l2"), entry("load", 2, None, None, bytes=64, source="l2"))
    with pytest.raises(InvalidInput, match=r"two cost entries for load\(bytes=64, source=l2\): keep one of them"):
        CostTable(twice)
    with pytest.raises(InvalidInput, match=r"mma\(m=1, n=2\) and mma\(m=1, n=4\), which no lookup tells apart"):
        CostTable((entry("mma", 1, 1, 1, m=1, n=2), entry("mma", 1, 1, 1, m=1, n=4)))


def test_a_profile_with_an_entry_given_twice_is_refused_where_it_is_read():
    once = Profile(IDENTITY, CostTable((entry("mma", 1, 1, 1, n=8),)), ())
    body = codec.to_json(once)
    body["costs"]["entries"] *= 2
    with pytest.raises(MalformedFile, match=r"p.json: the profile has two cost entries for mma\(n=8\)"):
        codec.loads(json.dumps(body), "p.json", Profile)
