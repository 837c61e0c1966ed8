"""Decisions about kernels: kept once, told to all, over real sockets and by the jobs' own client."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import httpx
import pytest

from warpplan.kernels.compiler.launching.decisions import Compiled, Decision, Folder, Situation, to_json
from warpplan.kernels.compiler.launching.sources import Service
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.planner.errors import InvalidInput
from warpplan.service.http.app import create_app
from warpplan.service.store.answer_store import Store
from warpplan.service.store.decision_store import KernelPlans, UnknownKernelPlan
from warpplan.service.workflow.configure import Workflow

SITUATION = Situation("my.gemm\0", "abc", "(i32, 16)", (8, 9), "NVIDIA H200", "570.1", "3.6.0", "0.1.0")
DECISION = Decision(
    SITUATION, HopperStrategy(2, (3,)), measured=True, planned_us=80.5, unplanned_us=100.0,
    compiled=Compiled("x", (("gemm.cubin", "/home/job/gemm.cubin"),)),
)  # fmt: skip
LEFT = Decision(SITUATION, None, "has no loads through TMA descriptors", failed=True)


def test_kept_without_the_jobs_paths(store: Store) -> None:
    plans = KernelPlans(store.database)
    with pytest.raises(UnknownKernelPlan, match="nothing is decided"):
        plans.get(SITUATION.key)
    kept = replace(DECISION, compiled=None)
    assert plans.settle(DECISION) == plans.get(SITUATION.key) == kept
    assert plans.settle(LEFT) == kept, "the first wins"
    with pytest.raises(InvalidInput, match="no decision"):
        plans.settle(Decision(SITUATION, HopperStrategy(1, (2,))))


def test_jobs_that_decide_together_agree(url: str, tmp_path: Path) -> None:
    def job(number: int) -> Decision:
        service = Service(url, Folder(tmp_path / str(number)))
        return service.settle(replace(DECISION, compiled=None, planned_us=50.0 + number))

    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(job, range(8)))
    assert len(set(held)) == 1
    assert Service(url, Folder(tmp_path / "late")).load(SITUATION) == held[0]


def test_over_http(http: httpx.Client) -> None:
    missing = http.get(f"/v1/kernel-plans/{SITUATION.key}")
    assert (missing.status_code, missing.json()["field"]) == (404, "key")
    told = http.post("/v1/kernel-plans", json=to_json(DECISION))
    assert told.status_code == 200
    assert told.json() == http.get(f"/v1/kernel-plans/{SITUATION.key}").json()
    assert told.json()["scheme"] == asdict(HopperStrategy(2, (3,))) | {"depths": [3], "assignment": []}
    assert told.json()["compiled"] is None
    counted = http.get("/metrics").text
    assert 'warpplan_lookups_total{outcome="hit",sought="decision"} 1\n' in counted
    assert 'warpplan_lookups_total{outcome="miss",sought="decision"} 1\n' in counted


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": "warpplan/plan-1"}, "schema"),
        ({"key": "0"}, "key"),
        ({"scheme": {"consumers": 5, "depths": [3]}}, "scheme"),
        ({"measured": False}, "measured"),
        ({"planned_us": -1}, None),
        ({"situation": None}, None),
    ],
)
def test_nonsense_is_refused_in_one_line(http: httpx.Client, change: dict[str, object], field: str | None) -> None:
    reply = http.post("/v1/kernel-plans", json={**to_json(DECISION), **change})
    assert reply.status_code == 422
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["field"] == field
    assert "\n" not in reply.json()["detail"]


@pytest.mark.parametrize("body", ["[]", "3", "{", '"x"', json.dumps({"situation": {"sizes": 1e400}})])
def test_other_bodies_are_refused(http: httpx.Client, body: str) -> None:
    reply = http.post("/v1/kernel-plans", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 422
    assert "Error" not in reply.json()["detail"]


def test_without_a_store(serve: object) -> None:
    url = serve(create_app(Workflow(None)))  # type: ignore[operator]
    reply = httpx.get(f"{url}/v1/kernel-plans/x", timeout=60)
    assert (reply.status_code, reply.json()["field"]) == (503, "store")
