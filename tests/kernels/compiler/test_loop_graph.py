"""Captured loops with costs: the planner's graphs are sound, priced from the profile, and solved as they should be."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from cut_kernels import HOPPER, OWN, cut
from zoo import ZOO, source

from warpplan.kernels.compiler.analysis.capture import Body, capture, producer_slice
from warpplan.kernels.compiler.analysis.operation_kinds import classify
from warpplan.kernels.compiler.costing.fusing import JOIN, fuse, steady
from warpplan.kernels.compiler.costing.loop_graph import (
    Shape,
    cost_of,
    estimated,
    in_flight,
    lookahead_product,
    loop_graph,
    pinned,
    registers_for,
)
from warpplan.kernels.compiler.costing.pressure import live_registers, shared_bytes, slot_bytes
from warpplan.kernels.compiler.strategy import stage_hook
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir.parsing import parse_operation
from warpplan.kernels.compiler.ttgir.types import ShapedType
from warpplan.planner.check.plan_check import check
from warpplan.planner.solve import solve
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.device import H200
from warpplan.planner.values.options import PartitionSpec, SolveOptions
from warpplan.profiler.embedded import embedded

COSTS = embedded(H200.name).costs
TWO = Shape(consumers=2, warps=4)
UNPLANNED = ("chased",)
"""Refused: an address that waits for the loop's own product."""
LOADING = [*OWN, *(name for name, specimen in ZOO.items() if specimen.loads)]


def loop(name: str) -> Body:
    return capture(cut(name)).loading[0]


def solved(body: Body, shape: Shape, depth: int) -> tuple[DependenceGraph, SolveOptions]:
    graph = loop_graph(body, shape, COSTS, H200)
    registers = registers_for(shape, H200)
    specs = [PartitionSpec(f"consumer{i}", shape.warps, registers) for i in range(shape.consumers)]
    options = SolveOptions(
        1.0, depth, pinned=pinned(graph, body, shape), partitions=(*specs, PartitionSpec("producer", 1, 24))
    )
    return graph, options


@pytest.mark.parametrize("name", [name for name in LOADING if name not in UNPLANNED])
@pytest.mark.parametrize("specialized", [True, False])
def test_any_captured_loop_is_a_sound_graph(name: str, specialized: bool) -> None:
    for body in capture(cut(name)).loading:
        shape = Shape(1, 4, specialized)
        graph = loop_graph(body, shape, COSTS, H200)
        assert {op.id for op in graph.ops} >= {work.id for work in body.work}
        assert graph.limits.max_partitions == (2 if specialized else 1)
        if specialized:
            homes = pinned(graph, body, shape)
            assert {homes[work.id] for work in body.of_kind("tma_load")} == {1}
            assert {homes[work.id] for work in body.of_kind("dot")} <= {0}


def test_costs_are_the_profiles() -> None:
    x, y, product = loop("matmul").work
    assert cost_of(x, COSTS).occupancy == COSTS.lookup("tma_load", x.buffer_bytes, source="l2").occupancy.p50
    assert cost_of(y, COSTS, source="dram").latency == COSTS.lookup("tma_load", 32768, source="dram").latency.p50
    wgmma = COSTS.lookup("wgmma", 256, dtype="bfloat16", a="shared").occupancy.p50
    # 128 rows are two instructions of 64, BK 64 four of 16; a consumer of two has half of the rows.
    assert cost_of(product, COSTS).occupancy == pytest.approx(8 * wgmma)
    assert cost_of(product, COSTS, TWO).occupancy == pytest.approx(4 * wgmma)
    assert cost_of(x, COSTS, TWO) == cost_of(x, COSTS)


def test_warp_groups_share_out_rows_then_columns() -> None:
    product = loop("matmul").work[-1]
    assert cost_of(product, COSTS, Shape(1, 8)).occupancy == pytest.approx(cost_of(product, COSTS).occupancy)
    narrow = COSTS.lookup("wgmma", 128, dtype="bfloat16", a="shared").occupancy.p50
    assert cost_of(product, COSTS, Shape(2, 8)).occupancy == pytest.approx(8 * narrow)


def test_what_the_profile_lacks_is_estimated_and_said() -> None:
    body = loop("attention")
    assert estimated(body, COSTS) == ()
    assert set(estimated(body, CostTable(()))) == {work.id for work in body.work}
    without = CostTable(tuple(e for e in COSTS.entries if e.kind != "exp2"))
    assert set(estimated(body, without)) == {work.id for work in body.of_kind("sfu")}
    graph = loop_graph(body, TWO, CostTable(()), H200)
    assert all(op.occupancy > 0 for op in graph.ops)
    older = CostTable(tuple(e for e in COSTS.entries if not e.kind.startswith("widen")))
    assert any("sitofp" in name for name in estimated(loop("int8_weights"), older))
    assert not any("sitofp" in name for name in estimated(loop("int8_weights"), COSTS))


def test_an_exponential_costs_the_instructions_that_keep_its_small_results() -> None:
    def parts(name: str) -> dict[str, float]:
        tile = ShapedType("tensor", (64, 64), "f32")
        operation = parse_operation(f"%y = math.{name} %x : tensor<64x64xf32>")
        found = classify(operation, {"%x": tile})
        assert found is not None
        return {part.kind: part.times * part.size for part in found.parts}

    assert parts("exp2") == {"exp2": 4096}
    assert parts("exp") == {"exp2": 4096, "elementwise": 4 * 4096}


def test_one_product_alone_stays_in_flight_and_one_that_is_read_does_not() -> None:
    assert in_flight(loop("matmul"), loop("matmul").work[-1])
    assert not any(in_flight(loop("attention"), work) for work in loop("attention").of_kind("dot"))


def test_a_product_that_needs_only_loads_is_issued_early() -> None:
    """Attention's next scores are multiplied during this iteration's softmax: shorter, for the registers of a tile."""
    body = loop("attention")
    assert lookahead_product(body) == body.of_kind("dot")[0].id
    assert lookahead_product(loop("matmul")) is None
    assert lookahead_product(loop("dual_swiglu")) is None  # both products are carried
    assert live_registers(body, TWO) > live_registers(body, replace(TWO, in_flight=False))
    fused, _ = fuse(body)
    intervals = []
    for shape in (TWO, replace(TWO, in_flight=False)):
        graph, options = solved(fused, shape, 2)
        outcome = solve(graph, options)
        assert outcome.plan is not None, outcome.reason
        assert check(outcome.plan, graph) == ()
        intervals.append(outcome.plan.schedule.ii_cycles)
    assert intervals[0] < intervals[1]


def test_consumers_run_in_order_and_alternate() -> None:
    """The plan of two consumers: each one's operations one after the other, tensor cores taken in turns."""
    body, _ = fuse(loop("attention"))
    graph, options = solved(body, replace(TWO, in_flight=False), 2)
    outcome = solve(graph, options)
    assert outcome.plan is not None, outcome.reason
    assert check(outcome.plan, graph) == ()
    alone, one = loop_graph(body, Shape(1, 8, False, False), COSTS, H200), replace(options, pinned={}, partitions=())
    single = solve(replace(alone, ops=tuple(replace(op, registers=0) for op in alone.ops)), one)
    assert single.plan is not None
    ii = outcome.plan.schedule.ii_cycles
    assert ii < single.plan.schedule.ii_cycles
    start = {p.op: p.cycle for p in outcome.plan.schedule.placements}
    order = [work.id for work in body.work if work.kind != "tma_load"]
    for copy in "01":
        starts = [start[f"{name}@{copy}"] for name in order]
        assert starts == sorted(starts)
        assert starts[-1] < starts[0] + ii


def test_neighbours_on_one_unit_become_one_and_cost_the_same() -> None:
    body = loop("attention")
    fused, home = fuse(body, producer_slice(body))
    assert len(fused.work) < len(body.work)
    assert set(home) == {work.id for work in body.work}
    assert set(home.values()) == {work.id for work in fused.work}
    for unit in ("ALU", "SFU", "TENSOR", "TMA"):
        before = sum(op.occupancy for op in loop_graph(body, TWO, COSTS, H200).ops if op.unit == unit)
        after = sum(op.occupancy for op in loop_graph(fused, TWO, COSTS, H200).ops if op.unit == unit)
        assert after == pytest.approx(before, abs=8)  # each operation is rounded to whole cycles
    assert {line for work in fused.work for line in work.lines} == {line for work in body.work for line in work.lines}
    assert any(JOIN in work.id for work in fused.work)


def test_the_end_of_a_tile_is_left_out_of_the_steady_loop() -> None:
    body = next(b for b in capture(cut("persistent_flattened")).loading)
    assert {work.kind for work in steady(body).work} == {"tma_load", "dot"}


def test_what_a_producer_computes_its_consumers_compute_again() -> None:
    body = loop("chosen_blocks")
    graph = loop_graph(body, Shape(1, 4), COSTS, H200)
    homes = pinned(graph, body, Shape(1, 4))
    (index,) = (work.id for work in body.of_kind("load"))
    assert homes[index] == 1
    assert all(homes[e.src] == homes[e.dst] or graph.by_id[e.src].unit == "TMA" for e in graph.edges)


def test_registers_are_those_of_the_live_tiles() -> None:
    body = loop("attention")
    # 64 rows a consumer: scores 64 registers a thread, output 64, weights in bf16 32, a few row statistics.
    assert 128 <= live_registers(body, replace(TWO, in_flight=False)) <= 176
    assert live_registers(body, Shape(1, 4)) >= 2 * 128
    assert live_registers(loop("matmul"), TWO) == 128
    assert registers_for(TWO, H200) == 240
    assert registers_for(Shape(3, 4), H200) == 160


def test_shared_memory_counts_rings_once_for_loops_that_load_alike() -> None:
    kernel = capture(cut("tutorial_causal"))
    assert len(kernel.loading) == 2
    slot = slot_bytes(kernel.loading[0])
    assert shared_bytes(kernel, (3, 3)) - shared_bytes(kernel, (2, 2)) == slot
    assert shared_bytes(kernel, (3, 2)) - shared_bytes(kernel, (3, 3)) == 2 * slot


@pytest.mark.parametrize("name", ["persistent_split_epilogue", "persistent_flattened"])
def test_shared_memory_is_what_the_compiler_takes(name: str, tmp_path: Path) -> None:
    """Rings, the staged tile of a split epilogue's halves or of a flattened loop's two ends, barriers: an upper bound,
    and a close one."""
    scheme = HopperStrategy(2, (4,))
    compiled = stage_hook.compile_with(source(name), HOPPER, {"num_warps": 4}, scheme, tmp_path)
    bound = shared_bytes(capture(cut(name)), scheme.depths)
    assert compiled.metadata.shared <= bound <= compiled.metadata.shared + 1024
