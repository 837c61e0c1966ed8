"""Deferred waits: which products are issued together and how far each runs on, and operands stored before a loop."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from interpreter import BUFFER
from played import HOPPER, ROWS, cut, own_source, same, tensors, zoo_cut
from played_kernels import box, compared, tensor, unwritten
from zoo import ZOO

from warpplan.kernels.compiler.analysis.copies.invariant_operands import hoist_invariant_operands
from warpplan.kernels.compiler.inspection.finished import finished_text, written_text
from warpplan.kernels.compiler.inspection.player.played_program import BufferArgument, PlayedInputs
from warpplan.kernels.compiler.lowering.hopper.issue_order.deferred_waits import (
    add_deferred_waits,
    vectors_fit,
)
from warpplan.kernels.compiler.lowering.hopper.issue_order.loop_peeling import rewrite_loops
from warpplan.kernels.compiler.lowering.hopper.load_rings import number_loads
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir import control, parsing
from warpplan.kernels.compiler.ttgir.ir import IrOperation

TYPES = (("k", (128, 64)), ("v", (128, 64)), ("q", (64, 64)), ("o", (64, 64)), ("r_ptr", "*fp32"))
PLAIN, WITH_ROW = (*TYPES, ("ROW", 0)), (*TYPES, ("ROW", 1))
BLOCKS = 5
TWO, ONE = HopperStrategy(2, (2,)), HopperStrategy(1, (2,))


def rewritten(text: str) -> list[control.ForLoop]:
    """The loops of the kernel that have this form."""
    module = parsing.parse(text)
    number_loads(module)
    found = []

    def rewrite(operation: IrOperation, loop: control.ForLoop) -> list[IrOperation] | None:
        made = add_deferred_waits(operation, loop)
        if made is not None:
            found.append(loop)
        return made

    rewrite_loops(module.function, rewrite)
    return found


@pytest.mark.parametrize("scheme", [TWO, ONE, HopperStrategy(2, (1,)), HopperStrategy(2, (3,), persistent=1)], ids=str)
@pytest.mark.parametrize("count", [0, 1, BLOCKS])
def test_a_loop_of_any_trip_count_computes_the_same(count: int, scheme: HopperStrategy) -> None:
    made, buffers = tensors((ROWS, 64), (ROWS, 64), (BLOCKS * 64, 64), (BLOCKS * 64, 64), (ROWS, 64), (ROWS, 64))
    values = dict(zip("kvqo", made, strict=False))
    numbers = {"c_ptr": 4 * BUFFER, "d_ptr": 5 * BUFFER, "r_ptr": 0, "count": count}
    same(cut("gradients", PLAIN), scheme, values | numbers, buffers, seeds=1, launched=1)


@pytest.mark.parametrize("scheme", [TWO, ONE], ids=str)
def test_it_computes_the_same_to_the_player_of_asynchronous_products(scheme: HopperStrategy) -> None:
    rows = BLOCKS * 64
    buffers = {"k": tensor(ROWS, 64, 1), "v": tensor(ROWS, 64, 2), "q": tensor(rows, 64, 3), "o": tensor(rows, 64, 4)}
    buffers |= {"c": unwritten(ROWS * 64), "d": unwritten(ROWS * 64)}
    boxes = (box("k", ROWS, 64), box("v", ROWS, 64), box("q", rows, 64), box("o", rows, 64))
    arguments = (*boxes, BufferArgument("c"), BufferArgument("d"), BufferArgument("q"), BLOCKS)
    source = own_source("gradients", PLAIN)
    options = {"num_warps": 4}
    before, after = written_text(source, HOPPER, options), finished_text(source, HOPPER, options, scheme)
    assert not compared(before, after, PlayedInputs(buffers, arguments)).differs


def test_both_products_of_loads_are_issued_before_the_first_is_waited_for() -> None:
    text = specialize(cut("gradients", PLAIN), ONE)
    body = text[text.index("scf.for") :]
    steps = re.findall(r"warp_group_dot |pendings = (\d)", body)[:7]
    # s and ds, wait for s with ds running, dv, wait for ds with dv running, dk, wait for both.
    assert steps == ["", "", "1", "", "1", "", "0"]


def test_without_products_in_flight_every_product_is_waited_for() -> None:
    assert "isAsync" not in specialize(cut("gradients", PLAIN), HopperStrategy(2, (2,), in_flight=0))


def test_loops_of_other_forms_are_left() -> None:
    assert rewritten(cut("gradients", PLAIN))
    for name in ("scores", "between", "one_tile_twice", "twice"):
        assert not rewritten(cut(name))
    for name in ZOO:
        assert not ZOO[name].loads or not rewritten(zoo_cut(name))


def test_small_loads_of_the_next_iteration_need_registers_beside_the_tiles() -> None:
    (loop,) = rewritten(cut("gradients", WITH_ROW))
    # Of 128 rows to 4 warps, a thread has 64 registers of each of four tiles of 64 columns, 32 of an operand of 16
    # bits, and 16 numbers of a vector along the columns, twice.
    needed = 4 * 64 + 32 + 2 * 16 + 24
    assert not vectors_fit(loop, 4, needed - 1)
    assert vectors_fit(loop, 4, needed)


@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.parametrize(("consumers", "ahead"), [(2, True), (1, False)])
def test_where_they_have_none_small_loads_stay_where_they_stand(consumers: int, ahead: bool, in_flight: int) -> None:
    text = specialize(cut("gradients", WITH_ROW), HopperStrategy(consumers, (2,), in_flight=in_flight))
    before, _, loop = text.partition("scf.for")
    assert ("tt.load" in before) == ahead
    assert "tt.load" in loop


def test_what_no_iteration_changes_is_stored_before_the_loop() -> None:
    text = cut("repeated_operand", (("b", "*bf16"),))
    inside = text[text.index("scf.for") :]
    assert re.search(r"ttg.local_alloc %rows", inside), "Triton hoists it itself"
    module = parsing.parse(text)
    hoist_invariant_operands(module)
    before, _, loop = str(module).partition("scf.for")
    assert re.search(r"ttg.local_alloc %rows", before)
    assert not re.search(r"ttg.local_alloc %rows", loop)
    hoist_invariant_operands(module)
    assert str(module).count("local_alloc %rows") == 1


def test_what_an_iteration_makes_stays_in_it() -> None:
    for name in ("scores", "gradients"):
        text = str(parsing.parse(cut(name, PLAIN if name == "gradients" else ())))
        module = parsing.parse(text)
        hoist_invariant_operands(module)
        assert str(module) == text
