"""Random examples are the same on every run; ``make fuzz`` (``HYPOTHESIS_PROFILE=fresh``) draws new ones."""

import os

from hypothesis import settings

os.environ.pop("WARPPLAN_BENCH_DEVICE", None)
"""Benchmarks are of the H200 here, whatever card a shell benchmarks."""
settings.register_profile("repeated", derandomize=True)
settings.register_profile("fresh", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeated"))
