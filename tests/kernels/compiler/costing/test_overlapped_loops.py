"""Loops whose last product is put off by an iteration, as the planner sees them and as they are lowered."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent.parent))

from played import cut, zoo_cut
from zoo import ZOO

from warpplan.kernels.compiler.analysis.capture import Body, capture
from warpplan.kernels.compiler.analysis.loop_work import Flow
from warpplan.kernels.compiler.costing.hopper_ranking import rank
from warpplan.kernels.compiler.costing.loop_graph import Shape, lookahead_product, loop_graph, pinned
from warpplan.kernels.compiler.costing.overlapped_loops import _put_off, overlapped
from warpplan.kernels.compiler.costing.pressure import live_registers
from warpplan.kernels.compiler.lowering.hopper.issue_order.loop_peeling import rewrite_loops
from warpplan.kernels.compiler.lowering.hopper.issue_order.overlap import add_overlap
from warpplan.kernels.compiler.lowering.hopper.load_rings import number_loads
from warpplan.kernels.compiler.ttgir import parsing
from warpplan.planner.check.plan_check import check
from warpplan.planner.solve import solve
from warpplan.planner.values.device import H200
from warpplan.planner.values.options import SolveOptions
from warpplan.profiler.embedded import embedded

TWO = Shape(consumers=2, warps=4)
OWN = ("scores", "weighted_scores", "loaded_left", "one_tile_twice", "between", "read_twice", "twice")


def is_lowered_so(text: str) -> bool:
    module = parsing.parse(text)
    number_loads(module)
    found = []
    rewrite_loops(module.function, lambda operation, loop: found.append(add_overlap(operation, loop, 128)))
    return any(made is not None for made in found)


def texts() -> list[tuple[str, str]]:
    loading = [name for name, specimen in ZOO.items() if specimen.loads]
    return [*((name, cut(name)) for name in OWN), *((name, zoo_cut(name)) for name in loading)]


def test_the_loops_that_are_costed_so_are_those_that_are_lowered_so() -> None:
    found = {name: is_lowered_so(text) for name, text in texts()}
    costed = {name: any(overlapped(loop, TWO).overlapped for loop in capture(text).loading) for name, text in texts()}
    assert costed == found
    assert set(found.values()) == {True, False}


@pytest.mark.parametrize(
    "shape", [Shape(1, 4), replace(TWO, in_flight=False), Shape(1, 8, specialized=False)], ids=str
)  # fmt: skip
def test_other_shapes_leave_the_loop_in_its_order(shape: Shape) -> None:
    loop = capture(zoo_cut("tutorial_causal")).loading[0]
    assert overlapped(loop, shape) is loop


def attention() -> Body:
    return capture(zoo_cut("tutorial_causal")).loading[0]


def test_the_softmax_stands_between_the_products_and_the_rescaling() -> None:
    loop = overlapped(attention(), TWO)
    kinds = [work.kind for work in loop.work if work.kind != "tma_load"]
    assert kinds[:2] == ["dot", "dot"]
    assert {work.id for work in loop.work} == {work.id for work in attention().work}
    assert loop.work[-1].names == ("arith.truncf",)
    assert lookahead_product(loop) is None
    assert overlapped(loop, TWO) is loop


def in_order(loop: Body) -> bool:
    """Whether everything comes behind what it needs of its own iteration."""
    place = {work.id: number for number, work in enumerate(loop.work)}
    return all(place[flow.src] < place[flow.dst] for flow in loop.flows if not flow.distance)


def test_overlapped_loops_are_in_program_order() -> None:
    loops = [loop for _, text in texts() for loop in capture(text).loading if in_order(loop)]
    made = [overlapped(loop, TWO) for loop in loops]
    assert any(loop.overlapped for loop in made)
    assert all(map(in_order, made))


def test_addresses_of_gathered_tiles_come_before_their_loads() -> None:
    loop = attention()
    loads = loop.of_kind("tma_load")
    address = replace(loop.of_kind("elementwise")[0], id="address")
    gathered = replace(
        loop, work=(address, *loop.work), flows=(*loop.flows, *(Flow("address", load.id) for load in loads))
    )
    made = overlapped(gathered, TWO)
    assert made.overlapped
    assert in_order(gathered)
    assert in_order(made)


def test_a_tile_whose_address_is_a_product_stays_where_it_is() -> None:
    loop = attention()
    first, load = loop.of_kind("dot")[0], loop.of_kind("tma_load")[-1]
    chosen = replace(loop, flows=(*loop.flows, Flow(first.id, load.id)))
    assert overlapped(chosen, TWO) is chosen


def test_a_sum_that_is_written_behind_the_last_product_takes_no_more_registers() -> None:
    loop = attention()
    product, total = loop.of_kind("dot")[-1], loop.of_kind("reduce")[-1]
    behind = replace(loop, work=(*(work for work in loop.work if work not in (product, total)), product, total))
    serial = replace(TWO, in_flight=False)
    assert live_registers(behind, serial) > live_registers(loop, serial)
    assert live_registers(behind, TWO) == live_registers(loop, TWO)


def test_the_query_that_stays_in_registers_is_counted() -> None:
    before, after = attention(), overlapped(attention(), TWO)
    first = before.of_kind("dot")[0].product
    assert first is not None
    assert after.held_bits[0] - before.held_bits[0] == first.m * first.k * 16
    assert after.held_bits[1] == before.held_bits[1]


def test_its_graph_is_solved_and_checked() -> None:
    loop = overlapped(attention(), TWO)
    graph = loop_graph(loop, TWO, embedded(H200.name).costs, H200)
    outcome = solve(graph, SolveOptions(2.0, 3, pinned=pinned(graph, loop, TWO)))
    assert outcome.plan is not None
    assert check(outcome.plan, graph) == ()
    serial = loop_graph(attention(), replace(TWO, in_flight=False), embedded(H200.name).costs, H200)
    other = solve(serial, SolveOptions(2.0, 3, pinned=pinned(serial, attention(), TWO)))
    assert other.plan is not None
    assert outcome.plan.schedule.ii_cycles < other.plan.schedule.ii_cycles


def test_attention_is_ranked_with_its_products_overlapped() -> None:
    best = rank(capture(zoo_cut("tutorial_causal")), embedded(H200.name), H200)[0]
    assert best.scheme is not None
    assert "in flight" in str(best.scheme)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6, unique=True), st.data())
def test_putting_an_operation_off_keeps_the_distance_around_every_cycle(ring: list[int], data: st.DataObject) -> None:
    names = [str(n) for n in ring]
    flows = [Flow(a, b, data.draw(st.integers(0, 2))) for a, b in pairwise([*names, names[0]])]
    off = [_put_off(flow, names[0]) for flow in flows]
    assert sum(flow.distance for flow in off) == sum(flow.distance for flow in flows)
    assert [(f.src, f.dst) for f in off] == [(f.src, f.dst) for f in flows]
