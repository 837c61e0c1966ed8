"""The configuration to launch somebody's kernel with: the fastest that was measured, else the first predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.store.stored_values import config_text
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer
from warpplan.service.store.tuned.tuning_store import TunedTime


@dataclass(frozen=True)
class RankingOrigin:
    """What a ranking comes from: the key of the profile, the planner's version, and the Triton that compiled the
    kernel; "" for one that is not compared."""

    profile: str
    planner: str
    triton: str = ""

    def why_stale(self, answer: KernelAnswer) -> str:
        """Why ``answer`` is not what would be ranked now, in words; "" where it is."""
        changed = []
        if answer.profile != self.profile:
            changed.append("from another profile")
        if answer.planner != self.planner:
            changed.append(f"by {answer.planner}, not today's planner {self.planner}")
        if self.triton and answer.triton != self.triton:
            changed.append(f"as {_release(answer.triton)} compiles it, and {_release(self.triton)} is installed")
        return f"stale: ranked {' and '.join(changed)}: tune it again" if changed else ""


@dataclass(frozen=True)
class KernelChoice:
    """``config`` is the one to launch with; ``measured`` its time where it was measured."""

    answer: KernelAnswer
    config: TuningConfig
    measured: TunedTime | None

    @property
    def predicted_us(self) -> float | None:
        """``None`` where ``config`` was not ranked."""
        return next((time_us for config, time_us in self.answer.ranked if config == self.config), None)

    @property
    def measured_us(self) -> float | None:
        return None if self.measured is None else self.measured.time_us

    def why_stale(self, today: RankingOrigin) -> str:
        """Why it would not be chosen ``today``, in words; "" where it would. A time that was measured needs no profile
        and no planner, but holds for the Triton that compiled what was launched."""
        if self.measured is None:
            return today.why_stale(self.answer)
        then = dict(self.measured.environment).get("triton", "")
        if not then or not today.triton or then == today.triton:
            return ""
        return f"stale: measured with {_release(then)}, and {_release(today.triton)} is installed: measure it again"

    def as_dict(self) -> dict[str, Any]:
        """What HTTP and the command line answer."""
        a, m = self.answer, self.measured
        return {
            "kernel": a.kernel, "source": a.source, "shape": dict(a.shape), "signature": a.signature,
            "device": a.device, "config": self.config.as_dict(), "predicted_us": self.predicted_us,
            "measured_us": self.measured_us,
            "provenance": {
                "source": "predicted" if m is None else "measured", "profile": a.profile, "planner": a.planner,
                "triton": a.triton, "date": a.date if m is None else m.newest,
                "environment": {} if m is None else dict(m.environment),
            },
        }  # fmt: skip


def choose(answer: KernelAnswer, times: Iterable[TunedTime]) -> KernelChoice | None:
    """The choice for ``answer`` among ``times`` of its kernel; ``None`` where no configuration can run.

    Times of unlike environments are not compared: those of the newest report's count. A predicted time is not compared
    with a measured one: predictions order the configurations of one kernel, and were fitted to others. Ties go to the
    smaller text, so that every rank gets the same.
    """
    mine = [
        t for t in times
        if (t.source, t.key, t.device) == (answer.source, answer.tuning_key, answer.device)
    ]  # fmt: skip
    newest = max(mine, key=lambda t: (t.newest, t.environment), default=None)
    current = [t for t in mine if newest is not None and t.environment == newest.environment]
    ran = [t for t in current if t.time_us is not None]
    if ran:
        best = min(ran, key=lambda t: (t.time_us, config_text(t.config)))
        return KernelChoice(answer, best.config, best)
    cannot = {t.config for t in current}
    first = next((config for config, _ in answer.ranked if config not in cannot), None)
    return None if first is None else KernelChoice(answer, first, None)


def choices(
    answers: Sequence[KernelAnswer], times: Sequence[TunedTime], *, source: str = "", device: str = "",
    signature: str = "", shape: Mapping[str, int] | None = None,
) -> tuple[KernelChoice, ...]:  # fmt: skip
    """The choices for those of ``answers`` that match what is given."""
    wanted = [
        a for a in answers
        if source in ("", a.source) and device in ("", a.device) and signature in ("", a.signature)
        and (shape is None or dict(a.shape) == dict(shape))
    ]  # fmt: skip
    made = (choose(answer, times) for answer in wanted)
    return tuple(choice for choice in made if choice is not None)


def _release(triton: str) -> str:
    return f"Triton {triton}" if triton else "a Triton that is not known"
