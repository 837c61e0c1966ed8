"""Dependences in the constraint model (rules 1 and 3), and their dominance cuts (ours, see
:func:`~warpplan.planner.bounds.start_windows.dominance_cuts`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warpplan.planner.cpsat.literals import Truth, given, negated
from warpplan.planner.cpsat.variables import ModelVariables


def add_dependences(model: ModelVariables) -> None:
    for arc in model.problem.dependences:
        model.starts_after(arc, -arc.distance)


def add_retirement_order(model: ModelVariables) -> None:
    """wgmma groups retire in order: with i last issued d cycles before k, k's readers wait for i's results too."""
    for i, k, edges in model.problem.retirements:
        wraps = model.cp.new_bool_var("")
        model.cp.add(model.phase[k] < model.phase[i]).only_enforce_if(wraps)
        apart = model.crosses(i, k)
        for j, edge in edges:
            handoff = model.problem.graph.edge_handoff(edge) * model.crosses(k, j)
            issued = model.phase[i] + model.ii * (model.stage[k] - wraps)
            ready = issued + model.problem.ops[i].latency + handoff
            given(model.cp.add(model.start[j] + model.ii * edge.distance >= ready), negated(apart))


def add_dominance_cuts(model: ModelVariables, cuts: Iterable[Mapping[tuple[int, int], int]]) -> None:
    """Disjunctive dominance cuts: in some best schedule at least one arc of each cut is tight to within a whole II.

    ``cuts`` are those of :func:`~warpplan.planner.bounds.start_windows.dominance_cuts`.
    """
    within: dict[tuple[int, int], Truth] = {}
    for cut in cuts:
        for (src, dst), most in cut.items():
            if len(cut) > 1 and (src, dst) in within:
                continue
            within[src, dst] = model.cp.new_bool_var("") if len(cut) > 1 else 1
            given(model.cp.add(model.start[dst] <= model.start[src] + most), within[src, dst])
        model.cp.add_bool_or([within[pair] for pair in cut])
