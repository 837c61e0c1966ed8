from __future__ import annotations

from dataclasses import replace

import pytest

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.profile import Failure, Profile
from warpplan.profiler.probes.points import Point
from warpplan.profiler.records import profile_of
from warpplan.profiler.stability import compare, numbers, report, spread

from .machines import IDENTITY, record, records

LOAD = Point.of("tma_load", bytes=4096, source="l2")


def _with(point: Point, part: str, **values: float) -> Profile:
    changed = record(point)
    changed["cost"][part] |= values
    return profile_of(IDENTITY, [[changed]])


def test_a_quiet_profile_has_nothing_to_say() -> None:
    profile = profile_of(IDENTITY, [records(), records()])
    assert spread(profile) == compare(profile, profile) == ()
    assert report((), len(numbers(profile))) == f"all {len(numbers(profile))} numbers are stable"


def test_a_wide_cost_is_named_with_its_numbers_and_a_way_out() -> None:
    (finding,) = spread(_with(LOAD, "latency", p50=700.0, p90=1200.0))
    assert str(finding) == (
        "tma_load(bytes=4096, source=l2) latency: median 700 but 90th percentile 1200 cycles of 40; "
        "measure again on an idle GPU"
    )


def test_the_clocks_grain_is_no_spread() -> None:
    assert spread(_with(LOAD, "issue", p50=10.0, p90=17.0)) == ()
    assert len(spread(_with(LOAD, "issue", p50=10.0, p90=19.0))) == 1


def test_a_wide_rate_and_a_failure_are_named() -> None:
    wide = {"ceiling": "l2_bytes_per_s", "rate": {"p50": 5e12, "p10": 4e12, "p90": 5.1e12, "count": 20}}
    profile = replace(profile_of(IDENTITY, [[wide]]), failures=(Failure("handoff(scope=x)", "timeout: no answer"),))
    rate, failure = spread(profile)
    assert (rate.subject, rate.problem) == ("l2_bytes_per_s", "spans 22% of its median over 20 samples")
    assert "nvidia-smi" in rate.advice
    assert failure.problem == "not measured: timeout: no answer"


def test_disagreement_beyond_the_limit_is_named_once() -> None:
    first, second = _with(LOAD, "latency", p50=700.0), _with(LOAD, "latency", p50=770.0)
    (finding,) = compare(first, second)
    assert finding.problem == "700 once and 770 the other time (10% apart)"
    assert compare(first, second, limit=0.2) == ()


def test_a_number_measured_only_once_is_named_from_either_side() -> None:
    both = profile_of(IDENTITY, [records()])
    one = profile_of(IDENTITY, [[r for r in records() if "ceiling" not in r]])
    assert {f.problem for f in compare(both, one)} == {f.problem for f in compare(one, both)}
    assert len(compare(both, one)) == len(both.ceilings)


@pytest.mark.parametrize("field", ["gpu", "driver", "cuda", "triton", "torch"])
def test_unlike_machines_are_refused(field: str) -> None:
    mine = profile_of(IDENTITY, [records()])
    other = replace(mine, identity=replace(IDENTITY, **{field: "other"}))
    with pytest.raises(InvalidInput, match=f"unlike machines are not compared: {field} '.*' and 'other'"):
        compare(mine, other)


def test_another_day_is_the_same_machine() -> None:
    mine = profile_of(IDENTITY, [records()])
    assert compare(mine, replace(mine, identity=replace(IDENTITY, date="2027-01-01", command="x"))) == ()
