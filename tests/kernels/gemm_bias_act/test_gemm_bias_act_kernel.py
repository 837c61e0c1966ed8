"""The fused GEMM as the planner sees it: shapes with options, candidates that can run the epilogue, what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warpplan.kernels import registry
from warpplan.kernels.gemm.candidates import candidates
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import GemmConfig, tuning
from warpplan.kernels.gemm_bias_act.kernel import GemmBiasAct, fused_epilogue
from warpplan.kernels.gemm_bias_act.space import ACTIVATIONS, FusedEpilogue, violations
from warpplan.kernels.gemm_bias_act.work import OPERATIONS, activation_cycles, epilogue_cycles
from warpplan.planner.errors import Infeasible, InvalidConfig, InvalidShape, MissingCosts, UnknownName
from warpplan.planner.values.costs import CostEntry, CostTable, OperationCost, Quantiles
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Profile

FUSED, GEMM = GemmBiasAct(), Gemm()
SQUARE = (4096, 4096, 4096)
OPTIONS = [
    (),
    ("activation=relu", "bias=yes"),
    ("activation=gelu", "bias=yes", "residual=yes"),
    ("layout=nn", "activation=silu"),
    ("activation=swiglu",),
]


def test_registered_with_its_options():
    declaration = registry.kernel("gemm_bias_act").declaration
    assert declaration.parameters == ("M", "N", "K", "layout", "activation", "bias", "residual")
    for example in declaration.examples:
        assert FUSED.parse_shape(declaration.named(example), "bfloat16") == example


def test_a_shape_names_its_epilogue():
    given = {"M": 64, "N": 64, "K": 64, "activation": "gelu_tanh", "bias": "yes", "residual": "no"}
    shape = FUSED.parse_shape(given, "float16")
    assert shape == (64, 64, 64, "activation=gelu_tanh", "bias=yes")
    assert fused_epilogue(shape) == FusedEpilogue("gelu_tanh", True, False)
    assert fused_epilogue((64, 64, 64)) == FusedEpilogue()


@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ({"activation": "tanh"}, "activation", "expected none, relu, gelu, gelu_tanh, silu, swiglu"),
        ({"bias": "true"}, "bias", "expected no, yes"),
        ({"N": 65, "activation": "swiglu"}, "N", "N=65: swiglu takes columns in pairs"),
        ({"K": 65}, "K", "K=65 makes bfloat16 rows of 130 bytes in A"),
        ({"scales": "row"}, "scales", "gemm_bias_act has no dimension or option 'scales'"),
    ],
)
def test_bad_shapes_name_what_is_wrong(given, field, text):
    with pytest.raises(InvalidShape) as caught:
        FUSED.parse_shape({"M": 64, "N": 64, "K": 64, **given}, "bfloat16")
    assert caught.value.field == field
    assert text in str(caught.value)


def test_fp8_has_no_fused_epilogue():
    with pytest.raises(UnknownName, match="unknown dtype 'float8_e4m3fn': expected one of bfloat16, float16"):
        FUSED.parse_shape({"M": 64, "N": 64, "K": 64}, "float8_e4m3fn")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("size", [SQUARE, (16, 14336, 4096), (300, 520, 1000)], ids=str)
def test_the_candidates_are_the_products_that_can_run_the_epilogue(profile, size, options):
    shape = (*size, *options)
    epilogue = fused_epilogue(shape)
    ranked = FUSED.ranked(shape, "bfloat16", H200, profile)
    found = [replace(config, launch_dependents=False) for config, _ in ranked]
    streams = "fix_up" in profile.costs.kinds()
    every = [c for c in candidates(size, "bfloat16", H200, profile.costs) if streams or not c.stream_k]
    every = [c for c in every if not c.has_narrow_chunks]  # These were not timed.
    assert sorted(found) == sorted(c for c in every if not violations(c, "bfloat16", H200, epilogue, size))
    assert found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_plans_races_and_predictions_agree(profile, options):
    shape = (*SQUARE, *options)
    ranked = FUSED.ranked(shape, "bfloat16", H200, profile, limit=3)
    assert FUSED.predicted([c for c, _ in ranked], shape, "bfloat16", H200, profile) == tuple(p for _, p in ranked)
    assert FUSED.race(shape, "bfloat16", H200, profile).configs[0] == tuning(ranked[0][0])
    assert FUSED.plan(tuning(ranked[0][0]), "bfloat16", H200, profile, shape).plan is not None
    assert FUSED.rank(shape, "bfloat16", H200, profile, limit=1)[0].solve().plan is not None


def test_the_floor_counts_the_bytes_that_there_are(profile):
    def floor(*options: str) -> float:
        return FUSED.floor_us((8192, 8192, 8, *options), "bfloat16", H200, profile)

    assert floor() == GEMM.floor_us((8192, 8192, 8), "bfloat16", H200, profile)
    assert floor("residual=yes") > 1.9 * floor()
    assert floor("activation=swiglu") < 0.6 * floor()


def test_without_an_epilogue_it_is_the_gemm(gemm_profile):
    fused, plain = (k.ranked(SQUARE, "bfloat16", H200, gemm_profile) for k in (FUSED, GEMM))
    assert fused == [(c, p) for c, p in plain if c.specialized and not c.has_narrow_chunks]


def test_what_an_epilogue_adds_costs_time(profile):
    config = [GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring")]

    def time(*options: str) -> float:
        return FUSED.predicted(config, (*SQUARE, *options), "bfloat16", H200, profile)[0].time_us

    assert time() < time("bias=yes") < time("activation=relu", "bias=yes") < time("activation=gelu", "bias=yes")
    assert time("activation=gelu") < time("activation=gelu", "residual=yes")


def test_a_second_consumer_hides_the_epilogue(profile):
    """Ping-pong gains on cooperative as the epilogue gets longer: one consumer multiplies while the other finishes."""
    configs = [GemmConfig("cooperative", 128, 128, 64, 4, 5), GemmConfig("pingpong", 128, 128, 64, 4, 5)]

    def times(*options: str) -> list[float]:
        return [p.time_us for p in FUSED.predicted(configs, (*SQUARE, *options), "bfloat16", H200, profile)]

    plain, gelu = times(), times("activation=gelu", "bias=yes")
    assert gelu[1] - plain[1] < 0.3 * (gelu[0] - plain[0])


def test_its_own_calibration_comes_first(gemm_profile):
    (gemm,) = gemm_profile.calibrations
    own = replace(gemm, kernel="gemm_bias_act", constants=(("launch_scale", 3.0),))
    calibrated = replace(gemm_profile, calibrations=(gemm, own))
    config = [GemmConfig("single", 128, 128, 64, 8, 4)]
    times = [FUSED.predicted(config, SQUARE, "bfloat16", H200, p)[0].time_us for p in (gemm_profile, calibrated)]
    assert times[0] != times[1]


def test_a_configuration_that_cannot_run_the_epilogue_has_no_plan(profile):
    swapped = tuning(GemmConfig("single", 64, 64, 64, 4, 4, swap=True))
    assert FUSED.plan(swapped, "bfloat16", H200, profile).plan is not None
    with pytest.raises(InvalidConfig, match="invalid gemm_bias_act configuration: swiglu with swapped operands"):
        FUSED.plan(swapped, "bfloat16", H200, profile, (64, 64, 64, "activation=swiglu"))
    with pytest.raises(InvalidConfig, match="the pipelined scheme has no fused epilogue"):
        FUSED.loop(tuning(GemmConfig("pipelined", 128, 128, 64, 8, 4)), "bfloat16", H200, profile)
    with pytest.raises(Infeasible, match="no gemm_bias_act configuration of scheme pipelined fits"):
        FUSED.ranked(SQUARE, "bfloat16", H200, profile, schemes=("pipelined",))


@pytest.mark.parametrize(
    ("config", "epilogue", "text"),
    [
        (GemmConfig("pipelined", 128, 128, 64, 8, 4), FusedEpilogue(), "the pipelined scheme has no fused epilogue"),
        (GemmConfig("single", 64, 16, 64, 4, 4), FusedEpilogue("swiglu"), "swiglu makes chunks of 8 columns, 16 at"),
        (GemmConfig("single", 128, 128, 64, 8, 9), FusedEpilogue(), "bytes of shared memory exceed"),
    ],
)
def test_what_cannot_run_names_its_violation(config, epilogue, text):
    assert any(text in f for f in violations(config, "bfloat16", H200, epilogue))


def test_unknown_activation():
    with pytest.raises(UnknownName, match="unknown activation 'tanh': expected one of none, relu"):
        FusedEpilogue("tanh")


# Costs


def test_every_activation_has_its_operations():
    assert {*OPERATIONS, "swiglu"} == set(ACTIVATIONS)


def test_an_activation_that_was_measured_costs_what_was_measured(profile):
    spent = Quantiles(1000.0, 1000.0, 1)
    entries = [
        CostEntry("activation", (("elements", 64 * n), ("function", "gelu")), OperationCost(spent, spent, spent))
        for n in (16, 128)
    ]
    costs = CostTable((*(e for e in profile.costs.entries if e.kind != "activation"), *entries))
    assert activation_cycles("gelu", 4096, costs) == 1000.0
    bare = CostTable(tuple(e for e in profile.costs.entries if e.kind != "activation"))
    elementwise, exp2 = (bare.lookup(kind, 4096).occupancy.p50 for kind in ("elementwise", "exp2"))
    adds, exponentials = OPERATIONS["silu"]
    assert activation_cycles("silu", 4096, costs) == adds * elementwise + exponentials * exp2
    assert activation_cycles("swiglu", 8192, bare) == activation_cycles("silu", 4096, bare) + elementwise


def test_costs_that_were_not_measured_are_named(profile):
    config = GemmConfig("single", 128, 128, 64, 8, 4)
    kinds = ("exp2", "activation")
    partial = CostTable(tuple(e for e in profile.costs.entries if e.kind not in kinds))
    with pytest.raises(MissingCosts, match="exp2"):
        epilogue_cycles(config, FusedEpilogue("silu"), partial)
    lacking: Profile = replace(profile, costs=partial)
    assert FUSED.ranked((*SQUARE, "activation=relu"), "bfloat16", H200, lacking)
