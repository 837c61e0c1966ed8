"""``warpplan export --target vllm`` and ``sglang``: a model's name is all that is needed; ``verify`` counts hits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warpplan.service.cli.app import main
from warpplan.service.feeds.targets import TARGETS, target


@pytest.fixture(autouse=True)
def _nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpplan.service.feeds.moe.moe_feed.find_consumer", lambda name, where: None)


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


def test_every_target_says_what_it_is() -> None:
    for name in TARGETS:
        module = target(name)
        assert module.DESCRIPTION
        assert callable(module.export)
        assert callable(module.verify)
