"""The constraint model of one initiation interval: schedule, partition, rings and registers together.

Per operation a phase in [0, II) and a stage, per cluster a partition, per ring a depth; units, issue slots and
registers are intervals on a circle of II cycles. Costs keep their full resolution: intervals, unlike a reservation
table cell by cell, do not grow with it, and what is proven is proven for the costs as given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from warpplan.planner.bounds.start_windows import Pair, distances, spans, stage_limit
from warpplan.planner.cpsat.register_constraints import add_registers
from warpplan.planner.cpsat.ring_constraints import add_memory, add_rings
from warpplan.planner.cpsat.runner import Truth, always, given, negated, never
from warpplan.planner.cpsat.sharing_constraints import Cut, SharedMemory
from warpplan.planner.cpsat.unit_constraints import add_issue, add_units
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Arc, Problem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Places = Literal["apart", "shared", "free"]
Branching = Literal["free", "median"]


class Model:
    """The constraints for one interval.

    ``memory`` says how rings lie: "apart", side by side; "shared", in one another's place too (a relaxation, see
    :mod:`sharing`, to which :meth:`forbid` adds cuts); "free", nowhere. ``registers`` False leaves rule 5 out,
    ``symmetric`` False the order of operations that could change places: what is known of a schedule may tell them
    apart. ``reach``: only schedules of so many stages before and after the anchor.
    ``tight`` adds what follows from the rest, but not from each of its parts (what a partition's issue slot takes with
    all its barriers, the order of all that issues, registers on average), which refuses sooner but finds later.
    ``compact``: only schedules in which nothing waits for a turn in vain, which refuses sooner still.
    ``branching``: what the search decides about, beside what the constraints mention; with "median", about each value
    that a stage can have. (CP-SAT sets all literals before it asks a strategy, so that its order matters little; that
    the strategy makes a literal of each value does.)
    """

    def __init__(
        self,
        problem: Problem,
        ii: int,
        *,
        memory: Places = "apart",
        registers: bool = True,
        symmetric: bool = True,
        reach: int | None = None,
        tight: bool = False,
        compact: bool = False,
        branching: Branching = "median",
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.ii, self.cp = problem, ii, cp_model.CpModel()
        self.limited, self.symmetric = (memory != "free", registers), symmetric
        self.ops = range(len(problem.ops))
        self.distances = max((e.distance for e in problem.graph.edges), default=0)
        self.tight, self.compact = tight, compact
        limit = stage_limit(problem, ii)
        self.stages = 2 * (limit if reach is None else min(limit, reach))
        self._times()
        self._any: dict[tuple[int, ...], Truth] = {}
        self.depth: dict[int, Any] = {}
        """Per ring, its slots."""
        self.exists: dict[int, Truth] = {}
        """Whether there is such a ring: not where a register value stays in its partition."""
        self._order: dict[tuple[int, int], Truth] = {}
        self._beside: dict[int, tuple[list[Truth], list[Truth]]] = {}
        self._begins: dict[int, Any] = {}
        self._ends: dict[int, Any] = {}
        self._place()
        self._depend()
        add_units(self)
        add_issue(self)
        self._retire()
        if compact:
            self._wait_for_something()
        add_rings(self)
        if memory == "apart":
            add_memory(self)
        self._shared = SharedMemory(self) if memory == "shared" else None
        if registers:
            add_registers(self)
        if branching == "median":
            searched = compact and problem.options.depth is None
            depths = self.depth.values() if searched else ()
            self.cp.add_decision_strategy(
                [*self.stage, *depths], cp_model.CHOOSE_MIN_DOMAIN_SIZE, cp_model.SELECT_MEDIAN_VALUE
            )

    # Times: phases on a circle without a beginning, and stages of an endless loop; the anchor marks both.

    def _times(self) -> None:
        self.anchor = max(self.ops, key=lambda i: self.problem.ops[i].occupancy)
        middle = self.stages // 2
        self.phase: list[Any] = []
        self.stage: list[Any] = []
        self.start: list[Any] = []
        for i, (low, high) in enumerate(distances(self.problem, self.ii, self.anchor, *self.limited)):
            first = 0 if low is None else max(0, middle + low // self.ii)
            last = self.stages if high is None else min(self.stages, middle + high // self.ii)
            if first > last:
                self.cp.add_bool_or([])
                first, last = 0, self.stages
            anchored = i == self.anchor
            phase = self.cp.new_int_var(0, 0 if anchored else self.ii - 1, "")
            stage = self.cp.new_int_var(first, last, "")
            self._add_time(phase, stage)
            if low is not None and low % self.ii:
                self.cp.add(self.start[i] >= middle * self.ii + low)
            if high is not None and (high + 1) % self.ii:
                self.cp.add(self.start[i] <= middle * self.ii + high)

    def _add_time(self, phase: Any, stage: Any) -> None:
        self.phase.append(phase)
        self.stage.append(stage)
        self.start.append(phase + self.ii * stage)

    def event(self, op: int, cycles: int) -> int:
        """The index, beyond the operations', of the moment ``cycles`` after ``op`` starts."""
        stage = self.cp.new_int_var(0, self.stages + 1 + cycles // self.ii, "")
        self._add_time(self.cp.new_int_var(0, self.ii - 1, ""), stage)
        self.cp.add(self.start[-1] == self.start[op] + cycles)
        return len(self.start) - 1

    def earlier(self, a: int, b: int) -> Truth:
        """Whether the phase of ``a`` comes before that of ``b``; where they exclude one another, by how much."""
        if a == b:
            return 0
        if (a, b) not in self._order:
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
            self.cp.add(self._begun(b) >= self._done(a)).only_enforce_if(conditions)
        else:
            self.cp.add(self.phase[b] >= self.phase[a] + self.problem.ops[a].issue).only_enforce_if(conditions)

    def _begun(self, i: int) -> Any:
        """When the operation begins to wait for its barriers; it has issued and told the others at :meth:`_done`."""
        if i not in self._begins:
            before = self.barriers(i)[0]
            self._begins[i] = self.phase[i] - self.problem.graph.limits.barrier_cycles * sum(before)
        return self._begins[i]

    def _done(self, i: int) -> Any:
        if i not in self._ends:
            busy = self.problem.graph.limits.barrier_cycles * sum(self.barriers(i)[1]) + self.problem.ops[i].issue
            self._ends[i] = self.phase[i] + busy
        return self._ends[i]

    # Partitions: a cluster is in exactly one; names are interchangeable unless some are pinned, clones always.

    def _place(self) -> None:
        problem = self.problem
        self.count = problem.most_partitions
        free = [c for c in problem.clusters if c not in problem.pins]
        self.member: dict[tuple[int, int], Truth] = {}
        for c in problem.clusters:
            for g in range(self.count):
                self.member[c, g] = int(problem.pins[c] == g) if c in problem.pins else self.cp.new_bool_var("")
        for c in free:
            self.cp.add_exactly_one(self.member[c, g] for g in range(self.count))
        if not problem.pins:
            # What issues longest is decided among fewest: proofs come up to five times as soon as in another order.
            heaviest = sorted(free, key=lambda c: -self._issue_of(c))
            for at, c in enumerate(heaviest):
                for g in range(1, self.count):
                    earlier = [self.member[e, g - 1] for e in heaviest[:at]]
                    self.cp.add_bool_or([*earlier, self.member[c, g].Not()])
        self._crossing: dict[tuple[int, int], Truth] = {}
        for first, second in (*problem.clone_order, *problem.twin_order) if self.symmetric else ():
            self.cp.add(self.start[first] <= self.start[second])

    def _issue_of(self, cluster: int) -> int:
        return sum(op.issue for op, c in zip(self.problem.ops, self.problem.cluster, strict=True) if c == cluster)

    def inside(self, op: int, partition: int) -> Truth:
        return self.member[self.problem.cluster[op], partition]

    def crosses(self, a: int, b: int) -> Truth:
        """True where the two operations are in different partitions."""
        a, b = self.problem.cluster[a], self.problem.cluster[b]
        if a == b:
            return 0
        if a > b:
            a, b = b, a
        if (a, b) not in self._crossing:
            if a in self.problem.pins and b in self.problem.pins:
                self._crossing[a, b] = int(self.problem.pins[a] != self.problem.pins[b])
                return self._crossing[a, b]
            apart = self.cp.new_bool_var("")
            for g in range(self.count):
                one, other = self.member[a, g], self.member[b, g]
                self.cp.add_bool_or(negated(one), other, apart)
                self.cp.add_bool_or(negated(one), negated(other), negated(apart))
                if not self.compact:
                    # Follows from the first, for another partition: it helps to find, not to refuse.
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

    # Dependences

    def _depend(self) -> None:
        for arc in self.problem.dependences:
            self.reach(arc, -arc.distance)

    def reach(self, arc: Arc, iterations: Any, where: Truth = 1) -> None:
        """start[dst] ≥ start[src] + cycles + hand-off + II · iterations, where ``where`` holds."""
        if never(where):
            return
        handoff = arc.handoff * self.crosses(arc.src, arc.dst) if arc.handoff else 0
        rule = self.cp.add(self.start[arc.dst] >= self.start[arc.src] + arc.cycles + handoff + self.ii * iterations)
        given(rule, where)

    def _retire(self) -> None:
        """wgmma groups retire in order: with i last issued d cycles before k, k's readers wait for i's results too."""
        for i, k, edges in self.problem.retirements:
            turned = self.cp.new_bool_var("")
            self.cp.add(self.phase[k] < self.phase[i]).only_enforce_if(turned)
            apart = self.crosses(i, k)
            for j, edge in edges:
                handoff = self.problem.graph.edge_handoff(edge) * self.crosses(k, j)
                issued = self.phase[i] + self.ii * (self.stage[k] - turned)
                ready = issued + self.problem.ops[i].latency + handoff
                given(self.cp.add(self.start[j] + self.ii * edge.distance >= ready), negated(apart))

    def _wait_for_something(self) -> None:
        """Of all that could be a stage earlier, something is not: see :func:`windows.spans`."""
        within: dict[Pair, Truth] = {}
        for cut in spans(self.problem, self.ii):
            for (src, dst), most in cut.items():
                if len(cut) > 1 and (src, dst) in within:
                    continue
                within[src, dst] = self.cp.new_bool_var("") if len(cut) > 1 else 1
                given(self.cp.add(self.start[dst] <= self.start[src] + most), within[src, dst])
            self.cp.add_bool_or([within[pair] for pair in cut])

    # Barriers

    def barriers(self, i: int) -> tuple[list[Truth], list[Truth]]:
        """A literal for each barrier that the operation may wait for, and for each at which it may arrive."""
        if i not in self._beside:
            problem = self.problem
            edges = problem.graph.edges if problem.graph.limits.barrier_cycles else ()
            waits = {problem.graph.index[e.src] for e in edges if e.dst == problem.ops[i].id}
            tells = {problem.graph.index[e.dst] for e in edges if e.src == problem.ops[i].id}
            reads = [k for k in sorted(waits) if problem.has_value(k) and any(r == i for r, _ in problem.readers[k])]
            before = [self.crosses(k, i) for k in sorted(waits)]
            if edges and problem.has_value(i):
                before.append(self.any_crosses(i, (r for r, _ in problem.readers[i])))
            after = [self.any_crosses(i, tells), *(self.crosses(k, i) for k in reads)]
            self._beside[i] = [x for x in before if not never(x)], [x for x in after if not never(x)]
        return self._beside[i]

    def either(self, literals: Iterable[Truth]) -> Truth:
        """True where one of ``literals`` is; it may be true beside."""
        literals = list(literals)
        if any(always(x) for x in literals):
            return 1
        result = self.cp.new_bool_var("")
        for x in literals:
            self.cp.add_implication(x, result)
        return result

    # What is found, what memory refuses of it, and what to try first

    def forbid(self, cut: Cut) -> None:
        """No schedule like the one that memory has refused. Constraints come in the order of the cuts, whenever they
        are added: the same model."""
        if self._shared is None:
            raise ValueError("cuts are about rings in one another's place: the model needs memory='shared'")
        self._shared.forbid(cut)

    def begin_with(self, known: Assignment) -> None:
        """Starts like those of ``known`` are tried first."""
        self.cp.clear_hints()  # type: ignore[no-untyped-call]
        turn = self.ii * (self.stages // 2) - known.starts[self.anchor]
        for i in self.ops:
            stage, phase = divmod(known.starts[i] + turn, self.ii)
            self.cp.add_hint(self.phase[i], phase)
            self.cp.add_hint(self.stage[i], stage)

    def read(self, solver: cp_model.CpSolver) -> Assignment:
        partitions = []
        for i in self.ops:
            literals = [self.inside(i, g) for g in range(self.count)]
            partitions.append(next(g for g, x in enumerate(literals) if (x if isinstance(x, int) else solver.value(x))))
        starts = [solver.value(self.start[i]) for i in self.ops]
        turn = min(starts) // self.ii * self.ii
        return Assignment(tuple(start - turn for start in starts), tuple(partitions))
