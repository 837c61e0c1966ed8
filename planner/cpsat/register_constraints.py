"""Registers in the constraint model (rule 5): what is live in each partition, and what all partitions take together.

How many copies of a value are live at a moment is a difference of stages, corrected by which phase comes first. The
most are live when some value is born, so these moments alone are constrained: no interval, no length, nothing but the
order of the phases, of which the search then learns. (Intervals of variable length on a cumulative circle of II cycles
took 10 to 100 times as long, or found nothing.)
"""

from __future__ import annotations

from typing import Any

from warpplan.planner.cpsat.literals import Truth, always, given, negated, never
from warpplan.planner.cpsat.variables import ModelVariables
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.terms import REGISTER_COUNTS, WARP, WARP_COUNTS, WARP_GROUP, whole_multiple

Death = tuple[int, int, Truth]
"""(event, iterations, literal): where the literal holds, a value is live until the event ``iterations`` later."""


def add_registers(model: ModelVariables) -> None:
    problem = model.problem
    specs = problem.options.partitions
    if not may_bind(problem):
        return
    given_counts = [spec.registers for spec in specs]
    octets = [] if specs else [
        model.cp.new_int_var(REGISTER_COUNTS[0] // 8, REGISTER_COUNTS[-1] // 8, "") for _ in range(model.count)
    ]  # fmt: skip
    counts: list[Any] = [*given_counts, *(8 * count for count in octets)]
    _live_values(model, counts)
    for g, count in enumerate(octets):
        model.cp.add(8 * count >= problem.graph.limits.base_registers)
        _spills(model, g, count)
    if octets:
        model.cp.add(sum(_taken(model, g, count) for g, count in enumerate(octets)) <= problem.graph.limits.registers)


def may_bind(problem: Problem) -> bool:
    """Whether registers can be short at all: not where nothing takes any and the smallest partitions fit."""
    limits, specs = problem.graph.limits, problem.options.partitions
    if specs:
        return any(op.registers for op in problem.ops)
    widest = WARP * WARP_COUNTS[-1] * REGISTER_COUNTS[0] * problem.most_partitions
    return (
        any(op.registers for op in problem.ops)
        or bool(problem.options.spills)
        or limits.base_registers > REGISTER_COUNTS[0]
        or widest > limits.registers
    )


def _live_values(model: ModelVariables, counts: list[Any]) -> None:
    """At each birth, what is live in the value's partition, on top of the base, is within the partition's registers."""
    problem = model.problem
    values = [i for i, op in enumerate(problem.ops) if op.registers]
    deaths, most = {i: _deaths(model, i) for i in values}, _most_copies(model)
    for born in values:
        live = []
        for i in values:
            together = negated(model.crosses(i, born))
            if not never(together):
                live.append(problem.ops[i].registers * _copies(model, i, deaths[i], born, together, most))
        needed = sum(live) + problem.graph.limits.base_registers
        for g, count in enumerate(counts):
            inside = model.inside(born, g)
            if not never(inside):
                given(model.cp.add(needed <= count), inside)
    if model.tight:
        _live_on_average(model, counts, {i: _life(model, i) for i in values})


def _live_on_average(model: ModelVariables, counts: list[Any], lives: dict[int, Any]) -> None:
    """Follows from what is live at each moment, summed over the circle."""
    problem, longest = model.problem, model.ii * (_most_copies(model) + 1)
    for g, count in enumerate(counts):
        if isinstance(count, int) and count < problem.graph.limits.base_registers:
            continue  # As the caller dimensioned it: it may stay empty.
        area: Any = model.ii * problem.graph.limits.base_registers
        for i, life in lives.items():
            inside = model.inside(i, g)
            if never(inside):
                continue
            if isinstance(life, int) or always(inside):
                here = life * inside
            else:
                here = model.cp.new_int_var(0, longest, "")
                given(model.cp.add(here >= life), inside)
            area = area + problem.ops[i].registers * here
        model.cp.add(area <= model.ii * count)


def _life(model: ModelVariables, i: int) -> Any:
    """At least the cycles for which the value is live."""
    problem = model.problem
    if problem.ops[i].buffer_bytes or not problem.readers[i]:
        return problem.ops[i].latency
    life = model.cp.new_int_var(0, model.ii * (_most_copies(model) + 1), "")
    for reader, edge in problem.readers[i]:
        apart = model.crosses(i, reader)
        if not always(apart):
            read = model.start[reader] + model.ii * edge.distance
            given(model.cp.add(life >= read - model.start[i]), negated(apart))
        if not never(apart):
            given(model.cp.add(life >= problem.latency(edge) + problem.graph.edge_handoff(edge)), apart)
    return life


def _deaths(model: ModelVariables, i: int) -> list[Death]:
    """A value is held until its last reader in the same partition starts; on its way to a buffer or to another
    partition, until it is written."""
    problem = model.problem
    if problem.ops[i].buffer_bytes or not problem.readers[i]:
        return [(model.event(i, problem.ops[i].latency), 0, 1)]
    found: list[Death] = []
    for reader, edge in problem.readers[i]:
        apart = model.crosses(i, reader)
        if not always(apart):
            found.append((reader, edge.distance, negated(apart)))
        if not never(apart):
            found.append((model.event(i, problem.latency(edge) + problem.graph.edge_handoff(edge)), 0, apart))
    return found


def _copies(model: ModelVariables, i: int, deaths: list[Death], born: int, together: Truth, most: int) -> Any:
    """At least the copies of ``i``'s value that are live when ``born`` is, where both are ``together``."""

    def until(event: int, iterations: int) -> Any:
        copies_ = model.stage[event] + iterations - model.stage[i]
        return copies_ + model.earlier(born, event) - model.earlier(born, i)

    if len(deaths) == 1 and always(together) and always(deaths[0][2]):
        return until(*deaths[0][:2])
    copies = model.cp.new_int_var(0, most, "")
    for event, iterations, literal in deaths:
        rule = model.cp.add(copies >= until(event, iterations))
        conditions = [x for x in (literal, together) if not always(x)]
        if conditions:
            rule.only_enforce_if(conditions)
    return copies


def _most_copies(model: ModelVariables) -> int:
    """What stages, distances and latencies allow: a value on its way is live for its latency, whatever the stages."""
    problem = model.problem
    late = [problem.latency(edge) + problem.graph.edge_handoff(edge) for edge in problem.graph.edges]
    return model.stages + model.distances + 2 + max([*late, *(op.latency for op in problem.ops)]) // model.ii


def _spills(model: ModelVariables, g: int, octets: Any) -> None:
    """A reported spill asks for more of a partition that has all its operations."""
    index = model.problem.graph.index
    for spill in model.problem.options.spills:
        outside = [negated(model.inside(index[name], g)) for name in spill.ops]
        enough = model.cp.new_bool_var("")
        model.cp.add(8 * octets >= spill.registers + 1).only_enforce_if(enough)
        model.cp.add_bool_or([enough, *outside])


def _taken(model: ModelVariables, g: int, octets: Any) -> Any:
    """32 · warps rounded up to 4 · registers, 0 where the partition is empty."""
    total = model.cp.new_int_var(0, WARP * WARP_COUNTS[-1] * REGISTER_COUNTS[-1], "")
    for i in model.ops:
        inside = model.inside(i, g)
        if not never(inside):
            warps = whole_multiple(model.problem.warps[i], WARP_GROUP)
            given(model.cp.add(total >= WARP * warps * 8 * octets), inside)
    return total
