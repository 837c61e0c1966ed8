"""The launch path of autotuned kernels while plans are in use: from a tuner's key to the configuration it runs.

``Autotuner.run`` does the same with its own cache, which stays as Triton left it: outside of ``planned`` a kernel runs
under the winner of Triton's own tuning. A known launch costs what it costs there.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from warpplan.kernels.compiler.exceptions import reason_of
from warpplan.kernels.compiler.launching.autotuned.list_decide import ListDecider
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import Key, TunedLaunch, jit_of, tuning_key
from warpplan.kernels.compiler.launching.dispatch import is_capturing, is_tuning, warn_not_planned
from warpplan.kernels.triton_types import Autotuner, CompiledKernel, KernelArgument, TunerConfig
from warpplan.planner.errors import WarpplanError

Run = Callable[..., CompiledKernel]
"""Triton's ``Autotuner.run``."""
Chosen = tuple[TunerConfig, dict[str, KernelArgument]] | None
"""A configuration and its keyword arguments; ``None``: Triton's own tuning decides."""
_numbers = itertools.count()
_UNDECIDED: Chosen = ({}, {})


class ListTable:
    """What each tuner launches under one ``planned``, by its key."""

    def __init__(self, decide: ListDecider) -> None:
        self._decide = decide
        self._name = f"_warpplan_list_{next(_numbers)}"
        self._lock = threading.RLock()

    def run(
        self, original: Run, tuner: Autotuner, args: tuple[KernelArgument, ...], kwargs: dict[str, KernelArgument]
    ) -> CompiledKernel:
        """What ``Autotuner.run(tuner, *args, **kwargs)`` does, under the configuration that is best planned."""
        if len(tuner.configs) < 2 or kwargs.get("warmup"):
            return original(tuner, *args, **kwargs)
        known: dict[Key, Chosen] = tuner.__dict__.get(self._name) or tuner.__dict__.setdefault(self._name, {})
        try:
            key = tuning_key(tuner, args, kwargs)
            chosen = known.get(key, _UNDECIDED)
        except TypeError:  # an argument that cannot be looked up: Triton says so
            return original(tuner, *args, **kwargs)
        if chosen is _UNDECIDED:
            if is_tuning() or is_capturing():
                return original(tuner, *args, **kwargs)
            chosen = self._first(known, TunedLaunch(tuner, args, kwargs, key))
        if chosen is None:
            return original(tuner, *args, **kwargs)
        config, options = chosen
        tuner.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**dict(zip(tuner.arg_names, args, strict=False)), **kwargs, **options})
        return tuner.fn.run(*args, **kwargs, **options)

    def _first(self, known: dict[Key, Chosen], launch: TunedLaunch) -> Chosen:
        with self._lock:  # one list at a time: another would share the cores and the GPU
            if launch.key in known:
                return known[launch.key]
            chosen: Chosen = None
            try:
                config = self._decide(launch)
                if config is not None:
                    chosen = config, config.all_kwargs()
            except Exception as error:
                warn_not_planned(jit_of(launch.tuner), f"Triton tunes its list: {reason_of(error, WarpplanError)}")
            known[launch.key] = chosen
            return chosen
