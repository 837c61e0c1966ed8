"""Calibrate a profile anew from what jobs measured: which times count, and what each calibration gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from warpplan.kernels import registry
from warpplan.kernels.declaration import Shape
from warpplan.planner.errors import InvalidInput, WarpplanError
from warpplan.planner.predict.time_model import DeviceWork, Rates
from warpplan.planner.values.device import Device, device
from warpplan.planner.values.profile import Identity, Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.fit import MeasuredShape
from warpplan.profiler.recalibrate import Recalibration, recalibrate, with_calibration
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.answer_store import Store
from warpplan.service.store.measured_times import MeasuredTime
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

    def device_work(
        self, configs: Sequence[TuningConfig], shape: Shape, dtype: str, device: Device, profile: Profile
    ) -> tuple[list[int], DeviceWork]: ...

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
    times: dict[str, dict[tuple[str, ConfigRequest], list[MeasuredTime]]] = {}
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


def _recalibrated(
    profile: Profile, gpu: Device, times: Mapping[tuple[str, ConfigRequest], Sequence[MeasuredTime]]
) -> Recalibration | None:
    """What comes of the problems of one calibration; ``None`` where no kernel can run what was measured."""
    problems = sorted(times, key=lambda key: (key[0], key[1].dtype, key[1].canonical != (), repr(key[1].canonical)))
    dtypes = sorted({problem.dtype for _, problem in problems})
    rates = Rates.of(profile, dtypes[0])
    measured: list[MeasuredShape] = []
    asked: dict[int, tuple[UsesTimeModel, ConfigRequest]] = {}
    names: tuple[str, ...] = ()
    for name, problem in _spread(problems):
        kernel = registry.kernel(name)
        assert isinstance(kernel, UsesTimeModel)
        names = kernel.calibration_names(problem.canonical, problem.dtype)
        some = spread_by_time(times[name, problem])
        try:
            kept, work = kernel.device_work(
                [time.config for time in some], problem.canonical, problem.dtype, gpu, profile
            )
            # One fit has one rate of the tensor cores: another dtype's work is counted in it.
            faster = Rates.of(profile, problem.dtype).tensor_flops / rates.tensor_flops
        except WarpplanError:
            continue
        if kept:
            work = replace(work, executed_flops=work.executed_flops / faster)
            shape = MeasuredShape(problem.canonical, work, np.array([some[i].time_us for i in kept]))
            asked[id(shape.work)] = (kernel, problem)
            measured.append(shape)
    if not measured:
        return None
    of_problem = {m.shape: asked[id(m.work)] for m in measured}

    def constants(made: Profile, m: MeasuredShape) -> Mapping[str, float]:
        kernel, problem = of_problem[m.shape]
        return kernel.time_constants(problem.canonical, problem.dtype, made, m.work.structures)

    newest = max(time.newest for found in times.values() for time in found)
    source = f"{sum(map(len, times.values()))} measured configurations of {len(times)} shapes until {newest[:10]}"
    return recalibrate(profile, names, measured, rates, constants, source)


def spread_by_time(times: Sequence[MeasuredTime]) -> list[MeasuredTime]:
    """At most :data:`MOST_CONFIGS`: the fastest ones, which the ranking is about, and as many spread over the rest."""
    ordered = sorted(times, key=lambda time: (time.time_us, repr(time.config)))
    if len(ordered) <= MOST_CONFIGS:
        return ordered
    first = MOST_CONFIGS // 2
    rest = np.linspace(first, len(ordered) - 1, MOST_CONFIGS - first).round().astype(int)
    return [*ordered[:first], *(ordered[i] for i in rest.tolist())]


def _spread(problems: Sequence[tuple[str, ConfigRequest]]) -> list[tuple[str, ConfigRequest]]:
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
        f"store {store.name} has no measured time of {gpu.name} with {environment_line(wanted)}, but {there or 'none'}"
        + (": name another environment with --environment, or record a profile there" if there else ""),
        field="store", value=store.name,
    )  # fmt: skip


def environment_line(environment: Iterable[tuple[str, str]]) -> str:
    """``driver=… cuda=…``, as the option takes it."""
    return " ".join(f"{name}={value}" for name, value in environment) or "no versions named"
