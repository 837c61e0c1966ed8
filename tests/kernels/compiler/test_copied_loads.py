"""Loads that the producer copies by ``cp.async``: which they are, and the kernels that then compute the same."""

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

import copied_kernels as kernels
from interpreter import BUFFER, run_together
from played import HOPPER, same
from triton import knobs
from triton.compiler import make_backend

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.analysis.capture import Captured, capture
from warpplan.kernels.compiler.analysis.copies.copied_loads import with_copies
from warpplan.kernels.compiler.analysis.operation_kinds import COPY_LOAD, vector_of
from warpplan.kernels.compiler.costing import hopper_ranking
from warpplan.kernels.compiler.costing.loop_graph import Shape, in_flight, loop_graph
from warpplan.kernels.compiler.inspection.barrier_check import check_barriers
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.pointers.planned_cut import PlannedCut, explained, planned_cut
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.stage_hook import compile_with
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.planner.values.device import device
from warpplan.profiler.embedded import embedded

pytestmark = pytest.mark.matrix

TILE = "M=i32, N=i32, K=i32:16, stride_am=i32:16, stride_cm=i32, BM=128, BN=64, BK=64"
ROWS = f"a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, rows_ptr=*i32, {TILE}"
SIGNATURES = {
    "routed": f"{ROWS}, stride_bn=i32:16",
    "both_gathered": f"{ROWS}, stride_bk=i32:16",
    "scaled": f"{ROWS}, s_ptr=*fp32, t_ptr=*fp32, stride_bn=i32:16, stride_s=i32",
    "dequantised": f"a_ptr=*bf16, q_ptr=*i32, c_ptr=*bf16, s_ptr=*fp32, {TILE}, stride_qk=i32:16",
    "zero_points": f"a_ptr=*bf16, w_ptr=*i32, c_ptr=*bf16, z_ptr=*i32, {TILE}, stride_wk=i32:16, stride_zk=i32:16",
    "attended": "q_ptr=*bf16, k_ptr=*bf16, v_ptr=*bf16, o_ptr=*bf16, slots_ptr=*i32, L=i32, scale=fp32, "
    "stride_m=i32:16, BM=128, BN=64, D=64",
}
LEVELS = {"routed": {1: [8]}, "both_gathered": {1: [8, 8]}, "scaled": {1: [8], 2: [8, 1, 1]}, "dequantised": {1: [4]},
          "zero_points": {1: [4, 1]}, "attended": {1: [8, 8]}}  # fmt: skip
"""By level, the elements that one copy brings of each load."""
ARGUMENTS = {
    "M": 200, "N": 80, "K": 208, "stride_am": 224, "stride_bn": 224, "stride_bk": 224, "stride_cm": 136, "stride_s": 4,
    "stride_qk": 224, "stride_wk": 224, "stride_zk": 16, "L": 187, "scale": 0.125, "stride_m": 64,
}  # fmt: skip
POINTERS = {
    "a_ptr": 0, "b_ptr": 1, "c_ptr": 2, "s_ptr": 3, "v_ptr": 3, "rows_ptr": 4, "slots_ptr": 4, "t_ptr": 5, "k_ptr": 1,
    "o_ptr": 2, "q_ptr": 0, "w_ptr": 1, "z_ptr": 4,
}  # fmt: skip


@cache
def at_cut(name: str, signature: str = "", warps: int = 4) -> PlannedCut:
    source = source_of(getattr(kernels, name), signature or SIGNATURES[name])
    return planned_cut(source, HOPPER, {"num_warps": warps})


def found(name: str, signature: str = "") -> Captured:
    planned = at_cut(name, signature)
    return explained(capture(planned.text), planned.described)


def launch(name: str) -> dict[str, Any]:
    pointers = POINTERS | ({"q_ptr": 1} if name == "dequantised" else {})
    values = {**ARGUMENTS, **{n: i * BUFFER for n, i in pointers.items()}}
    parameters = getattr(kernels, name).params
    return {p.name: values[p.name] for p in parameters if not p.is_constexpr}


def memory(name: str) -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    data = [draw.integers(-4, 5, 1 << 16) / 4.0 for _ in range(6)]
    data[4] = draw.permutation(256)
    if name in ("dequantised", "zero_points"):
        data[1] = draw.integers(0, 256, 1 << 16)
    return data


def grid(name: str) -> tuple[int, int, int]:
    return (1, 1, 1) if name == "attended" else (2, 2, 1)


@pytest.mark.parametrize("name", SIGNATURES)
def test_what_tma_cannot_load_is_copied_as_wide_as_it_lies(name: str) -> None:
    captured = found(name)
    assert [way.copies for way in captured.copied] == list(LEVELS[name])
    assert not captured.uncopied
    for level, widths in LEVELS[name].items():
        marked = with_copies(parse(at_cut(name).text), level)
        copied = [operation for operation in marked.function.walk() if operation.name == COPY_LOAD]
        assert sorted(map(vector_of, copied)) == sorted(widths)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_address_of_a_copy_is_the_producers_alone(name: str) -> None:
    text = specialize(at_cut(name).text, HopperStrategy(2, (2,), copies=max(LEVELS[name])))
    consumers, _, producer = text.rpartition("partition1(")
    in_loops = [loop.partition("scf.yield")[0] for loop in consumers.split("scf.for")[1:]]
    assert producer.count("ttg.async_copy_global_to_local") == len(LEVELS[name][max(LEVELS[name])])
    assert "async_copy" not in consumers
    assert not any("tt.addptr" in body or "tt.load" in body for body in in_loops)


@pytest.mark.parametrize(
    ("name", "level", "consumers", "persistent"),
    [(n, level, c, p) for n in SIGNATURES for level in LEVELS[n] for c, p in ((1, 0), (2, 1))],
)
def test_a_lowered_kernel_stores_what_the_kernel_stores(name: str, level: int, consumers: int, persistent: int) -> None:
    scheme = HopperStrategy(consumers, (2,), persistent=persistent, copies=level)
    same(at_cut(name).text, scheme, launch(name), memory(name), grid(name), launched=3, seeds=1)


def test_a_producer_of_four_warps_copies_for_consumers_of_eight() -> None:
    text = at_cut("both_gathered", warps=8).text
    lowered = same(text, HopperStrategy(1, (2,), 8, copies=1), launch("both_gathered"), memory(""), (2, 2, 1), seeds=1)
    assert re.findall(r"num_warps\((\d+)\)", lowered) == ["4"]
    assert re.findall(r"init_barrier %\w+, (\d+)", lowered) == ["128", "128", "1", "1"]


@pytest.mark.parametrize(
    ("name", "flying"), [("routed", True), ("both_gathered", True), ("dequantised", False), ("zero_points", False)]
)
def test_products_are_in_flight_where_the_lowering_keeps_them_so(name: str, flying: bool) -> None:
    """An operand that consumers convert has one place in shared memory: its product ends before the next is written."""
    (loop,) = found(name).at(1).loading
    (product,) = loop.of_kind("dot")
    assert in_flight(loop, product) == flying
    assert ("isAsync" in specialize(at_cut(name).text, HopperStrategy(1, (2,), copies=1))) == flying
    graph = loop_graph(loop, Shape(1, 4), embedded("NVIDIA H200").costs, device("NVIDIA H200"))
    waited = {edge.src: edge.latency for edge in graph.edges if edge.kind == "token" and edge.latency is not None}
    (multiply,) = (op for op in graph.ops if op.unit == "TENSOR")
    assert waited[multiply.id] == (multiply.issue if flying else multiply.latency)


def test_tma_and_copies_fill_one_slot_together() -> None:
    lowered = specialize(at_cut("routed").text, HopperStrategy(1, (3,), copies=1))
    assert re.findall(r"init_barrier %\w+, (\d+)", lowered) == ["129", "129", "129", "1", "1", "1"]
    assert re.findall(r"barrier_expect %\w+, (\d+)", lowered) == [str(64 * 64 * 2)]  # B alone: copies bring no bytes


def test_without_the_fence_a_product_reads_what_it_may_not_see() -> None:
    lowered = specialize(at_cut("routed").text, HopperStrategy(1, (2,), copies=1))
    unfenced = re.sub(r"\n[^\n]*fence_async_shared[^\n]*", "", lowered)
    assert unfenced != lowered

    def played(text: str) -> None:
        run_together(ReadyCode(parse(text)), launch("routed"), memory(""), [(0, 0, 0)], (1, 1, 1), fences=True)

    played(lowered)
    with pytest.raises(KernelFault, match="fence"):
        played(unfenced)


def test_a_missing_arrival_is_a_hang_that_is_found() -> None:
    text = finished("routed", HopperStrategy(1, (2,), copies=1))
    assert not check_barriers(text).findings
    silent = re.sub(r"\n[^\n]*async_copy_mbarrier_arrive[^\n]*", "", text)
    assert {finding.cause for finding in check_barriers(silent).findings} >= {"arrivals", "phase"}
    increments = text.replace("{noIncrement}", "")
    assert {finding.cause for finding in check_barriers(increments).findings} >= {"arrivals", "phase"}


def finished(name: str, scheme: HopperStrategy) -> str:
    planned = at_cut(name, warps=scheme.warps)
    lowered = specialize(planned.text, scheme)
    module = pipeline.read(lowered, pipeline.cutting.new_context(make_backend(HOPPER)))
    pipeline.run_after(module, planned.options, 90, pipelined=True)
    return str(module)


@pytest.mark.parametrize("name", SIGNATURES)
def test_its_barriers_play(name: str) -> None:
    text = finished(name, HopperStrategy(2, (3,), copies=max(LEVELS[name])))
    report = check_barriers(text)
    assert "ttng.async_copy_mbarrier_arrive" in text
    assert not report.findings
    assert report.played


PRODUCT = f"{ROWS}, stride_bn=i32:16"
REFUSED = {
    "chased": (PRODUCT, "its address needs what the consumers compute", "acc = tl.dot"),
    "rewritten": (PRODUCT, "the kernel also writes %rows_ptr", "rows = tl.load"),
    "scattered": (f"{PRODUCT}, stride_ak=i32:16", "a thread has 2 consecutive bytes of it", "a = tl.load"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_producer_cannot_run_ahead_with_stays_with_the_reason_and_the_line(name: str) -> None:
    signature, reason, at = REFUSED[name]
    captured = found(name, signature)
    assert not captured.copied
    (why,) = captured.uncopied
    source = Path(kernels.__file__).read_text().splitlines()
    lines = [int(number) for number in re.findall(r"copied_kernels\.py:(\d+)", str(why))]
    assert reason in why.reason
    assert at in source[lines[-1] - 1]
    (told,) = [remark for remark in captured.remarks if remark.line == why.line]
    assert reason in told.reason


def test_a_load_without_tma_says_that_it_is_copied() -> None:
    (remark,) = found("routed").copied[0].remarks
    assert "its index is divided" in remark.reason
    assert remark.reason.endswith("the producer copies it by cp.async")


@pytest.mark.parametrize("name", ["routed", "scaled"])
def test_copies_are_ranked_beside_what_tma_alone_can_do(name: str) -> None:
    captured = found(name)
    ranked = hopper_ranking.rank(captured, embedded("NVIDIA H200"), device("NVIDIA H200"))
    levels = {r.scheme.copies for r in ranked if isinstance(r.scheme, HopperStrategy)}
    assert levels >= set(LEVELS[name])
    assert isinstance(ranked[0].scheme, HopperStrategy)
    assert ranked[0].scheme.copies in LEVELS[name]
    for r in ranked:
        assert len(r.plans) == len(captured.at(r.copies).loading)
        assert not isinstance(r.scheme, HopperStrategy) or r.copies == r.scheme.copies


LARGE = {"routed": 1, "scaled": 2, "attended": 1}


@pytest.mark.parametrize("name", LARGE)
def test_it_compiles_for_hopper_without_spills(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    signature = SIGNATURES[name].replace("BN=64", "BN=128" if name == "routed" else "BN=64")
    source = source_of(getattr(kernels, name), signature)
    with knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True
        compiled = compile_with(source, HOPPER, {"num_warps": 4}, HopperStrategy(2, (2,), copies=LARGE[name]), tmp_path)
    log = capfd.readouterr().out
    assert re.findall(r"(\d+) bytes spill", log) == ["0", "0"]
    assert not re.search(r"wgmma[^\n]*serializ", log, re.IGNORECASE)
    widths = {
        int(size, 16) for size in re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*?, (0x\w+)", compiled.asm["ptx"])
    }
    assert widths == ({16, 4} if name == "scaled" else {16})
    assert compiled.metadata.shared <= 232_448
