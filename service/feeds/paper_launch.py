"""Driving a consumer's own autotuner through a launch that never reaches a GPU.

The autotuner computes its key, prunes its list, hashes, and reads or writes its cache entry by itself. Three things are
stood in for: the target GPU, the benchmark, and the kernel launch at the end.

Source: triton 3.6.0 and 3.9.0, ``runtime/autotuner.py`` (``Autotuner.run``, ``check_disk_cache``) and
``runtime/cache.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpplan.planner.errors import InvalidInput, StoreError
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.feeds.consumer_kernel import ConsumerKernel, Launch

WARP_SIZE = 32

Check = Callable[[Any, tuple[object, ...], list[Any]], bool]


@dataclass(frozen=True)
class Found:
    """Where Triton looks for an entry and what it takes from it: ``None`` where it would benchmark; ``damage`` where
    the entry is there and cannot be read, or not be launched with."""

    key: tuple[object, ...]
    path: str
    config: TuningConfig | None
    damage: str = ""


class _Miss(Exception):
    """Raised where the consumer would start to benchmark."""


class _Damaged(Exception):
    """Raised where the consumer would fail on the entry that it found."""


def write_entry(
    consumer: ConsumerKernel, launch: Launch, gpu: Device, config: TuningConfig, time_us: float, out: Path
) -> Found:
    """Make the consumer store ``config`` as the outcome of its tuning for ``launch``, replacing an entry if there is
    one. ``time_us`` is what the plan predicts.

    Raises :class:`StoreError` where ``out`` cannot be written.
    """
    from triton import Config
    from triton.runtime.cache import FileCacheManager

    paths: list[str] = []
    keys: list[tuple[object, ...]] = []

    class Replacing(FileCacheManager):  # type: ignore[misc]  # triton is untyped
        def get_file(self, filename: str) -> str | None:
            return None

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            paths.append(str(super().put(data, filename, binary)))
            return paths[-1]

    def check(tuner: Any, key: tuple[object, ...], configs: list[Any]) -> bool:
        def predicted() -> None:
            chosen = Config(
                dict(config.kwargs), config.num_warps, config.num_stages, config.num_ctas, maxnreg=config.maxnreg
            )
            # Triton keeps (median, 20th, 80th percentile) in milliseconds.
            tuner.configs_timings = {chosen: [time_us * 1e-3] * 3}
            tuner.cache[key] = chosen

        keys.append(key)
        try:
            return bool(type(tuner).check_disk_cache(tuner, key, configs, predicted))
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(f"cannot write the cache {out}: {reason}", field="out", value=str(out)) from error

    _launch_on_paper(consumer, launch, gpu, out, Replacing, check)
    return Found(keys[0], paths[0], config)


def read_entry(consumer: ConsumerKernel, launch: Launch, gpu: Device, out: Path) -> Found:
    """What the consumer finds in ``out`` for ``launch``. Writes nothing, not even a folder."""
    paths: list[Path] = []
    keys: list[tuple[object, ...]] = []

    class Reading:
        """``FileCacheManager`` without its habit of making the folder that it looks into."""

        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            self.folder = out / key

        def get_file(self, filename: str) -> str | None:
            paths.append(self.folder / filename)
            return str(paths[-1]) if paths[-1].exists() else None

    def check(tuner: Any, key: tuple[object, ...], configs: list[Any]) -> bool:
        def would_benchmark() -> None:
            raise _Miss

        keys.append(key)
        try:
            return bool(type(tuner).check_disk_cache(tuner, key, configs, would_benchmark))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _Damaged(f"{type(error).__name__}: {error}") from error

    try:
        config = _launch_on_paper(consumer, launch, gpu, out, Reading, check)
    except _Miss:
        return Found(keys[0], str(paths[0]), None)
    except _Damaged as error:
        return Found(keys[0], str(paths[0]), None, str(error))
    if unusable := _unusable(consumer, config):
        return Found(keys[0], str(paths[0]), None, unusable)
    return Found(keys[0], str(paths[0]), config)


def _unusable(consumer: ConsumerKernel, config: TuningConfig) -> str:
    """Why no launch of the kernel takes ``config``, which Triton reads without a look at it; empty where one does."""
    names = {name for name, _ in config.kwargs}
    always = set.intersection(*(set(listed.kwargs) for listed in consumer.tuner.configs))
    if foreign := sorted(names - {parameter.name for parameter in consumer.function.params}):
        return f"its configuration sets {foreign[0]}, which is no parameter"
    if missing := sorted(always - names):
        return f"its configuration lacks {missing[0]}"
    numbers = (("num_warps", config.num_warps), ("num_stages", config.num_stages), ("num_ctas", config.num_ctas))
    bad = next((f"{name} {value!r}" for name, value in numbers if type(value) is not int or value < 0), "")
    return f"its configuration has {bad}" if bad else ""


def tuning_of(theirs: Any) -> TuningConfig:
    """A ``triton.Config`` as our value; ``kwargs`` in its own order."""
    return TuningConfig(
        tuple(theirs.kwargs.items()), theirs.num_warps, theirs.num_stages, theirs.num_ctas, theirs.maxnreg
    )


def target_of(gpu: Device) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", gpu.capability, WARP_SIZE)


def _launch_on_paper(
    consumer: ConsumerKernel, launch: Launch, gpu: Device, out: Path, manager: type[Any], check: Check
) -> TuningConfig:
    """Launch a copy of the consumer up to the GPU and return the configuration that it would run with."""
    tuner = copy.copy(consumer.tuner)
    landing = _Landing(consumer.tuner.fn, tuner)
    tuner.cache = {}
    tuner.fn = landing
    looked_up: list[bool] = []

    def checked(key: tuple[object, ...], configs: list[Any], bench: object) -> bool:
        looked_up.append(True)
        return check(tuner, key, configs)

    tuner.check_disk_cache = checked
    positional, keywords = launch
    with _planned_for(gpu, out, manager):
        try:
            _replaced(consumer.outer, consumer.tuner, tuner)[(1,)](*positional, **keywords)
        except (StoreError, _Miss, _Damaged):
            raise
        except Exception as error:  # the consumer's pruning functions and heuristics run here and may raise anything
            raise InvalidInput(
                f"consumer {consumer.spec}: choosing among its configurations raised {type(error).__name__}: {error}; "
                "if it looks at arguments other than tensors and sizes, give them with --set NAME=VALUE",
                field="consumer",
                value=consumer.spec,
            ) from error
    if not looked_up:
        raise InvalidInput(
            f"consumer {consumer.spec}: its pruning leaves a single configuration for this call, and this Triton then "
            "looks nothing up: there is no entry to write",
            field="consumer",
            value=consumer.spec,
        )
    assert landing.launched is not None
    return landing.launched


@contextmanager
def _planned_for(gpu: Device, out: Path, manager: type[Any]) -> Iterator[None]:
    """Triton's globals for ``gpu`` and the cache ``out``; put back as they were."""
    from triton import knobs
    from triton.runtime.driver import driver

    previous = driver._active
    with knobs.cache.scope(), knobs.autotuning.scope():
        knobs.cache.dir = str(out)
        knobs.cache.manager_class = manager
        if hasattr(knobs.autotuning, "listener"):  # from Triton 3.9 on
            # It would be told the plan's predicted time as one that was measured here.
            knobs.autotuning.listener = None
        driver.set_active(_Driver(gpu))
        try:
            yield
        finally:
            driver.set_active(previous)


def _replaced(layer: Any, old: Any, new: Any) -> Any:
    """``layer`` with ``old``, itself or somewhere below it, replaced by ``new``; layers above ``old`` are copied."""
    if layer is old:
        return new
    layer = copy.copy(layer)
    layer.fn = _replaced(layer.fn, old, new)
    return layer


class _Landing:
    """Where a launch on paper ends. ``fn`` leads the autotuner on to the real function, whose source it hashes."""

    def __init__(self, fn: Any, tuner: Any) -> None:
        self.fn = fn
        self.launched: TuningConfig | None = None
        self._tuner = tuner

    def run(self, *args: object, **kwargs: object) -> None:
        self.launched = tuning_of(self._tuner.best_config)


class _Driver:
    """The active driver, as far as an autotuner asks before it benchmarks."""

    def __init__(self, gpu: Device) -> None:
        self._target = target_of(gpu)

    def get_current_target(self) -> Any:
        return self._target
