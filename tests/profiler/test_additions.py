"""Costs added to a recorded profile: what is lacking is all that is measured, and references decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.planner.errors import InvalidInput, MeasurementFailed
from warpplan.planner.values.profile import Failure, Profile
from warpplan.profiler.additions import LIMIT, REFERENCES, SOFTWARE, extended, lacking, require_same_software
from warpplan.profiler.embedded import available, embedded
from warpplan.profiler.probes.points import FAMILIES, Point
from warpplan.profiler.records import profile_of

from .machines import IDENTITY, record, records

LATER = replace(IDENTITY, driver="590.2", date="2027-01-01")
GATHER = FAMILIES["gather"]
NEW = {point.label for point in GATHER}


def _profile(*, without: set[str] = NEW) -> Profile:
    """All that is measured but for the labels ``without``."""
    whole = profile_of(IDENTITY, [records()])
    kept = tuple(e for e in whole.costs.entries if e.label not in without)
    return replace(whole, costs=replace(whole.costs, entries=kept))


def _measured(points: tuple[Point, ...] = (*REFERENCES.values(), *GATHER), scale: float = 1.0) -> Profile:
    return profile_of(LATER, [[record(p, scale) for p in points]])


def _labels(wanted: Mapping[str, tuple[Point, ...]]) -> dict[str, set[str]]:
    return {family: {p.label for p in points} for family, points in wanted.items()}


def test_only_the_references_and_what_is_lacking_are_measured() -> None:
    expected = {family: {point.label} for family, point in REFERENCES.items()} | {"gather": NEW}
    assert _labels(lacking(_profile(), FAMILIES)) == expected
    assert list(lacking(_profile(), FAMILIES)["tma"]) == [REFERENCES["tma"]]


def test_only_the_families_asked_for_are_completed() -> None:
    exp2 = {p.label for p in FAMILIES["registers"] if p.kind == "exp2"} - {REFERENCES["registers"].label}
    wanted = lacking(_profile(without=NEW | exp2), {"registers": FAMILIES["registers"]})
    assert "gather" not in wanted
    assert _labels(wanted)["registers"] == exp2 | {REFERENCES["registers"].label}


def test_a_complete_profile_lacks_nothing() -> None:
    assert lacking(_profile(without=set()), FAMILIES) == {}


def test_ceilings_are_never_added() -> None:
    whole = profile_of(IDENTITY, [records()])
    assert lacking(replace(whole, ceilings=()), FAMILIES) == {}
    extra = profile_of(LATER, [records(1.001)])
    assert extended(_profile(), extra).ceilings == whole.ceilings


def test_without_any_reference_nothing_can_be_added() -> None:
    with pytest.raises(InvalidInput, match=r"none of the reference costs tma_load.*record a whole profile"):
        lacking(_profile(without=NEW | {p.label for p in REFERENCES.values()}), FAMILIES)


@given(scale=st.floats(1.0 - 0.9 * LIMIT, 1.0 + 0.9 * LIMIT))
def test_what_was_recorded_stays_and_what_was_lacking_joins_it_in_order(scale: float) -> None:
    recorded = _profile()
    both = extended(recorded, _measured(scale=scale))
    assert set(recorded.costs.entries) < set(both.costs.entries)
    assert {e.label for e in both.costs.entries} - {e.label for e in recorded.costs.entries} == NEW
    order = [e.label for e in profile_of(IDENTITY, [records()]).costs.entries]
    assert [e.label for e in both.costs.entries] == order
    assert both.identity == recorded.identity
    assert both.notes[0].startswith(f"{len(NEW)} costs added on 2027-01-01 with driver 590.2; ")
    assert all(point.label in both.notes[0] for point in REFERENCES.values())


@pytest.mark.parametrize("scale", [1.0 - 1.1 * LIMIT, 1.0 + 1.1 * LIMIT])
def test_references_that_moved_refuse_the_addition(scale: float) -> None:
    with pytest.raises(
        InvalidInput, match=r"tma_load\(bytes=16384, source=l2\) occupies.*2% is the limit: measure again"
    ):
        extended(_profile(), _measured(scale=scale))


def test_nothing_is_added_where_no_reference_or_no_new_cost_was_measured() -> None:
    with pytest.raises(MeasurementFailed, match="no reference cost"):
        extended(_profile(), _measured(GATHER))
    failed = replace(_measured(tuple(REFERENCES.values())), failures=(Failure(GATHER[0].label, "crash: SIGABRT"),))
    with pytest.raises(MeasurementFailed, match="nothing could be added: crash: SIGABRT"):
        extended(_profile(), failed)


def test_a_failure_is_forgotten_when_its_point_is_measured() -> None:
    first, second, *_ = GATHER
    recorded = replace(_profile(), failures=(Failure(first.label, "hang"), Failure(second.label, "hang")))
    measured = replace(_measured((*REFERENCES.values(), first)), failures=(Failure(second.label, "crash"),))
    assert extended(recorded, measured).failures == (Failure(second.label, "crash"),)


@pytest.mark.parametrize("field", SOFTWARE)
def test_other_software_is_refused_with_both_versions(field: str) -> None:
    with pytest.raises(InvalidInput, match=f"recorded with {field} .*, here it is other: costs of unlike machines"):
        require_same_software(IDENTITY, replace(LATER, **{field: "other"}))


@pytest.mark.parametrize("device", available())
def test_an_embedded_profile_has_every_reference(device: str) -> None:
    for point in REFERENCES.values():
        assert any(e.label == point.label and e.cost.occupancy for e in embedded(device).costs.entries)
