from __future__ import annotations

from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.measured_times import Measurement, summarised
from warpplan.service.store.stored_values import config_text, environment_of, read_config
from warpplan.service.workflow.answers import fastest

PROBLEM = ConfigRequest("gemm", ("M", "N", "K"), (64, 128, 256), "bfloat16", "NVIDIA H200")


def named(name: str) -> TuningConfig:
    return TuningConfig.of({"NAME": name}, num_warps=4, num_stages=1)


def report(name: str, time_us: float, *, triton: str = "3.6.0", at: str = "2026-01-01", run: str = "") -> Measurement:
    return Measurement(PROBLEM, named(name), time_us, 10, environment_of({"triton": triton}), run, at)


def test_the_prediction_stands_where_nothing_was_measured() -> None:
    assert fastest(named("planned"), 10.0, summarised([])) == (named("planned"), None)


def test_a_measurement_of_the_planned_configuration_replaces_its_prediction() -> None:
    config, measured = fastest(named("planned"), 10.0, summarised([report("planned", 14.0)]))
    assert config == named("planned")
    assert measured is not None
    assert measured.time_us == 14.0


def test_a_measured_configuration_that_beats_the_prediction_is_served() -> None:
    config, measured = fastest(named("planned"), 10.0, summarised([report("other", 9.0)]))
    assert (config, measured and measured.time_us) == (named("other"), 9.0)


def test_a_slow_measured_configuration_does_not_displace_an_unmeasured_plan() -> None:
    assert fastest(named("planned"), 10.0, summarised([report("other", 50.0)])) == (named("planned"), None)


def test_a_measurement_outranks_the_optimistic_prediction_of_the_plan() -> None:
    """The plan promised 10 µs and took 14: the configuration measured at 12 wins, though 12 > 10."""
    config, measured = fastest(named("planned"), 10.0, summarised([report("other", 12.0), report("planned", 14.0)]))
    assert (config, measured and measured.time_us) == (named("other"), 12.0)


def test_reports_of_one_configuration_count_by_their_median() -> None:
    reports = [
        report("a", 8.0, run="1"),
        report("a", 100.0, run="2"),
        report("a", 9.0, run="3"),
        report("planned", 9.5),
    ]
    config, measured = fastest(named("planned"), 1.0, summarised(reports))
    assert config == named("a")
    assert measured is not None
    assert (measured.time_us, measured.samples) == (9.0, 30)


def test_unlike_environments_are_not_mixed() -> None:
    old = report("a", 1.0, triton="3.6.0", at="2026-01-01")
    new = report("b", 9.0, triton="3.9.0", at="2026-01-02")
    assert fastest(named("planned"), 10.0, summarised([old, new]))[0] == named("b")


def test_ties_are_decided_the_same_everywhere() -> None:
    reports = [report("b", 5.0), report("a", 5.0)]
    assert (
        fastest(named("planned"), 5.0, summarised(reports))[0]
        == fastest(named("planned"), 5.0, summarised(reports[::-1]))[0]
        == named("a")
    )


def test_a_configuration_survives_its_text() -> None:
    config = TuningConfig.of({"BLOCK_M": 128, "SWAP": True, "SCHEME": "single"}, num_warps=8, num_stages=1, maxnreg=168)
    assert read_config(config_text(config)) == config
