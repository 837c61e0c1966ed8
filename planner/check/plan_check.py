"""Whether a plan is right: every rule of RULES.md verified from the plan and the graph by the obvious method.

The checker shares no code with the solver: a mistake in one must not hide in the other. Here is the plan's shape;
:mod:`~warpplan.planner.check.schedule_rules` has rules 0 to 5, :mod:`~warpplan.planner.check.memory_rules` 6 and 7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from warpplan.planner.check import schedule_rules
from warpplan.planner.check.memory_rules import Extra, memory
from warpplan.planner.check.schedule_rules import Spilled, Steady
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Plan

MAX_THREAD_REGISTERS = 255
"""A thread can address no more (CUDA C++ Programming Guide, "Compute Capabilities")."""


def check(
    plan: Plan,
    graph: DependenceGraph,
    *,
    slack_cycles: int = 0,
    spills: Sequence[Spilled] = (),
    extras: Sequence[Extra] | None = None,
    most_registers: int = MAX_THREAD_REGISTERS,
) -> tuple[str, ...]:
    """Every rule that ``plan`` breaks, naming the element, its value and the limit; empty for a valid plan.

    ``slack_cycles`` is the margin each ring must keep beyond its live range, ``spills`` what ptxas reported, ``extras``
    the buffers that have to be there besides the rings (``None``: not known). ``most_registers`` a thread are 240 where
    the partitions are the solver's own.
    """
    broken = tuple(_shape(plan, graph))
    if broken:
        return broken  # The rules speak of placements that must exist first.
    s = Steady(plan, graph)
    return (
        *schedule_rules.dependences(s),
        *schedule_rules.units(s),
        *schedule_rules.shared_resources(s),
        *schedule_rules.issue(s),
        *schedule_rules.retirement(s),
        *schedule_rules.assignment(s),
        *schedule_rules.registers(s, spills, most_registers),
        *memory(s, slack_cycles, extras),
    )


def _shape(plan: Plan, graph: DependenceGraph) -> Iterator[str]:
    ii, placements = plan.schedule.ii_cycles, plan.schedule.placements
    if plan.graph != graph.name:
        yield f"plan of graph {plan.graph!r}, checked against {graph.name!r}"
    if ii < 1:
        yield f"initiation interval {ii}: expected 1 or more"
        return
    placed = Counter(p.op for p in placements)
    for op in graph.ops:
        if placed[op.id] != 1:
            yield f"operation {op.id}: placed {placed[op.id]} times, expected once"
    listed = Counter((op, g) for g, partition in enumerate(plan.partitions) for op in partition.ops)
    for p in placements:
        if p.op not in graph.by_id:
            yield f"operation {p.op}: placed, but not in the graph"
        if p.cycle < 0 or p.cycle != p.phase + ii * p.stage or not 0 <= p.phase < ii:
            yield f"operation {p.op}: cycle {p.cycle} is not phase {p.phase} + {ii} x stage {p.stage}"
        if not 0 <= p.partition < len(plan.partitions):
            yield f"operation {p.op}: partition {p.partition} of {len(plan.partitions)}"
        elif listed.pop((p.op, p.partition), 0) != 1:
            yield f"operation {p.op}: not once in the list of its partition {plan.partitions[p.partition].name}"
    for op_id, g in listed:
        yield f"operation {op_id}: listed by partition {plan.partitions[g].name}, where it is not placed"
    if max(placed.values(), default=0) == 1 and [p.op for p in placements if p.op in graph.by_id] != list(graph.by_id):
        yield "placements: expected in the graph's order"
    for name, count in Counter(p.name for p in plan.partitions).items():
        if count > 1:
            yield f"partition {name}: {count} of one name"
    for partition in plan.partitions:
        if partition.warps not in (1, 2, 4, 8):
            yield f"partition {partition.name}: {partition.warps} warps, expected 1, 2, 4 or 8"
    if len(plan.partitions) > graph.limits.max_partitions:
        yield f"partitions: {len(plan.partitions)} of at most {graph.limits.max_partitions}"
