"""Bank conflicts of copied tiles: counted as Triton counts them, avoided by the slot's layout, and paid for."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from test_copied_loads import at_cut, found
from triton._C.libtriton import gluon_ir, ir
from triton.experimental.gluon.language import _layouts as layouts

from warpplan.kernels.compiler.analysis.capture import Captured
from warpplan.kernels.compiler.analysis.copies.bank_conflicts import (
    PASS_BYTES,
    READ_CYCLES,
    SwizzledLayout,
    passes,
    register_layout,
    slot_layouts,
)
from warpplan.kernels.compiler.analysis.copies.copied_loads import with_copies
from warpplan.kernels.compiler.analysis.copies.slot_layouts import SlotPasses, copied_slot, passes_of, readers_of
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import COPY_LOAD
from warpplan.kernels.compiler.costing.hopper_ranking import HopperModel, rank
from warpplan.kernels.compiler.costing.kernel_model import busiest_unit
from warpplan.kernels.compiler.costing.loop_graph import Shape, cost_of
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.planner.values.device import device
from warpplan.profiler.embedded import embedded

H200 = device("NVIDIA H200")
PROFILE = embedded(H200.name)
BLOCKED = (
    ([1, 4], [1, 32], [8, 1], [1, 0]), ([1, 8], [2, 16], [8, 1], [1, 0]), ([1, 1], [32, 1], [2, 4], [0, 1]),
    ([4, 1], [8, 4], [1, 8], [0, 1]), ([1, 1], [4, 8], [8, 1], [1, 0]),
)  # fmt: skip
NAMES = ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
COPY, BESIDE = Shape(1, 8), Shape(1, 8, specialized=False)


@pytest.mark.skipif(
    not hasattr(gluon_ir.GluonOpBuilder, "get_shared_bank_conflicts"), reason="this Triton counts no bank conflicts"
)
@pytest.mark.parametrize("shape", [(64, 128), (128, 64), (32, 32)])
def test_conflicts_are_those_that_triton_counts(shape: tuple[int, int]) -> None:
    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    for bits, lists, fastest, vector in product((8, 16, 32), BLOCKED, (0, 1), (1, 4)):
        text = f"#ttg.blocked<{{{', '.join(f'{n} = {v}' for n, v in zip(NAMES, lists, strict=True))}}}>"
        tile = register_layout(text, (), 2)
        assert tile is not None
        blocked = layouts.BlockedLayout(*lists)._to_ir(builder)
        for slot in slot_layouts(fastest, shape, bits // 8, vector):
            swizzled = layouts.SwizzledSharedLayout(slot.vec, slot.per_phase, slot.max_phase, list(slot.order))
            counted = builder.get_shared_bank_conflicts(blocked, swizzled._to_ir(builder), list(shape), bits)
            assert passes(tile, slot, shape, bits // 8) == 1 + counted, (text, slot)


def zeros(captured: Captured, kind: str) -> LoopWork:
    """What copies the zeros of the weights, or reads them."""
    (loop,) = captured.at(1).loading
    (work,) = (w for w in loop.of_kind(kind) if w.id.startswith("z"))
    return work


def with_passes(captured: Captured, copied: float, read: float) -> Captured:
    """As if the slot of the zeros had these passes."""
    new = {zeros(captured, kind).id: n for kind, n in (("copy_load", copied), ("shared_load", read))}

    def changed(work: LoopWork) -> LoopWork:
        return replace(work, passes=(new.get(work.id, work.passes[0]), work.passes[1]))

    (level,) = captured.copied
    loops = tuple(replace(loop, work=tuple(map(changed, loop.work))) for loop in level.loops)
    return replace(captured, copied=(replace(level, loops=loops),))


def test_a_tile_copied_along_columns_and_read_along_rows_lies_in_a_swizzled_slot() -> None:
    module = with_copies(parse(at_cut("zero_points", warps=8).text), 1)
    operations = list(module.function.walk())
    (load,) = (op for op in operations if op.name == COPY_LOAD and op.result.startswith("%z"))
    slot = copied_slot(load, readers_of(operations), module.aliases)
    assert slot.max_phase > 1
    found = passes_of(load)
    assert (found.copied, found.read) == (1, 2)  # of a plain slot 1 and 32, or 32 and 1
    assert (found.own_copied, found.own_read) == (32, 1)
    assert f" = {slot}" in specialize(at_cut("zero_points", warps=8).text, HopperStrategy(1, (2,), 8, copies=1))


def test_a_tile_read_as_it_was_copied_lies_in_a_plain_slot() -> None:
    module = with_copies(parse(at_cut("zero_points", warps=8).text), 1)
    operations = list(module.function.walk())
    (load,) = (op for op in operations if op.name == COPY_LOAD and op.result.startswith("%w"))
    assert copied_slot(load, readers_of(operations), module.aliases) == SwizzledLayout((1, 0))
    assert passes_of(load) == SlotPasses()


def test_every_pass_of_a_copy_and_of_a_read_is_paid_for() -> None:
    captured = with_passes(found("zero_points"), 32, 32)
    copied, read = zeros(captured, "copy_load"), zeros(captured, "shared_load")
    once = cost_of(replace(read, passes=(1, 1)), PROFILE.costs, COPY)
    more = 31 * READ_CYCLES * read.parts[0].size / PASS_BYTES
    assert cost_of(read, PROFILE.costs, COPY).occupancy == once.occupancy + more
    assert cost_of(read, PROFILE.costs, BESIDE) == once  # Triton's own slot lies as it is read
    assert cost_of(copied, PROFILE.costs, COPY).issue == 32 * copied.parts[0].size / PASS_BYTES


def test_a_slot_whose_reads_all_meet_in_one_bank_gains_nothing() -> None:
    """Lanes along K copied zeros into a slot that 32 lanes then read from one bank: 22.6 ms instead of 12.8 ms for
    4-bit weights (partitions_h200.json of 2026-11-24), where 1.6 times the speed was predicted."""

    def best(captured: Captured) -> float:
        ranked = rank(captured, PROFILE, H200, stages=3)
        return max((r.gain for r in ranked if r.copies == 1 and r.scheme is not None), default=0.0)

    captured = found("zero_points")
    assert best(with_passes(captured, 1, 32)) < 1 < best(captured)


def test_a_copy_of_the_kernel_left_alone_is_issued_once() -> None:
    captured = found("routed").at(1)
    (loop,) = captured.loading
    graph, _ = HopperModel(captured, PROFILE, H200, 3).graph(loop, BESIDE)
    (copy,) = loop.of_kind("copy_load")
    issued = {op.id: op.issue for op in graph.ops}
    assert issued[copy.id] == 0
    assert issued[f"{copy.id}.issue"] == round(cost_of(copy, PROFILE.costs, BESIDE, "dram").issue)
    assert busiest_unit(graph)
