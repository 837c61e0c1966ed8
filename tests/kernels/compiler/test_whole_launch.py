"""Loops counted at a launch, and what a launch takes by them."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from cut_kernels import cut

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.analysis.operation_kinds import Product
from warpplan.kernels.compiler.costing.hopper_ranking import rank
from warpplan.kernels.compiler.costing.whole_launch import LaunchRates, LaunchSize, iterations, launch_bound, waves
from warpplan.kernels.compiler.sizes.loop_trips import Trips, loop_trips, trip_counts
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.kernels.compiler.ttgir.types import ShapedType
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded

PROFILE = embedded(H200.name)

TEMPLATE = """module {
  tt.func public @loops(%n: i32 loc(unknown), %p: !tt.ptr<i32> loc(unknown)) {
    %c1 = arith.constant 1 : i32 loc(unknown)
    %step = arith.constant STEP : i32 loc(unknown)
    %x = tt.get_program_id x : i32 loc(unknown)
    %count = tt.get_num_programs x : i32 loc(unknown)
    %first = arith.muli %x, %step : i32 loc(unknown)
    %less = arith.cmpi slt, %x, %n : i32 loc(unknown)
    %end = arith.select %less, %n, %first : i32 loc(unknown)
    scf.for %i = %first to %end step %count  : i32 {
      %more = arith.addi %i, %step : i32 loc(unknown)
      scf.for %j = %i to %more step %c1  : i32 {
        scf.yield loc(unknown)
      } loc(unknown)
      %read = tt.load %p : !tt.ptr<i32> loc(unknown)
      scf.for %k = %c1 to %read step %c1  : i32 {
        scf.yield loc(unknown)
      } loc(unknown)
      scf.yield loc(unknown)
    } loc(unknown)
    tt.return loc(unknown)
  } loc(unknown)
} loc(unknown)
"""


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 9), st.integers(1, 60))
def test_loops_are_counted_as_programs_run_them(n: int, step: int, programs: int) -> None:
    function = parse(TEMPLATE.replace("STEP", str(step))).function
    outer, inner, unknown = trip_counts(function, {"n": n}, (programs,))
    runs = [len(range(x * step, n if x < n else x * step, programs)) for x in range(programs)]
    assert outer is not None
    assert outer.most == max(runs)
    assert outer.mean == pytest.approx(sum(runs) / programs)
    assert inner == Trips(float(step), step)
    assert unknown is None, "it is read from memory"


@pytest.mark.parametrize("ends", ["%read, %end", "%end, %read"])
def test_a_loop_that_memory_may_end_sooner_is_counted_by_what_is_known(ends: str) -> None:
    least = f"%least = arith.minsi {ends} : i32 loc(unknown)\n      scf.for %k = %c1 to %least"
    function = parse(TEMPLATE.replace("scf.for %k = %c1 to %read", least).replace("STEP", "1")).function
    assert trip_counts(function, {"n": 50}, (4,))[2] == Trips(49.0, 49)
    assert loop_trips(function)[2].bounds is None, "at another size of the launch it may be memory that ends it"


def test_an_argument_that_is_not_given_counts_nothing() -> None:
    assert trip_counts(parse(TEMPLATE.replace("STEP", "2")).function, {}, (4,)) == (None, None, None)


def test_programs_that_all_take_alike_fill_whole_waves() -> None:
    even, uneven = (Trips(8.0, 8),), (Trips(8.5, 16),)
    assert [waves(LaunchSize(p, even), 132) for p in (1, 132, 133, 264)] == [1, 1, 2, 2]
    assert waves(LaunchSize(198, uneven), 132) == 1.5
    assert [iterations(uneven[0], LaunchSize(p, uneven), 132) for p in (100, 1000)] == [16, 8.5]


@cache
def counted(name: str, warps: int, m: int, n: int, k: int, block: tuple[int, int]) -> tuple[float, list[float]]:
    """The bound, and what is predicted for each strategy, of one of the kernels at a launch."""
    text = cut(name, warps)
    grid = (-(-m // block[0]), -(-n // block[1]))
    size = LaunchSize(grid[0] * grid[1], trip_counts(parse(text).function, {"M": m, "N": n, "K": k, "L": k}, grid))
    found = rank(capture(text), PROFILE, H200, launch=size)
    assert all(r.launch_us is not None for r in found)
    return launch_bound(parse(text).function, size, PROFILE, H200), [r.launch_us or 0.0 for r in found]


@pytest.mark.parametrize("name", ["matmul", "attention"])
def test_no_prediction_is_below_the_bound_and_larger_launches_take_longer(name: str) -> None:
    bound, times = counted(name, 8, 4096, 4096, 4096, (128, 256))
    assert 0 < bound <= min(times)
    longer = counted(name, 8, 4096, 4096, 8192, (128, 256))
    assert longer[0] > 1.8 * bound
    assert min(longer[1]) > 1.8 * min(times)


def test_a_launch_without_sizes_is_predicted_by_equal_work() -> None:
    text = cut("matmul", 8)
    unknown = LaunchSize(512, trip_counts(parse(text).function, {}, (512,)))
    (best, *_) = rank(capture(text), PROFILE, H200, launch=unknown)
    twice = rank(capture(text), PROFILE, H200, launch=LaunchSize(1024, unknown.trips))[0]
    assert best.launch_us == twice.launch_us
    assert launch_bound(parse(text).function, unknown, PROFILE, H200) <= (best.launch_us or 0.0)
    assert rank(capture(text), PROFILE, H200)[0].launch_us is None


def test_a_launch_takes_as_long_as_its_tensors() -> None:
    rates = LaunchRates.of(PROFILE, H200)
    small, large = (rates.time_us(1e5, 1e9, LaunchSize(132, (), size)) for size in (0, 10**10))
    assert small < 100 < large
    assert large > 1e6 * 10**10 / rates.dram_bytes_per_s
    bare = LaunchRates.of(Profile(PROFILE.identity, PROFILE.costs, ()), H200)
    assert bare.time_us(H200.boost_clock_hz, 1e12, LaunchSize(1, (), 1)) == pytest.approx(1e6)


def test_types_that_were_not_measured_multiply_at_the_rate_of_bfloat16_byte_for_byte() -> None:
    def flops(element: str) -> float:
        kind = ShapedType("tensor", (128, 128), element)
        return LaunchRates.of(PROFILE, H200, Product(128, 128, 128, kind, "shared")).tensor_flops

    measured = {name: rate.p50 for name, rate in PROFILE.ceilings}
    assert flops("f16") == measured["tensor_flops_float16"]
    assert flops("f8E5M2") == measured["tensor_flops_float8_e4m3fn"]
    assert flops("i8") == 2 * flops("bf16") == 4 * flops("f32") == 2 * measured["tensor_flops_bfloat16"]
