"""An ``Autotuner`` read: its key, its pruned list, what its hooks do, what its cache holds, the launch of each
configuration.

Source: triton 3.6.0 to 3.9.0, ``runtime/autotuner.py``, ``Autotuner.run``, ``_bench`` and ``check_disk_cache``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.launching.dispatch import Call, bound_call
from warpplan.kernels.triton_types import Autotuner, Grid, JitFunction, KernelArgument, TunerConfig

Key = tuple[KernelArgument, ...]
"""What a tuner decides by: the values of its ``key`` arguments, then the dtype of each tensor."""
Arguments = dict[str, KernelArgument]
Heuristic = Mapping[str, Callable[[Arguments], KernelArgument]]


def tuning_key(tuner: Autotuner, args: tuple[KernelArgument, ...], kwargs: Arguments) -> Key:
    """The key under which ``tuner.cache`` has this launch's configuration."""
    names = tuner.arg_names
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    passed = {name: value for name, value in given.items() if name in names}
    key = [passed[name] for name in tuner.keys if name in passed]
    key += [str(value.dtype) for value in passed.values() if hasattr(value, "dtype")]
    return tuple(key)


@dataclass(frozen=True)
class TunedLaunch:
    """One launch of a tuner, not yet given a configuration; ``kwargs`` has the grid, as in ``Autotuner.run``."""

    tuner: Autotuner
    args: tuple[KernelArgument, ...]
    kwargs: Arguments
    key: Key

    @property
    def arguments(self) -> Arguments:
        """What hooks and pruning functions are given of a launch."""
        return {**dict(zip(self.tuner.arg_names, self.args, strict=False)), **self.kwargs}

    def pruned(self) -> list[TunerConfig]:
        """The tuner's list as its ``prune_configs_by`` leaves it. Raises what that raises, and :class:`CannotPlan`
        where nothing is left."""
        with self._named_arguments():
            found = list(self.tuner.prune_configs(self.kwargs))
        if not found:
            raise CannotPlan("its list of configurations is empty after pruning")
        return found

    def known_timings(self, configs: Sequence[TunerConfig], *, just_tuned: bool = False) -> KnownTimings:
        """What the tuner's cache, in memory or on disk, has of this key; ``just_tuned`` says that the tuner's last
        timings are this key's."""
        tuner = self.tuner
        if self.key not in tuner.cache and tuner.cache_results:
            with self._named_arguments(), contextlib.suppress(_NotOnDiskError):
                tuner.check_disk_cache(self.key, list(configs), _missed)
        winner = tuner.cache.get(self.key)
        if winner is None or winner not in configs:
            return KnownTimings()
        # Timings are of the key that was tuned last: known to be this one's where there is no other.
        mine = just_tuned or len(tuner.cache) == 1
        timings = getattr(tuner, "configs_timings", None) or {} if mine else {}
        median = [_median_us(timings.get(config)) for config in configs]
        return KnownTimings(configs.index(winner), tuple(median))

    def is_tuned(self, configs: Sequence[TunerConfig]) -> bool:
        """Whether Triton will not tune in this launch: its cache, in memory or on disk, has the key."""
        return self.known_timings(configs).winner is not None or self.key in self.tuner.cache

    def has_hooks(self, configs: Sequence[TunerConfig]) -> bool:
        """Whether tuning runs code of the user's on the arguments."""
        tuner = self.tuner
        return tuner.user_defined_pre_hook or tuner.user_defined_post_hook or any(c.pre_hook for c in configs)

    def hook(self, config: TunerConfig) -> None:
        """What ``config`` does before each launch, such as giving descriptors its block."""
        if config.pre_hook:
            config.pre_hook({**self.arguments, **config.all_kwargs()})

    @contextmanager
    def hooked(self, config: TunerConfig) -> Iterator[None]:
        """The arguments as a benchmark under ``config`` finds them; hooks of the user's own are run, before and after.
        Those that zero or restore arguments by name are honoured in the trial's process instead."""
        self.hook(config)
        given = {**self.arguments, **config.all_kwargs()}
        if self.tuner.user_defined_pre_hook:
            self.tuner.pre_hook(given)
        try:
            yield
        finally:
            if self.tuner.user_defined_post_hook:
                self.tuner.post_hook(given, exception=None)

    def call(self, config: TunerConfig) -> Call:
        """The launch under ``config``, whose hook has been run. Heuristics between the tuner and the kernel see the
        configuration's values, as at a launch. Raises :class:`CannotPlan` for other layers, and for one constexpr that
        both the launch and the configuration give."""
        twice = self.kwargs.keys() & config.kwargs.keys()
        if twice:
            raise CannotPlan(f"both the launch and its configurations give {', '.join(sorted(twice))}")
        kwargs = {**self.kwargs, **config.all_kwargs()}
        for arg_names, values in heuristics(self.tuner):
            for name, heuristic in values.items():
                kwargs[name] = heuristic({**dict(zip(arg_names, self.args, strict=False)), **kwargs})
        grid: Grid = kwargs.pop("grid")
        kwargs.pop("warmup", None)
        return bound_call(jit_of(self.tuner), self.args, kwargs, grid)

    @contextmanager
    def _named_arguments(self) -> Iterator[None]:
        """``tuner.nargs`` as ``Autotuner.run`` sets it."""
        before = getattr(self.tuner, "nargs", None)
        self.tuner.nargs = dict(zip(self.tuner.arg_names, self.args, strict=False))
        try:
            yield
        finally:
            self.tuner.nargs = before


@dataclass(frozen=True)
class KnownTimings:
    """Which configuration wins unplanned, and microseconds of each in the list's order; ``None`` for what is not known,
    infinity for one that did not run."""

    winner: int | None = None
    median_us: tuple[float | None, ...] = ()

    def of(self, index: int) -> float | None:
        return self.median_us[index] if index < len(self.median_us) else None

    @property
    def complete(self) -> bool:
        return bool(self.median_us) and None not in self.median_us


@dataclass(frozen=True)
class Resets:
    """What is done to arguments before each launch of a trial: ``zero`` and ``restore`` are names of tensors;
    ``integers``: tensors of whole numbers are restored, for a hook of the user's own may count on it."""

    zero: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()
    integers: bool = False


def resets_of(tuner: Autotuner) -> Resets:
    """What ``tuner`` does to the arguments of a benchmark."""
    if tuner.user_defined_pre_hook:
        return Resets(integers=True)
    return Resets(tuple(tuner.reset_to_zero), tuple(tuner.restore_value))


def jit_of(tuner: Autotuner) -> JitFunction:
    """The kernel under all layers."""
    layer = tuner
    while not hasattr(layer, "device_caches"):
        layer = layer.fn
    return layer


def heuristics(tuner: Autotuner) -> list[tuple[list[str], Heuristic]]:
    """(argument names, functions) of each ``@triton.heuristics`` between ``tuner`` and its kernel, outermost first.
    Raises :class:`CannotPlan` where there is any other layer."""
    from triton.runtime.autotuner import Heuristics
    from triton.runtime.jit import JITFunction

    found = []
    layer = tuner.fn
    while type(layer) is Heuristics:
        found.append((layer.arg_names, layer.values))
        layer = layer.fn
    if type(layer) is not JITFunction:
        raise CannotPlan(f"{type(layer).__name__} between its autotuner and the kernel: its list is Triton's to tune")
    return found


class _NotOnDiskError(Exception):
    """Nothing is cached for this key: the benchmark would begin."""


def _missed() -> None:
    raise _NotOnDiskError


def _median_us(timing: list[float] | float | None) -> float | None:
    """Of what a benchmark answered: milliseconds, the median first."""
    if timing is None:
        return None
    median = float(timing[0] if isinstance(timing, (list, tuple)) else timing)
    return 1e3 * median if median > 0 and not math.isnan(median) else None
