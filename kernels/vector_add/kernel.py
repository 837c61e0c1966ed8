"""The vector addition as the planner and the service see it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from warpplan.kernels.declaration import MAX_ELEMENTS, Declaration, Shape, ShapeField
from warpplan.kernels.vector_add.graph import pass_graph, plan_candidate
from warpplan.kernels.vector_add.space import (
    ELEMENT_BYTES,
    VectorAddConfig,
    candidates,
    config_of,
    require_valid,
    tuning,
)
from warpplan.kernels.vector_add.work import OPERANDS, predict, tie_breaks
from warpplan.planner.predict.alternatives import RankedLoop
from warpplan.planner.predict.ranking import RankedPlan, best_first
from warpplan.planner.values.device import Device
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

VECTOR_ADD = Declaration(
    name="vector_add",
    description="out[N] = x[N] + y[N]",
    fields=(
        # One less than other kernels take: the length itself is a 32-bit argument.
        ShapeField("N", "elements of x, of y and of out", greatest=MAX_ELEMENTS - 1),
    ),
    dtypes=tuple(ELEMENT_BYTES),
    examples=((98432,), (1 << 24,)),
    shown_first=("BLOCK_SIZE",),
)


class VectorAdd:
    """``out = x + y``. Its time model is its own, so it runs no race; every plan is one of an ordinary kernel."""

    declaration = VECTOR_ADD

    def parse_shape(self, sizes: Mapping[str, object], dtype: str) -> Shape:
        VECTOR_ADD.require_dtype(dtype)
        return VECTOR_ADD.parse_shape(sizes)

    def rank(
        self, shape: Shape, dtype: str, device: Device, profile: Profile, *, limit: int = 8
    ) -> tuple[RankedPlan, ...]:
        """Raises :class:`MissingCosts` where the profile lacks what every candidate needs."""
        VECTOR_ADD.require_dtype(dtype)
        (length,) = VECTOR_ADD.sizes(shape)
        configs = candidates(dtype)
        predictions = [predict(config, length, dtype, device, profile) for config in configs]
        times = np.array([prediction.time_us for prediction in predictions])
        return tuple(
            RankedPlan(
                tuning(configs[i]), predictions[i], partial(plan_candidate, configs[i], dtype, device, profile.costs)
            )
            for i in best_first(times, tie_breaks(configs, dtype), limit).tolist()
        )

    def plan(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> Outcome:
        """Raises :class:`InvalidConfig` where the kernel cannot run ``config``."""
        return plan_candidate(self._candidate(config, dtype), dtype, device, profile.costs)

    def loop(self, config: TuningConfig, dtype: str, device: Device, profile: Profile, shape: Shape = ()) -> RankedLoop:
        """The pass behind ``config``; nothing follows it. Raises as :meth:`plan` does."""
        candidate = self._candidate(config, dtype)
        graph = pass_graph(candidate, dtype, device, profile.costs)
        return RankedLoop(graph, plan_candidate(candidate, dtype, device, profile.costs), 0)

    def race(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> None:
        return None

    def floor_us(self, shape: Shape, dtype: str, device: Device, profile: Profile) -> float:
        """Each element of x, y and out crossing L2 once: they may lie there already. 0 where the ceiling is missing."""
        l2 = dict(profile.ceilings).get("l2_bytes_per_s")
        (length,) = VECTOR_ADD.sizes(shape)
        return 1e6 * OPERANDS * length * ELEMENT_BYTES[dtype] / l2.p50 if l2 else 0.0

    def solve_all(self, dtype: str, device: Device, profile: Profile) -> None:
        """Solve the pass of every candidate, for ``kernels.solved_loops`` to record."""
        for config in candidates(dtype):
            plan_candidate(config, dtype, device, profile.costs)

    def _candidate(self, config: TuningConfig, dtype: str) -> VectorAddConfig:
        VECTOR_ADD.require_dtype(dtype)
        candidate = config_of(config)
        require_valid(candidate, dtype)
        return candidate
