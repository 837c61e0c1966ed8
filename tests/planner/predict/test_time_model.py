"""The time model's properties: what can never make a kernel faster, how its parts combine, what bounds it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.planner.errors import MissingCosts
from warpplan.planner.predict.time_model import (
    FAMILY_DEFAULTS,
    GLOBAL_DEFAULTS,
    TERMS,
    DeviceWork,
    Rates,
    constant_names,
    launch_constants,
    predictions,
    terms,
)
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.profile import Calibration, Identity, Profile, Rate
from warpplan.profiler.embedded import embedded

from .works import RATES, works

NORMS = tuple(name for name in GLOBAL_DEFAULTS if name.endswith("norm"))
"""How terms that overlap are combined; the last term, the overhead, is added."""


def time_us(work: DeviceWork, constants: dict[str, float] | None = None, rates: Rates = RATES) -> np.ndarray:
    return terms(work, rates, constants or {})[1]


@st.composite
def candidates(draw: st.DrawFn, rows: int = 1) -> DeviceWork:
    """Random work of plausible sizes, every term sometimes the largest."""

    def column(low: float, high: float) -> np.ndarray:
        return np.array([draw(st.floats(low, high)) for _ in range(rows)])

    rounds, iterations = np.ceil(column(1, 50)), np.ceil(column(1, 300))
    split = np.array([draw(st.sampled_from([1.0, 1.0, 2.0, 4.0])) for _ in range(rows)])
    return works(
        rows,
        executed_flops=column(1e6, 1e13),
        loaded_bytes=column(1e4, 1e11),
        rounds=rounds,
        iterations=iterations,
        trips=rounds * iterations,
        ii_cycles=column(32, 2000),
        load_bytes=column(4e3, 1e5),
        slots_in_flight=np.ceil(column(0.5, 7)),
        blocks_per_sm=np.array([draw(st.sampled_from([1.0, 2.0])) for _ in range(rows)]),
        active_sms=np.ceil(column(1, 132)),
        prologue_cycles=column(100, 3000),
        epilogue_cycles=column(100, 9000),
        drain_cycles=column(100, 3000),
        unaligned=np.array([draw(st.sampled_from([0.0, 1.0])) for _ in range(rows)]),
        plain_elements=np.array([draw(st.sampled_from([0.0, 128.0])) for _ in range(rows)]),
        refilled=np.array([draw(st.sampled_from([0.0, 1.0])) for _ in range(rows)]),
        overlapped=np.array([draw(st.sampled_from([0.0, 1.0])) for _ in range(rows)]),
        dram_bytes=column(1e3, 1e10),
        dram_latency_cycles=column(500, 2500),
        filled_bytes=column(0, 1e9),
        group_rows=column(0, 4096),
        split_k=split,
        split_rounds=np.where(split > 1, rounds, 0.0),
        reduced_bytes=np.where(split > 1, column(1e4, 1e6), 0.0),
        reduction_trips=np.where(split > 1, np.ceil(column(1, 20)), 0.0),
        narrow=column(0, 1),
        streamed=np.array([draw(st.sampled_from([0.0, 1.0])) for _ in range(rows)]),
        early_part=column(0, 1),
    )


CONSTANTS = st.fixed_dictionaries(
    {
        **dict.fromkeys(NORMS, st.floats(1.0, 20.0)),
        "l2_scale": st.floats(0.1, 3.0),
        "narrow_scale": st.floats(0.0, 4.0),
        "scatter_l2": st.floats(0.0, 2.0),
        "stream_l2": st.floats(0.0, 2.0),
        "split_trip_us": st.floats(0.0, 4.0),
        "order_l2": st.floats(0.0, 1.0),
        "latency_scale": st.floats(0.0, 3.0),
        "energy_l2": st.floats(0.0, 2.0),
        "split_us": st.floats(0.0, 10.0),
        "iteration_cycles.one": st.floats(0.0, 500.0),
        "exposed.one": st.floats(0.0, 4.0),
        "structure.only": st.floats(-0.3, 0.3),
    }
)


@pytest.mark.parametrize(
    "column",
    [
        "executed_flops", "loaded_bytes", "rounds", "trips", "load_bytes", "active_sms", "blocks_per_sm",
        "prologue_cycles", "epilogue_cycles", "drain_cycles", "unaligned", "plain_elements", "dram_bytes", "group_rows",
        "dram_latency_cycles", "narrow", "reduction_trips", "streamed",
    ],
)  # fmt: skip
@given(candidates(), CONSTANTS, st.floats(1.0, 10.0))
def test_more_work_is_never_faster(column, work, constants, factor):
    more = replace(work, **{column: getattr(work, column) * factor})
    assert time_us(more, constants)[0] >= time_us(work, constants)[0] * (1 - 1e-9)


@given(candidates(), CONSTANTS, st.floats(1.0, 10.0))
def test_a_longer_interval_is_never_faster_where_nothing_hides_under_it(work, constants, factor):
    work = replace(work, overlapped=np.zeros(1))
    longer = replace(work, ii_cycles=work.ii_cycles * factor)
    assert time_us(longer, constants)[0] >= time_us(work, constants)[0] * (1 - 1e-9)


@given(candidates(), CONSTANTS, st.integers(1, 6))
def test_a_deeper_ring_is_never_slower(work, constants, more):
    deeper = replace(work, slots_in_flight=work.slots_in_flight + more)
    assert time_us(deeper, constants)[0] <= time_us(work, constants)[0] * (1 + 1e-9)


@given(candidates(), CONSTANTS)
def test_a_second_consumer_that_hides_the_epilogue_is_never_slower(work, constants):
    alone, pair = replace(work, overlapped=np.zeros(1)), replace(work, overlapped=np.ones(1))
    assert time_us(pair, constants)[0] <= time_us(alone, constants)[0] * (1 + 1e-9)


@given(candidates(), CONSTANTS)
def test_refilling_the_ring_costs_time(work, constants):
    kept, refilled = replace(work, refilled=np.zeros(1)), replace(work, refilled=np.ones(1))
    assert time_us(refilled, constants)[0] > time_us(kept, constants)[0]


@given(candidates(), CONSTANTS, st.floats(1.0, 10.0))
def test_a_split_pays_for_its_reduction(work, constants, factor):
    whole = replace(work, split_rounds=np.zeros(1))
    split = replace(work, split_rounds=np.ones(1), reduced_bytes=np.full(1, 1e5))
    assert time_us(split, constants)[0] > time_us(whole, constants)[0]
    wider = replace(split, reduced_bytes=split.reduced_bytes * factor)
    assert time_us(wider, constants)[0] >= time_us(split, constants)[0]
    again = replace(split, split_rounds=np.full(1, 2.0))
    assert time_us(again, constants)[0] > time_us(split, constants)[0]


@given(candidates(), CONSTANTS)
def test_boxes_beyond_the_matrix_cost_time(work, constants):
    inside, beyond = replace(work, filled_bytes=np.zeros(1)), replace(work, filled_bytes=np.full(1, 1e9))
    assert time_us(beyond, constants)[0] >= time_us(inside, constants)[0]


@pytest.mark.parametrize("rate", [f.name for f in fields(Rates) if f.name != "launch_us"])
@given(candidates(), CONSTANTS, st.floats(1.0, 4.0))
def test_a_faster_device_is_never_slower(rate, work, constants, factor):
    faster = replace(RATES, **{rate: getattr(RATES, rate) * factor})
    assert time_us(work, constants, faster)[0] <= time_us(work, constants)[0] * (1 + 1e-9)


@given(candidates(rows=4), CONSTANTS)
def test_terms_are_finite_and_lie_between_their_maximum_and_their_sum(work, constants):
    constants["structure.only"] = 0.0
    parts, times = terms(work, RATES, constants)
    assert parts.shape == (len(TERMS), 4)
    assert np.isfinite(parts).all()
    assert (parts >= 0).all()
    ends = RATES.launch_us + parts[-1]
    assert (times >= ends + parts[:-1].max(axis=0) - 1e-9 * times).all()
    assert (times <= ends + parts[:-1].sum(axis=0) + 1e-9 * times).all()


@given(candidates(), CONSTANTS)
def test_norms_go_from_the_sum_to_the_maximum(work, constants):
    constants["structure.only"] = 0.0
    parts, summed = terms(work, RATES, constants | dict.fromkeys(NORMS, 1.0))
    ends = RATES.launch_us + parts[-1, 0]
    assert summed[0] == pytest.approx(ends + parts[:-1, 0].sum())
    largest = time_us(work, constants | dict.fromkeys(NORMS, 1000.0))[0]
    assert largest == pytest.approx(ends + parts[:-1, 0].max(), rel=1e-2)


@given(candidates(rows=5), CONSTANTS)
def test_rows_do_not_know_each_other(work, constants):
    rows = np.array([3, 0, 3])
    parts, times = terms(work, RATES, constants)
    some_parts, some_times = terms(work.take(rows), RATES, constants)
    np.testing.assert_allclose(some_parts, parts[:, rows], rtol=1e-12)
    np.testing.assert_allclose(some_times, times[rows], rtol=1e-12)


def test_taken_rows_keep_everything_else():
    work = works(3, trips=np.array([1.0, 2.0, 3.0]))
    taken = work.take(np.array([2, 0]))
    assert taken.trips.tolist() == [3.0, 1.0]
    assert (taken.flops, taken.families, taken.structures) == (work.flops, work.families, work.structures)
    assert {
        len(getattr(taken, f.name)) for f in fields(DeviceWork) if isinstance(getattr(taken, f.name), np.ndarray)
    } == {2}


# Each term by hand, on a device of round numbers


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("tensor", 64 * 500 / 2e3),
        ("l2", 64 * 48e3 / (5e12 / 132) * 1e6),
        ("latency", 64 * 1200 / 3 / 2e3),
        ("dram", 6e6 / 4e12 * 1e6),
        ("power", (2 * 1024**3 / 8e14 + 0.1 * 4e7 / 5e12 + 0.1 * 6e6 / 4e12) * 1e6),
        ("overhead", (900 + 700 + 2 * 1500) / 2e3),
    ],
)
def test_a_term_by_hand(term, expected):
    constants = {"energy_l2": 0.1, "energy_dram": 0.1, "dram_ramp_us": 0.0}
    parts, _ = terms(works(), RATES, constants)
    assert parts[TERMS.index(term), 0] == pytest.approx(expected)


def test_few_blocks_are_held_by_their_ports():
    """With 2 SMs at work each could have half of L2's rate, but its port is 64 bytes a cycle."""
    parts, _ = terms(works(active_sms=2), RATES, {})
    assert parts[TERMS.index("l2"), 0] == pytest.approx(64 * 48e3 / (64 * 2e9) * 1e6)


def test_an_epilogue_hides_under_the_next_main_loop():
    """Two units of 32 · 500 cycles: 1,500 hide but for the last; of 18,000, half of the excess shows each time."""
    short, _ = terms(works(overlapped=1), RATES, {})
    assert short[-1, 0] == pytest.approx((900 + 700 + 1500) / 2e3)
    long, _ = terms(works(overlapped=1, epilogue_cycles=18_000), RATES, {})
    assert long[-1, 0] == pytest.approx((900 + 700 + 2 * 1000 + 17_000) / 2e3)


# Constants


def test_a_familys_constants_are_its_own():
    work = replace(works(2), families=("one", "other"), family=np.array([0, 1]))
    plain = time_us(work)
    changed = time_us(work, {"tensor_scale.other": 1.3, "start_cycles.other": 500.0})
    assert changed[0] == plain[0]
    assert changed[1] > plain[1]


def test_a_structures_residual_scales_all_but_the_launch():
    work = replace(works(2), structures=("only", "other"), structure=np.array([0, 1]))
    plain = time_us(work)
    changed = time_us(work, {"structure.other": 0.1})
    assert changed[0] == plain[0]
    assert changed[1] - RATES.launch_us == pytest.approx((plain[1] - RATES.launch_us) * np.exp(0.1))


def test_defaults_stand_where_nothing_was_fitted():
    defaults = {**GLOBAL_DEFAULTS, **{f"{n}.one": v for n, v in FAMILY_DEFAULTS.items()}, "structure.only": 0.0}
    assert time_us(works(), defaults)[0] == time_us(works())[0]


def test_groups_of_many_rows_load_more_through_l2_where_the_card_says_so():
    few, many, most = (works(load_bytes=1e6, group_rows=rows) for rows in (1024, 2048, 4096))
    assert time_us(few)[0] == time_us(many)[0] == time_us(most)[0]
    costly = {"order_l2": 0.3}
    assert time_us(few, costly)[0] == time_us(few)[0]
    l2 = [terms(work, RATES, costly)[0][TERMS.index("l2"), 0] for work in (few, many, most)]
    assert np.allclose(np.array(l2) / l2[0], [1.0, 1.3, 1.6])


def test_an_early_launch_saves_a_constant_and_scatters_blocks_where_part_of_them_finds_room():
    constants = {"early_launch_us": 0.4, "scatter_l2": 0.5}
    early = works(5, load_bytes=1e6, launch_dependents=1, early_part=np.array([0.0, 0.25, 0.5, 0.75, 1.0]))
    parts, times = terms(early, RATES, constants)
    waiting = time_us(works(load_bytes=1e6), constants)[0]
    assert np.allclose(times[[0, 4]], waiting - 0.4)
    l2 = parts[TERMS.index("l2")]
    assert np.allclose(l2 / l2[0], [1.0, 1.375, 1.5, 1.375, 1.0])
    assert (time_us(replace(early, launch_dependents=np.zeros(5)), constants) == waiting).all()


def test_an_early_launch_never_saves_more_than_half():
    waiting = time_us(works())[0]
    assert time_us(works(launch_dependents=1, early_part=1), {"early_launch_us": 1e6})[0] == pytest.approx(waiting / 2)


def test_a_split_waits_for_l2_as_often_as_it_loads_partial_sums():
    split = works(3, split_k=8, split_rounds=2, reduced_bytes=1e5, reduction_trips=np.array([0.0, 1.0, 5.0]))
    found = time_us(split, {"split_trip_us": 0.3})
    assert np.allclose(found - found[0], [0.0, 0.6, 3.0])


def test_constant_names_are_all_that_the_model_reads():
    names = constant_names(("a", "b"))
    assert len(set(names)) == len(names) == len(GLOBAL_DEFAULTS) + 2 * len(FAMILY_DEFAULTS)
    work = works(rounds=3, overlapped=0, refilled=1, plain_elements=128.0, unaligned=1, group_rows=4096)
    work = replace(work, split_rounds=np.ones(1), reduced_bytes=np.full(1, 1e5), filled_bytes=np.full(1, 1e6))
    work = replace(work, launch_dependents=np.ones(1), early_part=np.full(1, 0.5))
    work = replace(work, narrow=np.ones(1), reduction_trips=np.ones(1), streamed=np.ones(1))
    plain = time_us(work)[0]
    for name in constant_names(("one",)):
        value = {**GLOBAL_DEFAULTS, **FAMILY_DEFAULTS}[name.split(".")[0]]
        assert time_us(work, {name: 0.5 * value if value else 100.0})[0] != plain, name


# What comes out

BOUND_BY: dict[str, dict[str, Any]] = {
    "tensor": {"ii_cycles": 1e5},
    "l2": {"load_bytes": 1e7},
    "latency": {"dram_latency_cycles": 1e6},
    "dram": {"dram_bytes": 1e10},
    "power": {"executed_flops": 1e13},
    "overhead": {"epilogue_cycles": 1e6},
}


@pytest.mark.parametrize("name", TERMS)
def test_bound_by_names_the_largest_part(name):
    work = works(**BOUND_BY[name])
    parts, times = terms(work, RATES, {})
    (prediction,) = predictions(work, parts, times, np.array([0]))
    assert prediction.bound_by == name
    assert [n for n, _ in prediction.parts] == list(TERMS)
    assert prediction.time_us == times[0]
    assert prediction.tflops == pytest.approx(work.flops / times[0] / 1e6)


def test_predictions_come_in_the_order_asked_for():
    work = works(3, trips=np.array([10.0, 30.0, 20.0]))
    parts, times = terms(work, RATES, {})
    chosen = predictions(work, parts, times, np.array([2, 0]))
    assert [p.time_us for p in chosen] == [times[2], times[0]]
    assert predictions(work, parts, times, np.array([], dtype=np.int64)) == ()


# Rates

NEEDED = ("clock_hz_idle", "l2_bytes_per_s", "read_bytes_per_s", "tensor_flops_bfloat16", "launch_us")
IDENTITY = Identity("NVIDIA H200", "1", "13.0", "3.6.0", "2.11.0", "3.12.3", "2026-01-01", "warpplan profile")


def with_ceilings(*names: str) -> Profile:
    rates = tuple((name, Rate(float(i + 1), 0.5, 99.0, 9)) for i, name in enumerate(names))
    return Profile(IDENTITY, CostTable(()), rates)


def test_rates_are_the_medians():
    rates = Rates.of(with_ceilings(*NEEDED), "bfloat16")
    assert (rates.clock_hz, rates.l2_bytes_per_s, rates.dram_bytes_per_s) == (1.0, 2.0, 3.0)
    assert (rates.tensor_flops, rates.launch_us) == (4.0, 5.0)


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_ceiling_is_named(missing):
    with pytest.raises(MissingCosts, match=f"no measured cost for ceiling {missing}:") as caught:
        Rates.of(with_ceilings(*(n for n in NEEDED if n != missing)), "bfloat16")
    assert caught.value.operations == (f"ceiling {missing}",)


def test_all_missing_ceilings_are_named_at_once():
    with pytest.raises(MissingCosts) as caught:
        Rates.of(with_ceilings("tensor_flops_bfloat16"), "float16")
    names = (*NEEDED[:3], "tensor_flops_float16", *NEEDED[4:])
    assert caught.value.operations == tuple(f"ceiling {name}" for name in names)


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_a_gemm_that_is_calibrated_anew_changes_no_other_kernels_constants(gpu):
    profile = embedded(gpu)
    before = launch_constants(profile)
    assert before.keys() == GLOBAL_DEFAULTS.keys()
    assert before != dict(GLOBAL_DEFAULTS)
    others = tuple(c for c in profile.calibrations if c.kernel != "gemm")
    anew = Calibration("gemm", (("l2_scale", 2.5),), (), "a store")
    assert launch_constants(replace(profile, calibrations=(*others, anew))) == before
    assert launch_constants(replace(profile, calibrations=(anew,))) == {**GLOBAL_DEFAULTS, "l2_scale": 2.5}
    assert launch_constants(replace(profile, calibrations=())) == dict(GLOBAL_DEFAULTS)
