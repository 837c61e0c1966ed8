"""Files of consumers' caches over HTTP: the first stays, what is no place or no file is named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from warpplan.service.feeds.remote_artifacts import MAX_BYTES
from warpplan.service.http.app import create_app
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow

KEY = "A" * 52


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    store = Store.open(tmp_path_factory.mktemp("artifacts") / "store.sqlite")
    with TestClient(create_app(Workflow(store)), raise_server_exceptions=False) as client:
        yield client
    store.close()


def test_the_first_stays(http: TestClient) -> None:
    def put(data: bytes) -> httpx.Response:
        query = {"name": "k.cubin", "sha256": hashlib.sha256(data).hexdigest()}
        return http.put(f"/v1/artifacts/triton/{KEY}", params=query, content=data)

    first, second = put(b"one"), put(b"two")
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["sha256"] == second.json()["sha256"]
    assert http.get("/v1/artifacts/triton").json() == {"keys": [KEY]}
    assert 'warpplan_artifacts_total{consumer="triton",outcome="kept"} 1' in http.get("/metrics").text
    assert http.delete(f"/v1/artifacts/triton/{KEY}").status_code == 204
    assert http.delete(f"/v1/artifacts/triton/{KEY}").status_code == 404


@pytest.mark.parametrize(
    ("path", "query", "status", "field"),
    [
        ("/v1/artifacts/nobody", {}, 404, "consumer"),
        ("/v1/artifacts/triton/short", {"name": "k"}, 422, "key"),
        (f"/v1/artifacts/triton/{KEY.lower()}", {"name": "k"}, 422, "key"),
        (f"/v1/artifacts/triton/{KEY}", {}, 422, "name"),
        (f"/v1/artifacts/triton/{KEY}", {"name": "../k"}, 422, "name"),
        (f"/v1/artifacts/triton/{KEY}", {"name": ".k"}, 422, "name"),
        (f"/v1/artifacts/triton/{KEY}", {"name": ""}, 422, "name"),
        (f"/v1/artifacts/triton/{KEY}", {"name": "k\n"}, 422, "name"),
        (f"/v1/artifacts/triton/{KEY}", {"name": "k" * 256}, 422, "name"),
        (f"/v1/artifacts/triton/{KEY}", {"name": ["k"] * 65}, 422, "name"),
        (f"/v1/artifacts/triton/{KEY}", {"name": "k", "scope": "x" * 201}, 422, "scope"),
        (f"/v1/artifacts/triton/{KEY}", {"name": "k", "scope": "\x00"}, 422, "scope"),
    ],
)
def test_what_is_no_place_is_named(http: TestClient, path: str, query: dict[str, Any], status: int, field: str) -> None:
    answer = http.get(path, params=query)
    assert (answer.status_code, answer.json()["field"]) == (status, field)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[", b'{"configs_timings": []}', b'{"configs_timings": [[{}, [NaN]]]}',
     b'{"configs_timings": [[{}, [-1.0]]]}', b'{"configs_timings": [[{}, [Infinity]]]}'],
)  # fmt: skip
def test_a_tuning_result_without_a_time_is_refused(http: TestClient, body: bytes) -> None:
    query = {"name": "m.autotune.json", "sha256": hashlib.sha256(body).hexdigest()}
    answer = http.put(f"/v1/artifacts/triton/{KEY}", params=query, content=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "body")


def test_a_body_cut_short_or_too_long_is_refused(http: TestClient) -> None:
    place = f"/v1/artifacts/triton/{KEY}"
    cut = http.put(place, params={"name": "k", "sha256": "0" * 64}, content=b"x")
    assert (cut.status_code, cut.json()["field"]) == (422, "sha256")
    body = b"x" * (MAX_BYTES + 1)
    long = http.put(place, params={"name": "k", "sha256": "0" * 64}, content=body)
    assert long.status_code == 413
    assert http.get(place, params={"name": "k"}).json() == {"files": {}}
