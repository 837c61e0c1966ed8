"""Each attempt at a model is another run: seeds are never repeated, and rules come in the portfolio's order."""

from __future__ import annotations

from warpplan.planner.cpsat.runner import PROOF_SEED
from warpplan.planner.search.portfolio import MIXED, RANDOM_ORDER


def test_a_restriction_is_first_tried_in_the_order_fit_for_proofs():
    assert MIXED.slot(0) == PROOF_SEED
    rules = [MIXED.slot(attempt).rule for attempt in range(1, 9)]
    assert rules == ["partly_random", "random_order", "partly_random_positive", "partly_random"] * 2


def test_no_run_of_one_portfolio_is_repeated_in_it():
    for portfolio in (MIXED, RANDOM_ORDER):
        slots = [portfolio.slot(attempt) for attempt in range(40)]
        assert len({slot.seed for slot in slots}) == 40


def test_without_randomised_branching_only_the_seed_changes():
    slots = [RANDOM_ORDER.slot(attempt, randomised=False) for attempt in range(4)]
    assert {slot.rule for slot in slots} == {"fixed_order"}
    assert len({slot.seed for slot in slots}) == 4
