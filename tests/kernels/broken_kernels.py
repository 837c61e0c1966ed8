"""A kernel with one text of its source replaced by another, to see that a test notices."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PACKAGE = "broken_kernel"


@contextmanager
def broken_kernel(
    module: ModuleType, kernels: Sequence[str], old: str, new: str, folder: Path, compiled: Sequence[Callable[..., Any]]
) -> Iterator[None]:
    """Have ``module`` the ``kernels`` of a copy in ``folder``, in which ``old`` is replaced: in its own source, or in
    one of the device code that lies beside it. ``compiled`` are cached functions, which forget."""
    source = Path(str(module.__file__))
    device = f"{module.__package__}.device"
    texts = {path.relative_to(source.parent): path.read_text() for path in (source, *source.parent.glob("device/*.py"))}
    assert sum(old in text for text in texts.values()) == 1, "the source changed: adapt the mutation"
    for path, text in texts.items():
        copy = folder / PACKAGE / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace(old, new).replace(device, f"{PACKAGE}.device"))
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        try:
            broken = importlib.import_module(f"{PACKAGE}.{source.stem}")
            for name in kernels:
                patched.setattr(module, name, getattr(broken, name))
            for function in compiled:
                function.cache_clear()  # type: ignore[attr-defined]
            yield
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
                del sys.modules[name]
            for function in compiled:
                function.cache_clear()  # type: ignore[attr-defined]
