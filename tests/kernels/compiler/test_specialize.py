"""The lowering of loops, branches and loads: what partitions store together, what is refused with the user's line."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from interpreter import BUFFER, Descriptor
from played import DEPTH, ROWS, cut, cut_module, same, tensors

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir import parsing

TWO = HopperStrategy(2, (2,))
ONE_SLOT = HopperStrategy(2, (1,), in_flight=0)
PLAIN = HopperStrategy(1, (3,))
BLOCK = (("a", (1, 128, 64)), ("b", (128, 64)), ("BN", 128))


def product(**others: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A [128, 448] and B [64, 448], a buffer for C, one for whatever else, and a list of whole numbers."""
    made, data = tensors((ROWS, DEPTH), (64, DEPTH), (ROWS, 64), (ROWS, 1))
    named = {"a": made[0], "b": made[1], "c_ptr": 2 * BUFFER, "d_ptr": 3 * BUFFER}
    return {**named, **others}, [*data, np.arange(10.0, 80.0, 10.0)]


@pytest.mark.parametrize("scheme", [PLAIN, TWO, ONE_SLOT], ids=str)
@pytest.mark.parametrize(("low", "high", "step"), [(0, 0, 1), (3, 4, 1), (0, 7, 3), (2, 7, 2)])
def test_a_loop_of_any_trip_count_and_step(low: int, high: int, step: int, scheme: HopperStrategy) -> None:
    values, buffers = product(low=low, high=high)
    same(cut("between", (("STEP", step),)), scheme, values, buffers, seeds=1)


@pytest.mark.parametrize("scheme", [PLAIN, TWO, HopperStrategy(2, (1,))], ids=str)
@pytest.mark.parametrize(("low", "high", "step"), [(0, 0, 1), (3, 4, 1), (1, 3, 1), (0, 7, 3), (2, 7, 2)])
def test_lookahead_in_a_loop_of_any_trip_count_and_step(low: int, high: int, step: int, scheme: HopperStrategy) -> None:
    made, buffers = tensors((ROWS, 64), (DEPTH, 64), (DEPTH, 64), (ROWS, 64))
    values = dict(zip("qkv", made, strict=False)) | {"c_ptr": 3 * BUFFER, "low": low, "high": high}
    lowered = same(cut("scores", (("STEP", step),)), scheme, values, buffers, seeds=1)
    assert lowered.count("isAsync = true") == 2 * scheme.consumers


@pytest.mark.parametrize("scheme", [PLAIN, TWO, ONE_SLOT], ids=str)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("twice", {"K": DEPTH}),
        ("twice", {"K": 64}),
        ("inside", {"K": 192, "take": 0}),
        ("inside", {"K": 192, "take": 192}),
        ("read_twice", {"K": DEPTH}),
        ("some_blocks", {"wanted": 0b0110100, "count": 6}),
        ("some_blocks", {"wanted": 0, "count": 6}),
        ("wide", {"low": 1, "high": 6}),
        ("made_between", {"a_ptr": 0, "b_ptr": BUFFER, "K": DEPTH}),
        ("searching", {"flag": 4 * BUFFER, "K": 25}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_loops_and_branches_in_every_combination(name: str, arguments: dict[str, int], scheme: HopperStrategy) -> None:
    values, buffers = product(**arguments)
    same(cut(name), scheme, values, buffers, seeds=1)


@pytest.mark.parametrize("scheme", [PLAIN, TWO], ids=str)
def test_a_load_of_more_dimensions_behind_the_loop_takes_no_plan_away(scheme: HopperStrategy) -> None:
    values, buffers = product(K=DEPTH)
    block = Descriptor(3 * BUFFER, (2, ROWS, 64), (ROWS * 64, 64, 1))
    added = np.random.default_rng(7).integers(-4, 5, 2 * ROWS * 64) / 4.0
    values, buffers = values | {"r": block}, [*buffers[:3], added]
    before = cut_module("residual", (("r", (1, 128, 64)),))
    lowered = same(before.text, scheme, values, buffers, seeds=1)
    assert "1x128x64" in rings(lowered)
    finished = pipeline.finish(lowered, before.options, before.capability, pipelined=True)
    assert "ttg.warp_specialize" in str(finished)


def test_a_block_whose_first_dimension_is_dropped_is_read_in_registers() -> None:
    (_, b, _), data = tensors((ROWS, DEPTH), (ROWS, DEPTH), (ROWS, ROWS))
    block = Descriptor(0, (1, ROWS, DEPTH), (0, DEPTH, 1))
    same(cut("thin_rows", BLOCK), PLAIN, {"a": block, "b": b, "c_ptr": 2 * BUFFER, "K": DEPTH}, data, seeds=1)


@pytest.mark.parametrize(
    ("scheme", "launched"),
    [(PLAIN, 0), (TWO, 0), (ONE_SLOT, 0), (HopperStrategy(2, (2,), persistent=1), 2)],
    ids=lambda value: str(value) if isinstance(value, HopperStrategy) else None,
)
@pytest.mark.parametrize("count", [0, 2, 4])
@pytest.mark.parametrize("name", ["early", "early_stored", "early_twice", "either"])
def test_ways_out_of_a_kernel_are_taken_by_every_partition(
    name: str, count: int, scheme: HopperStrategy, launched: int
) -> None:
    made, data = tensors((ROWS, 192), (4 * 64, 192), (ROWS, 4 * 64))
    values = {
        "a": made[0],
        "b": made[1],
        "c": made[2],
        "c_ptr": 2 * BUFFER,
        "flag": 3 * BUFFER,
        "count": count,
        "K": 192,
    }
    flags = np.array([10.0, 30.0, 20.0, 40.0])
    lowered = same(cut(name, (("c", (128, 64)),)), scheme, values, [*data, flags], (4, 1, 1), launched, seeds=1)
    assert " cf." not in lowered


def rings(text: str) -> list[str]:
    """The types of the memory that the block makes for its rings."""
    return re.findall(r"^ +%wp_ring\d+ = ttg.local_alloc : \(\) -> !ttg.memdesc<(\d+x\d+x\d+)", text, re.MULTILINE)


def barriers(text: str) -> dict[str, tuple[int, set[int]]]:
    """Slots of each array of barriers, and how many arrivals end a phase of them."""
    slots = {n: int(d) for n, d in re.findall(r"%wp_((?:full|empty)\d+) = .* -> !ttg.memdesc<(\d+)x1xi64", text)}
    module, place, counts = parsing.parse(text), {}, {name: set() for name in slots}
    for operation in module.function.regions[0].operations:
        if operation.name == "ttg.memdesc_index":
            place[operation.result] = operation.operands[0].removeprefix("%wp_")
        if operation.name == "ttng.init_barrier":
            counts[place[operation.operands[0]]].add(int("".join(operation.tokens).split(",")[1].split(":")[0]))
    return {name: (count, counts[name]) for name, count in slots.items()}


def test_loads_that_are_read_together_share_barriers_that_all_consumers_free() -> None:
    text = specialize(cut("between"), HopperStrategy(2, (3,)))
    assert rings(text) == ["3x128x64", "3x64x64"]
    assert barriers(text) == {"full0": (3, {1}), "empty0": (3, {2})}


def test_loads_that_are_read_apart_have_barriers_of_their_own_and_one_outside_of_loops_is_never_freed() -> None:
    text = specialize(cut("scores"), HopperStrategy(1, (4,)))
    assert rings(text) == ["1x128x64", "4x64x64", "4x64x64"]
    expected = {"full0": (1, {1})} | {f"{n}{i}": (4, {1}) for i in (1, 2) for n in ("full", "empty")}
    assert barriers(text) == expected


def test_loops_that_load_alike_go_on_with_the_same_rings_and_others_have_their_own_depth() -> None:
    assert rings(specialize(cut("twice"), TWO)) == ["2x128x64", "2x64x64"]
    assert rings(specialize(cut("twice"), HopperStrategy(2, (2, 3)))) == ["2x128x64", "2x64x64", "3x128x64", "3x64x64"]
    assert len(rings(specialize(cut("inside"), TWO))) == 4, "a tile held while a loop runs is not that loop's"


def test_loads_in_a_branch_of_a_loop_have_the_depth_of_that_loop() -> None:
    """Rings of a branch within a branch are their own: they advance only where it is taken."""
    assert rings(specialize(cut("some_blocks"), HopperStrategy(2, (4,)))) == ["4x128x64", "4x64x64"] * 2


def test_the_producer_computes_only_what_the_loads_need() -> None:
    text = specialize(cut("between"), TWO)
    (block,) = (operation for operation in parsing.parse(text).walk() if operation.name == "ttg.warp_specialize")
    producer = {operation.name for operation in block.regions[-1].walk()}
    assert producer >= {"ttng.barrier_expect", "ttng.async_tma_copy_global_to_local", "ttng.wait_barrier", "scf.for"}
    assert not any(n.startswith("tt.") or n in ("ttng.warp_group_dot", "ttng.arrive_barrier") for n in producer)
    consumer = {operation.name for operation in block.regions[0].walk()}
    assert consumer >= {"ttng.warp_group_dot", "ttng.arrive_barrier", "tt.store"}
    assert not consumer & {"tt.descriptor_load", "ttng.async_tma_copy_global_to_local"}


@pytest.mark.parametrize(
    ("scheme", "registers"),
    [(HopperStrategy(1, (2,)), [24]), (HopperStrategy(1, (2,), 8), [24]), (HopperStrategy(2, (2,)), [240, 24])],
    ids=str,
)
def test_registers_go_from_the_producer_to_the_consumers(scheme: HopperStrategy, registers: list[int]) -> None:
    text = specialize(cut("between"), scheme)
    found = re.search(r"requestedRegisters = array<i32: ([\d, ]+)>", text)
    assert found is not None
    assert [int(n) for n in found.group(1).split(",")] == registers


@pytest.mark.parametrize(
    ("name", "changed", "operation", "reason", "line"),
    [
        ("spinning", (), "tt.atomic_rmw", "a loop waits for it", "while tl.atomic_add"),
        ("looking", (), "tt.load", "a loop waits for it", "while tl.load"),
        ("swapping", (), "tt.atomic_cas", "programs wait for one another", "tl.atomic_cas"),
        ("watching", (), "tt.load", "programs wait for one another", "volatile=True"),
        ("after_assembly", (), "tt.elementwise_inline_asm", "it may act on anything", "griddepcontrol"),
        ("calling", (), "tt.call", "what the function does is not known", "far_away(K)"),
        ("one_table", (), "tt.descriptor_load", r"also writes \*%table", "tl.dot(a.load"),
        ("its_own_output", (), "tt.descriptor_load", "also writes %a_ptr", "tl.dot(a.load"),
        ("until_loaded", (), "tt.descriptor_load", "in the condition of a loop", "while tl.max"),
        ("no_loop", (), "", "no TMA load in a loop", ""),
    ],
)
def test_what_cannot_be_lowered_is_refused(
    name: str, changed: tuple[tuple[str, Any], ...], operation: str, reason: str, line: str
) -> None:
    with pytest.raises(CannotPlan, match=reason) as refused:
        specialize(cut(name, changed), PLAIN)
    assert refused.value.operation == operation
    if line:
        file, _, number = refused.value.line.partition(":")
        assert line in (Path(__file__).parent / file).read_text().splitlines()[int(number) - 1]


def test_blocks_of_a_cluster_are_refused() -> None:
    with pytest.raises(CannotPlan, match="num_ctas above 1"):
        specialize(cut("between").replace('"ttg.num-ctas" = 1', '"ttg.num-ctas" = 2'), PLAIN)


def test_a_tile_that_is_also_read_in_registers_is_multiplied_from_its_slot() -> None:
    text = specialize(cut("read_twice"), TWO)
    assert text.count("ttg.local_load") == 2
    assert "ttg.local_alloc %" not in text
