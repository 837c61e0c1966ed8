"""Loops whose products are issued together, as the planner sees them and as they are lowered."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent.parent))

from played import cut, zoo_cut
from test_deferred_waits import PLAIN, WITH_ROW
from zoo import ZOO

from warpplan.kernels.compiler.analysis.capture import Body, capture
from warpplan.kernels.compiler.costing.deferred_loops import as_issued, issued_together, products_at_once
from warpplan.kernels.compiler.costing.hopper_ranking import rank
from warpplan.kernels.compiler.costing.loop_graph import Shape, early_vectors, lookahead_product
from warpplan.kernels.compiler.lowering.hopper.issue_order.deferred_waits import add_deferred_waits
from warpplan.kernels.compiler.lowering.hopper.issue_order.loop_peeling import rewrite_loops
from warpplan.kernels.compiler.lowering.hopper.load_rings import number_loads
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir import parsing
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

TWO, ONE = Shape(consumers=2, warps=4), Shape(consumers=1, warps=4)
TEXTS = {"gradients": lambda: cut("gradients", PLAIN), "with a row": lambda: cut("gradients", WITH_ROW)}
OTHERS = ("scores", "weighted_scores", "loaded_left", "one_tile_twice", "between", "read_twice", "twice")


def is_lowered_so(text: str) -> bool:
    module = parsing.parse(text)
    number_loads(module)
    found = []
    rewrite_loops(module.function, lambda operation, loop: found.append(add_deferred_waits(operation, loop)))
    return any(made is not None for made in found)


def texts() -> dict[str, str]:
    own = {name: make() for name, make in TEXTS.items()} | {name: cut(name) for name in OTHERS}
    return own | {name: zoo_cut(name) for name, specimen in ZOO.items() if specimen.loads}


def test_the_loops_that_are_costed_so_are_those_that_are_lowered_so() -> None:
    found = {name: is_lowered_so(text) for name, text in texts().items()}
    costed = {name: any(issued_together(loop) for loop in capture(text).loading) for name, text in texts().items()}
    assert costed == found
    assert set(found.values()) == {True, False}


def gradients(with_row: bool = False) -> Body:
    return capture(cut("gradients", WITH_ROW if with_row else PLAIN)).loading[0]


def test_the_second_product_of_loads_stands_behind_the_first() -> None:
    loop = as_issued(gradients(), TWO)
    assert [work.id.partition("@")[0] for work in loop.work if work.kind == "dot"] == ["p", "ds", "dv", "dk"]
    assert {work.id for work in loop.work} == {work.id for work in gradients().work}
    assert lookahead_product(loop) is None


def test_other_shapes_leave_the_loop_in_its_order() -> None:
    for shape in (replace(TWO, in_flight=False), Shape(1, 8, specialized=False)):
        assert as_issued(gradients(), shape).work == gradients().work
        assert not as_issued(gradients(), shape).overlapped


@pytest.mark.parametrize("in_flight", [True, False])
def test_small_loads_come_ahead_where_they_have_room(in_flight: bool) -> None:
    loop = gradients(with_row=True)
    vectors = early_vectors(loop)
    assert vectors
    wide, narrow = (as_issued(loop, replace(shape, in_flight=in_flight)) for shape in (TWO, ONE))
    assert early_vectors(wide) == vectors
    assert not early_vectors(narrow)


def test_ranked_in_flight_and_not_in_flight_the_faster_first() -> None:
    ranked = rank(capture(cut("gradients", PLAIN)), embedded("NVIDIA H200"), H200)
    schemes = [r.scheme for r in ranked if isinstance(r.scheme, HopperStrategy)]
    assert {scheme.in_flight for scheme in schemes} == {0, 1}
    assert schemes[0].in_flight


def test_without_partitions_every_product_has_registers_of_its_own() -> None:
    """Two tiles of 128 x 64, two of 128 x 64 that are carried, and an operand of 128 x 64 in bf16."""
    alone = Shape(warps=4, specialized=False)
    assert products_at_once(gradients(), alone) == 4 * 64 + 32
    assert products_at_once(gradients(), replace(alone, warps=8)) == 2 * 64 + 16
    assert products_at_once(capture(cut("scores")).loading[0], alone) == 0
