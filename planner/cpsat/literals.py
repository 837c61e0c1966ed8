"""Literals of a CP-SAT model of which some are known before the model is built: 0 or 1 in place of a variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Truth = Any
"""A literal of a model, or 0 or 1 where the answer is known."""


def never(truth: Truth) -> bool:
    return isinstance(truth, int) and truth == 0


def always(truth: Truth) -> bool:
    return isinstance(truth, int) and truth == 1


def negated(truth: Truth) -> Truth:
    return 1 - truth if isinstance(truth, int) else truth.Not()


def given(rule: cp_model.Constraint, truth: Truth) -> None:
    """Enforces a linear ``rule`` only where ``truth`` (not 0) holds."""
    if not always(truth):
        rule.only_enforce_if(truth)
