"""Two kernels beside one another in the service: batch files, the store and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warpplan.kernels import registry
from warpplan.planner.errors import InvalidShape
from warpplan.service.cli.app import main
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.request import Item
from warpplan.service.workflow.shape_files import read_shapes

CSV = """kernel,M,N,K,dtype
vector_add,,98432,,float32
gemm,64,128,256,
,64,128,256,float16
vector_add,1,98432,,
"""
LINES = """{"kernel": "vector_add", "N": 98432, "dtype": "float32"}
{"M": 64, "N": 128, "K": 256}
"""


def test_a_csv_file_of_mixed_kernels(tmp_path: Path, workflow: Workflow, store: Store) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text(CSV)
    added, product, default, wrong = workflow.batch(read_shapes(path))
    assert added.answer is not None
    assert added.answer.problem.label == "vector_add N=98432 float32"
    assert dict(added.answer.config.kwargs).keys() == {"BLOCK_SIZE"}
    assert product.answer is not None
    assert product.answer.problem.label == "gemm M=64 N=128 K=256 bfloat16"
    assert default.answer is not None
    assert default.answer.problem.kernel == registry.DEFAULT == "gemm"
    assert isinstance(wrong.error, InvalidShape)
    assert wrong.error.field == "M"
    assert {problem.kernel for problem in store.problems()} == {"gemm", "vector_add"}
    again = Workflow(store).configure(Item("vector_add", (("N", 98432),), "float32"))
    assert again.kind == "exact"
    assert again.as_dict() | {"match": None} == added.answer.as_dict() | {"match": None}


def test_a_measurement_of_a_vector_addition_is_served(workflow: Workflow) -> None:
    item = Item("vector_add", (("N", 1 << 24),), "float32")
    best, second = workflow.candidates(item, 2)[1]
    assert workflow.configure(item).config == best.config
    assert workflow.record(item, second.config, best.prediction.time_us / 2, samples=20)
    answer = workflow.configure(item)
    assert answer.config == second.config
    assert answer.measured is not None
    assert answer.plan is not None


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, path = str(tmp_path / "s.sqlite"), tmp_path / "shapes.jsonl"
    path.write_text(LINES)
    assert main(["batch", str(path), "--store", store]) == 0
    out = capsys.readouterr().out
    assert "vector_add N=98432" in out
    assert "BLOCK_SIZE=" in out
    assert main(["plan", "vector_add", "N=98432", "--dtype", "float32", "--store", store, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["match"] == {"kind": "exact", "kept": True}
    assert [p["ops"] for p in answer["plan"]["partitions"]] == [["load_x", "load_y", "add", "store"]]
    assert main(["plan", "vector_add", "M=1"]) == 2
    assert "vector_add has no dimension 'M': expected N" in capsys.readouterr().err


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "vector_add", "N=98432", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["kernel"] == "vector_add"
    assert body["contenders"][0]["predicted"]["bound_by"] == "latency"
    assert body["outcome"]["status"] == "optimal"
    assert main(["explain", "vector_add", "N=98432"]) == 0
    assert "Time line of 6 iterations" in capsys.readouterr().out


@pytest.mark.parametrize("name", registry.names())
def test_kernels_are_listed_with_their_fields(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    declared = registry.kernel(name).declaration
    assert main(["kernels"]) == 0
    out = capsys.readouterr().out
    for field in declared.fields:
        assert f"  {field.name:<14} {field.meaning}, {field.least} to {field.greatest}" in out
    assert main(["kernels", "--json"]) == 0
    assert declared.as_dict() in json.loads(capsys.readouterr().out)
