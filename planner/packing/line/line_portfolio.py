"""A portfolio of packing searches on a line: first fit, skyline runs and beams, completed beams, CP-SAT over orders.

None alone does everything. First fit settles most memories that are not nearly full. The skyline search and beams over
its nodes pack hundreds of buffers without a gap in a second or two, or hardly ever. Beams that CP-SAT completes pack
most of the others. CP-SAT over the orders of all pieces packs some of those that are left, and proves small memories
too small.

Each search is a sequence of attempts, with restarts after Luby or budgets that double, and the next attempt is that of
the search which lags most behind its share of the work. The sequence depends on no limit: a limit only ends it, so that
a longer one does all that a shorter one does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.packing.line.beam_completion import Attempt, CompletionTrials
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


@dataclass
class PackingStrategy:
    """Attempts without end, the share of the work that is theirs, and what they have had of it, in work seconds."""

    attempts: Iterator[Attempt]
    share: float
    had_s: float = 0.0


class _Portfolio:
    """The searches of one problem: the next attempt is that of the strategy which lags most behind its share."""

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

    def run(self) -> Found:
        params = self.params
        found = self._first_fit() if params.first_fit else None
        if found is not None:
            return "yes", found
        strategies = [PackingStrategy(self._runs(), params.runs_share)] if params.skyline_search or params.beams else []
        answer = self._share(strategies, self.budget.spent_s + params.runs_first_s)
        if answer[0] != "unknown":
            return answer
        if params.beam_completion:
            strategies.append(PackingStrategy(self._completions(), params.completion_share))
        if params.order_model:
            # A large model is written once the others have had as much for their shares.
            had_s = params.order_share * self._orders.writing_s()
            strategies.append(PackingStrategy(self._order_models(), params.order_share, had_s))
        return self._share(strategies, math.inf)

    def _share(self, strategies: Sequence[PackingStrategy], until_s: float) -> Found:
        """Attempts that begin before ``until_s`` work seconds of the budget, until one has an answer."""
        budget = self.budget
        while strategies and budget.spent_s < min(until_s, budget.limit_s):
            self.deadline.check()
            strategy = min(strategies, key=lambda each: each.had_s / each.share)
            answer, offsets, seconds = next(strategy.attempts)(budget.limit_s - budget.spent_s)
            strategy.had_s += seconds
            budget.spent_s += seconds
            if answer != "unknown":
                return answer, offsets
        return UNKNOWN

    def _runs(self) -> Iterator[Attempt]:
        def attempt(run: SearchRun, left: float) -> tuple[Answer, tuple[int, ...], float]:
            answer, offsets, nodes = run(left * self.nodes_per_second)
            return answer, offsets, max(1, nodes) / self.nodes_per_second

        for run in search_runs(self._skyline(), self.params):
            yield partial(attempt, run)

    def _completions(self) -> Iterator[Attempt]:
        yield from CompletionTrials(self._skyline, self._orders, self.nodes_per_second, self.params).attempts()

    def _order_models(self) -> Iterator[Attempt]:
        """The order model of everything, without end, each attempt for twice as long as the one before."""
        for number in count():
            yield partial(self._order_all, self._orders.writing_s() + self.params.order_first_s * 2**number)

    def _order_all(self, seconds: float, left: float) -> tuple[Answer, tuple[int, ...], float]:
        return self._orders.run(min(seconds, left))

    @cached_property
    def _orders(self) -> OrderModel:
        return OrderModel(self.problem, self.first, self.end, self.deadline, self.params)

    def _skyline(self) -> Skyline:
        return Skyline(self.problem, self.first, self.end, max(self.end, default=0), self.deadline, self.params)

    def _first_fit(self) -> tuple[int, ...] | None:
        starts, ends = np.array(self.first, dtype=np.int64), np.array(self.end, dtype=np.int64)

        def meets(i: int) -> NDArray[np.bool_]:
            return (starts < self.end[i]) & (ends > self.first[i])

        widths = [e - f for f, e in zip(self.first, self.end, strict=True)]
        return first_fit_decreasing(self.problem, meets, widths, self.deadline.check)
