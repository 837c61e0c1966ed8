"""A service that writes nothing to its store: what it answers, what it refuses, and what jobs make of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from warpplan.kernels.compiler.launching.decisions import Decision, Folder, Situation, from_json, to_json
from warpplan.kernels.compiler.launching.sources import Service
from warpplan.service.client import Client
from warpplan.service.http.app import create_app
from warpplan.service.store.answer_store import Store
from warpplan.service.store.decision_store import KernelPlans
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.request import Item

KEPT, OTHER = {"M": 512, "N": 1024, "K": 2048}, {"M": 256, "N": 1024, "K": 2048}
SITUATION = Situation("my.kernel", "s" * 64, "spec", (4096, 64), "NVIDIA H200", "1", "3.6.0", "0.1")
DECISION = Decision(SITUATION, None, "as fast without a plan", measured=True, planned_us=12.0, unplanned_us=11.0)
GRAPH = {
    "schema": "warpplan/graph-1",
    "name": "one",
    "ops": [{"id": "a", "unit": "ALU", "latency": 4, "occupancy": 4, "issue": 4}],
    "edges": [],
}


@pytest.fixture
def url(store: Store, serve: Callable[[FastAPI], str]) -> str:
    Workflow(store).configure(Item("gemm", tuple(KEPT.items())))
    return serve(create_app(Workflow(Store.open(store.name, readonly=True))))


def test_it_answers_from_the_store_and_plans_what_is_missing(url: str, store: Store) -> None:
    before = Path(store.name).read_bytes()
    for shape, match in ((KEPT, {"kind": "exact", "kept": True}), (OTHER, {"kind": "planned", "kept": False})):
        assert httpx.get(f"{url}/v1/configs/gemm", params=shape, timeout=60).json()["match"] == match
    assert httpx.get(f"{url}/readyz").status_code == 200
    assert Path(store.name).read_bytes() == before
    assert [p.shape["M"] for p in store.problems()] == [512]


def test_what_others_write_is_read(url: str, store: Store) -> None:
    assert httpx.get(f"{url}/v1/kernel-plans/{SITUATION.key}").status_code == 404
    KernelPlans(store.database).settle(DECISION)
    assert from_json(httpx.get(f"{url}/v1/kernel-plans/{SITUATION.key}").json(), "reply") == DECISION


def test_what_it_would_have_to_keep_is_refused(url: str) -> None:
    config = httpx.get(f"{url}/v1/configs/gemm", params=KEPT, timeout=60).json()["config"]
    measured = {"kernel": "gemm", "shape": KEPT, "config": config, "time_us": 9.0}
    for reply in (
        httpx.post(f"{url}/v1/measurements", json=measured),
        httpx.post(f"{url}/v1/plans", json={"graph": GRAPH}),
        httpx.post(f"{url}/v1/kernel-plans", json=to_json(DECISION)),
    ):
        assert (reply.status_code, reply.headers["content-type"]) == (403, "application/problem+json")
        assert "retry-after" not in reply.headers
        said = reply.json()
        assert (said["title"], said["field"]) == ("Read only store", "store")
        assert "serve it without --readonly" in said["detail"]
    job = Client(url, on_error="none")
    assert job.measured("gemm", config, 9.0, **KEPT) is False


def test_a_job_keeps_its_decisions_itself_and_goes_on_asking(url: str, store: Store, tmp_path: Path) -> None:
    service = Service(url, Folder(tmp_path / "own"))
    assert service.load(SITUATION) is None
    assert service.settle(DECISION) == DECISION
    assert Folder(tmp_path / "own").load(SITUATION) == DECISION
    elsewhere = replace(DECISION, situation=replace(SITUATION, kernel="another"))
    KernelPlans(store.database).settle(elsewhere)
    assert service.load(elsewhere.situation) == elsewhere
