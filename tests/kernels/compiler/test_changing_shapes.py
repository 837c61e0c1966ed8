"""Jobs whose shapes change, simulated: the real decisions, on a model of times and a clock of its own."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("triton", reason="needs triton")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import simulated_job
from simulated_job import JobReport, SimulatedJob

from warpplan.kernels.compiler.background.gpu_budget import START_ALLOWANCE_S

pytestmark = pytest.mark.filterwarnings("ignore::warpplan.kernels.compiler.exceptions.PlanWarning")
SHARE = 0.02


@cache
def job(seed: int = 1, share: float = SHARE) -> JobReport:
    """60 shapes of ten kernels, launched 8,000 times over an hour."""
    with TemporaryDirectory() as folder:
        return SimulatedJob(Path(folder), shapes=60, launches=8000, job_s=3600.0, seed=seed, gpu_share=share).run()


def test_no_launch_waits_for_a_child_a_file_or_a_compile() -> None:
    assert job().forbidden == []


def test_what_a_launch_does_for_us_is_bounded() -> None:
    """Predictions are what it does of more than a look-up: a tenth of a millisecond each."""
    assert job().most_predictions <= 10


def test_trials_keep_within_their_share() -> None:
    report = job()
    assert 0 < report.gpu_trials_s <= START_ALLOWANCE_S + SHARE * report.job_s
    assert report.trials < report.classes / 2, "most classes are carried"


def test_a_share_of_nothing_tries_nothing() -> None:
    report = job(share=0.0)
    assert (report.trials, report.gpu_trials_s, report.gaining_planned) == (0, 0.0, 0)


def test_most_launches_that_gain_run_planned_after_a_tenth() -> None:
    report = job()
    assert report.gaining > 1000
    assert report.planned_share >= 0.9
    assert report.gpu_job_s < report.gpu_job_as_it_is_s


def test_few_launches_run_a_slower_plan() -> None:
    report = job()
    assert report.lost < 0.02 * report.launches


def test_the_same_seed_gives_the_same_job() -> None:
    def short() -> JobReport:
        with TemporaryDirectory() as folder:
            return SimulatedJob(Path(folder), shapes=20, launches=1000, job_s=600.0, seed=2).run()

    one, other = short(), short()
    same = ("gaining", "gaining_planned", "lost", "trials", "classes", "gpu_job_s", "gpu_trials_s")
    assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]


def test_a_child_takes_as_long_as_it_says() -> None:
    """Doubling it delays plans: the model of times is in use."""
    before = simulated_job.CHILD_RANK_S
    try:
        simulated_job.CHILD_RANK_S = 400.0
        with TemporaryDirectory() as folder:
            slow = SimulatedJob(Path(folder), shapes=60, launches=8000, job_s=3600.0, seed=1).run()
    finally:
        simulated_job.CHILD_RANK_S = before
    assert slow.planned_share < job().planned_share
