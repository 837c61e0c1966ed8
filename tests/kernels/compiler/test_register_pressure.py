"""Registers: what a loop's values take at once, what blocks and partitions have of them, and why nothing fits."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from cut_kernels import cut

from warpplan.kernels.compiler.analysis.capture import Body, capture
from warpplan.kernels.compiler.analysis.loop_work import Flow, LoopWork
from warpplan.kernels.compiler.analysis.work_groups import register_bits
from warpplan.kernels.compiler.costing.fusing import fuse
from warpplan.kernels.compiler.costing.hopper_ranking import schemes
from warpplan.kernels.compiler.costing.kernel_model import loads_for_products
from warpplan.kernels.compiler.costing.loop_graph import Shape
from warpplan.kernels.compiler.costing.misfit import misfit
from warpplan.kernels.compiler.costing.pressure import live_registers, shared_bytes
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.register_shares import (
    PRODUCER_REGISTERS,
    consumer_registers,
    starting_registers,
)
from warpplan.kernels.compiler.ttgir.types import parse_type
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

TILE = 128 * 128 * 32
"""Bits of a tile of 128 x 128 in fp32: 128 registers a thread of four warps."""


def work(id: str, kind: str = "elementwise", results: tuple[tuple[str, int], ...] = ()) -> LoopWork:
    return LoopWork(id, kind, ("arith.addf",), id, (id,), (128, 128), (), register_bits=sum(n for _, n in results),
                    results=results)  # fmt: skip


def body(works: list[LoopWork], flows: list[Flow], held: tuple[int, int] = (0, 0)) -> Body:
    return Body("loop", "a.py:1", "scf.for", "", tuple(works), tuple(flows), 128, None, held)


def masked() -> Body:
    """``both`` leaves a tile for ``next`` and a mask, one bit an element, for ``last``."""
    return body(
        [work("both", results=(("%tile", TILE), ("%mask", TILE // 32))), work("next", "dot", (("%next", TILE),)),
         work("last")],
        [Flow("both", "next", values=("%tile",)), Flow("both", "last", values=("%mask",)),
         Flow("next", "last", values=("%next",))],
    )  # fmt: skip


def test_each_value_of_a_run_lives_until_its_own_last_reader() -> None:
    assert live_registers(masked(), Shape(1, 4)) == 128 + 4
    assert live_registers(masked(), Shape(1, 8)) == 64 + 2


def test_values_that_are_not_told_apart_live_as_long_as_the_longest() -> None:
    loop = masked()
    lumped = replace(loop, work=tuple(replace(w, results=()) for w in loop.work))
    assert live_registers(lumped, Shape(1, 4)) == 128 + 4 + 128


def test_a_mask_does_not_keep_its_tile_in_registers_for_the_solver() -> None:
    fused, _ = fuse(masked())
    kinds = {(flow.src, flow.dst): flow.kind for flow in fused.flows}
    assert kinds["both", "last"] == "token"
    assert kinds["both", "next"] == "data"


def test_tiles_from_outside_stay_in_registers_and_rows_are_shared_out() -> None:
    loop = body([work("one")], [], held=(TILE, TILE // 4))
    assert live_registers(loop, Shape(1, 4)) == 128 + 32
    assert live_registers(loop, Shape(2, 4)) == 64 + 32


def test_a_loop_keeps_the_tiles_that_it_reads_from_outside() -> None:
    (loop,) = capture(cut("attention")).loading
    assert loop.held_bits == (0, 0)  # its queries are in shared memory


def test_pointers_take_one_for_each_sixteen_bytes() -> None:
    layout = "#blocked"
    assert register_bits(parse_type(f"tensor<64x64x!tt.ptr<bf16>, {layout}>")) == 64 * 64 * 64 // 8
    assert register_bits(parse_type(f"tensor<64x64x!tt.ptr<f32>, {layout}>")) == 64 * 64 * 64 // 4
    assert register_bits(parse_type(f"tensor<64x64xbf16, {layout}>")) == 64 * 64 * 16
    assert register_bits(parse_type("!ttg.memdesc<64x64xbf16, #shared, #smem>")) == 0


@given(st.sampled_from((4, 8, 12)), st.sampled_from((1, 4, 8)), st.integers(1, 4))
def test_no_division_of_registers_takes_more_than_an_sm_has(consumers: int, producer: int, blocks: int) -> None:
    start = starting_registers(consumers, producer, blocks)
    warps = consumers + -(-producer // 4) * 4
    assert start % 8 == 0
    assert blocks * 32 * warps * start <= H200.registers_per_sm
    consumer = consumer_registers(consumers, producer, blocks)
    assert consumer % 8 == 0
    assert consumer <= 240
    assert consumer * consumers + PRODUCER_REGISTERS * (warps - consumers) <= start * warps


def test_loads_that_reach_a_product_are_those_that_are_pipelined() -> None:
    loop = body(
        [work("a", "load"), work("wide"), work("scale", "load"), work("dot", "dot"), work("acc")],
        [Flow("a", "wide"), Flow("wide", "dot"), Flow("dot", "acc"), Flow("scale", "acc"),
         Flow("acc", "dot", 1, accumulates=True)],
    )  # fmt: skip
    assert loads_for_products(loop) == {"a"}


def test_what_does_not_fit_registers_says_how_many_and_of_what() -> None:
    found = misfit(capture(cut("matmul", 8)), [Shape(1, 4)], H200)
    assert found.reason.startswith("1 x 4 warps need 280 registers a thread, of 240: acc@")
    assert found.operation.endswith("warp_group_dot")
    assert found.line


def test_what_does_not_fit_shared_memory_says_what_takes_it() -> None:
    kernel = capture(cut("matmul", 8))
    small = replace(H200, smem_bytes_per_block=shared_bytes(kernel, (1,)) - 1)
    found = misfit(kernel, [Shape(1, 8)], small)
    assert f"of {small.smem_bytes_per_block:,}: 49,152 are loaded in an iteration" in found.reason
    assert found.operation.endswith("warp_group_dot")


def test_a_kernel_that_fits_nowhere_is_refused_with_operation_and_line() -> None:
    small = replace(H200, smem_bytes_per_block=40_000, smem_bytes_per_sm=41_024)
    with pytest.raises(CannotPlan, match="one slot of each ring takes") as refused:
        schemes(capture(cut("matmul", 8)), embedded(H200.name), small)
    assert refused.value.operation.endswith("warp_group_dot")
    assert refused.value.line
