"""Today's rankings as the raw tables have them, which were read before a kernel could let the next launch begin early:
the same configurations launched without that, and what they are predicted to take so. Kernels of one partition wait on
the GPU since then, and take 2 to 10 % less where they take few microseconds: that is not corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from kernel_cases.bench_rows import BenchRow
from kernel_plans import planned

from warpplan.kernels import registry
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import GemmConfig, Shape
from warpplan.planner.predict.ranking import best_first
from warpplan.planner.predict.time_model import early_launch_us
from warpplan.planner.values.device import device
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

FIELD = "LAUNCH_DEPENDENTS"


def gemm_ranking(shape: Shape, dtype: str, profile: Profile) -> list[tuple[GemmConfig, float]]:
    """The GEMM's candidates and their predicted µs, best first."""
    kernel = Gemm()
    saved_us = early_launch_us(kernel.time_constants(shape, dtype, profile, ()))
    return sorted_again(
        [
            (replace(config, launch_dependents=False), prediction.time_us + config.launch_dependents * saved_us)
            for config, prediction in kernel.ranked(shape, dtype, device(profile.identity.gpu), profile)
        ]
    )


def ranking(row: BenchRow, profile: Profile) -> list[tuple[TuningConfig, float]]:
    """The candidates of a row of any kernel's table, in the same way."""
    return sorted_again([_alone(config, us, row, profile) for config, us in planned(row, profile).ranked])


def _alone(config: TuningConfig, us: float, row: BenchRow, profile: Profile) -> tuple[TuningConfig, float]:
    if not dict(config.kwargs).get(FIELD):
        return config, us
    kept = tuple(pair for pair in config.kwargs if pair[0] != FIELD)
    constants = registry.kernel(row.kernel).time_constants(row.shape, row.dtype, profile, ())
    return replace(config, kwargs=kept), us + early_launch_us(constants)


Config = TypeVar("Config")


def sorted_again(found: Sequence[tuple[Config, float]]) -> list[tuple[Config, float]]:
    """By time, those that tie as they were."""
    order = best_first(np.array([us for _, us in found]), (), len(found))
    return [found[i] for i in order.tolist()]
