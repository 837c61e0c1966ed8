"""A loaded tile that lies along another dimension than its product reads is stored element by element, and priced
so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import triton
import triton.language as tl
from cut_kernels import HOPPER
from triton.compiler import ASTSource

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.analysis.capture import Captured, capture
from warpplan.kernels.compiler.analysis.operation_kinds import ELEMENT_PASSES
from warpplan.kernels.compiler.costing import hopper_ranking
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import facts_of
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

pytestmark = pytest.mark.matrix
M, N, K = 128, 128, 128


@triton.jit
def by_columns(a, b, c_ptr, stride, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(steps):
        acc = tl.dot(a.load([0, k * BK]), b.load([0, k * BK]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * stride + tl.arange(0, BN)[None, :], acc)


@triton.jit
def by_rows(a, b, c_ptr, stride, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(steps):
        acc = tl.dot(a.load([0, k * BK]), b.load([k * BK, 0]), acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * stride + tl.arange(0, BN)[None, :], acc)


@triton.jit
def by_pointers(a_ptr, b_ptr, c_ptr, stride, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    rows, along, columns = tl.arange(0, BM), tl.arange(0, BK), tl.arange(0, BN)
    for k in range(steps):
        a = tl.load(a_ptr + rows[:, None] * stride + along[None, :] + k * BK)
        b = tl.load(b_ptr + (along[:, None] + k * BK) * stride + columns[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * stride + columns[None, :], acc)


def captured(kernel: Any, dtype: str) -> Captured:
    boxes = {"a": f"tensordesc<{dtype}[{M},{K}]>", "b": f"tensordesc<{dtype}[{N},{K}]>"}
    if kernel is by_rows:
        boxes["b"] = f"tensordesc<{dtype}[{K},{N}]>"
    if kernel is by_pointers:
        boxes = {"a_ptr": f"*{dtype}", "b_ptr": f"*{dtype}"}
    signature = {**boxes, "c_ptr": "*fp32", "stride": "i32", "steps": "i32"}
    constants = {"BM": M, "BN": N, "BK": K}
    signature |= dict.fromkeys(constants, "constexpr")
    names = [parameter.name for parameter in kernel.params]
    aligned = [["tt.divisibility", 16]]
    attributes = {(names.index(name),): aligned for name in names if name.endswith("_ptr") or name == "stride"}
    source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, attributes)
    return capture(pipeline.cut(source, HOPPER, {"num_warps": 8}).text)


def stores(of: Captured) -> list[float]:
    """Passes of each store to shared memory in the loop."""
    (loop,) = of.loops
    return [part.times for work in loop.work for part in work.parts if part.kind == "shared_store"]


@pytest.mark.parametrize("kernel", [by_columns, by_rows, by_pointers])
@pytest.mark.parametrize("dtype", ["bf16", "fp8e4nv"])
def test_only_8_bit_operands_that_lie_along_columns_are_stored_one_by_one(kernel: Any, dtype: str) -> None:
    of = captured(kernel, dtype)
    wanted = [ELEMENT_PASSES] if dtype == "fp8e4nv" and kernel is not by_columns else []
    assert [passes for passes in stores(of) if passes > 1] == wanted
    facts = facts_of(of)
    kept = [part.times for work in facts.loops[0].work for part in work.parts if part.kind == "shared_store"]
    assert [passes for passes in kept if passes > 1] == wanted


def test_it_is_what_such_a_kernel_takes() -> None:
    """As it is and under every plan: the tensor cores wait for the stores."""
    profile = embedded(H200.name)
    rows, columns = (
        {each.scheme: each.predicted_cycles for each in hopper_ranking.rank(captured(kernel, "fp8e4nv"), profile, H200)}
        for kernel in (by_rows, by_columns)
    )
    assert len(rows) > 2
    assert all(rows[scheme] > 2 * columns[scheme] for scheme in rows.keys() & columns.keys())
