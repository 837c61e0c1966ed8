"""The space of the vector addition, its plans and its time model; every candidate compiles for sm_90 without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warpplan.kernels import registry
from warpplan.kernels.vector_add.graph import interval_cycles, pass_graph, plan_candidate
from warpplan.kernels.vector_add.kernel import VECTOR_ADD, VectorAdd
from warpplan.kernels.vector_add.space import (
    ELEMENT_BYTES,
    VectorAddConfig,
    candidates,
    config_of,
    tuning,
    violations,
)
from warpplan.kernels.vector_add.work import PARTS, predict
from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import InvalidConfig, InvalidShape, MissingCosts, UnknownName
from warpplan.planner.values.device import H200
from warpplan.planner.values.tuning import TuningConfig

KERNEL = VectorAdd()
DTYPES = tuple(ELEMENT_BYTES)
LENGTHS = (1, 127, 4096, 98432, 1_000_003, 2**26 + 5)


def test_it_is_registered_under_the_name_that_it_declares():
    assert registry.kernel("vector_add").declaration is VECTOR_ADD


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_space_is_what_is_valid(dtype):
    found = candidates(dtype)
    assert len(found) == len(set(found)) == 17
    for config in found:
        assert violations(config, dtype) == ()
        assert 1 <= config.elements_per_thread <= 16
        assert config.elements_per_thread * 32 * config.num_warps == config.block_size
        assert config_of(tuning(config)) == config
        assert 1 <= config.resident_blocks(H200) <= 32


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (VectorAddConfig(100, 4), "BLOCK_SIZE 100"),
        (VectorAddConfig(1024, 3), "num_warps 3"),
        (VectorAddConfig(128, 8), "0 a thread"),
        (VectorAddConfig(4096, 1), "128 a thread"),
    ],
    ids=repr,
)
def test_what_is_not_valid_says_why(config, reason):
    assert reason in violations(config, "float32")[0]
    with pytest.raises(InvalidConfig, match=reason):
        VectorAdd().plan(tuning(config), "float32", H200, None)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (TuningConfig.of({}, num_warps=4, num_stages=1), "BLOCK_SIZE"),
        (TuningConfig.of({"BLOCK_SIZE": True}, num_warps=4, num_stages=1), "BLOCK_SIZE"),
        (TuningConfig.of({"BLOCK_SIZE": 1024, "BLOCK_M": 64}, num_warps=4, num_stages=1), "BLOCK_M"),
        (TuningConfig.of({"BLOCK_SIZE": 1024}, num_warps=4, num_stages=3), "num_stages, num_ctas or maxnreg"),
    ],
    ids=repr,
)
def test_configurations_from_outside_are_read_strictly(config, field):
    with pytest.raises(InvalidConfig) as caught:
        config_of(config)
    assert caught.value.field == field


def test_shapes():
    assert KERNEL.parse_shape({"N": " 98432 "}, "float32") == (98432,)
    assert KERNEL.parse_shape({"N": 2**31 - 1}, "float32") == (2**31 - 1,)
    for sizes in ({}, {"N": 0}, {"N": 2**31}, {"N": 1.5}, {"M": 1}):
        with pytest.raises(InvalidShape):
            KERNEL.parse_shape(sizes, "float32")
    with pytest.raises(UnknownName, match="float64"):
        KERNEL.parse_shape({"N": 1}, "float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_candidate_has_an_optimal_plan_of_the_interval_that_ranking_takes(dtype, profile):
    for config in candidates(dtype):
        graph = pass_graph(config, dtype, H200, profile.costs)
        outcome = plan_candidate(config, dtype, H200, profile.costs)
        assert outcome.status == "optimal"
        assert outcome.plan is not None
        assert outcome.plan.schedule.ii_cycles == outcome.bound == interval_cycles(graph)
        assert check(outcome.plan, graph) == ()
        assert outcome.plan.smem_bytes == 0
        assert [p.warps for p in outcome.plan.partitions] == [config.num_warps]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_ranking(length, dtype, profile):
    ranked = KERNEL.rank((length,), dtype, H200, profile, limit=1000)
    assert sorted(r.config.kwargs for r in ranked) == sorted(tuning(c).kwargs for c in candidates(dtype))
    times = [r.prediction.time_us for r in ranked]
    assert times == pytest.approx(sorted(times), rel=1e-6)
    assert KERNEL.rank((length,), dtype, H200, profile, limit=3) == ranked[:3]
    bytes_moved = 3 * length * ELEMENT_BYTES[dtype]
    ceilings = dict(profile.ceilings)
    for r in ranked:
        p, parts = r.prediction, dict(r.prediction.parts)
        assert tuple(parts) == PARTS
        assert p.bound_by == max(parts, key=parts.__getitem__)
        assert max(parts.values()) < p.time_us <= sum(parts.values()) + parts["latency"]
        assert parts["dram"] == pytest.approx(bytes_moved / ceilings["copy_bytes_per_s"].p50 * 1e6)
        assert p.tflops == pytest.approx(length / p.time_us * 1e-6)
    best = ranked[0]
    planned = KERNEL.plan(best.config, dtype, H200, profile)
    assert replace(best.solve(), seconds=0.0) == replace(planned, seconds=0.0)


def test_what_bounds_it_follows_from_the_length(profile):
    bounds = [KERNEL.rank((n,), "float32", H200, profile, limit=1)[0].prediction.bound_by for n in LENGTHS]
    assert bounds[0] == "latency"
    assert bounds[-1] == "dram"


def test_time_grows_by_whole_waves(profile):
    """One block more than all places on all SMs starts another wave of the latency part."""
    config = VectorAddConfig(1024, 8)
    places = H200.sm_count * config.resident_blocks(H200)
    latency = [
        dict(predict(config, blocks * 1024, "float32", H200, profile).parts)["latency"]
        for blocks in (1, places, places + 1, 2 * places)
    ]
    assert latency[0] == latency[1]
    assert latency[2] == latency[3] == pytest.approx(2 * latency[0])


@pytest.mark.parametrize("missing", ["copy_bytes_per_s", "launch_us", "clock_hz_idle"])
def test_missing_ceilings_are_named(profile, missing):
    bare = replace(profile, ceilings=tuple((n, r) for n, r in profile.ceilings if n != missing))
    with pytest.raises(MissingCosts, match=missing):
        KERNEL.rank((4096,), "float32", H200, bare)


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_candidate_compiles_without_a_spill(dtype, aligned):
    pytest.importorskip("triton", reason="compiling needs triton")
    from warpplan.kernels.vector_add.compile_vector_add import compile_vector_add

    for config in candidates(dtype):
        report = compile_vector_add(config, dtype, aligned=aligned)
        assert report.clean, config
        assert report.shared_bytes == 0
        assert report.warps == config.num_warps
        assert report.registers <= config.registers, config
        words = min(16, config.elements_per_thread * ELEMENT_BYTES[dtype]) // 4
        if aligned and words > 1:
            assert f"ld.global.v{words}.b32" in report.ptx, config
