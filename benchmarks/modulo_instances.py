"""Random loop bodies for classic resource-constrained modulo scheduling: one partition, no buffers, no registers.

Every instance comes from its name alone. Operations stand in a row; a dependence leads to one at most ``REACH`` places
later, as in a loop body whose values are used soon. Recurrences are closed by edges backwards whose distance makes the
cycle ask for nearly the interval that the fullest unit asks for: only then does it take a search to tell whether MinII
is reached.

``mixed``: two to five kinds of units, mostly pipelined (occupancy 1); one operation in six holds its unit for longer.
``hard``: two or three kinds of units, two operations in three hold theirs for up to 20 cycles, and more and closer
recurrences: the smallest interval is often beyond MinII. ``large``: 200 to 500 operations, in between the two.
``shared``: the same, with demands for two resources that several operations share at once (cyclic RCPSP).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation

SEED = 20_261_121
REACH = 12
MOST_DISTANCE = 4


@dataclass(frozen=True)
class Kind:
    """``close`` is the part of the fullest unit's interval that a recurrence asks for, ``held`` the part of operations
    that hold their unit for up to ``longest`` cycles, ``backward`` the edges backwards for each edge forward, ``each``
    the instances of a size, ``shared`` whether operations demand amounts of :data:`SHARED`."""

    name: str
    sizes: tuple[int, ...]
    units: tuple[int, int]
    copies: tuple[int, int]
    close: tuple[float, float]
    held: float
    longest: int
    backward: tuple[float, float]
    each: int = 5
    shared: bool = False


KINDS = (
    Kind("mixed", (20, 30, 40, 50, 60, 80, 100, 120, 150, 200), (2, 5), (1, 4), (0.7, 1.0), 1 / 6, 12, (0.0, 0.15)),
    Kind("hard", (20, 30, 40, 60, 80, 100, 120, 150), (2, 3), (1, 3), (0.85, 1.0), 2 / 3, 20, (0.08, 0.15)),
    Kind("large", (200, 300, 500), (2, 5), (1, 4), (0.8, 1.0), 1 / 3, 12, (0.05, 0.15), each=4),
    Kind("shared", (200, 300, 500), (2, 5), (1, 4), (0.8, 1.0), 1 / 3, 12, (0.05, 0.15), each=4, shared=True),
)
SHARED = (("port", 8), ("power", 100))
"""Capacities of the resources that two operations in five demand up to half of, each."""


@dataclass(frozen=True)
class Instance:
    name: str
    kind: str
    graph: DependenceGraph


def instances() -> Iterator[Instance]:
    """All of them: 50 mixed, 40 hard, 12 large ones and 12 with shared resources."""
    for kind in KINDS:
        for size in kind.sizes:
            for number in range(kind.each):
                name = f"{kind.name}-{size}-{number}"
                yield Instance(name, kind.name, loop(name, size, kind))


def loop(name: str, size: int, kind: Kind) -> DependenceGraph:
    """A loop body of ``size`` operations; ``name`` seeds it."""
    generator = random.Random(f"{SEED} {name}")
    capacity = {f"U{k}": generator.randint(*kind.copies) for k in range(generator.randint(*kind.units))}
    # Work is dealt out in proportion to the copies, so that all units are about equally full.
    deal = [unit for unit, copies in capacity.items() for _ in range(copies)]
    ops = tuple(_operation(generator, f"op{i}", generator.choice(deal), kind) for i in range(size))
    forward = _forward(generator, size)
    interval = max(-(-sum(op.occupancy for op in ops if op.unit == u) // c) for u, c in capacity.items())
    wanted = round(generator.uniform(*kind.backward) * len(forward))
    backward = _recurrences(generator, ops, forward, interval, kind.close, wanted)
    edges = [Dependence(f"op{a}", f"op{b}", distance) for a, b, distance in (*forward, *backward)]
    limits = Limits(max_partitions=1)
    if kind.shared:
        ops = tuple(replace(op, demands=_demands(generator)) for op in ops)
        limits = replace(limits, capacities=SHARED)
    return DependenceGraph(name, ops, tuple(edges), limits, tuple(capacity.items()))


def _demands(generator: random.Random) -> tuple[tuple[str, int], ...]:
    return tuple((name, generator.randint(1, most // 2)) for name, most in SHARED if generator.random() < 0.4)


def _operation(generator: random.Random, name: str, unit: str, kind: Kind) -> Operation:
    """Latencies of 1 to 8, to 20 and, one in ten, of 30 to 60 cycles; no hold is longer than the latency."""
    long = generator.random() < 0.1
    latency = generator.randint(30, 60) if long else generator.randint(1, 8 if generator.random() < 0.6 else 20)
    held = generator.random() < kind.held
    return Operation(name, unit, latency, generator.randint(1, min(latency, kind.longest)) if held else 1, 0)


def _forward(generator: random.Random, size: int) -> list[tuple[int, int, int]]:
    """1.5 to 2.5 edges an operation, most of distance 0, few to the next iteration."""
    wanted = round(generator.uniform(1.5, 2.5) * size)
    found: dict[tuple[int, int], int] = {}
    while len(found) < wanted:
        a = generator.randrange(size - 1)
        b = min(size - 1, a + generator.randint(1, REACH))
        found.setdefault((a, b), int(generator.random() < 0.05))
    return [(a, b, distance) for (a, b), distance in sorted(found.items())]


def _recurrences(
    generator: random.Random,
    ops: tuple[Operation, ...],
    forward: list[tuple[int, int, int]],
    interval: int,
    close: tuple[float, float],
    wanted: int,
) -> list[tuple[int, int, int]]:
    """Edges backwards whose cycle through the slowest path asks for nearly ``interval`` cycles an iteration."""
    found: dict[tuple[int, int], int] = {}
    for _ in range(200 * wanted):
        if len(found) == wanted:
            break
        first = generator.randrange(len(ops))
        reached = _slowest_paths(ops, forward, first, interval)
        last = generator.choice(sorted(reached))
        cycles = reached[last] + ops[last].latency
        distance = max(1, -(-cycles // interval))
        if distance <= MOST_DISTANCE and close[0] <= cycles / (distance * interval) <= close[1]:
            found.setdefault((last, first), distance)
    return [(a, b, distance) for (a, b), distance in sorted(found.items())]


def _slowest_paths(
    ops: tuple[Operation, ...], forward: list[tuple[int, int, int]], first: int, interval: int
) -> dict[int, int]:
    """Per operation that ``first`` leads to, the latest that it may have to start after it; itself included."""
    reached = {first: 0}
    for a, b, distance in forward:  # Sorted by the source, and every edge leads to the right.
        if a in reached:
            reached[b] = max(reached.get(b, -(10**9)), reached[a] + ops[a].latency - distance * interval)
    return reached
