"""A cost table with plausible Hopper numbers: nothing in the package may depend on them."""

from __future__ import annotations

import pytest

from warpplan.planner.values.costs import CostEntry, CostTable, OperationCost, Parameter, Quantiles


def entry(
    kind: str, latency: float, occupancy: float | None, issue: float | None, **parameters: Parameter
) -> CostEntry:
    def quantiles(value: float | None) -> Quantiles | None:
        return None if value is None else Quantiles(float(value), 1.1 * value, 100)

    cost = OperationCost(quantiles(latency), quantiles(occupancy), quantiles(issue))
    return CostEntry(kind, tuple(sorted(parameters.items())), cost)


@pytest.fixture(scope="session")
def costs() -> CostTable:
    entries = [
        entry("tma_load", 600 + size / 80, size / 126, 30, bytes=size, source=source)
        for size in (2048, 4096, 8192, 16384, 32768)
        for source in ("l2", "dram")
    ]
    entries += [
        entry("wgmma", n / 2 + 40, max(n / 2, 16), 10, n=n, dtype=dtype, a="shared")
        for n in (16, 32, 64, 128, 256)
        for dtype in ("bfloat16", "float16", "float8_e4m3fn")
    ]
    entries += [entry("elementwise", size / 100, size / 100, size / 100, elements=size) for size in (1024, 16384)]
    entries += [
        entry("handoff", latency, None, 12, scope=scope)
        for scope, latency in (("warp_to_group", 50), ("group_to_warp", 60), ("group_to_group", 60))
    ]
    return CostTable(tuple(entries))
