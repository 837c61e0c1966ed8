"""New shapes are planned beside lookups: with every planning thread held up, what needs no planning is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from warpplan.kernels.gemm.kernel import Gemm
from warpplan.planner.errors import Infeasible
from warpplan.service.http.app import create_app
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.planning_pool import PlanningPool, TooBusy
from warpplan.service.workflow.request import Item

GEMM = "/v1/configs/gemm"


def sizes(m: int) -> dict[str, int]:
    return {"M": m, "N": 256, "K": 256}


class HeldPlanning:
    """Lets planning begin and not end, and counts how often each shape is planned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.begun, self.shapes = threading.Event(), threading.Event(), list[tuple[int, ...]]()
        rank = Gemm.rank

        def held(kernel: Gemm, shape: tuple[int, ...], *arguments: Any, **named: Any) -> Any:
            self.shapes.append(shape)
            self.begun.set()
            assert self.go.wait(60)
            return rank(kernel, shape, *arguments, **named)

        monkeypatch.setattr(Gemm, "rank", held)


def test_a_hundred_new_shapes_hold_up_nothing_that_is_known(
    serve: Callable[[FastAPI], str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = sizes(16)
    Workflow(store).configure(Item("gemm", tuple(known.items())))
    url = serve(create_app(Workflow(store)))
    held = HeldPlanning(monkeypatch)
    new = [sizes(32 * n) for n in range(1, 101)]
    limits = httpx.Limits(max_connections=200)
    with httpx.Client(base_url=url, timeout=60, limits=limits) as http, ThreadPoolExecutor(110) as pool:
        asked = [pool.submit(http.get, GEMM, params=shape) for shape in new]
        # A whole batch of new shapes waits in the same way.
        asked_batch = pool.submit(
            http.post, "/v1/configs:batch", json={"items": [sizes(8 * n) for n in range(401, 480)]}
        )
        assert held.begun.wait(20)
        try:
            for _ in range(3):
                assert http.get(GEMM, params=known).json()["match"]["kind"] == "exact"
            for path in ("/readyz", "/metrics", "/healthz", "/v1/kernels", "/v1/devices", "/v1/plans", "/openapi.json"):
                assert http.get(path).status_code == 200, path
            reply = http.post("/v1/configs:batch", json={"items": [known] * 20})
            assert [r["status"] for r in reply.json()["results"]] == [200] * 20
            config = http.get(GEMM, params=known).json()["config"]
            report = {"kernel": "gemm", "shape": known, "config": config, "time_us": 9.5}
            assert http.post("/v1/measurements", json=report).status_code == 201
            assert http.get(GEMM, params=known).json()["measured"]["time_us"] == 9.5
            assert not any(one.done() for one in (*asked, asked_batch)), "nothing new can have been planned yet"
        finally:
            held.go.set()
        assert {one.result().status_code for one in asked} == {200}
        assert {r["status"] for r in asked_batch.result().json()["results"]} == {200}


def test_identical_questions_are_planned_once(
    serve: Callable[[FastAPI], str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldPlanning(monkeypatch)
    url = serve(create_app(Workflow(store)))
    with httpx.Client(base_url=url, timeout=60) as http, ThreadPoolExecutor(30) as pool:
        asked = [pool.submit(http.get, GEMM, params=sizes(64)) for _ in range(30)]
        assert held.begun.wait(20)
        wait(asked, timeout=0.2)
        held.go.set()
        bodies = {one.result().content for one in asked}
    assert held.shapes == [(64, 256, 256)]
    assert len({body.replace(b'"kind":"exact"', b'"kind":"planned"') for body in bodies}) == 1


def test_an_error_reaches_all_who_wait_and_is_not_kept(
    serve: Callable[[FastAPI], str], workflow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def infeasible(*_: object, **__: object) -> None:
        raise Infeasible("nothing fits")

    url = serve(create_app(workflow))
    with monkeypatch.context() as patched, ThreadPoolExecutor(4) as pool:
        patched.setattr(Gemm, "rank", infeasible)
        replies = list(pool.map(lambda _: httpx.get(url + GEMM, params=sizes(64), timeout=60), range(4)))
    assert {(r.status_code, r.json()["detail"]) for r in replies} == {(422, "nothing fits")}
    assert httpx.get(url + GEMM, params=sizes(64), timeout=60).status_code == 200


def test_more_than_may_wait_are_told_to_come_again(workflow: Workflow) -> None:
    pool = PlanningPool(workflow, planners=1, max_waiting=2)
    questions = [workflow.check(Item("gemm", tuple(sizes(16 * n).items()))) for n in range(1, 4)]
    with pytest.raises(TooBusy, match="ask again later"):
        pool._begin(questions)
    assert pool._begin(questions[:2]).keys() == {q.problem for q in questions[:2]}
    pool.close()
