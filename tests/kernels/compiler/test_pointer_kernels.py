"""Kernels that load through pointers, planned: recognised or refused with the reason; lowered, the same kernels."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import pointer_kernels as kernels
import triton
from interpreter import BUFFER
from played import HOPPER, same
from triton import knobs
from triton.compiler import make_backend

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.pressure import shared_bytes
from warpplan.kernels.compiler.inspection.barrier_check import check_barriers
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.pointers.planned_cut import PlannedCut, explained, planned_cut
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.stage_hook import compile_with
from warpplan.kernels.triton_compat import release

pytestmark = pytest.mark.matrix

TILE = "BM=128, BN=64, BK=64"
PRODUCT = f"a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, M=i32, N=i32, K=i32:16, stride_am=i32:16, stride_cm=i32, {TILE}"
ATTENTION = "q_ptr=*bf16, k_ptr=*bf16, v_ptr=*bf16, o_ptr=*bf16, scale=fp32, stride_m=i32:16, BM=128, BN=64, D=64"
BLOCK_POINTERS = release(triton.__version__) < (3, 9)
"""Later releases have none."""
SIGNATURES = {
    "tutorial_matmul": f"{PRODUCT}, stride_ak=1, stride_bk=i32:16, stride_bn=1, stride_cn=1, GROUP_M=2",
    "masked_matmul": f"{PRODUCT}, stride_bn=i32:16",
    "block_pointer_matmul": f"{PRODUCT}, stride_bk=i32:16",
    "template_matmul": f"a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, M=200, N=80, K=208, stride_am=224, stride_bk=224, "
    f"stride_cm=80, {TILE}",
    "clamped_rows": f"{PRODUCT}, stride_bn=i32:16",
    "block_pointer_attention": f"{ATTENTION}, stride_z=i32:16, stride_h=i32:16, H=i32, L=i32:16, CAUSAL=True",
    "two_stage_attention": f"{ATTENTION}, stride_z=i32:16, stride_h=i32:16, H=i32, L=i32:16",
    "persistent_matmul": f"{PRODUCT}, stride_bk=i32:16, BLOCKS=i32",
    "split_k_matmul": f"{PRODUCT}, stride_bk=i32:16, SPLIT=2".replace("c_ptr=*bf16", "c_ptr=*fp32"),
    "ragged_attention": f"{ATTENTION}, starts_ptr=*i32, stride_h=i32:16",
}
if not BLOCK_POINTERS:
    SIGNATURES = {name: kinds for name, kinds in SIGNATURES.items() if "block" not in name and "stage" not in name}
ROWS, COLUMNS, DEPTH, STRIDE = 200, 80, 208, 224
GRIDS = {
    "tutorial_matmul": (4, 1, 1), "persistent_matmul": (3, 1, 1), "split_k_matmul": (2, 2, 2),
    "block_pointer_attention": (2, 4, 1), "two_stage_attention": (2, 4, 1), "ragged_attention": (2, 3, 2),
}  # fmt: skip
ARGUMENTS = {
    "M": ROWS, "N": COLUMNS, "K": DEPTH, "stride_am": STRIDE, "stride_bk": STRIDE, "stride_bn": STRIDE,
    "stride_cm": COLUMNS, "BLOCKS": 3, "scale": 0.125, "stride_m": 64, "H": 2, "L": 192,
    "stride_h": 256 * 64, "stride_z": 512 * 64,
}  # fmt: skip
POINTERS = {
    "a_ptr": 0,
    "b_ptr": 1,
    "c_ptr": 2,
    "q_ptr": 0,
    "k_ptr": 1,
    "v_ptr": 3,
    "o_ptr": 2,
    "starts_ptr": 4,
    "rows_ptr": 5,
}


@cache
def at_cut(name: str, signature: str = "") -> tuple[str, PlannedCut]:
    """The kernel as it is, and with TMA loads where they are proven."""
    source = source_of(getattr(kernels, name), signature or SIGNATURES[name])
    options = {"num_warps": 4}
    return pipeline.cut(source, HOPPER, options).text, planned_cut(source, HOPPER, options)


def launch(name: str) -> dict[str, Any]:
    values = {**ARGUMENTS, **{n: i * BUFFER for n, i in POINTERS.items()}}
    names = [parameter.name for parameter in getattr(kernels, name).params]
    fixed = {parameter.name for parameter in getattr(kernels, name).params if parameter.is_constexpr}
    return {n: values[n] for n in names if n in values and n not in fixed}


def memory() -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    data = [draw.integers(-4, 5, 1 << 16) / 4.0 for _ in range(4)]
    return [*data, np.array([0, 70, 70, 200]), draw.permutation(256)]


@pytest.mark.parametrize(
    ("name", "persistent"), [*((n, 0) for n in SIGNATURES), *((n, 1) for n in SIGNATURES if n != "persistent_matmul")]
)
def test_a_lowered_kernel_stores_what_the_kernel_stores(name: str, persistent: int) -> None:
    original, planned = at_cut(name)
    assert "tt.descriptor_load" not in original
    assert not planned.described.unchanged
    same(
        planned.text, HopperStrategy(2, (2,), persistent=persistent), launch(name), memory(),
        GRIDS.get(name, (2, 2, 1)), launched=3, seeds=1, original=original,
    )  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_nothing_is_left_of_the_pointers_that_were_advanced(name: str) -> None:
    _, planned = at_cut(name)
    loops = capture(planned.text).loading
    assert len(loops) == (2 if name == "two_stage_attention" else 1)
    for loop in loops:
        assert {work.kind for work in loop.work} & {"load", "tma_load", "dot"} == {"tma_load", "dot"}
    assert not re.search(r"scf\.for[^\n]*!tt\.ptr", planned.text)


@pytest.mark.parametrize("name", SIGNATURES)
def test_its_barriers_play(name: str) -> None:
    _, planned = at_cut(name)
    lowered = specialize(planned.text, HopperStrategy(2, (3,)))
    context = pipeline.cutting.new_context(make_backend(HOPPER))
    module = pipeline.read(lowered, context)
    pipeline.run_after(module, planned.options, 90, pipelined=True)
    assert "ttng.async_tma_copy_global_to_local" in str(module)
    assert not check_barriers(str(module)).findings


WRAPPED = f"{PRODUCT}, stride_bn=i32:16"
REFUSED = {
    "in_place": (WRAPPED, "the kernel also writes %a_ptr", "a = tl.load"),
    "unmasked_store": (WRAPPED, "it stores the rows or columns that wrap around, too", "tl.store("),
    "summed_columns": (WRAPPED, "could reach memory through it", "tl.sum(acc, 0)"),
    "gathered": (f"{WRAPPED}, rows_ptr=*i32", "looked up in memory (gathered)", "tl.load(rows_ptr"),
    "filled_with_ones": (WRAPPED, "outside of its mask is not 0", "other=1.0"),
    "triangle": (WRAPPED, "its mask is no bound of one dimension", "<= rm[:, None]"),
    "before_the_tensor": (WRAPPED, "it may be negative", "a = tl.load"),
    "odd_column": (WRAPPED, "first column is not known to be a multiple of 16 bytes", "a = tl.load"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_proven_is_left_with_the_reason_and_the_line(name: str) -> None:
    signature, reason, at = REFUSED[name]
    _, planned = at_cut(name, signature)
    (refused,) = planned.described.unchanged
    assert reason in refused.reason
    source = Path(kernels.__file__).read_text().splitlines()
    assert at in source[int(refused.line.rpartition(":")[2]) - 1]
    assert "a = tl.load" in source[int(refused.load.rpartition(":")[2]) - 1]
    assert ["b = tl.load" in source[int(line.rpartition(":")[2]) - 1] for line in planned.described.lines] == [True]
    (told,) = explained(capture(planned.text), planned.described).remarks
    assert (told.line, told.operation) == (refused.load, "tt.load")
    assert reason in told.reason


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in ("in_place", "before_the_tensor")])
def test_a_loop_in_which_a_load_stays_stores_what_the_kernel_stores(name: str) -> None:
    original, planned = at_cut(name, REFUSED[name][0])
    same(planned.text, HopperStrategy(1, (2,)), launch(name), memory(), (2, 2, 1), seeds=1, original=original)


def test_where_no_load_is_rewritten_the_first_ones_reason_is_the_obstacle() -> None:
    name, (signature, reason, _) = "gathered", REFUSED["gathered"]
    original, planned = at_cut(name, signature.replace("stride_bn=i32:16", "stride_bn=i32"))
    assert planned.text == original
    told = explained(capture(original), planned.described)
    assert reason in told.obstacle().reason
    assert len(told.obstacles) == 4  # two loads, of the kernel and of its loop


MISFITS = {
    "stride_am=i32:16": ("stride_am=i32", "row stride is not known to be a multiple of 16 bytes"),
    "a_ptr=*bf16": ("a_ptr=*bf16:1", "base is not known to be a multiple of 16 bytes"),
    "stride_ak=1": ("stride_ak=i32", "neither stride is known to be 1"),
}


@pytest.mark.parametrize("known", MISFITS)
def test_what_the_specialisation_does_not_say_is_not_assumed(known: str) -> None:
    unknown, reason = MISFITS[known]
    _, planned = at_cut("tutorial_matmul", SIGNATURES["tutorial_matmul"].replace(known, unknown))
    assert len(planned.described.lines) == 1
    assert [reason in u.reason for u in planned.described.unchanged] == [True]


def test_arguments_that_have_to_be_positive_are_named() -> None:
    _, planned = at_cut("tutorial_matmul")
    assert dict(planned.described.least) == {"M": 1, "N": 1, "K": 1, "stride_am": 1, "stride_bk": 1}


LARGE = {"tutorial_matmul": "BN=256", "masked_matmul": "BN=256", "two_stage_attention": "D=128"}


@pytest.mark.parametrize("name", [name for name in LARGE if name in SIGNATURES])
def test_it_compiles_for_hopper_without_spills(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    changed = LARGE[name]
    signature = re.sub(rf"\b{changed.partition('=')[0]}=\d+", changed, SIGNATURES[name])
    signature = re.sub(r"\b(N|stride_cm)=i32\b(?!:)", r"\1=i32:16", signature)
    source = source_of(getattr(kernels, name), signature)
    with knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True
        compiled = compile_with(source, HOPPER, {"num_warps": 4}, HopperStrategy(2, (2,), persistent=1), tmp_path)
    log = capfd.readouterr().out
    assert re.findall(r"(\d+) bytes spill", log) == ["0", "0"]
    assert not re.search(r"wgmma[^\n]*serializ", log, re.IGNORECASE)
    assert compiled.metadata.global_scratch_size == 2 * 128
    assert compiled.metadata.shared <= 232_448


@pytest.mark.parametrize(("consumers", "warps"), [(1, 4), (1, 8), (2, 4)])
@pytest.mark.parametrize("captured_warps", [4, 8])
@pytest.mark.parametrize("stored", ["bf16", "fp32"])
def test_a_tile_on_its_way_to_a_store_is_counted_as_it_is_moved(
    stored: str, captured_warps: int, consumers: int, warps: int, tmp_path: Path
) -> None:
    """Triton moves it piece by piece, so that it takes less than the tile: there is room for another slot."""
    signature = re.sub(r"\b(N|stride_cm)=i32\b(?!:)", r"\1=i32:16", SIGNATURES["tutorial_matmul"])
    signature = signature.replace("BN=64", "BN=256").replace("c_ptr=*bf16", f"c_ptr=*{stored}")
    source, scheme = source_of(kernels.tutorial_matmul, signature), HopperStrategy(consumers, (2,), warps, persistent=1)
    options = {"num_warps": captured_warps}
    taken = compile_with(source, HOPPER, options, scheme, tmp_path).metadata.shared
    captured = capture(planned_cut(source, HOPPER, options).text)
    (moved,) = captured.body.of_kind("convert_layout")
    tile = moved.parts[0].size
    assert 0 < moved.scratch_bytes <= tile // 2
    bound = shared_bytes(captured, scheme.depths, consumers=consumers, warps=warps)
    assert taken <= bound <= taken + 1024 + tile // 2
