"""Rank a kernel's candidates by predicted time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.predict.time_model import Prediction
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.tuning import TuningConfig

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class RankedPlan:
    """One candidate with what it should take; plans come best first. ``solve()`` gives the candidate's loop, solved:
    the kernel has bound its own candidate to it, so that ``config`` is not parsed again."""

    config: TuningConfig
    prediction: Prediction
    solve: Callable[[], Outcome] = field(compare=False, repr=False)


def best_first(
    time_us: NDArray[np.float64], tie_breaks: tuple[NDArray[np.float64], ...], limit: int
) -> NDArray[np.int64]:
    """Indices of the ``limit`` smallest times; equal times by each of ``tie_breaks``, then by position.

    Times are compared at a resolution of one part in 10⁶, so that the last bits of a platform's arithmetic cannot
    give two ranks of a job different plans.
    """
    coarse = np.round(time_us / np.maximum(np.min(time_us, initial=np.inf), 1e-9), 6)
    order = np.lexsort((*reversed(tie_breaks), coarse))
    return order[:limit]


def diverse(ranked: Sequence[Candidate], count: int, key: Callable[[Candidate], Hashable]) -> list[Candidate]:
    """``count`` of ``ranked`` that are worth measuring together, in the order of ``ranked``.

    Half are simply the first; then comes the first of each other ``key`` (tile, partitions, depth), and what is still
    missing is filled up in order. Plans alike in all that the model is unsure of are right or wrong together, but most
    of a measurement's worth is still in the first few.
    """
    chosen = set(range(min((count + 1) // 2, len(ranked))))
    seen = {key(ranked[i]) for i in chosen}
    for i, candidate in enumerate(ranked):
        if len(chosen) < count and key(candidate) not in seen:
            seen.add(key(candidate))
            chosen.add(i)
    chosen |= set([i for i in range(len(ranked)) if i not in chosen][: count - len(chosen)])
    return [ranked[i] for i in sorted(chosen)]
