"""The launch path of autotuned kernels while plans are in use: from a tuner's key to the configuration it runs.

``Autotuner.run`` does the same with its own cache, which stays as Triton left it: outside of ``planned`` a kernel runs
under the winner of Triton's own tuning. A known launch costs what it costs there.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial

from warpplan.kernels.compiler.exceptions import reason_of
from warpplan.kernels.compiler.launching.autotuned.list_beside import (
    Chosen,
    ContestWinner,
    ListsBeside,
    Placed,
    RunningContest,
    sizes_of,
)
from warpplan.kernels.compiler.launching.autotuned.list_lookup import ListLookup
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import Key, TunedLaunch, jit_of, tuning_key
from warpplan.kernels.compiler.launching.dispatch import (
    LaunchTable,
    is_capturing,
    is_tuning,
    is_waiting,
    warn_not_planned,
)
from warpplan.kernels.triton_types import Autotuner, CompiledKernel, KernelArgument, TunerConfig
from warpplan.planner.errors import WarpplanError

Run = Callable[..., CompiledKernel]
"""Triton's ``Autotuner.run``."""
_numbers = itertools.count()
_UNDECIDED: Chosen = ({}, {})
Known = dict[Key, Placed]


class ListTable:
    """What each tuner launches under one ``planned``, by its key. What ``decide`` answers is waited for, or ``beside``
    decides while the job runs on, where there is one and ``lookup`` knows nothing. Every launch ends in
    ``launches``."""

    def __init__(
        self, decide: Callable[[TunedLaunch], TunerConfig | None], lookup: ListLookup, launches: LaunchTable,
        beside: ListsBeside | None = None,
    ) -> None:  # fmt: skip
        self._decide, self._lookup, self._launches, self._beside = decide, lookup, launches, beside
        self._name = f"_warpplan_list_{next(_numbers)}"
        self._lock = threading.RLock()

    def run(
        self, original: Run, tuner: Autotuner, args: tuple[KernelArgument, ...], kwargs: dict[str, KernelArgument]
    ) -> CompiledKernel:
        """What ``Autotuner.run(tuner, *args, **kwargs)`` does, under the configuration that is best planned."""
        if len(tuner.configs) < 2 or kwargs.get("warmup"):
            return original(tuner, *args, **kwargs)
        known: Known = tuner.__dict__.get(self._name) or tuner.__dict__.setdefault(self._name, {})
        try:
            key = tuning_key(tuner, args, kwargs)
            chosen = known.get(key, _UNDECIDED)
        except TypeError:  # an argument that cannot be looked up: Triton says so
            return original(tuner, *args, **kwargs)
        if chosen is _UNDECIDED:
            if is_tuning() or is_capturing():
                return original(tuner, *args, **kwargs)
            launch = TunedLaunch(tuner, args, kwargs, key)
            if self._beside is not None and not is_waiting():
                return self._tuned_by_triton(original, known, launch, self._beside)
            chosen = self._first(known, launch)
        if chosen is None:
            return original(tuner, *args, **kwargs)
        if isinstance(chosen, RunningContest):
            return chosen.contest.launch(
                sizes_of(args, kwargs),
                lambda: original(tuner, *args, **kwargs),
                partial(_launch, tuner, args, kwargs, *chosen.contender),
            )
        if isinstance(chosen, ContestWinner):
            if is_capturing() and not self._is_loaded(TunedLaunch(tuner, args, kwargs, key), chosen.config):
                return original(tuner, *args, **kwargs)
            return _launch(tuner, args, kwargs, chosen.config, chosen.options)
        return _launch(tuner, args, kwargs, *chosen)

    def _is_loaded(self, launch: TunedLaunch, config: TunerConfig) -> bool:
        """Whether ``launch`` under ``config`` runs a kernel that has been launched before."""
        try:
            launch.hook(config)
            return self._launches.knows(launch.call(config))
        except Exception:  # then it is not launched either
            return False

    def _first(self, known: Known, launch: TunedLaunch) -> Placed:
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

    def _tuned_by_triton(self, original: Run, known: Known, launch: TunedLaunch, beside: ListsBeside) -> CompiledKernel:
        """Launch what is kept of the list; where nothing is, Triton's own choice, and decide on it later."""

        def tune() -> CompiledKernel:
            return original(launch.tuner, *launch.args, **launch.kwargs)

        with self._lock:
            mine = launch.key not in known
            known.setdefault(launch.key, None)
        if not mine:
            return self.run(original, launch.tuner, launch.args, launch.kwargs)
        try:
            found = self._lookup.find(launch, takes_provisional=True)
        except Exception as error:
            warn_not_planned(jit_of(launch.tuner), f"Triton tunes its list: {reason_of(error, WarpplanError)}")
            return tune()
        if found is not None and (found.decision is None or found.decision.provisional):
            return beside.first(launch, found, tune, partial(known.__setitem__, launch.key))
        if found is None or found.chosen is None:
            return tune()
        known[launch.key] = found.chosen, found.chosen.all_kwargs()
        return self.run(original, launch.tuner, launch.args, launch.kwargs)


def _launch(
    tuner: Autotuner, args: tuple[KernelArgument, ...], kwargs: dict[str, KernelArgument], config: TunerConfig,
    options: dict[str, KernelArgument],
) -> CompiledKernel:  # fmt: skip
    """Under ``config``, as ``Autotuner.run`` launches its best."""
    tuner.best_config = config
    if config.pre_hook is not None:
        config.pre_hook({**dict(zip(tuner.arg_names, args, strict=False)), **kwargs, **options})
    return tuner.fn.run(*args, **kwargs, **options)
