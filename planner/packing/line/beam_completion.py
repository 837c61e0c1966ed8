"""Beams that CP-SAT completes (ours): a beam places what lies low, and the order model decides everything above.

A beam that wastes little places most pieces well and fails near the top, where few of them are left to choose from.
CP-SAT decides a hundred pieces over a given skyline in a second or two. So its last decisions are undone, some, and
more wherever CP-SAT proves that the pieces kept leave no packing. Where CP-SAT comes to no answer, another beam is a
better use of the time than more of CP-SAT: trials are many and short, after Luby's sequence, each with other random
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from random import Random

from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.packing.line.beam_search import beam
from warpplan.planner.packing.line.order_model import OrderModel
from warpplan.planner.packing.line.search_runs import luby
from warpplan.planner.packing.line.skyline import Skyline
from warpplan.planner.values.packing_params import PackingParams

Attempt = Callable[[float], tuple[Answer, tuple[int, ...], float]]
"""Given the work seconds that are left: the answer, the offsets in units where it is "yes", and the work seconds."""


class CompletionTrials:
    """Trials of beam and completion; ``nodes_per_second`` is how many nodes of the beam take a work second.

    ``skyline`` makes a new one for each trial, which weighs no section by the failures of another.
    """

    def __init__(
        self, skyline: Callable[[], Skyline], orders: OrderModel, nodes_per_second: float, params: PackingParams
    ) -> None:
        self._skyline, self._orders, self._rate, self._params = skyline, orders, nodes_per_second, params
        first = skyline()
        areas = [size * first.width(i) for i, size in enumerate(first.sizes)]
        self._mean = sum(areas) / len(areas)
        self._areas = [area / self._mean for area in areas]

    def attempts(self) -> Iterator[Attempt]:
        """Trials without end: the first of each width with the weights as they are, the others with random ones."""
        for number in count():
            yield partial(self._trial, number)

    def _trial(self, number: int, left: float) -> tuple[Answer, tuple[int, ...], float]:
        params, random, longer = self._params, Random(number), luby(number + 1)
        plain = number + 2 == 2 * longer  # Luby's sequence has a number for the first time where it is the place's half
        noise = 0.0 if plain else params.completion_shuffle
        piece = params.completion_piece_worth * (1.0 if plain else random.choice(params.completion_worth_factors))
        slack = params.completion_slack_cost * (1.0 if plain else random.choice(params.completion_slack_factors))
        worth = [piece * area * random.uniform(1 - noise, 1 + noise) for area in self._areas]
        placed, complete, taken = beam(
            self._skyline(), worth, 0.0, params.completion_beam_width * longer**2, left * self._rate,
            waste=slack / self._mean, children=params.beam_children,
        )  # fmt: skip
        spent = max(1, taken) / self._rate
        if complete:
            return "yes", tuple(placed.get(i, 0) for i in range(len(worth))), spent
        kept = min(len(placed), len(worth) - len(worth) // params.completion_first_divisor)
        while kept > 0 and spent < left:
            limit = min(params.completion_attempt_s * longer, left - spent)
            answer, offsets, seconds = self._orders.run(limit, dict(islice(placed.items(), kept)))
            spent += seconds
            if answer == "yes":
                return "yes", offsets, spent
            if answer == "unknown":
                break
            kept -= max(1, len(worth) // params.completion_step_divisor)
        return "unknown", (), spent
