"""Modulo scheduling as a mixed-integer linear program, for HiGHS: the peer of ``bench_modulo.py``.

The time-indexed formulation of Eichenberger and Davidson ("Efficient formulation for optimal modulo schedulers", PLDI
1997): a[i, r] is 1 where operation i has phase r, k[i] is its stage. A dependence i → j of latency λ and distance δ is
one row for each phase r,
    Σ_{s ≥ r} a[i, s] + Σ_{s ≤ (r + λ − 1) mod II} a[j, s] + k[i] − k[j] ≤ δ − ⌊(r + λ − 1) / II⌋ + 1,
and a unit of c copies too: at most c of its operations began within their occupancy before.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from warpplan.planner.values.dependence_graph import DependenceGraph

Starts = tuple[int, ...]


class Program:
    """Rows and columns of one interval; column i · II + r is b[i, r], the last ones are the stages.

    Written with the sums b[i, r] = Σ_{s ≥ r} a[i, s] in place of a[i, r], a change of variables that keeps the
    polyhedron: a dependence's row then has 4 entries and not up to 2 II, and HiGHS is no slower with it.
    """

    def __init__(self, graph: DependenceGraph, ii: int) -> None:
        self.graph, self.ii, self.count = graph, ii, len(graph.ops)
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[int] = []
        self.upper: list[int] = []
        self._order()
        self._dependences()
        self._units()
        self.width = self.count * (ii + 1)
        shape = (len(self.upper), self.width)
        self.matrix = csr_array((self.values, (self.rows, self.columns)), shape=shape, dtype=float)

    def point(self, starts: Starts) -> Any:
        """The columns' values for a schedule."""
        phases = [np.arange(self.ii) <= start % self.ii for start in starts]
        return np.concatenate([*phases, [start // self.ii for start in starts]]).astype(float)

    def _row(self, terms: list[tuple[int, int]], upper: int) -> None:
        """Σ value · column ≤ ``upper``."""
        self.rows += [len(self.upper)] * len(terms)
        self.columns += [column for column, _ in terms]
        self.values += [value for _, value in terms]
        self.upper.append(upper)

    def _from(self, i: int, r: int) -> tuple[list[int], int]:
        """b[i, r] as columns and a constant: all phases are 0 or more, and none is II."""
        return ([], 1) if r <= 0 else ([], 0) if r >= self.ii else ([i * self.ii + r], 0)

    def _order(self) -> None:
        for i in range(self.count):
            for r in range(1, self.ii - 1):
                self._row([(i * self.ii + r + 1, 1), (i * self.ii + r, -1)], 0)

    def _dependences(self) -> None:
        stage, ii = self.count * self.ii, self.ii
        for edge in self.graph.edges:
            i, j = self.graph.index[edge.src], self.graph.index[edge.dst]
            if i == j:
                continue  # The interval is no less than RecMII.
            for r in range(ii):
                intervals, phase = divmod(r + self.graph.edge_latency(edge) - 1, ii)
                above, one = self._from(i, r)
                beyond, other = self._from(j, phase + 1)
                terms = [(c, 1) for c in above] + [(c, -1) for c in beyond] + [(stage + i, 1), (stage + j, -1)]
                self._row(terms, edge.distance - intervals - one + other)

    def _units(self) -> None:
        for unit, copies in self.graph.units:
            users = [(i, op.occupancy) for i, op in enumerate(self.graph.ops) if op.unit == unit]
            for r in range(self.ii):
                terms: list[tuple[int, int]] = []
                capacity = copies
                for i, cycles in users:
                    whole, rest = divmod(cycles, self.ii)
                    capacity -= whole
                    if rest:
                        # Began in (r − rest, r], around the circle.
                        first = r - rest + 1
                        spans = [(first, r + 1)] if first >= 0 else [(0, r + 1), (first + self.ii, self.ii)]
                        for low, high in spans:
                            for at, sign in ((low, 1), (high, -1)):
                                columns, constant = self._from(i, at)
                                terms += [(c, sign) for c in columns]
                                capacity -= sign * constant
                self._row(terms, capacity)

    def solve(self, seconds: float) -> tuple[str, Starts | None]:
        """("yes", starts), ("no", None), or ("unknown", None) after the time limit."""
        most = sum(1 + op.latency // self.ii for op in self.graph.ops)
        upper = np.ones(self.width)
        upper[self.count * self.ii :] = most
        answer = milp(
            np.zeros(self.width),
            integrality=np.ones(self.width),
            bounds=Bounds(np.zeros(self.width), upper),
            constraints=LinearConstraint(self.matrix, -np.inf, np.array(self.upper)),
            options={"time_limit": max(seconds, 0.01)},
        )
        if answer.status == 2:
            return "no", None
        if answer.x is None:
            return "unknown", None
        x = np.rint(answer.x).astype(int)
        phases = [int(x[i * self.ii + 1 : (i + 1) * self.ii].sum()) for i in range(self.count)]
        return "yes", tuple(phases[i] + self.ii * int(x[self.count * self.ii + i]) for i in range(self.count))


def smallest(graph: DependenceGraph, least: int, seconds: float) -> dict[str, Any]:
    """From MinII upwards until an interval has a schedule: status "optimal" with its ``ii``, or "unknown"."""
    cpu, clock = time.process_time(), time.perf_counter()
    ii, status, starts = least, "no", None
    while status == "no":
        left = seconds - (time.perf_counter() - clock)
        status, starts = Program(graph, ii).solve(left) if left > 0 else ("unknown", None)
        ii += status == "no"
    return {
        "status": "optimal" if status == "yes" else "unknown",
        "ii": ii if status == "yes" else None,
        "bound": ii,
        "valid": starts is not None and not broken(graph, ii, starts),
        "cpu_s": round(time.process_time() - cpu, 4),
        "wall_s": round(time.perf_counter() - clock, 4),
    }


def broken(graph: DependenceGraph, ii: int, starts: Starts) -> list[str]:
    """Dependences and units that ``starts`` do not obey, by the obvious method."""
    wrong = []
    for edge in graph.edges:
        i, j = graph.index[edge.src], graph.index[edge.dst]
        if starts[j] + ii * edge.distance < starts[i] + graph.edge_latency(edge):
            wrong.append(f"{edge.src} -> {edge.dst}")
    for unit, copies in graph.units:
        cells = np.zeros(ii, dtype=int)
        for op, start in zip(graph.ops, starts, strict=True):
            if op.unit == unit:
                for cycle in range(op.occupancy):
                    cells[(start + cycle) % ii] += 1
        if cells.max(initial=0) > copies:
            wrong.append(unit)
    return wrong
