"""Calibrate a profile anew from what jobs measured: which times count, and what each calibration gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels import registry
from warpplan.kernels.declaration import Shape, options_of
from warpplan.planner.errors import InvalidInput, WarpplanError
from warpplan.planner.predict.time_model import DeviceWork, Rates, terms
from warpplan.planner.values.device import Device, device
from warpplan.planner.values.profile import Identity, Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.fit import Floats, MeasuredShape
from warpplan.profiler.recalibrate import Recalibration, recalibrate, with_calibration
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.answer_store import Store
from warpplan.service.store.measured_times import SeriesTime
from warpplan.service.store.stored_values import Environment
from warpplan.service.workflow.profiles import ProfileSource

VERSIONS = ("driver", "cuda", "triton", "torch")
"""What an environment has to name, and to share with the profile, for its times to count."""
MOST_SHAPES, MOST_CONFIGS = 128, 48
"""Shapes of one calibration, and configurations of one shape, that are fitted. Twice of either takes a fit twice as
long; the recorded exhaustive tables have 52 shapes, fitted alike with 48 configurations of each and with all."""


@runtime_checkable
class UsesTimeModel(Protocol):
    """A kernel whose times :mod:`warpplan.planner.predict.time_model` predicts."""

    def device_works(
        self, configs: Sequence[TuningConfig], shapes: Sequence[Shape], dtype: str, device: Device, profile: Profile
    ) -> tuple[dict[TuningConfig, int], list[DeviceWork]]: ...

    def calibration_names(self, shape: Shape, dtype: str) -> tuple[str, ...]: ...

    def time_constants(
        self, shape: Shape, dtype: str, profile: Profile, structures: tuple[str, ...]
    ) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class CalibrationReport:
    """``profile`` is the new one, ``None`` where every calibration stays as it is; ``parent`` the key of the old one.
    ``used`` counts the measured configurations in ``environment``; ``others`` those in each of the other ones."""

    parent: str
    device: str
    environment: Environment
    used: int
    others: tuple[tuple[Environment, int], ...]
    calibrations: tuple[Recalibration, ...]
    profile: Profile | None


def calibrate(
    store: Store, source: ProfileSource, *, kernels: Sequence[str] = (), versions: Mapping[str, str] | None = None
) -> CalibrationReport:
    """Fit the constants of every kernel that was measured on the profile's device, or of ``kernels`` alone.

    Times count that were measured under the profile's own driver, CUDA, Triton and torch, or under ``versions`` where
    some are given: the new profile then says so. Raises :class:`InvalidInput` where no time counts, naming the
    environments that there are, and :class:`StoreError`.
    """
    profile = source.profile
    gpu = device(profile.identity.gpu)
    identity = _identity(profile.identity, versions or {})
    wanted = tuple((name, str(getattr(identity, name))) for name in sorted(VERSIONS))
    measured = [name for name, where, _ in store.measurements.kernels() if where == gpu.name]
    chosen = [name for name in measured if name in registry.names() and (not kernels or name in kernels)]
    times: dict[str, dict[tuple[str, ConfigRequest], list[SeriesTime]]] = {}
    counted: Counter[Environment] = Counter()
    for name in chosen:
        kernel = registry.kernel(name)
        if not isinstance(kernel, UsesTimeModel):
            continue
        for time in store.measurements.every_time(kernel=name, device=gpu.name):
            environment = _versions_of(time.environment)
            counted[environment] += 1
            if environment == wanted:
                calibration = kernel.calibration_names(time.problem.canonical, time.problem.dtype)[0]
                times.setdefault(calibration, {}).setdefault((name, time.problem), []).append(time)
    used = counted.pop(wanted, 0)
    if not used:
        raise _nothing_counts(store, gpu, wanted, counted)
    done: list[Recalibration] = []
    made = profile if identity == profile.identity else replace(profile, identity=identity)
    for calibration in sorted(times):
        found = _recalibrated(made, gpu, times[calibration])
        if found is not None:
            done.append(found)
    kept = [r.calibration for r in done if r.calibration is not None]
    for new in kept:
        made = with_calibration(made, new)
    note = f"calibrated from measured times: {', '.join(new.kernel for new in kept)}"
    new_profile = replace(made, parent=source.key, notes=(*profile.notes, note)) if kept else None
    others = tuple(sorted(counted.items(), key=lambda item: (-item[1], item[0])))
    return CalibrationReport(source.key, gpu.name, wanted, used, others, tuple(done), new_profile)


Problem = tuple[str, ConfigRequest]
"""A kernel's name, and what was measured of it."""


def _recalibrated(profile: Profile, gpu: Device, times: Mapping[Problem, Sequence[SeriesTime]]) -> Recalibration | None:
    """What comes of the problems of one calibration; ``None`` where no kernel can run what was measured."""
    problems = _spread(sorted(times, key=lambda p: (p[0], p[1].dtype, p[1].shape_json)))
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[Problem]] = {}
    for name, problem in problems:
        options = tuple(options_of(problem.canonical).items())
        groups.setdefault((name, problem.dtype, options), []).append((name, problem))
    rates = Rates.of(profile, problems[0][1].dtype)
    measured: list[MeasuredShape] = []
    asked: dict[tuple[int | str, ...], Problem] = {}
    for group in groups.values():
        try:
            shapes = _measured_shapes(profile, gpu, rates, {key: times[key] for key in group})
        except WarpplanError:
            continue
        for key, shape in shapes:
            # Dtype and kernel beside the sizes: shapes of two dtypes are two.
            named = replace(shape, shape=(*shape.shape, key[1].dtype, key[0]))
            asked[named.shape] = key
            measured.append(named)
    if not measured:
        return None

    def constants(made: Profile, m: MeasuredShape) -> Mapping[str, float]:
        name, problem = asked[m.shape]
        return _kernel(name).time_constants(problem.canonical, problem.dtype, made, m.work.structures)

    name, problem = problems[0]
    names = _kernel(name).calibration_names(problem.canonical, problem.dtype)
    newest = max(time.newest for found in times.values() for time in found)
    source = f"{sum(map(len, times.values()))} measured configurations of {len(times)} shapes until {newest[:10]}"
    done = recalibrate(profile, names, measured, rates, constants, source)
    if done.calibration is None:
        return done
    fitted = tuple(dict.fromkeys(shape[:-2] for shape in done.calibration.shapes))
    return replace(done, calibration=replace(done.calibration, shapes=fitted))


def _measured_shapes(
    profile: Profile, gpu: Device, rates: Rates, times: Mapping[Problem, Sequence[SeriesTime]]
) -> list[tuple[Problem, MeasuredShape]]:
    """The problems of one kernel, dtype and options with what their configurations ask of the device."""
    name, problem = next(iter(times))
    kernel = _kernel(name)
    configs = dict.fromkeys(time.config for found in times.values() for time in found)
    shapes = [p.canonical for _, p in times]
    rows, works = kernel.device_works(list(configs), shapes, problem.dtype, gpu, profile)
    # One fit has one rate of the tensor cores: another dtype's work is counted in it.
    faster = Rates.of(profile, problem.dtype).tensor_flops / rates.tensor_flops
    measured = []
    for (key, found), work in zip(times.items(), works, strict=True):
        kept = sorted((t for t in found if t.config in rows), key=lambda t: (t.time_us, repr(t.config)))
        if kept:
            mine = work.take(np.array([rows[time.config] for time in kept]))
            mine = replace(mine, executed_flops=mine.executed_flops / faster)
            time_us = np.array([time.time_us for time in kept])
            constants = kernel.time_constants(key[1].canonical, problem.dtype, profile, mine.structures)
            chosen = spread_by_time(time_us, terms(mine, rates, constants)[1])
            measured.append((key, MeasuredShape(key[1].canonical, mine.take(chosen), time_us[chosen])))
    return measured


def _kernel(name: str) -> UsesTimeModel:
    kernel = registry.kernel(name)
    assert isinstance(kernel, UsesTimeModel)
    return kernel


def spread_by_time(time_us: Floats, predicted: Floats) -> NDArray[np.int64]:
    """The positions of at most :data:`MOST_CONFIGS`: the fastest ones, which the ranking is about, and as many spread
    over the rest. One counts as fast as it is predicted to be at the most: the fastest of many readings would be those
    that are wrong."""
    believed = np.maximum(time_us, predicted * np.median(time_us / predicted))
    ordered = np.argsort(believed, kind="stable")
    if ordered.size <= MOST_CONFIGS:
        return ordered
    first = MOST_CONFIGS // 2
    rest = np.linspace(first, ordered.size - 1, MOST_CONFIGS - first).round().astype(int)
    return np.concatenate([ordered[:first], ordered[rest]])


def _spread(problems: Sequence[Problem]) -> list[Problem]:
    """At most :data:`MOST_SHAPES` of them, evenly."""
    if len(problems) <= MOST_SHAPES:
        return list(problems)
    return [problems[i] for i in np.linspace(0, len(problems) - 1, MOST_SHAPES).round().astype(int).tolist()]


def _identity(own: Identity, versions: Mapping[str, str]) -> Identity:
    for name in versions:
        if name not in VERSIONS:
            raise InvalidInput(
                f"{name!r} is no version that times are told apart by: expected one of {', '.join(VERSIONS)}",
                field="environment", value=name, limit=list(VERSIONS),
            )  # fmt: skip
    return replace(own, **dict(versions))


def _versions_of(environment: Environment) -> Environment:
    return tuple((name, value) for name, value in environment if name in VERSIONS)


def _nothing_counts(store: Store, gpu: Device, wanted: Environment, counted: Mapping[Environment, int]) -> InvalidInput:
    there = "; ".join(f"{count} with {environment_line(e)}" for e, count in sorted(counted.items())[:5])
    return InvalidInput(
        f"store {store.name} has no measured time of {gpu.name} with {environment_line(wanted)}"
        + (f", but {there}: name another environment with --environment, or record a profile there" if there else
           ", nor of any other versions: let jobs report theirs, or measure some with `warpplan measure`"),
        field="store", value=store.name,
    )  # fmt: skip


def environment_line(environment: Iterable[tuple[str, str]]) -> str:
    """``driver=… cuda=…``, as the option takes it."""
    return " ".join(f"{name}={value}" for name, value in environment) or "no versions named"
