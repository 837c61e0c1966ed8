"""Where rings may lie: every number of slots, every pair that may alternate, every order of putting them down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product

from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import ExtraBuffer
from warpplan.planner.values.plan import Buffer


@dataclass(frozen=True)
class Ring:
    """``uses``: reader, distance, cycles it keeps the slot, the margin, and what telling another partition costs."""

    producer: int
    in_tmem: bool
    slot: int
    alignment: int
    lanes: int
    uses: tuple[tuple[int, int, int, int, int], ...]


@dataclass(frozen=True)
class Layout:
    """Slots of each ring, pairs (by index) that may meet, each ring's offset and lane, and extra buffers' offsets."""

    depths: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    places: tuple[tuple[int, int], ...]
    extras: tuple[int, ...]


def layouts(
    graph: DependenceGraph, rings: Sequence[Ring], most_slots: int, depth: int | None, extras: Sequence[ExtraBuffer]
) -> Iterator[Layout]:
    """Every choice of slots and of pairs that may meet that fits, but none that another one beats. ``extras`` lie
    beside the rings and meet none."""
    found: list[Layout] = []
    beside = [Ring(-1, False, e.size, e.alignment, 0, ()) for e in extras]
    capacity = [graph.limits.tmem_columns if r.in_tmem else graph.limits.smem_bytes for r in rings]
    limits = [min(most_slots, (2 if r.lanes == 64 else 1) * capacity // max(1, r.slot)) for r, capacity in
              zip(rings, capacity, strict=True)]  # fmt: skip
    may_meet = [(x, y) for x, y in combinations(range(len(rings)), 2) if rings[x].in_tmem == rings[y].in_tmem]
    for count in range(len(may_meet) + 1):
        for pairs in combinations(may_meet, count):
            single = {x for pair in pairs for x in pair}
            ranges = [
                [n for n in range(1 if x in single else most, 0, -1) if depth in (None, n)]
                for x, most in enumerate(limits)
            ]
            for depths in product(*ranges):
                if not _fits_singly(graph, rings, depths, single):
                    continue
                if any(set(f.pairs) <= set(pairs) and all(a >= b for a, b in zip(f.depths, depths, strict=True))
                       for f in found):  # fmt: skip
                    continue
                places = _places(graph, [*rings, *beside], [*depths, *(1 for _ in beside)], pairs)
                if places is not None:
                    own = tuple(offset for offset, _ in places[len(rings) :])
                    found.append(Layout(depths, pairs, places[: len(rings)], own))
                    yield found[-1]


def _fits_singly(graph: DependenceGraph, rings: Sequence[Ring], depths: Sequence[int], sharing: set[int]) -> bool:
    """Whether the rings that meet no other could lie side by side (in halves of columns, for 64 lanes)."""
    taken = [0, 0]
    for x, ring in enumerate(rings):
        if x not in sharing:
            taken[ring.in_tmem] += depths[x] * ring.slot * (1 if ring.lanes == 64 else 2)
    return taken[0] <= 2 * graph.limits.smem_bytes and taken[1] <= 2 * graph.limits.tmem_columns


def _places(
    graph: DependenceGraph, rings: Sequence[Ring], depths: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...] | None:
    """Each ring at the lowest place that the ones before leave it, in every order and at every lane: some order of
    ascending offsets does as well as any arrangement."""
    for lanes in product(*[(0, 64) if r.lanes == 64 else (0,) for r in rings]):
        for order in permutations(range(len(rings))):
            placed: dict[int, Buffer] = {}
            for x in order:
                ring, offset = rings[x], 0
                kind = "tmem" if ring.in_tmem else "smem"
                capacity = graph.limits.tmem_columns if ring.in_tmem else graph.limits.smem_bytes
                while True:
                    at = Buffer("", offset, depths[x] * ring.slot, ring.alignment, None, kind, lanes[x], ring.lanes)
                    others = [
                        b.offset + b.size for y, b in placed.items()
                        if (min(x, y), max(x, y)) not in pairs and meet(at, b)
                    ]  # fmt: skip
                    if not others:
                        break
                    offset = -(-max(others) // ring.alignment) * ring.alignment
                if offset + depths[x] * ring.slot > capacity:
                    break
                placed[x] = at
            else:
                return tuple((placed[x].offset, placed[x].lane) for x in range(len(rings)))
    return None


def meet(a: Buffer, b: Buffer) -> bool:
    """Whether two places have a byte, or a lane of a column, in common."""
    if a.memory != b.memory or not _overlap(a.offset, a.size, b.offset, b.size):
        return False
    return a.memory == "smem" or _overlap(a.lane, a.lanes, b.lane, b.lanes)


def _overlap(a: int, a_size: int, b: int, b_size: int) -> bool:
    return a_size > 0 and b_size > 0 and a < b + b_size and b < a + a_size
