"""Kernels played in numpy: lowered ones compute what the written ones do, and what goes wrong is said."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import gathering_producer as gather
from played import cut
from played_kernels import DEPTH, box, compared, finished, product_inputs, tensor, unwritten

from warpplan.kernels.compiler.inspection.player.played_program import (
    BufferArgument,
    DescribedArgument,
    PlayedInputs,
    play,
    ready,
)
from warpplan.kernels.compiler.inspection.player.tiles.element_types import decoded, element_type
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault, NotPlayed
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

SCHEMES = (
    HopperStrategy(1, (3,)), HopperStrategy(2, (1,)), HopperStrategy(2, (2,), in_flight=0),
    HopperStrategy(2, (2,), persistent=1),
)  # fmt: skip
BF16 = element_type("bf16")


def values(data: np.ndarray, rows: int, columns: int) -> np.ndarray:
    return np.asarray(decoded(data.view(np.uint16), BF16)).reshape(rows, columns)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_product_played_as_written_is_the_product(scheme: HopperStrategy) -> None:
    inputs = product_inputs(0, 6)
    text = finished("between", scheme)
    outcome = play(text, inputs, (1,), seed=4, launched=1 if scheme.persistent else None)
    found = outcome.buffers["c"].view(np.float32).reshape(128, 64)
    a, b = values(inputs.buffers["a"], 128, DEPTH), values(inputs.buffers["b"], 64, DEPTH)
    np.testing.assert_allclose(found, a @ b.T, rtol=1e-4, atol=1e-3)
    assert outcome.waits > 10
    launched = 1 if scheme.persistent else None
    assert str(compared(cut("between"), text, inputs, launched=launched)) == "equal"


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_scores_that_go_into_the_next_product_are_equal(scheme: HopperStrategy) -> None:
    rows = 7 * 64 - 16
    buffers = {"q": tensor(128, 64, 1), "k": tensor(rows, 64, 2), "v": tensor(rows, 64, 3), "c": unwritten(128 * 64)}
    arguments = (box("q", 128, 64), box("k", rows, 64), box("v", rows, 64), BufferArgument("c"), 0, 7)
    launched = 1 if scheme.persistent else None
    inputs = PlayedInputs(buffers, arguments)
    assert str(compared(cut("scores"), finished("scores", scheme), inputs, launched=launched)) == "equal"


def stored_by_tma() -> PlayedInputs:
    rows = 64 * 5
    c = np.full(128 * rows * 2, 0xFF, np.uint8)  # NaN in bf16
    buffers = {"a": tensor(128, DEPTH, 1), "b": tensor(rows, DEPTH, 2), "c": c}
    boxes = (box("a", 128, DEPTH), box("b", rows, DEPTH), box("c", 128, rows))
    return PlayedInputs(buffers, (*boxes, 4, DEPTH))


@pytest.mark.parametrize("launched", [1, 2, 3, 4, 5])
def test_what_tma_stores_from_its_staging_memory_is_equal_for_any_number_of_programs(launched: int) -> None:
    changed = (("c", (128, 64)),)
    before, text = (
        cut("early_stored", changed),
        finished("early_stored", HopperStrategy(2, (2,), persistent=1), changed),
    )
    inputs = stored_by_tma()
    wanted = play(before, inputs, (5,), fences=False)
    for seed in range(4):
        found = play(text, inputs, (5,), seed, launched)
        assert np.array_equal(found.buffers["c"], wanted.buffers["c"])
    untouched = values(wanted.buffers["c"], 128, 320)[:, 256:]
    assert np.isnan(untouched).all()  # the fifth program has nothing to do


def test_what_lies_beyond_a_tensor_is_zero_and_what_lies_in_front_of_it_too() -> None:
    inputs = product_inputs(-1, 7)
    found = play(finished("between", SCHEMES[0]), inputs, (1,)).buffers["c"]
    assert np.array_equal(found, play(finished("between", SCHEMES[0]), product_inputs(0, 6), (1,)).buffers["c"])


def gathered() -> tuple[PlayedInputs, np.ndarray]:
    steps, draw = 5, np.random.default_rng(3)
    order = draw.permutation(96)[:64].astype(np.int32)
    buffers = {"table": tensor(96, 64 * steps, 1), "order": order.view(np.uint8), "weights": tensor(64, 64 * steps, 2)}
    weights = DescribedArgument("weights", (64, 64 * steps), (64 * steps, 1), "bf16")
    arguments = (BufferArgument("table"), BufferArgument("order"), 64 * steps, weights, BufferArgument("out"), steps)
    wanted = values(buffers["table"], 96, 64 * steps)[order] @ values(buffers["weights"], 64, 64 * steps).T
    return PlayedInputs({**buffers, "out": unwritten(64 * 64)}, arguments), wanted


@pytest.fixture(scope="module")
def gather_text() -> str:
    return gather.finished_gather()


def test_rows_gathered_by_cp_async_are_there_when_their_barrier_says_so(gather_text: str) -> None:
    inputs, wanted = gathered()
    for seed in range(6):
        found = play(gather_text, inputs, (1,), seed).buffers["out"].view(np.float32).reshape(64, 64)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("removed", "kind"),
    [("ttng.fence_async_shared", "fence"), ("ttng.async_copy_mbarrier_arrive", "hang"), ("{noIncrement}", "barrier")],
)
def test_a_gathering_producer_without_one_of_its_parts_is_a_fault(gather_text: str, removed: str, kind: str) -> None:
    lines = [line for line in gather_text.split("\n") if removed not in line or removed == "{noIncrement}"]
    broken = "\n".join(lines).replace(f" {removed}", "") if removed == "{noIncrement}" else "\n".join(lines)
    assert broken != gather_text
    with pytest.raises(KernelFault) as caught:
        play(broken, gathered()[0], (1,), seed=2)
    assert caught.value.kind in (kind, "hang")


def test_an_access_out_of_bounds_names_tensor_and_line() -> None:
    inputs = product_inputs(0, 2)
    small = PlayedInputs({**inputs.buffers, "c": inputs.buffers["c"][:-4]}, inputs.arguments)
    with pytest.raises(KernelFault, match=r"bounds: a store to byte 32764 of c, which has 32764.*lowered_kernels.py"):
        play(finished("between", SCHEMES[0]), small, (1,))


def test_a_descriptor_of_unaligned_rows_is_a_fault() -> None:
    inputs = product_inputs(0, 2)
    a = DescribedArgument("a", (128, 100), (100, 1), "bf16")
    with pytest.raises(KernelFault, match="multiples of 16 bytes, not stride of 200 bytes"):
        play(finished("between", SCHEMES[0]), PlayedInputs(inputs.buffers, (a, *inputs.arguments[1:])), (1,))


def test_an_operation_that_is_not_known_is_named_with_its_line() -> None:
    text = cut("between").replace("ttg.convert_layout", "ttg.convert_something")
    with pytest.raises(NotPlayed, match=r"not played: ttg.convert_something \(lowered_kernels.py:\d+\)"):
        play(text, product_inputs(0, 2), (1,), fences=False)


@pytest.mark.parametrize(("assembly", "known"), [("mov.b32 $0, $1;", True), ("mov.b32 $0, 0;", False)])
def test_of_inline_assembly_a_move_alone_is_known(assembly: str, known: bool) -> None:
    text = cut("between")
    scores = next(line for line in text.splitlines() if "ttg.convert_layout" in line)
    name, _, rest = scores.partition(" = ttg.convert_layout ")
    head = f'{name}.0 = ttg.convert_layout {rest}\n{name} = tt.elementwise_inline_asm "{assembly}" '
    kind = rest.partition(" -> ")[2]
    move = head + '{constraints = "=r,r", packed_element = 1 : i32, pure = false} ' + f"{name.strip()}.0 : "
    played = text.replace(scores, move + f"{kind.partition(' loc')[0]} -> {kind}")
    inputs = product_inputs(0, 2)
    if known:
        moved, plain = (play(each, inputs, (1,), fences=False).buffers["c"] for each in (played, text))
        assert np.array_equal(moved, plain)
    else:
        with pytest.raises(NotPlayed, match=r"not played: tt\.elementwise_inline_asm"):
            play(played, inputs, (1,), fences=False)


def test_a_program_that_waits_for_the_next_one_lets_it_begin_and_hangs_without_it() -> None:
    code = ready(cut("relay", (("out", "*i32"),)))
    numbers = {"flag": np.zeros(4, np.uint8), "out": np.zeros(4, np.uint8)}
    inputs = PlayedInputs(numbers, (BufferArgument("flag"), BufferArgument("out")))
    assert play(code, inputs, (2,)).buffers["out"].view(np.int32) == 7
    with pytest.raises(KernelFault, match="hang"):
        play(code, inputs, (1,))
