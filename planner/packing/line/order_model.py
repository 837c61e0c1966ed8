"""Exact search by CP-SAT over orders (ours): which of two pieces that are live together lies below the other.

Where a section is *full*, nothing but the order is left to decide: a piece lies at the sum of the sizes below it. So
between one full section and the next, what begins below a piece that stays takes exactly as much as what ends below
it. Few sets of sizes balance so: often only all and none, and then all that begins lies together, in the place of all
that ended. Over a section with slack, what lies below a piece takes at most its offset, and at least that less the
slack. CP-SAT learns clauses over these orders; a search that places piece after piece meets each conflict many times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, pairwise
from math import comb
from types import MappingProxyType
from typing import TYPE_CHECKING

from warpplan.planner.cpsat.literals import Truth, negated
from warpplan.planner.cpsat.runner import Answer, run, spent
from warpplan.planner.packing.pieces import Pieces
from warpplan.planner.values.deadline import Deadline
from warpplan.planner.values.packing_params import PackingParams

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

NOTHING: Mapping[int, int] = MappingProxyType({})


class OrderModel:
    """Piece i is live in the sections [``first[i]``, ``end[i]``); sizes, steps and tops as in ``Pieces``."""

    def __init__(
        self,
        problem: Pieces,
        first: Sequence[int],
        end: Sequence[int],
        deadline: Deadline,
        params: PackingParams,
    ) -> None:
        self._problem, self._first, self._end = problem, first, end
        self._deadline, self._params = deadline, params
        self._live: list[list[int]] = [[] for _ in range(max(end, default=0))]
        for i, (a, b) in enumerate(zip(first, end, strict=True)):
            deadline.check()
            for t in range(a, b):
                self._live[t].append(i)
        self._slack = [problem.capacity - sum(problem.sizes[i] for i in live) for live in self._live]
        self._full = [t for t, slack in enumerate(self._slack) if not slack]

    def run(self, seconds: float, placed: Mapping[int, int] = NOTHING) -> tuple[Answer, tuple[int, ...], float]:
        """The answer within ``seconds`` of work, the offsets in units where it is "yes", and the work seconds taken.

        Pieces that are ``placed`` at these offsets are left there, and all others lie above them.
        Raises ``DeadlineReached`` at the deadline.
        """
        from warpplan.planner.cpsat.lean_model import LeanModel

        writing, with_earlier, free = self.writing_s(placed), self._earlier, self._free(placed)
        if writing >= seconds:
            return "unknown", (), 0.0
        model = LeanModel()
        below = self._orders(model, with_earlier, placed)
        for k, earlier in enumerate(free):
            self._deadline.check()
            for i, j in combinations(earlier, 2):
                model.add_bool_or(below[i, j], below[j, k], below[k, i])
                model.add_bool_or(below[j, i], below[k, j], below[i, k])
        self._balance_full_sections(model, below, placed)
        offsets = self._offsets(model, below, placed)
        self._separate(model, below, placed, with_earlier, offsets)
        rate = self._params.order_model_rate
        self._deadline.check()
        # Presolve takes seconds that a limit of ten does not have: benchmarks/results/packing.json is without it.
        answer, solver = run(
            model, rate * (seconds - writing), presolve=False, small=True, relax=0, deadline=self._deadline
        )
        placing = tuple(solver.value(offset) for offset in offsets) if answer == "yes" else ()
        return answer, placing, writing + spent(solver) / rate

    def writing_s(self, placed: Mapping[int, int] = NOTHING) -> float:
        """Work seconds that it takes to write the model down."""
        return sum(comb(len(earlier), 2) for earlier in self._free(placed)) / self._params.triples_per_second

    def _free(self, placed: Mapping[int, int]) -> list[list[int]]:
        return [[i for i in earlier if k not in placed and i not in placed] for k, earlier in enumerate(self._earlier)]

    def _orders(
        self, model: cp_model.CpModel, with_earlier: Sequence[Sequence[int]], placed: Mapping[int, int]
    ) -> dict[tuple[int, int], Truth]:
        """``below[i, k]``: piece i lies below piece k, for all pairs that are live together."""
        below: dict[tuple[int, int], Truth] = {}
        for k, earlier in enumerate(with_earlier):
            self._deadline.check()
            for i in earlier:
                if i in placed or k in placed:
                    lower = k not in placed or (i in placed and placed[i] < placed[k])
                    below[i, k] = model.new_constant(lower)
                else:
                    below[i, k] = model.new_bool_var("")
                below[k, i] = negated(below[i, k])
        return below

    def _balance_full_sections(
        self, model: cp_model.CpModel, below: Mapping[tuple[int, int], Truth], placed: Mapping[int, int]
    ) -> None:
        """Below a piece that stays, what ends and what begins take as much, but for the slack of the other section."""
        sizes = self._problem.sizes
        for full, other in self._neighbours():
            self._deadline.check()
            ended, begun, slack = self._only(full, other), self._only(other, full), self._slack[other]
            patterns = None if slack else self._balanced(ended, begun)
            for k in self._live[full]:
                if k in placed or not (ended or begun) or not self._first[k] <= other < self._end[k]:
                    continue
                if patterns is not None:
                    model.add_allowed_assignments([below[i, k] for i in (*ended, *begun)], patterns)
                else:
                    less = sum(sizes[i] * below[i, k] for i in ended) - sum(sizes[i] * below[i, k] for i in begun)
                    model.add_linear_constraint(less, 0, slack)

    def _offsets(
        self, model: cp_model.CpModel, below: Mapping[tuple[int, int], Truth], placed: Mapping[int, int]
    ) -> Sequence[cp_model.LinearExpr]:
        """A piece's offset is what lies below it, and at most the section's slack more."""
        sizes, steps, tops = self._problem.sizes, self._problem.steps, self._problem.tops
        offsets = [step * model.new_int_var(0, top // step, "") for step, top in zip(steps, tops, strict=True)]
        for k, offset in enumerate(offsets):
            self._deadline.check()
            if k in placed:
                model.add(offset == placed[k])
                continue
            for t in self._telling(k):
                under = sum(sizes[i] * below[i, k] for i in self._live[t] if i != k)
                model.add_linear_constraint(offset - under, 0, self._slack[t])
        return offsets

    def _separate(
        self,
        model: cp_model.CpModel,
        below: Mapping[tuple[int, int], Truth],
        placed: Mapping[int, int],
        with_earlier: Sequence[Sequence[int]],
        offsets: Sequence[cp_model.LinearExpr],
    ) -> None:
        """Pairs that no full section separates do not overlap."""
        sizes = self._problem.sizes
        for k, earlier in enumerate(with_earlier):
            self._deadline.check()
            for i in earlier:
                if not (i in placed and k in placed) and all(
                    self._slack[t] for t in range(self._first[k], min(self._end[i], self._end[k]))
                ):
                    model.add(offsets[i] + sizes[i] <= offsets[k]).only_enforce_if(below[i, k])
                    model.add(offsets[k] + sizes[k] <= offsets[i]).only_enforce_if(below[k, i])

    @cached_property
    def _earlier(self) -> list[list[int]]:
        """Of each piece k those live where it begins that begin before it, the lower index first among equals."""
        first, found = self._first, []
        for k, begin in enumerate(first):
            self._deadline.check()
            here = self._live[begin] if begin < self._end[k] else []
            found.append(sorted((i for i in here if (first[i], i) < (begin, k)), key=lambda i: (first[i], i)))
        return found

    def _neighbours(self) -> Iterator[tuple[int, int]]:
        """Each full section with the next one, and with those of slack between it and the full ones next to it."""
        count = len(self._live)
        for a, b in pairwise([-1, *self._full, count]):
            for t in range(a + 1, b):
                if a >= 0:
                    yield a, t
                if b < count:
                    yield b, t
            if a >= 0 and b < count:
                yield a, b

    def _only(self, a: int, b: int) -> list[int]:
        """The pieces live in section a and not in b."""
        return [i for i in self._live[a] if not self._first[i] <= b < self._end[i]]

    def _telling(self, k: int) -> list[int]:
        """The sections that say where piece k lies: all, or one of the full ones, which all say the same."""
        sections = range(self._first[k], self._end[k])
        full = [t for t in sections if not self._slack[t]]
        return [min(full, key=lambda t: len(self._live[t]))] if full else list(sections)

    def _balanced(self, ended: Sequence[int], begun: Sequence[int]) -> list[tuple[int, ...]] | None:
        """The parts of ``ended`` and ``begun``, as 0 and 1, that take as much as each other; None: too many."""
        if max(len(ended), len(begun)) > self._params.balanced_pieces:
            return None
        before, after = self._parts(ended), self._parts(begun)
        if sum(len(parts) * len(after.get(size, ())) for size, parts in before.items()) > self._params.listed_balances:
            return None
        return [(*a, *b) for size, parts in before.items() for a in parts for b in after.get(size, ())]

    def _parts(self, pieces: Sequence[int]) -> dict[int, list[tuple[int, ...]]]:
        """All parts of ``pieces``, by what they take."""
        found: dict[int, list[tuple[int, ...]]] = {0: [()]}
        for i in pieces:
            more: dict[int, list[tuple[int, ...]]] = defaultdict(list)
            for size, parts in found.items():
                more[size] += [(*part, 0) for part in parts]
                more[size + self._problem.sizes[i]] += [(*part, 1) for part in parts]
            found = dict(more)
        return found
