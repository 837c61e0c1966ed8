"""Someone else's autotuned Triton kernel: loading it, and the arguments of a launch on paper."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from warpplan.planner.errors import InvalidInput, WarpplanError

Launch = tuple[tuple[object, ...], dict[str, object]]
"""Positional and keyword arguments."""


@dataclass(frozen=True)
class Dtype:
    """Stands for a torch dtype where torch is absent: Triton's autotuner only takes its ``str``."""

    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"

    __repr__ = __str__


class Tensor:
    """Stands for a tensor argument: the autotuner asks for nothing but ``dtype``."""

    def __init__(self, dtype: str) -> None:
        # A pruning function may compare with torch's own object, if the consumer has imported torch.
        self.dtype: object = getattr(sys.modules.get("torch"), dtype, None) or Dtype(dtype)


@dataclass(frozen=True)
class ConsumerKernel:
    """A loaded kernel. ``outer`` is what jobs launch (the autotuner, perhaps inside ``triton.heuristics``), ``tuner``
    the Autotuner in it, ``function`` the JITFunction at the bottom. ``derived_names`` are parameters that
    ``triton.heuristics`` computes from the others."""

    spec: str
    outer: Any
    tuner: Any
    function: Any
    derived_names: frozenset[str]

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    @property
    def tuned_names(self) -> tuple[str, ...]:
        """The constexprs that the consumer's configurations set, in their order."""
        return tuple(dict.fromkeys(name for config in self.tuner.configs for name in config.kwargs))


def load(spec: str) -> ConsumerKernel:
    """The kernel at ``FILE.py:function`` or ``package.module:function``. Importing it runs its module.

    Raises :class:`InvalidInput` where there is none, or where Triton would not keep its autotuning results on disk.
    """
    return of_kernel(find(spec), spec)


def find(spec: str) -> Any:
    """What is at ``FILE.py:name`` or ``package.module:name``. Raises :class:`InvalidInput` where there is nothing."""
    source, _, attribute = spec.rpartition(":")
    if not source or not attribute:
        raise _bad(spec, "expected FILE.py:function or package.module:function")
    found: Any = _module(spec, source)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _bad(spec, f"{source} has no {attribute!r}")
        found = getattr(found, part)
    return found


def run_consumer(consumer: str, told: str) -> None:
    """Call the job's function ``consumer`` (``FILE.py:function`` or ``module:function``), which records what it
    launches. Raises :class:`InvalidInput` where there is none or it raises; ``told`` says how it is called."""
    function = find(consumer)
    if not callable(function):
        raise InvalidInput(f"consumer {consumer}: not a function", field="consumer", value=consumer)
    try:
        function()
    except WarpplanError:
        raise
    except (Exception, SystemExit) as error:  # the job's own code runs here and may raise anything
        raise InvalidInput(
            f"consumer {consumer}: it raised {type(error).__name__}: {error}; it is called without arguments, {told}",
            field="consumer", value=consumer,
        ) from error  # fmt: skip


def of_kernel(outer: Any, spec: str) -> ConsumerKernel:
    """The same for a kernel object at hand."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    chain = [outer]
    while not isinstance(chain[-1], JITFunction):
        if not hasattr(chain[-1], "fn"):
            raise _bad(spec, "not a Triton kernel: expected a function under @triton.autotune and @triton.jit")
        chain.append(chain[-1].fn)
    tuner = next((layer for layer in chain if isinstance(layer, Autotuner)), None)
    if tuner is None:
        raise _bad(spec, "the kernel is not under @triton.autotune: there is no cache to write for it")
    if not tuner.cache_results:
        raise _bad(
            spec,
            "Triton keeps no results on disk for it: pass cache_results=True to @triton.autotune, "
            "or set TRITON_CACHE_AUTOTUNING=1 here and in the job",
        )
    if any(config.pre_hook for config in tuner.configs):
        raise _bad(spec, "a configuration has a pre_hook, and Triton then skips its disk cache: remove the pre_hook")
    if len(tuner.configs) < 2:
        raise _bad(spec, "it has a single configuration, and Triton then looks nothing up: list two or more")
    if not tuner.keys:
        raise _bad(spec, 'its key is empty, so all shapes would share one entry: name the sizes, key=["M", "N", "K"]')
    derived = frozenset(name for layer in chain if isinstance(layer, Heuristics) for name in layer.values)
    return ConsumerKernel(spec, outer, tuner, chain[-1], derived)


def _module(spec: str, source: str) -> ModuleType:
    try:
        if not source.endswith(".py"):
            return importlib.import_module(source)
        path = Path(source)
        if not path.is_file():
            raise _bad(spec, f"no file {source}")
        return _run_file(path.resolve())
    except WarpplanError:
        raise
    except (Exception, SystemExit) as error:  # the consumer's own code runs here and may raise anything
        raise _bad(spec, f"importing {source} raised {type(error).__name__}: {error}") from error


def _run_file(path: Path) -> ModuleType:
    """Import a file as ``python FILE.py`` would see its imports, under a name that can shadow no other module."""
    name = f"warpplan_consumer_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def positional_first(names: Sequence[str], values: Mapping[str, object]) -> Launch:
    """A launch of parameters in the order of ``names``: by position until one has no value."""
    count = next((i for i, name in enumerate(names) if name not in values), len(names))
    return tuple(values[name] for name in names[:count]), {n: v for n, v in values.items() if n not in names[:count]}


def _bad(spec: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{spec}: {reason}", field="consumer", value=spec)
