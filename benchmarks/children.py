"""What benchmarks need to run jobs in child processes: :mod:`warpplan.kernels.isolated_jobs`, and how many at once."""

from __future__ import annotations

import os

from warpplan.kernels.isolated_jobs import each as each
from warpplan.kernels.isolated_jobs import first_line as first_line


def cores() -> int:
    return len(os.sched_getaffinity(0))
