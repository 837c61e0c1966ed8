from __future__ import annotations

from dataclasses import replace

import pytest

from warpplan.kernels.gemm.candidates import structures
from warpplan.kernels.gemm.graph import loop_graph, plan_candidate, robust_depth
from warpplan.kernels.gemm.space import ELEMENT_BYTES, GemmConfig, violations
from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import MissingCosts
from warpplan.planner.solve import effective_ii, solve
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import H100, H200
from warpplan.planner.values.options import PartitionSpec, SolveOptions

SINGLE = GemmConfig("single", 128, 256, 64, 8, 3)
COOPERATIVE = GemmConfig("cooperative", 128, 256, 64, 4, 3)
PINGPONG = GemmConfig("pingpong", 64, 256, 64, 4, 4)
PIPELINED = GemmConfig("pipelined", 128, 256, 64, 8, 3)
EACH = (SINGLE, COOPERATIVE, PINGPONG, PIPELINED)


@pytest.mark.parametrize("dtype", sorted(ELEMENT_BYTES))
def test_every_structure_has_an_optimal_plan_that_passes_the_checker(costs, dtype):
    found = structures(dtype, H200)
    assert len(found) > 40
    for config in found:
        outcome = plan_candidate(config, dtype, H200, costs)
        assert outcome.status == "optimal", config
        assert outcome.plan is not None
        assert check(outcome.plan, loop_graph(config, dtype, H200, costs)) == (), config
        assert outcome.plan.smem_bytes <= config.smem_bytes(ELEMENT_BYTES[dtype]), config
        assert {c.depth for c in outcome.plan.channels} == {config.depth}
        assert effective_ii(outcome.plan, config.depth) == outcome.plan.schedule.ii_cycles


def test_only_a_second_consumer_hides_promotion(costs):
    """Of one consumer the tensor cores idle while it adds; of two, one adds while the other multiplies."""
    single = GemmConfig("single", 64, 128, 128, 4, 6, promoted=True)
    cooperative = GemmConfig("cooperative", 128, 128, 128, 4, 6, promoted=True)
    for config in (single, cooperative):
        outcome = plan_candidate(config, "float8_e4m3fn", H200, costs)
        assert outcome.plan is not None
        graph = loop_graph(config, "float8_e4m3fn", H200, costs)
        assert check(outcome.plan, graph) == ()
        busy = sum(op.occupancy for op in graph.ops if op.unit == "TENSOR")
        assert (outcome.plan.schedule.ii_cycles == busy) == (config.consumers == 2)


@pytest.mark.parametrize("config", EACH, ids=lambda c: c.scheme)
def test_a_large_tile_is_bound_by_the_tensor_cores(costs, config):
    """4 steps of 16 over K, consumer_rows / 64 instructions each, 128 cycles an instruction of 256 columns."""
    assert not violations(config, "bfloat16", H200)
    outcome = plan_candidate(config, "bfloat16", H200, costs)
    assert outcome.plan is not None
    assert outcome.plan.schedule.ii_cycles == 4 * (config.block_m // 64) * 128
    assert outcome.reason.startswith("unit TENSOR")


def test_the_scheme_decides_the_partitions(costs):
    def partitions(config: GemmConfig) -> list[tuple[str, int, int, tuple[str, ...]]]:
        plan = plan_candidate(config, "bfloat16", H200, costs).plan
        assert plan is not None
        return [(p.name, p.warps, p.registers, p.ops) for p in plan.partitions]

    assert partitions(SINGLE) == [
        ("consumer0", 8, 240, ("mma0", "release0")),
        ("producer", 1, 24, ("load_a", "load_b")),
    ]
    assert partitions(COOPERATIVE) == [
        ("consumer0", 4, 240, ("mma0", "release0")),
        ("consumer1", 4, 240, ("mma1", "release1")),
        ("producer", 1, 24, ("load_a0", "load_a1", "load_b")),
    ]
    assert partitions(PINGPONG) == [
        ("consumer0", 4, 240, ("mma0", "release0")),
        ("consumer1", 4, 240, ()),
        ("producer", 1, 24, ("load_a", "load_b")),
    ]
    assert partitions(PIPELINED) == [("default", 8, 240, ("load_a", "load_b", "mma0", "release0"))]


def test_a_slot_is_held_until_the_multiply_after_it_is_issued(costs):
    """From the load's issue to the release that follows the next multiply's issue, and the hand-off back."""
    plan = plan_candidate(SINGLE, "bfloat16", H200, costs).plan
    graph = loop_graph(SINGLE, "bfloat16", H200, costs)
    assert plan is not None
    at = {p.op: p.cycle for p in plan.schedule.placements}
    ii = plan.schedule.ii_cycles
    full, empty = 50, 60  # hand-offs to the consumer and back
    assert {e.handoff for e in graph.edges if e.src == "load_a"} == {full, empty}
    for channel in plan.channels:
        assert at["mma0"] >= at[channel.name] + graph.by_id[channel.name].latency + full
        assert channel.live_cycles >= at["mma0"] + ii + graph.by_id["mma0"].issue + empty - at[channel.name]
        assert channel.live_cycles >= at["mma0"] + graph.by_id["mma0"].latency + full - at[channel.name]


def test_a_ring_too_short_for_the_load_lengthens_the_interval(costs):
    intervals = []
    for depth in (2, 3, 4, 6):
        plan = plan_candidate(replace(SINGLE, block_n=128, depth=depth), "bfloat16", H200, costs).plan
        assert plan is not None
        intervals.append(plan.schedule.ii_cycles)
    assert intervals == sorted(intervals, reverse=True)
    assert intervals[0] > intervals[-1] == 512


@pytest.mark.parametrize("config", EACH, ids=lambda c: c.scheme)
@pytest.mark.parametrize("source", ["l2", "dram"])
def test_the_robust_depth_is_the_fewest_slots_that_keep_the_interval(costs, config, source):
    """Solved again with rings of every depth, each latency at its 90th percentile."""
    config = replace(config, block_n=128)
    robust = robust_depth(config, "bfloat16", H200, costs, source)
    graph = loop_graph(config, "bfloat16", H200, costs, source)
    limits = replace(graph.limits, smem_bytes=1 << 24)
    late = tuple(replace(op, latency=op.latency + op.spread, spread=0) for op in graph.ops)
    pinned = {op.id: config.consumers if op.unit == "TMA" else int(op.id[-1]) for op in graph.ops}
    specs = plan_candidate(replace(config, depth=2), "bfloat16", H200, costs).plan.partitions
    intervals = []
    for depth in range(1, robust + 3):
        options = SolveOptions(
            depth=depth,
            pinned=pinned if config.specialized else {},
            partitions=tuple(PartitionSpec(p.name, p.warps, p.registers) for p in specs),
        )
        outcome = solve(replace(graph, ops=late, limits=limits), options)
        intervals.append(outcome.plan.schedule.ii_cycles if outcome.plan else None)
    own = intervals[-1]
    assert own == 4 * (config.block_m // 64) * 64
    assert intervals[robust - 1 :] == [own] * 3
    assert intervals[robust - 2] is None or intervals[robust - 2] > own


def test_a_noisier_load_needs_a_deeper_ring(costs):
    noisy = CostTable(
        tuple(
            replace(e, cost=replace(e.cost, latency=replace(e.cost.latency, p90=e.cost.latency.p50 + 1500)))
            if e.kind == "tma_load"
            else e
            for e in costs.entries
        )
    )
    config = replace(SINGLE, block_n=128)
    graph = loop_graph(config, "bfloat16", H200, noisy)
    assert {op.spread for op in graph.ops if op.unit == "TMA"} == {1500}
    steady, late = (robust_depth(config, "bfloat16", H200, c) for c in (costs, noisy))
    assert late >= steady + 2  # 1,500 cycles are most of three iterations of 512


def test_the_depth_asked_for_plays_no_part_in_the_robust_one(costs):
    depths = {robust_depth(replace(SINGLE, depth=d), "bfloat16", H200, costs) for d in (2, 3, 8)}
    assert len(depths) == 1


def test_staging_inside_the_ring_takes_no_bytes_of_its_own(costs):
    own = replace(COOPERATIVE, epilogue_split=4)
    shared = replace(own, staging="ring")
    plans = [plan_candidate(c, "bfloat16", H200, costs).plan for c in (own, shared)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert [b.shares_with for b in plans[1].buffers if b.name.startswith("staging")] == ["load_a0", "load_a1"]
    assert plans[0].smem_bytes - plans[1].smem_bytes == 2 * own.staging_bytes


def test_two_resident_blocks_share_the_registers_and_the_memory(costs):
    config = GemmConfig("single", 64, 128, 64, 4, 4, ctas_per_sm=2)
    graph = loop_graph(config, "bfloat16", H200, costs)
    assert (graph.limits.registers, graph.limits.smem_bytes) == (32_768, 233_472 // 2 - 1_024)


def test_another_device_with_the_same_limits_has_the_same_plan(costs):
    plans = [plan_candidate(SINGLE, "bfloat16", device, costs).plan for device in (H200, H100)]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("kind", ["tma_load", "wgmma", "handoff"])
def test_missing_costs_are_named(costs, kind):
    partial = CostTable(tuple(e for e in costs.entries if e.kind != kind))
    with pytest.raises(MissingCosts, match=rf"no measured cost for {kind}\("):
        plan_candidate(SINGLE, "bfloat16", H200, partial)


def test_a_cost_measured_in_part_is_named(costs):
    partial = CostTable(
        tuple(replace(e, cost=replace(e.cost, occupancy=None)) if e.kind == "wgmma" else e for e in costs.entries)
    )
    with pytest.raises(MissingCosts, match=r"wgmma\(n=256, dtype=bfloat16, a=shared\) occupancy"):
        plan_candidate(SINGLE, "bfloat16", H200, partial)
