"""Rules 6 and 7 of RULES.md, verified from a plan whose shape is right: ring depths, places in memory, reuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from warpplan.planner.check.schedule_rules import Steady
from warpplan.planner.values.dependence_graph import Dependence, Operation
from warpplan.planner.values.plan import Buffer, Channel


class Extra(Protocol):
    """A buffer that was asked for besides the rings, or in the ring of ``shares_with`` from ``slot`` on."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def shares_with(self) -> str | None: ...
    @property
    def slot(self) -> int: ...


# Rings


@dataclass(frozen=True)
class _ExpectedRing:
    """What a channel has to be: the value's size, and who reads it."""

    op: Operation
    size: int
    in_tmem: bool
    readers: tuple[Dependence, ...]

    @property
    def slot_bytes(self) -> int:
        return (self.size + self.op.alignment - 1) // self.op.alignment * self.op.alignment


def _expected_rings(s: Steady) -> dict[str, _ExpectedRing]:
    found = {}
    for op in s.graph.ops:
        readers = tuple(s.ring_readers(op.id))
        if op.buffer_bytes:
            found[op.id] = _ExpectedRing(op, op.buffer_bytes, op.memory == "tmem", readers)
        elif readers:
            found[op.id] = _ExpectedRing(op, 128 * op.registers * op.min_warps, False, readers)
    return found


def _holds(s: Steady, ring: _ExpectedRing, hearer: int, slack_cycles: int) -> list[tuple[int, int]]:
    """Per use of a slot, the cycles from its filling until partition ``hearer`` knows of the release; its margin."""
    name = ring.op.id
    if not ring.readers:
        told = s.limits.handoff_cycles if s.home[name] != hearer else 0
        return [(s.latency[name] + told, ring.op.spread + slack_cycles)]
    holds = []
    for e in ring.readers:
        told = s.signal_cycles(e) if s.home[e.dst] != hearer else 0
        late = ring.op.spread + (s.op[e.dst].spread if e.dst != name else 0)
        left = s.start(e) + max(1, s.latency[e.dst])  # No slot is freed and filled at once.
        holds.append((left + told - s.at[name], late + slack_cycles))
    return holds


def _longest(holds: Sequence[tuple[int, int]]) -> int:
    return max(cycles + margin for cycles, margin in holds)


def memory(s: Steady, slack_cycles: int, extras: Sequence[Extra] | None) -> Iterator[str]:
    """Rings that are deep enough, each at a place of its own; with ``extras`` also whether those are there."""
    for kind, names in (("channel", [c.name for c in s.plan.channels]), ("buffer", [b.name for b in s.plan.buffers])):
        for name, count in Counter(names).items():
            if count > 1:
                yield f"{kind} {name}: {count} of one name"
    expected, channels = _expected_rings(s), {c.name: c for c in s.plan.channels}
    buffers = {b.name: b for b in s.plan.buffers}
    for name in channels:
        if name not in expected:
            yield f"channel {name}: no operation of the graph writes such a ring"
    for name in expected:
        if name not in channels:
            yield f"operation {name}: its value has no channel"
        elif name not in buffers:
            yield f"channel {name}: has no buffer"
    rings = {name: ring for name, ring in expected.items() if name in channels}
    for name, ring in rings.items():
        yield from _channel(s, ring, channels[name], slack_cycles)
    for b in s.plan.buffers:
        yield from _within_memory(s, b)
        if b.name in rings:
            yield from _ring_place(rings[b.name], channels[b.name].depth, b)
        else:
            yield from _extra_place(b, rings, buffers)
    used = max((b.offset + b.size for b in s.plan.buffers if b.memory == "smem"), default=0)
    if s.plan.smem_bytes != used:
        yield f"shared memory: the plan says {s.plan.smem_bytes} bytes in all, its buffers end at {used}"
    if extras is not None:
        yield from _asked_for(extras, rings, channels, buffers)
    yield from _meetings(s, rings, channels, slack_cycles)


def _channel(s: Steady, ring: _ExpectedRing, channel: Channel, slack_cycles: int) -> Iterator[str]:
    name, home = ring.op.id, s.home[ring.op.id]
    holds = _holds(s, ring, home, slack_cycles)
    live = max(cycles for cycles, _ in holds)
    if channel.live_cycles != live:
        yield f"channel {name}: live for {live} cycles, the plan says {channel.live_cycles}"
    if channel.depth < 1 or channel.depth * s.ii < _longest(holds):
        yield f"channel {name}: depth {channel.depth} x {s.ii} cycles, {_longest(holds)} are needed"
    consumers = tuple(sorted({s.home[e.dst] for e in ring.readers})) or (home,)
    if (channel.producer, channel.consumers) != (home, consumers):
        yield (
            f"channel {name}: joins partitions {channel.producer} -> {channel.consumers}, "
            f"its users are in {home} -> {consumers}"
        )
    if channel.slot_bytes != ring.slot_bytes:
        yield f"channel {name}: slots of {channel.slot_bytes} bytes, {ring.size} at {ring.op.alignment} are needed"


# Places


def _ring_place(ring: _ExpectedRing, depth: int, b: Buffer) -> Iterator[str]:
    if ring.in_tmem:
        needed, what = depth * -(-ring.size // (4 * ring.op.lanes)), "columns"
        if b.lanes != ring.op.lanes:
            yield f"buffer {b.name}: {b.lanes} lanes for a value of {ring.op.lanes}"
    else:
        needed, what = depth * ring.slot_bytes, "bytes"
        if b.alignment % ring.op.alignment:
            yield f"buffer {b.name}: alignment {b.alignment}, the operation needs {ring.op.alignment}"
    if (b.memory == "tmem") != ring.in_tmem:
        yield f"buffer {b.name}: lies in {b.memory}, the ring in {'tmem' if ring.in_tmem else 'smem'}"
    if b.size != needed:
        yield f"buffer {b.name}: {b.size} {what} for a ring of {needed}"
    if b.shares_with is not None:
        yield f"buffer {b.name}: a ring of its own, not in that of {b.shares_with}"


def _within_memory(s: Steady, b: Buffer) -> Iterator[str]:
    limit, what = (s.limits.smem_bytes, "byte") if b.memory == "smem" else (s.limits.tmem_columns, "column")
    if b.memory == "smem" and (b.alignment < 1 or b.offset % b.alignment):
        yield f"buffer {b.name}: offset {b.offset} is no multiple of {b.alignment}"
    if b.memory == "tmem" and (b.lane, b.lanes) not in ((0, 64), (64, 64), (0, 128)):
        yield f"buffer {b.name}: {b.lanes} lanes from lane {b.lane}, expected 64 from 0 or 64, or 128"
    if b.offset < 0 or b.size < 0 or b.offset + b.size > limit:
        yield f"buffer {b.name}: from {what} {b.offset} to {b.offset + b.size} of {limit}"


def _extra_place(b: Buffer, rings: dict[str, _ExpectedRing], buffers: dict[str, Buffer]) -> Iterator[str]:
    """An extra buffer is in shared memory, and within the ring that it shares."""
    if b.memory != "smem":
        yield f"buffer {b.name}: lies in {b.memory}, extra buffers in smem"
    host = buffers.get(b.shares_with) if b.shares_with in rings else None
    if b.shares_with is not None and (
        host is None or host.memory != b.memory or b.offset < host.offset or b.offset + b.size > host.offset + host.size
    ):
        yield f"buffer {b.name}: lies outside the ring of {b.shares_with} that it shares"


def _asked_for(
    extras: Sequence[Extra], rings: dict[str, _ExpectedRing], channels: dict[str, Channel], buffers: dict[str, Buffer]
) -> Iterator[str]:
    asked = {extra.name for extra in extras}
    for name in buffers:
        if name not in rings and name not in asked:
            yield f"buffer {name}: neither a ring nor asked for"
    for extra in extras:
        b = buffers.get(extra.name)
        if b is None:
            yield f"buffer {extra.name}: asked for, but not in the plan"
            continue
        if b.size != extra.size or b.alignment % extra.alignment or b.shares_with != extra.shares_with:
            yield (
                f"buffer {extra.name}: {b.size} bytes at {b.alignment} in {b.shares_with}, "
                f"asked for {extra.size} at {extra.alignment} in {extra.shares_with}"
            )
        elif extra.shares_with in channels and extra.shares_with in buffers:
            first = buffers[extra.shares_with].offset + extra.slot * channels[extra.shares_with].slot_bytes
            if b.offset != first:
                yield f"buffer {extra.name}: at byte {b.offset}, slot {extra.slot} of its ring is at {first}"


# Places that overlap


def _meet(a: Buffer, b: Buffer) -> int | None:
    """The first byte or column that both have, if any."""
    first = max(a.offset, b.offset)
    if a.memory != b.memory or first >= min(a.offset + a.size, b.offset + b.size):
        return None
    if a.memory == "tmem" and max(a.lane, b.lane) >= min(a.lane + a.lanes, b.lane + b.lanes):
        return None
    return first


def _meetings(
    s: Steady, rings: dict[str, _ExpectedRing], channels: dict[str, Channel], slack_cycles: int
) -> Iterator[str]:
    """Rings that overlap have one slot each and lives that are disjoint on the circle; the plan lists their reuses.

    An extra buffer in a ring lies within that ring: where it overlaps another ring, its own ring does, and is checked.
    Two extra buffers in one ring must not overlap.
    """
    reused: set[tuple[str, str]] = set()
    for a, b in combinations(s.plan.buffers, 2):
        first = _meet(a, b)
        if first is None or (a.shares_with is None) != (b.shares_with is None):
            continue
        if a.name in rings and b.name in rings and a.name != b.name:
            reused |= {(a.name, b.name), (b.name, a.name)}
            depths = channels[a.name].depth, channels[b.name].depth
            if depths == (1, 1):
                yield from _reuses(s, rings[a.name], rings[b.name], first, slack_cycles)
            else:
                yield f"buffers {a.name} and {b.name}: overlap at {first} with {depths[0]} and {depths[1]} slots"
        else:
            yield f"buffers {a.name} and {b.name}: overlap at {first}"
    for (before, after), count in Counter((r.before, r.after) for r in s.plan.reuses).items():
        if (before, after) not in reused:
            yield f"reuse {before} -> {after}: their places do not meet"
        elif count > 1:
            yield f"reuse {before} -> {after}: listed {count} times"


def _reuses(s: Steady, a: _ExpectedRing, b: _ExpectedRing, first: int, slack_cycles: int) -> Iterator[str]:
    """t_a + hold(a→b) ≤ t_b + m·II and t_b + hold(b→a) ≤ t_a + (1 − m)·II for the m that the plan lists."""
    one, other = a.op.id, b.op.id
    held = _longest(_holds(s, a, s.home[other], slack_cycles))
    back = _longest(_holds(s, b, s.home[one], slack_cycles))
    gap = s.at[other] - s.at[one]
    least, most = -((gap - held) // s.ii), (s.ii - gap - back) // s.ii
    if least > most:
        yield (
            f"buffers {one} and {other}: overlap at {first} while both live: {one} for {held} cycles, {other} "
            f"{gap % s.ii} cycles later for {back}, of {s.ii}"
        )
        return
    listed = {(r.before, r.after): r.distance for r in s.plan.reuses}
    there, again = listed.get((one, other)), listed.get((other, one))
    if there is None or not least <= there <= most:
        yield f"reuse {one} -> {other}: {_said(there)}, expected {least}"
        there = least
    if again != 1 - there:
        yield f"reuse {other} -> {one}: {_said(again)}, expected {1 - there}"


def _said(distance: int | None) -> str:
    return "missing" if distance is None else f"distance {distance}"
