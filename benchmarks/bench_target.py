"""The GPU that the benchmarks plan for, and the part of a results file's name that says so.

``WARPPLAN_BENCH_DEVICE="NVIDIA H100 80GB HBM3"`` names another than the H200; children inherit the variable. Times of
unlike cards never share a file.
"""

from __future__ import annotations

import os

from warpplan.planner.values.device import device

TARGET = device(os.environ.get("WARPPLAN_BENCH_DEVICE", "NVIDIA H200"))
CARD = TARGET.name.split()[1].lower()
"""Of a file's name: "h200"."""


def require_target(found: str) -> None:
    """Ends the run where the card that answered, ``found``, is not the one that is planned for."""
    if found != TARGET.name:
        raise SystemExit(f'the GPU is {found}, planned for is {TARGET.name}: set WARPPLAN_BENCH_DEVICE="{found}"')
