"""Shapes with options on the command line: typed, in files of shapes, explained, left out of exports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warpplan.service.cli.app import main

pytestmark = pytest.mark.usefixtures("grouped_add")

CSV = """kernel,N,G,spread,sizes,M,K,name
grouped_add,98432,3,,,,,plain
grouped_add,98432,3,narrow,"1,98000,0",,,listed
grouped_add,98432,3,wide,balanced,,,the same as plain
gemm,64,,,,64,64,another kernel
gemm,64,,narrow,,64,64,not its option
grouped_add,98432,3,broad,,,,no such value
"""
LINES = """{"kernel": "grouped_add", "N": 98432, "G": 3, "spread": "narrow", "sizes": [1, 98000, 0]}
{"kernel": "grouped_add", "shape": {"N": 98432, "G": 3, "sizes": "1,2"}}
"""


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["plan", "grouped_add", "N=98432", "G=3", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_options_are_typed_beside_sizes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = f"--store={tmp_path / 's.sqlite'}"
    status, out, _ = plan(capsys, "spread=narrow", "sizes=1, 98000,0", store)
    assert status == 0
    assert out.startswith("grouped_add N=98432 G=3 spread=narrow sizes=1,98000,0 bfloat16 on NVIDIA H200\n")
    assert "num_warps=1" in out
    answer = json.loads(plan(capsys, "sizes=1,98000,0", "spread=narrow", store, "--json")[1])
    assert answer["shape"] == {"N": 98432, "G": 3, "spread": "narrow", "sizes": "1,98000,0"}
    assert answer["match"] == {"kind": "exact", "kept": True}
    assert plan(capsys, "spread=narrow", "--top=3")[1].count("num_warps=1") == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["spread=broad"], "spread='broad' is unknown: expected wide, narrow"),
        (["sizes="], "sizes='' is unknown: expected balanced, skewed, or whole numbers such as 1,2,3"),
        (["sizes=1,2"], "sizes lists 2 groups: expected G=3"),
        (["layout=nn"], "grouped_add has no dimension or option 'layout': expected N, G, spread, sizes"),
        (["spread=wide", "spread=narrow"], "spread is given twice: wide and narrow"),
    ],
)
def test_a_bad_option_ends_with_one_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert plan(capsys, *words) == (2, "", f"warpplan: error: {message}\n")


def test_a_kernel_without_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "vector_add", "N=7", "spread=narrow"]) == 2
    assert capsys.readouterr().err == "warpplan: error: vector_add has no dimension 'spread': expected N\n"


def test_the_listing_shows_what_each_option_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels"]) == 0
    out = capsys.readouterr().out
    assert "  spread         warps of a program: wide | narrow, default wide\n" in out
    assert "  sizes          elements of each group: balanced | skewed, or whole numbers such as 1,2,3" in out
    assert "such as        warpplan plan grouped_add N=98432 G=4\n" in out


def test_files_of_shapes_have_a_column_for_each_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    csv, lines, store = tmp_path / "shapes.csv", tmp_path / "shapes.jsonl", str(tmp_path / "s.sqlite")
    csv.write_text(CSV)
    lines.write_text(LINES)
    assert main(["batch", str(csv), "--store", store, "--json"]) == 2
    out, err = capsys.readouterr()
    answers = {answer["name"]: answer for answer in map(json.loads, out.splitlines())}
    assert list(answers) == ["plain", "listed", "the same as plain", "another kernel"]
    assert answers["listed"]["shape"] == {"N": 98432, "G": 3, "spread": "narrow", "sizes": "1,98000,0"}
    assert answers["the same as plain"]["shape"] == answers["plain"]["shape"] == {"N": 98432, "G": 3}
    assert answers["the same as plain"]["match"]["kind"] == "exact"
    assert f"{csv}:6: gemm has no dimension" in err
    assert f"{csv}:7: spread='broad' is unknown: expected wide, narrow" in err
    assert main(["batch", str(lines), "--store", store]) == 2
    out, err = capsys.readouterr()
    assert "N=98432 G=3 spread=narrow sizes=1,98000,0" in out
    assert "1 shapes in" in err
    assert "0 planned now, 1 kept before" in err
    assert f"{lines}:2: sizes lists 2 groups: expected G=3" in err


def test_explaining_a_shape_with_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "grouped_add", "N=98432", "G=3", "spread=narrow", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["shape"] == {"N": 98432, "G": 3, "spread": "narrow"}
    assert body["contenders"][0]["config"]["num_warps"] == 1
