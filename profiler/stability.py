"""Which numbers of a profile are not to be trusted, why, and what to do: in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.costs import Quantiles
from warpplan.planner.values.profile import Profile
from warpplan.profiler.records import PARTS

COST_SPREAD = 0.25
RATE_SPREAD = 0.05
DISAGREEMENT = 0.05
RESOLUTION_CYCLES = 8.0
"""Differences below this are the clock reads' own grain."""

AGAIN = "measure again on an idle GPU"
WARM = "another load or a hot card: see `nvidia-smi -q -d PERFORMANCE,CLOCK`, then measure again"


@dataclass(frozen=True)
class StabilityFinding:
    """``subject`` is an operation's part or a ceiling, ``problem`` what was seen, ``advice`` the way out."""

    subject: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}; {self.advice}"


def spread(
    profile: Profile, *, cost_limit: float = COST_SPREAD, rate_limit: float = RATE_SPREAD
) -> tuple[StabilityFinding, ...]:
    """What varies too much within one profile, and what it lacks because a probe failed.

    A cost may reach its 90th percentile ``cost_limit`` above the median, a rate may span ``rate_limit`` of its median.
    """
    return tuple(_spread(profile, cost_limit, rate_limit))


def compare(first: Profile, second: Profile, *, limit: float = DISAGREEMENT) -> tuple[StabilityFinding, ...]:
    """Where two profiles of one machine disagree by more than ``limit`` of the first, or measured different things.

    Raises :class:`InvalidInput` where their identities are not comparable: such numbers are never mixed.
    """
    a, b = first.identity, second.identity
    if not a.comparable(b):
        fields = ("gpu", "driver", "cuda", "triton", "torch")
        name = next(f for f in fields if getattr(a, f) != getattr(b, f))
        raise InvalidInput(
            f"profiles of unlike machines are not compared: {name} {getattr(a, name)!r} and {getattr(b, name)!r}; "
            "record both on one machine with one set of versions",
            field=name,
            value=getattr(b, name),
            limit=getattr(a, name),
        )
    return tuple(_disagreements(first, second, limit))


def report(findings: Iterable[StabilityFinding], measured: int) -> str:
    """The findings a line each, or one line that says there are none among ``measured`` numbers."""
    lines = [str(finding) for finding in findings]
    return "\n".join(lines) if lines else f"all {measured} numbers are stable"


def numbers(profile: Profile) -> dict[str, float]:
    """Every median of the profile by its label, such as ``tma_load(bytes=4096, source=l2) latency``."""
    found = {label: q.p50 for label, q in _parts(profile)}
    return found | {name: rate.p50 for name, rate in profile.ceilings}


def _parts(profile: Profile) -> Iterator[tuple[str, Quantiles]]:
    for entry in profile.costs.entries:
        for part in PARTS:
            quantiles = getattr(entry.cost, part)
            if quantiles is not None:
                yield f"{entry.label} {part}", quantiles


def _spread(profile: Profile, cost_limit: float, rate_limit: float) -> Iterator[StabilityFinding]:
    for label, q in _parts(profile):
        if q.p90 - q.p50 > max(RESOLUTION_CYCLES, cost_limit * q.p50):
            yield StabilityFinding(
                label, f"median {q.p50:.0f} but 90th percentile {q.p90:.0f} cycles of {q.count}", AGAIN
            )
    for name, rate in profile.ceilings:
        wide = (rate.p90 - rate.p10) / rate.p50 if rate.p50 else 0.0
        if wide > rate_limit:
            yield StabilityFinding(name, f"spans {wide:.0%} of its median over {rate.count} samples", WARM)
    for failure in profile.failures:
        yield StabilityFinding(failure.probe, f"not measured: {failure.reason}", AGAIN)


def _disagreements(first: Profile, second: Profile, limit: float) -> Iterator[StabilityFinding]:
    mine, other = numbers(first), numbers(second)
    ceilings = dict(first.ceilings)
    for label, value in mine.items():
        if label not in other:
            yield StabilityFinding(label, "measured once, missing the other time", AGAIN)
            continue
        grain = 0.0 if label in ceilings else RESOLUTION_CYCLES
        apart = abs(other[label] - value)
        if apart > max(grain, limit * value):
            share = apart / value if value else float("inf")
            problem = f"{value:.6g} once and {other[label]:.6g} the other time ({share:.0%} apart)"
            yield StabilityFinding(label, problem, WARM if label in ceilings else AGAIN)
    for label in other:
        if label not in mine:
            yield StabilityFinding(label, "measured once, missing the other time", AGAIN)
