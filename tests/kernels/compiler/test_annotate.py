"""Blackwell plans as attributes: what Triton's passes make of them. Compiled for sm_100 without a GPU, never run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import zoo  # noqa: E402
from kernels_under_test import source  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from warpplan.kernels.compiler import pipeline  # noqa: E402
from warpplan.kernels.compiler.exceptions import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.inspection.barrier_check import check_barriers  # noqa: E402
from warpplan.kernels.compiler.lowering.blackwell import annotate  # noqa: E402
from warpplan.kernels.compiler.lowering.blackwell.annotate import Roles  # noqa: E402
from warpplan.kernels.compiler.pipeline import cutting, steps  # noqa: E402
from warpplan.kernels.compiler.pipeline.halves import SCHEDULING  # noqa: E402
from warpplan.kernels.compiler.strategy import stage_hook  # noqa: E402
from warpplan.kernels.compiler.strategy.blackwell import APART, FOUND, TOGETHER, BlackwellStrategy  # noqa: E402
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy  # noqa: E402
from warpplan.kernels.compiler.strategy.protocol import Strategy  # noqa: E402
from warpplan.kernels.compiler.ttgir import parsing  # noqa: E402
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations  # noqa: E402
from warpplan.planner.errors import InvalidConfig, InvalidInput  # noqa: E402

pytestmark = pytest.mark.matrix
TARGET = GPUTarget("cuda", 100, 32)
SPECIALIZED = ["gemm", "attention"]
TMEM_COLUMNS = 512
REFUSED = {"while_loop": "no counted one"}
LEFT_TO_TRITON = {
    "persistent_flattened": r"scf.if \(zoo_products.py:\d+\): control flow inside the loop",
    "gathered_experts": r"tt.load \(zoo_products.py:\d+\): a product reads what is loaded through pointers",
}
LOAD, PRODUCT = "ttng.async_tma_copy_global_to_local", "ttng.tc_gen5_mma"


def cut(name: str) -> pipeline.Cut:
    return pipeline.cut(source(name), TARGET, {"num_warps": 4, "num_stages": 3})


def partitions(text: str) -> list[set[str]]:
    """Names of the operations in each partition, the default one first."""
    (specialized,) = [op for op in parsing.parse(text).walk() if op.name == "ttg.warp_specialize"]
    return [{op.name for op in region.walk()} for region in specialized.regions]


def finished(cut: pipeline.Cut, roles: Roles | None) -> str:
    return str(pipeline.finish(annotate.annotate(cut.text, roles), cut.options, 100))


@pytest.mark.parametrize(("name", "depth"), [("gemm", 4), ("gemm_bias_relu", 2), ("attention", 2)])
def test_a_kernel_that_never_asked_comes_out_specialised(name: str, depth: int, tmp_path: Path) -> None:
    """All the way to the binary: rings of the depth asked for, tensor memory that the device has."""
    compiled = stage_hook.compile_with(
        source(name), TARGET, {"num_warps": 4}, BlackwellStrategy(APART, depth), tmp_path
    )
    assert len(compiled.asm["cubin"]) > 0
    assert 0 < compiled.metadata.tmem_size <= TMEM_COLUMNS
    text = compiled.asm["ttgir"]
    _, products, loads = partitions(text)
    assert LOAD in loads - products
    assert PRODUCT in products - loads
    assert re.search(rf"ttg.local_alloc : \(\) -> !ttg.memdesc<{depth}x128x64xbf16", text)


@pytest.mark.parametrize(
    ("scheme", "capability", "why"),
    [
        (BlackwellStrategy(), 90, "only sm_100 and sm_103 have tensor memory"),
        (HopperStrategy(1, (2,)), 100, "schemes are lowered for"),
    ],
)
def test_a_scheme_of_the_other_kind_of_gpu_is_refused(
    scheme: Strategy, capability: int, why: str, tmp_path: Path
) -> None:
    with pytest.raises(CannotPlan, match=f"sm_{capability}: {why}"):
        stage_hook.compile_with(source("gemm"), GPUTarget("cuda", capability, 32), {"num_warps": 4}, scheme, tmp_path)


@pytest.mark.parametrize(("double", "columns"), [(1, 512), (0, 256)])
def test_a_result_has_one_place_in_tensor_memory_or_two(double: int, columns: int, tmp_path: Path) -> None:
    """128 columns of scores, once or twice, 64 of weights and 64 of output; Triton takes a power of two of them."""
    scheme = BlackwellStrategy(APART, 2, double=double)
    compiled = stage_hook.compile_with(source("attention"), TARGET, {"num_warps": 4}, scheme, tmp_path)
    assert compiled.metadata.tmem_size == columns
    assert check_barriers(compiled.asm["ttgir"]).findings == ()


def test_every_way_to_steer_has_a_key_of_its_own() -> None:
    ways = [
        BlackwellStrategy(),
        BlackwellStrategy(depth=2),
        BlackwellStrategy(double=0),
        BlackwellStrategy(TOGETHER),
        BlackwellStrategy(FOUND),
        BlackwellStrategy(stages=(("a.py:1", 1),)),
    ]
    assert len({stage_hook.cache_key(way) for way in ways}) == len(ways)
    assert stage_hook.cache_key(BlackwellStrategy(stages=(("a.py:1", 1),))) != stage_hook.cache_key(
        BlackwellStrategy(stages=(("a.py:1", 2),))
    )


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
    module = parsing.parse(finished(kernel, roles))
    specialized = [op for op in module.walk() if op.name == "ttg.warp_specialize"]
    assert specialized
    for operation in specialized:
        inside = [{op.name for op in region.walk()} for region in operation.regions]
        assert any(LOAD in one and PRODUCT not in one for one in inside)
        assert any(PRODUCT in one and LOAD not in one for one in inside)


def product_lines() -> list[str]:
    module = parsing.parse(cut("attention").text)
    locations = SourceLocations(module)
    return [str(locations.of(op)) for op in module.walk() if op.name == PRODUCT]


def test_stages_asked_for_are_kept_by_the_scheduler() -> None:
    asked = dict(zip(product_lines(), [1, 3], strict=True))
    text = annotate.annotate(cut("attention").text, Roles(stages=asked))
    options = cut("attention").options
    module = cutting.read(text, cutting.new_context(triton.compiler.make_backend(TARGET)))
    after = [step for step in pipeline.passes_for(triton.__version__, 100)[1] if step.name not in SCHEDULING]
    assert after[0].name == "ttgpuir.schedule_loops"
    steps.run(after[:1], module, options, 100, "schedule")
    scheduled = parsing.parse(str(module))
    locations = SourceLocations(scheduled)
    kept = {
        str(locations.of(op)): int(op.attributes["loop.stage"].split(" ")[0])
        for op in scheduled.walk()
        if op.name in ("tt.descriptor_load", PRODUCT) and "loop.stage" in op.attributes
    }
    assert {line: stage for line, stage in kept.items() if line in asked} == asked
    assert [stage for line, stage in kept.items() if line not in asked] == [0, 0], "loads go first"
    (loop,) = [op for op in scheduled.walk() if op.name == "scf.for"]
    assert loop.attributes["tt.scheduled_max_stage"] == "3 : i32"


def test_a_staged_plan_overlaps_iterations() -> None:
    """The second product three stages late: the softmax of several iterations stands before the loop."""
    found = cut("attention")
    asked = dict(zip(product_lines(), [1, 3], strict=True))
    exponentials = []
    for wanted in ({}, asked):
        text = annotate.annotate(found.text, Roles(stages=wanted))
        module = cutting.read(text, cutting.new_context(triton.compiler.make_backend(TARGET)))
        pipeline.run_after(module, found.options, 100, scheduled=bool(wanted))
        assert len(partitions(str(module))) == 3
        exponentials.append(str(module).count("math.exp2"))
    assert exponentials[0] < exponentials[1]


def test_every_operation_of_an_annotated_body_has_a_partition() -> None:
    """Triton 3.6 and 3.7 refuse a body in which one has none; the combiner of a reduction counts."""
    text = annotate.annotate(cut("attention").text, Roles())
    assert str(parsing.parse(text)) == text
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


def test_roles_are_those_of_the_scheme() -> None:
    assert BlackwellStrategy(APART, stages=(("a.py:5", 1),)).roles() == Roles(2, 1, {"a.py:5": 1})
    assert BlackwellStrategy(TOGETHER).roles() == Roles(1, 1)
    assert BlackwellStrategy(FOUND).roles() is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"workers": "both"}, "workers 'both': expected apart, together or found"),
        ({"depth": 0}, "depth 0: expected 1 to 8"),
        ({"workers": TOGETHER, "stages": (("a.py:5", 1),)}, "expected apart"),
        ({"stages": (("a.py:5", -1),)}, "expected 0 or more"),
        ({"workers": FOUND, "double": 0}, "expected 1, or 0 with apart"),
        ({"double": 2}, "double 2 with workers 'apart'"),
    ],
)
def test_ways_to_steer_that_no_form_has_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        BlackwellStrategy(**fields)
