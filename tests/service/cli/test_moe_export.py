"""``warpplan export --target vllm`` and ``sglang``: a model's name is all that is needed; ``verify`` counts hits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warpplan.service.cli.app import main
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.targets import OPTIONS, TARGETS, target


@pytest.fixture(autouse=True)
def _nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpplan.service.feeds.moe.moe_feed.find_consumer", lambda name, where: None)
    monkeypatch.setattr("warpplan.service.feeds.machine_here.machine_here", Machine)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(list(words))
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_export_then_verify(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--target", name, "--model", "qwen3-30b-a3b", "--tp", "4", "--out", str(tmp_path))
    status, out, _ = run(capsys, "verify", *options, "--json")
    assert status == 1
    assert not any(e["hit"] for e in json.loads(out)["entries"])
    assert run(capsys, "export", *options)[0] == 0
    status, out, _ = run(capsys, "verify", *options)
    assert status == 0
    assert f"{name}: {18 if name == 'vllm' else 36} of" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--model", "gpt-2"), "unknown model 'gpt-2'"),
        (("--model", "dbrx", "--tp", "5"), "do not divide into 5 shares"),
        (("--model", "dbrx", "--dtype", "int3"), "unknown dtype 'int3'"),
        ((), "needs --model"),
        (("--model", "dbrx", "--device", "NVIDIA B200"), "no profile of device"),
    ],
)
def test_bad_input_is_one_line(
    words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "export", "--target", "vllm", "--out", str(tmp_path / "o"), *words)
    assert (status, out) == (2, "")
    assert told in err
    assert not (tmp_path / "o").exists()


OF_ANOTHER = "experts=256 hidden=4096 intermediate=2048 top-k=4"


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_another_layer_of_the_same_file_name_is_not_overwritten(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--target", name, "--tp", "8", "--dtype", "fp8_w8a8_block", "--out", str(tmp_path))
    assert run(capsys, "export", *where, "--model", "deepseek-v3")[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    status, out, err = run(capsys, "export", *where, "--model", OF_ANOTHER)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "was exported for another layer (hidden 7168, asked 4096; top-k 8, asked 4)" in err
    assert "give another folder with --out, or remove the file" in err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    status, out, _ = run(capsys, "verify", *where, "--model", OF_ANOTHER)
    assert status == 1
    assert f"{name}: 0 of" in out
    assert "exported for another layer (hidden 7168, asked 4096; top-k 8, asked 4), and read all the same" in out
    assert run(capsys, "verify", *where, "--model", "deepseek-v3", "--strict")[0] == 0
    # DeepSeek-R1's layer is the same, by another name.
    assert run(capsys, "verify", *where, "--model", "deepseek-r1", "--strict")[0] == 0
    assert run(capsys, "export", *where, "--model", "deepseek-r1")[0] == 0
    for path in before:
        if not path.name.startswith("warpplan-"):
            path.unlink()
    assert run(capsys, "export", *where, "--model", OF_ANOTHER)[0] == 0


@pytest.mark.parametrize("command", ["export", "verify"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("no.csv", "--target", "vllm"), "SHAPES no.csv: --target vllm does not read it: leave it out"),
        (("--target", "sglang", "--set", "a=1"), "--set a=1: --target sglang does not read it"),
        (("--target", "vllm", "--kernel", "attention_fwd"), "--kernel attention_fwd: --target vllm does not read it"),
        (("--target", "vllm", "--store", "s.sqlite"), "error: --store: --target vllm does not read it: leave it out"),
        (("--target", "vllm", "--job-triton", "foo"), "--job-triton foo: expected a release such as 3.8.0"),
        (("--target", "sglang", "--job-triton", "../.."), "--job-triton ../..: expected a release such as 3.8.0"),
        (("no.csv", "--target", "triton", "--consumer", "x.py:f"), "--model dbrx: --target triton does not read it"),
        (("--target", "fla", "--consumer", "x.py:f"), "--model dbrx: --target fla does not read it"),
        (("--target", "triton", "--tuned", "--consumer", "x.py:f"), "--model dbrx: --target triton --tuned does not"),
    ],
)
def test_what_a_target_does_not_read_is_refused(
    command: str, words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, command, *words, "--model", "dbrx", "--out", str(tmp_path / "o"))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert told in err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("command", ["export", "verify"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("no.csv", "--consumer", "keys.txt"), "shapes (no.csv) or a file of keys (--consumer keys.txt), not both"),
        (
            ("no.csv", "--store", "s.sqlite"),
            "shapes (no.csv) or the shapes of a store (--store), whose answers are for other kernels, not both",
        ),
        (("--consumer", "keys.txt", "--store", "s.sqlite"), "(--consumer keys.txt) or the shapes of a store (--store)"),
        (("no.csv", "--consumer", "keys.txt", "--store", "s.sqlite"), "not all: give one"),
    ],
)
def test_inductor_takes_products_from_one_place(
    command: str, words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, command, *words, "--target", "inductor", "--out", str(tmp_path / "o"))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert told in err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_store_that_the_environment_names_is_ignored_where_none_is_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--target", "vllm", "--model", "mixtral-8x7b", "--out", str(tmp_path))
    assert run(capsys, "export", *words)[0] == 0
    without = run(capsys, command, *words)
    monkeypatch.setenv("WARPPLAN_STORE", str(tmp_path / "absent.sqlite"))
    assert run(capsys, command, *words) == without
    assert not (tmp_path / "absent.sqlite").exists()
    monkeypatch.setenv("COLUMNS", "1000")
    assert "the variable, which may be meant for other commands, is ignored" in run(capsys, command, "--help")[1]


def test_every_target_says_what_it_is() -> None:
    for name in TARGETS:
        module = target(name)
        assert module.DESCRIPTION
        assert callable(module.export)
        assert callable(module.verify)
        assert name in OPTIONS
