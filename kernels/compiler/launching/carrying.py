"""Decisions carried to other sizes of the same kernel and specialisation, where the prediction says that they hold.

What a trial found at one size holds at another if the predicted gain there, corrected by how far off the prediction was
where it was measured, is still one. A refusal holds at every size: the code is the same. Launches in which other
arguments share memory are apart: a trial has seen no such launch.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from warpplan.kernels.compiler.background.launch_comparison import GAIN
from warpplan.kernels.compiler.launching.decisions import Decision, Situation
from warpplan.kernels.compiler.sizes.size_expressions import LaunchSizes

LEFT = "predicted to be as fast without a plan"


class CarriedDecisions:
    """What this process knows of each family. ``measure`` False takes predictions on trust: they hold at every size,
    for the ranking does not depend on sizes, and every rank must come to the same."""

    def __init__(self, *, measure: bool) -> None:
        self._measure = measure
        self._known: dict[Situation, dict[str, Decision]] = {}
        self._lock = threading.Lock()

    def add(self, decision: Decision) -> None:
        """Carry ``decision`` from now on, in place of one for the same sizes."""
        if decision.carried_from or not (decision.tried or not self._measure):
            return
        with self._lock:
            self._known.setdefault(decision.situation.family, {})[decision.situation.key] = decision

    def gain(self, family: Situation, sizes: LaunchSizes) -> float | None:
        """The highest gain that is predicted at ``sizes`` from what is known of ``family``."""
        gains = [d.basis.carried(d.gain, sizes) for d in self._of(family) if d.basis is not None]
        return max(gains, default=None)

    def carry(self, situation: Situation, sizes: LaunchSizes, aliases: tuple[str, ...]) -> Decision | None:
        """A decision for ``situation``, a launch of ``sizes`` in which ``aliases`` share memory; ``None`` where nothing
        that is known says enough."""
        best: tuple[float, Decision] | None = None
        for known in self._of(situation.family):
            if known.failed:
                return _carried(known, situation, aliases, None)
            if not self._measure:
                trusted = None if known.basis is None else known.basis.carried(None, sizes)
                return _carried(known, situation, aliases, trusted)
            if known.basis is None or known.aliases != aliases:
                continue
            gain = known.basis.carried(known.gain, sizes)
            # A plan that was tried before one that was not: the latter's gain has no kernel here.
            if best is None or (gain > GAIN, known.scheme is not None, gain) > (
                best[0] > GAIN, best[1].scheme is not None, best[0],
            ):  # fmt: skip
                best = gain, known
        if best is None:
            return None
        gain, known = best
        if gain <= GAIN:
            return replace(_carried(known, situation, aliases, gain), scheme=None, reason=LEFT, compiled=None)
        return None if known.scheme is None else _carried(known, situation, aliases, gain)

    def origin(self, decision: Decision) -> Decision:
        """What ``decision`` was carried from; itself where it was not, or that is not known here."""
        known = self._of(decision.situation.family)
        return next((d for d in known if d.situation.key == decision.carried_from), decision)

    def _of(self, family: Situation) -> list[Decision]:
        with self._lock:
            return list(self._known.get(family, {}).values())


def _carried(known: Decision, situation: Situation, aliases: tuple[str, ...], gain: float | None) -> Decision:
    return replace(
        known, situation=situation, measured=False, planned_us=None, unplanned_us=None, provisional=False,
        carried_from=known.situation.key, predicted_gain=gain, aliases=aliases,
    )  # fmt: skip
