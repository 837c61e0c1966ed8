from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from warpplan.kernels import registry
from warpplan.service.http.app import create_app
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow

GEMM = "/v1/configs/gemm"
SIZES = {"M": 512, "N": 1024, "K": 2048}


def problem(reply: httpx.Response, status: int, field: str | None = None) -> dict[str, Any]:
    """Assert that ``reply`` is a whole problem document and return it."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = reply.json()
    assert set(body) == {"type", "title", "status", "detail", "field", "value", "limit"}
    assert body["status"] == status
    assert body["type"].startswith("urn:warpplan:problem:")
    assert body["detail"]
    assert "\n" not in body["detail"]
    assert "Traceback" not in reply.text
    if field is not None:
        assert body["field"] == field, body
    return body


def test_a_shape_never_seen_is_planned_then_found(http: httpx.Client) -> None:
    first, second = http.get(GEMM, params=SIZES), http.get(GEMM, params=SIZES)
    assert (first.status_code, second.status_code) == (200, 200)
    assert list(first.json()) == sorted(first.json())
    assert first.json()["match"] == {"kind": "planned", "kept": True}
    assert second.json()["match"] == {"kind": "exact", "kept": True}
    assert first.json() | {"match": None} == second.json() | {"match": None}
    assert set(first.json()) == {
        "kernel", "shape", "dtype", "device", "config", "plan", "predicted", "measured", "match", "provenance",
    }  # fmt: skip
    assert set(first.json()["config"]) == {"kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg"}
    assert set(first.json()["predicted"]) == {"time_us", "tflops", "bound_by"}
    assert first.json()["dtype"] == "bfloat16"
    assert first.json()["device"] == "NVIDIA H200"


def test_entity_tags(http: httpx.Client) -> None:
    first = http.get(GEMM, params=SIZES)
    tag = first.headers["etag"]
    assert tag.startswith('"')
    for held in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = http.get(GEMM, params=SIZES, headers={"If-None-Match": held})
        assert again.status_code == 304
        assert again.content == b""
        assert again.headers["etag"]
    second = http.get(GEMM, params=SIZES)
    assert http.get(GEMM, params=SIZES, headers={"If-None-Match": second.headers["etag"]}).status_code == 304
    assert http.get(GEMM, params=SIZES, headers={"If-None-Match": '"stale"'}).status_code == 200
    other = http.get(GEMM, params=SIZES | {"M": 513}, headers={"If-None-Match": tag})
    assert other.status_code == 200
    assert other.headers["etag"] != tag


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"K": None}, 422, "K"), ({"M": "0"}, 422, "M"), ({"M": "-4"}, 422, "M"), ({"M": "12.5"}, 422, "M"),
        ({"M": "1e3"}, 422, "M"), ({"M": "True"}, 422, "M"), ({"M": ""}, 422, "M"), ({"M": "abc"}, 422, "M"),
        ({"M": "3000000000"}, 422, "M"),
        ({"M": "9" * 5000}, 422, "M"), ({"M": "2000000", "N": "2000000", "K": "8"}, 422, "C"),
        ({"K": "7"}, 422, "K"), ({"dtype": "bf16"}, 404, "dtype"), ({"dtype": ""}, 404, "dtype"),
        ({"device": "NVIDIA A100"}, 404, "device"), ({"device": "NVIDIA B200"}, 404, "device"),
        ({"device": ""}, 404, "device"), ({"L": "1"}, 422, "L"), ({"m": "1"}, 422, "m"),
        ({"M": ["1", "2"]}, 422, "M"),
    ],
)  # fmt: skip
def test_bad_questions(http: httpx.Client, change: dict[str, Any], status: int, field: str) -> None:
    params = {name: value for name, value in (SIZES | change).items() if value is not None}
    body = problem(http.get(GEMM, params=params), status, field)
    if field == "dtype":
        assert body["limit"] == ["bfloat16", "float16", "float8_e4m3fn"]
        assert body["value"] == change["dtype"]


def test_unknown_kernel_route_and_method(http: httpx.Client) -> None:
    assert "gemm" in problem(http.get("/v1/configs/gem", params=SIZES), 404, "kernel")["limit"]
    problem(http.get("/v2/configs"), 404, "path")
    reply = http.delete(GEMM)
    problem(reply, 405, "method")
    assert reply.headers["allow"] == "GET, HEAD"
    for method, path, allowed in (
        ("PUT", "/v1/plans", "GET, HEAD, POST"), ("PATCH", "/v1/plans/x", "DELETE, GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"), ("PUT", "/v1/measurements", "GET, HEAD, POST"),
        ("GET", "/v1/measurements/x", "DELETE"),
    ):  # fmt: skip
        reply = http.request(method, path)
        assert problem(reply, 405, "method")["limit"] == reply.headers["allow"] == allowed


def test_head_is_get_without_its_body(http: httpx.Client) -> None:
    for path, params in ((GEMM, SIZES), ("/healthz", {}), ("/v1/kernels", {}), ("/metrics", {}), ("/docs", {})):
        got, head = http.get(path, params=params), http.head(path, params=params)
        assert (head.status_code, head.content) == (200, b""), path
        assert head.headers["content-type"] == got.headers["content-type"]
    got, head = http.get(GEMM, params=SIZES), http.head(GEMM, params=SIZES)
    assert (head.headers["etag"], head.headers["content-length"]) == (got.headers["etag"], str(len(got.content)))
    assert http.head("/v1/plans/x").status_code == 404
    assert 'method="HEAD",route="/v1/configs/gemm",status="200"' in http.get("/metrics").text


def test_a_body_of_another_type_is_told_so(http: httpx.Client) -> None:
    for path in ("/v1/configs:batch", "/v1/plans", "/v1/measurements", "/v1/kernel-plans", "/v1/tunings"):
        reply = http.post(path, content=b'{"items": [{}]}', headers={"Content-Type": "text/plain"})
        body = problem(reply, 415, "Content-Type")
        assert (body["value"], body["limit"]) == ("text/plain", "application/json")


def test_a_body_that_lacks_fields_or_is_no_json_is_told_so(http: httpx.Client) -> None:
    body = problem(http.post("/v1/measurements", json={"kernel": "gemm", "M": 64}), 422, "shape")
    assert body["detail"].startswith("shape: Field required (wrong, too: ")
    assert "config" in body["detail"]
    assert body["value"] is None
    json_type = {"Content-Type": "application/json"}
    body = problem(http.post("/v1/configs:batch", content=b"{", headers=json_type), 422, "body")
    assert "not JSON at character 1" in body["detail"]
    assert body["value"] is None


def test_a_misspelt_parameter_is_named(http: httpx.Client) -> None:
    for path in ("/v1/plans?stat=failed", "/v1/plans/x?stat=failed", "/v1/tunings?kernel=a&stat=failed"):
        assert "unknown query parameter 'stat'" in problem(http.get(path), 422, "stat")["detail"]
    for path in ("/v1/kernels", "/v1/devices", "/v1/profiles/x", "/v1/kernel-plans/x"):
        assert "unknown query parameter 'd': expected none" in problem(http.get(f"{path}?d=1"), 422, "d")["detail"]


def test_what_belongs_into_a_body_is_not_ignored_in_the_query(http: httpx.Client) -> None:
    """A batch for another GPU would have been answered for the default one."""
    device = {"device": "NVIDIA H100 80GB HBM3"}
    problem(http.post("/v1/configs:batch", params=device, json={"items": [{"shape": SIZES}]}), 422, "device")
    problem(http.post("/v1/measurements", params=device, json={}), 422, "device")


@pytest.mark.parametrize(
    "path", ["/v1/tuned-kernels?kernel=k&B=1&B=2", "/v1/tunings?kernel=k&kernel=l", "/v1/plans?limit=1&limit=2"]
)
def test_a_parameter_that_is_given_twice_is_named(http: httpx.Client, path: str) -> None:
    reply = http.get(path)
    assert "is given twice: give it once" in problem(reply, 422)["detail"]


def test_a_null_character_is_the_askers_fault(http: httpx.Client) -> None:
    for path in ("/v1/plans/a%00b", "/v1/kernel-plans/%00"):
        problem(http.get(path), 422, "path")
    problem(http.get("/v1/plans?after=x,%00"), 422, "after")
    problem(http.get("/v1/tunings?kernel=%00"), 422, "kernel")
    problem(http.delete("/v1/measurements/a%00"), 422, "path")


def test_batch(http: httpx.Client) -> None:
    items = [
        {"kernel": "gemm", "shape": SIZES},
        SIZES | {"dtype": "float16"},
        SIZES | {"M": 0},
        SIZES | {"dtype": "bf16"},
        {"kernel": 5},
        None,
    ]
    reply = http.post("/v1/configs:batch", json={"items": items})
    assert reply.status_code == 200
    results = reply.json()["results"]
    assert [r["status"] for r in results] == [200, 200, 422, 404, 422, 422]
    assert [r["error"]["field"] for r in results[2:]] == ["M", "dtype", "kernel", "items"]
    single = http.get(GEMM, params=SIZES).json()
    assert results[0]["answer"] | {"match": None} == single | {"match": None}
    # An answer names its own problem: it can be asked again as it is.
    names = ("kernel", "shape", "dtype", "device")
    again = http.post("/v1/configs:batch", json={"items": [{n: results[1]["answer"][n] for n in names}]})
    assert again.json()["results"][0]["answer"]["match"]["kind"] == "exact"


@pytest.mark.parametrize(
    ("content", "status", "field"),
    [
        (b"", 422, "body"), (b"{", 422, None), (b"[]", 422, "body"), (b"{}", 422, "items"),
        (b'{"items": []}', 422, "items"),
        (b'{"items": 1}', 422, "items"), (b'{"items": [{}], "more": 1}', 422, "more"),
        (b'{"items": [{"M": 64, "M": 65}]}', 422, "M"),
        (b"\xff", 422, "body"), (b"[" * 9_000, 422, "body"),
        (b'{"items": [{"M": ' + b"9" * 5_000 + b"}]}", 422, "body"),
    ],
)  # fmt: skip
def test_bad_batches(http: httpx.Client, content: bytes, status: int, field: str | None) -> None:
    headers = {"Content-Type": "application/json"}
    problem(http.post("/v1/configs:batch", content=content, headers=headers), status, field)


def test_a_size_beside_the_shape_and_in_it(http: httpx.Client) -> None:
    reply = http.post("/v1/configs:batch", json={"items": [{"shape": SIZES, "M": 8}, {"shape": SIZES, "name": "a"}]})
    twice, once = reply.json()["results"]
    assert (twice["status"], twice["error"]["field"], twice["error"]["value"], once["status"]) == (422, "M", 8, 200)


def test_too_many_items_and_too_many_bytes(http: httpx.Client) -> None:
    body = problem(http.post("/v1/configs:batch", json={"items": [SIZES] * 31}), 413, "items")
    assert (body["value"], body["limit"]) == (31, 30)
    body = problem(http.post("/v1/configs:batch", content=b" " * 20_001), 413, "body")
    assert body["limit"] == 20_000

    def endless() -> Any:
        for _ in range(100):
            yield b" " * 1_000

    problem(http.post("/v1/configs:batch", content=endless()), 413, "body")


def measurement(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    planned = http.get(GEMM, params=SIZES).json()
    return {"kernel": "gemm", "shape": SIZES, "config": planned["config"], "time_us": 12.5, "samples": 50} | changes


def test_a_measurement_outranks_the_prediction(http: httpx.Client) -> None:
    before = http.get(GEMM, params=SIZES)
    report = measurement(http, environment={"triton": "3.6.0"}, run="job-7")
    assert http.post("/v1/measurements", json=report).status_code == 201
    repeated = http.post("/v1/measurements", json=report)
    assert (repeated.status_code, repeated.json()["recorded"]) == (200, False)
    after = http.get(GEMM, params=SIZES, headers={"If-None-Match": before.headers["etag"]})
    assert after.status_code == 200
    assert after.json()["measured"] == {"time_us": 12.5, "samples": 50}
    provenance = after.json()["provenance"]
    assert provenance["source"] == "measured"
    # The machine of the report, not that of the profile.
    assert [provenance[name] for name in ("gpu", "triton", "driver")] == ["NVIDIA H200", "3.6.0", "unknown"]


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"time_us": 0}, 422, "time_us"), ({"time_us": -1}, 422, "time_us"), ({"time_us": "fast"}, 422, "time_us"),
        ({"samples": 0}, 422, "samples"), ({"samples": 1.5}, 422, "samples"), ({"kernel": "gem"}, 404, "kernel"),
        ({"shape": {"M": 1}}, 422, "N"), ({"config": {}}, 422, "config.kwargs"), ({"extra": 1}, 422, "extra"),
        ({"config": {"kwargs": {"BLOCK_M": 7}, "num_warps": 4, "num_stages": 1}}, 422, None),
        ({"environment": {"triton": 3}}, 422, "environment.triton"),
    ],
)  # fmt: skip
def test_bad_measurements(http: httpx.Client, change: dict[str, Any], status: int, field: str | None) -> None:
    problem(http.post("/v1/measurements", json=measurement(http, **change)), status, field)
    assert http.get(GEMM, params=SIZES).json()["measured"] is None


def test_a_time_that_is_no_number(http: httpx.Client) -> None:
    text = json.dumps(measurement(http, time_us=float("nan")))
    reply = http.post("/v1/measurements", content=text, headers={"Content-Type": "application/json"})
    problem(reply, 422, "time_us")


def test_lists(http: httpx.Client) -> None:
    (gemm,) = (k for k in http.get("/v1/kernels").json()["kernels"] if k["name"] == "gemm")
    assert gemm["dimensions"] == [field["name"] for field in gemm["fields"]] == ["M", "N", "K"]
    assert gemm["dtypes"] == ["bfloat16", "float16", "float8_e4m3fn"]
    devices = {d["name"]: d for d in http.get("/v1/devices").json()["devices"]}
    key = devices["NVIDIA H200"]["profile"]
    assert http.get(GEMM, params=SIZES).json()["provenance"]["profile"] == key
    profile = http.get(f"/v1/profiles/{key}")
    assert profile.json()["schema"] == "warpplan/profile-1"
    assert profile.json()["identity"]["gpu"] == "NVIDIA H200"
    problem(http.get("/v1/profiles/nonsense"), 404, "profile")


def test_health_metrics_and_documentation(http: httpx.Client) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ready"}
    http.get(GEMM, params=SIZES)
    http.get(GEMM, params=SIZES | {"M": 0})
    text = http.get("/metrics").text
    assert 'warpplan_requests_total{method="GET",route="/v1/configs/gemm",status="200"} 1\n' in text
    assert 'warpplan_requests_total{method="GET",route="/v1/configs/gemm",status="422"} 1\n' in text
    assert 'warpplan_answers_total{match="planned"} 1\n' in text
    assert "# TYPE warpplan_measurements_total counter" in text
    assert http.get("/docs").status_code == 200


def test_the_documentation_has_an_operation_for_each_kernel(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    for declared in registry.declarations():
        operation = paths[f"/v1/configs/{declared.name}"]["get"]
        query = {p["name"]: p for p in operation["parameters"] if p["in"] == "query"}
        assert set(query) == {*declared.parameters, "dtype", "device"}
        for field, example in zip(declared.fields, declared.sizes(declared.examples[0]), strict=True):
            schema = {"type": "integer", "minimum": field.least, "maximum": field.greatest, "example": example}
            assert query[field.name]["schema"] == schema
            assert query[field.name]["required"]
            assert query[field.name]["description"] == field.meaning
        assert query["dtype"]["schema"]["enum"] == list(declared.dtypes)
    assert "/v1/configs/{kernel}" not in paths


def test_every_example_of_every_kernel_is_answered(http: httpx.Client) -> None:
    items = [{"kernel": d.name, "shape": d.named(shape)} for d in registry.declarations() for shape in d.examples]
    results = http.post("/v1/configs:batch", json={"items": items}).json()["results"]
    assert [r["status"] for r in results] == [200] * len(items)
    for item, result in zip(items, results, strict=True):
        single = http.get(f"/v1/configs/{item['kernel']}", params=item["shape"]).json()
        assert single | {"match": None} == result["answer"] | {"match": None}
        assert single["match"] == {"kind": "exact", "kept": True}
        assert (single["kernel"], single["shape"]) == (item["kernel"], item["shape"])
        assert single["plan"]["status"] == "optimal"
        certificate = single["plan"]["optimality"]
        assert certificate["served_ii_cycles"] == single["plan"]["ii"]
        assert certificate["bound_cycles"] <= certificate["free_ii_cycles"] <= certificate["served_ii_cycles"]


def test_sizes_of_another_kernel(http: httpx.Client) -> None:
    body = problem(http.get("/v1/configs/vector_add", params=SIZES), 422, "M")
    assert body["limit"] == ["N", "dtype", "device"]
    problem(http.get("/v1/configs/vector_add", params={"N": 2**31}), 422, "N")


def test_many_at_once_get_one_answer(http: httpx.Client, store: Store) -> None:
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: http.get(GEMM, params=SIZES | {"M": 640}), range(48)))
    assert {r.status_code for r in replies} == {200}
    assert len({json.dumps(r.json()["config"]) for r in replies}) == 1
    assert len(store.problems()) == 1


def test_a_locked_store_still_answers(serve: Callable[[FastAPI], str], store: Store) -> None:
    url = serve(create_app(Workflow(Store.open(store.name, timeout_s=0.05))))
    other = sqlite3.connect(store.name, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    reply = httpx.get(url + GEMM, params=SIZES)
    assert reply.json()["match"] == {"kind": "planned", "kept": False}
    assert "warpplan_answers_not_kept_total 1" in httpx.get(url + "/metrics").text
    body = {"kernel": "gemm", "shape": SIZES, "config": reply.json()["config"], "time_us": 3}
    refused = httpx.post(url + "/v1/measurements", json=body)
    problem(refused, 503, "store")
    assert refused.headers["retry-after"]
    other.execute("ROLLBACK")
    assert httpx.post(url + "/v1/measurements", json=body).status_code == 201


def test_a_store_that_broke_while_serving(http: httpx.Client, store: Store) -> None:
    for path in (Path(store.name), Path(f"{store.name}-wal")):  # what was written last is in the latter
        size = path.stat().st_size
        with open(path, "r+b") as file:
            file.write((b"no database any more" * (size // 20 + 1))[:size])
    problem(http.get("/readyz"), 503, "store")
    problem(http.get(GEMM, params=SIZES), 503, "store")
    assert http.get("/healthz").status_code == 200


def test_what_nobody_expected(
    serve: Callable[[FastAPI], str], workflow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret path /etc")

    monkeypatch.setattr(workflow, "answer", fail)
    body = problem(httpx.get(serve(create_app(workflow)) + GEMM, params=SIZES), 500)
    assert "secret" not in json.dumps(body)


def test_attention_in_fp8_is_planned_and_packed_sequences_are_refused(http: httpx.Client) -> None:
    asked = {"B": 4, "H": 16, "L": 4096, "D": 128, "mask": "causal", "dtype": "float8_e4m3fn"}
    answer = http.get("/v1/configs/attention_fwd", params=asked).json()
    assert (answer["kernel"], answer["dtype"], answer["match"]["kind"]) == ("attention_fwd", asked["dtype"], "planned")
    assert answer["config"]["kwargs"]["STAGING_IN_Q"] is False
    (again,) = http.post("/v1/configs:batch", json={"items": [{"kernel": "attention_fwd", **asked}]}).json()["results"]
    assert again["answer"]["config"] == answer["config"]
    refused = http.get("/v1/configs/attention_fwd", params={**asked, "sizes": "equal"})
    assert refused.status_code == 422
    assert refused.json()["detail"] == "sizes with float8_e4m3fn: packed sequences are of bfloat16 or float16"
