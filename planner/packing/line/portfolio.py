"""How the packing searches share their limit: first fit, own exact search with restarts, beams, CP-SAT.

None alone does everything: first fit settles most memories that are not nearly full; the skyline search and beams over
its nodes pack hundreds of buffers without a gap in a second or two, or hardly ever; CP-SAT, asked for the orders of the
pieces, packs most of the others, and proves small memories too small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from random import Random

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.cpsat.runner import Answer, run
from warpplan.planner.packing.line.beam_search import beam
from warpplan.planner.packing.line.order_model import Orders
from warpplan.planner.packing.line.pieces import Pieces, first_fit, joined
from warpplan.planner.packing.line.skyline import Skyline

Found = tuple[Answer, tuple[int, ...]]
"""An answer, and the offsets in units where it is "yes"."""
Turn = Callable[[int], tuple[Answer, tuple[int, ...], int]]
"""Given how many nodes it may take: the answer, the offsets where it is "yes", and the nodes that it took."""

NODES_PER_SECOND = 20_000
"""Nodes that the skyline search would visit in a second on a slow core if there were no sections and no pieces; so many
sections, or so many pieces, each take as long again (measured: 50 to 250 µs a node)."""
SECTIONS, PIECES = 35, 1_000
CPSAT_SHARE = 0.15
"""CP-SAT takes so much longer over these models than its deterministic time says (measured: 0.05 to 0.2 a second)."""
GLANCE, RESTART = 500, 5_000
"""Nodes of each of the first runs, and of the shortest run between restarts."""
BEAM, WIDER = 30, 3
"""Nodes of the beams of the first round, and how many times as many the others have at least."""
WORTH = ((0.3, 0.0), (0.6, 1.0), (1.0, 1.0))
"""Steps of the skyline that a piece of mean area is worth to a beam, and that a valley costs."""
THRIFTY, WASTE, WIDE = 0.1, 0.15, 150
"""Steps that a piece of mean area is worth to the beam that CP-SAT goes on from, and as much slack; its width."""
FEWEST, FEWER, GLIMPSE = 3, 10, 0.1
"""CP-SAT goes on with a third of the pieces, then with a tenth more each time that it proves that they do not fit; for
so much of the limit each."""
FIRST, BEGUN, ORDERS = 0.1, 0.6, 0.6
"""Shares of the limit: the runs that begin within the first come before CP-SAT, which goes on from a beam within the
second, and has the third, or what is left, on its own."""


def on_a_line(problem: Pieces, first: Sequence[int], end: Sequence[int], seconds: float) -> Found:
    """Pieces that are live in the sections [``first[i]``, ``end[i]``), and apart where they share a section."""
    fewer, first, end, place = joined(problem, first, end)
    answer, offsets = _apart(fewer, first, end, seconds)
    return answer, tuple(offsets[i] for i in place) if answer == "yes" else ()


def _apart(problem: Pieces, first: Sequence[int], end: Sequence[int], seconds: float) -> Found:
    starts, ends = np.array(first, dtype=np.int64), np.array(end, dtype=np.int64)

    def meets(i: int) -> NDArray[np.bool_]:
        return (starts < end[i]) & (ends > first[i])

    widths = [e - f for f, e in zip(first, end, strict=True)]
    found = _quick(problem, meets, widths)
    if found is not None:
        return "yes", found
    skyline = Skyline(problem, first, end, max(end, default=0))
    turns = _turns(skyline)
    speed = NODES_PER_SECOND / (1 + skyline.count / SECTIONS + len(first) / PIECES)
    most, taken, asked = round(seconds * speed), 0, False
    while taken < most or not asked:
        if taken >= FIRST * most and not asked:
            asked = True
            orders = Orders(problem, first, end)
            fresh = Skyline(problem, first, end, skyline.count)  # weighs no section by failures of another search
            answer, offsets, more, asking = _begun(fresh, orders, seconds, round(BEGUN * most))
            taken += more + round(asking * speed)
            if answer == "unknown":
                answer, offsets, asking = orders.run(min(ORDERS * seconds, (most - taken) / speed))
                taken += round(asking * speed)
        else:
            answer, offsets, more = next(turns)(most - taken)
            taken += max(1, more)
        if answer != "unknown":
            return answer, offsets
    return "unknown", ()


def _begun(skyline: Skyline, orders: Orders, seconds: float, nodes: int) -> tuple[Answer, tuple[int, ...], int, float]:
    """A beam that wastes little, and then CP-SAT with its last decisions undone: some, and more where these fail.

    Gives the answer, the offsets where it is "yes", the nodes and the seconds that these took.
    """
    count = len(skyline.sizes)
    areas = [size * skyline.width(i) for i, size in enumerate(skyline.sizes)]
    mean = sum(areas) / count
    placed, complete, taken = beam(
        skyline, [THRIFTY * area / mean for area in areas], 0.0, WIDE, nodes, waste=WASTE / mean
    )
    if complete:
        return "yes", tuple(placed.get(i, 0) for i in range(count)), taken, 0.0
    kept, asking = min(len(placed), count - count // FEWEST), 0.0
    while kept > 0:
        answer, offsets, more = orders.run(GLIMPSE * seconds, dict(islice(placed.items(), kept)))
        asking += more
        if answer == "yes":
            return "yes", offsets, taken, asking
        if answer == "unknown":
            break
        kept -= max(1, count // FEWER)
    return "unknown", (), taken, asking


def in_cliques(problem: Pieces, cliques: Sequence[Sequence[int]], seconds: float) -> Found:
    """Pieces that are apart where a clique has both."""
    apart = np.zeros((len(problem.sizes), len(problem.sizes)), dtype=np.bool_)
    for clique in cliques:
        apart[np.ix_(clique, clique)] = True
    found = _quick(problem, lambda i: apart[i], [int(row.sum()) for row in apart])
    return ("yes", found) if found is not None else _cpsat(problem, cliques, seconds)


def minimal(pieces: Sequence[int], impossible: Callable[[Sequence[int]], bool]) -> tuple[int, ...]:
    """A part of ``pieces`` that is ``impossible`` too and, where every answer is known, has no such part itself."""
    kept = list(pieces)
    for i in pieces:
        rest = [j for j in kept if j != i]
        if impossible(rest):
            kept = rest
    return tuple(kept)


def _quick(problem: Pieces, meets: Callable[[int], NDArray[np.bool_]], widths: Sequence[int]) -> tuple[int, ...] | None:
    sizes, everyone = problem.sizes, range(len(problem.sizes))
    keys: tuple[Callable[[int], int], ...] = (
        lambda i: sizes[i],
        lambda i: sizes[i] * widths[i],
        lambda i: widths[i],
    )
    for key in keys:
        order = sorted(everyone, key=lambda i: (-problem.steps[i], -key(i), -sizes[i], i))
        offsets = first_fit(problem, order, meets)
        if offsets is not None:
            return offsets
    return None


def _turns(skyline: Skyline) -> Iterator[Turn]:
    """Runs of the skyline search, large or long pieces first, and beams, in turn; from the second round on more and
    more shuffled. Luby's sequence lets every order have short runs and long ones, every worth narrow beams and wide."""
    random = Random(0)
    sizes, everyone = skyline.sizes, range(len(skyline.sizes))
    areas = [sizes[i] * skyline.width(i) for i in everyone]
    mean = sum(areas) / max(1, len(areas))
    orders: tuple[Callable[[int], int], ...] = (lambda i: sizes[i], skyline.width, lambda i: areas[i])

    def dig(ranks: Sequence[float], most: int, snug: bool, nodes: int) -> tuple[Answer, tuple[int, ...], int]:
        answer, taken = skyline.run(ranks, min(nodes, most), snug)
        return answer, tuple(skyline.offsets), taken

    def sweep(worth: Sequence[float], valley: float, width: int, nodes: int) -> tuple[Answer, tuple[int, ...], int]:
        placed, complete, taken = beam(skyline, worth, valley, width, nodes)
        return ("yes", tuple(placed.get(i, 0) for i in everyone), taken) if complete else ("unknown", (), taken)

    for order in orders:
        yield partial(dig, [-order(i) for i in everyone], GLANCE, False)
    for turn in count():
        noise, width = (0.8, WIDER * BEAM * luby(turn)) if turn else (0.0, BEAM)
        for at, (order, (steps, valley)) in enumerate(zip(orders, WORTH, strict=True)):
            ranks = [-order(i) * random.uniform(1 - noise, 1 + noise) for i in everyone]
            if not turn or at == turn % len(orders):
                for snug in (False, True):
                    yield partial(dig, ranks, RESTART * luby(turn + 1), snug)
            worth = [steps * areas[i] / mean * random.uniform(1 - noise / 2, 1 + noise / 2) for i in everyone]
            yield partial(sweep, worth, valley, width)


def luby(i: int) -> int:
    """1, 1, 2, 1, 1, 2, 4, …: optimal restarts up to a factor (Luby, Sinclair, Zuckerman, 1993)."""
    size = (1 << i.bit_length()) - 1
    return (size + 1) // 2 if i == size else luby(i - size // 2)


def _cpsat(problem: Pieces, cliques: Sequence[Sequence[int]], seconds: float) -> Found:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    offsets = [
        step * model.new_int_var(0, top // step, "") for step, top in zip(problem.steps, problem.tops, strict=True)
    ]
    places = [
        model.new_fixed_size_interval_var(offset, size, "") for offset, size in zip(offsets, problem.sizes, strict=True)
    ]
    for clique in cliques:
        model.add_no_overlap([places[i] for i in clique])
    answer, solver = run(model, CPSAT_SHARE * seconds)
    return answer, tuple(solver.value(offset) for offset in offsets) if answer == "yes" else ()
