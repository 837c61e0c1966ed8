"""Atomic additions of products as TMA reductions: which are, which are not and why, and what is then in memory."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import adding_kernels as kernels
from interpreter import BUFFER
from played import HOPPER, same

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.pressure import shared_bytes
from warpplan.kernels.compiler.inspection.barrier_check import check_barriers
from warpplan.kernels.compiler.inspection.finished import finished_text, written_text
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.pointers.planned_cut import PlannedCut, explained, planned_cut
from warpplan.kernels.compiler.pointers.tma_stores import pointer_stores
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.stage_hook import compile_with
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse

pytestmark = pytest.mark.matrix

SIGNATURE = (
    "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*fp32, d_ptr=*fp32, flag_ptr=*i32, M=i32, N=i32, K=i32, "
    "stride_am=i32:16, stride_bn=i32:16, stride_cm=i32:16, HOW='{}', BM=128, BN=64, BK=64"
)
ROWS, COLUMNS, DEPTH, STRIDE = 136, 56, 250, 256
GRID = (2, 2, 1)
VALUES = {
    "a_ptr": 0, "b_ptr": BUFFER, "c_ptr": 2 * BUFFER, "d_ptr": 3 * BUFFER, "flag_ptr": 4 * BUFFER, "M": ROWS,
    "N": COLUMNS, "K": DEPTH, "stride_am": STRIDE, "stride_bn": STRIDE, "stride_cm": 80,
}  # fmt: skip
ADDED = {"split": 1, "everywhere": 1, "every iteration": 1, "two tensors": 2}
KEPT = {
    "exchanged": "TMA adds fp32 here, and it is exch of f32",
    "what was there": "its result, what was there before, is read",
    "released": "it says release: other programs may go by what it adds",
    "a flag of fractions": "tt.atomic_rmw after it may tell another program of it",
    "polled": "a volatile load after it may wait for another program",
    "for all to see": "its additions are seen beyond the GPU",
    "triangle": "its mask is no bound of one dimension",
    "told": "tt.atomic_rmw after it may tell another program of it",
    "told in the loop": "tt.atomic_rmw after it may tell another program of it",
    "read elsewhere": "the kernel reads or writes the same memory elsewhere",
}


@cache
def at_cut(how: str) -> tuple[str, PlannedCut]:
    source = source_of(kernels.added, SIGNATURE.format(how))
    options = {"num_warps": 4}
    return pipeline.cut(source, HOPPER, options).text, planned_cut(source, HOPPER, options)


def memory() -> list[np.ndarray]:
    draw = np.random.default_rng(17)
    return [*(draw.integers(-4, 5, 1 << 16) / 4.0 for _ in range(4)), np.zeros(4)]


@pytest.mark.parametrize("how", ADDED)
def test_an_addition_that_nobody_waits_for_is_a_reduction_by_tma(how: str) -> None:
    _, planned = at_cut(how)
    assert planned.text.count("tt.descriptor_reduce add") == ADDED[how]
    assert "tt.atomic_rmw" not in planned.text
    assert planned.described.stores == ()


@pytest.mark.parametrize("how", KEPT)
def test_any_other_stays_with_the_reason(how: str) -> None:
    _, planned = at_cut(how)
    assert "tt.descriptor_reduce" not in planned.text
    module = parse(written_text(source_of(kernels.added, SIGNATURE.format(how)), HOPPER, {"num_warps": 4}))
    assert any(KEPT[how] in kept.reason for kept in pointer_stores(unique_names(module.function)).kept)
    told = explained(capture(planned.text), planned.described).stores_kept
    assert any(KEPT[how] in kept.reason and kept.operation == "tt.atomic_rmw" for kept in told)


@pytest.mark.parametrize("persistent", [0, 1])
@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("how", ADDED)
def test_the_same_sums_are_in_memory(how: str, consumers: int, persistent: int) -> None:
    original, planned = at_cut(how)
    values = {**VALUES, **({"M": 256, "N": 64} if how == "everywhere" else {})}
    scheme = HopperStrategy(consumers, (2,), persistent=persistent)
    lowered = same(planned.text, scheme, values, memory(), GRID, launched=3, seeds=2, original=original)
    if persistent or how == "every iteration":
        assert lowered.count("async_tma_reduce") == consumers * ADDED[how]


def test_in_a_loop_the_next_product_does_not_wait_for_the_last_reduction() -> None:
    """A reduction is waited for where its memory is written anew, and at the end."""
    source = source_of(kernels.added, SIGNATURE.format("every iteration"))
    text = finished_text(source, HOPPER, {"num_warps": 4}, HopperStrategy(1, (2,)))
    assert not check_barriers(text).findings
    names = ("ttng.warp_group_dot ", "ttng.async_tma_store_wait", "ttg.local_store", "ttng.async_tma_reduce")
    order = [name for line in text.splitlines() for name in names if name in line]
    assert order == [*names, "ttng.async_tma_store_wait"]


def test_a_kernel_that_loads_by_descriptors_alone_adds_by_tma_too() -> None:
    signature = "a=bf16[128,64], b=bf16[64,64], c_ptr=*fp32, K=i32, stride_cm=i32:16, BM=128, BN=64, BK=64"
    planned = planned_cut(source_of(kernels.added_from_descriptors, signature), HOPPER, {"num_warps": 4})
    assert planned.text.count("tt.descriptor_reduce add") == 1


@pytest.mark.parametrize("persistent", [0, 1])
@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("stores", [0, 1])
@pytest.mark.parametrize("how", ["added and stored", "added beside a store", "converted", "stored as no box"])
def test_shared_memory_is_bounded(how: str, stores: int, consumers: int, persistent: int, tmp_path: Path) -> None:
    """What TMA writes has memory of its own, beside what is on its way to an operand or another layout."""
    stored = "*bf16" if "store" in how and how != "stored as no box" else "*fp32"
    source = source_of(kernels.added, SIGNATURE.format(how).replace("d_ptr=*fp32", f"d_ptr={stored}"))
    options, scheme = {"num_warps": 4}, HopperStrategy(consumers, (2,), persistent=persistent, stores=stores)
    taken = compile_with(source, HOPPER, options, scheme, tmp_path).metadata.shared
    at_cut = planned_cut(source, HOPPER, options)
    captured = explained(capture(at_cut.text), at_cut.described)
    assert captured.stored_bytes == {"*bf16": 128 * 64 * 2}.get(stored, 128 * 64 * 4 if "box" in how else 0)
    assert captured.stores_left == (how == "stored as no box")
    bound = shared_bytes(captured, scheme.depths, consumers=consumers, warps=4, storing=bool(stores))
    # A change of layout before a store may go piece by piece, and without a walk its memory is used again.
    assert taken <= bound <= taken + 1024 + 2 * 128 * 64 * 4
    if persistent and (stores or how == "converted") and how != "stored as no box":
        assert bound <= taken + 1024
