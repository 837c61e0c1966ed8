"""Shapes with options over HTTP, on a running service with a kernel that was registered from elsewhere."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from warpplan.service.store.answer_store import Store

pytestmark = pytest.mark.usefixtures("grouped_add")
GROUPED = "/v1/configs/grouped_add"
SIZES = {"N": 98432, "G": 3}
LISTED = {**SIZES, "sizes": "1,98000,0"}
NARROW = {**SIZES, "spread": "narrow"}


@pytest.fixture
def url(grouped_add: str, url: str) -> str:
    """Served after the kernel was registered, so that it has an operation of its own."""
    return url


def refused(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 422, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = reply.json()
    assert "\n" not in body["detail"]
    return body


def test_an_option_makes_another_shape_with_another_answer(http: httpx.Client, store: Store) -> None:
    wide, narrow = (http.get(GROUPED, params=params).json() for params in (SIZES, NARROW))
    assert wide["shape"] == SIZES
    assert narrow["shape"] == NARROW
    assert narrow["match"]["kind"] == "planned"
    assert (wide["config"]["num_warps"] > 1, narrow["config"]["num_warps"]) == (True, 1)
    assert {p.shape_text for p in store.problems()} == {"N=98432 G=3", "N=98432 G=3 spread=narrow"}


def test_an_option_at_its_default_is_the_same_shape(http: httpx.Client, store: Store) -> None:
    first = http.get(GROUPED, params=SIZES).json()
    again = http.get(GROUPED, params={**SIZES, "spread": "wide", "sizes": " balanced"}).json()
    assert again == {**first, "match": {"kind": "exact", "kept": True}}
    assert len(store.problems()) == 1


def test_a_list_has_one_text_however_it_is_written(http: httpx.Client) -> None:
    first = http.get(GROUPED, params=LISTED).json()
    assert first["shape"] == LISTED
    spaced = http.get(GROUPED, params={**SIZES, "sizes": "01, 98000 ,0"}).json()
    assert spaced == {**first, "match": {"kind": "exact", "kept": True}}
    items = [{"kernel": "grouped_add", "shape": {**SIZES, "sizes": [1, 98000, 0]}}, {"kernel": "grouped_add", **LISTED}]
    results = http.post("/v1/configs:batch", json={"items": items}).json()["results"]
    assert [r["answer"] for r in results] == [spaced, spaced]


@pytest.mark.parametrize(
    ("params", "field", "value", "limit", "detail"),
    [
        ({"spread": "broad"}, "spread", "broad", ["wide", "narrow"], "='broad' is unknown: expected wide, narrow"),
        ({"sizes": "1,x"}, "sizes", "1,x", ["balanced", "skewed"], "or whole numbers such as 1,2,3"),
        ({"sizes": "1,2"}, "sizes", "1,2", 3, "sizes lists 2 groups: expected G=3"),
        ({"sizes": "1,98432,0"}, "sizes", "1,98432,0", 98432, "sizes sum to 98433: expected N=98432 or less"),
        ({"sizes": "1" + ",1" * 1000}, "sizes", 2001, 2000, "expected 2000 or less"),
        ({"G": "257"}, "G", 257, 256, "G=257 is too large"),
        (
            {"layout": "nn"}, "layout", "nn", ["N", "G", "spread", "sizes", "dtype", "device"],
            "unknown query parameter 'layout': expected N, G, spread, sizes, dtype, device",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    http: httpx.Client, params: dict[str, str], field: str, value: object, limit: object, detail: str
) -> None:
    body = refused(http.get(GROUPED, params={**SIZES, **params}))
    assert (body["field"], body["value"], body["limit"]) == (field, value, limit)
    assert detail in body["detail"]


def test_a_kernel_without_the_option_says_so(http: httpx.Client) -> None:
    body = refused(http.get("/v1/configs/vector_add", params={"N": 7, "spread": "narrow"}))
    assert (body["field"], body["value"]) == ("spread", "narrow")
    items = [{"kernel": "vector_add", "N": 7, "spread": "narrow"}, {"kernel": "grouped_add", **SIZES, "spread": True}]
    first, second = http.post("/v1/configs:batch", json={"items": items}).json()["results"]
    assert first["error"]["detail"] == "vector_add has no dimension 'spread': expected N"
    assert second["error"]["detail"] == "spread=True is unknown: expected wide, narrow"
    assert second["error"]["limit"] == ["wide", "narrow"]


def test_an_option_given_twice_is_refused(http: httpx.Client) -> None:
    body = refused(http.get(GROUPED, params=[*SIZES.items(), ("spread", "wide"), ("spread", "narrow")]))
    assert body["field"] == "spread"


def test_a_measurement_counts_for_its_option_alone(http: httpx.Client) -> None:
    planned = http.get(GROUPED, params=SIZES).json()
    slower = http.get(GROUPED, params={**SIZES, "sizes": "skewed"}).json()
    report = {"kernel": "grouped_add", "config": planned["config"], "time_us": 1.25, "samples": 9}
    told = http.post("/v1/measurements", json={**report, "shape": SIZES})
    assert told.status_code == 201
    assert http.get(GROUPED, params=SIZES).json()["measured"] == {"time_us": 1.25, "samples": 9}
    for other in ({"sizes": "skewed"}, {"sizes": "1,2,3"}, {"spread": "narrow"}):
        assert http.get(GROUPED, params={**SIZES, **other}).json()["measured"] is None
    assert slower["config"] == planned["config"]
    assert http.get("/v1/measurements", params={"kernel": "grouped_add", **NARROW}).json() == {"measurements": []}
    (kept,) = http.get("/v1/measurements", params={"kernel": "grouped_add", **SIZES}).json()["measurements"]
    assert told.headers["location"].endswith(kept["id"])


def test_a_configuration_is_judged_by_the_option_that_it_was_measured_with(http: httpx.Client) -> None:
    config = http.get(GROUPED, params=SIZES).json()["config"]
    body = refused(
        http.post(
            "/v1/measurements", json={"kernel": "grouped_add", "config": config, "time_us": 1.25, "shape": NARROW}
        )
    )
    assert body["field"] == "num_warps"
    assert body["detail"].startswith("spread=narrow does not run")


def test_a_list_in_a_measurement_is_the_lists_shape(http: httpx.Client) -> None:
    config = http.get(GROUPED, params=LISTED).json()["config"]
    shape = {**SIZES, "sizes": [1, 98000, 0], "spread": None}
    body = {"kernel": "grouped_add", "config": config, "time_us": 1.5, "shape": shape}
    assert http.post("/v1/measurements", json=body).status_code == 201
    assert http.get(GROUPED, params=LISTED).json()["measured"]["time_us"] == 1.5


def test_the_description_has_the_options_with_choices_and_defaults(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    query = {p["name"]: p for p in document["paths"][GROUPED]["get"]["parameters"] if p["in"] == "query"}
    assert list(query) == ["N", "G", "spread", "sizes", "dtype", "device"]
    assert query["spread"] == {
        "name": "spread", "in": "query", "required": False, "description": "warps of a program",
        "schema": {"type": "string", "enum": ["wide", "narrow"], "default": "wide"},
    }  # fmt: skip
    sizes = query["sizes"]["schema"]
    assert sizes["default"] == "balanced"
    assert sizes["anyOf"][0] == {"type": "string", "enum": ["balanced", "skewed"]}
    assert sizes["anyOf"][1]["pattern"] == "^[0-9]+(,[0-9]+)*$"
    answer = document["components"]["schemas"]["Answer"]["properties"]["shape"]["additionalProperties"]
    assert answer == {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def test_the_listing_has_the_options(http: httpx.Client) -> None:
    listed = {k["name"]: k for k in http.get("/v1/kernels").json()["kernels"]}
    assert [o["name"] for o in listed["grouped_add"]["options"]] == ["spread", "sizes"]
    assert listed["grouped_add"]["examples"][1] == {"N": 98432, "G": 4, "spread": "narrow"}
    assert listed["vector_add"]["options"] == []
