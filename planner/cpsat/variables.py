"""The variables and literals of one interval model: phases and stages, partitions, orders, crossings, barriers.

Every constraint module imports this one and nothing else of the folder but :mod:`~warpplan.planner.cpsat.literals`, and
:mod:`~warpplan.planner.cpsat.interval_model` puts them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from warpplan.planner.cpsat.literals import Truth, always, given, negated, never
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.terms import Arc

StartWindow = tuple[int | None, int | None]
"""The least and the most cycles that an operation can start after the anchor; None where nothing bounds it."""
FARTHEST = 2**60
"""Cycles from which a window bounds nothing: stages end long before, and CP-SAT's sums must fit 64 bits."""


class ModelVariables:
    """The variables of one initiation interval ``ii``, and what says how they hang together.

    ``windows`` are the operations' start windows around ``anchor``, the operation whose phase is 0; stages go from 0 to
    twice ``stage_limit``, with the anchor's window around the middle. ``memory`` and ``registers`` say whether their
    limits are in the model (depths are bounded by them then). ``tight``: order literals also order the issue of
    operations with all their barriers. ``compact``: crossings are defined by as few clauses as are needed.
    ``symmetric``: operations and partitions that could change places are ordered.
    """

    def __init__(
        self,
        problem: Problem,
        ii: int,
        windows: Sequence[StartWindow],
        *,
        anchor: int,
        stage_limit: int,
        memory: bool,
        registers: bool,
        tight: bool,
        compact: bool,
        symmetric: bool,
    ) -> None:
        from warpplan.planner.cpsat.lean_model import LeanModel

        self.problem, self.ii, self.cp = problem, ii, LeanModel()
        self.anchor, self.stages = anchor, 2 * stage_limit
        self.memory_limited, self.registers_limited = memory, registers
        self.tight, self.compact, self.symmetric = tight, compact, symmetric
        self.ops = range(len(problem.ops))
        self.distances = max((e.distance for e in problem.graph.edges), default=0)
        self.phase: list[Any] = []
        self.stage: list[Any] = []
        self.start: list[Any] = []
        self._add_times(windows)
        self._any: dict[tuple[int, ...], Truth] = {}
        self.depth: dict[int, Any] = {}
        """Per ring, its slots."""
        self.exists: dict[int, Truth] = {}
        """Whether there is such a ring: not where a register value stays in its partition."""
        self._order: dict[tuple[int, int], Truth] = {}
        self._barriers: dict[int, tuple[list[Truth], list[Truth]]] = {}
        self._issue_begins: dict[int, Any] = {}
        self._issue_ends: dict[int, Any] = {}
        self.count = problem.most_partitions
        self.member: dict[tuple[int, int], Truth] = {}
        self._crossing: dict[tuple[int, int], Truth] = {}
        self._add_partitions()

    # Times: phases on a circle without a beginning, and stages of an endless loop; the anchor marks both.

    def _add_times(self, windows: Sequence[StartWindow]) -> None:
        middle = self.stages // 2
        for i, (low, high) in enumerate(windows):
            first = 0 if low is None else max(0, middle + low // self.ii)
            last = self.stages if high is None else min(self.stages, middle + high // self.ii)
            if first > last:
                self.cp.add_bool_or([])
                first, last = 0, self.stages
            phase = self.cp.new_int_var(0, 0 if i == self.anchor else self.ii - 1, "")
            stage = self.cp.new_int_var(first, last, "")
            self._add_time(phase, stage)
            if low is not None and low % self.ii and abs(low) < FARTHEST:
                self.cp.add(self.start[i] >= middle * self.ii + low)
            if high is not None and (high + 1) % self.ii and abs(high) < FARTHEST:
                self.cp.add(self.start[i] <= middle * self.ii + high)

    def _add_time(self, phase: Any, stage: Any) -> None:
        self.phase.append(phase)
        self.stage.append(stage)
        self.start.append(phase + self.ii * stage)

    def event(self, op: int, cycles: int) -> int:
        """The index, beyond the operations', of the moment ``cycles`` after ``op`` starts."""
        self.problem.deadline.check()
        stage = self.cp.new_int_var(0, self.stages + 1 + cycles // self.ii, "")
        self._add_time(self.cp.new_int_var(0, self.ii - 1, ""), stage)
        self.cp.add(self.start[-1] == self.start[op] + cycles)
        return len(self.start) - 1

    def starts_after(self, arc: Arc, iterations: Any, where: Truth = 1) -> None:
        """start[dst] ≥ start[src] + cycles + hand-off + II · iterations, where ``where`` holds."""
        if never(where):
            return
        handoff = arc.handoff * self.crosses(arc.src, arc.dst) if arc.handoff else 0
        rule = self.cp.add(self.start[arc.dst] >= self.start[arc.src] + arc.cycles + handoff + self.ii * iterations)
        given(rule, where)

    # Order literals

    def earlier(self, a: int, b: int) -> Truth:
        """Whether the phase of ``a`` comes before that of ``b``; where they exclude one another, by how much."""
        if a == b:
            return 0
        if (a, b) not in self._order:
            self.problem.deadline.check()
            literal = self.cp.new_bool_var("")
            unit = self._exclusive(a, b)
            if unit is None:
                self._order[a, b] = literal
                self.cp.add(self.phase[a] < self.phase[b]).only_enforce_if(literal)
                self.cp.add(self.phase[a] >= self.phase[b]).only_enforce_if(literal.Not())
                self._order_of_issue(a, b, literal)
                if self.tight:
                    self._order_of_issue(b, a, literal.Not())
            else:
                self._order_on_unit(a, b, *unit, literal)
        return self._order[a, b]

    def _exclusive(self, a: int, b: int) -> tuple[int, int] | None:
        """Both occupancies, where the two are on one unit of capacity 1."""
        if max(a, b) >= len(self.ops):
            return None
        one, other = self.problem.ops[a], self.problem.ops[b]
        single = one.unit == other.unit and dict(self.problem.graph.units).get(one.unit or "") == 1
        return (one.occupancy, other.occupancy) if single and one.occupancy and other.occupancy else None

    def _order_on_unit(self, a: int, b: int, held_a: int, held_b: int, literal: Truth) -> None:
        for first, held, second, then, truth in (
            (a, held_a, b, held_b, literal),
            (b, held_b, a, held_a, literal.Not()),
        ):
            self._order[first, second] = truth
            self.cp.add(self.phase[second] >= self.phase[first] + held).only_enforce_if(truth)
            self.cp.add(self.phase[second] + then <= self.phase[first] + self.ii).only_enforce_if(truth)
            if self.tight:
                self._order_of_issue(first, second, truth)

    def _order_of_issue(self, a: int, b: int, literal: Truth) -> None:
        """In one partition, the later one waits until the earlier one has issued, and for the barriers between them."""
        if max(a, b) >= len(self.ops) or not (self.problem.ops[a].issue and self.problem.ops[b].issue):
            return
        together = negated(self.crosses(a, b))
        if never(together):
            return
        conditions = [literal] if always(together) else [literal, together]
        if self.tight:
            self.cp.add(self._issue_begin(b) >= self._issue_end(a)).only_enforce_if(conditions)
        else:
            self.cp.add(self.phase[b] >= self.phase[a] + self.problem.ops[a].issue).only_enforce_if(conditions)

    def _issue_begin(self, i: int) -> Any:
        """When the operation begins to wait for its barriers; it has issued and arrived at others' at the end."""
        if i not in self._issue_begins:
            waits = self.barriers(i)[0]
            self._issue_begins[i] = self.phase[i] - self.problem.graph.limits.barrier_cycles * sum(waits)
        return self._issue_begins[i]

    def _issue_end(self, i: int) -> Any:
        if i not in self._issue_ends:
            busy = self.problem.graph.limits.barrier_cycles * sum(self.barriers(i)[1]) + self.problem.ops[i].issue
            self._issue_ends[i] = self.phase[i] + busy
        return self._issue_ends[i]

    # Partitions: a cluster is in exactly one; names are interchangeable unless some are pinned, clones always.

    def _add_partitions(self) -> None:
        problem = self.problem
        free = [c for c in problem.clusters if c not in problem.pins]
        for c in problem.clusters:
            for g in range(self.count):
                self.member[c, g] = int(problem.pins[c] == g) if c in problem.pins else self.cp.new_bool_var("")
        for c in free:
            self.cp.add_exactly_one(self.member[c, g] for g in range(self.count))
        if not problem.pins and problem.options.search.symmetry_breaking:
            # What issues longest is decided among fewest: proofs come up to five times as soon as in another order.
            heaviest = sorted(free, key=lambda c: -self._issue_of(c))
            for at, c in enumerate(heaviest):
                problem.deadline.check()
                for g in range(1, self.count):
                    earlier = [self.member[e, g - 1] for e in heaviest[:at]]
                    self.cp.add_bool_or([*earlier, self.member[c, g].Not()])
        for first, second in (*problem.clone_order, *problem.twin_order) if self.symmetric else ():
            self.cp.add(self.start[first] <= self.start[second])

    def _issue_of(self, cluster: int) -> int:
        return sum(op.issue for op, c in zip(self.problem.ops, self.problem.cluster, strict=True) if c == cluster)

    def inside(self, op: int, partition: int) -> Truth:
        """Whether ``op`` is in ``partition``."""
        return self.member[self.problem.cluster[op], partition]

    def crosses(self, a: int, b: int) -> Truth:
        """Whether the two operations are in different partitions."""
        a, b = self.problem.cluster[a], self.problem.cluster[b]
        if a == b:
            return 0
        if a > b:
            a, b = b, a
        if (a, b) not in self._crossing:
            if a in self.problem.pins and b in self.problem.pins:
                self._crossing[a, b] = int(self.problem.pins[a] != self.problem.pins[b])
                return self._crossing[a, b]
            self.problem.deadline.check()
            apart = self.cp.new_bool_var("")
            for g in range(self.count):
                one, other = self.member[a, g], self.member[b, g]
                self.cp.add_bool_or(negated(one), other, apart)
                self.cp.add_bool_or(negated(one), negated(other), negated(apart))
                if not self.compact:
                    # Follows from the first clause, for another partition: it helps to find schedules, not to prove.
                    self.cp.add_bool_or(one, negated(other), apart)
            self._crossing[a, b] = apart
        return self._crossing[a, b]

    def any_crosses(self, op: int, others: Iterable[int]) -> Truth:
        """Not false where one of ``others`` is in another partition than ``op``."""
        truths = [self.crosses(op, other) for other in sorted(set(others))]
        if any(always(x) for x in truths):
            return 1
        literals = {x.index: x for x in truths if not never(x)}
        if len(literals) < 2:
            return next(iter(literals.values()), 0)
        key = tuple(sorted(literals))
        if key not in self._any:
            self._any[key] = self.either(literals.values())
        return self._any[key]

    def either(self, literals: Iterable[Truth]) -> Truth:
        """True where one of ``literals`` is; it may be true otherwise, too."""
        literals = list(literals)
        if any(always(x) for x in literals):
            return 1
        result = self.cp.new_bool_var("")
        for x in literals:
            self.cp.add_implication(x, result)
        return result

    # Barriers

    def barriers(self, i: int) -> tuple[list[Truth], list[Truth]]:
        """A literal for each barrier that the operation may wait for, and for each at which it may arrive."""
        if i not in self._barriers:
            problem = self.problem
            problem.deadline.check()
            edges = problem.graph.edges if problem.graph.limits.barrier_cycles else ()
            sources = {problem.graph.index[e.src] for e in edges if e.dst == problem.ops[i].id}
            readers = {problem.graph.index[e.dst] for e in edges if e.src == problem.ops[i].id}
            reads = [k for k in sorted(sources) if problem.has_value(k) and any(r == i for r, _ in problem.readers[k])]
            waits = [self.crosses(k, i) for k in sorted(sources)]
            if edges and problem.has_value(i):
                waits.append(self.any_crosses(i, (r for r, _ in problem.readers[i])))
            arrivals = [self.any_crosses(i, readers), *(self.crosses(k, i) for k in reads)]
            self._barriers[i] = [x for x in waits if not never(x)], [x for x in arrivals if not never(x)]
        return self._barriers[i]
