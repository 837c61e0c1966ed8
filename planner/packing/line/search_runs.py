"""The sequence of skyline runs and beams: large or long pieces first, then shuffled, with restarts after Luby.

Luby's sequence lets every order have short runs and long ones, every weight narrow beams and wide ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from random import Random

from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.packing.line.beam_search import beam
from warpplan.planner.packing.line.skyline import Skyline
from warpplan.planner.values.packing_params import PackingParams

SearchRun = Callable[[float], tuple[Answer, tuple[int, ...], int]]
"""Given how many nodes it may take: the answer, the offsets where it is "yes", and the nodes that it took."""


def search_runs(skyline: Skyline, params: PackingParams) -> Iterator[SearchRun]:
    """Runs without end, unless skyline search and beams are both switched off.

    First a short run an order. Then cycles: the first has runs and beams of every order and weight unshuffled, each
    later one the runs of one order, and beams of every weight, shuffled.
    """
    random = Random(params.seed)
    sizes, everyone = skyline.sizes, range(len(skyline.sizes))
    areas = [sizes[i] * skyline.width(i) for i in everyone]
    mean = sum(areas) / max(1, len(areas))
    orders: tuple[Callable[[int], int], ...] = (lambda i: sizes[i], skyline.width, lambda i: areas[i])

    def depth_first(ranks: Sequence[float], nodes: int, snug: bool, most: float) -> tuple[Answer, tuple[int, ...], int]:
        answer, taken = skyline.run(ranks, min(nodes, most), snug)
        return answer, tuple(skyline.offsets), taken

    def beams(worth: Sequence[float], valley: float, width: int, most: float) -> tuple[Answer, tuple[int, ...], int]:
        placed, complete, taken = beam(skyline, worth, valley, width, most, children=params.beam_children)
        return ("yes", tuple(placed.get(i, 0) for i in everyone), taken) if complete else ("unknown", (), taken)

    if params.skyline_search:
        for order in orders:
            yield partial(depth_first, [-order(i) for i in everyone], params.first_run_nodes, False)
    for cycle in count() if params.skyline_search or params.beams else ():
        noise, beam_noise = (params.shuffle, params.beam_shuffle) if cycle else (0.0, 0.0)
        width = params.first_beam_width * (params.beam_growth * luby(cycle) if cycle else 1)
        for at, (order, (steps, valley)) in enumerate(zip(orders, params.beam_weights, strict=True)):
            ranks = [-order(i) * random.uniform(1 - noise, 1 + noise) for i in everyone]
            if params.skyline_search and (not cycle or at == cycle % len(orders)):
                for snug in (False, True):
                    yield partial(depth_first, ranks, params.restart_nodes * luby(cycle + 1), snug)
            worth = [steps * areas[i] / mean * random.uniform(1 - beam_noise, 1 + beam_noise) for i in everyone]
            if params.beams:
                yield partial(beams, worth, valley, width)


def luby(i: int) -> int:
    """1, 1, 2, 1, 1, 2, 4, …: optimal restarts up to a factor (Luby, Sinclair, Zuckerman, 1993)."""
    size = (1 << i.bit_length()) - 1
    return (size + 1) // 2 if i == size else luby(i - size // 2)
