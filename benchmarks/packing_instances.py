"""Buffers that fill a memory exactly: a known perfect packing, cut at random out of time × bytes and then hidden.

Every instance comes from its name alone and has a packing into a capacity that equals its peak load, so that none has a
byte to waste where the peak stands. Cuts go across time, across bytes, or both at once (a pinwheel: five pieces that no
straight cut separates).

``perfect``: the whole rectangle, no gap anywhere. ``coarse``: few different times and sizes, so that hundreds of pieces
could stand in for one another. ``kept``: of a finer cut only some pieces, all of them at a few times that stay full.
``long``: at least a tenth of the buffers live for more than half of the time. ``published``: shaped like the three of
MiniMalloc's instances (Moffitt, ASPLOS 2023) that we have: 154 to 203 buffers of 1 KB to 0.7 MB, half as many
different times, about 35 live at once, one in eight for more than half of the time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from warpplan.planner.packing.offsets import PackingBlock

SEED = 20_261_122
PINWHEEL = 0.1
"""The share of cuts that are pinwheels."""


@dataclass(frozen=True)
class Kind:
    """``ticks`` and ``units`` are how many different times and bytes there are, ``live`` the buffers to aim at per
    time, ``long`` the share of buffers that live for more than half of the time, ``kept`` the share of the pieces that
    stay, ``full`` the share of the times at which all do. ``ticks`` below 1 counts by the buffer."""

    name: str
    sizes: tuple[int, ...]
    ticks: float = 1024
    units: int = 1024
    live: int = 20
    long: float = 0.0
    kept: float = 1.0
    full: float = 0.1


KINDS = (
    Kind("perfect", (150, 250, 350, 450)),
    Kind("perfect-high", (150, 250, 350, 450), live=45),
    Kind("coarse", (150, 250, 350, 450), ticks=40, units=128),
    Kind("coarse-fewer", (150, 250, 350, 450), ticks=24, units=64),
    Kind("kept90", (150, 250, 350, 450), kept=0.9),
    Kind("kept80", (150, 250, 350, 450), ticks=256, units=256, kept=0.8),
    Kind("coarse80", (150, 250, 350, 450), ticks=40, units=128, kept=0.8),
    Kind("long", (150, 250, 350, 450), ticks=128, long=0.1, live=30),
    Kind("published", (154, 203, 305, 454), ticks=0.5, long=0.05, live=20, kept=0.9, full=0.4),
)
BYTES = 1024
"""Of a unit; also the length of a tick."""


@dataclass(frozen=True)
class Instance:
    """``packed`` are offsets that are a packing, in the order of ``blocks``."""

    name: str
    kind: str
    blocks: tuple[PackingBlock, ...]
    capacity: int
    packed: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    lower: int
    upper: int
    bottom: int
    top: int


def instances(number: int = 0) -> Iterator[Instance]:
    """One of every kind and size, in the order of the kinds; another ``number``, others."""
    for kind in KINDS:
        for size in kind.sizes:
            yield instance(f"{kind.name}-{size}-{number}", size, kind)


def instance(name: str, size: int, kind: Kind) -> Instance:
    """``size`` buffers; ``name`` seeds them."""
    generator = random.Random(f"{SEED} {name}")
    ticks = round(kind.ticks * size) if kind.ticks < 1 else round(kind.ticks)
    found = _kept(generator, _cut(generator, ticks, round(size / kind.kept), kind), size, ticks, kind.full)
    generator.shuffle(found)
    blocks = tuple(
        PackingBlock(f"b{i}", BYTES * p.lower, BYTES * p.upper, BYTES * (p.top - p.bottom)) for i, p in enumerate(found)
    )
    return Instance(name, kind.name, blocks, BYTES * kind.units, tuple(BYTES * p.bottom for p in found))


def _cut(generator: random.Random, ticks: int, count: int, kind: Kind) -> list[Piece]:
    """At least ``count`` pieces (a pinwheel can make four more) that fill ``ticks`` × ``kind.units``."""
    long, found = _bands(generator, ticks, round(kind.long * count), kind.units)
    width, height = ticks * kind.live / count, kind.units / kind.live  # of a piece, in the mean
    while len(long) + len(found) < count:
        areas = [(p.upper - p.lower) * (p.top - p.bottom) - 1 for p in found]
        piece = found.pop(generator.choices(range(len(found)), areas)[0])
        wide, high = piece.upper - piece.lower, piece.top - piece.bottom
        if min(wide, high) > 2 and generator.random() < PINWHEEL:
            found += _pinwheel(generator, piece)
        elif high == 1 or (wide > 1 and generator.random() < wide / width / (wide / width + high / height)):
            at = generator.randrange(piece.lower + 1, piece.upper)
            found += Piece(piece.lower, at, piece.bottom, piece.top), Piece(at, piece.upper, piece.bottom, piece.top)
        else:
            at = generator.randrange(piece.bottom + 1, piece.top)
            found += Piece(piece.lower, piece.upper, piece.bottom, at), Piece(piece.lower, piece.upper, at, piece.top)
    return long + found


def _bands(generator: random.Random, ticks: int, count: int, units: int) -> tuple[list[Piece], list[Piece]]:
    """``count`` long pieces, thin and at random heights, and what is left around them."""
    height = max(1, units // (4 * count + 1))
    bottoms = sorted(generator.sample(range(units // height), count))
    long, rest, top = [], [], 0
    for bottom in (height * b for b in bottoms):
        if bottom > top:
            rest.append(Piece(0, ticks, top, bottom))
        top = bottom + generator.randint(1, height)
        lower = generator.randrange(ticks // 2)
        upper = generator.randint(lower + ticks // 2 + 1, ticks)
        long.append(Piece(lower, upper, bottom, top))
        rest += [Piece(a, b, bottom, top) for a, b in ((0, lower), (upper, ticks)) if a < b]
    return long, [*rest, Piece(0, ticks, top, units)]


def _pinwheel(generator: random.Random, piece: Piece) -> list[Piece]:
    left, right = sorted(generator.sample(range(piece.lower + 1, piece.upper), 2))
    low, high = sorted(generator.sample(range(piece.bottom + 1, piece.top), 2))
    return [
        Piece(piece.lower, right, piece.bottom, low),
        Piece(right, piece.upper, piece.bottom, high),
        Piece(left, piece.upper, high, piece.top),
        Piece(piece.lower, left, low, piece.top),
        Piece(left, right, low, high),
    ]


def _kept(generator: random.Random, found: list[Piece], count: int, ticks: int, full: float) -> list[Piece]:
    """``count`` of the pieces, among them all that live at ``full`` of the times, or at as many as that allows."""
    times = generator.sample(range(ticks), max(1, round(full * ticks)))
    kept: list[Piece] = []
    rest = found[:]
    for time in times:
        live = [p for p in rest if p.lower <= time < p.upper]
        if len(kept) + len(live) > count:
            break
        kept += live
        rest = [p for p in rest if not p.lower <= time < p.upper]
    return kept + generator.sample(rest, count - len(kept))
