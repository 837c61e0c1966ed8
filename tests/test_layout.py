"""The code is laid out as docs/explanation/architecture says: small folders that say what they hold, short functions,
one name for one thing, and docstrings that name what there is."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import code_layout  # noqa: E402

MOST_MODULES = 12
MOST_LINES = 80
DEVICE_ROLES = {"gluon", "tl", "launch", "autograd", "reference", "probes"}
HOST_ROLES = {"space", "graph", "work", "kernel", "candidates", "examples", "explain"}
ROLE_NAMES = {"__init__", "__main__", "app", *DEVICE_ROLES, *HOST_ROLES}
"""Modules that each kernel's folder may have under the same name; ``app`` is what a command line and a server are."""
ROLE = re.compile(r":(?:mod|class|func|data|meth|exc|attr|obj|const):`~?([^`<]+)`")
ELSEWHERE = ("triton.", "torch.", "numpy.", "collections.", "warnings.", "fastapi.", "sqlalchemy.", "rich.", "typer.")


def test_a_folder_has_at_most_a_dozen_modules() -> None:
    assert {f.path: len(f.modules) for f in code_layout.folders() if len(f.modules) > MOST_MODULES} == {}


def test_each_folder_says_what_lives_there() -> None:
    assert [folder.path for folder in code_layout.folders() if not folder.docstring] == []


def test_no_function_is_long() -> None:
    long = {f"{f.path}: {f.name}": f.lines for f in code_layout.functions() if f.lines > MOST_LINES}
    assert long == {}


def test_module_names_are_unique() -> None:
    places = defaultdict(list)
    for path in code_layout.sources():
        if path.stem not in ROLE_NAMES:
            places[path.stem].append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for name, path in code_layout.classes():
        places[name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_what_other_folders_import_is_pinned() -> None:
    """``EXPORTS`` of each folder names what the others import from its modules: nothing else, and nothing unused."""
    used: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in code_layout.sources():
        for module, name in _imports(path):
            if module.parent != path.parent:
                used[_folder(module)][module.stem].add(name)
    found = {folder: {stem: _covered(names) for stem, names in modules.items()} for folder, modules in used.items()}
    pinned = {
        _folder(path): {stem: set(names) for stem, names in _exports(path).items()}
        for path in code_layout.sources()
        if path.name == "__init__.py" and _exports(path)
    }
    assert {folder: pinned.get(folder) for folder in found} == found
    assert set(pinned) == set(found)


def _imports(path: Path) -> Iterator[tuple[Path, str]]:
    """The modules of the four rooms that ``path`` imports, with the name taken from each: "*" for all of it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("warpplan."):
            base = ROOT / node.module.removeprefix("warpplan.").replace(".", "/")
            for name in (alias.name for alias in node.names):
                if (base / f"{name}.py").is_file():
                    yield base / f"{name}.py", "*"
                elif base.with_suffix(".py").is_file():
                    yield base.with_suffix(".py"), name


def _covered(names: set[str]) -> set[str]:
    return {"*"} if "*" in names else names


def _folder(path: Path) -> str:
    return path.parent.relative_to(ROOT).as_posix()


def _exports(path: Path) -> dict[str, tuple[str, ...]]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["EXPORTS"]:
            return dict(ast.literal_eval(node.value))
    return {}


@pytest.mark.parametrize("room", code_layout.ROOMS)
def test_docstrings_name_what_there_is(room: str) -> None:
    """A module, class or function that was renamed keeps no old name in another's docstring."""
    unknown = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in code_layout.sources()
        if path.relative_to(ROOT).parts[0] == room
        for name in sorted(_referred(path))
        if not _known(name, path)
    ]
    assert unknown == []


def test_layout_counts_what_it_should(tmp_path: Path) -> None:
    package = tmp_path / "planner" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "planner" / "__init__.py").write_text('"""Plans :class:`~a.Loop` loops. And more."""\n')
    (package / "module.py").write_text(
        "class A:\n    def f(self):\n        def g():\n            pass\n        return g\n"
    )
    outer, inner = code_layout.folders(tmp_path)
    assert (outer.sentence, outer.modules, outer.lines) == ("Plans ``a.Loop`` loops.", (), 1)
    assert (inner.docstring, inner.modules, inner.lines) == ("", ("module",), 5)
    assert [(f.name, f.lines) for f in code_layout.functions(tmp_path)] == [("A.f", 4), ("A.f.g", 2)]


def _referred(path: Path) -> Iterator[str]:
    return iter(set(ROLE.findall(path.read_text())))


def _known(name: str, path: Path) -> bool:
    """Whether ``name`` is a builtin, a module or class of the project, a name in this module or among the exceptions,
    or ``module.name`` of one of the project's modules."""
    name = name.lstrip(".")
    if name.startswith(ELSEWHERE) or hasattr(builtins, name):
        return True
    here = _names(path) | _names(ROOT / "planner" / "errors.py")
    first, last = name.split(".")[0], name.split(".")[-1]
    return name in here or first in _classes() or last in here or bool(_named(name)) or _in_its_module(name)


def _in_its_module(name: str) -> bool:
    parts = name.split(".")
    return any(
        ".".join(parts[i:]) in _names(source) for i in range(1, len(parts)) for source in _named(".".join(parts[:i]))
    )


def _named(dotted: str) -> list[Path]:
    """The modules and packages whose import name ends with ``dotted``."""
    return [source for name, source in _modules() if f".{name}".endswith(f".{dotted}")]


@cache
def _modules() -> tuple[tuple[str, Path], ...]:
    parts = ((path, path.relative_to(ROOT).with_suffix("").parts) for path in code_layout.sources())
    return tuple((".".join(("warpplan", *p)).removesuffix(".__init__"), path) for path, p in parts)


@cache
def _classes() -> frozenset[str]:
    return frozenset(name for name, _ in code_layout.classes())


@cache
def _names(source: Path) -> frozenset[str]:
    """What ``source`` defines or imports at its top, members of its classes as ``Class.member`` and ``member``."""
    found: set[str] = set()
    for node in ast.parse(source.read_text()).body:
        for name, inner in _bound(node):
            found |= {name} | {f"{name}.{member}" for member in inner} | set(inner)
    return frozenset(found)


def _bound(node: ast.stmt) -> Iterator[tuple[str, tuple[str, ...]]]:
    match node:
        case ast.ClassDef():
            yield node.name, tuple(name for child in node.body for name, _ in _bound(child))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name, ()
        case ast.Import() | ast.ImportFrom():
            for alias in node.names:
                yield (alias.asname or alias.name).split(".")[0], ()
        case ast.Assign() | ast.AnnAssign():
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield name.id, ()
        case ast.If() | ast.Try():
            for child in [*node.body, *node.orelse]:
                yield from _bound(child)
        case ast.Expr(value=ast.Constant(value=str(text))):
            yield from ((name, ()) for name in re.findall(r"^\s*``(\w+)``:", text))
        case _:
            return


def test_what_make_test_feeds_installs_for_a_test_it_runs() -> None:
    """A test that skips and names ``make test-feeds`` is among ``FEED_TESTS``, as the example job is."""
    listed = re.search(r"^FEED_TESTS := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    places = [ROOT / word for word in listed[1].replace("\\", "").split()]
    assert [place for place in places if not place.exists()] == []
    naming = [path for path in (ROOT / "tests").rglob("test_*.py") if "make test-feeds installs it" in path.read_text()]
    assert ROOT / "tests" / "test_train_example.py" in naming
    naming.remove(Path(__file__).resolve())
    assert [path for path in naming if not any(path.is_relative_to(place) for place in places)] == []
