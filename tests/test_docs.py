"""The README's examples run, and what it says there is, is there: documentation that drifts fails the build.

``bash`` and ``python`` blocks are run as a reader would type them, in order, beside a live service; ``sh`` blocks need
a network or a GPU, so of those only the commands and targets that they name are looked up.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from warpplan.service.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
CONSUMER = ROOT / "tests" / "service" / "feeds" / "consumer_kernel.py"
ADDRESS = "127.0.0.1:8000"
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a reader: ``warpplan`` on the path, an empty folder, the consumer that the text speaks of."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "bin").mkdir()
    script = folder / "bin" / "warpplan"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m warpplan.service.cli.app "$@"\n')
    script.chmod(0o755)
    (folder / "work").mkdir()
    shutil.copyfile(CONSUMER, folder / "work" / "my_kernels.py")
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "WORK": str(folder / "work")}


@pytest.fixture(scope="module")
def service(tools: dict[str, str]) -> Iterator[str]:
    """``host:port`` of a running ``warpplan serve``, instead of the README's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["warpplan", "serve", "--port", str(port), "--store", "service.sqlite"]
    server = subprocess.Popen(command, cwd=tools["WORK"], env=tools, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2).close()
                break
            except OSError:
                assert server.poll() is None, server.stderr.read() if server.stderr else ""
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def test_bash_blocks_run(tools: dict[str, str], service: str) -> None:
    blocks = [text for language, text in BLOCKS if language == "bash"]
    assert blocks
    for text in blocks:
        if "curl" in text and shutil.which("curl") is None:
            continue
        if "--target triton" in text and not _has_triton():
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text.replace(ADDRESS, service).replace("curl -s", "curl -sf")],
            cwd=tools["WORK"],
            env=tools,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), f"no output from:\n{text}"


def test_python_blocks_run(tools: dict[str, str], service: str) -> None:
    """The blocks follow on each other, as typed at one prompt."""
    text = "\n".join(text for language, text in BLOCKS if language == "python")
    assert text
    done = subprocess.run(
        [sys.executable, "-c", text.replace(ADDRESS, service)],
        cwd=tools["WORK"],
        env=tools,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "BLOCK_M" in done.stdout


def test_commands_and_options_exist() -> None:
    lines = [line for language, text in BLOCKS if language in ("bash", "sh") for line in text.splitlines()]
    used = [line.split() for line in lines if line.startswith("warpplan ")]
    assert used
    for words in used:
        assert words[1] in COMMANDS, words
        options = {name for p in COMMANDS[words[1]].params for name in p.opts}
        assert {w for w in words if w.startswith("--")} <= options | {"--help"}, words


def test_every_command_is_mentioned() -> None:
    assert [name for name in COMMANDS if f"warpplan {name}" not in README and f"`{name}`" not in README] == []


def test_options_in_the_text_exist() -> None:
    known = {name for command in COMMANDS.values() for p in command.params for name in p.opts} | {"--help"}
    assert set(re.findall(r"(?<=`)--[a-z-]+", README)) <= known


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", README, re.MULTILINE)) <= {
        pair for t in targets for pair in ((t, ""), ("", t))
    }


def test_make_help_lists_every_target_for_people() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("run", "test", "help", "profile", "bench-gemm", "bench-regret", "bench-planning", "build", "clean"):
        assert f"make {target} " in shown


def test_the_tree_is_the_repository() -> None:
    """Each module of a room has its line in the file tree, and no line names a file that is gone."""
    (tree,) = (text for language, text in BLOCKS if not language and text.startswith("planner/"))
    listed: set[str] = set()
    folders: list[str] = []
    for line in tree.splitlines():
        entry = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [entry]
        if entry.endswith(".py"):
            listed.add("".join(folders[: depth + 1]))
    rooms = ("planner", "profiler", "kernels", "service", "benchmarks")
    real = {p.relative_to(ROOT).as_posix() for r in rooms for p in (ROOT / r).rglob("*.py") if p.name != "__init__.py"}
    assert listed == real


def test_the_changelog_knows_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{version}]" in changelog or "## [Unreleased]" in changelog


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def test_the_table_of_results_is_the_recorded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gemm_report

    rows = json.loads((gemm_report.RESULTS / "gemm_h200_heldout.json").read_text())["rows"]
    assert gemm_report.table(rows) in README
