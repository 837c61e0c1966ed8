"""Packing problems with a hidden answer: a rectangle of time × address cut into buffers, which are then shuffled.

The cuts are a perfect packing, so the capacity equals the peak load and every byte is in use at every time. The
published hard instances of MiniMalloc (A, B and C: 154 to 203 buffers) look like that: 33 to 36 buffers live at once,
distinct times 0.47 a buffer, half of the lives within 7 of 66 to 95 sections, sizes from 0.1 % to 60 % of the capacity;
there 0 to 64 % of the sections are full and 26 to 86 % within 1 % of it. ``keep`` below 1 drops buffers that are not live
at one random time, so that the peak stays and the other sections get such gaps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from warpplan.planner.packing import Block

Rectangle = tuple[int, int, int, int]
"""Times [first, end) × addresses [low, high)."""

SPAN = 1024
"""Ticks of time, and units of address, of the whole rectangle."""
PINWHEEL = 0.2
"""Share of cuts into five rectangles around a middle one, which no straight cuts undo."""


@dataclass(frozen=True)
class Instance:
    """``known`` is whether a packing exists by construction."""

    name: str
    blocks: tuple[Block, ...]
    capacity: int
    known: bool


def cut(count: int, seed: int, *, live: int = 45, tick: int = 1, keep: float = 1.0, unit: int = 1024) -> Instance:
    """``count`` buffers (fewer where ``keep`` < 1), about ``live`` at once, times in steps of ``tick``."""
    random_ = random.Random(seed)
    parts: list[Rectangle] = [(0, SPAN, 0, SPAN)]
    while len(parts) < count:
        areas = [((end - first) * (high - low)) ** 0.5 for first, end, low, high in parts]
        chosen = random_.choices(range(len(parts)), areas)[0]
        pieces = _cut(parts[chosen], random_, live / count, live, tick, count - len(parts) >= 4)
        parts[chosen : chosen + 1] = pieces
    random_.shuffle(parts)
    if keep < 1:
        at = random_.randrange(SPAN)
        parts = [part for part in parts if part[0] <= at < part[1] or random_.random() < keep]
    name = f"cut-{count}-{seed}" + (f"-live{live}" if live != 45 else "")
    name += (f"-tick{tick}" if tick > 1 else "") + (f"-keep{keep:g}" if keep < 1 else "")
    return Instance(name, _blocks([(f, e, h - low) for f, e, low, h in parts], unit), unit * SPAN, True)


def scattered(count: int, seed: int, *, live: int = 35, unit: int = 1024) -> Instance:
    """Random lives and sizes, with the peak load as the capacity: nobody knows whether that is enough."""
    random_ = random.Random(seed)
    mean = SPAN * live / count
    rows = []
    for _ in range(count):
        length = min(SPAN, 1 + int(random_.expovariate(1 / mean)))
        first = random_.randrange(SPAN - length + 1)
        rows.append((first, first + length, 1 + int(SPAN * random_.random() ** 3 / live * 2)))
    blocks = _blocks(rows, unit)
    peak = max(sum(b.size for b in blocks if b.lower <= time < b.upper) for time in {b.lower for b in blocks})
    return Instance(f"scattered-{count}-{seed}", blocks, peak, False)


def _cut(
    part: Rectangle, random_: random.Random, width: float, live: int, tick: int, pinwheel: bool
) -> list[Rectangle]:
    """The parts of one cut of ``part``, or itself where the cut that was drawn does not go through."""
    first, end, low, high = part
    ticks, height = (end - first) // tick, high - low
    if pinwheel and ticks >= 3 and height >= 3 and random_.random() < PINWHEEL:
        t, u = (first + tick * at for at in sorted(random_.sample(range(1, ticks), 2)))
        y, z = (low + at for at in sorted(random_.sample(range(1, height), 2)))
        if random_.random() < 0.5:
            return [(first, u, low, y), (u, end, low, z), (t, end, z, high), (first, t, y, high), (t, u, y, z)]
        return [(first, t, low, z), (first, u, z, high), (u, end, y, high), (t, end, low, y), (t, u, y, z)]
    # Half of the cuts bring the part towards the shape that gives so many live at once.
    long, tall = (end - first) / (SPAN * width), height / (SPAN / live)
    across = long / (long + tall) if random_.random() < 0.5 else 0.5
    if random_.random() < across:
        if ticks < 2:
            return [part]
        t = first + tick * random_.randint(1, ticks - 1)
        return [(first, t, low, high), (t, end, low, high)]
    if height < 2:
        return [part]
    y = random_.randint(low + 1, high - 1)
    return [(first, end, low, y), (first, end, y, high)]


def _blocks(rows: list[tuple[int, int, int]], unit: int) -> tuple[Block, ...]:
    return tuple(Block(str(i), first, end, unit * size) for i, (first, end, size) in enumerate(rows))
