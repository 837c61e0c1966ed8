"""Decoding attention as the planner sees it: shapes parsed, candidates valid and ranked, loops planned."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.kernels import registry
from warpplan.kernels.attention_decode.kernel import ATTENTION_DECODE, AttentionDecode, decode_shape
from warpplan.kernels.attention_decode.space import (
    MAX_ROWS,
    MAX_SPLITS,
    DecodeConfig,
    config_of,
    require_valid,
    tuning,
    violations,
)
from warpplan.kernels.attention_decode.work import WAVES, DecodeShape, candidates, structures, work
from warpplan.kernels.attention_fwd.space import HEAD_DIMS
from warpplan.planner.errors import InvalidConfig, InvalidShape, MissingCosts, UnknownName
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import B200, H200
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.cli.app import main

DECODE = AttentionDecode()
SERVED = (16, 32, 8192, 128, "kv_heads=8")
GOOD = {"B": 2, "H": 8, "N": 100, "D": 64}
PLAIN = DecodeConfig(128, 128, 3, True, 4)


def test_registry():
    assert registry.kernel("attention_decode").declaration is ATTENTION_DECODE


@pytest.mark.parametrize("example", ATTENTION_DECODE.examples, ids=str)
def test_examples_are_shapes_and_have_plans(profile, example):
    assert DECODE.parse_shape(ATTENTION_DECODE.named(example), "bfloat16") == example
    assert DECODE.rank(example, "bfloat16", H200, profile, limit=1)


def test_one_computation_has_one_shape():
    plain = DECODE.parse_shape(GOOD, "bfloat16")
    assert plain == (2, 8, 100, 64)
    assert DECODE.parse_shape(GOOD | {"kv_heads": 8, "queries": [1]}, "float16") == plain
    asked = DECODE.parse_shape(GOOD | {"kv_heads": "2", "queries": 3}, "float16")
    assert decode_shape(asked) == DecodeShape(2, 8, 100, 64, 2, 3)


BAD = {
    "head size": ({**GOOD, "D": 96}, "D", "D=96 is none of 64, 128, 256: pad the heads"),
    "heads": ({**GOOD, "kv_heads": 3}, "kv_heads", "kv_heads=3 does not divide H=8"),
    "no key head": ({**GOOD, "kv_heads": 0}, "kv_heads", "kv_heads=0 does not divide H=8"),
    "two numbers": ({**GOOD, "queries": "1,2"}, "queries", "queries=1,2: expected one number"),
    "no query": ({**GOOD, "queries": 0}, "queries", "expected 1 to 16"),
    "many queries": ({**GOOD, "queries": 17}, "queries", "attention_fwd takes more"),
    "many rows": ({**GOOD, "kv_heads": 1, "queries": 9}, "queries", "and 64 rows together or fewer"),
    "too long": ({**GOOD, "N": 1 << 21}, "N", "N=2097152 is too large"),
    "too many rows": ({**GOOD, "B": 65536, "N": 1 << 20}, "rows of K", "at most 2147483648"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shapes_name_what_is_wrong(name):
    given_, field, text = BAD[name]
    with pytest.raises(InvalidShape) as caught:
        DECODE.parse_shape(given_, "bfloat16")
    assert caught.value.field == field
    assert text in str(caught.value)


@st.composite
def shapes(draw):
    kv_heads, sharers = draw(st.integers(1, 16)), draw(st.sampled_from((1, 2, 4, 8)))
    keys = draw(st.one_of(st.integers(1, 300), st.integers(1, 200_000)))
    queries = draw(st.integers(1, min(16, MAX_ROWS // sharers)))
    return DecodeShape(
        draw(st.integers(1, 64)), kv_heads * sharers, keys, draw(st.sampled_from(HEAD_DIMS)), kv_heads, queries
    )


@given(shapes())
@settings(deadline=None, max_examples=40)
def test_candidates_are_valid_unique_and_few(shape):
    found = candidates(shape, "bfloat16", H200)
    assert 1 <= len(found) <= (1 + 2 * len(WAVES)) * len(structures(shape.head_dim, "bfloat16", H200))
    assert len(set(found)) == len(found)
    assert {config.splits for config in found} >= {1}
    for config in found:
        assert violations(config, "bfloat16", H200) == ()
        assert config_of(tuning(config)) == config
        assert config.splits <= max(1, -(-shape.keys // config.columns))


@given(shapes())
@settings(deadline=None, max_examples=25)
def test_every_candidate_is_ranked_once_best_first(profile, shape):
    named = {"B": shape.batch, "H": shape.heads, "N": shape.keys, "D": shape.head_dim}
    asked = DECODE.parse_shape(named | {"kv_heads": shape.kv_heads, "queries": shape.queries}, "bfloat16")
    ranked = DECODE.ranked(asked, "bfloat16", H200, profile)
    assert sorted(config for config, _ in ranked) == sorted(candidates(shape, "bfloat16", H200))
    times = [prediction.time_us for _, prediction in ranked]
    assert all(a <= b + 2e-6 * times[0] for a, b in itertools.pairwise(times))
    assert times[0] >= 0.9 * DECODE.floor_us(asked, "bfloat16", H200, profile)


def test_few_blocks_are_split_and_many_are_not(profile):
    """One sequence of 8 key heads fills 132 multiprocessors only in parts; 64 of them fill it whole."""

    def splits(*shape):
        return DECODE.ranked(shape, "bfloat16", H200, profile, limit=1)[0][0].splits

    assert splits(1, 64, 131072, 128, "kv_heads=8") >= 8
    assert splits(64, 64, 8192, 128, "kv_heads=8") == 1
    assert splits(1, 1, 64, 128) == 1


def test_long_caches_are_read_at_the_rate_of_dram(profile):
    dram = dict(profile.ceilings)["read_bytes_per_s"].p50
    for shape in (SERVED, (1, 64, 131072, 128, "kv_heads=8")):
        (best,) = DECODE.rank(shape, "bfloat16", H200, profile, limit=1)
        bound = decode_shape(shape).moved_bytes(2) / dram * 1e6
        assert best.prediction.bound_by == "dram"
        assert bound < best.prediction.time_us < 1.3 * bound


def test_what_a_split_costs_is_counted(profile):
    asked = decode_shape(SERVED)
    made = work([replace(PLAIN, splits=1), PLAIN], asked, "bfloat16", H200, profile)
    assert made.flops == asked.flops == 4.0 * 16 * 32 * 128 * 8192
    assert made.reduced_bytes.tolist() == [0.0, -(-16 * 32 // 132) * 4 * 128 * 4]
    assert made.drain_cycles[0] == 0.0 < made.drain_cycles[1]
    assert made.iterations.tolist() == [64.0, 16.0]
    assert made.trips.tolist() == [64.0, 4 * 16.0]


INVALID = {
    "splits": (replace(PLAIN, splits=MAX_SPLITS + 1), "splits 129: expected 1 to 128"),
    "columns": (replace(PLAIN, columns=32), "columns 32: expected one of 64, 128"),
    "memory": (replace(PLAIN, depth=4), "bytes of shared memory exceed the 232448"),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_cannot_run_says_why(name):
    config, text = INVALID[name]
    assert any(text in found for found in violations(config, "bfloat16", H200))
    with pytest.raises(InvalidConfig, match="invalid attention_decode configuration: "):
        require_valid(config, "bfloat16", H200)
    assert "capability 9.0" in violations(PLAIN, "bfloat16", B200)[0]


def test_a_configuration_from_outside_is_read_exactly():
    good = tuning(PLAIN)
    assert config_of(good) == PLAIN
    for name in dict(good.kwargs):
        for value in (None, "x", -1):
            kwargs = {**dict(good.kwargs), name: value}
            if value is None:
                del kwargs[name]
            with pytest.raises(InvalidConfig, match=f"attention_decode configuration: {name} is "):
                config_of(TuningConfig.of(kwargs, num_warps=4, num_stages=1, maxnreg=good.maxnreg))
    with pytest.raises(InvalidConfig, match="num_warps is 8, expected 4"):
        config_of(replace(good, num_warps=8))


def test_plans_loops_and_races(profile):
    (best,) = DECODE.rank(SERVED, "bfloat16", H200, profile, limit=1)
    outcome = DECODE.plan(best.config, "bfloat16", H200, profile)
    assert outcome.plan is not None
    assert [p.name for p in outcome.plan.partitions] == ["consumer0", "producer"]
    assert replace(best.solve(), seconds=0.0) == replace(outcome, seconds=0.0)
    race = DECODE.race(SERVED, "bfloat16", H200, profile)
    assert race.configs[0] == best.config
    assert len(set(race.names)) == len(race.names) == 3
    assert DECODE.loop(best.config, "bfloat16", H200, profile).epilogue_cycles > 0
    rows, (made,) = DECODE.device_works(
        [tuning(replace(PLAIN, depth=4)), best.config], [SERVED], "bfloat16", H200, profile
    )
    assert rows == {best.config: 0}
    assert made.flops == decode_shape(SERVED).flops


def test_every_structure_is_at_hand_without_a_solver(profile, monkeypatch):
    monkeypatch.setattr("warpplan.planner.solve.solve", None)
    for dtype, head_dim in itertools.product(ATTENTION_DECODE.dtypes, HEAD_DIMS):
        for config in structures(head_dim, dtype, H200):
            assert DECODE.plan(tuning(config), dtype, H200, profile).plan is not None


def test_what_there_is_not(profile):
    with pytest.raises(UnknownName, match="unknown dtype 'float32'"):
        DECODE.rank(SERVED, "float32", H200, profile)
    entries = tuple(e for e in profile.costs.entries if e.kind != "exp2")
    with pytest.raises(MissingCosts, match="no measured cost for exp2"):
        DECODE.rank(SERVED, "bfloat16", H200, replace(profile, costs=CostTable(entries)))
    bare = replace(profile, ceilings=tuple(c for c in profile.ceilings if c[0] != "launch_us"))
    with pytest.raises(MissingCosts, match="ceiling launch_us"):
        DECODE.rank(SERVED, "bfloat16", H200, bare)


def test_the_command_line_answers(profile, capsys):
    sizes = ["B=16", "H=32", "N=8192", "D=128", "kv_heads=8"]
    assert main(["plan", "attention_decode", *sizes, "--dtype", "bfloat16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (best,) = DECODE.rank(SERVED, "bfloat16", H200, profile, limit=1)
    assert answer["config"] == best.config.as_dict()
    assert answer["shape"] == ATTENTION_DECODE.named(SERVED)
