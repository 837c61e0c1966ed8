"""What copies cost the producer: measured where the profile has it, estimated and said so where not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from test_copied_loads import found

from warpplan.kernels.compiler.analysis.capture import Body
from warpplan.kernels.compiler.analysis.copies.producer_size import LEAST_REGISTERS, MOST_REGISTERS, producer_registers
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.costing.copy_costs import lookups, registers_of_producer
from warpplan.kernels.compiler.costing.hopper_ranking import HopperModel
from warpplan.kernels.compiler.costing.loop_graph import Shape, cost_of, loop_graph, pinned, registers_for
from warpplan.planner.values.costs import CostEntry, CostTable, OperationCost, Quantiles
from warpplan.planner.values.device import device
from warpplan.profiler.embedded import embedded

H200 = device("NVIDIA H200")
PROFILE = embedded(H200.name)
WITHOUT_GATHERS = CostTable(tuple(e for e in PROFILE.costs.entries if e.kind != "gather_load"))
TILE = 128 * 64 * 2


def loop_of(name: str, level: int = 1) -> Body:
    (loop,) = found(name).at(level).loading
    return loop


def copies(name: str, level: int = 1) -> list[LoopWork]:
    return list(loop_of(name, level).of_kind("copy_load"))


def with_gathers(size: int = TILE) -> CostTable:
    cost = OperationCost(*(Quantiles(each, each + 100, 9) for each in (1500.0, 200.0, 300.0)))
    entry = CostEntry("gather_load", (("bytes", size), ("source", "l2")), cost)
    return CostTable((*WITHOUT_GATHERS.entries, entry))


def test_without_a_measured_gather_the_latency_is_tmas_and_it_is_said() -> None:
    (a,) = copies("routed")
    cost, tma = cost_of(a, WITHOUT_GATHERS), PROFILE.costs.lookup("tma_load", TILE, source="l2")
    assert cost.estimated
    assert tma.latency is not None
    assert cost.issue == 4 * TILE / 16 / 32  # 4 cycles a warp's instruction of 16 bytes a thread
    assert cost.latency == tma.latency.p50 + cost.issue


def test_a_measured_gather_is_taken_and_a_narrower_copy_needs_more_instructions() -> None:
    (a,) = copies("routed")
    cost = cost_of(a, with_gathers())
    assert not cost.estimated
    assert (cost.issue, cost.occupancy, cost.spread) == (300, 300, 100)
    narrow = cost_of(min(copies("scaled", 2), key=lambda work: work.parts[0].size), with_gathers(128 * 4))
    assert narrow.estimated  # one float a thread: four times the instructions of the probe's 16 bytes
    assert narrow.issue == 4 * 300


def test_an_address_is_computed_for_each_copy_not_for_each_element() -> None:
    loop = loop_of("routed")
    (a,) = loop.of_kind("copy_load")
    addresses = [w for w in loop.work if w.kind == "elementwise" and w.shape == a.shape]
    assert addresses
    assert {part.size for w in addresses for part in w.parts} == {128 * 64 // 8}


def test_lookups_are_ahead_and_nothing_of_a_loop_without_any() -> None:
    assert {"slot"} <= {name.partition("@")[0] for name in lookups(loop_of("attended"))}
    assert not lookups(loop_of("routed"))


@pytest.mark.parametrize("name", ["routed", "attended"])
def test_copies_and_their_addresses_are_the_producers(name: str) -> None:
    loop = loop_of(name)
    shape = Shape(2, 4, producer_registers=96)
    graph = loop_graph(loop, shape, PROFILE.costs, H200)
    homes = pinned(graph, loop, shape)
    assert {homes[work.id] for work in loop.of_kind("copy_load")} == {2}
    warps = {op.id: op.min_warps for op in graph.ops}
    assert {warps[work.id] for work in loop.of_kind("copy_load")} == {4}


def test_consumers_have_what_the_producer_leaves() -> None:
    assert producer_registers([]) == LEAST_REGISTERS
    assert producer_registers([64 * 128]) == MOST_REGISTERS
    assert registers_of_producer(found("routed").at(1)) == 72  # 8 copies of 16 bytes a thread
    for registers in (24, 72, 128):
        consumers = registers_for(Shape(2, 4, producer_registers=registers), H200)
        assert 32 * 4 * (registers + 2 * consumers) <= H200.registers_per_sm


def test_a_loop_that_loses_its_pipeline_is_not_free() -> None:
    captured = found("both_gathered")
    copied, waiting = (HopperModel(captured.at(level), PROFILE, H200, 3) for level in (1, 0))
    assert copied.beside(4, 1, pipelined=False) == 0
    assert waiting.beside(4, 1, pipelined=False) > copied.alone().ii_cycles[0]
