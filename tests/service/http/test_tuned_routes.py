"""``/v1/tuned-kernels``: what the service gives out of kept answers is its own, or was measured."""

from __future__ import annotations

from dataclasses import replace

import httpx

from warpplan.planner.values.device import H200
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.store.answer_store import Store
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer, KernelAnswers
from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.profiles import planner_version

FIRST, OTHER = (TuningConfig.of({"BLOCK": size}, num_warps=4, num_stages=3) for size in (64, 128))


def test_what_another_profile_or_planner_predicted_is_not_given_out(
    store: Store, workflow: Workflow, http: httpx.Client
) -> None:
    answers = KernelAnswers(store.database)
    own = KernelAnswer(
        "scaled", "source", (("n", 4096),), "x=*bf16", H200.name, workflow.profiles.of(H200.name).key,
        planner_version(), ((FIRST, 2.0),), "2026-01-01T00:00:00+00:00", "3.6.0",
    )  # fmt: skip
    later = "2026-02-01T00:00:00+00:00"
    stale = [
        replace(own, profile="0" * 64, ranked=((OTHER, 1.0),), date=later),
        replace(own, planner="0.1", ranked=((OTHER, 1.0),), date=later),
        replace(own, device="NVIDIA B200", ranked=((OTHER, 1.0),)),
    ]

    def given() -> list[dict[str, object]]:
        return http.get("/v1/tuned-kernels?kernel=scaled").json()["answers"]

    answers.keep(stale)
    assert given() == []
    answers.keep([own])
    (found,) = given()
    assert found["config"]["kwargs"] == {"BLOCK": 64}, "the service's own, though another is newer"
    assert found["provenance"]["triton"] == "3.6.0"


def test_what_was_measured_needs_no_profile_and_no_planner(store: Store, http: httpx.Client) -> None:
    answer = KernelAnswer(
        "scaled", "source", (("n", 4096),), "x=*bf16", H200.name, "0" * 64, "0.1", ((FIRST, 2.0),), "", "3.6.0"
    )
    KernelAnswers(store.database).keep([answer])
    time = TunedTime("scaled", "source", answer.tuning_key, OTHER, H200.name, (("triton", "3.6.0"),), 1.5)
    Tunings(store.database).record([time])
    (found,) = http.get("/v1/tuned-kernels?kernel=scaled").json()["answers"]
    assert (found["config"]["kwargs"], found["measured_us"]) == ({"BLOCK": 128}, 1.5)
