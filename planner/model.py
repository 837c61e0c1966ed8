"""The constraint model of one initiation interval: schedule, partition, rings and registers together.

Per operation a phase in [0, II) and a stage, per cluster a partition, per ring a depth; units, issue slots and
registers are intervals on a circle of II cycles. Costs keep their full resolution: intervals, unlike a reservation
table cell by cell, do not grow with it, and what is proven is proven for the costs as given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from warpplan.planner.assignment import Assignment
from warpplan.planner.problem import BASE_REGISTERS, REGISTER_COUNTS, WARP_COUNTS, Arc, Problem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

WARP = 32


def live_cycles(problem: Problem, ii: int, found: Assignment, producer: int) -> int:
    """Cycles from ``producer``'s start to the last release of its slot, hand-off included."""
    released = [
        found.starts[use.consumer]
        + ii * use.distance
        + use.cycles
        + (use.handoff if found.partitions[use.consumer] != found.partitions[producer] else 0)
        for use in problem.rings[producer]
    ]
    return max(released) - found.starts[producer]


def slots(problem: Problem, ii: int, found: Assignment, producer: int) -> int:
    """The ring's depth: the caller's, or the least that its live range and the slack need."""
    held = live_cycles(problem, ii, found, producer) + problem.options.slack_cycles
    return problem.options.depth or max(1, -(-held // ii))


class Model:
    """The constraints for one interval. ``without`` leaves one limit out, to learn what binds."""

    def __init__(self, problem: Problem, ii: int, without: str = "") -> None:
        from ortools.sat.python import cp_model

        self.problem, self.ii, self.cp = problem, ii, cp_model.CpModel()
        graph = problem.graph
        self.ops = range(len(graph.ops))
        self.stages = _stage_limit(problem, ii)
        self.distances = max((e.distance for e in graph.edges), default=0)
        self.phase = [self.cp.new_int_var(0, ii - 1, "") for _ in self.ops]
        self.stage = [self.cp.new_int_var(0, self.stages, "") for _ in self.ops]
        self.start = [self.phase[i] + ii * self.stage[i] for i in self.ops]
        # The circle has no beginning: let the longest occupancy mark it.
        self.cp.add(self.phase[max(self.ops, key=lambda i: graph.ops[i].occupancy)] == 0)
        self._place()
        self._depend()
        self._units()
        self._issue()
        self._rings(limited=without != "shared memory")
        if without != "registers":
            self._registers()

    # Partitions: a cluster is in exactly one; names are interchangeable unless some are pinned.

    def _place(self) -> None:
        problem = self.problem
        self.count = 1 + max(problem.pins.values(), default=-1)
        free = [c for c in problem.clusters if c not in problem.pins]
        if free:
            self.count = min(problem.graph.limits.max_partitions, len(problem.clusters))
            self.count = max(self.count, 1 + max(problem.pins.values(), default=-1))
        self.member: dict[tuple[int, int], Any] = {}
        for c in problem.clusters:
            for g in range(self.count):
                self.member[c, g] = int(problem.pins[c] == g) if c in problem.pins else self.cp.new_bool_var("")
        for c in free:
            self.cp.add_exactly_one(self.member[c, g] for g in range(self.count))
        if not problem.pins:
            for at, c in enumerate(free):
                for g in range(1, self.count):
                    earlier = [self.member[e, g - 1] for e in free[:at]]
                    self.cp.add_bool_or([*earlier, self.member[c, g].Not()])
        self.crossing: dict[tuple[int, int], Any] = {}

    def crosses(self, a: int, b: int) -> Any:
        """0, 1 or a literal that is true where the two operations are in different partitions."""
        a, b = sorted((self.problem.cluster[a], self.problem.cluster[b]))
        if a == b:
            return 0
        if a in self.problem.pins and b in self.problem.pins:
            return int(self.problem.pins[a] != self.problem.pins[b])
        if (a, b) not in self.crossing:
            apart = self.cp.new_bool_var("")
            for g in range(self.count):
                one, other = self.member[a, g], self.member[b, g]
                self.cp.add(one - other <= apart)
                self.cp.add(other - one <= apart)
                self.cp.add(one + other + apart <= 2)
            self.crossing[a, b] = apart
        return self.crossing[a, b]

    # Dependences

    def _depend(self) -> None:
        for arc in self.problem.dependences:
            self._reach(arc, -arc.distance)

    def _reach(self, arc: Arc, iterations: Any) -> None:
        """start[dst] ≥ start[src] + cycles + hand-off + II · iterations."""
        handoff = arc.handoff * self.crosses(arc.src, arc.dst) if arc.handoff else 0
        self.cp.add(self.start[arc.dst] >= self.start[arc.src] + arc.cycles + handoff + self.ii * iterations)

    # Units and issue slots: intervals on the circle

    def _units(self) -> None:
        for unit, capacity in self.problem.graph.units:
            users = [(i, op.occupancy) for i, op in enumerate(self.problem.graph.ops) if op.unit == unit]
            users = [(i, cycles) for i, cycles in users if cycles]
            if capacity == 1:
                self._exclude(users, lambda _: 1)
            else:
                self._share(users, capacity)

    def _issue(self) -> None:
        users = [(i, op.issue) for i, op in enumerate(self.problem.graph.ops) if op.issue]
        for g in range(self.count):
            self._exclude(users, lambda i, g=g: self.member[self.problem.cluster[i], g])

    def _exclude(self, users: Iterable[tuple[int, int]], present: Any) -> None:
        """No two intervals overlap, and all of them lie within one turn of the circle from the first one's start."""
        first = self.cp.new_int_var(0, self.ii - 1, "")
        intervals = []
        for i, cycles in users:
            literal = present(i)
            if _never(literal):
                continue
            begins = self.cp.add(self.phase[i] >= first)
            ends = self.cp.add(self.phase[i] + cycles <= first + self.ii)
            if isinstance(literal, int):
                intervals.append(self.cp.new_fixed_size_interval_var(self.phase[i], cycles, ""))
            else:
                begins.only_enforce_if(literal)
                ends.only_enforce_if(literal)
                intervals.append(self.cp.new_optional_fixed_size_interval_var(self.phase[i], cycles, literal, ""))
        if len(intervals) > 1:
            self.cp.add_no_overlap(intervals)

    def _share(self, users: Iterable[tuple[int, int]], capacity: int) -> None:
        """At most ``capacity`` at a time: whole turns take a copy for good, the rest is seen over two turns."""
        intervals, whole = [], 0
        for i, cycles in users:
            whole += cycles // self.ii
            if rest := cycles % self.ii:
                intervals.append(self.cp.new_fixed_size_interval_var(self.phase[i], rest, ""))
                intervals.append(self.cp.new_fixed_size_interval_var(self.phase[i] + self.ii, rest, ""))
        self.cp.add_cumulative(intervals, [1] * len(intervals), capacity - whole)

    # Rings: enough slots for the live range, and the bytes for the slots

    def _rings(self, limited: bool) -> None:
        problem, graph = self.problem, self.problem.graph
        room = graph.limits.smem_bytes - problem.extra_bytes
        terms = []
        for producer, uses in problem.rings.items():
            slot = problem.slot_bytes(producer)
            depth = problem.options.depth
            most = self._most_slots(producer) if depth is None else depth
            count = self.cp.new_int_var(1, most, "") if depth is None else depth
            for use in uses:
                arc = Arc(use.consumer, producer, use.cycles + problem.options.slack_cycles, use.handoff, 0)
                self._reach(arc, use.distance - count)
            if graph.ops[producer].memory == "smem":
                terms.append(slot * count)
        if limited and terms:
            self.cp.add(sum(terms) <= room)

    def _most_slots(self, producer: int) -> int:
        cycles = max(u.cycles + u.handoff for u in self.problem.rings[producer]) + self.problem.options.slack_cycles
        return self.distances + self.stages + 2 + -(-cycles // self.ii)

    # Registers: per partition the largest sum of live values, and what all partitions take together

    def _registers(self) -> None:
        problem, graph = self.problem, self.problem.graph
        if problem.options.partitions:
            return  # The caller has dimensioned them; solve checks the sum.
        spans = {i: self._value_span(i) for i, op in enumerate(graph.ops) if op.registers}
        least = WARP * 4 * REGISTER_COUNTS[0] * (WARP_COUNTS[-1] // 4) * self.count
        if not spans and least <= graph.limits.registers:
            return
        totals = []
        for g in range(self.count):
            octets = self.cp.new_int_var(REGISTER_COUNTS[0] // 8, REGISTER_COUNTS[-1] // 8, "")
            self._live_values(g, spans, octets)
            totals.append(self._partition_registers(g, octets))
        self.cp.add(sum(totals) <= graph.limits.registers)

    def _value_span(self, i: int) -> tuple[Any, Any, Any]:
        """Whole turns and rest (in [0, II)) of the time that operation ``i``'s registers are held; phase + rest."""
        turns = self.cp.new_int_var(0, self._most_turns(), "")
        rest = self.cp.new_int_var(0, self.ii - 1, "")
        for reader, cycles, distance in register_readers(self.problem, i):
            self.cp.add(self.start[i] + self.ii * (turns - distance) + rest >= self.start[reader] + cycles)
        end = self.cp.new_int_var(0, 2 * self.ii, "")
        self.cp.add(end == self.phase[i] + rest)
        return turns, rest, end

    def _most_turns(self) -> int:
        slowest = max(op.latency for op in self.problem.graph.ops)
        return self.distances + self.stages + 2 + slowest // self.ii

    def _live_values(self, g: int, spans: dict[int, tuple[Any, Any, Any]], octets: Any) -> None:
        intervals, demands, always = [], [], []
        for i, (turns, rest, end) in spans.items():
            inside = self.member[self.problem.cluster[i], g]
            count = self.problem.graph.ops[i].registers
            if _never(inside):
                continue
            held = turns
            if not isinstance(inside, int):
                held = self.cp.new_int_var(0, self._most_turns(), "")
                self.cp.add(held >= turns).only_enforce_if(inside)
            always.append(count * held)
            for turn in (0, self.ii):
                begin = self.phase[i] + turn
                intervals.append(self.cp.new_optional_interval_var(begin, rest, end + turn, inside, ""))
                demands.append(count)
        room = self.cp.new_int_var(0, REGISTER_COUNTS[-1], "")
        self.cp.add(room + sum(always) + BASE_REGISTERS <= 8 * octets)
        if intervals:
            self.cp.add_cumulative(intervals, demands, room)

    def _partition_registers(self, g: int, octets: Any) -> Any:
        """32 · warps rounded up to 4 · registers, 0 where the partition is empty."""
        total = self.cp.new_int_var(0, WARP * WARP_COUNTS[-1] * REGISTER_COUNTS[-1], "")
        for i in self.ops:
            warps = -(-self.problem.graph.ops[i].min_warps // 4) * 4
            inside = self.member[self.problem.cluster[i], g]
            if not _never(inside):
                rule = self.cp.add(total >= WARP * warps * 8 * octets)
                if not isinstance(inside, int):
                    rule.only_enforce_if(inside)
        return total

    # What is best among equals

    def prefer(self, hint: Assignment | None) -> None:
        """Fewest crossing dependences, then short live ranges (twice the weight of a start, which a producer delays for
        them) and early starts; ``hint`` is a known solution."""
        longest = self.ii * (self.stages + self.distances + 2)
        spread: list[Any] = list(self.start)
        for producer, uses in self.problem.rings.items():
            live = self.cp.new_int_var(0, longest, "")
            for use in uses:
                self.cp.add(live >= self.start[use.consumer] + self.ii * use.distance - self.start[producer])
            spread += [live, live]
        pairs = {(a.src, a.dst) for a in self.problem.dependences if a.src != a.dst}
        crossings = [self.crosses(a, b) for a, b in sorted(pairs)]
        crossings = [c for c in crossings if not isinstance(c, int)]
        self.cp.minimize(sum(spread) + len(spread) * longest * sum(crossings))
        if hint is not None:
            self._hint(hint)

    def _hint(self, hint: Assignment) -> None:
        for i in self.ops:
            self.cp.add_hint(self.phase[i], hint.starts[i] % self.ii)
            self.cp.add_hint(self.stage[i], hint.starts[i] // self.ii)
        for (c, g), literal in self.member.items():
            if not isinstance(literal, int):
                self.cp.add_hint(literal, hint.partitions[c] == g)

    def read(self, solver: cp_model.CpSolver) -> Assignment:
        partitions = []
        for i in self.ops:
            literals = [self.member[self.problem.cluster[i], g] for g in range(self.count)]
            partitions.append(next(g for g, x in enumerate(literals) if (x if isinstance(x, int) else solver.value(x))))
        return Assignment(tuple(solver.value(t) for t in self.start), tuple(partitions))


def _never(literal: Any) -> bool:
    return isinstance(literal, int) and literal == 0


def register_readers(problem: Problem, op: int) -> list[tuple[int, int, int]]:
    """(operation, cycles after its start, distance) at each of which the registers of ``op``'s value are still held.

    Registers are read when their reader issues. A value that goes on to a buffer leaves them when it is written.
    """
    graph = problem.graph
    name = graph.ops[op].id
    readers = [(graph.index[e.dst], 0, e.distance) for e in graph.edges if e.src == name and e.kind == "data"]
    if graph.ops[op].buffer_bytes or not readers:
        return [(op, graph.ops[op].latency, 0)]
    return readers


def _stage_limit(problem: Problem, ii: int) -> int:
    """A stage that no operation of some best schedule exceeds.

    For given phases the least stages are longest paths over ⌈(cycles + hand-off + II − 1) / II⌉ − distance an arc.
    """
    worst = [0] * len(problem.graph.ops)
    for arc in (*problem.dependences, *problem.ring_arcs(problem.options.depth or 1)):
        turns = -(-(arc.cycles + arc.handoff + ii - 1) // ii) - arc.distance
        worst[arc.src] = max(worst[arc.src], turns)
    return sum(worst) + 1
