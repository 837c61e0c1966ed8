"""``warpplan export`` and ``verify`` for consumers that are not installed here: one line that says what to install."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from warpplan.service.cli.app import main


@pytest.mark.parametrize(
    ("target", "given", "package", "told"),
    [
        ("inductor", ("bundled",), "torch", "needs the job's own torch"),
        ("fla", ("--consumer", "x.py:f"), "fla", "needs the job's own FLA"),
        ("helion", ("--consumer", "x.py:f"), "helion", "needs the job's own Helion"),
    ],
)
@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_consumer_that_is_not_here(
    command: str, target: str, given: tuple[str, ...], package: str, told: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    words = [command, *given, "--target", target, "--out", str(tmp_path / "o")]
    assert main(words) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert not (tmp_path / "o").exists()
