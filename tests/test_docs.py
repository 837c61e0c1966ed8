"""What people read is right: the examples run, the names exist, the figures are the recorded ones, the pages build.

``bash`` and ``python`` blocks of a page are run as a reader would type them, in order, beside a live service. ``sh``
blocks need a network, a GPU or long, so of those only the commands and targets that they name are looked up. A
``python`` block after ``<!-- not run: … -->`` is compiled, and what it imports of warpplan must be there.
"""

from __future__ import annotations

import ast
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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main

from warpplan.service.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = (README, ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
RUN_ELSEWHERE = DOCS / "how-to" / "add-a-kernel.md"
"""Its blocks are files of a new package: a test beside the kernels' own puts them there."""
CONSUMER = ROOT / "tests" / "service" / "feeds" / "consumer_kernel.py"
ADDRESS = "127.0.0.1:8000"
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
MOST_README_LINES = 200


@dataclass(frozen=True)
class CodeBlock:
    language: str
    text: str
    run: bool


def blocks(page: Path) -> list[CodeBlock]:
    """The fenced blocks of ``page``, in order."""
    found: list[CodeBlock] = []
    fence, language, run, lines = "", "", True, list[str]()
    for line in page.read_text().splitlines():
        if fence and line == fence:
            found.append(CodeBlock(language, "\n".join(lines) + "\n", run))
            fence, run = "", True
        elif fence:
            lines.append(line)
        elif opening := re.match(r"(`{3,}|:{3,})(.*)$", line):
            fence, language, lines = opening[1], opening[2].strip(), []
        elif line.strip():
            run = not line.startswith("<!-- not run:")
    assert not fence, f"{page.name}: a block is not closed"
    return found


BLOCKS = {page: [] if page == RUN_ELSEWHERE else blocks(page) for page in PAGES}
RUNNABLE = [page for page, found in BLOCKS.items() if any(b.run and b.language in ("bash", "python") for b in found)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a reader: ``warpplan`` on the path."""
    folder = tmp_path_factory.mktemp("reader")
    script = folder / "warpplan"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m warpplan.service.cli.app "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def service(tools: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a running ``warpplan serve``, instead of the pages' own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["warpplan", "serve", "--port", str(port), "--store", "service.sqlite"]
    folder = tmp_path_factory.mktemp("service")
    server = subprocess.Popen(command, cwd=folder, env=tools, stderr=subprocess.PIPE, text=True)
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


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_the_examples_run(page: Path, tools: dict[str, str], service: str, tmp_path: Path) -> None:
    """In a folder of their own with the job's kernel that the text speaks of; Python as typed at one prompt."""
    shutil.copyfile(CONSUMER, tmp_path / "my_kernels.py")
    some = [block for block in BLOCKS[page] if block.run]
    for block in some:
        if block.language == "bash" and _can_run(block.text):
            text = block.text.replace(ADDRESS, service).replace("curl -s", "curl -sf")
            assert _run(["bash", "-euo", "pipefail", "-c", text], tools, tmp_path), f"no output from:\n{text}"
    python = "\n".join(block.text for block in some if block.language == "python")
    if python:
        assert _run([sys.executable, "-c", python.replace(ADDRESS, service)], tools, tmp_path) or "print" not in python


def _can_run(text: str) -> bool:
    if "curl" in text and shutil.which("curl") is None:
        return False
    return find_spec("triton") is not None or not ("--target triton" in text or "warpplan ws" in text)


def _run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_that_is_not_run_compiles_and_imports_what_there_is(page: Path) -> None:
    for block in BLOCKS[page]:
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("warpplan"):
                missing = {alias.name for alias in node.names} - _defined(node.module or "")
                assert not missing, f"{page.name}: {node.module} has no {missing}"


def _defined(module: str) -> set[str]:
    """Names at the top of ``module``, read and not imported: device code needs torch."""
    place = ROOT.joinpath(*module.split(".")[1:])
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names = {inner.stem for inner in place.glob("*.py")}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_exist(page: Path) -> None:
    lines = [line for b in BLOCKS[page] if b.language in ("bash", "sh") for line in b.text.splitlines()]
    for words in (line.split() for line in lines if line.startswith("warpplan ")):
        assert words[1] in COMMANDS, words
        options = {name for p in COMMANDS[words[1]].params for name in (*p.opts, *p.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, words


def test_every_command_is_in_the_readme() -> None:
    text = README.read_text()
    assert [name for name in COMMANDS if f"warpplan {name}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_in_the_text_exist(page: Path) -> None:
    params = [p for command in COMMANDS.values() for p in command.params]
    known = {name for p in params for name in (*p.opts, *p.secondary_opts)} | {"--help", "--strict"}
    assert set(re.findall(r"(?<=`)--[a-z-]+", page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_links_of_pages_outside_of_the_site_lead_somewhere(page: Path) -> None:
    """Sphinx checks its own pages; these are read on a code host."""
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (ROOT / link).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_results_files_that_the_text_names_are_there(page: Path) -> None:
    names = set(re.findall(r"`(?:benchmarks/results/)?([a-z0-9_]+_h200[a-z0-9_]*\.json)`", page.read_text()))
    assert [name for name in names if not (ROOT / "benchmarks" / "results" / name).is_file()] == []


def test_the_readme_is_short_and_its_figures_are_the_recorded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import recorded_figures

    text = README.read_text()
    assert len(text.splitlines()) <= MOST_README_LINES
    assert recorded_figures.figure_table() in text, "run: python docs/_ext/recorded_figures.py"
    assert len(recorded_figures.figure_rows()) == 5


def test_make_help_lists_every_target_for_people() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("run", "test", "docs", "help", "profile", "bench-gemm", "bench-regret", "bench-planning", "clean"):
        assert f"make {target} " in shown


def test_the_changelog_has_a_date_for_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """A dead link, a name that nothing has, a results file without the number quoted: each fails the build."""
    if find_spec("sphinx") is None or find_spec("furo") is None or find_spec("myst_parser") is None:
        pytest.skip("the extra docs is not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).with_suffix("").as_posix() for path in tmp_path.rglob("*.html")}
    assert {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")} <= pages
    text = "".join(path.read_text() for path in tmp_path.rglob("*.html"))
    assert "% generated:" not in text
    assert not re.search(r"\{\{ [a-z0-9_]+:", text)
    assert not re.search(r"""(src|href)="https?://[^"]*\.(js|css|woff2?)""", text), "a page would need a network"
