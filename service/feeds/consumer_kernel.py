"""Someone else's autotuned Triton kernel: loading it, calling it on paper, and saying a plan in its names."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from warpplan.kernels.declaration import ConsumerNames, Declaration, Shape
from warpplan.planner.errors import InvalidInput, WarpplanError
from warpplan.planner.values.tuning import Scalar, TuningConfig

Launch = tuple[tuple[object, ...], dict[str, object]]
"""Positional and keyword arguments."""

TENSOR_SUFFIX = "_ptr"
TENSOR_DTYPES = (
    "bfloat16", "bool", "float16", "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "int16", "int32", "int64", "int8", "uint16", "uint32", "uint64", "uint8",
)  # fmt: skip
"""torch's names of the dtypes that a Triton kernel takes pointers of: ``triton._utils.type_canonicalisation_dict`` of
Triton 3.6. torch's aliases, such as ``half``, are left out: the key of a launch has the full name."""


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


def load(spec: str, dimensions: Sequence[str]) -> ConsumerKernel:
    """The kernel at ``FILE.py:function`` or ``package.module:function``. Importing it runs its module. ``dimensions``
    are the sizes that its autotuner's key should name.

    Raises :class:`InvalidInput` where there is none, or where Triton would not keep its autotuning results on disk.
    """
    return of_kernel(find(spec), spec, dimensions)


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


def of_kernel(outer: Any, spec: str, dimensions: Sequence[str]) -> ConsumerKernel:
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
        key = json.dumps(list(dimensions))
        raise _bad(spec, f"its key is empty, so all shapes would share one entry: name the sizes, key={key}")
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


def rename(
    consumer: ConsumerKernel, plan: TuningConfig, renames: Mapping[str, str], names: ConsumerNames
) -> TuningConfig:
    """``plan`` in the consumer's names. ``renames`` maps a plan's name to the consumer's and outranks ``names``, which
    the kernel declares and which are compared in upper case.

    A tuned constexpr that all the consumer's configurations agree on keeps that value. Raises :class:`InvalidInput`
    listing the names that are left without a value, or the tile sizes that the consumer does not tune.
    """
    values = dict(plan.kwargs)
    unknown = [name for name in renames if name not in values]
    if unknown:
        raise _bad(consumer.spec, f"--rename {unknown[0]}: a plan has {', '.join(sorted(values))}")
    taken: dict[str, str] = {theirs: ours for ours, theirs in renames.items()}
    for ours, aliases in names.constants:
        if ours in values and ours not in renames:
            taken |= {t: ours for t in consumer.tuned_names if t.upper() in aliases and t not in taken}
    foreign = [theirs for theirs in taken if theirs not in consumer.tuned_names]
    if foreign:
        raise _bad(
            consumer.spec,
            f"--rename to {foreign[0]}: its configurations set only {', '.join(consumer.tuned_names)}",
        )
    missing = [ours for ours in names.required if ours not in taken.values()]
    if missing:
        raise _bad(
            consumer.spec,
            f"no tuned constexpr stands for {', '.join(missing)} (it tunes {', '.join(consumer.tuned_names)}): "
            f"say which with --rename {missing[0]}=NAME",
        )
    kwargs: dict[str, Scalar] = {}
    unmapped = []
    for theirs in consumer.tuned_names:
        if theirs in taken:
            kwargs[theirs] = values[taken[theirs]]
            continue
        settings = [config.kwargs.get(theirs) for config in consumer.tuner.configs]
        if all(s == settings[0] for s in settings):
            kwargs[theirs] = settings[0]
        else:
            unmapped.append(theirs)
    if unmapped:
        raise _bad(
            consumer.spec,
            f"its configurations also tune {', '.join(unmapped)}, about which a plan says nothing: "
            "give one value in every configuration, or say which plan name it is with --rename",
        )
    # Kept in the consumer's own order, as its configurations print themselves.
    return TuningConfig(tuple(kwargs.items()), plan.num_warps, plan.num_stages, plan.num_ctas, plan.maxnreg)


def call(
    consumer: ConsumerKernel,
    declared: Declaration,
    shape: Shape,
    dtype: str,
    *,
    key_map: Mapping[str, str],
    tensors: Mapping[str, str],
    arguments: Mapping[str, Scalar],
) -> Launch:
    """The arguments of a launch, in the order of the kernel's signature.

    A parameter takes the size whose declared name or alias it has, or that ``key_map`` gives it. Tensors are parameters
    that end in ``_ptr`` or have a name that is declared for tensors; ``tensors`` adds others with a dtype or takes one
    out with "none". (A ``TensorDescriptor`` has no dtype and so no part in Triton's key.) ``arguments`` are values for
    the rest; one that the key needs and nobody gave raises :class:`InvalidInput`.
    """
    parameters = {p.name: p for p in consumer.function.params}
    sizes = declared.named(shape)
    for option, given in (("--key", key_map), ("--tensor", tensors), ("--set", arguments)):
        for name in given:
            if name not in parameters:
                raise _bad(consumer.spec, f"{option} {name}: its parameters are {', '.join(parameters)}")
    for name, dimension in key_map.items():
        if dimension not in sizes:
            raise _bad(consumer.spec, f"--key {name}={dimension}: the dimensions are {', '.join(sizes)}")
    by_lower = {alias: sizes[field.name] for field in declared.fields for alias in (field.name.lower(), *field.aliases)}
    values: dict[str, object] = {}
    for name, parameter in parameters.items():
        if name in arguments:
            values[name] = arguments[name]
        elif name in tensors:
            values[name] = _tensor(consumer.spec, name, tensors[name])
        elif name in key_map:
            values[name] = sizes[key_map[name]]
        elif name in consumer.tuned_names or name in consumer.derived_names:
            continue
        elif not parameter.is_constexpr and (name.endswith(TENSOR_SUFFIX) or name in declared.consumers.tensors):
            values[name] = Tensor(dtype)
        elif name.lower() in by_lower:
            values[name] = by_lower[name.lower()]
        elif parameter.default is inspect.Parameter.empty:
            values[name] = None
    asked = [k for k in consumer.tuner.keys if k in parameters and k not in consumer.derived_names]
    unresolved = [k for k in asked if values.get(k) is None]
    if unresolved:
        raise _bad(
            consumer.spec,
            f"its key has {', '.join(unresolved)}, for which there is no value: give --set {unresolved[0]}=VALUE "
            f"or --key {unresolved[0]}={next(iter(sizes))}",
        )
    return positional_first(list(parameters), values)


def _tensor(spec: str, name: str, dtype: str) -> Tensor | None:
    """The tensor that ``--tensor NAME=dtype`` means, ``None`` for "none"."""
    if dtype.lower() == "none":
        return None
    plain = dtype.removeprefix("torch.")
    if plain not in TENSOR_DTYPES:
        raise _bad(spec, f"--tensor {name}={dtype}: unknown dtype, expected none or one of {', '.join(TENSOR_DTYPES)}")
    return Tensor(plain)


def positional_first(names: Sequence[str], values: Mapping[str, object]) -> Launch:
    """A launch of parameters in the order of ``names``: by position until one has no value."""
    count = next((i for i, name in enumerate(names) if name not in values), len(names))
    return tuple(values[name] for name in names[:count]), {n: v for n, v in values.items() if n not in names[:count]}


def _bad(spec: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{spec}: {reason}", field="consumer", value=spec)
