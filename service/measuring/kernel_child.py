"""The child's side of ``warpplan measure``: one of our kernels under each configuration, timed on random operands.

Needs torch and a GPU. What is measured, and for how long, is decided by
:mod:`~warpplan.service.measuring.measurement_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from warpplan.kernels import registry
from warpplan.planner.values.tuning import TuningConfig

if TYPE_CHECKING:
    from warpplan.kernels.declaration import Shape
    from warpplan.kernels.triton_types import Json

Launch = Callable[[], object]


def time_kernels(jobs: Sequence[dict[str, Json]]) -> Iterator[dict[str, Json]]:
    """What became of each ``{"kernel", "shape", "dtype", "config"}``, as :func:`~warpplan.kernels.timing.timed_jobs`
    tells it."""
    from warpplan.kernels.timing import timed_jobs

    return timed_jobs(jobs, _launch)


def _launch(job: dict[str, Json]) -> Launch:
    """A launch on random operands, as the kernel's own ``launch`` module makes it."""
    place = type(registry.kernel(job["kernel"])).__module__.rpartition(".")[0]
    random_launch = cast("Callable[[Shape, str, TuningConfig], Launch]", import_module(f"{place}.launch").random_launch)
    fields = dict(job["config"])
    return random_launch(tuple(job["shape"]), job["dtype"], TuningConfig.of(fields.pop("kwargs"), **fields))
