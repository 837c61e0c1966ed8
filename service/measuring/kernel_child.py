"""The child's side of ``warpplan measure``: one of our kernels under each configuration, timed on random operands.

Needs torch and a GPU. What is measured, and for how long, is decided by
:mod:`~warpplan.service.measuring.measurement_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from warpplan.kernels import registry
from warpplan.kernels.isolated_jobs import first_line
from warpplan.planner.values.tuning import TuningConfig

if TYPE_CHECKING:
    from warpplan.kernels.declaration import Shape
    from warpplan.kernels.triton_types import Json

Launch = Callable[[], object]


def time_kernels(jobs: Sequence[dict[str, Json]]) -> Iterator[dict[str, Json]]:
    """``{"started": True}``, then for each ``{"kernel", "shape", "dtype", "config"}`` ``{"time_us", "samples"}``, or
    ``{"status": "refused", "reason"}`` where the kernel would not run it."""
    import torch

    from warpplan.kernels.timing import time_one

    torch.cuda.synchronize()  # opens the GPU
    yield {"started": True}
    for job in jobs:
        try:
            launches = _launches(job)
            timing = time_one(lambda at, made=launches: made[at](), sets=len(launches))  # type: ignore[misc]
            yield {"time_us": timing.median_us, "samples": timing.count}
        except Exception as error:
            result: dict[str, Json] = {"status": "refused", "reason": first_line(error)}
            try:
                torch.cuda.synchronize()
            except Exception:
                yield {**result, "status": "crash", "fatal": True}
                return
            yield result


def _launches(job: dict[str, Json]) -> list[Launch]:
    """Launches over so many sets of operands that a set's next use finds nothing of it in L2."""
    import torch

    from warpplan.kernels.timing import input_sets

    kernel, shape = registry.kernel(job["kernel"]), tuple(job["shape"])
    place = type(kernel).__module__.rpartition(".")[0]
    random_launch = cast("Callable[[Shape, str, TuningConfig], Launch]", import_module(f"{place}.launch").random_launch)
    fields = dict(job["config"])
    config = TuningConfig.of(fields.pop("kwargs"), **fields)
    before = torch.cuda.memory_allocated()
    first = random_launch(shape, job["dtype"], config)
    set_bytes = max(1, torch.cuda.memory_allocated() - before)
    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return [first, *(random_launch(shape, job["dtype"], config) for _ in range(1, input_sets(set_bytes, l2)))]
