"""What is printed for a strategy, and its JSON, are the strategy again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.compiler.strategy.blackwell import BlackwellStrategy
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.strategy.written import strategy_from_text
from warpplan.planner.errors import InvalidConfig

DEPTHS, FLAGS = st.integers(1, 8), st.integers(0, 1)
HOPPER = st.builds(
    HopperStrategy,
    st.just(1),
    st.lists(DEPTHS, min_size=1, max_size=3).map(tuple),
    st.sampled_from([4, 8]),
    FLAGS,
    FLAGS,
    st.integers(0, 2),
    st.integers(1, 4),
    stores=FLAGS,
)
LINES = st.sampled_from(["mine.py:12", "a b (2).py:7", "x, y.py:100"])
STAGES = st.dictionaries(LINES, st.integers(0, 3)).map(lambda stages: tuple(stages.items()))
BLACKWELL = st.builds(BlackwellStrategy, st.just("apart"), DEPTHS, STAGES, FLAGS) | st.builds(
    BlackwellStrategy, st.sampled_from(["together", "found"]), DEPTHS
)


@given(strategy=HOPPER | BLACKWELL)
def test_what_is_printed_is_read_as_the_same(strategy: Strategy) -> None:
    assert strategy_from_text(str(strategy)) == strategy
    assert strategy_from_text(json.dumps(strategy.to_json())) == strategy


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("2x4:3", HopperStrategy(2, (3,))),
        ("1x8:3/2:0:persistent", HopperStrategy(1, (3, 2), 8, 0, 1)),
        ("2x4:4:1:copies1", HopperStrategy(2, (4,), copies=1)),
        ("2x4:4:persistent:copies2", HopperStrategy(2, (4,), persistent=1, copies=2)),
        ("1x4:3:2blocks", HopperStrategy(1, (3,), blocks=2)),
        ("1x4:3:1:persistent:4blocks", HopperStrategy(1, (3,), persistent=1, blocks=4)),
        ("1x4:3:copies1:2blocks", HopperStrategy(1, (3,), copies=1, blocks=2)),
        ("2x4:3:1:persistent:stores", HopperStrategy(2, (3,), persistent=1, stores=1)),
        (" apart:3:single ", BlackwellStrategy("apart", 3, double=0)),
        ("found:2", BlackwellStrategy("found", 2)),
    ],
)
def test_the_short_forms(text: str, strategy: Strategy) -> None:
    assert strategy_from_text(text) == strategy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2x4", "expected CONSUMERSxWARPS"),
        ("", "expected CONSUMERSxWARPS"),
        ("left alone", "expected CONSUMERSxWARPS"),
        ("9x4:3", "consumers 9"),
        ("2x4:3:copies3", "expected CONSUMERSxWARPS"),
        ('{"consumers": 1, "depths": [3], "copies": 3}', "copies 3: expected one of 0, 1, 2"),
        ("[1]", "expected an object"),
        ('{"consumers": 1, "depths": [3], "speed": 2}', "no field 'speed'"),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        strategy_from_text(text)
