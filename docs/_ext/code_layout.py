"""How the code is laid out: folders with their modules and lines, and the longest functions.

The architecture page shows both as tables; ``tests/test_layout.py`` holds the code to the same numbers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("planner", "kernels", "profiler", "service")


@dataclass(frozen=True)
class Folder:
    """A package: its ``path`` below the root, what its ``__init__`` says of it, its modules without that one, and the
    lines of all of them."""

    path: str
    docstring: str
    modules: tuple[str, ...]
    lines: int

    @property
    def sentence(self) -> str:
        """The first sentence of the docstring, on one line, without Sphinx's roles."""
        paragraph = " ".join(self.docstring.strip().split("\n\n")[0].split())
        plain = re.sub(r":[a-z:]+:`~?([^`]*)`", r"``\1``", paragraph)
        return re.split(r"(?<=[.!?:])\s+(?=[A-Z`(])", plain, maxsplit=1)[0].rstrip(":")


@dataclass(frozen=True)
class Function:
    """A function or method, from its ``def`` to its last line."""

    path: str
    name: str
    lines: int


def sources(root: Path = ROOT) -> Iterator[Path]:
    """Every module of the four rooms, in order."""
    for room in ROOMS:
        yield from sorted((root / room).rglob("*.py"))


def folders(root: Path = ROOT) -> tuple[Folder, ...]:
    """The packages of the four rooms, each room's own first."""
    found: dict[Path, list[Path]] = {}
    for path in sources(root):
        found.setdefault(path.parent, []).append(path)
    return tuple(_folder(root, folder, found[folder]) for room in ROOMS for folder in _of_room(root / room, found))


def functions(root: Path = ROOT) -> tuple[Function, ...]:
    """Every function of the four rooms, the longest first."""
    found = [
        Function(path.relative_to(root).as_posix(), name, lines)
        for path in sources(root)
        for name, lines in _functions(ast.parse(path.read_text()), "")
    ]
    return tuple(sorted(found, key=lambda function: (-function.lines, function.path, function.name)))


def classes(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """(name, path) of each class at the top of a module."""
    for path in sources(root):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, path.relative_to(root).as_posix()


@cache
def top_names(root: Path = ROOT) -> frozenset[str]:
    """Classes and constants at the top of any module: docstrings and annotations may name them without the module."""
    found: set[str] = set()
    for path in sources(root):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def folder_table() -> str:
    """The folders as a Markdown table, each room's after the room itself, with a line for the room's sum."""
    rows = ["| folder | what lives there | modules | lines |", "|---|---|---:|---:|"]
    every = folders()
    for room in ROOMS:
        inside = [folder for folder in every if folder.path.split("/")[0] == room]
        for folder in inside:
            name = f"**{room}/**" if folder.path == room else f"`{folder.path.removeprefix(room + '/')}/`"
            rows.append(f"| {name} | {_cell(folder.sentence)} | {len(folder.modules)} | {folder.lines:,} |")
        modules, lines = sum(len(folder.modules) for folder in inside), sum(folder.lines for folder in inside)
        rows.append(f"| *{room}, all* | | *{modules}* | *{lines:,}* |")
    return "\n".join(rows)


def longest_functions(count: int = 10) -> str:
    """The ``count`` longest functions as a Markdown table."""
    rows = ["| function | module | lines |", "|---|---|---:|"]
    rows += [f"| `{f.name}` | `{f.path}` | {f.lines} |" for f in functions()[:count]]
    return "\n".join(rows)


def _of_room(room: Path, found: dict[Path, list[Path]]) -> list[Path]:
    return sorted(folder for folder in found if folder == room or room in folder.parents)


def _folder(root: Path, folder: Path, modules: list[Path]) -> Folder:
    init = folder / "__init__.py"
    docstring = ast.get_docstring(ast.parse(init.read_text())) if init.exists() else None
    return Folder(
        folder.relative_to(root).as_posix(),
        docstring or "",
        tuple(path.stem for path in modules if path != init),
        sum(len(path.read_text().splitlines()) for path in modules),
    )


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, (child.end_lineno or child.lineno) - child.lineno + 1
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, prefix)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
