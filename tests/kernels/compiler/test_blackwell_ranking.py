"""Captured kernels planned for Blackwell: tensor memory and its order, plans by its rules, compiled to the binary.

Compiled for sm_100 without a GPU, never run; the finished kernels' barriers are played.
"""

from __future__ import annotations

import random
import sys
from functools import cache
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import kernels_under_test  # noqa: E402
from cut_kernels import OWN, own_source  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from zoo import ZOO, source  # noqa: E402

from warpplan.kernels.compiler import pipeline  # noqa: E402
from warpplan.kernels.compiler.analysis.capture import Body, Captured, capture  # noqa: E402
from warpplan.kernels.compiler.analysis.loop_work import LoopWork  # noqa: E402
from warpplan.kernels.compiler.costing.blackwell import blackwell_ranking  # noqa: E402
from warpplan.kernels.compiler.costing.blackwell.blackwell_graph import blackwell_loop, tensor_columns  # noqa: E402
from warpplan.kernels.compiler.costing.kernel_model import RankedStrategy  # noqa: E402
from warpplan.kernels.compiler.exceptions import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.inspection.barrier_check import check_barriers  # noqa: E402
from warpplan.kernels.compiler.inspection.where import Placed, placed  # noqa: E402
from warpplan.kernels.compiler.strategy import stage_hook  # noqa: E402
from warpplan.kernels.compiler.strategy.blackwell import APART, FOUND, TOGETHER, BlackwellStrategy  # noqa: E402
from warpplan.kernels.compiler.ttgir import ir, parsing  # noqa: E402
from warpplan.planner.check.plan_check import check  # noqa: E402
from warpplan.planner.errors import InvalidInput  # noqa: E402
from warpplan.planner.solve import solve  # noqa: E402
from warpplan.planner.values.device import B200, H200  # noqa: E402
from warpplan.planner.values.options import SolveOptions  # noqa: E402
from warpplan.planner.values.plan import Placement, Plan, Schedule  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402

pytestmark = pytest.mark.matrix
TARGET = GPUTarget("cuda", 100, 32)
PROFILE = embedded(H200.name)
SHARED = ("gemm", "gemm_bias_relu", "attention")
PLANNED = [*SHARED, "matmul", *(name for name, specimen in ZOO.items() if specimen.loads and name != "while_loop")]
LOAD, PRODUCT = "ttng.async_tma_copy_global_to_local", "ttng.tc_gen5_mma"


def made(name: str) -> tuple[triton.compiler.ASTSource, dict[str, int]]:
    if name in SHARED:
        return kernels_under_test.source(name), {"num_warps": 4, "num_stages": 3}
    return (own_source(name), {"num_warps": 4}) if name in OWN else (source(name), ZOO[name].options)


@cache
def text(name: str) -> str:
    ast, options = made(name)
    return pipeline.cut(ast, TARGET, options).text


@cache
def captured(name: str) -> Captured:
    return capture(text(name))


@cache
def ranked(name: str) -> tuple[RankedStrategy, ...]:
    return blackwell_ranking.rank(captured(name), text(name), PROFILE, B200)


def main_loop(name: str) -> Body:
    return next(loop for loop in captured(name).loading if loop.of_kind("dot"))


def columns(plan: Plan, loop: Body) -> int:
    """Columns of tensor memory that ``loop`` has under ``plan``."""
    held = {w.tensor for w in loop.work if w.tensor is not None and w.tensor.held}
    laid = max((b.offset + b.size for b in plan.buffers if b.memory == "tmem"), default=0)
    return laid + sum(buffer.columns for buffer in held)


def flows(loop: Body, kind: str) -> set[tuple[str, str, int]]:
    """By operation, in the words of TTGIR where a name of the source has several."""
    names = {w.id: w.names[-1] if w.kind.startswith("tmem") else w.id.partition("@")[0] for w in loop.work}
    return {(names[f.src], names[f.dst], f.distance) for f in loop.flows if f.kind == kind}


def test_what_a_product_leaves_in_tensor_memory_is_read_there_and_tokens_carry_nothing() -> None:
    loop = main_loop("attention")
    kinds = [w.kind for w in loop.work]
    assert [kinds.count(kind) for kind in ("tma_load", "dot", "tmem_load", "tmem_store")] == [2, 2, 2, 2]
    scores, product = loop.of_kind("dot")
    data, order = flows(loop, "data"), flows(loop, "token")
    assert ("s", "ttng.tmem_load", 0) in data
    assert {("ttng.tmem_alloc", "acc", 0), ("ttng.tmem_store", "acc", 0), ("acc", "ttng.tmem_load", 1)} <= data
    assert order == {
        ("ttng.tmem_load", "s", 1), ("acc", "ttng.tmem_alloc", 1), ("ttng.tmem_load", "ttng.tmem_store", 0)
    }, "a buffer is written again when it has been read"  # fmt: skip
    assert next(f for f in loop.flows if f.dst == product.id and f.accumulates).src.startswith("acc.tmem_store@")
    assert scores.shape == (128, 128)
    assert product.shape == (128, 64)


def test_buffers_of_tensor_memory_have_lanes_and_columns() -> None:
    buffers = {w.id.partition("@")[0]: w.tensor for w in main_loop("attention").work if w.tensor is not None}
    found = {name: (b.lanes, b.columns, b.held) for name, b in buffers.items()}
    assert found == {
        "s": (128, 128, False), "acc": (128, 64, True), "acc.tmem_alloc": (128, 64, False),
        "acc.tmem_store": (128, 64, True),
    }  # fmt: skip
    assert tensor_columns(main_loop("attention")) == 256
    (half,) = {w.tensor for w in main_loop("flash_decoding").of_kind("dot") if w.id.startswith("s@")}
    assert half is not None
    assert (half.lanes, half.columns) == (64, 128)
    (held,) = [w.tensor for w in main_loop("gemm").of_kind("dot")]
    assert held is not None
    assert held.held, "the accumulator is added to in the next iteration"


def test_damaged_text_is_refused_and_never_anything_else() -> None:
    lines, chance = text("attention").split("\n"), random.Random(1)
    for _ in range(40):
        damaged = list(lines)
        at = chance.randrange(len(damaged))
        damaged[at : at + chance.choice((1, 1, 2))] = chance.choice(([], [damaged[chance.randrange(len(damaged))]]))
        try:
            assert isinstance(capture("\n".join(damaged)), Captured)
        except ir.MalformedIR:
            continue


def test_registers_hold_what_is_read_from_tensor_memory_once() -> None:
    assert [w.register_bits for w in main_loop("attention").of_kind("tmem_load")] == [128 * 128 * 32, 128 * 64 * 32]
    assert not any(w.register_bits for w in main_loop("attention").of_kind("dot", "tmem_store"))


@pytest.mark.parametrize("workers", [APART, TOGETHER])
@pytest.mark.parametrize("name", ["gemm", "attention", "linear_attention", "int8_weights"])
def test_a_loop_is_planned_by_the_rules_of_blackwell(name: str, workers: str) -> None:
    loop = main_loop(name)
    made = blackwell_loop(loop, workers, 4, PROFILE.costs, B200)
    kept = {w.id for w in loop.work if w.tensor is not None and not w.tensor.held}
    assert {op.memory for op in made.graph.ops if op.id in kept and op.buffer_bytes} <= {"tmem"}
    options = SolveOptions(1.0, pinned=made.pins, partitions=made.partitions)
    outcome = solve(made.graph, options)
    assert outcome.plan is not None, outcome.reason
    assert check(outcome.plan, made.graph) == ()
    homes = {p.op: outcome.plan.partitions[p.partition].name for p in outcome.plan.schedule.placements}
    assert len({homes[w.id] for w in (*loop.of_kind("tma_load"), *loop.of_kind("dot"))}) == (
        2 if workers == APART else 1
    )
    assert columns(outcome.plan, loop) <= B200.tmem_columns


def test_there_are_plans_of_many_kinds() -> None:
    assert sum(r[0].scheme is not None for r in map(ranked, PLANNED)) >= 15


@pytest.mark.parametrize("name", PLANNED)
def test_a_planned_kernel_compiles_for_blackwell(name: str, tmp_path: Path) -> None:
    """The best plan of each kernel: to the binary, within tensor memory, loads and products where it has them, and
    without a known cause of hangs."""
    best = next(r for r in ranked(name) if r.scheme is not None)
    assert isinstance(best.scheme, BlackwellStrategy)
    ast, options = made(name)
    compiled = stage_hook.compile_with(ast, TARGET, options, best.scheme, tmp_path)
    assert len(compiled.asm["cubin"]) > 0
    assert 0 < compiled.metadata.tmem_size <= B200.tmem_columns
    assert compiled.metadata.shared <= B200.smem_bytes_per_block
    for block in (op for op in parsing.parse(compiled.asm["ttgir"]).walk() if op.name == "ttg.warp_specialize"):
        holders = [{op.name for op in region.walk()} & {LOAD, PRODUCT} for region in block.regions]
        if best.scheme.workers != FOUND:
            expected = [{LOAD, PRODUCT}] if best.scheme.workers == TOGETHER else [{LOAD}, {PRODUCT}]
            assert sorted(map(sorted, filter(None, holders))) == sorted(map(sorted, expected))
    report = check_barriers(compiled.asm["ttgir"])
    assert report.played > 0
    assert report.findings == ()


def test_a_kernel_that_forgets_to_give_tensor_memory_back_is_found_to_hang() -> None:
    ast, options = made("attention")
    finished = stage_hook.finished_text(ast, TARGET, options, BlackwellStrategy(APART, 2))
    default = finished.index("default {")
    at = finished.index("ttng.arrive_barrier", default)
    line = finished[finished.rindex("\n", 0, at) : finished.index("\n", at)]
    (cause,) = {f.cause for f in check_barriers(finished.replace(line, "", 1)).findings} - {"unwaited"}
    assert cause == "phase"


def test_the_ranking_has_every_way_and_leaving_it_alone() -> None:
    found = ranked("attention")
    ways = {(r.scheme.workers, bool(r.scheme.stages)) for r in found if isinstance(r.scheme, BlackwellStrategy)}
    assert ways == {(APART, True), (APART, False), (TOGETHER, False), (FOUND, False)}
    (alone,) = (r for r in found if r.scheme is None)
    assert alone.gain == 1
    times = [round(r.predicted_cycles) for r in found]
    assert times == sorted(times)
    assert blackwell_ranking.rank(captured("attention"), text("attention"), PROFILE, B200) == found


def test_control_flow_inside_of_a_loop_leaves_the_partitions_to_triton() -> None:
    ways = [r.scheme.workers for r in ranked("persistent_flattened") if isinstance(r.scheme, BlackwellStrategy)]
    assert ways == [FOUND]
    why = next(r.reason for r in ranked("persistent_flattened") if r.scheme is not None)
    assert "control flow inside the loop" in why


def test_a_kernel_that_cannot_be_steered_is_left_alone_with_the_reason() -> None:
    (alone,) = ranked("while_loop")
    assert alone.scheme is None
    with pytest.raises(CannotPlan, match="no counted one"):
        blackwell_ranking.schemes(captured("while_loop"), text("while_loop"), PROFILE, B200)
    with pytest.raises(InvalidInput, match="expected a GPU with tensor memory"):
        blackwell_ranking.rank(captured("gemm"), text("gemm"), PROFILE, H200)


def placements(*stages: int) -> Plan:
    names = ("s@a.py:6", "o@a.py:9")
    return Plan(
        "loop",
        Schedule(100, tuple(Placement(n, 0, s, 0, 1) for n, s in zip(names, stages, strict=True))),
        (),
        (),
        (),
        0,
    )


def test_stages_of_products_count_from_the_first() -> None:
    work = tuple(LoopWork(id, "dot", (), id.partition("@")[2], (), (), ()) for id in ("s@a.py:6", "o@a.py:9"))
    loop = Body("loop@a.py:4", "a.py:4", "scf.for", "", work, (), 128, None)
    assert blackwell_ranking.stages_of(placements(3, 5), loop) == {"a.py:6": 0, "a.py:9": 2}
    assert blackwell_ranking.stages_of(placements(4, 4), loop) == {}, "nothing to say"


def test_lines_are_placed_in_partitions_stages_and_buffers() -> None:
    best = next(r for r in ranked("attention") if r.scheme is not None)
    found: dict[str, Placed] = {p.operation.partition("@")[0]: p for p in placed(captured("attention"), best) if p.loop}
    assert [found[name].partitions for name in ("k", "s", "p.exp2", "acc.tmem_store")] == [
        ("loads",), ("products",), ("default",), ("default",)
    ]  # fmt: skip
    assert isinstance(best.scheme, BlackwellStrategy)
    assert found["k"].buffer == f"{best.scheme.depth} x 16384 bytes of shared memory"
    assert found["s"].buffer == "128 columns of 128 lanes of tensor memory"
    assert found["acc"].stage is not None
    assert found["s"].stage is not None
    assert found["acc"].stage > found["s"].stage
