"""Why a kernel is left as it is.

CannotPlan                 the obstacle, the operation and the source line
UnsupportedTriton          the release of Triton is not one whose passes are known
PlanWarning                what users see of either: the kernel runs as it is
"""

from __future__ import annotations

from collections.abc import Sequence

from warpplan.planner.errors import InvalidInput


class CannotPlan(InvalidInput):
    """A kernel, or a loop of it, cannot be specialised: ``operation`` and ``line`` ("file.py:12") say where, both empty
    where the reason is not one operation."""

    def __init__(self, reason: str, operation: str = "", line: str = "") -> None:
        where = " ".join(part for part in (operation, f"({line})" if line else "") if part)
        super().__init__(f"{where}: {reason}" if where else reason, field="kernel", value=operation or None)
        self.reason, self.operation, self.line = reason, operation, line


class UnsupportedTriton(InvalidInput):
    """Another release of Triton than those whose pass lists are kept here."""


class PlanWarning(UserWarning):
    """A kernel runs as it is, not planned: the message says which and why."""


def by_reason(refused: Sequence[tuple[object, str]]) -> list[str]:
    """A line for each reason of what was ``refused``: the first that has it, and how many more."""
    reasons = [reason for _, reason in refused]
    lines = []
    for reason in dict.fromkeys(reasons):
        first, more = refused[reasons.index(reason)][0], reasons.count(reason) - 1
        lines.append(f"{first}{f' and {more} more' * bool(more)}: {reason}")
    return lines


def reason_of(error: BaseException, plain: type[BaseException]) -> str:
    """The first line of what ``error`` says, after the name of its class where that is not ``plain``."""
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, plain) else f"{type(error).__name__}: {first}".rstrip(": ")
