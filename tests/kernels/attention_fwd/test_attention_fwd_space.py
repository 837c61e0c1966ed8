"""The attention kernel's configurations: what is proposed can run, what cannot run says why, and few are proposed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.candidates import GROUPS, candidates, structures
from warpplan.kernels.attention_fwd.space import (
    HEAD_DIMS,
    SMEM_OVERHEAD_BYTES,
    AttentionConfig,
    config_of,
    require_valid,
    tuning,
    violations,
)
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import B200, H200
from warpplan.planner.values.tuning import TuningConfig

WIDE = AttentionConfig(128, 2, 64, 128, 2)


@st.composite
def shapes(draw):
    kv_heads, sharers = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    length = st.one_of(st.integers(1, 300), st.integers(1, 40_000))
    window = draw(st.one_of(st.none(), st.integers(0, 5000)))
    shape = AttentionShape(
        draw(st.integers(1, 8)), kv_heads * sharers, draw(length), draw(st.sampled_from(HEAD_DIMS)), kv_heads,
        draw(length), draw(st.booleans()), window,
    )  # fmt: skip
    if draw(st.booleans()):
        return shape
    others = st.lists(st.integers(0, shape.q_length), min_size=shape.batch - 1, max_size=shape.batch - 1)
    return replace(shape, sizes=(shape.q_length, *draw(others)))


@given(shapes())
@settings(deadline=None, max_examples=60)
def test_candidates_are_valid_unique_few_and_in_a_fixed_order(shape):
    found = candidates(shape, "bfloat16", H200)
    orders = len(GROUPS) + 1  # persistent ones by their groups of heads, and one that is not
    assert 1 <= len(found) <= orders * len(structures(shape.head_dim, "bfloat16", H200, shape.packed))
    assert len(set(found)) == len(found)
    assert found == candidates(shape, "bfloat16", H200)
    for config in found:
        assert violations(config, "bfloat16", H200) == ()
        assert config_of(tuning(config)) == config
        assert config.head_group <= (shape.heads if shape.packed else shape.batch_heads)
        assert config.packed == shape.packed


@pytest.mark.parametrize("sizes", [None, (49,) * 300], ids=["batch", "packed"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_many_short_sequences_have_candidates(head_dim, sizes):
    """More units than one-consumer tiles are proposed for, of queries that no larger tile is proposed for."""
    assert candidates(AttentionShape(300, 32, 49, head_dim, 32, 49, sizes=sizes), "bfloat16", H200)


@pytest.mark.parametrize(("head_dim", "most"), [(64, 28), (128, 21), (256, 7)])
def test_structures_are_few_enough_to_time_them_all(head_dim, most):
    assert 0 < len(structures(head_dim, "bfloat16", H200)) <= most


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_scheme_is_considered(head_dim):
    found = structures(head_dim, "bfloat16", H200)
    assert {(c.lookahead, c.pingpong) for c in found} == {(True, False), (True, True), (False, False)}
    assert {c.consumers for c in found} == ({1, 2} if head_dim == 256 else {1, 2, 3})
    assert any(c.q_in_registers for c in found) == (head_dim < 256)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_registers_fit_the_multiprocessor(head_dim, packed):
    for config in structures(head_dim, "float16", H200, packed):
        consumers = config.consumers * 128 * config.consumer_registers
        assert consumers + 128 * config.producer_registers <= 65_536
        assert config.consumer_registers % 8 == config.producer_registers % 8 == 0


INVALID = {
    "head_dim": (replace(WIDE, head_dim=96), "head_dim 96: expected one of 64, 128, 256"),
    "consumers": (replace(WIDE, consumers=4), "consumers 4: expected one of 1, 2, 3"),
    "rows": (replace(WIDE, rows=32), "rows 32: expected one of 64, 128"),
    "columns": (replace(WIDE, columns=256), "columns 256: expected one of 64, 128"),
    "depth": (replace(WIDE, depth=1), "depth 1: expected one of 2, 3"),
    "staging": (replace(WIDE, staging="ring"), "staging ring: expected one of own, q"),
    "group": (replace(WIDE, head_group=0), "head_group 0: expected 1 or more"),
    "alone": (replace(WIDE, consumers=1, pingpong=True), "pingpong: the turns are those of several consumers"),
    "serial": (replace(WIDE, lookahead=False, pingpong=True), "that issue both products together"),
    "packed": (
        AttentionConfig(64, 3, 64, 128, 2, packed=True),
        "128 registers a thread of tiles and 40 more exceed the 160",
    ),
    "packed turns": (
        AttentionConfig(256, 2, 64, 64, 2, pingpong=True, staging="q", packed=True),
        "pingpong of packed sequences",
    ),
    "registers": (replace(WIDE, consumers=3), "160 registers a thread of tiles and 32 more exceed the 160"),
    "launch": (AttentionConfig(256, 3, 64, 64, 2), "a wgmma of 256 columns needs 154 registers a thread at launch"),
    "memory": (replace(WIDE, depth=3), "264192 bytes of shared memory exceed the 232448"),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_cannot_run_says_why(name):
    config, text = INVALID[name]
    assert any(text in found for found in violations(config, "bfloat16", H200))
    with pytest.raises(InvalidConfig, match="invalid attention_fwd configuration: "):
        require_valid(config, "bfloat16", H200)


def test_other_devices_and_dtypes():
    assert "capability 9.0" in violations(WIDE, "bfloat16", B200)[0]
    assert "dtype float32: expected one of bfloat16, float16, float8_e4m3fn" in violations(WIDE, "float32", H200)[0]


def test_8_bits_take_half_the_bytes_and_refuse_what_they_cannot():
    assert not violations(replace(WIDE, depth=4), "float8_e4m3fn", H200)
    q, o, slots = 2 * 64 * 128, 2 * 64 * 128 * 2, 2 * 4 * 128 * 128
    assert replace(WIDE, depth=4).smem_bytes(1) == q + o + slots + SMEM_OVERHEAD_BYTES
    for wrong, text in (
        (replace(WIDE, packed=True), "packed sequences with float8_e4m3fn: expected one of bfloat16, float16"),
        (replace(WIDE, staging="q"), "a result of 16 bits has twice the bytes of Q, expected own"),
        (AttentionConfig(256, 2, 64, 128, 2), "224 registers a thread of tiles and 32 more exceed the 240"),
        (AttentionConfig(128, 2, 128, 64, 2, lookahead=False), "208 registers a thread of tiles and 40 more exceed"),
    ):
        assert any(text in found for found in violations(wrong, "float8_e4m3fn", H200))
    # Made while the product before still reads its own.
    assert AttentionConfig(128, 2, 64, 128, 2).live_registers(1) == 64 + 64 + 16 + 16
    assert AttentionConfig(128, 2, 64, 128, 2, lookahead=False).live_registers(1) == 64 + 64 + 16
    assert AttentionConfig(128, 2, 64, 128, 2, q_in_registers=True).live_registers(1) == 64 + 64 + 32 + 16
    assert AttentionConfig(128, 2, 64, 128, 2, q_in_registers=True).live_registers(2) == 64 + 64 + 32 + 32


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_8_bits_have_structures_of_every_scheme(head_dim):
    found = structures(head_dim, "float8_e4m3fn", H200)
    assert {(c.lookahead, c.pingpong, c.q_in_registers) for c in found} >= {(True, False, False), (False, False, False)}
    assert {c.columns for c in found} == {64, 128}
    assert all(c.staging == "own" and not violations(c, "float8_e4m3fn", H200) for c in found)
    assert structures(head_dim, "float8_e4m3fn", H200, packed=True) == ()


@pytest.mark.parametrize(
    "config",
    [WIDE, AttentionConfig(256, 2, 64, 64, 2, False, staging="q", persistent=False), replace(WIDE, packed=True)],
    ids=repr,
)
def test_a_configuration_from_outside_is_read_exactly(config):
    good = tuning(config)
    assert config_of(good) == config
    for name in dict(good.kwargs):
        for value in (None, "x", -1):
            kwargs = {**dict(good.kwargs), name: value}
            if value is None:
                del kwargs[name]
                if name == "PACKED":
                    continue  # a configuration of its own
            with pytest.raises(InvalidConfig, match=f"attention_fwd configuration: {name} is ") as caught:
                config_of(TuningConfig.of(kwargs, num_warps=4, num_stages=1, maxnreg=good.maxnreg))
            assert caught.value.field == name
    with pytest.raises(InvalidConfig, match="num_warps is 8, expected 4"):
        config_of(replace(good, num_warps=8))
    with pytest.raises(InvalidConfig, match="BLOCK_M is 64, expected None beside the rest"):
        config_of(TuningConfig.of({**dict(good.kwargs), "BLOCK_M": 64}, num_warps=4, num_stages=1))
