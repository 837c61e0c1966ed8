"""What is usually right about good schedules: with it a model is decided sooner, and its "no" proves nothing."""

from __future__ import annotations

from itertools import permutations

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.literals import always, negated
from warpplan.planner.problem.formulation import Problem


def in_step(model: IntervalModel) -> None:
    """Every clone does what the first does, an equal part of the turn later."""
    index, clones = model.problem.graph.index, model.problem.graph.clones
    for at, clone in enumerate(clones):
        later = model.ii * at // len(clones)
        for one, other in zip(clones[0], clone, strict=True) if at else ():
            model.cp.add(model.start[index[other]] == model.start[index[one]] + later)


def gapless(problem: Problem, ii: int) -> list[list[int]]:
    """The users of each unit that leaves no room for a barrier, where they take the issue slot for as long."""
    found = []
    for unit, capacity in problem.graph.units:
        users = [i for i, op in enumerate(problem.ops) if op.unit == unit and op.occupancy]
        held = all(problem.ops[i].issue >= problem.ops[i].occupancy for i in users)
        left = ii - sum(problem.ops[i].occupancy for i in users)
        if capacity == 1 and held and len(users) > 2 and left < problem.graph.limits.barrier_cycles:
            found.append(users)
    return found


def in_turn(model: IntervalModel) -> None:
    """On a unit without gaps, partitions take turns: in one of them, barriers between two users would need a gap."""
    ops = model.problem.ops
    for users in gapless(model.problem, model.ii):
        for a, b in permutations(users, 2):
            if always(model.crosses(a, b)):
                continue
            between = min(ops[i].occupancy for i in users if i not in (a, b))
            where = [x for x in (model.earlier(a, b), negated(model.crosses(a, b))) if not isinstance(x, int)]
            start, other = model.phase[a], model.phase[b]
            model.cp.add(other >= start + ops[a].occupancy + between).only_enforce_if(where)
            model.cp.add(start + model.ii >= other + ops[b].occupancy + between).only_enforce_if(where)


def by_clone(problem: Problem) -> tuple[int, ...] | None:
    """Partitions: each clone in one of its own; what they share in one more, or in the first one's."""
    graph = problem.graph
    if not problem.clone_order or problem.pins:
        return None
    home = {graph.index[op]: at for at, clone in enumerate(graph.clones) for op in clone}
    for shared in (len(graph.clones), 0):
        found = [home.get(i, shared) for i in range(len(graph.ops))]
        partitions = tuple(found[c] for c in problem.cluster)
        if max(partitions) < problem.most_partitions:
            return partitions
    return None
