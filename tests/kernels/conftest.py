from __future__ import annotations

from dataclasses import replace

import pytest

from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded


@pytest.fixture(scope="session")
def profile() -> Profile:
    return embedded("NVIDIA H200")


@pytest.fixture(scope="session")
def gemm_profile(profile: Profile) -> Profile:
    """The profile with the GEMM's time model alone, which then stands for every kernel's."""
    return replace(profile, calibrations=tuple(c for c in profile.calibrations if c.kernel == "gemm"))
