"""What is said of decisions while they are made: records of the logger ``warpplan``, shown where a user asks for them.

``WARPPLAN_LOG=info`` shows on standard error which kernel's first launch waits, and what came of it; ``debug`` also
what was known already. By default nothing is shown. A program with logging of its own gets the records either way.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from warpplan.kernels.compiler.exceptions import PlanWarning
from warpplan.kernels.compiler.launching.decisions import Decision
from warpplan.kernels.warn_once import warn_once

VARIABLE = "WARPPLAN_LOG"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
log = logging.getLogger("warpplan")
TRIAL_LISTENERS: list[Callable[[Decision], None]] = []
"""Who else hears of each decision that is made: called on the thread of the launch that waited for it, so they have to
return at once."""


def show_progress() -> None:
    """Show what ``WARPPLAN_LOG`` asks for, once. Warns where it asks for something else."""
    asked = os.environ.get(VARIABLE, "")
    if not asked or any(isinstance(handler, _Shown) for handler in log.handlers):
        return
    if asked.lower() not in LEVELS:
        warn_once(VARIABLE, f"{VARIABLE}={asked}: expected one of {', '.join(LEVELS)}", PlanWarning, stacklevel=2)
        return
    handler = _Shown()
    handler.setFormatter(logging.Formatter("warpplan: %(message)s"))
    handler.setLevel(LEVELS[asked.lower()])
    log.addHandler(handler)
    log.setLevel(min(LEVELS[asked.lower()], log.level or logging.CRITICAL))


class _Shown(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what is standard error when it is made."""


def begun(kernel: str, plans: int) -> None:
    log.info("%s: trying up to %d plans, its first launch waits", kernel, plans)


def begun_beside(kernel: str, plans: int) -> None:
    log.info("%s: trying up to %d plans in the background", kernel, plans)


def timed(decision: Decision) -> None:
    log.info("%s, by the times of its launches", told(decision), extra={"decision": decision})


def known(decision: Decision) -> None:
    log.debug("%s", told(decision), extra={"decision": decision})


def decided(decision: Decision, seconds: float) -> None:
    log.info("%s (%.1f s)", told(decision), seconds, extra={"decision": decision})
    tell_listeners(decision)


def tell_listeners(decision: Decision) -> None:
    """Tell :data:`TRIAL_LISTENERS` of a decision; one on an autotuner's list is logged elsewhere, with its list."""
    for listener in tuple(TRIAL_LISTENERS):
        try:
            listener(decision)
        except Exception:
            log.debug("a listener failed", exc_info=True)


def told(decision: Decision) -> str:
    """One line: the kernel, its plan or why it has none, and the times where they were measured."""
    times = ""
    if decision.planned_us and decision.unplanned_us:
        gain = decision.unplanned_us / decision.planned_us
        times = f", {gain:.2f}x as fast ({decision.unplanned_us:.1f} -> {decision.planned_us:.1f} us)"
    if decision.carried_from and not times:
        predicted = "" if decision.predicted_gain is None else f", predicted {decision.predicted_gain:.2f}x as fast"
        times = f", carried from other sizes{predicted}"
    plan = str(decision.scheme) if decision.scheme is not None else f"left as it is: {decision.reason}"
    return f"{decision.situation.kernel}: {plan}{times}"


@contextmanager
def observed(show: Callable[[Decision, str], None]) -> Iterator[None]:
    """Call ``show`` with each decision that is made, or found, while the block lasts, and its line; in any thread."""

    class Observer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            decision = getattr(record, "decision", None)
            if decision is not None:
                show(decision, record.getMessage())

    handler, level = Observer(), log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
