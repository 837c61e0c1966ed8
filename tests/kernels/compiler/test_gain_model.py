"""The gain of a plan at other sizes: trip counts read from real kernels, and the model that they go into."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.kernels.compiler.sizes.gain_model import (
    MOST_OFF,
    GainBasis,
    GainModel,
    LoopTrips,
    StrategyTerms,
    basis_from_json,
    model_from_json,
)
from warpplan.kernels.compiler.sizes.size_expressions import (
    MOST_NODES,
    OPERATIONS,
    LaunchSizes,
    evaluate,
    is_expression,
    trip_count,
)
from warpplan.planner.errors import MalformedFile

sys.path.insert(0, str(Path(__file__).parent))

K = ("counter", 0, ("argument", "K"), 64)
CAUSAL = ("counter", 0, ("muli", ("addi", ("program", 0), 1), 128), 128)
expressions = st.recursive(
    st.integers(-(2**31), 2**31) | st.sampled_from([("argument", "K"), ("program", 1), ("programs", 0)]),
    lambda inner: (
        st.tuples(st.sampled_from(sorted(OPERATIONS)), inner, inner) | st.tuples(st.just("select"), inner, inner, inner)
    ),
    max_leaves=8,
)
cycles = st.floats(0, 1e9)
terms = st.builds(StrategyTerms, st.tuples(cycles), cycles, cycles)
models = st.builds(
    GainModel,
    st.integers(1, 200),
    st.tuples(
        st.builds(
            LoopTrips, st.none() | st.tuples(st.just("counter"), expressions, expressions, st.integers(1, 128)),
            st.sampled_from([(), (None,), (K,)]),
        )
    ),
    st.lists(terms, min_size=1, max_size=4).map(tuple),
    terms,
    st.booleans(),
)  # fmt: skip


def model(trips: Any = K, *, walks: bool = False, alone: int = 1) -> GainModel:
    """1000 cycles an iteration as it is, 800 planned; 500 a tile."""
    return GainModel(
        132, (LoopTrips(trips),), (StrategyTerms((1000.0,), 500.0),) * alone, StrategyTerms((800.0,), 500.0), walks
    )


def sizes(grid: tuple[int, ...] = (132,), **integers: int) -> LaunchSizes:
    return LaunchSizes(tuple(integers.items()), grid)


def test_a_time_is_trips_and_tiles_in_rounds() -> None:
    assert model().cycles(sizes(K=640)) == (10 * 1000 + 500, 10 * 800 + 500)
    assert model().cycles(sizes((133,), K=640)) == (2 * 10500, 2 * 8500), "the last round has one program"
    assert model().cycles(sizes(K=0)) == (500, 500)
    assert model().gain(sizes((0, 4), K=64)) == 1.0, "nothing runs"


def test_programs_that_are_resident_together_share_a_round() -> None:
    """Two on each multiprocessor, each of which then takes less of it."""
    slow, fast = StrategyTerms((1500.0,), 500.0), StrategyTerms((1000.0,), 500.0)
    two = GainModel(132, (LoopTrips(K),), (slow, fast), StrategyTerms((800.0,), 500.0))
    assert two.cycles(sizes((132,), K=640))[0] == 15500
    assert two.cycles(sizes((264,), K=640))[0] == 2 * 10500
    assert two.cycles(sizes((265,), K=640))[0] == 2 * 10500 + 15500


def test_programs_that_walk_over_the_grid_start_once() -> None:
    once = GainModel(
        132, (LoopTrips(K),), (StrategyTerms((1000.0,), 500.0),), StrategyTerms((800.0,), 400.0, 1300.0), walks=True
    )
    assert once.cycles(sizes((264,), K=640))[1] == 1300 + 2 * (8000 + 400)


def test_the_mean_of_a_causal_mask_is_that_of_a_triangle() -> None:
    programs = 64
    alone, _ = model(CAUSAL).cycles(sizes((programs,)))
    assert alone == pytest.approx(1000 * (programs + 1) / 2 + 500, rel=0.02)


def test_a_loop_that_is_not_counted_has_nominal_trips() -> None:
    assert model(None).cycles(sizes()) == (32 * 1000 + 500, 32 * 800 + 500)
    assert model().cycles(sizes(M=3)) == model(None).cycles(sizes()), "K is no argument"


def test_a_measured_gain_corrects_the_predicted_one() -> None:
    basis = GainBasis(model(), sizes(K=640))
    predicted = model().gain(sizes(K=6400))
    assert basis.carried(None, sizes(K=6400)) == predicted
    off = 1.1 / model().gain(sizes(K=640))
    assert basis.carried(1.1, sizes(K=6400)) == pytest.approx(predicted * off)
    assert basis.carried(90.0, sizes(K=6400)) == pytest.approx(predicted * MOST_OFF), "measured beside something else"


@given(models, st.integers(0, 2**31), st.lists(st.integers(0, 70000), min_size=1, max_size=3).map(tuple))
def test_every_launch_has_a_gain(model: GainModel, k: int, grid: tuple[int, ...]) -> None:
    alone, planned = model.cycles(sizes(grid, K=k))
    assert alone >= 0
    assert planned >= 0
    assert math.isfinite(model.gain(sizes(grid, K=k)))


@given(models, st.integers(0, 2**40))
def test_round_trip(model: GainModel, k: int) -> None:
    basis = GainBasis(model, sizes((1, 2, 3), K=k))
    assert model_from_json(json.loads(json.dumps(asdict(model))), "here") == model
    assert basis_from_json(json.loads(json.dumps(asdict(basis))), "here") == basis


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("multiprocessors", 0),
        ("alone", []),
        ("planned", {"iteration_cycles": [1.0, 2.0], "tile_cycles": 1.0, "start_cycles": 0.0}),
        ("planned", {"iteration_cycles": [float("nan")], "tile_cycles": 1.0, "start_cycles": 0.0}),
        ("trips", [{"bounds": ["counter", 0, ["system", "K"], 1], "around": []}]),
        ("trips", [{"bounds": ["argument", "K"], "around": []}]),
        ("trips", 3),
    ],
)
def test_nonsense_is_no_model(field: str, value: object) -> None:
    with pytest.raises(MalformedFile, match="here"):
        model_from_json({**asdict(model()), field: value}, "here")


def test_an_expression_is_bounded() -> None:
    deep: Any = 1
    for _ in range(MOST_NODES):
        deep = ("addi", deep, 1)
    assert not is_expression(deep)
    assert is_expression(("addi", 1, ("argument", "K")))
    assert not is_expression(True)


@given(expressions, st.integers(-5, 5000))
def test_numbers_are_numbers(expression: Any, k: int) -> None:
    assert isinstance(evaluate(expression, {"K": k}, (3, 4), (1, 2)), float)


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(1, 100))
def test_trips_are_those_of_a_range(lower: int, upper: int, step: int) -> None:
    assert trip_count(lower, upper, step) == len(range(lower, upper, step))


@cache
def read(name: str) -> tuple[LoopTrips, ...]:
    """The loops of a kernel of the zoo at the cut."""
    pytest.importorskip("triton", reason="needs triton")
    from triton.backends.compiler import GPUTarget
    from zoo import ZOO, source

    from warpplan.kernels.compiler.pointers.planned_cut import planned_cut
    from warpplan.kernels.compiler.sizes.loop_trips import loop_trips
    from warpplan.kernels.compiler.ttgir.parsing import parse

    return loop_trips(parse(planned_cut(source(name), GPUTarget("cuda", 90, 32), ZOO[name].options).text).function)


def trips(loop: LoopTrips, program: tuple[int, ...] = (0, 0, 0), **integers: int) -> float:
    assert loop.bounds is not None
    lower, upper, step = (evaluate(bound, integers, (8, 4), program) for bound in loop.bounds[1:])
    assert None not in (lower, upper, step)
    return trip_count(lower, upper, step)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.integers(1, 20000))
def test_the_trips_of_a_product_are_its_blocks(k: int) -> None:
    (loop,) = read("pointers")
    assert trips(loop, K=k) == -(-k // 64)


def test_the_trips_of_causal_attention_grow_with_the_program() -> None:
    below, diagonal = read("tutorial_causal")
    assert [trips(below, (i, 0, 0)) for i in (0, 1, 5)] == [0, 1, 5]
    assert [trips(diagonal, (i, 0, 0)) for i in (0, 1, 5)] == [1, 1, 1]


def test_the_loop_around_deals_out_tiles() -> None:
    outer, inner = read("persistent_split_epilogue")
    assert trips(outer, M=128 * 20, N=128 * 20) == -(-400 // 132)
    assert inner.around == (outer.bounds,)
    assert trips(inner, K=640) == 10


def test_a_loop_without_a_count_has_no_bounds() -> None:
    assert all(loop.bounds is None for loop in read("while_loop")[:1])
