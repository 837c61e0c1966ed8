"""Costs added to a recorded profile: what it lacks is measured, the rest stays, and reference costs vouch for both.

Costs are SM cycles of compiled kernels, so the GPU model and the versions of CUDA, Triton and torch must be the
recorded ones. The driver and the card may be others: a few of the recorded costs are measured again beside the new, and
where one differs by more than :data:`LIMIT` nothing is added. Ceilings are never added: they follow a card's power and
clocks, which no reference in cycles shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from warpplan.planner.errors import InvalidInput, MeasurementFailed
from warpplan.planner.values.costs import CostEntry, CostTable
from warpplan.planner.values.profile import Identity, Profile
from warpplan.profiler.probes.points import Point
from warpplan.profiler.records import entry_order

Wanted = Mapping[str, tuple[Point, ...]]
"""The points to measure of each family."""

SOFTWARE = ("gpu", "cuda", "triton", "torch")
LIMIT = 0.02
"""How far a reference's occupancy may lie from the recorded one, as a share of it. Two profiles of one H200 agree in
all three within 0.1 % (benchmarks/results/profile_agreement_h200.json). At twice the limit a gross error would still be
refused, but costs off by 4 % reorder candidates that are predicted that close together."""
REFERENCES = {
    "tma": Point.of("tma_load", bytes=16384, source="l2"),
    "wgmma": Point.of("wgmma", n=128, dtype="bfloat16", a="shared"),
    "registers": Point.of("exp2", elements=8192),
}
"""By family: one cost each of the copy engine, the tensor core and arithmetic; all three are throughputs of an SM's own
units, which latencies to memory, other on every card, are not."""


def lacking(recorded: Profile, wanted: Wanted) -> dict[str, tuple[Point, ...]]:
    """The costs of ``wanted`` that ``recorded`` has no entry for, and the references that it has; empty where it lacks
    nothing. Raises :class:`InvalidInput` where it has no reference either."""
    known = {_key(entry) for entry in recorded.costs.entries}
    missing = {
        family: tuple(p for p in points if p.parameters and (p.kind, p.parameters) not in known)
        for family, points in wanted.items()
    }
    if not any(missing.values()):
        return {}
    references = {family: (p,) for family, p in REFERENCES.items() if (p.kind, p.parameters) in known}
    if not references:
        labels = ", ".join(point.label for point in REFERENCES.values())
        raise InvalidInput(
            f"the profile has none of the reference costs {labels}, so nothing shows that cycles measured now compare "
            "with its own: record a whole profile",
            field="add_to",
            limit=labels,
        )
    families = dict.fromkeys((*references, *missing))
    every = {family: (*references.get(family, ()), *missing.get(family, ())) for family in families}
    return {family: points for family, points in every.items() if points}


def require_same_software(recorded: Identity, here: Identity) -> None:
    """Raise :class:`InvalidInput` unless costs measured ``here`` may join those of ``recorded``."""
    for name in SOFTWARE:
        mine, other = getattr(recorded, name), getattr(here, name)
        if mine != other:
            raise InvalidInput(
                f"the profile was recorded with {name} {mine}, here it is {other}: costs of unlike machines are not "
                f"mixed; measure with {name} {mine}, or record a whole profile",
                field=name,
                value=other,
                limit=mine,
            )


def extended(recorded: Profile, measured: Profile) -> Profile:
    """``recorded`` with the costs of ``measured`` that it lacks, and a note that says when and how they were added.

    Raises :class:`InvalidInput` where the software differs or a reference is off by more than :data:`LIMIT`,
    :class:`MeasurementFailed` where no reference or no new cost could be measured.
    """
    require_same_software(recorded.identity, measured.identity)
    ratios = _reference_ratios(recorded, measured)
    known = {_key(entry) for entry in recorded.costs.entries}
    new = [entry for entry in measured.costs.entries if _key(entry) not in known]
    if not new:
        reason = measured.failures[0].reason if measured.failures else "no probe gave a number"
        raise MeasurementFailed(f"nothing could be added: {reason}")
    labels = {entry.label for entry in (*new, *recorded.costs.entries)}
    failures = {f.probe: f for f in (*recorded.failures, *measured.failures) if f.probe not in labels}
    agreement = ", ".join(f"{label} {ratio:.3f}" for label, ratio in ratios.items())
    note = (
        f"{len(new)} costs added on {measured.identity.date} with driver {measured.identity.driver}; "
        f"occupancies measured again, as shares of the recorded: {agreement}"
    )
    return replace(
        recorded,
        costs=CostTable(tuple(sorted((*recorded.costs.entries, *new), key=entry_order))),
        failures=tuple(failures.values()),
        notes=tuple(dict.fromkeys((*recorded.notes, note, *measured.notes))),
    )


def _reference_ratios(recorded: Profile, measured: Profile) -> dict[str, float]:
    """By label: a reference's occupancy now over the recorded one."""
    before, now = (_occupancies(profile) for profile in (recorded, measured))
    ratios = {}
    for label in (point.label for point in REFERENCES.values()):
        if label not in before or label not in now:
            continue
        ratio = now[label] / before[label]
        if abs(ratio - 1.0) > LIMIT:
            raise InvalidInput(
                f"{label} occupies its unit for {now[label]:.6g} cycles here and {before[label]:.6g} in the profile, "
                f"{ratio - 1.0:+.1%} where {LIMIT:.0%} is the limit: measure again on an idle GPU, or record a whole "
                "profile",
                field="add_to",
                value=now[label],
                limit=before[label],
            )
        ratios[label] = ratio
    if not ratios:
        reason = measured.failures[0].reason if measured.failures else "no probe gave a number"
        raise MeasurementFailed(f"no reference cost could be measured again: {reason}")
    return ratios


def _occupancies(profile: Profile) -> dict[str, float]:
    return {e.label: e.cost.occupancy.p50 for e in profile.costs.entries if e.cost.occupancy and e.cost.occupancy.p50}


def _key(entry: CostEntry) -> tuple[object, ...]:
    return entry.kind, entry.parameters
