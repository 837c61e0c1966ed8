"""Today's rankings as the raw tables have them, which were read before a kernel could let the next launch begin early:
of configurations launched without that. Kernels of one partition wait on the GPU since then, and take 2 to 10 % less
where they take few microseconds: that is not corrected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernel_cases.bench_rows import BenchRow
from kernel_plans import planned

from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import GemmConfig, Shape
from warpplan.planner.values.device import device
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig


def gemm_ranking(shape: Shape, dtype: str, profile: Profile) -> list[tuple[GemmConfig, float]]:
    """The GEMM's candidates and their predicted µs, best first."""
    with launched_alone():
        found = Gemm().ranked(shape, dtype, device(profile.identity.gpu), profile)
    return [(config, prediction.time_us) for config, prediction in found]


def ranking(row: BenchRow, profile: Profile) -> list[tuple[TuningConfig, float]]:
    """The candidates of a row of any kernel's table, in the same way."""
    with launched_alone():
        return list(planned(row, profile).ranked)


@contextmanager
def launched_alone() -> Iterator[None]:
    """No kernel that is ranked here lets the next launch begin early."""
    kept = Gemm.launches_dependents
    Gemm.launches_dependents = False
    try:
        yield
    finally:
        Gemm.launches_dependents = kept
