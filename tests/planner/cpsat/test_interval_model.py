"""The constraint model of one interval: no-good cuts, hints, values that outlive many intervals."""

from __future__ import annotations

from itertools import pairwise

import pytest

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import PROOF_SEED, SearchSeed, run
from warpplan.planner.cpsat.sharing_constraints import NoGoodCut
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.portfolio import MIXED
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions

from ..strategies import two_clones


def test_values_that_outlive_many_intervals_are_feasible():
    """A hundred cycles of latency at three cycles an iteration: 34 copies of each value, one register each."""
    loose = tuple(Operation(f"op{i}", "ALU", 100, 1, 1, registers=1) for i in range(3))
    assert solve(DependenceGraph("loose", loose, (), Limits(2))).plan.schedule.ii_cycles == 3
    values = tuple(Operation(f"value{i}", "TMA", 90, 1, 0, registers=1) for i in range(3))
    chain = tuple(Operation(f"op{i}", "ALU", 2, int(i < 3), 0) for i in range(9))
    edges = tuple(Dependence(a.id, b.id) for a, b in pairwise(chain))
    graph = DependenceGraph("chain", values + chain, edges, Limits(2, handoff_cycles=0))
    assert run(IntervalModel(Problem(graph, SolveOptions()), 3).cp, 5.0)[0] == "yes"


def test_a_no_good_cut_of_a_ring_that_does_not_exist_excludes_nothing():
    """exp0 reads mma0's registers: a ring only where the two are apart."""
    graph = two_clones()
    together = SolveOptions(pinned={op.id: 0 for op in graph.ops})
    model = IntervalModel(Problem(graph, together), 200, memory="shared")
    model.forbid(NoGoodCut(((graph.index["mma0"], 1),), ()))
    assert run(model.cp, 5.0)[0] == "yes"


def test_a_no_good_cut_excludes_a_number_of_slots():
    problem = Problem(two_clones(), SolveOptions())
    model = IntervalModel(problem, 100, memory="shared")
    model.cp.add(model.depth[0] >= 2)
    assert run(model.cp, 5.0)[0] == "yes"
    model.forbid(NoGoodCut(((0, 2),), ()))
    assert run(model.cp, 5.0)[0] == "no"
    with pytest.raises(ValueError, match="memory='shared'"):
        IntervalModel(problem, 100).forbid(NoGoodCut(((0, 2),), ()))


def test_a_model_begins_with_what_is_known():
    problem = Problem(two_clones(), SolveOptions())

    def found(seed: SearchSeed = PROOF_SEED, known: Assignment | None = None) -> Assignment:
        model = IntervalModel(problem, 100)
        if known is not None:
            model.begin_with(known)
        answer, solver = run(model.cp, 5.0, seed=seed)
        assert answer == "yes"
        return model.read(solver)

    ways = [found(MIXED.slot(attempt)) for attempt in range(1, 6)]
    others = [known for known in ways if known.starts != found().starts]
    assert others
    assert all(found(known=known).starts == known.starts for known in others)


@pytest.mark.parametrize(("slots", "answer"), [(2, "no"), (3, "yes")])
def test_rings_that_meet_two_by_two_lie_side_by_side(slots, answer):
    """Three slots of the same size, held during [0, 14), [10, 24) and [20, 34) of an interval of 30: at each moment two
    at most are held, and no two of them can share a place."""
    interval, later = 30, 10
    rings = [Operation(f"ring{i}", "TMA", 4, 1, 0, buffer_bytes=1024, alignment=1024) for i in range(3)]
    readers = [Operation(f"reader{i}", "ALU", 10, 1, 0) for i in range(3)]
    edges = [Dependence(ring.id, reader.id) for ring, reader in zip(rings, readers, strict=True)]
    for one, other in pairwise(rings):  # Each starts exactly ``later`` cycles after the one before.
        edges += [Dependence(one.id, other.id, 0, "token", later)]
        edges += [Dependence(other.id, one.id, 1, "token", interval - later)]
    for ring, reader in zip(rings, readers, strict=True):  # Read as soon as it is filled.
        edges += [Dependence(reader.id, ring.id, 1, "token", interval - 4)]
    limits = Limits(1, smem_bytes=1024 * slots, handoff_cycles=0)
    problem = Problem(DependenceGraph("circle", (*rings, *readers), tuple(edges), limits), SolveOptions())
    assert run(IntervalModel(problem, interval, memory="shared").cp, 5.0)[0] == answer
