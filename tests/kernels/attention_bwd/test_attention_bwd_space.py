"""The attention backward kernels' configurations: what is proposed can run, what cannot run says why, and few are
proposed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.kernels.attention_bwd.candidates import GROUPS, candidates, structures
from warpplan.kernels.attention_bwd.space import (
    HEAD_DIMS,
    PRODUCER_REGISTERS,
    AttentionBwdConfig,
    config_of,
    deterministic,
    require_valid,
    tuning,
    violations,
)
from warpplan.kernels.attention_bwd.work import HANDED_OUT, handed_out_trips, row_blocks, work
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import B200, H200
from warpplan.planner.values.tuning import TuningConfig

WIDE = AttentionBwdConfig(128, 128, 64, 2)


@st.composite
def shapes(draw):
    kv_heads, sharers = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    length = st.one_of(st.integers(1, 300), st.integers(1, 40_000))
    window = draw(st.one_of(st.none(), st.integers(0, 5000)))
    sizes = draw(st.one_of(st.none(), st.lists(length, min_size=1, max_size=6)))
    batch, q_length = (draw(st.integers(1, 8)), draw(length)) if sizes is None else (len(sizes), max(sizes))
    return AttentionShape(
        batch, kv_heads * sharers, q_length, draw(st.sampled_from(HEAD_DIMS)), kv_heads, draw(length),
        draw(st.booleans()), window, None if sizes is None else tuple(sizes),
    )  # fmt: skip


@given(shapes(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_candidates_are_valid_unique_few_and_in_a_fixed_order(shape, repeats):
    found = candidates(shape, "bfloat16", H200, deterministic=repeats)
    orders = 2 * len(GROUPS)  # persistent or not, by their groups of heads
    assert 1 <= len(found) <= orders * len(structures(shape.head_dim, "bfloat16", H200, shape.packed))
    assert len(set(found)) == len(found)
    assert found == candidates(shape, "bfloat16", H200, deterministic=repeats)
    for config in found:
        assert violations(config, "bfloat16", H200) == ()
        assert violations(deterministic(config), "bfloat16", H200) == ()
        assert config_of(tuning(config)) == config
        assert config.head_group <= shape.batch * shape.kv_heads
        assert not repeats or config.dq == "separate"
        assert config.packed == shape.packed


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("head_dim", "most"), [(64, 10), (128, 6)])
def test_structures_are_few_enough_to_time_them_all(head_dim, most, packed):
    found = structures(head_dim, "bfloat16", H200, packed)
    assert 0 < len(found) <= most
    assert {c.dq for c in found} == {"reduce", "separate"}
    assert {c.keys for c in found} == {64, 128}


def test_registers_fit_the_multiprocessor():
    for head_dim in HEAD_DIMS:
        for config in structures(head_dim, "float16", H200):
            consumer = config.consumer_warps * 32 * config.consumer_registers
            assert config.ctas_per_sm * (consumer + 128 * PRODUCER_REGISTERS) <= 65_536
            assert config.consumer_registers % 8 == PRODUCER_REGISTERS % 8 == 0


INVALID = {
    "head_dim": (replace(WIDE, head_dim=96), "head_dim 96: expected one of 64, 128"),
    "wide heads": (replace(WIDE, head_dim=256), "dK and dV of 64 keys alone are 256 registers a thread"),
    "keys": (replace(WIDE, keys=192), "keys 192: expected one of 64, 128"),
    "rows": (replace(WIDE, rows=128), "288 registers a thread of tiles and 32 more exceed the 240"),
    "depth": (replace(WIDE, depth=3), "depth 3: expected one of 2, 4"),
    "dq": (replace(WIDE, dq="atomic"), "dq atomic: expected one of reduce, separate"),
    "ctas": (replace(WIDE, ctas_per_sm=3), "ctas_per_sm 3: expected one of 1, 2"),
    "group": (replace(WIDE, head_group=0), "head_group 0: expected 1 or more"),
    "slopes": (replace(WIDE, dq="separate", ds_in_registers=False), "only where its product with K is reduced"),
    "reduction": (replace(WIDE, keys=64), "208 registers a thread of tiles and 40 more exceed the 240"),
    "packed": (
        AttentionBwdConfig(128, 64, 64, 4, ds_in_registers=False, packed=True),
        "192 registers a thread of tiles and 56 more exceed the 240",
    ),
    "memory": (replace(WIDE, depth=4), "249856 bytes of shared memory exceed the 232448"),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_cannot_run_says_why(name):
    config, text = INVALID[name]
    assert any(text in found for found in violations(config, "bfloat16", H200)), violations(config, "bfloat16", H200)
    with pytest.raises(InvalidConfig, match="invalid attention_bwd configuration: "):
        require_valid(config, "bfloat16", H200)


def test_other_devices_and_dtypes():
    assert "capability 9.0" in violations(WIDE, "bfloat16", B200)[0]
    assert "dtype float8_e4m3fn: expected one of bfloat16, float16" in violations(WIDE, "float8_e4m3fn", H200)[0]


@pytest.mark.parametrize("config", [WIDE, deterministic(AttentionBwdConfig(64, 64, 64, 4, ctas_per_sm=2))])
def test_a_configuration_from_outside_is_read_exactly(config):
    good = tuning(config)
    assert config_of(good) == config
    for name in dict(good.kwargs):
        for value in (None, "x", -1):
            kwargs = {**dict(good.kwargs), name: value}
            if value is None:
                del kwargs[name]
            with pytest.raises(InvalidConfig, match=f"attention_bwd configuration: {name} is ") as caught:
                config_of(TuningConfig.of(kwargs, num_warps=good.num_warps, num_stages=1, maxnreg=good.maxnreg))
            assert caught.value.field == name
    with pytest.raises(InvalidConfig, match="num_warps is 2, expected"):
        config_of(replace(good, num_warps=2))


@given(
    st.integers(1, 60), st.integers(1, 60), st.booleans(), st.one_of(st.none(), st.integers(0, 70)),
    st.sampled_from([1, 8, 13]), st.sampled_from([1, 4, 16]),
)  # fmt: skip
def test_row_blocks_count_the_mask(q_length, k_length, causal, window, keys, rows):
    """Against the mask written out; blocks begin at the first row that sees a key of the tile."""
    shape = AttentionShape(1, 1, q_length, 64, 1, k_length, causal, window)
    position, key = np.arange(k_length - q_length, k_length)[:, None], np.arange(k_length)[None, :]
    seen = np.ones((q_length, k_length), bool)
    if causal:
        seen &= key <= position
    if window is not None:
        seen &= abs(key - position) <= window
    for tile, blocks in enumerate(row_blocks(shape, keys, rows).tolist()):
        found = np.flatnonzero(seen[:, tile * keys : (tile + 1) * keys].any(1))
        assert blocks == (-(-(found[-1] + 1 - found[0]) // rows) if found.size else 0)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=8), st.integers(1, 12))
def test_units_go_to_whoever_is_free(ranges, resident):
    """Against each CTA's clock moved on unit by unit; within Graham's bound."""
    counts, trips = zip(*ranges, strict=True)
    clocks = [0] * resident
    for count, each in ranges:
        for _ in range(count):
            clocks[clocks.index(min(clocks))] += each
    found = handed_out_trips(counts, trips, resident)
    total = sum(count * each for count, each in ranges)
    assert found == max(clocks)
    assert found * resident <= total + (resident - 1) * max(trips)
    many = handed_out_trips((HANDED_OUT + 1,), (7,), resident)
    assert 0 <= many - 7 * (HANDED_OUT + 1) / resident <= 7


def test_causal_tiles_that_are_handed_out_longest_first_keep_all_busy(profile):
    """Few key heads with many sharers: in turns, the CTAs that begin with the longest tiles are busy half as long
    again."""
    shape = AttentionShape(2, 64, 2048, 128, 8, 2048, True)
    turns = replace(WIDE, head_group=16)
    configs = (turns, replace(turns, persistent=False), replace(WIDE, persistent=False))
    asked = work(configs, shape, "bfloat16", H200, profile.costs)
    mean = asked.iterations * 256 / H200.sm_count
    assert (asked.trips / mean).round(2).tolist() == [1.46, 1.03, 1.64]


def test_packed_sequences_of_one_length_ask_for_what_a_batch_does(profile):
    """The same work in another order of units, and nothing for sequences that are empty."""
    batch = AttentionShape(4, 8, 2000, 128, 2, 2000, True)
    packed = replace(batch, sizes=(2000,) * 4)
    empty = replace(batch, batch=6, sizes=(2000, 0, 2000, 2000, 2000, 0))
    config = replace(WIDE, persistent=False, head_group=8)
    one, *others = (
        work((replace(config, packed=shape.packed),), shape, "bfloat16", H200, profile.costs)
        for shape in (batch, packed, empty)
    )
    for other in others:
        for name in ("flops", "executed_flops", "loaded_bytes", "rounds", "iterations", "ii_cycles"):
            assert getattr(other, name) == getattr(one, name), name
        assert 0.9 < other.trips / one.trips < 1.2
    unlike = replace(packed, batch=2, q_length=6000, k_length=6000, sizes=(6000, 2000))
    (asked,) = (work((replace(config, packed=True),), s, "bfloat16", H200, profile.costs) for s in (unlike,))
    assert asked.executed_flops > 1.9 * one.executed_flops
