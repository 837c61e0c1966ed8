"""Every technique of the search can be switched off: the answers stay right, and every constant says what it is."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings

from warpplan.planner.check.plan_check import check
from warpplan.planner.solve import solve
from warpplan.planner.values import search_params
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.search_params import SearchParams

from .. import strategies as given_

TECHNIQUES = [field.name for field in fields(SearchParams) if field.type == "bool"]
WORK_S = 0.5


def without(*techniques: str) -> SolveOptions:
    return SolveOptions(work_limit_s=WORK_S, search=replace(SearchParams(), **dict.fromkeys(techniques, False)))


def agree(graph: DependenceGraph, options: SolveOptions) -> None:
    """Whatever is proven with the techniques and without, both are true of one graph."""
    known, found = solve(graph, SolveOptions(work_limit_s=WORK_S)), solve(graph, options)
    assert found.plan is None or check(found.plan, graph) == ()
    for one, other in ((known, found), (found, known)):
        if one.status == "infeasible":
            assert other.plan is None
        if one.plan is not None:
            assert other.bound <= one.plan.schedule.ii_cycles


@pytest.mark.parametrize("technique", TECHNIQUES)
@settings(max_examples=3, deadline=None)
@given(graph=given_.graphs(most_ops=12, most_partitions=3, rules=True))
def test_without_a_technique_no_answer_is_wrong(technique: str, graph: DependenceGraph):
    agree(graph, without(technique))


@settings(max_examples=8, deadline=None)
@given(graph=given_.graphs(most_ops=12, rules=True))
def test_without_any_technique_no_answer_is_wrong(graph: DependenceGraph):
    agree(graph, without(*TECHNIQUES))


def attention(clones: int) -> DependenceGraph:
    """Loads, and per clone two products with an exponential between: memory for all rings at once is short."""
    ops = [
        Operation(name, "TMA", 600, 130, 30, buffer_bytes=16384, alignment=1024, spread=40)
        for name in ("load_k", "load_v")
    ]
    edges = []
    for i in range(clones):
        ops += [
            Operation(f"qk{i}", "TENSOR", 300, 256, 30, min_warps=4, registers=64),
            Operation(f"exp{i}", "SFU", 280, 256, 256, min_warps=4, registers=32),
            Operation(f"pv{i}", "TENSOR", 300, 256, 30, min_warps=4, registers=64),
        ]
        edges += [Dependence("load_k", f"qk{i}"), Dependence(f"qk{i}", f"exp{i}"), Dependence(f"exp{i}", f"pv{i}")]
        edges += [Dependence("load_v", f"pv{i}"), Dependence(f"pv{i}", f"pv{i}", 1)]
    limits = Limits(4, smem_bytes=40_000, handoff_cycles=60, barrier_cycles=10)
    return DependenceGraph("attention", tuple(ops), tuple(edges), limits)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_loop_of_two_products_is_planned_without_any_one_technique(technique: str):
    graph = attention(2)
    outcome = solve(graph, without(technique))
    assert outcome.plan is not None
    assert outcome.bound <= solve(graph).plan.schedule.ii_cycles <= outcome.plan.schedule.ii_cycles


def test_every_constant_and_every_technique_says_what_it_is():
    for made in ast.parse(inspect.getsource(search_params)).body:
        if not isinstance(made, ast.ClassDef):
            continue
        for one, following in zip(made.body, [*made.body[1:], None], strict=True):
            if isinstance(one, ast.AnnAssign) and not ast.unparse(one.annotation).endswith("Params"):
                told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                assert told, f"{made.name}.{ast.unparse(one.target)}"


def test_parameters_are_values():
    assert SearchParams() == SearchParams()
    assert hash(SearchParams()) == hash(SearchParams())
    assert SolveOptions() == SolveOptions()
