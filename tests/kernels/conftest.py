from __future__ import annotations

import pytest

from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded


@pytest.fixture(scope="session")
def profile() -> Profile:
    return embedded("NVIDIA H200")
