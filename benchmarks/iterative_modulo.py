"""Plain iterative modulo scheduling (Rau, MICRO 1994): the peer of ``bench_modulo.py`` on loops that no program solves.

Written from the paper and sharing no code with the planner: interval by interval from MinII, operations by height, each
at the first cycle of one interval where its resources are free, else forced in, evicting what is in its way.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass
from typing import Any

from warpplan.planner.values.dependence_graph import DependenceGraph

PLACEMENTS_PER_OPERATION = 6
"""Rau's budget ratio: placements of one interval, for each operation."""

Need = tuple[str, int, int, int]
"""Resource, amount, its capacity, cycles for which it is held."""


def smallest(graph: DependenceGraph, least: int, limit_s: float) -> dict[str, Any]:
    """The first interval from ``least`` cycles on that has a schedule, ``None`` where ``limit_s`` seconds of CPU ended
    the search."""
    began, ii = time.process_time(), least
    while time.process_time() - began < limit_s:
        attempt = Attempt(graph, ii)
        if attempt.run():
            valid = attempt.broken() == []
            return {"ii": ii, "valid": valid, "cpu_s": round(time.process_time() - began, 4)}
        ii += 1
    return {"ii": None, "valid": False, "cpu_s": round(time.process_time() - began, 4)}


@dataclass(frozen=True)
class Wait:
    """Operation ``other`` is the source, or the destination, of a dependence of ``cycles`` and ``distance``."""

    other: int
    cycles: int
    distance: int


class Attempt:
    """One interval: ``starts`` of what is placed, and the reservation ``table`` of each resource."""

    def __init__(self, graph: DependenceGraph, ii: int) -> None:
        self.ii, self.count = ii, len(graph.ops)
        self.into: list[list[Wait]] = [[] for _ in graph.ops]
        self.out: list[list[Wait]] = [[] for _ in graph.ops]
        for edge in graph.edges:
            a, b, cycles = graph.index[edge.src], graph.index[edge.dst], graph.edge_latency(edge)
            self.out[a].append(Wait(b, cycles, edge.distance))
            self.into[b].append(Wait(a, cycles, edge.distance))
        capacity = {f"unit {name}": most for name, most in graph.units}
        capacity |= {f"resource {name}": most for name, most in graph.limits.capacities}
        self.needs: list[list[Need]] = []
        for op in graph.ops:
            held = [(f"unit {op.unit}", 1)] if op.unit is not None else []
            held += [(f"resource {name}", amount) for name, amount in op.demands]
            self.needs.append([(name, amount, capacity[name], op.occupancy) for name, amount in held])
        self.table = {name: [0] * ii for name in capacity}
        self.starts: dict[int, int] = {}

    def run(self) -> bool:
        heights = self._heights()
        if heights is None:
            return False
        order = sorted(range(self.count), key=lambda i: (-heights[i], i))
        rank = {i: at for at, i in enumerate(order)}
        todo, last = list(range(self.count)), [-1] * self.count
        for _ in range(PLACEMENTS_PER_OPERATION * self.count):
            if not todo:
                return True
            i = order[heapq.heappop(todo)]
            earliest = max(
                (
                    self.starts[w.other] + w.cycles - self.ii * w.distance
                    for w in self.into[i]
                    if w.other in self.starts
                ),
                default=0,
            )
            earliest = max(0, earliest)
            at = next((t for t in range(earliest, earliest + self.ii) if self._free(i, t)), None)
            evicted: list[int] = []
            if at is None:
                at = max(earliest, last[i] + 1)
                for j in sorted(self.starts, key=lambda j: -rank[j]):
                    if self._free(i, at):
                        break
                    if self._meet(i, at, j):
                        self._hold(j, -1)
                        evicted.append(j)
                        del self.starts[j]
                if not self._free(i, at):
                    return False  # It overlaps itself too often.
            self.starts[i] = last[i] = at
            self._hold(i, 1)
            for wait in self.out[i]:
                j = wait.other
                if j != i and j in self.starts and self.starts[j] < at + wait.cycles - self.ii * wait.distance:
                    self._hold(j, -1)
                    evicted.append(j)
                    del self.starts[j]
            for j in evicted:
                heapq.heappush(todo, rank[j])
        return not todo

    def broken(self) -> list[str]:
        """The dependences and resources that the schedule breaks, counted from the starts alone."""
        found = [
            f"{i} -> {wait.other}"
            for i in range(self.count)
            for wait in self.out[i]
            if self.starts[wait.other] + self.ii * wait.distance < self.starts[i] + wait.cycles
        ]
        held: dict[tuple[str, int], int] = {}
        most = {name: capacity for needs in self.needs for name, _, capacity, _ in needs}
        for i, needs in enumerate(self.needs):
            for name, amount, _, cycles in needs:
                for t in range(self.starts[i], self.starts[i] + cycles):
                    held[name, t % self.ii] = held.get((name, t % self.ii), 0) + amount
        return found + [f"{name} in cycle {t}" for (name, t), amount in held.items() if amount > most[name]]

    def _heights(self) -> list[int] | None:
        """Longest paths to the end of the iteration; None where the interval is below RecMII."""
        heights = [0] * self.count
        for _ in range(self.count + 1):
            changed = False
            for i in range(self.count):
                for wait in self.out[i]:
                    longer = heights[wait.other] + wait.cycles - self.ii * wait.distance
                    if longer > heights[i]:
                        heights[i], changed = longer, True
            if not changed:
                return heights
        return None

    def _free(self, i: int, at: int) -> bool:
        for name, amount, capacity, cycles in self.needs[i]:
            table, (rounds, rest) = self.table[name], divmod(cycles, self.ii)
            if rounds and max(table) + rounds * amount > capacity:
                return False
            if any(table[(at + k) % self.ii] + (rounds + 1) * amount > capacity for k in range(rest)):
                return False
        return True

    def _meet(self, i: int, at: int, j: int) -> bool:
        """Whether operation j holds a resource in a cycle in which i would."""
        begin = self.starts[j]
        return any(
            name == other and ((begin - at) % self.ii < cycles or (at - begin) % self.ii < held)
            for name, _, _, cycles in self.needs[i]
            for other, _, _, held in self.needs[j]
        )

    def _hold(self, i: int, sign: int) -> None:
        for name, amount, _, cycles in self.needs[i]:
            for t in range(self.starts[i], self.starts[i] + cycles):
                self.table[name][t % self.ii] += sign * amount
