"""Halves of characters (lone surrogates): JSON can escape them, UTF-8 cannot hold them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from warpplan.kernels.compiler.launching.decisions import Decision, Situation, to_json
from warpplan.planner.errors import InvalidInput
from warpplan.service.cli.app import main
from warpplan.service.workflow.request import Item
from warpplan.service.workflow.shape_files import read_shapes

HALF = "\ud800"
SIZES = {"M": 512, "N": 1024, "K": 2048}
JSON = {"Content-Type": "application/json"}


def refused(http: httpx.Client, path: str, body: object) -> dict[str, Any]:
    reply = http.post(path, content=json.dumps(body), headers=JSON)
    assert reply.status_code in (404, 422), reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = reply.json()
    return found


def test_one_bad_item_does_not_cost_the_others(http: httpx.Client) -> None:
    bad: list[dict[str, Any]] = [
        {"dtype": HALF}, {HALF: 1}, {"M": HALF}, {"kernel": HALF}, {"device": HALF}, {"name": HALF}, {"M": [HALF]},
        {"shape": HALF}, {"shape": {HALF: 1}}, {"M": {HALF: HALF}},
    ]  # fmt: skip
    reply = http.post(
        "/v1/configs:batch", content=json.dumps({"items": [SIZES, *({**SIZES, **b} for b in bad), SIZES]}), headers=JSON
    )
    results = reply.json()["results"]
    assert [r["status"] for r in results] == [200, *[422] * len(bad), 200]
    fields = [r["error"]["field"] for r in results[1:-1]]
    assert fields[:6] == ["dtype", "\\ud800", "M", "kernel", "device", "name"]
    assert all("half of a character" in r["error"]["detail"] for r in results[1:-1])


def test_measurements_and_decisions(http: httpx.Client) -> None:
    config = http.get("/v1/configs/gemm", params=SIZES).json()["config"]
    report = {"kernel": "gemm", "shape": SIZES, "config": config, "time_us": 50.0}
    for change in (
        {"kernel": HALF}, {"shape": {**SIZES, HALF: 1}}, {"dtype": HALF}, {"run": HALF}, {"device": HALF}, {HALF: HALF},
        {"environment": {HALF: "1"}}, {"environment": {"triton": HALF}}, {"config": {**config, "kwargs": {HALF: 1}}},
    ):  # fmt: skip
        refused(http, "/v1/measurements", {**report, **change})
    situation = Situation("my.gemm", "abc", "(i32, 16)", (8, 9), "NVIDIA H200", "570.1", "3.6.0", "0.1.0")
    decision = to_json(Decision(situation, None, "no loads", failed=True))
    named = {**decision, "situation": {**decision["situation"], "kernel": f"my{HALF}"}}
    assert refused(http, "/v1/kernel-plans", named)["field"] == "situation.kernel"
    assert refused(http, "/v1/kernel-plans", {**decision, "reason": HALF})["field"] == "reason"


def test_a_file_of_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shapes.jsonl"
    lines = [SIZES, {**SIZES, "name": f"half {HALF}"}, {**SIZES, HALF: 1}, {**SIZES, "M": 16}]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    read = [item for _, item in read_shapes(file)]
    assert [isinstance(item, Item) for item in read] == [True, False, False, True]
    assert main(["batch", str(file), "--store", str(tmp_path / "s.sqlite")]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3  # the header and the two good ones
    assert f"{file}:2: name holds half of a character" in err
    assert "Traceback" not in err


def test_any_text_of_an_item(gemm: Callable[..., Item]) -> None:
    with pytest.raises(InvalidInput, match="half of a character") as caught:
        Item.of({"M": 1, "kernel": HALF})
    assert caught.value.field == "kernel"
    str(caught.value).encode()
