"""NVIDIA's ``make_ttgir`` cut in two: the passes of each supported Triton release as data.

sm_90: the cut is where Triton's own Hopper warp specialisation stands, which is left out. sm_100 and newer: the cut is
before ``assign_latencies``, the first pass that reads a loop's attributes, and nothing is left out.
"""

from __future__ import annotations

from warpplan.kernels.compiler.pipeline.cutting import CutModule, cut, finish, read
from warpplan.kernels.compiler.pipeline.halves import (
    RELEASES,
    halves,
    nests_descriptors,
    passes_for,
    run_after,
    run_before,
    run_stock,
)

__all__ = [
    "RELEASES",
    "CutModule",
    "cut",
    "finish",
    "halves",
    "nests_descriptors",
    "passes_for",
    "read",
    "run_after",
    "run_before",
    "run_stock",
]

EXPORTS = {
    "conversion_memory": ("scratch_of_conversions",),
    "cutting": ("cut", "new_context", "taken_diagnostics"),
    "matrix_descriptors": ("with_kept_addresses",),
}
