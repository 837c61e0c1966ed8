"""Overlap of the last multiply with the next iteration's first: what is rewritten or left, and ptxas's machine code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import triton
from interpreter import BUFFER
from played import DEPTH, HOPPER, ROWS, cut, same, tensors, zoo_cut
from played_kernels import box, compared, tensor, unwritten
from zoo import ZOO, source

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.inspection.player.played_program import BufferArgument, PlayedInputs
from warpplan.kernels.compiler.lowering.hopper.issue_order.loop_peeling import rewrite_loops
from warpplan.kernels.compiler.lowering.hopper.issue_order.overlap import HELD_REGISTERS, WAIT_AGAIN, add_overlap
from warpplan.kernels.compiler.lowering.hopper.load_rings import number_loads
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.stage_hook import compile_with
from warpplan.kernels.compiler.ttgir import control, parsing
from warpplan.kernels.compiler.ttgir.ir import IrOperation

TWO = HopperStrategy(2, (2,))
HELD = re.compile(r"ttg\.local_load .* -> tensor<64x64xbf16, #ttg\.dot_op<\{opIdx = 0")


def rewritten(text: str, threads: int = 128) -> list[list[IrOperation]]:
    """What each loop of the kernel becomes, where it is rewritten."""
    module = parsing.parse(text)
    number_loads(module)
    found = []

    def rewrite(operation: IrOperation, loop: control.ForLoop) -> list[IrOperation] | None:
        made = add_overlap(operation, loop, threads)
        if made is not None:
            found.append(made)
        return made

    rewrite_loops(module.function, rewrite)
    return found


@pytest.mark.parametrize("scheme", [TWO, HopperStrategy(2, (1,)), HopperStrategy(2, (3,), persistent=1)], ids=str)
@pytest.mark.parametrize(("low", "high", "step"), [(0, 0, 1), (3, 4, 1), (1, 3, 1), (0, 7, 3), (2, 7, 2)])
def test_a_loop_of_any_trip_count_and_step(low: int, high: int, step: int, scheme: HopperStrategy) -> None:
    made, buffers = tensors((ROWS, 64), (DEPTH, 64), (DEPTH, 64), (ROWS, 64))
    values = dict(zip("qkv", made, strict=False)) | {"c_ptr": 3 * BUFFER, "low": low, "high": high}
    lowered = same(cut("scores", (("STEP", step),)), scheme, values, buffers, seeds=1, launched=1)
    assert lowered.count("{pendings = 1 : i32}") == scheme.consumers
    assert WAIT_AGAIN not in lowered


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("scheme", [TWO, HopperStrategy(2, (1,))], ids=str)
@pytest.mark.parametrize(("name", "loops"), [("weighted_scores", 1), ("loaded_left", 1), ("one_tile_twice", 0)])
def test_other_loads_of_the_loop_keep_their_iteration(
    name: str, loops: int, scheme: HopperStrategy, count: int
) -> None:
    made, buffers = tensors((ROWS, 64), (DEPTH, 64), (DEPTH, 64), (ROWS, DEPTH), (ROWS, 64), (ROWS, 1))
    values = dict(zip("qkva", made, strict=False)) | {"c_ptr": 4 * BUFFER, "d_ptr": 5 * BUFFER, "count": count}
    assert len(rewritten(cut(name))) == loops  # a tile of both products would be read in two iterations
    same(cut(name), scheme, values, buffers, seeds=1)


def test_one_consumer_uses_lookahead_instead() -> None:
    assert "{pendings = 1 : i32}" not in specialize(cut("scores"), HopperStrategy(1, (2,)))


@pytest.mark.parametrize("name", ["between", "read_twice", "twice"])
def test_a_loop_with_one_multiply_is_left(name: str) -> None:
    assert not rewritten(cut(name))


@pytest.mark.parametrize("name", ["dual_swiglu", "linear_attention"])
def test_other_loops_with_several_multiplies_are_left(name: str) -> None:
    assert not rewritten(zoo_cut(name))


@pytest.mark.parametrize("name", ["tutorial_causal", "alibi_and_bias"])
def test_attention_as_people_write_it_is_rewritten(name: str) -> None:
    text = zoo_cut(name)
    assert len(rewritten(text)) == text.count("scf.for")


def test_an_accumulator_that_is_stored_meanwhile_is_not_put_off() -> None:
    text = cut("scores")
    yielded = next(line for line in text.split("\n") if "scf.yield" in line)
    dots = [line.split()[0] for line in text.split("\n") if "ttng.warp_group_dot " in line]
    assert dots[-1] in yielded
    kind = re.search(
        r"-> (tensor<\S+, #\w+>)", next(line for line in text.split("\n") if line.split()[:1] == dots[-1:])
    )
    assert kind is not None
    reads = f"      %again = arith.addf {dots[-1]}, {dots[-1]} : {kind.group(1)} loc(#loc)\n"
    assert rewritten(text)
    assert not rewritten(text.replace(yielded, reads + yielded))


def test_the_query_stays_in_registers_where_they_are_enough() -> None:
    assert len(HELD.findall(specialize(cut("scores"), TWO))) == 2
    needed = (64 * 64 * 16 + 64 * 64 * 32 + 64 * 64 * 16 + 64 * 64 * 32) * 2  # 128 rows: q, s, p and acc
    enough = needed // (32 * HELD_REGISTERS)
    for threads, held in ((enough, False), (enough + 1, True)):
        (operations,) = rewritten(cut("scores"), threads)
        assert (operations[0].name == "ttg.local_load") == held


def test_the_softmax_stands_between_the_two_waits_in_machine_code(tmp_path: Path) -> None:
    kernel = compile_with(source("tutorial_causal"), HOPPER, ZOO["tutorial_causal"].options, TWO, tmp_path)
    (tmp_path / "kernel.cubin").write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    code = subprocess.run([tool, "-c", tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"HGMMA|DEPBAR\.LE gsb0, 0x[01]|MUFU\.EX2", code)
    pieces = " ".join(names).split("DEPBAR.LE gsb0, 0x1")[1:]
    assert len(pieces) == 2  # two consumers; a loop over the diagonal has one block, whose last multiply is alone
    for piece in pieces:
        overlapped = piece.split("DEPBAR.LE gsb0, 0x0")[0]
        assert "HGMMA" not in overlapped
        assert overlapped.count("MUFU.EX2") >= 32  # a thread has 32 of 64 rows of 64 scores, or more


def test_a_query_in_registers_is_loaded_before_its_slot_is_given_back() -> None:
    """The loop over a diagonal of one block reads it once, which is when Triton moves the load to its reader."""
    scheme = HopperStrategy(2, (2,), persistent=1)
    made = pipeline.cut(source("tutorial_causal", BN=128), HOPPER, {"num_warps": 4})
    lowered = scheme.lower(made.text)
    assert lowered.count("ttng.fence_async_shared") == 4  # of each consumer one for the query, one for its TMA store
    finished = pipeline.finish(lowered, made.options, made.capability, pipelined=True)
    rows = 3 * 128
    buffers = {name: tensor(rows, 64, seed) for seed, name in enumerate("qkv")}
    buffers |= {"o": tensor(rows, 64, 4), "m": unwritten(rows)}
    boxes = [box(name, rows, 64) for name in "qkvo"]
    inputs = PlayedInputs(buffers, (*boxes, BufferArgument("m"), rows, 0.125))
    assert len(HELD.findall(str(finished))) == 4
    assert str(compared(made.text, str(finished), inputs, grid=(3, 1), launched=1)) == "equal"
