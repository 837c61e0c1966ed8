"""Portfolios of CP-SAT runs: which seed and which rule of decision each attempt at one model gets.

When a schedule of a loop that keeps a unit busy all the time is found is mostly luck (runtimes are heavy-tailed: Gomes,
Selman and Kautz, "Boosting combinatorial search through randomization", AAAI 1998), so that repeated short attempts
with other seeds find it sooner than a long one.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpplan.planner.cpsat.runner import DecisionRule, SearchSeed


@dataclass(frozen=True)
class Portfolio:
    """The ``opening`` rules, one an attempt, then those of ``rounds`` again and again; each attempt has its own seed,
    ``seed_step`` beyond the one before. The numbers themselves are arbitrary: portfolios that step by 4 from different
    seeds below 4 never repeat each other's runs."""

    opening: tuple[DecisionRule, ...]
    rounds: tuple[DecisionRule, ...]
    first_seed: int
    seed_step: int

    def slot(self, attempt: int, *, randomised: bool = True) -> SearchSeed:
        """For the ``attempt``, counted from 0; without ``randomised`` only the seed changes."""
        later = attempt - len(self.opening)
        rule = self.opening[attempt] if later < 0 else self.rounds[later % len(self.rounds)]
        return SearchSeed(self.first_seed + self.seed_step * attempt, rule if randomised else "fixed_order")


MIXED = Portfolio(("fixed_order",), ("partly_random", "random_order", "partly_random_positive", "partly_random"), 0, 1)
"""For restrictions: a proof that one is infeasible comes first, if any."""
RANDOM_ORDER = Portfolio((), ("random_order",), 2, 4)
"""For all schedules in the stage window: they are found soonest with all decisions in random order."""
REPAIR = SearchSeed(1, "partly_random")
"""For partitions that were found without registers, with them."""
