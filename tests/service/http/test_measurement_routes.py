from __future__ import annotations

from typing import Any

import httpx
import pytest

from warpplan.kernels.gemm.kernel import Gemm
from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.device import DEVICES
from warpplan.profiler.embedded import embedded
from warpplan.service.config_request import ConfigRequest
from warpplan.service.workflow.plausibility import MARGIN, require_plausible

GEMM, MEASUREMENTS = "/v1/configs/gemm", "/v1/measurements"
SIZES = {"M": 4096, "N": 4096, "K": 4096}
GPU = DEVICES["NVIDIA H200"]


def report(http: httpx.Client, time_us: float, **more: Any) -> httpx.Response:
    config = http.get(GEMM, params=SIZES).json()["config"]
    return http.post(
        MEASUREMENTS, json={"kernel": "gemm", "shape": SIZES, "config": config, "time_us": time_us, **more}
    )


@pytest.mark.parametrize("time_us", [1e-9, 1.0, 50.0])
def test_a_time_that_the_device_cannot_reach(http: httpx.Client, time_us: float) -> None:
    """4096³ are 137 GFLOP: 211 µs at the measured 652 TFLOP/s, and never less than half of it."""
    reply = report(http, time_us)
    assert (reply.status_code, reply.headers["content-type"]) == (422, "application/problem+json")
    body = reply.json()
    assert (body["field"], body["value"]) == ("time_us", time_us)
    assert 100 < body["limit"] < 110
    assert "no less than 105" in body["detail"]
    assert http.get(GEMM, params=SIZES).json()["measured"] is None


@pytest.mark.parametrize(
    ("more", "field", "said"),
    [
        ({"time_us": True}, "time_us", "should be a valid number"),
        ({"time_us": "300"}, "time_us", "should be a valid number"),
        ({"environment": {"driver": "5" * 201}}, "environment.driver", "at most 200 characters"),
        ({"time_us": 3e6}, "time_us", "takes no more than 2.107e+06 us"),
        ({"environment": {"gpu": "NVIDIA B200"}}, "environment.gpu", "what was measured is for NVIDIA H200"),
        ({"measured_at": "2999-01-01T00:00:00Z"}, "measured_at", "is in the future"),
        ({"measured_at": "2026-01-01T00:00:00"}, "measured_at", "with the offset from UTC"),
        ({"measured_at": "9999-12-31T23:59:59-23:59"}, "measured_at", "expected ISO 8601"),
        ({"measured_at": "yesterday"}, "measured_at", "expected ISO 8601"),
    ],
)
def test_what_cannot_be_a_measurement(http: httpx.Client, more: dict[str, Any], field: str, said: str) -> None:
    reply = report(http, **{"time_us": 300.0} | more)
    assert (reply.status_code, reply.headers["content-type"]) == (422, "application/problem+json")
    body = reply.json()
    assert (body["field"], said in body["detail"]) == (field, True), body
    assert body["value"] is not None
    assert http.get(GEMM, params=SIZES).json()["measured"] is None


def test_a_date_of_the_job_is_kept_in_utc(http: httpx.Client) -> None:
    at = "2026-01-31T13:00:00+01:00"
    assert report(http, 300.0, measured_at=at, environment={"gpu": "NVIDIA H200"}).status_code == 201
    (listed,) = http.get(MEASUREMENTS, params={"kernel": "gemm", **SIZES}).json()["measurements"]
    assert listed["created_at"] == "2026-01-31T12:00:00.000000+00:00"


@pytest.mark.parametrize("time_us", [180.0, 1e6])
def test_times_as_they_are_measured(http: httpx.Client, time_us: float) -> None:
    assert report(http, time_us).status_code == 201


def test_a_measurement_is_listed_and_taken_back(http: httpx.Client) -> None:
    before = http.get(GEMM, params=SIZES).json()
    first = report(http, 190.0, samples=7, environment={"triton": "3.6.0"}, run="a")
    assert first.json()["recorded"]
    assert first.headers["location"] == f"{MEASUREMENTS}/{first.json()['id']}"
    repeated = report(http, 190.0, samples=7, environment={"triton": "3.6.0"}, run="a")
    assert (repeated.json(), repeated.status_code) == ({"recorded": False, "id": first.json()["id"]}, 200)
    (listed,) = http.get(MEASUREMENTS, params={"kernel": "gemm", **SIZES}).json()["measurements"]
    assert listed.pop("created_at").startswith("20")
    assert listed == {
        "id": first.json()["id"], "config": before["config"], "time_us": 190.0, "samples": 7,
        "environment": {"triton": "3.6.0"}, "run": "a",
    }  # fmt: skip
    assert http.get(GEMM, params=SIZES).json()["measured"] == {"time_us": 190.0, "samples": 7}
    assert http.delete(first.headers["location"]).status_code == 204
    assert http.get(GEMM, params=SIZES).json() | {"match": None} == before | {"match": None}
    assert http.get(MEASUREMENTS, params={"kernel": "gemm", **SIZES}).json() == {"measurements": []}
    gone = http.delete(first.headers["location"])
    assert (gone.status_code, gone.json()["field"]) == (404, "id")


def test_a_run_without_null_characters(http: httpx.Client) -> None:
    reply = report(http, 190.0, run="a\0b")
    assert (reply.status_code, reply.json()["field"]) == (422, "run")


@pytest.mark.parametrize(
    ("params", "status", "field"),
    [({}, 422, "kernel"), ({"kernel": "gem"}, 404, "kernel"), ({"kernel": "gemm", "M": 1}, 422, "N"),
     ({"kernel": "gemm", **SIZES, "L": 1}, 422, "L")],
)  # fmt: skip
def test_bad_questions(http: httpx.Client, params: dict[str, Any], status: int, field: str) -> None:
    reply = http.get(MEASUREMENTS, params=params)
    assert (reply.status_code, reply.json()["field"]) == (status, field)


def test_the_floor_of_a_kernel() -> None:
    profile = embedded(GPU.name)
    floor = Gemm().floor_us((4096, 4096, 4096), "bfloat16", GPU, profile)
    ceilings = dict(profile.ceilings)
    assert floor == 1e6 * 2 * 4096**3 / ceilings["tensor_flops_bfloat16"].p50
    narrow = Gemm().floor_us((1, 4096, 4096), "bfloat16", GPU, profile)
    assert narrow == 1e6 * 2 * (4096**2 + 2 * 4096) / ceilings["l2_bytes_per_s"].p50
    problem = ConfigRequest("gemm", ("M", "N", "K"), (4096, 4096, 4096), "bfloat16", GPU.name)
    require_plausible(Gemm(), problem, GPU, profile, 1.01 * MARGIN * floor)
    # No kernel is faster than an empty one, whether it knows a floor of its own or not.
    launch_us = ceilings["launch_us"].p50
    require_plausible(object(), problem, GPU, profile, 1.01 * MARGIN * launch_us)
    with pytest.raises(InvalidInput, match="cannot be"):
        require_plausible(object(), problem, GPU, profile, 1e-9)
