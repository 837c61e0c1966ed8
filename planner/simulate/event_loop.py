"""Discrete-event simulation of a program: partitions as processes that wait, are granted a start, and go on.

Nothing here knows of slots' contents; :mod:`~warpplan.planner.simulate.slot_hazards` judges what was played.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Literal

from warpplan.planner.simulate.program import Program, Release, Wait
from warpplan.planner.simulate.slot_hazards import PlayRecord, SlotFault

Order = Literal["planned", "arrival"]


class _Pool:
    """A unit's copies, or the amount of a shared resource: ``free`` is a heap of (free from cycle, how much)."""

    def __init__(self, capacity: int) -> None:
        self.free = [(0, capacity)]

    def earliest(self, amount: int) -> int:
        """The first cycle from which ``amount`` is free."""
        first, copies = self.free[0]
        if copies >= amount:
            return first
        for cycle, copies in sorted(self.free):
            amount -= copies
            if amount <= 0:
                return cycle
        raise ValueError("more is asked for than there is")

    def take(self, amount: int, until: int) -> None:
        """``amount`` of what is free first is held until that cycle."""
        left = amount
        while left:
            cycle, copies = heappop(self.free)
            if copies > left:
                heappush(self.free, (cycle, copies - left))
            left -= min(copies, left)
        heappush(self.free, (until, amount))


class Play:
    """Partitions are processes that ask for their next operation as soon as they know from when on it may start.

    Requests are granted by planned cycle, or as they arrive. A request that is not known yet depends on an operation
    that was not granted yet and comes no earlier than any request that is known: granting the earliest is safe.
    """

    def __init__(
        self, compiled: Program, trip_count: int, late: list[list[int]] | None, order: Order, planned_starts: bool
    ) -> None:
        steps, self.trip_count, self.late = compiled.steps, trip_count, late
        self.compiled, self.steps, self.planned, self.planned_starts = (
            compiled,
            steps,
            order == "planned",
            planned_starts,
        )
        self.ii, self.offset = compiled.plan.schedule.ii_cycles, compiled.offset
        done: list[list[int]] = [[] for _ in steps]
        self.record = PlayRecord(
            [[] for _ in steps], [[] for _ in steps], done,
            [[] if step.in_order else done[i] for i, step in enumerate(steps)], [[] for _ in steps],
        )  # fmt: skip
        partitions = range(len(compiled.plan.partitions))
        members: list[list[int]] = [[] for _ in partitions]
        users: list[list[int]] = [[] for _ in compiled.units]
        for i, step in enumerate(steps):
            members[step.partition].append(i)
            for unit, _ in step.holds:
                users[unit].append(i)
        self.programs = [compiled.instances(inside, trip_count) for inside in members]
        self.unit_orders = [compiled.instances(inside, trip_count) for inside in users]
        self.unit_heads = [next(order, None) for order in self.unit_orders]
        self.head: list[tuple[int, int] | None] = [None for _ in partitions]
        self.issued = [0 for _ in partitions]
        self.last_start = [0 for _ in partitions]
        self.last_retired = [0 for _ in partitions]
        self.pools = [_Pool(capacity) for _, capacity in compiled.units]
        self.parked: list[list[int]] = [[] for _ in steps]  # by the operation that partitions wait for
        self.blocked: dict[int, tuple[int, int, int, str]] = {}  # partition → since, operation, iteration, why
        self.requests: list[tuple[int, int, int, int, int, int, str]] = []
        for g in partitions:
            self._next_request(g)

    def run(self) -> None:
        while self.requests:
            self._grant(*heappop(self.requests))

    def _next_request(self, g: int) -> None:
        self.head[g] = next(self.programs[g], None)
        if self.head[g] is not None:
            self._request(g)

    def _request(self, g: int) -> None:
        """From when on partition ``g`` may start its next operation, once all that it waits for has run."""
        head = self.head[g]
        assert head is not None
        i, n = head
        step, record = self.steps[i], self.record
        ready = self.last_start[g] if step.silent else max(self.issued[g], self.last_start[g])
        # What has no issue cycles of its own may start while another waits at its barriers: the start before it does
        # not put those off.
        when = ready if step.silent else max(self.issued[g] + step.before, self.last_start[g])
        why, last = "", self.trip_count - 1
        for wait in step.waits:
            source, back, first, offset, barrier, retired, reason, release = wait
            if n < first:
                continue
            m = n - back
            if release is not None and (m > last or n - release.distance > last):
                source, m, offset = self._at_the_end(wait, release, n)
                barrier = True
            done = record.retired[source] if retired else record.done[source]
            if m < len(done):
                if done[m] + offset > when:
                    when, why = done[m] + offset, reason
            elif barrier:
                self._park(g, ready, source, m, reason)
                return
        planned = self.offset + step.cycle + self.ii * n
        if self.planned_starts:
            when = max(when, planned)
        heappush(self.requests, (planned if self.planned else when, planned, step.rank, g, ready, when, why))

    def _at_the_end(self, wait: Wait, release: Release, n: int) -> tuple[int, int, int]:
        """What stands for the release of a value that is beyond the loop or whose reader is: source, its iteration,
        cycles."""
        k = min(n - release.distance, self.trip_count - 1)
        m = k + release.distance - wait.back
        return (wait.source, m, wait.offset) if m < self.trip_count else (release.producer, k, release.written)

    def _park(self, g: int, since: int, source: int, iteration: int, reason: str) -> None:
        self.parked[source].append(g)
        self.blocked[g] = (since, source, iteration, reason)

    def _grant(self, _key: int, planned: int, _rank: int, g: int, ready: int, when: int, why: str) -> None:
        head = self.head[g]
        assert head is not None
        i, n = head
        step, record = self.steps[i], self.record
        start = when
        for unit, amount in step.holds:
            due = self.unit_heads[unit]
            if self.planned and due is not None and due != head:
                self._park(g, ready, *due, "unit")
                return
            free = self.pools[unit].earliest(amount)
            if free > start:
                start, why = free, "unit"
        for unit, amount in step.holds:
            self.pools[unit].take(amount, start + step.occupancy)
            self.unit_heads[unit] = next(self.unit_orders[unit], None)
        done = start + step.latency + (self.late[i][n] if self.late else 0)
        record.readies[i].append(ready)
        record.starts[i].append(start)
        record.done[i].append(done)
        if step.in_order:
            self.last_retired[g] = max(done, self.last_retired[g])
            record.retired[i].append(self.last_retired[g])
        record.reasons[i].append(why)
        self.last_start[g] = start
        if not step.silent:
            self.issued[g] = start + step.issue + step.after
        waiting, self.parked[i] = self.parked[i], []
        self._next_request(g)
        for other in waiting:
            del self.blocked[other]
            self._request(other)

    def deadlock(self) -> SlotFault | None:
        """Every partition that has not come to its end, with what it waits for."""
        if not self.blocked:
            return None
        said = []
        for g, (_, source, m, reason) in sorted(self.blocked.items()):
            i, n = self._at(g)
            what = f"{self.steps[source].op} of iteration {m}"
            if reason == "unit":
                what = f"its turn on {self._names(i)} after {what}"
            elif reason == "slot":
                what = f"a free slot, to be released by {what}"
            name = self.compiled.plan.partitions[g].name
            said.append(f"{name} waits with {self.steps[i].op} of iteration {n} for {what}")
        cycle = max(since for since, _, _, _ in self.blocked.values())
        i, n = self._at(min(self.blocked))
        return SlotFault(cycle, self.steps[i].op, n, None, f"deadlock at cycle {cycle}: {'; '.join(said)}")

    def _names(self, i: int) -> str:
        units = len(self.compiled.graph.units)
        return ", ".join(
            f"{'unit' if k < units else 'resource'} {self.compiled.units[k][0]}" for k, _ in self.steps[i].holds
        )

    def _at(self, g: int) -> tuple[int, int]:
        head = self.head[g]
        assert head is not None
        return head
