"""Profiles of machines that do not exist, for tests that need numbers and no GPU."""

from __future__ import annotations

from typing import Any

from warpplan.planner.values.profile import Identity
from warpplan.profiler.probes.points import FAMILIES, Point

MACHINE = {
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "cuda": "13.0",
    "triton": "3.6.0",
    "torch": "2.11.0",
    "python": "3.12.3",
}
IDENTITY = Identity(**MACHINE, date="2026-11-20", command="warpplan profile --out p.json")


def record(point: Point, scale: float = 1.0) -> dict[str, Any]:
    """What a probe of ``point`` would stream: costs that grow with its number, or a rate."""
    if "_" in point.kind and not point.parameters:
        return {"ceiling": point.kind, "rate": {"p50": 1e12 * scale, "p10": 0.99e12, "p90": 1.01e12, "count": 20}}
    size = max((v for _, v in point.parameters if isinstance(v, int)), default=100)

    def part(factor: float) -> dict[str, float]:
        return {"p50": factor * size * scale, "p90": 1.1 * factor * size * scale, "count": 40}

    return {
        "kind": point.kind,
        "parameters": dict(point.parameters),
        "cost": {"latency": part(0.3), "occupancy": part(0.05), "issue": part(0.01)},
    }


def records(scale: float = 1.0) -> list[dict[str, Any]]:
    return [record(p, scale) for family in FAMILIES.values() for p in family]
