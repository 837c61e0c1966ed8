"""The smallest initiation interval by trying everything; shares no code with the solver or the checker.

Tried are: the interval, each operation's phase (the first one's is 0: a circle has no beginning), every assignment to
partitions, every number of slots, every pair of rings that might share its place, every order of putting rings into
memory, and how many turns each register value may live. What is left, the stages, is then bound by differences alone:
they exist unless some cycle of turns is positive.

Partitions get four warps, eight where an operation needs more: fewer would take as many registers, and be slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product

from warpplan.planner.graph import Dependence, DependenceGraph
from warpplan.planner.plan import Buffer, Channel, Partition, Placement, Plan, Reuse, Schedule
from warpplan.planner.problem import Spill

Turns = tuple[int, int, int]
"""stage[second] ≥ stage[first] + third."""


@dataclass(frozen=True)
class Ring:
    """``uses``: reader, distance, cycles it keeps the slot (margin included), and what telling another costs."""

    producer: int
    in_tmem: bool
    slot: int
    alignment: int
    lanes: int
    uses: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Layout:
    """Slots of each ring, pairs (by index) that may meet, and each ring's offset and lane."""

    depths: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    places: tuple[tuple[int, int], ...]


def smallest_ii(graph: DependenceGraph, most: int, most_slots: int = 8) -> int | None:
    """The least interval ≤ ``most`` for which a plan obeys every rule, with at most ``most_slots`` a ring."""
    plan = smallest_plan(graph, most, most_slots)
    return None if plan is None else plan.schedule.ii_cycles


def smallest_plan(
    graph: DependenceGraph, most: int, most_slots: int = 8, *, slack_cycles: int = 0, spills: Sequence[Spill] = ()
) -> Plan | None:
    """A plan with the least interval ≤ ``most``, if there is one."""
    if graph.limits.architecture == "blackwell" and any(op.unit == "TENSOR" and op.registers for op in graph.ops):
        return None
    tries = []
    for homes in _all_homes(graph):
        attempt = _Attempt(graph, homes, slack_cycles, spills)
        attempt.layouts = list(_layouts(graph, attempt.rings, most_slots))
        if attempt.layouts and attempt.fewest_registers():
            tries.append(attempt)
    tries.reverse()  # The plan is the more telling the more of it crosses.
    for ii in range(1, most + 1):
        for later in product(range(ii), repeat=len(graph.ops) - 1):
            phases = (0, *later)
            if _units_fit(graph, ii, phases):
                for attempt in tries:
                    plan = attempt.plan(ii, phases)
                    if plan is not None:
                        return plan
    return None


def _all_homes(graph: DependenceGraph) -> Iterator[tuple[int, ...]]:
    """Assignments that rule 4 allows, partitions numbered as they appear."""
    for homes in product(range(graph.limits.max_partitions), repeat=len(graph.ops)):
        if any(home > max(homes[:i], default=-1) + 1 for i, home in enumerate(homes)):
            continue
        for e in graph.edges:
            source, apart = graph.by_id[e.src], homes[graph.index[e.src]] != homes[graph.index[e.dst]]
            tied = e.distance > 0 or (source.unit == "TENSOR" and graph.limits.architecture == "hopper")
            if apart and e.kind == "data" and source.buffer_bytes == 0 and tied:
                break
        else:
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


class _Attempt:
    """Everything that one assignment to partitions decides."""

    layouts: list[Layout]

    def __init__(
        self, graph: DependenceGraph, homes: tuple[int, ...], slack_cycles: int, spills: Sequence[Spill]
    ) -> None:
        self.graph, self.homes, self.limits = graph, homes, graph.limits
        self.edges = [(graph.index[e.src], graph.index[e.dst], e) for e in graph.edges]
        self.slack_cycles = slack_cycles
        self.rings = [ring for i in range(len(graph.ops)) if (ring := self._ring(i)) is not None]
        self.barriers = [self._barriers(i) for i in range(len(graph.ops))]
        self.warps = [
            8 if any(op.min_warps > 4 for op, h in zip(graph.ops, homes, strict=True) if h == g) else 4
            for g in range(max(homes) + 1)
        ]
        self.fewest = [
            max([24, *(s.registers + 1 for s in spills if all(homes[graph.index[name]] == g for name in s.ops))])
            for g in range(max(homes) + 1)
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
            uses.append((b, e.distance, reader.latency + own + (reader.spread if b != i else 0), self.told(e)))
        if not readers:
            uses.append((i, 0, op.latency + own, self.limits.handoff_cycles))
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
        needed = [max(least, self.limits.base_registers + most) for least, most in zip(self.fewest, live, strict=True)]
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
                self._released(ii, phases, a, b.producer, room) + self._released(ii, phases, b, a.producer, ii - room)
                for room in ([later] if later else [0, ii])
            ])  # fmt: skip
        for chosen in product(*ways):
            yield own + [turn for turns in chosen for turn in turns]

    def _released(self, ii: int, phases: tuple[int, ...], ring: Ring, hearer: int, room: int) -> list[Turns]:
        """``hearer`` knows, at most ``room`` cycles after the ring's producer began to fill a slot, that it is free."""
        turns = []
        for reader, distance, cycles, told in ring.uses:
            held = cycles + (told if self.apart(reader, hearer) else 0) + phases[reader] - phases[ring.producer] - room
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
        longest += sum(cycles + told + ii * (2 + d) for r in self.rings for _, d, cycles, told in r.uses)
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
            Partition(f"p{g}", self.warps[g], counts[g],
                      tuple(op.id for op, home in zip(graph.ops, self.homes, strict=True) if home == g))
            for g in range(len(self.warps))
        )  # fmt: skip
        channels, buffers = [], []
        for ring, depth, (offset, lane) in zip(self.rings, layout.depths, layout.places, strict=True):
            p = ring.producer
            op, home = graph.ops[p], self.homes[p]
            held = max(
                at[b] + ii * d - at[p] + graph.ops[b].latency + (told if self.apart(b, p) else 0)
                for b, d, _, told in ring.uses
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
            if not _meet(buffers[x], buffers[y]):
                continue
            a, b = self.rings[x].producer, self.rings[y].producer
            held = max(
                at[c] + ii * d - at[a] + cycles + (told if self.apart(c, b) else 0)
                for c, d, cycles, told in self.rings[x].uses
            )
            distance = -(-(at[a] + held - at[b]) // ii)
            reuses += [
                Reuse(graph.ops[a].id, graph.ops[b].id, distance),
                Reuse(graph.ops[b].id, graph.ops[a].id, 1 - distance),
            ]
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


# Memory


def _layouts(graph: DependenceGraph, rings: Sequence[Ring], most_slots: int) -> Iterator[Layout]:
    """Every choice of slots and of pairs that may meet for which there is room, but none that another one beats."""
    found: list[Layout] = []
    capacity = [graph.limits.tmem_columns if r.in_tmem else graph.limits.smem_bytes for r in rings]
    limits = [min(most_slots, (2 if r.lanes == 64 else 1) * room // max(1, r.slot)) for r, room in
              zip(rings, capacity, strict=True)]  # fmt: skip
    may_meet = [(x, y) for x, y in combinations(range(len(rings)), 2) if rings[x].in_tmem == rings[y].in_tmem]
    for count in range(len(may_meet) + 1):
        for pairs in combinations(may_meet, count):
            single = {x for pair in pairs for x in pair}
            ranges = [range(1 if x in single else most, 0, -1) for x, most in enumerate(limits)]
            for depths in product(*ranges):
                if not _room(graph, rings, depths, single):
                    continue
                if any(set(f.pairs) <= set(pairs) and all(a >= b for a, b in zip(f.depths, depths, strict=True))
                       for f in found):  # fmt: skip
                    continue
                places = _places(graph, rings, depths, pairs)
                if places is not None:
                    found.append(Layout(depths, pairs, places))
                    yield found[-1]


def _room(graph: DependenceGraph, rings: Sequence[Ring], depths: Sequence[int], sharing: set[int]) -> bool:
    """Whether the rings that meet no other could lie beside one another (in halves of columns, for 64 lanes)."""
    taken = [0, 0]
    for x, ring in enumerate(rings):
        if x not in sharing:
            taken[ring.in_tmem] += depths[x] * ring.slot * (1 if ring.lanes == 64 else 2)
    return taken[0] <= 2 * graph.limits.smem_bytes and taken[1] <= 2 * graph.limits.tmem_columns


def _places(
    graph: DependenceGraph, rings: Sequence[Ring], depths: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...] | None:
    """Each ring at the lowest place that the ones before leave it, in every order and at every lane: some order of
    rising offsets does as well as any arrangement."""
    for lanes in product(*[(0, 64) if r.lanes == 64 else (0,) for r in rings]):
        for order in permutations(range(len(rings))):
            placed: dict[int, Buffer] = {}
            for x in order:
                ring, offset = rings[x], 0
                kind = "tmem" if ring.in_tmem else "smem"
                room = graph.limits.tmem_columns if ring.in_tmem else graph.limits.smem_bytes
                while True:
                    at = Buffer("", offset, depths[x] * ring.slot, ring.alignment, None, kind, lanes[x], ring.lanes)
                    others = [
                        b.offset + b.size for y, b in placed.items()
                        if (min(x, y), max(x, y)) not in pairs and _meet(at, b)
                    ]  # fmt: skip
                    if not others:
                        break
                    offset = -(-max(others) // ring.alignment) * ring.alignment
                if offset + depths[x] * ring.slot > room:
                    break
                placed[x] = at
            else:
                return tuple((placed[x].offset, placed[x].lane) for x in range(len(rings)))
    return None


def _meet(a: Buffer, b: Buffer) -> bool:
    """Whether two places have a byte, or a lane of a column, in common."""
    if a.memory != b.memory or not _overlap(a.offset, a.size, b.offset, b.size):
        return False
    return a.memory == "smem" or _overlap(a.lane, a.lanes, b.lane, b.lanes)


def _overlap(a: int, a_size: int, b: int, b_size: int) -> bool:
    return a_size > 0 and b_size > 0 and a < b + b_size and b < a + a_size
