"""What a launch moves between DRAM and the SMs, from programs run on paper in the order in which they start.

Tiles that two programs of the launch begin at alike are one tile of memory: what all programs touch between them has to
come from DRAM once. Programs that run at once share what they load; if all that a launch reads does not fit in L2,
each round of programs reads its own share again. What a program reads in one loop and again in another is still there
as far as L2 holds what all programs read that run at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts
from warpplan.kernels.compiler.paper.paper_programs import PaperKernel, PaperProgram, TileAccess
from warpplan.planner.values.device import Device

MOST_PROGRAMS = 192
"""Programs of a launch that are run on paper: spread over it where there are more. Chosen by hand. Doubled: twice the
time; for a product of matrices more of its rows and columns are seen."""
Tiles = Mapping[int, list[TileAccess]]
"""What each operation touches, by its number."""
GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, spread evenly and follow no power of two, as programs' numbers do."""
REUSED_SHARE = 0.5
"""Of a sample's tiles: where more than this part are different ones, so are those of the programs in between."""
NEIGHBOURS = 16
"""Programs that start together on the SMs of one GPC of an H100 or H200, whose requests for a line meet."""
SHORT_RUN, SHORT_RUN_BYTES = 1.45, 64
"""DRAM's time for runs of half of a cache line and less over that for whole lines, as measured of routed products
(``service/feeds/moe/moe_launch.py``)."""
USABLE_L2 = 0.6
"""Of L2 that one launch's tiles keep; chosen by hand, as in ``service/feeds/moe/moe_launch.py``."""
SURE_L2 = 0.3
"""Of L2: what programs that run at once read is all there when they read it again if it is no more than this part, none
of it if it is as much as all of L2, for either half may hold a copy of what the other has; in proportion between.
Chosen by hand on the layer norm of 4096 rows of 16,384 in ``benchmarks/results/consumers_h200.json``; doubled, its
blocks that run eight at a time on an SM are predicted a sixth too fast."""


@dataclass(frozen=True)
class LaunchMemory:
    """``trips`` of each loop in one program, on average; bytes of the whole launch: ``loaded`` by the SMs, ``dram`` in
    both directions. ``known`` is whether every address was, ``counted`` whether every loop's length was."""

    trips: tuple[float, ...]
    loaded_bytes: float
    dram_bytes: float
    dram_loaded_bytes: float
    known: bool
    counted: bool = True


@dataclass(frozen=True)
class LaunchTiles:
    """What the programs of a launch touch, whatever of it L2 keeps. ``read_bytes`` come from DRAM in either case: where
    a program that reads a tile again finds it in L2, and where it does not. ``round_bytes`` are the different tiles
    that the ``round`` first of ``programs`` programs load, ``different_bytes`` those of all, each once."""

    trips: tuple[float, ...]
    loaded_bytes: float
    written_bytes: float
    read_bytes: tuple[float, float]
    round_bytes: float
    different_bytes: float
    round: int
    programs: int
    known: bool
    counted: bool

    def memory(self, device: Device, at_once: int) -> LaunchMemory:
        """What moves where ``at_once`` programs run on ``device`` at a time; :func:`round_of` them is ``round``."""
        at_a_time = min(self.different_bytes, self.round_bytes * min(at_once, self.programs) / self.round)
        kept = min(1.0, max(0.0, (1.0 - at_a_time / device.l2_bytes) / (1.0 - SURE_L2)))
        once, again = self.read_bytes
        read = again + kept * (once - again)
        return LaunchMemory(self.trips, self.loaded_bytes, read + self.written_bytes, read, self.known, self.counted)


def round_of(programs: int, at_once: int) -> int:
    """Programs that stand for those which run at a time, ``at_once`` of ``programs``."""
    return min(at_once, programs, MOST_PROGRAMS)


def launch_tiles(
    kernel: PaperKernel, sizes: Mapping[str, int], grid: Sequence[int], device: Device, at_once: int,
    elements: Mapping[str, int] | None = None,
) -> LaunchTiles:  # fmt: skip
    """``kernel`` launched with ``sizes`` over ``grid``; ``at_once`` programs run on ``device`` at a time. It runs up to
    twice :data:`MOST_PROGRAMS` programs on paper, by far the most of the work. ``elements`` says how many lie behind a
    pointer: what is looked up or unknown counts as no more of an array than that."""
    count = grid[0] * grid[1] * grid[2]
    every = count <= MOST_PROGRAMS
    chosen = range(count) if every else sorted({int(i * GOLDEN % 1.0 * count) for i in range(MOST_PROGRAMS)})
    spread = [_run(kernel, sizes, grid, i) for i in chosen]
    together = round_of(count, at_once)
    first = spread[:together] if every else [_run(kernel, sizes, grid, i) for i in range(together)]
    trips = tuple(sum(p.trips[i] for p in spread) / len(spread) for i in range(len(kernel.loops)))
    loads, stores = _by_operation(spread, False), _by_operation(spread, True)
    each, scale = count / len(spread), count / together
    afresh, first_afresh = (_by_operation(programs, False, afresh=True) for programs in (spread, first))
    usable = USABLE_L2 * device.l2_bytes
    sample = _LaunchSample(each, scale, kernel.array_bytes(elements or {}))
    return LaunchTiles(
        trips=trips,
        loaded_bytes=each * sum(_moved(found) for found in loads.values()),
        written_bytes=sample.needed(stores, _by_operation(first, True)),
        read_bytes=(
            sample.read(afresh, first_afresh, usable),
            sample.read(loads, _by_operation(first, False), usable),
        ),
        round_bytes=sample.in_round(afresh, first_afresh),
        different_bytes=sample.needed(afresh, first_afresh),
        round=together,
        programs=count,
        known=all(_known(found) for found in (*loads.values(), *stores.values())),
        counted=all(program.counted for program in spread),
    )


def launch_memory(
    kernel: PaperKernel, sizes: Mapping[str, int], grid: Sequence[int], device: Device, at_once: int,
    elements: Mapping[str, int] | None = None,
) -> LaunchMemory:  # fmt: skip
    """:func:`launch_tiles` and what L2 keeps of them."""
    return launch_tiles(kernel, sizes, grid, device, at_once, elements).memory(device, at_once)


def run_slowdown(facts: KernelFacts, trips: Sequence[float]) -> float:
    """Time that DRAM takes over that of whole cache lines, for the runs in which the loads of ``facts`` read; ``trips``
    of each loop in one program."""
    whole = slow = 0.0
    bodies = ((1.0, facts.body), *zip(trips, (loop.work for loop in facts.loops), strict=True))
    for times, work in bodies:
        for one in work:
            if one.kind in ("load", "tma_load"):
                whole += times * one.moved_bytes
                slow += times * one.moved_bytes * (SHORT_RUN if 0 < one.run_bytes <= SHORT_RUN_BYTES else 1.0)
    return slow / whole if whole else 1.0


@dataclass(frozen=True)
class NeighbourLoads:
    """What the launch's first :data:`NEIGHBOURS` programs load, and the different tiles of it, in bytes."""

    loaded_bytes: float
    different_bytes: float

    @property
    def distinct_share(self) -> float:
        """Different bytes of those loaded: of two launch orders, the one with less has neighbours that share more."""
        return self.different_bytes / self.loaded_bytes if self.loaded_bytes else 1.0


def neighbour_loads(kernel: PaperKernel, sizes: Mapping[str, int], grid: Sequence[int]) -> NeighbourLoads:
    """``kernel`` launched with ``sizes`` over ``grid``, what its programs look up taken as alike."""
    programs = [_run(kernel, sizes, grid, i, alike=True) for i in range(min(NEIGHBOURS, grid[0] * grid[1] * grid[2]))]
    loads = _by_operation(programs, False).values()
    return NeighbourLoads(sum(map(_moved, loads)), sum(_distinct(found, 1.0) for found in loads))


def _run(
    kernel: PaperKernel, sizes: Mapping[str, int], grid: Sequence[int], number: int, *, alike: bool = False
) -> PaperProgram:
    """Program ``number``: blocks start along x first (CUDA C++ Programming Guide leaves the order open; this is what
    GPUs do)."""
    x, rest = number % grid[0], number // grid[0]
    return kernel.run(sizes, (x, rest % grid[1], rest // grid[1]), grid, alike=alike)


def _by_operation(programs: Sequence[PaperProgram], store: bool, *, afresh: bool = False) -> Tiles:
    """What each operation of ``programs`` touches; ``afresh`` leaves out what the same program touched before: as many
    bytes, as often, from the same place on."""
    found: dict[int, list[TileAccess]] = defaultdict(list)
    for program in programs:
        before: set[tuple[object, ...]] = set()
        for access in program.accesses:
            if access.store != store:
                continue
            tiles = access.base, access.at, access.moved_bytes, access.times
            if not afresh or access.at is None or tiles not in before:
                found[access.operation].append(access)
            before.add(tiles)
    return found


def _moved(accesses: Sequence[TileAccess]) -> float:
    return sum(access.moved_bytes * access.times for access in accesses)


@dataclass(frozen=True)
class _LaunchSample:
    """How much of a launch its run programs are: each of those spread over it stands for ``each``, all of the first for
    one of ``scale`` parts. ``arrays`` has the bytes of those whose size is known."""

    each: float
    scale: float
    arrays: Mapping[str, int]

    def different(self, spread: Tiles, neighbours: Tiles) -> dict[int, float]:
        """Bytes of the tiles that each operation touches in the launch at unlike places.

        Programs that share a tile may lie too close together for those spread over the launch to show it: neighbours
        do. All different tiles are no more than each run of neighbours has, taken ``scale`` times, so the less counts.
        """
        return {
            operation: min(
                _distinct(found, self.each),
                self.scale * _distinct(neighbours[operation], 1.0) if operation in neighbours else math.inf,
            )
            for operation, found in spread.items()
        }

    def within_arrays(self, tiles: Tiles, different: Mapping[int, float]) -> dict[int, float]:
        """``different`` bytes of each operation, no more of what it looks up than there is in the array: unlike places
        may hold the same, as the experts of two blocks of rows."""
        looked_up: dict[str, float] = defaultdict(float)
        for operation, found in tiles.items():
            if not _known(found):
                looked_up[found[0].base] += different[operation]
        has = {base: min(1.0, self.arrays.get(base, math.inf) / bytes_) for base, bytes_ in looked_up.items() if bytes_}
        return {o: different[o] * (1.0 if _known(found) else has.get(found[0].base, 1.0)) for o, found in tiles.items()}

    def needed(self, spread: Tiles, neighbours: Tiles) -> float:
        """Bytes of all different tiles of the launch."""
        return sum(self.within_arrays(spread, self.different(spread, neighbours)).values())

    def in_round(self, spread: Tiles, first: Tiles) -> float:
        """Bytes of the different tiles of the first programs. Numbers that are looked up, such as blocks' experts, come
        in order, so that those who have the same one run at the same time: of a round's tiles as many are different as
        of the launch's. Rows that are gathered come in any order."""
        different = self.different(spread, first)
        bounded = self.within_arrays(spread, different)
        once = {operation: _distinct(found, 1.0) for operation, found in first.items()}
        for operation, found in first.items():
            if any(a.looked_up for a in found) and not any(a.gathered for a in found) and different.get(operation):
                once[operation] *= bounded[operation] / different[operation]
        return sum(self.within_arrays(first, once).values())

    def read(self, loads: Tiles, first: Tiles, usable: float) -> float:
        """Bytes that come from DRAM: every tile once, or once a round where all do not fit into ``usable``."""
        needed = self.needed(loads, first)
        if needed <= usable:
            return needed
        whole = sum(_moved(found) for found in first.values())
        asked = self.each * sum(_moved(found) for found in loads.values())
        return max(needed, asked * self.in_round(loads, first) / whole if whole else 0.0)


def _known(accesses: Sequence[TileAccess]) -> bool:
    return all(access.at is not None and not access.looked_up for access in accesses)


def _distinct(accesses: Sequence[TileAccess], each: float) -> float:
    """Bytes of the different tiles that one operation touches; every run program stands for ``each``."""
    tiles = {(access.base, access.at): access for access in accesses if access.at is not None}
    unknown = [access for access in accesses if access.at is None]
    bytes_ = sum(access.moved_bytes * access.times for access in tiles.values())
    known = len(accesses) - len(unknown)
    scale = each if known and len(tiles) > REUSED_SHARE * known else 1.0
    return scale * bytes_ + each * _moved(unknown)
