"""Products of 16 rows behind a producer, several blocks on one SM, tiles whose row a table gives."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import served_kernels as kernels
from interpreter import BUFFER
from played import HOPPER, same
from triton import knobs

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.hopper_ranking import rank
from warpplan.kernels.compiler.inspection.barrier_check import check_barriers
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.pointers.planned_cut import PlannedCut, planned_cut
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.stage_hook import compile_with, finished_text
from warpplan.kernels.triton_types import AstSource
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

POINTERS = "q_ptr=*bf16, k_ptr=*bf16, v_ptr=*bf16, o_ptr=*fp32, "
SIGNATURES = {
    "decode": f"{POINTERS}scale=fp32, L=i32, stride_z=i32:16, BM=16, BN=64, D=64",
    "listed_blocks": f"{POINTERS}list_ptr=*i32, scale=fp32, count=i32, stride_m=i32:16, BM=64, BN=64, D=64",
    "two_passes": "x_ptr=*bf16, w_ptr=*bf16, out_ptr=*fp32, N=i32:16, stride=i32:16, BM=16, BN=64",
    "row_sums": "x_ptr=*bf16, w_ptr=*bf16, out_ptr=*fp32, N=i32:16, stride=i32:16, BM=16, BN=64",
}
OPTIONS = {"num_warps": 4, "num_stages": 2}
TWO_BLOCKS = HopperStrategy(1, (2,), blocks=2)


def source(name: str) -> AstSource:
    return source_of(getattr(kernels, name), SIGNATURES[name])


@cache
def at_cut(name: str) -> PlannedCut:
    return planned_cut(source(name), HOPPER, OPTIONS)


def memory() -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    return [*(draw.integers(-4, 5, 1 << 15) / 4.0 for _ in range(4)), np.array([2, -1, 0, 3, -2])]


DECODE = {"q_ptr": 0, "k_ptr": BUFFER, "v_ptr": 2 * BUFFER, "o_ptr": 3 * BUFFER, "scale": 0.125, "L": 150,
          "stride_z": 150 * 64}  # fmt: skip


@pytest.mark.parametrize("persistent", [0, 1])
def test_products_of_16_rows_compute_the_same_behind_a_producer(persistent: int) -> None:
    strategy = HopperStrategy(1, (3,), persistent=persistent, blocks=2)
    lowered = same(at_cut("decode").text, strategy, DECODE, memory(), (3, 1, 1), launched=2)
    assert "ttng.warp_group_dot" not in lowered
    assert lowered.count("tt.dot ") == 2


def test_rows_before_the_tensor_are_those_that_a_pointer_would_reach() -> None:
    planned = at_cut("listed_blocks")
    assert not planned.described.unchanged
    middle = 4_096
    values = {"q_ptr": 0, "k_ptr": BUFFER + middle * 2, "v_ptr": 2 * BUFFER + middle * 3, "o_ptr": 3 * BUFFER,
              "list_ptr": 4 * BUFFER, "scale": 0.125, "count": 5, "stride_m": 64}  # fmt: skip
    original = pipeline.cut(source("listed_blocks"), HOPPER, OPTIONS).text
    assert "tt.descriptor_load" not in original
    same(planned.text, HopperStrategy(1, (2,)), values, memory(), (2, 1, 1), original=original)


@pytest.mark.parametrize("name", ["decode", "listed_blocks"])
def test_their_barriers_play(name: str) -> None:
    assert not check_barriers(finished_text(source(name), HOPPER, OPTIONS, TWO_BLOCKS)).findings


def test_blocks_divide_the_registers_of_an_sm(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True
        kernel = compile_with(source("decode"), HOPPER, OPTIONS, TWO_BLOCKS, tmp_path)
    assert re.findall(r"(\d+) bytes spill", capfd.readouterr().out) == ["0", "0"]
    assert re.findall(r"\.maxnreg (\d+)", kernel.asm["ptx"]) == ["128"]
    assert 128 * 32 * kernel.metadata.num_warps * 2 <= H200.registers_per_sm
    assert set(re.findall(r"setmaxnreg\.\w+\S*\s+(\d+)", kernel.asm["ptx"])) == {"232", "24"}
    assert 2 * (kernel.metadata.shared + 1_024) <= H200.smem_bytes_per_sm


def test_what_every_program_reads_for_itself_streams() -> None:
    (loop,) = capture(at_cut("decode").text).loading
    assert [load.streamed for load in loop.of_kind("tma_load")] == [True, True]
    (loop,) = capture(at_cut("listed_blocks").text).loading
    assert [load.streamed for load in loop.of_kind("tma_load")] == [False, False]
    (loop,) = capture(at_cut("row_sums").text).loops
    own = f":{_line('x = tl.load')}"
    streamed = {load.line: load.streamed for load in loop.of_kind("load")}
    assert len(streamed) == 2
    assert all(found == line.endswith(own) for line, found in streamed.items())
    _, inner = capture(at_cut("two_passes").text).loops
    assert [load.streamed for load in inner.of_kind("load")] == [False, False]


def _line(text: str) -> int:
    lines = Path(kernels.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_a_loop_that_streams_is_never_predicted_faster_than_memory() -> None:
    captured = capture(at_cut("decode").text)
    profile = embedded(H200.name)
    ceilings = dict(profile.ceilings)
    rate = ceilings["read_bytes_per_s"].p50 / ceilings["clock_hz_idle"].p50 / H200.sm_count
    found = rank(captured, profile, H200, stages=2)
    assert any(r.scheme is not None for r in found)
    for r in found:
        assert r.predicted_cycles > 32 * 2 * 64 * 64 * 2 / rate  # 32 iterations of two tiles of 64 x 64


def test_a_conversion_behind_a_load_is_the_read_of_its_slot() -> None:
    (loop,) = capture(at_cut("decode").text).loading
    assert not loop.of_kind("convert_layout")
    assert len(loop.of_kind("shared_load")) == 2
    text = finished_text(source("decode"), HOPPER, OPTIONS, HopperStrategy(1, (2,)))
    inside = text[text.index("scf.for") : text.index("scf.yield")]
    assert len(re.findall(r"ttg\.local_load %\w+ : !ttg\.memdesc<64x64xbf16", inside)) == 2
