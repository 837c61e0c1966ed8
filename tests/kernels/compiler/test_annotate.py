"""Blackwell plans as attributes: what Triton's passes make of them. Compiled for sm_100 without a GPU, never run."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import zoo  # noqa: E402
from kernels_under_test import source  # noqa: E402
from triton import knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from warpplan.kernels.compiler import pipeline  # noqa: E402
from warpplan.kernels.compiler.errors import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.lowering import annotate  # noqa: E402
from warpplan.kernels.compiler.lowering.annotate import Roles  # noqa: E402
from warpplan.kernels.compiler.pipeline import cutting, steps  # noqa: E402
from warpplan.kernels.compiler.pipeline.halves import SCHEDULING  # noqa: E402
from warpplan.kernels.compiler.planning.capture import Body, capture  # noqa: E402
from warpplan.kernels.compiler.planning.graph import Shape, loop_graph  # noqa: E402
from warpplan.kernels.compiler.planning.loops import Work  # noqa: E402
from warpplan.kernels.compiler.ttgir import ir  # noqa: E402
from warpplan.kernels.compiler.ttgir.places import Places  # noqa: E402
from warpplan.planner.device import H200  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidInput  # noqa: E402
from warpplan.planner.plan import Placement, Plan, Schedule  # noqa: E402
from warpplan.planner.problem import PartitionSpec, SolveOptions  # noqa: E402
from warpplan.planner.solve import solve  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402

pytestmark = pytest.mark.matrix
TARGET = GPUTarget("cuda", 100, 32)
SPECIALIZED = ["gemm", "attention"]
TMEM_COLUMNS = 512
REFUSED = {"gathered_experts": "several blocks in one region", "while_loop": "no counted one"}
LEFT_TO_TRITON = {"persistent_flattened": r"scf.if \(zoo_products.py:\d+\): control flow inside the loop"}
LOAD, PRODUCT = "ttng.async_tma_copy_global_to_local", "ttng.tc_gen5_mma"


def cut(name: str) -> pipeline.Cut:
    return pipeline.cut(source(name), TARGET, {"num_warps": 4, "num_stages": 3})


def partitions(text: str) -> list[set[str]]:
    """Names of the operations in each partition, the default one first."""
    (specialized,) = [op for op in ir.parse(text).walk() if op.name == "ttg.warp_specialize"]
    return [{op.name for op in region.walk()} for region in specialized.regions]


def finished(cut: pipeline.Cut, roles: Roles | None) -> str:
    return str(pipeline.finish(annotate.annotate(cut.text, roles), cut.options, 100))


@pytest.mark.parametrize(("name", "depth"), [("gemm", 4), ("gemm_bias_relu", 2), ("attention", 2)])
def test_a_kernel_that_never_asked_comes_out_specialised(
    name: str, depth: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All the way to the binary: rings of the depth asked for, tensor memory that the device has."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", annotate.hook(depth, Roles()))
    compiled = triton.compile(source(name), target=TARGET, options={"num_warps": 4})
    assert len(compiled.asm["cubin"]) > 0
    assert 0 < compiled.metadata.tmem_size <= TMEM_COLUMNS
    text = compiled.asm["ttgir"]
    _, products, loads = partitions(text)
    assert LOAD in loads - products
    assert PRODUCT in products - loads
    assert re.search(rf"ttg.local_alloc : \(\) -> !ttg.memdesc<{depth}x128x64xbf16", text)


@pytest.mark.parametrize("name", SPECIALIZED)
def test_triton_finds_partitions_itself_where_no_roles_are_given(name: str) -> None:
    found = partitions(finished(cut(name), None))
    assert len(found) >= 3
    assert sum(LOAD in one for one in found) == 1
    assert sum(PRODUCT in one for one in found) == 1


@pytest.mark.parametrize("roles", [Roles(2, 1), Roles(1, 2), Roles(1, 1)], ids=lambda r: f"{r.load}{r.product}")
@pytest.mark.parametrize("name", SPECIALIZED)
def test_partitions_are_those_asked_for(name: str, roles: Roles) -> None:
    """Triton may number the workers anew, but moves no operation from one to another."""
    default, *workers = partitions(finished(cut(name), roles))
    assert not {LOAD, PRODUCT} & default
    holders = [tuple(sorted({LOAD, PRODUCT} & worker)) for worker in workers if {LOAD, PRODUCT} & worker]
    assert sorted(holders) == ([(LOAD, PRODUCT)] if roles.load == roles.product else [(LOAD,), (PRODUCT,)])
    if name == "attention":
        assert "math.exp2" in default
        assert not any("math.exp2" in worker for worker in workers)


@pytest.mark.parametrize("name", sorted(name for name, specimen in zoo.ZOO.items() if specimen.loads))
def test_kernels_of_every_style_come_out_specialised(name: str) -> None:
    """Or say why: with roles where they fit, else as Triton finds best."""
    kernel = pipeline.cut(zoo.source(name), TARGET, {"num_warps": 4})
    if (why := REFUSED.get(name)) is not None:
        with pytest.raises(InvalidInput, match=why):
            annotate.annotate(kernel.text)
        return
    roles: Roles | None = Roles()
    if (why := LEFT_TO_TRITON.get(name)) is not None:
        with pytest.raises(CannotPlan, match=why):
            annotate.annotate(kernel.text, roles)
        roles = None
    module = ir.parse(finished(kernel, roles))
    specialized = [op for op in module.walk() if op.name == "ttg.warp_specialize"]
    assert specialized
    for operation in specialized:
        inside = [{op.name for op in region.walk()} for region in operation.regions]
        assert any(LOAD in one and PRODUCT not in one for one in inside)
        assert any(PRODUCT in one and LOAD not in one for one in inside)


def attention_lines() -> dict[str, list[str]]:
    module = ir.parse(cut("attention").text)
    places = Places(module)
    (loop,) = [op for op in module.walk() if op.name == "scf.for"]
    found: dict[str, list[str]] = {"tma_load": [], "dot": []}
    for op in loop.walk():
        kind = {"tt.descriptor_load": "tma_load", PRODUCT: "dot"}.get(op.name)
        if kind:
            found[kind].append(str(places.of(op)))
    return found


def test_stages_asked_for_are_kept_by_the_scheduler() -> None:
    lines = attention_lines()
    asked = dict(zip(lines["tma_load"] + lines["dot"], [0, 1, 1, 3], strict=True))
    text = annotate.annotate(cut("attention").text, Roles(stages=asked))
    options = cut("attention").options
    module = cutting.read(text, cutting.new_context(triton.compiler.make_backend(TARGET)))
    after = [step for step in pipeline.passes_for(triton.__version__, 100)[1] if step.name not in SCHEDULING]
    assert after[0].name == "ttgpuir.schedule_loops"
    steps.run(after[:1], module, options, 100, "schedule")
    scheduled = ir.parse(str(module))
    places = Places(scheduled)
    kept = {
        str(places.of(op)): int(op.attributes["loop.stage"].split(" ")[0])
        for op in scheduled.walk()
        if op.name in ("tt.descriptor_load", PRODUCT) and "loop.stage" in op.attributes
    }
    assert kept == asked
    (loop,) = [op for op in scheduled.walk() if op.name == "scf.for"]
    assert loop.attributes["tt.scheduled_max_stage"] == "3 : i32"


def test_a_staged_plan_overlaps_iterations() -> None:
    """The second product three stages late: the softmax of several iterations stands before the loop."""
    lines, found = attention_lines(), cut("attention")
    asked = dict(zip(lines["tma_load"] + lines["dot"], [0, 1, 1, 3], strict=True))
    exponentials = []
    for stages in ({}, asked):
        text = annotate.annotate(found.text, Roles(stages=stages))
        module = cutting.read(text, cutting.new_context(triton.compiler.make_backend(TARGET)))
        pipeline.run_after(module, found.options, 100, scheduled=bool(stages))
        assert len(partitions(str(module))) == 3
        exponentials.append(str(module).count("math.exp2"))
    assert exponentials[0] < exponentials[1]


def test_every_operation_of_an_annotated_body_has_a_partition() -> None:
    """Triton 3.6 and 3.7 refuse a body in which one has none; the combiner of a reduction counts."""
    text = annotate.annotate(cut("attention").text, Roles())
    assert str(ir.parse(text)) == text
    inside = text[text.index("scf.for") : text.index("tt.warp_specialize")]
    body = [
        line for line in inside.splitlines()[1:] if " loc(" in line and "^bb" not in line and '"tt.reduce"' not in line
    ]
    assert body
    assert all("ttg.partition = array<i32: " in line for line in body)


def test_a_kernel_without_such_a_loop_says_why() -> None:
    with pytest.raises(CannotPlan, match="no loop to specialise"):
        annotate.annotate(cut("softmax").text)
    with pytest.raises(CannotPlan, match=r"no product on the tensor cores"):
        annotate.annotate(cut("gemm").text.replace("ttng.tc_gen5_mma", "ttng.something"))


def test_pointer_loads_are_told_apart() -> None:
    with pytest.raises(CannotPlan, match="loads through pointers"):
        annotate.annotate(cut("gemm").text.replace("tt.descriptor_load", "tt.load"))


@pytest.mark.parametrize(("load", "product"), [(0, 1), (1, 0), (2, 2), (3, 1), (-1, 1)])
def test_roles_that_no_form_has_are_refused(load: int, product: int) -> None:
    with pytest.raises(InvalidConfig, match=f"worker {load}, the products in worker {product}"):
        Roles(load, product)


def plan(*placements: tuple[str, int, int]) -> Plan:
    schedule = Schedule(100, tuple(Placement(op, 0, stage, 0, partition) for op, partition, stage in placements))
    return Plan("loop", schedule, (), (), (), 0)


def work(id: str, kind: Any) -> Work:
    line = id.partition("@")[2]
    return Work(id, kind, (), line, (line,), (), ())


LOOP = Body(
    "loop@a.py:4", "a.py:4", "scf.for", "",
    (work("k@a.py:5", "tma_load"), work("v@a.py:8", "tma_load"), work("s@a.py:6", "dot"), work("p@a.py:7", "sfu"),
     work("acc@a.py:9", "dot")),
    (), 128, None, True,
)  # fmt: skip


def test_a_planners_plan_becomes_roles() -> None:
    names = [w.id for w in LOOP.work]

    def given(*partitions_and_stages: tuple[int, int]) -> Plan:
        return plan(*((name, *each) for name, each in zip(names, partitions_and_stages, strict=True)))

    stages = {"a.py:5": 0, "a.py:8": 1, "a.py:6": 1, "a.py:9": 2}
    apart = given((0, 0), (0, 1), (2, 1), (1, 1), (2, 2))
    assert annotate.roles_of(apart, LOOP) == Roles(1, 2, stages)
    together = given((1, 0), (1, 1), (1, 1), (0, 1), (1, 2))
    assert annotate.roles_of(together, LOOP) == Roles(1, 1, stages)
    with pytest.raises(CannotPlan, match=r"loop@a\.py:4: the plan has TMA loads in 2 partitions"):
        annotate.roles_of(given((0, 0), (1, 1), (2, 1), (2, 1), (2, 2)), LOOP)


def test_a_solved_loop_reaches_the_compiler() -> None:
    """The planner's own plan under Blackwell's rules, accumulator in tensor memory; the costs are Hopper's."""
    found = cut("gemm")
    (loop,) = capture(found.text).loops
    graph = loop_graph(loop, Shape(1), embedded("NVIDIA H200").costs, H200)
    columns = {w.id: 4 * w.product.m * w.product.n for w in loop.work if w.product is not None}
    ops = (replace(o, registers=0, min_warps=1) for o in graph.ops)
    ops = tuple(replace(o, memory="tmem", buffer_bytes=columns[o.id]) if o.id in columns else o for o in ops)
    graph = replace(graph, ops=ops, limits=replace(graph.limits, architecture="blackwell"))
    pins = {o.id: int(o.id in columns) for o in graph.ops}
    specs = (PartitionSpec("loads", 1, 24), PartitionSpec("products", 1, 24))
    outcome = solve(graph, SolveOptions(pinned=pins, partitions=specs))
    assert outcome.plan is not None
    assert {b.memory: b.offset + b.size for b in outcome.plan.buffers}["tmem"] <= TMEM_COLUMNS
    roles = annotate.roles_of(outcome.plan, loop)
    assert (roles.load, roles.product) == (1, 2)
    assert set(roles.stages) == {w.line for w in loop.work}
    default, *workers = partitions(finished(found, roles))
    assert sorted(tuple(sorted({LOAD, PRODUCT} & worker)) for worker in workers) == [(LOAD,), (PRODUCT,)]
    assert not {LOAD, PRODUCT} & default
