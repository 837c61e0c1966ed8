"""Hazards of a played plan: slots overwritten, values read too early, barrier phases missed.

Found from the recorded cycles alone, place by place and barrier by barrier, whatever the operations waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product

from warpplan.planner.simulate.program import Program, ProgramRing

NEVER = sys.maxsize
"""The cycle of what did not happen before the play ended."""


@dataclass(frozen=True)
class SlotFault:
    """Operation ``op`` of ``iteration`` goes wrong at ``cycle``; faults compare by when they happen."""

    cycle: int
    op: str
    iteration: int
    slot: int | None
    message: str


@dataclass(frozen=True)
class PlayRecord:
    """Cycles of every operation by iteration, as far as it came: when its partition reached it, when it started, when
    its latency was over, when it had retired (its result usable), and what it waited for."""

    readies: list[list[int]]
    starts: list[list[int]]
    done: list[list[int]]
    retired: list[list[int]]
    reasons: list[list[str]]


def first_hazard(program: Program, run: PlayRecord, trip_count: int) -> SlotFault | None:
    """The earliest fault of a play, deadlocks aside."""
    lives = [(ring, _ends(run, ring, trip_count)) for ring in program.rings]
    faults = (
        *_unguarded(program, run),
        *_early_reads(program, run),
        *_overwritten(program, run, lives),
        *_shared_places(program, run, lives),
        *_missed_phases(program, run, trip_count),
    )
    return min(faults, key=lambda f: (f.cycle, f.op, f.iteration), default=None)


def _fault(program: Program, cycle: int, op: int, iteration: int, text: str, slot: int | None = None) -> SlotFault:
    name = program.steps[op].op
    return SlotFault(cycle, name, iteration, slot, f"operation {name}, iteration {iteration}, cycle {cycle}: {text}")


def _unguarded(program: Program, run: PlayRecord) -> Iterator[SlotFault]:
    """Right by luck is wrong: values that cross, or need a place, and have no ring or no barrier."""
    for op, text in program.unguarded:
        if run.starts[op]:
            yield _fault(program, run.starts[op][0], op, 0, text)


def _early_reads(program: Program, run: PlayRecord) -> Iterator[SlotFault]:
    for source, op, distance, beyond in program.dependences:
        done = run.done[source]
        for m, start in enumerate(run.starts[op][distance:]):
            if m >= len(done) or start < done[m] + beyond:
                until = f"done at cycle {done[m] + beyond}" if m < len(done) else "not even begun"
                text = f"runs before {program.steps[source].op} of iteration {m} is done ({until})"
                yield _fault(program, start, op, m + distance, text)
                break


# Slots. The value of iteration n lives in slot n mod depth from its producer's start until its last reader is done; one
# that nobody reads, until it is written.


def _ends(run: PlayRecord, ring: ProgramRing, trip_count: int) -> list[int]:
    """When each iteration's value has been read for the last time, or could have been by a reader beyond the loop."""
    written = run.done[ring.producer]
    ends = [0] * len(written) if ring.readers else list(written)
    for reader, distance, _, beyond in ring.readers:
        done = run.done[reader]
        for n, end in enumerate(ends):
            m = n + distance
            last = written[n] + beyond if m >= trip_count else done[m] if m < len(done) else NEVER
            ends[n] = max(end, last)
    return ends


Lives = list[tuple[ProgramRing, list[int]]]


def _overwritten(program: Program, run: PlayRecord, lives: Lives) -> Iterator[SlotFault]:
    """A ring's own slots, filled again too early."""
    for ring, ends in lives:
        for n, (start, end) in enumerate(zip(run.starts[ring.producer][ring.depth :], ends, strict=False)):
            if start < end:
                yield _overwrite(program, start, ring.producer, n + ring.depth, ring, n, end)
                break


def _shared_places(program: Program, run: PlayRecord, lives: Lives) -> Iterator[SlotFault]:
    """Slots of two rings on the same bytes (or columns and lanes) must not be alive together."""
    for (a, a_ends), (b, b_ends) in combinations(lives, 2):
        for s, t in _common(a, b):
            uses = [(start, a_ends[n], a, n) for n, start in enumerate(run.starts[a.producer]) if n % a.depth == s]
            uses += [(start, b_ends[n], b, n) for n, start in enumerate(run.starts[b.producer]) if n % b.depth == t]
            uses.sort(key=lambda use: use[:2])
            latest: dict[int, tuple[int, ProgramRing, int]] = {}  # by producer: until when, whose value
            for start, end, ring, n in uses:
                until, other, m = latest.get(b.producer if ring is a else a.producer, (0, ring, n))
                if start < until:
                    yield _overwrite(program, start, ring.producer, n, other, m, until)
                    break
                if end >= latest.get(ring.producer, (0, ring, n))[0]:
                    latest[ring.producer] = (end, ring, n)


def _common(a: ProgramRing, b: ProgramRing) -> Iterator[tuple[int, int]]:
    """Pairs of slots of two rings that have bytes in common."""
    apart = a.lane >= b.lane + b.lanes or b.lane >= a.lane + a.lanes
    above = a.offset >= b.offset + b.depth * b.stride or b.offset >= a.offset + a.depth * a.stride
    if a.memory != b.memory or apart or above:
        return
    for s, t in product(range(a.depth), range(b.depth)):
        low, other = a.offset + s * a.stride, b.offset + t * b.stride
        if low < other + b.stride and other < low + a.stride:
            yield s, t


def _overwrite(
    program: Program, cycle: int, op: int, iteration: int, ring: ProgramRing, victim: int, until: int
) -> SlotFault:
    """``ring``'s value of iteration ``victim`` is overwritten."""
    slot = victim % ring.depth
    when = "is never released" if until == NEVER else f"is in use until cycle {until}"
    text = f"overwrites slot {slot} of ring {program.steps[ring.producer].op}, whose iteration {victim} {when}"
    return _fault(program, cycle, op, iteration, text, slot)


def _missed_phases(program: Program, run: PlayRecord, trip_count: int) -> Iterator[SlotFault]:
    """A wait sees a barrier's parity only: it must come before the phase after the one it means completes.

    Too early it cannot be, since every waiter has waited for the phase before. Nor can a ring's own barriers run away:
    its producer fills a slot again when every reader has left it. Two reuses hold each other back in that way; one
    without the other, or with a wrong distance, does not.
    """
    for before, after, distance in program.reuses:
        home = program.steps[after.producer].partition
        readers = [r for r in before.readers if program.steps[r[0]].partition != home]
        if before.readers and not readers:
            continue  # No barrier: the same warps read the one and fill the other.
        released = _ends(run, replace(before, readers=tuple(readers)), trip_count)
        for n, start in enumerate(run.starts[after.producer]):
            following = n - distance + 1
            if 0 < following < len(released) and released[following] < start:
                name = program.steps[before.producer].op
                text = (
                    f"waits for the release of {name} of iteration {following - 1} when iteration {following} has been "
                    f"released too: the parity of their barrier has turned back"
                )
                yield _fault(program, start, after.producer, n, text, 0)
                break
