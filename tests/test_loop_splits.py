"""The loops that the solver is measured on: frozen, of the kinds and sizes that are stated, and valid problems."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from heldout.generator import EACH, FAMILIES, heldout_loop
from loop_splits import SPLITS, digest, loops
from practice.generator import practice_loop
from varied_loop import CAPACITY_KB, FACTORS, VariedLoop

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.packing.ring_layout import require_capacity
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.partition_sizes import check_given
from warpplan.planner.values.options import SolveOptions

DIGESTS = {
    "train": "b680101ddb448669cd589ded1a7f83f5fcc0ba7646640ad0d226eff8aedd6deb",
    "practice": "14613d48ff772896340d0802c14aee97905c3f8b74378a27e06f77d56c379a8e",
    "heldout": "2a1b18578807ec62655a36b6e2fb7ab4dec8df01f6e623f18edc88edbb9d3948",
}
"""No set is ever changed for the solver's sake; a change would make every recorded result incomparable."""
HELDOUT = loops("heldout")
VARIED = loops("practice") | HELDOUT


@pytest.mark.parametrize("split", SPLITS)
def test_the_loops_are_frozen(split):
    assert digest(loops(split).values()) == DIGESTS[split]


def test_there_are_enough_of_each_family_and_architecture():
    assert len(HELDOUT) == EACH * len(FAMILIES) >= 200
    kinds = Counter((g.name.split()[0], g.limits.architecture) for g in HELDOUT.values())
    assert kinds == {(family, gpu): EACH // 2 for family in FAMILIES for gpu in ("hopper", "blackwell")}
    for other in ("train", "practice"):
        assert not {g.name.split()[0] for g in loops(other).values()} & set(FAMILIES)


def test_sizes_and_capacities_are_as_stated():
    low, high = CAPACITY_KB
    for graph in HELDOUT.values():
        assert 5 <= len(graph.ops) <= 40, graph.name
        assert 60 <= low <= graph.limits.smem_bytes // 1024 <= high <= 228
        assert len(graph.clones) in (0, 2, 3)
        if graph.limits.architecture == "hopper":
            assert not any(op.memory == "tmem" for op in graph.ops)
    blackwell = [g for g in HELDOUT.values() if g.limits.architecture == "blackwell"]
    assert sum(any(op.memory == "tmem" for op in g.ops) for g in blackwell) > len(blackwell) / 2
    assert sum(len(g.clones) == 3 for g in HELDOUT.values()) >= 10
    assert sum(any(e.distance > 0 for e in g.edges) for g in HELDOUT.values()) >= 150


@pytest.mark.parametrize("name", VARIED)
def test_every_varied_loop_is_a_valid_problem(name):
    """Nothing is solved: the graph is accepted, no value is too large for its memory, and MinII exists."""
    problem = Problem(VARIED[name], SolveOptions())
    check_given(problem)
    require_capacity(problem)
    assert min_ii(problem).ii_cycles > 1


def test_a_number_alone_decides_a_loop():
    assert heldout_loop("chunk-scan", 5) == heldout_loop("chunk-scan", 5)
    assert heldout_loop("chunk-scan", 5) != heldout_loop("chunk-scan", 7)
    assert practice_loop("fourier", 5) == practice_loop("fourier", 5)


def test_costs_are_scaled_by_kind(monkeypatch):
    """Every factor is within the range, and operations of one kind in two clones stay equal."""
    drawn: list[float] = []
    finish = VariedLoop.finish

    def spied(self, *given, **more):
        drawn.extend(self.factors.values())
        return finish(self, *given, **more)

    monkeypatch.setattr(VariedLoop, "finish", spied)
    graph = heldout_loop("window-attention", 0)
    assert drawn
    assert all(FACTORS[0] <= factor <= FACTORS[1] for factor in drawn)
    assert max(drawn) / min(drawn) > 1.3
    assert graph.by_id["exp0"].latency == graph.by_id["exp1"].latency
