"""``warpplan export`` and ``verify`` for Triton's cache: what stdout holds, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton (no GPU) to compute its cache keys")

from warpplan.service.cli.app import main

KERNEL = (Path(__file__).parents[1] / "feeds" / "add_consumer.py").read_text()
PRUNED = KERNEL.replace(
    "    cache_results=True,\n", '    cache_results=True,\n    prune_configs_by={"early_config_prune": pruned},\n'
).replace(
    "@triton.autotune(",
    'print("imported")\n\n\ndef pruned(configs, named, **rest):\n    print("pruned")\n    return configs\n\n\n'
    "@triton.autotune(",
)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PRUNED)
    Path("shapes.csv").write_text("N,dtype\n98432,bfloat16\n")
    return ("shapes.csv", "--kernel", "vector_add", "--consumer", "mine.py:add_kernel", "--out", "cache",
            "--key", "n_elements=N")  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(list(words))
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("command", ["export", "verify"])
def test_what_the_consumers_file_prints_is_no_part_of_the_answer(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "export", *words)[0] == 0
    status, out, err = run(capsys, command, *words, "--json")
    assert status == 0
    assert json.loads(out)["target"] == "triton"
    assert "imported" in err
    assert "pruned" in err


@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_folder_without_a_name_is_not_this_one(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    at = words.index("--out") + 1
    before = sorted(Path().iterdir())
    status, out, err = run(capsys, command, *words[:at], "", *words[at + 1 :])
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--out is empty: name the folder that the consumer reads" in err
    assert sorted(Path().iterdir()) == before


def test_strict_fails_where_provenance_is_lost(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "export", *words)[0] == 0
    assert run(capsys, "verify", *words, "--strict")[0] == 0
    (beside,) = Path("cache").rglob("*.autotune.json.warpplan.json")
    beside.unlink()
    status, out, _ = run(capsys, "verify", *words)
    assert status == 0
    assert "hit " in out
    assert f"its provenance is missing: no {beside.name}; export again" in out
    status, _, err = run(capsys, "verify", *words, "--strict")
    assert status == 1
    assert "its provenance is missing" in err.splitlines()[-1]


@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_tensor_of_an_unknown_dtype_is_one_line(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, command, *words, "--tensor", "x_ptr=foo")
    assert (status, out) == (2, "")
    assert "--tensor x_ptr=foo: unknown dtype, expected none or one of bfloat16, bool, float16" in err.splitlines()[-1]
    assert not Path("cache").exists()


@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_bad_line_is_named_and_costs_no_other(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("shapes.csv").write_text("N,dtype\nmany,bfloat16\n98432,bfloat16\n64\n512,float16\n")
    assert run(capsys, "export", *words)[0] == 2
    status, out, err = run(capsys, command, *words, "--json")
    assert status == 2
    assert len(json.loads(out)["entries"]) == 2
    assert [line for line in err.splitlines() if line.startswith("warpplan: ")] == [
        "warpplan: error: shapes.csv:2: N='many' is not a whole number",
        "warpplan: error: shapes.csv:4: 1 columns, the header has 2 (N,dtype)",
        "warpplan: error: 2 of 4 lines could not be planned, named above",
    ]


def test_bad_lines_alone_export_nothing(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    Path("shapes.csv").write_text("N,dtype\n0,bfloat16\n")
    status, out, err = run(capsys, "export", *words)
    assert (status, out, Path("cache").exists()) == (2, "", False)
    assert "1 of 1 lines could not be planned, named above" in err
