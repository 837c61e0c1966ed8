from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels import timing as gpu_timing
from warpplan.kernels.timing import MAX_SETS, Timing, input_sets, round_order, summarize, summarize_rounds, timed_jobs
from warpplan.planner.errors import MeasurementFailed

L2 = 60 * 2**20
times = st.floats(min_value=0.1, max_value=1e6)


def test_percentiles_of_a_known_series() -> None:
    timing = summarize([float(v) for v in range(1, 12)])
    assert (timing.median_us, timing.p10_us, timing.p90_us, timing.count) == (6.0, 2.0, 10.0, 11)
    assert timing.ratio is None
    assert timing.spread == pytest.approx(8 / 6)


def test_the_ratio_is_paired_not_the_ratio_of_medians() -> None:
    # The clock halves midway for both: each round's ratio stays 1.25, whatever the two medians are.
    clock = np.array([1.0] * 6 + [2.0] * 5)
    timing = summarize(list(8 * clock), list(10 * clock))
    assert timing.ratio == pytest.approx(1.25)
    assert timing.ratio_p10 == timing.ratio_p90 == pytest.approx(1.25)


def test_rounds_become_one_timing_a_candidate() -> None:
    rounds = [{"ours": 9.0, "cublas": 10.0}, {"ours": 10.0, "cublas": 12.0}, {"ours": 10.0, "cublas": 11.0}]
    timings = summarize_rounds(rounds, "cublas")
    assert timings["cublas"].ratio == 1.0
    assert timings["ours"].ratio == pytest.approx(1.1111, abs=1e-4)
    assert summarize_rounds(rounds)["ours"].ratio is None


@pytest.mark.parametrize("samples", [[], [1.0, 0.0], [1.0, -2.0], [1.0, math.nan], [math.inf]])
def test_what_is_no_time_is_refused(samples: list[float]) -> None:
    with pytest.raises(MeasurementFailed, match="positive times"):
        summarize(samples)


def test_unequal_rounds_are_not_paired() -> None:
    with pytest.raises(MeasurementFailed, match="2 rounds cannot be paired with 1"):
        summarize([1.0, 2.0], [1.0])


def test_an_unknown_baseline_and_no_rounds_are_refused() -> None:
    with pytest.raises(MeasurementFailed, match="'other' is not among ours"):
        summarize_rounds([{"ours": 1.0}], "other")
    with pytest.raises(MeasurementFailed, match="no rounds"):
        summarize_rounds([])


def test_cold_inputs_exceed_three_times_l2_between_two_uses() -> None:
    set_bytes = 10 * 2**20
    sets = input_sets(set_bytes, L2)
    assert (sets - 1) * set_bytes >= 3 * L2
    assert (sets - 2) * set_bytes < 3 * L2
    assert input_sets(set_bytes, L2, cold=False) == 1
    assert input_sets(2**30, L2) == 2
    assert input_sets(1, L2) == MAX_SETS
    with pytest.raises(MeasurementFailed, match="0 bytes"):
        input_sets(0, L2)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_candidate_runs_once_a_round_and_leads_equally_often(count: int) -> None:
    names = [f"c{i}" for i in range(count)]
    orders = [round_order(names, r) for r in range(2 * count)]
    assert all(sorted(order) == names for order in orders)
    assert {name: sum(order[0] == name for order in orders) for name in names} == dict.fromkeys(names, 2)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=30))
def test_order_of_percentiles(pairs: list[tuple[float, float]]) -> None:
    timing = summarize([a for a, _ in pairs], [b for _, b in pairs])
    assert timing.p10_us <= timing.median_us <= timing.p90_us
    assert timing.ratio is not None
    assert timing.ratio_p10 <= timing.ratio <= timing.ratio_p90


class StubGpu:
    """torch as far as :func:`timed_jobs` asks it: memory, L2 and whether the GPU still answers."""

    def __init__(self) -> None:
        self.held, self.lost = 0, False
        self.cuda = self

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def memory_allocated(self) -> int:
        return self.held

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(L2_cache_size=100)


class StubLaunch:
    """A launch that holds memory as long as it lives."""

    def __init__(self, gpu: StubGpu, size: int) -> None:
        self.gpu, self.size = gpu, size
        gpu.held += size

    def __call__(self) -> None:
        pass

    def __del__(self) -> None:
        self.gpu.held -= self.size


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> StubGpu:
    found = StubGpu()
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


def test_timed_jobs_rotate_through_enough_operands(gpu: StubGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the L2 beside the first set, whatever the job before it left."""
    sets: list[int] = []

    def time_one(call: Any, *, sets: int, seen: list[int] = sets) -> Timing:
        for number in range(sets):
            call(number)
        seen.append(sets)
        return Timing(float(sets), 1.0, 1.0, 20)

    monkeypatch.setattr(gpu_timing, "time_one", time_one)
    found = list(timed_jobs([100, 300, 50], lambda size: StubLaunch(gpu, size)))
    assert found[0] == {"started": True}
    assert sets == [4, 2, 7]
    assert [result["time_us"] for result in found[1:]] == [4.0, 2.0, 7.0]


def test_timed_jobs_tell_refusals_and_end_with_the_gpu(gpu: StubGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_timing, "time_one", lambda call, sets: Timing(2.0, 1.0, 1.0, 20))

    def make(job: str) -> StubLaunch:
        if job == "wide":
            raise ValueError("needs more shared memory\nthan there is")
        gpu.lost = job == "wild"
        if gpu.lost:
            gpu.synchronize()
        return StubLaunch(gpu, 10)

    found = list(timed_jobs(["wide", "good", "wild", "good"], make))
    assert found[1:] == [
        {"status": "refused", "reason": "ValueError: needs more shared memory"},
        {"time_us": 2.0, "samples": 20},
        {
            "status": "crash",
            "reason": "RuntimeError: CUDA error: an illegal memory access was encountered",
            "fatal": True,
        },
    ]
