"""Running one file of a package without the rest of it: what the file imports of packages that are absent, or would
start a GPU runtime, stands there as an object that does nothing.

A consumer's table reader and its kernel are plain Python in one file each, between imports of the whole consumer. The
file itself is executed as it was installed, not a copy and not a changed text: its own code answers.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from warpplan.planner.errors import InvalidInput

MOVED = "another version of the consumer than was tested has moved it"
"""What is said of a file or a function that is not where the tested versions have it."""
_one_runs = threading.Lock()
"""``sys.modules`` is the whole process's."""


class Nothing:
    """Takes any call, attribute and index. Used as a decorator it leaves the function as it was."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __getitem__(self, index: object) -> Any:
        return Nothing()

    def __or__(self, other: object) -> Any:
        return self

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return ()


class AbsentModule(ModuleType):
    """A module of which every name is :class:`Nothing`, but for those that it was given."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: its submodules are absent, too

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class _Finder:
    def __init__(self, roots: frozenset[str], given: Mapping[str, Mapping[str, object]]) -> None:
        self.roots, self.given = roots, given

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name.partition(".")[0] in self.roots:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> ModuleType:
        made = AbsentModule(spec.name)
        vars(made).update(self.given.get(spec.name, {}))
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: its names are there."""


def run_file(path: Path, absent: Sequence[str], given: Mapping[str, Mapping[str, object]] | None = None) -> ModuleType:
    """The module in ``path``, with imports from the packages ``absent`` as :class:`Nothing`; ``given`` are names that
    a module of theirs has all the same. The interpreter's modules are as before afterwards.

    Raises :class:`InvalidInput` where the file is not there or its own code raises.
    """
    if not path.is_file():
        raise InvalidInput(f"no file {path}: {MOVED}", field="consumer", value=str(path))
    name = f"warpplan_consumer_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with absent_packages(absent, given):
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # the consumer's own code runs here and may raise anything
            raise InvalidInput(
                f"running {path.name} raised {type(error).__name__}: {error}", field="consumer", value=str(path)
            ) from error
    return module


def function_in(module: ModuleType, name: str) -> Callable[..., Any]:
    """The function ``name`` of a consumer's ``module``. Raises :class:`InvalidInput` where there is none."""
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidInput(f"{module.__file__} has no {name}: {MOVED}", field="consumer", value=module.__file__)
    return cast("Callable[..., Any]", found)


@contextlib.contextmanager
def absent_packages(absent: Sequence[str], given: Mapping[str, Mapping[str, object]] | None = None) -> Iterator[None]:
    """While open, imports from the packages ``absent`` give :class:`Nothing`, but for the names that are ``given`` by
    module. For one thread at a time: others wait. For calling what imports as it runs."""
    roots = frozenset(absent)

    def ours(name: str) -> bool:
        return name.partition(".")[0] in roots

    with _one_runs:
        yield from _without(ours, _Finder(roots, given or {}))


def _without(ours: Callable[[str], bool], finder: _Finder) -> Iterator[None]:
    kept = {name: module for name, module in sys.modules.items() if ours(name)}
    for name in kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if ours(name)]:
            del sys.modules[name]
        sys.modules.update(kept)
