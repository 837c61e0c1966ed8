"""Rank a kernel's candidates by predicted time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.predict import Prediction
from warpplan.planner.tuning import TuningConfig


@dataclass(frozen=True)
class RankedPlan:
    """One candidate with what it should take; plans come best first."""

    config: TuningConfig
    prediction: Prediction


def best_first(
    time_us: NDArray[np.float64], tie_breaks: tuple[NDArray[np.float64], ...], limit: int
) -> NDArray[np.int64]:
    """Indices of the ``limit`` smallest times; equal times by ``tie_breaks`` in turn, then by position.

    Times are compared at a resolution of one part in 10⁶, so that the last bits of a platform's arithmetic cannot
    give two ranks of a job different plans.
    """
    coarse = np.round(time_us / np.maximum(np.min(time_us, initial=np.inf), 1e-9), 6)
    order = np.lexsort((*reversed(tie_breaks), coarse))
    return order[:limit]
