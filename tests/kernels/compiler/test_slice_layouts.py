"""Elements a thread of vectors in an accumulator's layout: as Triton compiles their loads, and as facts have them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

triton = pytest.importorskip("triton", reason="needs triton (no GPU) to compile")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from warpplan.kernels.compiler.analysis.capture import capture  # noqa: E402
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import WorkFacts, facts_of  # noqa: E402
from warpplan.kernels.compiler.costing.pipelined.pointer_costs import ELEMENT_LOAD_CYCLES, lsu_cycles  # noqa: E402
from warpplan.kernels.compiler.inspection.signature import source_of  # noqa: E402
from warpplan.kernels.compiler.pipeline.cutting import cut  # noqa: E402
from warpplan.kernels.compiler.ttgir.slice_layouts import elements_of_slice  # noqa: E402

TARGET = GPUTarget("cuda", 90, 32)
WGMMA = "#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 2], instrShape = [16, 64, 32]}>"
MMA = "#mma1 = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [1, 4], instrShape = [16, 8]}>"
BLOCKED = (
    "#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>"
)
ALIASES = (WGMMA, MMA, BLOCKED)


@triton.jit
def scaled_product(
    a_ptr, b_ptr, as_ptr, bs_ptr, c_ptr, K, stride_as, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Block scales: of each row of A, and of 128 columns of B together, a number for every step of K."""
    rows, columns, depth = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * K + depth[None, :]
    b_ptrs = b_ptr + columns[None, :] * K + depth[:, None]
    as_ptrs, bs_ptrs = as_ptr + rows * stride_as, bs_ptr + columns // 128 * stride_as
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _k in range(tl.cdiv(K, BLOCK_K)):
        rows_scale, columns_scale = tl.load(as_ptrs), tl.load(bs_ptrs)
        acc += tl.dot(tl.load(a_ptrs), tl.load(b_ptrs)) * rows_scale[:, None] * columns_scale[None, :]
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
        as_ptrs += 1
        bs_ptrs += 1
    tl.store(c_ptr + rows[:, None] * BLOCK_N + columns[None, :], acc)


@pytest.mark.parametrize(("encoding", "length", "elements"), [
    ("#ttg.slice<{dim = 1, parent = #mma}>", 128, 4), ("#ttg.slice<{dim = 1, parent = #mma}>", 64, 2),
    ("#ttg.slice<{dim = 1, parent = #mma}>", 16, 2), ("#ttg.slice<{dim = 0, parent = #mma}>", 128, 16),
    ("#ttg.slice<{dim = 0, parent = #mma}>", 64, 16), ("#ttg.slice<{dim = 0, parent = #mma}>", 32, 8),
    ("#ttg.slice<{dim = 0, parent = #mma}>", 1, 1), ("#ttg.slice<{dim = 1, parent = #mma}>", 8, 1),
    ("#ttg.slice<{dim = 0, parent = #mma1}>", 64, 4), ("#ttg.slice<{dim = 1, parent = #mma1}>", 16, 2),
    ("#ttg.slice<{dim = 0, parent = #blocked}>", 64, 0), ("#ttg.slice<{dim = 0, parent = #unknown}>", 64, 0),
    ("#blocked", 64, 0),
])  # fmt: skip
def test_a_thread_holds_two_of_eight_columns_and_of_16_rows(encoding: str, length: int, elements: int) -> None:
    assert elements_of_slice(encoding, (length,), ALIASES) == elements


def test_a_tile_is_no_vector() -> None:
    assert elements_of_slice("#ttg.slice<{dim = 0, parent = #mma}>", (2, 64), ALIASES) == 0


@pytest.mark.parametrize(("m", "n", "warps"), [(64, 128, 4), (128, 64, 4), (128, 64, 8), (16, 64, 4), (32, 128, 8)])
def test_facts_count_the_loads_that_triton_compiles(m: int, n: int, warps: int) -> None:
    """Vectors in other layouts are loaded with one instruction each, of at most a warp's lanes an element."""
    blocks = f"K=i32:16, stride_as=i32, BLOCK_M={m}, BLOCK_N={n}, BLOCK_K=128"
    source = source_of(
        scaled_product, f"a_ptr=*fp8e4nv, b_ptr=*fp8e4nv, as_ptr=*fp32, bs_ptr=*fp32, c_ptr=*fp32, {blocks}"
    )
    options = {"num_warps": warps, "num_stages": 3}
    (loop,) = facts_of(capture(cut(source, TARGET, options).text)).loops
    scales = [work for work in loop.work if work.kind == "load" and not work.ahead]
    assert len(scales) == 2
    assert any(work.thread_elements for work in scales)
    compiled = triton.compile(source, target=TARGET, options=options).asm["ptx"]
    assert sum(max(1, work.thread_elements) for work in scales) == len(re.findall(r"\bld\.global\.b32", compiled))


def test_every_load_of_every_warp_holds_the_unit() -> None:
    """Of 64 numbers, 256 bytes, two cycles where they are loaded as they lie."""
    scales = WorkFacts("load", moved_bytes=256)
    assert lsu_cycles(scales, 4) == 2.0
    assert lsu_cycles(replace(scales, thread_elements=16), 4) == 16 * 4 * ELEMENT_LOAD_CYCLES
