"""A plan's steady state as a loop of its own: retiming (Leiserson and Saxe, Algorithmica 6, 1991) by the stages.

Iteration n of the retimed loop has of each operation the iteration n − stage: what one interval of the pipeline runs
once all stages are full. Phases, partitions, rings and barriers stay as they are; an edge's distance grows by the
stages between its ends, and so does a reuse's. Retiming keeps the iterations that each cycle of dependences spans, so
that the retimed loop obeys RULES.md exactly where the plan does. It has one stage, and a play of it is in the steady
state from its first iteration on.
"""

from __future__ import annotations

from dataclasses import replace

from warpplan.planner.errors import SimulationFault
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph
from warpplan.planner.values.plan import Plan, Schedule


def steady_state(plan: Plan, graph: DependenceGraph) -> tuple[Plan, DependenceGraph]:
    """The retimed loop of ``plan`` with its plan. Raises :class:`SimulationFault` where an operation is planned
    intervals before what it depends on: such an edge has no distance of 0 or more."""
    ii = plan.schedule.ii_cycles
    stage = {p.op: p.cycle // ii for p in plan.schedule.placements}
    placements = tuple(replace(p, cycle=p.cycle % ii, stage=0, phase=p.cycle % ii) for p in plan.schedule.placements)
    edges = tuple(_retimed(e, stage, plan) for e in graph.edges)
    reuses = tuple(
        replace(r, distance=r.distance + stage.get(r.after, 0) - stage.get(r.before, 0)) for r in plan.reuses
    )
    retimed = replace(plan, schedule=Schedule(ii, placements), reuses=reuses)
    return retimed, replace(graph, edges=edges, clones=())  # Clones may be in different stages: they are no longer so.


def _retimed(edge: Dependence, stage: dict[str, int], plan: Plan) -> Dependence:
    distance = edge.distance + stage[edge.dst] - stage[edge.src]
    if distance < 0:
        at = {p.op: p.cycle for p in plan.schedule.placements}
        cycle = at[edge.dst] + plan.schedule.ii_cycles * edge.distance
        raise SimulationFault(
            f"operation {edge.dst}, iteration {edge.distance}, cycle {cycle}: planned before {edge.src} of iteration "
            f"0, which it depends on (cycle {at[edge.src]})",
            op=edge.dst, iteration=edge.distance, cycle=cycle,
        )  # fmt: skip
    return replace(edge, distance=distance)
