"""Registers in the constraint model: per partition the largest sum of live values, and what all partitions take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warpplan.planner.cpsat import given, negated, never
from warpplan.planner.problem import REGISTER_COUNTS, WARP_COUNTS, WARP_GROUP, Problem, whole_multiple

if TYPE_CHECKING:
    from warpplan.planner.model import Model

WARP = 32


@dataclass(frozen=True)
class Life:
    """A value is live for ``turns`` whole turns of the circle and, from its start on, ``rest`` cycles: until ``end``
    (phase + rest). Numbers where the dependences alone say it, variables else."""

    op: int
    turns: Any
    rest: Any
    end: Any


def add_registers(model: Model) -> None:
    """Rule 5."""
    problem = model.problem
    specs = problem.options.partitions
    if not may_bind(problem):
        return
    lives = [_life(model, i) for i, op in enumerate(problem.ops) if op.registers]
    totals = []
    for g in range(model.count):
        if specs:
            _live_values(model, g, lives, specs[g].registers)
            continue
        octets = model.cp.new_int_var(REGISTER_COUNTS[0] // 8, REGISTER_COUNTS[-1] // 8, "")
        _live_values(model, g, lives, 8 * octets)
        _spills(model, g, octets)
        totals.append(_taken(model, g, octets))
    if totals:
        model.cp.add(sum(totals) <= problem.graph.limits.registers)


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


def _life(model: Model, i: int) -> Life:
    problem, ii = model.problem, model.ii
    op, readers = problem.ops[i], problem.readers[i]
    if op.buffer_bytes or not readers:
        return _known(model, i, op.latency)
    if all(reader == i for reader, _ in readers):
        return _known(model, i, ii * max(edge.distance for _, edge in readers))
    turns = model.cp.new_int_var(0, _most_turns(model, i), "")
    rest = model.cp.new_int_var(0, ii - 1, "")
    until = model.start[i] + ii * turns + rest
    for reader, edge in readers:
        apart = model.crosses(i, reader)
        together = negated(apart)
        if not never(together):
            given(model.cp.add(until >= model.start[reader] + ii * edge.distance), together)
        if not never(apart):
            handed = problem.latency(edge) + problem.graph.edge_handoff(edge)
            given(model.cp.add(ii * turns + rest >= handed), apart)
    end = model.cp.new_int_var(0, 2 * ii, "")
    model.cp.add(end == model.phase[i] + rest)
    return Life(i, turns, rest, end)


def _most_turns(model: Model, i: int) -> int:
    readers = model.problem.readers[i]
    slowest = max(model.problem.latency(e) + model.problem.graph.edge_handoff(e) for _, e in readers)
    return model.distances + model.stages + 2 + slowest // model.ii


def _known(model: Model, i: int, cycles: int) -> Life:
    rest = cycles % model.ii
    return Life(i, cycles // model.ii, rest, model.phase[i] + rest)


def _live_values(model: Model, g: int, lives: list[Life], registers: Any) -> None:
    """What is live in partition ``g`` at once, on top of the base, is within ``registers``."""
    intervals, demands, always = [], [], []
    for life in lives:
        inside = model.inside(life.op, g)
        count = model.problem.ops[life.op].registers
        if never(inside):
            continue
        if isinstance(life.turns, int):
            always.append(count * life.turns * inside)
        elif isinstance(inside, int):
            always.append(count * life.turns)
        else:
            here = model.cp.new_int_var(0, _most_turns(model, life.op), "")
            given(model.cp.add(here >= life.turns), inside)
            always.append(count * here)
        if isinstance(life.rest, int) and not life.rest:
            continue
        for turn in (0, model.ii):
            begin, end = model.phase[life.op] + turn, life.end + turn
            intervals.append(model.cp.new_optional_interval_var(begin, life.rest, end, inside, ""))
            demands.append(count)
    room = model.cp.new_int_var(0, 255, "")
    model.cp.add(room + sum(always) + model.problem.graph.limits.base_registers <= registers)
    if intervals:
        model.cp.add_cumulative(intervals, demands, room)


def _spills(model: Model, g: int, octets: Any) -> None:
    """A reported spill asks for more of a partition that has all its operations."""
    index = model.problem.graph.index
    for spill in model.problem.options.spills:
        outside = [negated(model.inside(index[name], g)) for name in spill.ops]
        enough = model.cp.new_bool_var("")
        model.cp.add(8 * octets >= spill.registers + 1).only_enforce_if(enough)
        model.cp.add_bool_or([enough, *outside])


def _taken(model: Model, g: int, octets: Any) -> Any:
    """32 · warps rounded up to 4 · registers, 0 where the partition is empty."""
    total = model.cp.new_int_var(0, WARP * WARP_COUNTS[-1] * REGISTER_COUNTS[-1], "")
    for i in model.ops:
        inside = model.inside(i, g)
        if not never(inside):
            warps = whole_multiple(model.problem.warps[i], WARP_GROUP)
            given(model.cp.add(total >= WARP * warps * 8 * octets), inside)
    return total
