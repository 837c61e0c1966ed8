"""The smallest initiation interval by trying everything; shares no code with the solver or the checker.

Tried are: the interval, each operation's phase (the first one's is 0: a circle has no beginning), every assignment to
partitions, every number of slots, every pair of rings that might share its place, every order of putting rings into
memory, and how many turns each register value may live. What is left, the stages, is then bound by differences alone:
they exist unless some cycle of turns is positive.

Partitions get four warps, eight where an operation needs more: fewer would take as many registers, and be slower. Only
those that the caller dimensioned may have fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Buffer, Channel, Partition, Placement, Plan, Reuse, Schedule

from .brute_memory import Layout, Ring, layouts, meet

Turns = tuple[int, int, int]
"""stage[second] ≥ stage[first] + third."""


def smallest_ii(graph: DependenceGraph, most: int, most_slots: int = 8) -> int | None:
    """The least interval ≤ ``most`` for which a plan obeys every rule, with at most ``most_slots`` a ring."""
    plan = smallest_plan(graph, most, most_slots)
    return None if plan is None else plan.schedule.ii_cycles


def smallest_plan(
    graph: DependenceGraph, most: int, most_slots: int = 8, options: SolveOptions | None = None
) -> Plan | None:
    """A plan with the least interval ≤ ``most``, if there is one. Of the options all count but extra buffers that
    lie in rings."""
    options = options or SolveOptions()
    tries = []
    if options.partitions:
        if not _specs_do(graph, options):
            return None
        graph = _slowed(graph, options)
    for homes in _all_homes(graph, options):
        attempt = _Attempt(graph, homes, options)
        attempt.layouts = list(layouts(graph, attempt.rings, most_slots, options.depth, attempt.extras))
        if attempt.layouts and attempt.fewest_registers():
            tries.append(attempt)
    tries.reverse()  # The plan is the more telling the more of it crosses.
    for ii in range(1, most + 1):
        turns = [(0, *later) for later in product(range(ii), repeat=len(graph.ops) - 1)]
        turns = [phases for phases in turns if _units_fit(graph, ii, phases)]
        for attempt in tries:
            for phases in turns:
                plan = attempt.plan(ii, phases)
                if plan is not None:
                    return plan
    return None


def _all_homes(graph: DependenceGraph, options: SolveOptions) -> Iterator[tuple[int, ...]]:
    """Assignments that rule 4 allows, partitions numbered as they appear, or as they are pinned."""
    hopper, blackwell = (graph.limits.architecture == name for name in ("hopper", "blackwell"))
    if blackwell and any(op.unit == "TENSOR" and op.registers for op in graph.ops):
        return
    seen = set()
    for homes in product(range(graph.limits.max_partitions), repeat=len(graph.ops)):
        if any(homes[graph.index[name]] != home for name, home in options.pinned.items()):
            continue
        if not options.partitions:
            homes = tuple(list(dict.fromkeys(homes)).index(home) for home in homes)
        if homes in seen:
            continue
        seen.add(homes)
        for e in graph.edges:
            source, apart = graph.by_id[e.src], homes[graph.index[e.src]] != homes[graph.index[e.dst]]
            tied = e.distance > 0 or (source.unit == "TENSOR" and hopper)
            if apart and e.kind == "data" and source.buffer_bytes == 0 and tied:
                break
        else:
            yield homes


def _specs_do(graph: DependenceGraph, options: SolveOptions) -> bool:
    """Whether the partitions that the caller dimensioned have the warps that rules 4 and 5 ask for."""
    held = {op.id for op in graph.ops if op.memory == "tmem" and op.buffer_bytes}
    held |= {e.dst for e in graph.edges if e.kind == "data" and e.src in held}
    for op in graph.ops:
        least = op.min_warps
        if graph.limits.architecture == "hopper" and op.unit == "TENSOR":
            least = max(least, 4)
        if graph.limits.architecture == "blackwell" and op.id in held and op.unit not in ("TENSOR", "TMA"):
            least = max(least, 4)
        if options.partitions[options.pinned[op.id]].warps < least:
            return False
    return sum(32 * max(4, s.warps) * s.registers for s in options.partitions) <= graph.limits.registers


def _slowed(graph: DependenceGraph, options: SolveOptions) -> DependenceGraph:
    """The graph with rule 0's costs: ALU and SFU operations in the given partitions of one or two warps."""
    late = dict.fromkeys(graph.by_id, 0)
    ops = []
    for op in graph.ops:
        times = 4 // min(4, options.partitions[options.pinned[op.id]].warps) if op.unit in ("ALU", "SFU") else 1
        late[op.id] = (times - 1) * op.occupancy
        occupancy, issue = times * op.occupancy, times * op.issue
        ops.append(replace(op, occupancy=occupancy, issue=issue, latency=op.latency + late[op.id]))
    edges = [e if e.latency is None else replace(e, latency=e.latency + late[e.src]) for e in graph.edges]
    return replace(graph, ops=tuple(ops), edges=tuple(edges), clones=())


def _units_fit(graph: DependenceGraph, ii: int, phases: tuple[int, ...]) -> bool:
    for unit, capacity in graph.units:
        table = [0] * ii
        for op, phase in zip(graph.ops, phases, strict=True):
            if op.unit == unit:
                for cycle in range(op.occupancy):
                    table[(phase + cycle) % ii] += 1
        if max(table) > capacity:
            return False
    for resource, capacity in graph.limits.capacities:
        table = [0] * ii
        for op, phase in zip(graph.ops, phases, strict=True):
            for name, amount in op.demands:
                if name == resource:
                    for cycle in range(op.occupancy):
                        table[(phase + cycle) % ii] += amount
        if max(table) > capacity:
            return False
    return True


class _Attempt:
    """Everything that one assignment to partitions decides."""

    layouts: list[Layout]

    def __init__(self, graph: DependenceGraph, homes: tuple[int, ...], options: SolveOptions) -> None:
        self.graph, self.homes, self.limits, self.given = graph, homes, graph.limits, options.partitions
        self.edges = [(graph.index[e.src], graph.index[e.dst], e) for e in graph.edges]
        self.slack_cycles = options.slack_cycles
        self.extras = [e for e in options.extra_buffers if e.shares_with is None]
        self.rings = [ring for i in range(len(graph.ops)) if (ring := self._ring(i)) is not None]
        self.barriers = [self._barriers(i) for i in range(len(graph.ops))]
        groups = [
            [op for op, home in zip(graph.ops, homes, strict=True) if home == g]
            for g in range(len(self.given) or max(homes) + 1)
        ]
        self.warps = [s.warps for s in self.given] or [
            8 if any(op.min_warps > 4 for op in ops) else 4 for ops in groups
        ]
        self.fewest = [
            max([24, *(s.registers + 1 for s in options.spills if set(s.ops) <= {op.id for op in ops})])
            for ops in groups
        ]

    def apart(self, a: int, b: int) -> bool:
        return self.homes[a] != self.homes[b]

    def told(self, e: Dependence) -> int:
        return self.limits.handoff_cycles if e.handoff is None else e.handoff

    def takes(self, a: int, b: int, e: Dependence) -> int:
        """Cycles from a's start to what b waits for."""
        op = self.graph.ops[a]
        cycles = op.latency if e.latency is None else e.latency
        return cycles + self.extra(a, b, e)

    def extra(self, a: int, b: int, e: Dependence) -> int:
        op = self.graph.ops[a]
        if not self.apart(a, b):
            return 0
        value = op.registers * op.min_warps * 32 * 4 if op.buffer_bytes == 0 and e.kind == "data" else 0
        return self.told(e) + -(-value // 1024) * self.limits.handoff_cycles_per_kb

    def _ring(self, i: int) -> Ring | None:
        op = self.graph.ops[i]
        readers = [(b, e) for a, b, e in self.edges if a == i and e.kind == "data"]
        if not op.buffer_bytes:
            readers = [(b, e) for b, e in readers if op.registers and self.apart(i, b)]
            if not readers:
                return None
        own = op.spread + self.slack_cycles
        uses = []
        for b, e in readers:
            reader = self.graph.ops[b]
            late = own + (reader.spread if b != i else 0)
            uses.append((b, e.distance, max(1, reader.latency), late, self.told(e)))
        if not readers:
            uses.append((i, 0, op.latency, own, self.limits.handoff_cycles))
        size = op.buffer_bytes or op.registers * op.min_warps * 32 * 4
        if op.buffer_bytes and op.memory == "tmem":
            return Ring(i, True, -(-size // (4 * op.lanes)), 1, op.lanes, tuple(uses))
        return Ring(i, False, -(-size // op.alignment) * op.alignment, op.alignment, 0, tuple(uses))

    def _barriers(self, i: int) -> tuple[int, int]:
        shown = {r.producer for r in self.rings}
        sources = {a for a, b, _ in self.edges if b == i and self.apart(a, b)}
        read = {a for a, b, e in self.edges if b == i and self.apart(a, b) and e.kind == "data" and a in shown}
        lent = i in shown and any(a == i and e.kind == "data" and self.apart(a, b) for a, b, e in self.edges)
        heard = any(a == i and self.apart(a, b) for a, b, _ in self.edges)
        return len(sources) + lent, len(read) + heard

    def fewest_registers(self) -> bool:
        return self._registers([0] * len(self.warps)) is not None

    def _registers(self, live: Sequence[int]) -> list[int] | None:
        """Registers a thread of each partition for ``live`` live ones; None where there are too few."""
        needed = [max(least, self.limits.base_registers + most) for least, most in zip(self.fewest, live, strict=True)]
        if self.given:
            counts = [spec.registers for spec in self.given]
            return counts if all(n <= count for n, count in zip(needed, counts, strict=True)) else None
        counts = [-(-count // 8) * 8 for count in needed]
        taken = sum(32 * warps * count for warps, count in zip(self.warps, counts, strict=True))
        return counts if max(counts) <= 240 and taken <= self.limits.registers else None

    def plan(self, ii: int, phases: tuple[int, ...]) -> Plan | None:
        if not self._issue_fits(ii, phases):
            return None
        waits = self._waits(ii, phases)
        if _stages(len(phases), waits) is None:
            return None
        for layout in self.layouts:
            for slots in self._slots(ii, phases, layout):
                if _stages(len(phases), waits + slots) is None:
                    continue
                for lives in self._lives(ii, phases):
                    stages = _stages(len(phases), waits + slots + lives)
                    if stages is not None:
                        return self._dress(ii, phases, stages, layout)
        return None

    def _issue_fits(self, ii: int, phases: tuple[int, ...]) -> bool:
        taken = set()
        for i, op in enumerate(self.graph.ops):
            before, after = (self.limits.barrier_cycles * count for count in self.barriers[i])
            for cycle in range(-before, op.issue + after):
                slot = (self.homes[i], (phases[i] + cycle) % ii)
                if slot in taken:
                    return False
                taken.add(slot)
        return True

    def _waits(self, ii: int, phases: tuple[int, ...]) -> list[Turns]:
        turns = []
        for a, b, e in self.edges:
            turns.append((a, b, -(-(self.takes(a, b, e) + phases[a] - phases[b]) // ii) - e.distance))
            if self.limits.architecture == "hopper" and self.graph.ops[a].unit == "TENSOR":
                if e.kind == "anti" or e.latency is not None:
                    continue
                for i, op in enumerate(self.graph.ops):
                    if i != a and op.unit == "TENSOR" and not self.apart(i, a):
                        # The last i that starts no later than a is (their phases' difference) earlier.
                        since = (phases[a] - phases[i]) % ii
                        needed = op.latency - since + self.extra(a, b, e) + phases[a] - phases[b]
                        turns.append((a, b, -(-needed // ii) - e.distance))
        return turns

    def _slots(self, ii: int, phases: tuple[int, ...], layout: Layout) -> Iterator[list[Turns]]:
        """The turns that the rings ask for; more than one way only where rings that meet have the same phase."""
        own: list[Turns] = []
        for ring, depth in zip(self.rings, layout.depths, strict=True):
            own += self._released(ii, phases, ring, ring.producer, depth * ii)
        ways = []
        for x, y in layout.pairs:
            a, b = self.rings[x], self.rings[y]
            later = (phases[b.producer] - phases[a.producer]) % ii
            ways.append([
                self._released(ii, phases, a, b.producer, span) + self._released(ii, phases, b, a.producer, ii - span)
                for span in ([later] if later else [0, ii])
            ])  # fmt: skip
        for chosen in product(*ways):
            yield own + [turn for turns in chosen for turn in turns]

    def _released(self, ii: int, phases: tuple[int, ...], ring: Ring, hearer: int, span: int) -> list[Turns]:
        """``hearer`` knows, at most ``span`` cycles after the ring's producer began to fill a slot, that it is free."""
        turns = []
        for reader, distance, cycles, late, told in ring.uses:
            held = cycles + late + (told if self.apart(reader, hearer) else 0) - span
            held += phases[reader] - phases[ring.producer]
            turns.append((reader, ring.producer, -(-held // ii) + distance))
        return turns

    def _spans(self) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Per value in registers: its operation, the cycles it lives for sure, and the readers that prolong it."""
        for i, op in enumerate(self.graph.ops):
            if op.registers:
                readers = [(b, e) for a, b, e in self.edges if a == i and e.kind == "data"]
                if op.buffer_bytes or not readers:
                    yield i, op.latency, []
                else:
                    sure = max((self.takes(i, b, e) for b, e in readers if self.apart(i, b)), default=0)
                    yield i, sure, [(b, e.distance) for b, e in readers if not self.apart(i, b)]

    def _live(self, ii: int, phases: Sequence[int], lives: Iterable[tuple[int, int]]) -> list[int]:
        """The most registers live at once, per partition, for (operation, cycles)."""
        tables = [[0] * ii for _ in self.warps]
        for i, cycles in lives:
            for cycle in range(cycles):
                tables[self.homes[i]][(phases[i] + cycle) % ii] += self.graph.ops[i].registers
        return [max(table) for table in tables]

    def _lives(self, ii: int, phases: tuple[int, ...]) -> Iterator[list[Turns]]:
        """The turns for every choice of how long values may live that leaves registers enough; longest first."""
        spans = list(self._spans())
        slowest = max(op.latency for op in self.graph.ops)
        longest = sum(slowest + self.takes(a, b, e) + ii * (2 + e.distance) for a, b, e in self.edges)
        longest += sum(cycles + late + told + ii * (2 + d) for r in self.rings for _, d, cycles, late, told in r.uses)
        choices: list[list[int]] = []
        for i, sure, readers in spans:
            ends = {sure} if not readers else set()
            for b, _ in readers:
                ends |= {max(sure, end) for end in range((phases[b] - phases[i]) % ii, longest + ii, ii)}
            choices.append(sorted(ends, reverse=True))
        yield from self._choose(ii, phases, spans, choices, [], [])

    def _choose(
        self,
        ii: int,
        phases: tuple[int, ...],
        spans: Sequence[tuple[int, int, list[tuple[int, int]]]],
        choices: Sequence[Sequence[int]],
        chosen: list[int],
        tried: list[list[int]],
    ) -> Iterator[list[Turns]]:
        rest = [ends[-1] for ends in choices[len(chosen) :]]
        lives = [(i, end) for (i, _, _), end in zip(spans, [*chosen, *rest], strict=True)]
        if self._registers(self._live(ii, phases, lives)) is None:
            return  # Not even if all the others live as briefly as they can.
        if not rest:
            if any(all(a >= b for a, b in zip(longer, chosen, strict=True)) for longer in tried):
                return
            tried.append(chosen)
            turns = []
            for (i, _, readers), end in zip(spans, chosen, strict=True):
                turns += [(b, i, -(-(phases[b] - phases[i] - end) // ii) + d) for b, d in readers]
            yield turns
            return
        for end in choices[len(chosen)]:
            yield from self._choose(ii, phases, spans, choices, [*chosen, end], tried)

    def _dress(self, ii: int, phases: Sequence[int], stages: Sequence[int], layout: Layout) -> Plan:
        graph = self.graph
        at = [phase + ii * stage for phase, stage in zip(phases, stages, strict=True)]
        lives = [(i, max([sure, *(at[b] + ii * d - at[i] for b, d in readers)])) for i, sure, readers in self._spans()]
        counts = self._registers(self._live(ii, phases, lives))
        assert counts is not None
        partitions = tuple(
            Partition(self.given[g].name if self.given else f"p{g}", self.warps[g], counts[g],
                      tuple(op.id for op, home in zip(graph.ops, self.homes, strict=True) if home == g))
            for g in range(len(self.warps))
        )  # fmt: skip
        channels, buffers = [], []
        for ring, depth, (offset, lane) in zip(self.rings, layout.depths, layout.places, strict=True):
            p = ring.producer
            op, home = graph.ops[p], self.homes[p]
            held = max(
                at[b] + ii * d - at[p] + cycles + (told if self.apart(b, p) else 0)
                for b, d, cycles, _, told in ring.uses
            )
            size = op.buffer_bytes or op.registers * op.min_warps * 128
            slot = -(-size // op.alignment) * op.alignment
            channels.append(
                Channel(op.id, home, tuple(sorted({self.homes[b] for b, *_ in ring.uses})), slot, depth, held)
            )
            memory = "tmem" if ring.in_tmem else "smem"
            buffers.append(
                Buffer(op.id, offset, depth * ring.slot, ring.alignment, None, memory, lane, ring.lanes)
            )  # fmt: skip
        reuses = []
        for x, y in layout.pairs:
            if not meet(buffers[x], buffers[y]):
                continue
            a, b = self.rings[x].producer, self.rings[y].producer
            held = max(
                at[c] + ii * d - at[a] + cycles + late + (told if self.apart(c, b) else 0)
                for c, d, cycles, late, told in self.rings[x].uses
            )
            distance = -(-(at[a] + held - at[b]) // ii)
            reuses += [
                Reuse(graph.ops[a].id, graph.ops[b].id, distance),
                Reuse(graph.ops[b].id, graph.ops[a].id, 1 - distance),
            ]
        buffers += [Buffer(e.name, o, e.size, e.alignment) for e, o in zip(self.extras, layout.extras, strict=True)]
        placements = tuple(
            Placement(op.id, at[i], at[i] // ii, at[i] % ii, self.homes[i]) for i, op in enumerate(graph.ops)
        )
        used = max((b.offset + b.size for b in buffers if b.memory == "smem"), default=0)
        return Plan(
            graph.name, Schedule(ii, placements), partitions, tuple(channels), tuple(buffers), used, tuple(reuses)
        )


def _stages(count: int, turns: list[Turns]) -> list[int] | None:
    stage = [0] * count
    for _ in range(count + 1):
        changed = False
        for a, b, least in turns:
            if stage[b] < stage[a] + least:
                stage[b], changed = stage[a] + least, True
        if not changed:
            return stage
    return None
