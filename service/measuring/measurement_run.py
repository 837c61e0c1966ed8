"""Spend a GPU's time on a plan of measurements, in its order, and keep each time as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from warpplan.kernels.isolated_jobs import each
from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.measuring.measurement_plan import MeasurementPlan, ShapeForecast
from warpplan.service.store.stored_values import environment_of
from warpplan.service.tuning.launch_jobs import START_LIMIT_S
from warpplan.service.workflow.configure import Workflow

CHILD = "warpplan.service.measuring.kernel_child:time_kernels"
RUN = "warpplan measure"
"""What tells these reports from those of jobs."""


@dataclass(frozen=True)
class MeasuredCandidate:
    """What became of one measurement: ``time_us``, or ``None`` with the ``reason``. ``status`` is "ok", "refused" (the
    kernel would not run, or the time cannot be), "skipped" (out of time), or how its child ended."""

    shape: int
    config: TuningConfig
    time_us: float | None
    status: str
    reason: str = ""


def run_measurements(
    workflow: Workflow, plan: MeasurementPlan, identity: Mapping[str, str], *, budget_s: float | None,
    time_limit_s: float, on_measured: Callable[[MeasuredCandidate], None] = lambda measured: None,
) -> list[MeasuredCandidate]:  # fmt: skip
    """Measure ``plan`` in its order until ``budget_s`` seconds have passed, those until the child is ready included:
    what was announced, and while time is left what comes after it. A measurement that is under way then is given up;
    what was finished is in the store. Raises :class:`StoreError` where a time cannot be kept."""
    until = inf if budget_s is None else time.monotonic() + budget_s
    jobs = [_job(number, plan) for number in range(len(plan.order))]
    environment = environment_of(identity)
    done: list[MeasuredCandidate] = []

    def keep(job: dict[str, Any], result: dict[str, Any]) -> None:
        chosen = plan.order[job["number"]]
        shape = plan.shapes[chosen.shape]
        config = shape.open[chosen.candidate][0]
        time_us, status, reason = result.get("time_us"), result.get("status", "ok"), result.get("reason", "")
        if time_us is not None:
            try:
                _record(workflow, shape, config, time_us, result["samples"], environment)
            except InvalidInput as error:
                time_us, status, reason = None, "refused", str(error)
        done.append(MeasuredCandidate(chosen.shape, config, time_us, status, reason))
        if status != "skipped":
            on_measured(done[-1])

    each(
        CHILD, jobs, limit_s=time_limit_s, start_limit_s=START_LIMIT_S, until=until, on_result=keep,
        stop=None if budget_s is None else lambda: time.monotonic() >= until,
    )  # fmt: skip
    return done


def _job(number: int, plan: MeasurementPlan) -> dict[str, Any]:
    chosen = plan.order[number]
    shape = plan.shapes[chosen.shape]
    problem = shape.problem
    return {
        "number": number, "kernel": problem.kernel, "shape": list(problem.canonical), "dtype": problem.dtype,
        "config": shape.open[chosen.candidate][0].as_dict(),
    }  # fmt: skip


def _record(
    workflow: Workflow, shape: ShapeForecast, config: TuningConfig, time_us: float, samples: int,
    environment: tuple[tuple[str, str], ...],
) -> None:  # fmt: skip
    workflow.record(shape.item, config, time_us, samples=samples, environment=environment, run=RUN)
