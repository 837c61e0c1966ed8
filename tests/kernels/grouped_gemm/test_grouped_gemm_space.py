"""The grouped GEMM's configurations: what is proposed can run, what cannot run says why, and few are proposed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.grouped_gemm.candidates import candidates, table
from warpplan.kernels.grouped_gemm.distribution import DISTRIBUTIONS, GroupedShape, group_sizes
from warpplan.kernels.grouped_gemm.space import (
    FP8,
    MAX_GROUPS,
    PRODUCER_REGISTERS,
    PRODUCTS,
    SCHEMES,
    config_of,
    consumer_registers,
    require_valid,
    tuning,
    violations,
)
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import B200, H200
from warpplan.planner.values.tuning import TuningConfig

SINGLE = GemmConfig("single", 128, 128, 64, 8, 4)
COOPERATIVE = GemmConfig("cooperative", 128, 256, 64, 4, 3)
PINGPONG = GemmConfig("pingpong", 64, 256, 64, 4, 4)

ROWS = st.one_of(st.integers(1, 300), st.integers(1, 60_000))
SIDES = st.one_of(st.integers(1, 64), st.integers(1, 1000)).map(lambda n: 8 * n)


@st.composite
def shapes(draw):
    m, groups = draw(ROWS), draw(st.one_of(st.integers(1, 9), st.integers(1, MAX_GROUPS)))
    sizes = group_sizes(draw(st.sampled_from(DISTRIBUTIONS)), m, groups)
    return GroupedShape(m, draw(SIDES), draw(SIDES), sizes, draw(st.sampled_from(PRODUCTS)))


@given(shapes())
@settings(deadline=None, max_examples=80)
def test_every_candidate_is_valid_unique_and_in_a_fixed_order(profile, shape):
    found = candidates(shape, "bfloat16", H200, profile.costs)
    assert found
    assert len(set(found)) == len(found)
    assert found == candidates(shape, "bfloat16", H200, profile.costs)
    for config in found:
        assert violations(config, "bfloat16", H200, shape.product) == ()
        assert config_of(tuning(config)) == config


@given(shapes())
@settings(deadline=None, max_examples=80)
def test_candidates_are_few_enough_to_time_them_all(profile, shape):
    assert len(candidates(shape, "bfloat16", H200, profile.costs)) <= 64


@given(shapes())
@settings(deadline=None, max_examples=80)
def test_candidates_are_worth_considering(profile, shape):
    rows = [shape.n] * shape.groups if shape.product == "wgrad" else shape.sizes
    least = sum(-(-r // 64) * 64 for r in rows)
    for config in candidates(shape, "bfloat16", H200, profile.costs):
        computed = sum(-(-r // config.block_m) * config.block_m for r in rows)
        assert config.block_m == 64 or computed < 1.5 * least
        assert config.group_m <= max(1, -(-max(rows) // config.block_m))
        assert config.staging == "own"


@pytest.mark.parametrize("product", PRODUCTS)
def test_every_scheme_is_considered(profile, product):
    configs = table("bfloat16", H200, profile.costs, product, "row").configs
    assert {c.scheme for c in configs} == set(SCHEMES)


def test_registers_fit_the_multiprocessor(profile):
    for config in table("bfloat16", H200, profile.costs, "forward", "row").configs:
        consumers = config.consumers * config.consumer_warps * 32 * consumer_registers(config)
        producer = 128 * PRODUCER_REGISTERS
        assert config.ctas_per_sm * (consumers + producer) <= 65_536
        assert PRODUCER_REGISTERS % 8 == consumer_registers(config) % 8 == 0
        assert dict(tuning(config).kwargs)["CONSUMER_REGISTERS"] == consumer_registers(config)


INVALID = {
    "scheme": (GemmConfig("pipelined", 128, 128, 64, 4, 4), "scheme pipelined: expected one of single, cooperative"),
    "split": (replace(SINGLE, split_k=2), "split_k 2: the K of a group is not split"),
    "an early next launch": (replace(SINGLE, launch_dependents=True), "a grouped product lets no launch begin early"),
    "swap": (replace(SINGLE, swap=True), "swap: the operands of a group are not swapped"),
    "not persistent": (replace(SINGLE, persistent=False), "not persistent: how many tiles"),
    "gemm's own": (replace(SINGLE, depth=9), "bytes of shared memory exceed"),
    "block": (replace(SINGLE, block_m=100), "block_m 100: expected one of 64"),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_cannot_run_says_why(name):
    config, text = INVALID[name]
    assert text in violations(config, "bfloat16", H200)[0]
    with pytest.raises(InvalidConfig, match="invalid grouped_gemm configuration: "):
        require_valid(config, "bfloat16", H200)


def test_scales_of_wide_tiles_leave_registers_to_one_consumer_alone():
    wide = GemmConfig("cooperative", 192, 192, 128, 4, 4, epilogue_split=3)
    assert "block_n 192 of 3 consumers" in violations(wide, FP8, H200)[0]
    assert violations(GemmConfig("single", 128, 192, 128, 8, 5, epilogue_split=3), FP8, H200) == ()
    assert violations(replace(wide, block_k=64), "bfloat16", H200) == ()


def test_fp8_has_a_forward_product_alone():
    fp8 = replace(SINGLE, block_k=128)
    assert violations(fp8, FP8, H200) == ()
    assert "dgrad with float8_e4m3fn: expected one of bfloat16, float16" in violations(fp8, FP8, H200, "dgrad")[0]
    promoted = replace(fp8, block_n=64, promoted=True)
    assert violations(promoted, FP8, H200) == ()
    assert config_of(tuning(promoted)) == promoted


def test_other_devices_and_dtypes():
    assert "capability 9.0" in violations(SINGLE, "bfloat16", B200)[0]
    assert "dtype float64: expected one of bfloat16" in violations(SINGLE, "float64", H200)[0]


@pytest.mark.parametrize("config", [SINGLE, COOPERATIVE, PINGPONG], ids=lambda c: c.scheme)
def test_a_configuration_from_outside_is_read_exactly(config):
    good = tuning(config)
    assert config_of(good) == config
    for name in dict(good.kwargs):
        for value in (None, "x", -1):
            kwargs = {**dict(good.kwargs), name: value}
            if value is None:
                del kwargs[name]
            with pytest.raises(InvalidConfig, match=f"grouped_gemm configuration: {name} is ") as caught:
                config_of(TuningConfig.of(kwargs, num_warps=good.num_warps, num_stages=1, maxnreg=good.maxnreg))
            assert caught.value.field == name
    with pytest.raises(InvalidConfig, match="num_warps is 5, expected 4 or 8"):
        config_of(replace(good, num_warps=5))
    with pytest.raises(InvalidConfig, match="SPLIT_K is 2, expected None beside the rest"):
        config_of(TuningConfig.of({**dict(good.kwargs), "SPLIT_K": 2}, num_warps=good.num_warps, num_stages=1))
    with pytest.raises(InvalidConfig, match="PRODUCER_REGISTERS is 24, expected 40 beside the rest"):
        config_of(replace(good, kwargs=tuple((k, 24 if k == "PRODUCER_REGISTERS" else v) for k, v in good.kwargs)))
