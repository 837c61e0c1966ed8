"""A portfolio of packing searches on a line: first fit, skyline search with restarts, beams, CP-SAT, in rounds.

None alone does everything. First fit settles most memories that are not nearly full. The skyline search and beams over
its nodes pack hundreds of buffers without a gap in a second or two, or hardly ever. CP-SAT, over the orders of the
pieces, packs most of the others, and proves small memories too small.

A short round of runs and the order model comes first; then each round gives every search its share, and the next round
gives all of them more. The sequence depends on no limit: a
limit only ends it, so that a longer one does all that a shorter one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.packing.line.beam_search import beam
from warpplan.planner.packing.line.joining import joined
from warpplan.planner.packing.line.order_model import OrderModel
from warpplan.planner.packing.line.search_runs import SearchRun, search_runs
from warpplan.planner.packing.line.skyline import Skyline
from warpplan.planner.packing.pieces import Pieces, first_fit_decreasing
from warpplan.planner.values.deadline import Deadline
from warpplan.planner.values.packing_params import PackingParams

Found = tuple[Answer, tuple[int, ...]]
"""An answer, and the offsets in units where it is "yes"."""
UNKNOWN: Found = ("unknown", ())


@dataclass
class PackingBudget:
    """Work seconds: the limit, and what is spent; one budget for all parts of a packing."""

    limit_s: float
    spent_s: float = 0.0


def pack_sections(
    problem: Pieces,
    first: Sequence[int],
    end: Sequence[int],
    budget: PackingBudget,
    deadline: Deadline,
    params: PackingParams,
) -> Found:
    """Offsets in units for pieces live in the sections [``first[i]``, ``end[i]``), apart where they share a section.

    "unknown" once the budget is spent, or where every search that could go on is switched off. Raises
    :class:`~warpplan.planner.values.deadline.DeadlineReached` at the deadline.
    """
    if not params.joining:
        return _Portfolio(problem, first, end, budget, deadline, params).run()
    fewer, first, end, place = joined(problem, first, end)
    answer, offsets = _Portfolio(fewer, first, end, budget, deadline, params).run()
    return answer, tuple(offsets[i] for i in place) if answer == "yes" else ()


class _Portfolio:
    """The searches of one problem, and what the rounds keep: learnt failures, the place in the sequence of runs."""

    def __init__(
        self,
        problem: Pieces,
        first: Sequence[int],
        end: Sequence[int],
        budget: PackingBudget,
        deadline: Deadline,
        params: PackingParams,
    ) -> None:
        self.problem, self.first, self.end = problem, first, end
        self.budget, self.deadline, self.params = budget, deadline, params
        sections = max(end, default=0)
        slower = 1 + sections / params.sections_per_node_time + len(first) / params.pieces_per_node_time
        self.nodes_per_second = params.nodes_per_second / slower
        self.begun: dict[int, int] = {}
        """The best of a beam, first placed first, for CP-SAT to complete."""

    def run(self) -> Found:
        params, budget = self.params, self.budget
        found = self._first_fit() if params.first_fit else None
        if found is not None:
            return "yes", found
        runs = search_runs(self._skyline(), params) if params.skyline_search or params.beams else None
        orders: OrderModel | None = None
        by_cpsat = params.beam_completion or params.order_model
        for number in count():
            if budget.spent_s >= budget.limit_s or not (runs or by_cpsat):
                break
            quick = number == 0
            round_s = params.quick_round_s if quick else params.first_round_s * params.round_growth ** (number - 1)
            runs_share = params.quick_runs_share if quick else params.runs_share
            until = budget.spent_s + round_s
            if runs is not None:
                found_by = self._search(runs, budget.spent_s + round_s * runs_share, until)
                if found_by[0] != "unknown":
                    return found_by
            if by_cpsat:
                orders = orders or OrderModel(self.problem, self.first, self.end, self.deadline, params)
                found_by = self._by_cpsat(orders, round_s, until, quick=quick)
                if found_by[0] != "unknown":
                    return found_by
            if runs is not None:
                found_by = self._search(runs, until, until)
                if found_by[0] != "unknown":
                    return found_by
            # A search that had no use for its share must not make the rounds endless.
            budget.spent_s = max(budget.spent_s, until)
        return UNKNOWN

    def _left(self, until: float) -> float:
        return min(until, self.budget.limit_s) - self.budget.spent_s

    def _search(self, runs: Iterator[SearchRun], begin_until: float, until: float) -> Found:
        """Runs that begin before ``begin_until`` and end at ``until``, in work seconds of the budget."""
        while self._left(begin_until) > 0:
            self.deadline.check()
            answer, offsets, nodes = next(runs)(max(1, round(self._left(until) * self.nodes_per_second)))
            self.budget.spent_s += max(1, nodes) / self.nodes_per_second
            if answer != "unknown":
                return answer, offsets
        return UNKNOWN

    def _by_cpsat(self, orders: OrderModel, round_s: float, until: float, *, quick: bool) -> Found:
        """The order model over the last decisions of a beam, unless the round is ``quick``, then over everything."""
        params = self.params
        if params.beam_completion and not quick and self._left(until) > 0:
            found = self._begin(round(params.completion_share * round_s * self.nodes_per_second))
            if found is None:
                found = self._complete(orders, params.completion_attempt_share * round_s, until)
            if found[0] != "unknown":
                return found
        if params.order_model and self._left(until) > 0:
            self.deadline.check()
            answer, offsets, seconds = orders.run(min(params.order_share * round_s, self._left(until)))
            self.budget.spent_s += seconds
            return answer, offsets
        return UNKNOWN

    def _begin(self, nodes: int) -> Found | None:
        """Sets ``begun`` by a beam that wastes little; a packing where the beam finds one."""
        if self.begun:
            return None
        params = self.params
        skyline = self._skyline()  # weighs no section by failures of another search
        areas = [size * skyline.width(i) for i, size in enumerate(skyline.sizes)]
        mean = sum(areas) / len(areas)
        worth = [params.completion_piece_worth * area / mean for area in areas]
        waste = params.completion_slack_cost / mean
        placed, complete, taken = beam(
            skyline, worth, 0.0, params.completion_beam_width, nodes, waste=waste, children=params.beam_children
        )
        self.budget.spent_s += taken / self.nodes_per_second
        if complete:
            return "yes", tuple(placed.get(i, 0) for i in range(len(areas)))
        self.begun = placed
        return None

    def _complete(self, orders: OrderModel, seconds: float, until: float) -> Found:
        """CP-SAT with the beam's last decisions undone: some, and more wherever it proves that these do not fit."""
        pieces, params = len(self.first), self.params
        kept = min(len(self.begun), pieces - pieces // params.completion_first_divisor)
        while kept > 0 and self._left(until) > 0:
            self.deadline.check()
            placed = dict(islice(self.begun.items(), kept))
            answer, offsets, spent = orders.run(min(seconds, self._left(until)), placed)
            self.budget.spent_s += spent
            if answer == "yes":
                return "yes", offsets
            if answer == "unknown":
                break
            kept -= max(1, pieces // params.completion_step_divisor)
        return UNKNOWN

    def _skyline(self) -> Skyline:
        return Skyline(self.problem, self.first, self.end, max(self.end, default=0), self.deadline, self.params)

    def _first_fit(self) -> tuple[int, ...] | None:
        starts, ends = np.array(self.first, dtype=np.int64), np.array(self.end, dtype=np.int64)

        def meets(i: int) -> NDArray[np.bool_]:
            return (starts < self.end[i]) & (ends > self.first[i])

        widths = [e - f for f, e in zip(self.first, self.end, strict=True)]
        return first_fit_decreasing(self.problem, meets, widths, self.deadline.check)
