"""Kernels at the cut become loops: what works in them, what flows, where it stands in the source, what is refused."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from cut_kernels import OWN, cut, line
from zoo import ZOO

from warpplan.kernels.compiler.analysis.capture import Body, Captured, capture, producer_slice
from warpplan.kernels.compiler.analysis.loop_work import MOST_WORK
from warpplan.kernels.compiler.ttgir import ir
from warpplan.kernels.compiler.ttgir.ir import MalformedIR
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations

pytestmark = pytest.mark.matrix
READABLE = [*OWN, *ZOO]


def captured(name: str) -> Captured:
    return capture(cut(name))


def only_loop(name: str) -> Body:
    (loop,) = captured(name).loops
    return loop


def flows(loop: Body) -> set[tuple[str, str, int]]:
    """By the names before the @, which are unique in the loops that ask."""
    return {(f.src.split("@")[0], f.dst.split("@")[0], f.distance) for f in loop.flows}


def test_a_product_loop_is_its_loads_and_its_product() -> None:
    loop = only_loop("matmul")
    assert [(w.id, w.kind, w.shape) for w in loop.work] == [
        (f"x@{line('matmul', 'x = a.load')}", "tma_load", (128, 64)),
        (f"y@{line('matmul', 'y = b.load')}", "tma_load", (256, 64)),
        (f"acc@{line('matmul', 'acc = tl.dot')}", "dot", (128, 256)),
    ]
    a, b, product = loop.work
    assert (a.buffer_bytes, b.buffer_bytes, product.register_bits) == (128 * 64 * 2, 256 * 64 * 2, 128 * 256 * 32)
    assert product.product is not None
    assert (product.product.m, product.product.n, product.product.k, product.product.a) == (128, 256, 64, "shared")
    assert flows(loop) == {("x", "acc", 0), ("y", "acc", 0), ("acc", "acc", 1)}
    assert next(f for f in loop.flows if f.distance).accumulates
    assert loop.rows == 128


def test_an_attention_loop_has_every_step_with_its_line() -> None:
    loop = only_loop("attention")
    by_kind = {kind: [w.id for w in loop.of_kind(kind)] for kind in ("tma_load", "dot", "reduce", "sfu")}
    assert [len(ids) for ids in by_kind.values()] == [2, 2, 2, 2]
    assert by_kind["tma_load"] == [
        f"key@{line('attention', 'key = k.load')}", f"value@{line('attention', 'value = v.load')}",
    ]  # fmt: skip
    parts = {part.kind for work in loop.work for part in work.parts}
    assert parts == {"tma_load", "elementwise", "row_max", "row_sum", "exp2", "convert"}
    second = loop.of_kind("dot")[1]
    assert second.product is not None
    assert second.product.a == "register"
    # The helper's own line, not that of its caller; a reduction's is the user's, not the library's.
    weights = Path(__file__).with_name("cut_kernels.py").read_text().splitlines()
    inlined = next(i for i, row in enumerate(weights, 1) if "return tl.exp2(s - limit" in row)
    assert any(w.lines == (f"cut_kernels.py:{inlined}",) for w in loop.of_kind("sfu"))
    assert {w.line for w in loop.of_kind("reduce")} == {
        line("attention", "new = tl.maximum"), line("attention", "total = total * alpha"),
    }  # fmt: skip


def test_carried_values_come_from_the_iteration_before() -> None:
    loop = only_loop("attention")
    carried = {(f.src.split("@")[0], f.dst.split("@")[0]) for f in loop.flows if f.distance == 1}
    assert ("acc", "acc") in carried
    assert any(src.startswith("total") and dst.startswith("total") for src, dst in carried)
    assert all(f.distance in (0, 1) for f in loop.flows)


def test_the_rows_of_a_tile_are_followed_and_its_columns_are_not() -> None:
    loop = only_loop("attention")
    assert all(w.rows for w in loop.work if w.kind not in ("tma_load",))
    assert not any(w.rows for w in loop.of_kind("tma_load"))  # keys and values are for all rows
    weights = captured("int8_weights").loops[0]
    assert not any(w.rows for w in weights.work if w.kind in ("shared_load", "elementwise", "shared_store"))


def test_a_branch_and_a_loaded_index() -> None:
    loop = only_loop("chosen_blocks")
    assert [w.kind for w in loop.work if w.conditional] == ["tma_load", "tma_load", "dot"]
    index = loop.of_kind("load")[0]
    assert index.id == f"k@{line('chosen_blocks', 'k = tl.load')}"
    assert index.id in producer_slice(loop)


def test_an_address_that_the_consumers_compute_is_an_obstacle() -> None:
    obstacle = captured("chased").obstacle(only_loop("chased").id)
    assert obstacle is not None
    assert obstacle.operation == "tt.descriptor_load"
    assert obstacle.line == line("chased", "acc = tl.dot")
    assert "which the consumers compute" in str(obstacle)


def test_accesses_to_one_array_stay_in_order() -> None:
    loop = only_loop("in_place")
    tokens = {(f.src.split("@")[0], f.dst.split("@")[0], f.distance) for f in loop.flows if f.kind == "token"}
    assert tokens == {("load", "store", 0), ("store", "load", 1)}
    read = loop.of_kind("shared_load")
    assert [w.id.split("@")[0] for w in read] == ["tile.local_load"]
    assert loop.trips == 16


def test_the_end_of_a_tile_in_a_flattened_loop_is_rare() -> None:
    loop = next(body for body in captured("persistent_flattened").loading)
    assert {w.kind for w in loop.work if w.rare} >= {"tma_store"}
    assert not any(w.rare for w in loop.work if w.kind in ("dot", "tma_load"))


def test_nested_loops_name_the_one_around() -> None:
    outer, inner = captured("persistent_split_epilogue").loops
    assert inner.parent == outer.id
    assert captured("persistent_split_epilogue").loading == (inner,)
    assert [w.kind for w in outer.of_kind("loop")] == ["loop"]


@pytest.mark.parametrize(
    ("name", "why", "operation"),
    [
        ("pointers", "loads through pointers", "tt.load"),
        ("swiglu", "loads through pointers", "tt.load"),
        ("dropout", "no loop", "tt.func"),
    ],
)
def test_what_cannot_be_planned_is_said_with_operation_and_line(name: str, why: str, operation: str) -> None:
    obstacle = captured(name).obstacle()
    assert obstacle is not None
    assert why in str(obstacle)
    assert obstacle.operation == operation
    assert bool(operation) == obstacle.line.startswith("zoo_")


@pytest.mark.parametrize("name", READABLE)
def test_a_kernel_of_any_kind_is_captured(name: str) -> None:
    """Few operations a loop, each with a place; flows between them; an order that one thread can run."""
    kernel = captured(name)
    assert kernel.capability == 90
    text = cut(name)
    assert len(kernel.loops) == text.count("scf.for ") + text.count("scf.while ")
    loads = sum(len(body.of_kind("tma_load")) for body in (kernel.body, *kernel.loops))
    assert loads == text.count("tt.descriptor_load ")
    products = sum(len(body.of_kind("dot")) for body in (kernel.body, *kernel.loops))
    assert products == text.count("ttng.warp_group_dot ") + text.count("tt.dot ")
    for body in kernel.loops:
        assert len(body.work) <= MOST_WORK
        at = {work.id: i for i, work in enumerate(body.work)}
        assert len(at) == len(body.work)
        assert all(work.line for work in body.work)
        for flow in body.flows:
            assert flow.distance > 0 or at[flow.src] < at[flow.dst]
    if name in ZOO and ZOO[name].loads:
        assert kernel.loading


def test_products_of_a_loop_that_does_not_count_are_remarked_upon() -> None:
    (remark,) = captured("while_loop").remarks
    assert remark.operation == "ttng.warp_group_dot"
    assert "ends before the next one begins" in str(remark)
    assert captured("while_loop").obstacles == captured("attention").remarks == ()


def test_reading_is_deterministic() -> None:
    assert capture(cut("attention")) == capture(cut("attention"))


def test_names_that_sibling_loops_share_are_kept_apart() -> None:
    """Triton prints the same names in blocks beside each other: each loop's product must leave its own tile."""
    first, second = captured("tutorial_causal").loops
    assert [w.register_bits for w in first.of_kind("dot")] == [w.register_bits for w in second.of_kind("dot")]
    assert all(w.register_bits for w in first.of_kind("dot"))


def test_a_kernel_with_a_way_out_is_captured_like_any_other() -> None:
    (loop,) = captured("gathered_experts").loops
    assert [w.kind for w in loop.work if w.kind in ("load", "tma_load", "dot")] == ["load", "tma_load", "dot"]
    assert captured("gathered_experts").obstacles == ()


def test_damaged_text_is_refused_and_never_anything_else() -> None:
    lines = cut("attention").split("\n")
    chance = random.Random(1)
    for _ in range(60):
        damaged = list(lines)
        at = chance.randrange(len(damaged))
        damaged[at : at + chance.choice((1, 1, 2))] = chance.choice(([], [damaged[chance.randrange(len(damaged))]]))
        try:
            found = capture("\n".join(damaged))
        except MalformedIR:
            continue
        assert isinstance(found, Captured)


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ('"dir/k.py":4:2', ("", "k.py", 4)),
        ('"acc"("dir/k.py":4:2)', ("acc", "k.py", 4)),
        ('callsite("x"("a/k.py":9:1) at "a/k.py":30:1)', ("x", "k.py", 9)),
        ('callsite("/p/triton/language/standard.py":43:17 at "n"("a/k.py":8:33))', ("n", "k.py", 8)),
        ('fused["/p/triton/language/core.py":1:1, "y"("a/k.py":5:1)]', ("y", "k.py", 5)),
        ('fused<"tag">["a/k (1).py":7:1]', ("", "k (1).py", 7)),
        ("unknown", ("", "", 0)),
        ("#loc404", ("", "", 0)),
        ("#loc1", ("", "", 0)),
        ("callsite(unknown at unknown)", ("", "", 0)),
        ('"/p/triton/language/standard.py":43:17', ("", "standard.py", 43)),
    ],
)
def test_a_location_of_any_form_gives_the_users_place(location: str, place: tuple[str, str, int]) -> None:
    module = ir.Module([], ir.IrOperation("module"), ["#loc1 = loc(#loc2)", "#loc2 = loc(#loc1)"])
    found = SourceLocations(module).of(ir.IrOperation("x", location=location))
    assert (found.name, found.file, found.line) == place
