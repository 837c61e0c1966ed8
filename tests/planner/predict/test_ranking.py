"""Candidates in order: by time, then by the tie breaks, then by position; the last bits of a time decide nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from warpplan.planner.predict.ranking import best_first, diverse

TIMES = st.lists(st.one_of(st.sampled_from([1.0, 2.0, 3.0]), st.floats(1e-2, 1e6)), min_size=1, max_size=30)


def order(times: list[float], *ties: list[float], limit: int | None = None) -> list[int]:
    return best_first(np.array(times), tuple(np.array(t) for t in ties), limit or len(times)).tolist()


@given(TIMES, st.data())
def test_the_order_is_the_obvious_one(times, data):
    ties = [data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(times), max_size=len(times))) for _ in (0, 1)]
    coarse = [round(t / min(times), 6) for t in times]
    expected = sorted(range(len(times)), key=lambda i: (coarse[i], ties[0][i], ties[1][i], i))
    assert order(times, *ties) == expected


@given(TIMES, st.integers(1, 40))
def test_a_limit_keeps_the_first(times, limit):
    everything = order(times)
    assert sorted(everything) == list(range(len(times)))
    assert order(times, limit=limit) == everything[:limit]


@given(TIMES)
def test_nothing_slower_by_more_than_the_resolution_comes_first(times):
    in_order = [times[i] for i in order(times, [float(-i) for i in range(len(times))])]
    slack = 1.1e-6 * min(times)
    assert all(a <= b + slack for i, a in enumerate(in_order) for b in in_order[i:])


@given(st.lists(st.integers(100, 100_000), max_size=30), st.integers(0, 2**32 - 1))
def test_the_last_bits_decide_nothing(hundredths, seed):
    """Times up to a thousand times the best one's, each a few last bits off: the same order."""
    times = [1.0, *(h / 100 for h in hundredths)]
    noise = 1 + 1e-14 * np.random.default_rng(seed).uniform(-1, 1, len(times))
    assert order(times) == order((np.array(times) * noise).tolist())


def test_ties_are_broken_in_turn_then_by_position():
    assert order([5.0, 5.0, 5.0, 5.0], [1, 0, 0, 0], [0, 2, 1, 1]) == [2, 3, 1, 0]
    assert order([5.0, 5.0, 4.0]) == [2, 0, 1]


def test_resolution_is_one_part_in_a_million_of_the_best():
    assert order([1.0, 1.0 - 1e-8], [0, 1]) == [0, 1]
    assert order([1.0, 1.0 - 1e-5], [0, 1]) == [1, 0]
    assert order([1e3 * (1 + 1e-8), 1e3], [0, 1]) == [0, 1]


def test_nothing_to_rank():
    assert best_first(np.array([]), (), 8).tolist() == []


# Diverse plans

RANKED = st.lists(st.sampled_from("abcd"), max_size=12)


@given(RANKED, st.integers(0, 14))
def test_diverse_plans_are_as_many_as_asked_in_order(kinds, count):
    ranked = list(enumerate(kinds))
    found = diverse(ranked, count, lambda plan: plan[1])
    assert len(found) == min(count, len(ranked))
    assert found == sorted(set(found))
    assert found[: (count + 1) // 2] == ranked[: (count + 1) // 2]


@given(RANKED, st.integers(1, 14))
def test_no_kind_is_left_out_for_a_second_of_another(kinds, count):
    """Beyond the first half a plan like an earlier one is taken only when every kind is there."""
    found = diverse(list(enumerate(kinds)), count, lambda plan: plan[1])
    repeated = [i for i, (_, kind) in enumerate(found) if kind in {k for _, k in found[:i]}]
    if {kind for _, kind in found} != set(kinds):
        assert len(repeated) <= (count + 1) // 2
        assert all(i < (count + 1) // 2 for i in repeated)


def test_the_best_of_each_other_kind_comes_before_more_of_the_same():
    assert diverse("aaaabbc", 4, str) == list("aabc")
    assert diverse("aaaabbc", 6, str) == list("aaaabc")
    assert diverse("aaaa", 3, str) == list("aaa")
    assert diverse("", 3, str) == []
