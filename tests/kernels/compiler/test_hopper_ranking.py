"""Which specialisation pays: the ranking of schemes for captured kernels."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from cut_kernels import OWN, cut
from zoo import ZOO

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.hopper_ranking import rank, schemes
from warpplan.kernels.compiler.costing.kernel_model import RankedStrategy
from warpplan.kernels.compiler.costing.pressure import shared_bytes
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import B200, H200
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded

PROFILE = embedded(H200.name)
READABLE = [*OWN, *ZOO]


@cache
def ranked(name: str, warps: int = 4) -> tuple[RankedStrategy, ...]:
    return rank(capture(cut(name, warps)), PROFILE, H200)


def test_attention_wants_two_consumers_that_alternate() -> None:
    best = ranked("attention")[0]
    assert best.scheme is not None
    assert (best.scheme.consumers, best.scheme.warps, best.scheme.in_flight) == (2, 4, 1)
    assert best.gain > 1.2
    assert len(best.plans) == len(best.ii_cycles) == 1


def test_a_product_loop_wants_a_ring_that_hides_the_loads() -> None:
    best = ranked("matmul", 8)[0]
    assert best.scheme is not None
    assert best.scheme.in_flight == 1
    assert best.scheme.depths[0] >= 3
    assert best.ii_cycles[0] == 1024  # 8 wgmma of 128 cycles: the tensor cores are never idle
    # 128 x 256 in fp32 is 256 registers a thread of one warp group: too many.
    assert all(r.scheme is None or r.scheme.consumers * r.scheme.warps >= 8 for r in ranked("matmul", 8))


def test_a_ring_of_too_few_slots_is_what_binds() -> None:
    for found in ranked("matmul", 8):
        if found.plans:
            stretched = found.ii_cycles[0] > found.plans[0].schedule.ii_cycles
            assert ("slots: too few to load ahead" in found.reason) == (stretched and found.scheme is not None)


@pytest.mark.parametrize("name", READABLE)
def test_every_kernel_is_ranked_and_what_is_offered_fits(name: str) -> None:
    kernel = capture(cut(name))
    found = ranked(name)
    (alone,) = (r for r in found if r.scheme is None)
    assert alone.gain == 1
    assert alone.reason
    times = [round(r.predicted_cycles) for r in found]
    assert times == sorted(times)
    rows = [loop.rows for way in (kernel, *kernel.copied) for loop in way.loading if loop.rows]
    products = [work.product for loop in kernel.loading for work in loop.of_kind("dot") if work.product is not None]
    wide = [product.m for product in products if product.tensor_cores == "wgmma"]
    for r in found:
        if r.scheme is None:
            continue
        assert all(count % (64 * r.scheme.consumers) == 0 for count in rows)
        assert r.scheme.warps == 4 or all(count >= 16 * r.scheme.consumers * r.scheme.warps for count in wide)
        assert len(r.scheme.depths) == len(kernel.at(r.copies).loading)
        assert shared_bytes(kernel.at(r.copies), r.scheme.depths) <= H200.smem_bytes_per_block
        assert len(r.plans) == len(kernel.at(r.copies).loading)


@pytest.mark.parametrize("name", ["swiglu", "scan", "dropout", "chased"])
def test_a_kernel_that_no_partition_helps_is_left_alone_with_the_reason(name: str) -> None:
    (alone,) = ranked(name)
    assert alone.scheme is None
    with pytest.raises(CannotPlan) as refused:
        schemes(capture(cut(name)), PROFILE, H200)
    assert str(refused.value) == alone.reason


def test_schemes_that_are_clearly_slower_are_not_offered() -> None:
    offered = schemes(capture(cut("transposed_copy")), PROFILE, H200)
    slower = [r for r in ranked("transposed_copy") if r.gain < 0.8]
    assert slower
    assert all(r.gain >= 0.8 for r in offered)
    assert len(offered) + len(slower) == len(ranked("transposed_copy"))
    assert sum(r.scheme is None for r in offered) == 1


def test_the_power_limit_leaves_less_to_gain_than_cycles_do() -> None:
    found = ranked("matmul", 8)
    alone = next(r.predicted_cycles for r in found if r.scheme is None)
    endless = replace(PROFILE, ceilings=tuple(c for c in PROFILE.ceilings if not c[0].startswith("tensor_flops")))
    unlimited = rank(capture(cut("matmul", 8)), endless, H200)
    assert [r.gain for r in unlimited] == pytest.approx([alone / r.predicted_cycles for r in found])
    for limited, free in zip(found, unlimited, strict=True):
        assert min(1, free.gain) <= limited.gain <= max(1, free.gain)
    assert found[0].gain < unlimited[0].gain


def test_more_stages_leave_less_to_gain() -> None:
    kernel = capture(cut("matmul", 8))
    assert rank(kernel, PROFILE, H200, stages=3)[0].gain > rank(kernel, PROFILE, H200, stages=4)[0].gain


def test_the_ranking_is_deterministic() -> None:
    assert rank(capture(cut("tutorial_causal")), PROFILE, H200) == ranked("tutorial_causal")


def test_a_profile_without_anything_is_estimated_from() -> None:
    bare = Profile(PROFILE.identity, CostTable(()), ())
    best = rank(capture(cut("attention")), bare, H200)[0]
    assert best.scheme is not None
    assert best.scheme.consumers == 2


@pytest.mark.parametrize("warps", [16, 32])
def test_more_warps_than_the_planner_takes_are_left_alone_with_what_to_do(warps: int) -> None:
    (alone,) = ranked("matmul", warps)
    assert (alone.scheme, alone.launch_us) == (None, None)
    assert alone.reason.startswith(f"cannot be ranked: num_warps is {warps}; set it to 4 or 8: ")
    with pytest.raises(CannotPlan, match=f"num_warps is {warps}; set it to 4 or 8") as error:
        schemes(capture(cut("matmul", warps)), PROFILE, H200)
    assert "min_warps" not in str(error.value)


def test_other_than_hopper_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected a Hopper GPU"):
        rank(capture(cut("attention")), PROFILE, B200)
