"""The smallest initiation interval by trying everything; shares no code with the solver or the checker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from warpplan.planner.graph import DependenceGraph

Turns = tuple[int, int, int]
"""stage[second] ≥ stage[first] + third."""


def smallest_ii(graph: DependenceGraph, most: int, most_slots: int = 4) -> int | None:
    """The least II ≤ ``most`` for which some phases, partitions, stages and rings (≤ ``most_slots``) obey every rule.

    For graphs whose values take no registers. Once phases, partitions and depths are chosen, stages are longest paths
    over whole turns, so only a positive cycle of turns can forbid them.
    """
    for ii in range(1, most + 1):
        for phases in product(range(ii), repeat=len(graph.ops)):
            if not _units_fit(graph, ii, phases):
                continue
            for homes in _homes(graph):
                if _issue_fits(graph, ii, phases, homes):
                    waits = _waits(graph, ii, phases, homes)
                    if any(_stages_exist(len(phases), waits + r) for r in _rings(graph, ii, phases, homes, most_slots)):
                        return ii
    return None


def _homes(graph: DependenceGraph) -> Iterator[tuple[int, ...]]:
    values = [e for e in graph.edges if e.kind == "data" and e.distance > 0 and not graph.by_id[e.src].buffer_bytes]
    together = [(graph.index[e.src], graph.index[e.dst]) for e in values]
    for homes in product(range(graph.limits.max_partitions), repeat=len(graph.ops)):
        if all(homes[a] == homes[b] for a, b in together):
            yield homes


def _units_fit(graph: DependenceGraph, ii: int, phases: tuple[int, ...]) -> bool:
    for unit, capacity in graph.units:
        table = [0] * ii
        for op, phase in zip(graph.ops, phases, strict=True):
            if op.unit == unit:
                for cycle in range(op.occupancy):
                    table[(phase + cycle) % ii] += 1
        if max(table) > capacity:
            return False
    return True


def _issue_fits(graph: DependenceGraph, ii: int, phases: tuple[int, ...], homes: tuple[int, ...]) -> bool:
    taken = set()
    for op, phase, home in zip(graph.ops, phases, homes, strict=True):
        for cycle in range(op.issue):
            slot = (home, (phase + cycle) % ii)
            if slot in taken:
                return False
            taken.add(slot)
    return True


def _waits(graph: DependenceGraph, ii: int, phases: tuple[int, ...], homes: tuple[int, ...]) -> list[Turns]:
    turns = []
    for e in graph.edges:
        a, b = graph.index[e.src], graph.index[e.dst]
        latency = graph.by_id[e.src].latency if e.latency is None else e.latency
        needed = latency + (graph.limits.handoff_cycles if homes[a] != homes[b] else 0) + phases[a] - phases[b]
        turns.append((a, b, -(-needed // ii) - e.distance))
    return turns


def _rings(
    graph: DependenceGraph, ii: int, phases: tuple[int, ...], homes: tuple[int, ...], most_slots: int
) -> Iterator[list[Turns]]:
    """The turns that each affordable choice of depths asks for: producers wait for the release one ring earlier."""
    producers = [i for i, op in enumerate(graph.ops) if op.buffer_bytes]
    for depths in product(range(1, most_slots + 1), repeat=len(producers)):
        turns, taken = [], 0
        for producer, depth in zip(producers, depths, strict=True):
            op = graph.ops[producer]
            taken += depth * -(-op.buffer_bytes // op.alignment) * op.alignment
            users = [e for e in graph.edges if e.src == op.id and e.kind == "data"]
            uses = [(graph.index[e.dst], e.distance) for e in users] or [(producer, 0)]
            for consumer, distance in uses:
                back = graph.limits.handoff_cycles if homes[consumer] != homes[producer] else 0
                held = graph.ops[consumer].latency + back + phases[consumer] - phases[producer]
                turns.append((consumer, producer, -(-held // ii) + distance - depth))
        if taken <= graph.limits.smem_bytes:
            yield turns


def _stages_exist(count: int, turns: list[Turns]) -> bool:
    stage = [0] * count
    for _ in range(count + 1):
        before = list(stage)
        for a, b, least in turns:
            stage[b] = max(stage[b], stage[a] + least)
        if stage == before:
            return True
    return False
