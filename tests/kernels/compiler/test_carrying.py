"""Which decisions are carried to other sizes, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.compiler.background.launch_memory import launch_sizes, shared_memory
from warpplan.kernels.compiler.launching.carrying import LEFT, CarriedDecisions
from warpplan.kernels.compiler.launching.decisions import Compiled, Decision, Folder, Situation
from warpplan.kernels.compiler.sizes.gain_model import GainBasis, GainModel, LoopTrips, StrategyTerms
from warpplan.kernels.compiler.sizes.size_expressions import LaunchSizes
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

HERE = Situation("my.gemm", "abc", "(i32, 16)", (8, 9), "NVIDIA H200", "570.1", "3.6.0", "0.1.0")
THERE = replace(HERE, sizes=(12, 9))
SHORT, LONG = LaunchSizes((("K", 64),), (132,)), LaunchSizes((("K", 8192),), (132,))
MODEL = GainModel(
    132, (LoopTrips(("counter", 0, ("argument", "K"), 64)),), (StrategyTerms((1000.0,), 5000.0),),
    StrategyTerms((800.0,), 5300.0),
)  # fmt: skip
"""Gains with K, and loses where K is one block."""
TRIED = Decision(
    HERE, HopperStrategy(2, (3,)), measured=True, planned_us=80.0, unplanned_us=80.0 * MODEL.gain(LONG),
    compiled=Compiled("x", (("cubin", "/x"),)), basis=GainBasis(MODEL, LONG),
)  # fmt: skip


def carrying(*decisions: Decision, measure: bool = True) -> CarriedDecisions:
    known = CarriedDecisions(measure=measure)
    for decision in decisions:
        known.add(decision)
    return known


def test_a_plan_is_carried_where_its_gain_holds() -> None:
    carried = carrying(TRIED).carry(THERE, LaunchSizes((("K", 4096),), (64,)), ())
    assert carried is not None
    assert (carried.scheme, carried.compiled, carried.situation) == (TRIED.scheme, TRIED.compiled, THERE)
    assert (carried.carried_from, carried.measured, carried.tried) == (HERE.key, False, False), "it ran elsewhere"
    assert carried.predicted_gain == pytest.approx(MODEL.gain(LaunchSizes((("K", 4096),), (64,))))
    assert (carried.planned_us, carried.unplanned_us) == (None, None)


def test_where_it_does_not_the_kernel_stays() -> None:
    carried = carrying(TRIED).carry(THERE, SHORT, ())
    assert carried is not None
    assert (carried.scheme, carried.compiled, carried.reason) == (None, None, LEFT)
    assert carried.predicted_gain is not None
    assert carried.predicted_gain < 1


def test_a_kernel_that_was_left_may_gain_at_other_sizes() -> None:
    left = replace(
        TRIED, scheme=None, compiled=None, basis=GainBasis(MODEL, SHORT), planned_us=100.0, unplanned_us=98.0
    )
    assert carrying(left).carry(THERE, LONG, ()) is None, "nothing is known of a plan: it has to be tried"
    carried = carrying(left).carry(THERE, SHORT, ())
    assert carried is not None
    assert carried.scheme is None
    both = carrying(left, replace(TRIED, situation=THERE)).carry(replace(HERE, sizes=(13, 9)), LONG, ())
    assert both is not None
    assert both.scheme == TRIED.scheme


def test_refusals_hold_at_every_size() -> None:
    refused = Decision(HERE, None, "has no loads", failed=True)
    carried = carrying(refused).carry(THERE, SHORT, ("a b",))
    assert carried is not None
    assert (carried.scheme, carried.reason, carried.failed) == (None, "has no loads", True)


def test_other_kernels_and_other_aliases_are_apart() -> None:
    known = carrying(TRIED)
    assert known.carry(replace(THERE, specialization="(i32)"), LONG, ()) is None
    assert known.carry(THERE, LONG, ("a c",)) is None, "no trial has seen a and c share memory"


def test_what_was_carried_is_not_carried_on() -> None:
    first = carrying(TRIED).carry(THERE, LONG, ())
    assert first is not None
    assert carrying(first).carry(replace(HERE, sizes=(13, 9)), LONG, ()) is None


def test_predictions_alone_are_carried_where_nothing_is_measured() -> None:
    predicted = Decision(HERE, HopperStrategy(2, (3,)), basis=GainBasis(MODEL, LONG))
    assert carrying(predicted).carry(THERE, LONG, ()) is None
    for sizes in (SHORT, LONG):
        carried = carrying(predicted, measure=False).carry(THERE, sizes, ())
        assert carried is not None
        assert carried.scheme == predicted.scheme, "the same on every rank, whichever size it saw first"


@given(st.integers(0, 2**20), st.integers(1, 4096))
def test_a_carried_plan_never_loses_by_prediction(k: int, programs: int) -> None:
    sizes = LaunchSizes((("K", k),), (programs,))
    carried = carrying(TRIED).carry(THERE, sizes, ())
    assert carried is not None
    assert (carried.scheme is not None) == (carried.predicted_gain > 1.01)


def test_what_is_kept_outranks_what_is_less_sure(tmp_path: Path) -> None:
    """Predicted, carried, carried and timed by launches, tried beside a job, tried."""
    carried = carrying(TRIED).carry(HERE, LONG, ())
    assert carried is not None
    order = [
        Decision(HERE, HopperStrategy(2, (3,))), carried, replace(carried, planned_us=8.0, unplanned_us=9.0),
        replace(TRIED, provisional=True), TRIED,
    ]  # fmt: skip
    for i, weaker in enumerate(order):
        for stronger in order[i + 1 :]:
            folder = Folder(tmp_path / f"{i} {order.index(stronger)}")
            assert folder.settle(weaker) == weaker
            assert folder.settle(stronger) == stronger
            assert folder.settle(weaker) == stronger


def test_a_folder_knows_the_other_sizes(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    elsewhere = replace(TRIED, situation=replace(HERE, kernel="other"))
    for decision in (TRIED, replace(TRIED, situation=THERE), elsewhere):
        folder.settle(decision)
    (tmp_path / "damaged.json").write_text("{")
    found = folder.family(replace(HERE, sizes=(1, 1)))
    assert {decision.situation.sizes for decision in found} == {HERE.sizes, THERE.sizes}
    assert folder.family(elsewhere.situation) == [elsewhere]


def tensor(address: int, *shape: int, strides: tuple[int, ...] | None = None) -> Any:
    strides = strides or tuple(shape[i + 1] if i + 1 < len(shape) else 1 for i in range(len(shape)))
    dtype = SimpleNamespace(itemsize=2)
    return SimpleNamespace(shape=shape, stride=lambda: strides, dtype=dtype, data_ptr=lambda: address)


def test_arguments_that_share_memory_are_told() -> None:
    a, b = tensor(1000, 10, 10), tensor(1200, 10, 10)
    assert shared_memory({"a": a, "b": b, "n": 3}) == ()
    assert shared_memory({"a": a, "b": tensor(1198, 10, 10)}) == ("a b",)
    assert shared_memory({"a": a, "same": a, "b": b}) == ("a same",)
    described = SimpleNamespace(base=a)
    assert shared_memory({"x": described, "a": a}) == ("x a",)


def test_strides_of_zero_and_below_span_what_they_reach() -> None:
    row = tensor(1000, 8, 10, strides=(0, 1))
    assert shared_memory({"row": row, "behind": tensor(1020, 4, 1)}) == ()
    backwards = tensor(1018, 10, strides=(-1,))
    assert shared_memory({"a": backwards, "first": tensor(1000, 1)}) == ("a first",)
    assert shared_memory({"a": backwards, "behind": tensor(1020, 1)}) == ()
    assert shared_memory({"a": tensor(0, 0, 8), "b": tensor(0, 8, 8)}) == (), "an empty one overlaps with nothing"


def test_sizes_are_the_integers_of_a_launch() -> None:
    sizes = launch_sizes({"a": tensor(0, 1), "n": 3, "flag": True, "scale": 0.5, "none": None}, (4, 2))
    assert sizes == LaunchSizes((("n", 3),), (4, 2, 1))
    assert sizes.programs == 8
