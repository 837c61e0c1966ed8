"""Records as probes stream them, and the profile that several passes of them make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warpplan.kernels.isolate import Json
from warpplan.planner.values.costs import CostEntry, CostTable, OperationCost, Parameters, Quantiles
from warpplan.planner.values.profile import Failure, Identity, Profile, Rate

Record = Mapping[str, Json]
PARTS = ("latency", "occupancy", "issue")


def profile_of(
    identity: Identity,
    passes: Iterable[Iterable[Record]],
    failures: tuple[Failure, ...] = (),
    notes: tuple[str, ...] = (),
) -> Profile:
    """One profile of all passes.

    A median is the mean of the passes' medians, a 90th percentile the largest of theirs (a rate's 10th the smallest), a
    count their sum: what differs between passes widens the spread and does not vanish in it.
    """
    costs: dict[tuple[str, Parameters], list[Record]] = {}
    rates: dict[str, list[Record]] = {}
    for records in passes:
        for record in records:
            if "ceiling" in record:
                rates.setdefault(record["ceiling"], []).append(record["rate"])
            else:
                key = (record["kind"], tuple(sorted(record["parameters"].items())))
                costs.setdefault(key, []).append(record["cost"])
    entries = [
        CostEntry(kind, parameters, OperationCost(*(_quantiles(part, measured) for part in PARTS)))
        for (kind, parameters), measured in costs.items()
    ]
    entries.sort(key=entry_order)
    ceilings = tuple(sorted((name, _rate(measured)) for name, measured in rates.items()))
    return Profile(identity, CostTable(tuple(entries)), ceilings, failures=failures, notes=notes)


def entry_order(entry: CostEntry) -> tuple[str, list[tuple[str, str]]]:
    """The order of a profile's entries: by kind and parameters, numbers by their size."""
    return entry.kind, [(n, v if isinstance(v, str) else f"{v:012d}") for n, v in entry.parameters]


def _quantiles(part: str, measured: list[Record]) -> Quantiles | None:
    found = [m[part] for m in measured if m.get(part) is not None]
    if not found:
        return None
    p50 = sum(q["p50"] for q in found) / len(found)
    return Quantiles(_rounded(p50), _rounded(max(q["p90"] for q in found)), sum(q["count"] for q in found))


def _rate(measured: list[Record]) -> Rate:
    p50 = sum(r["p50"] for r in measured) / len(measured)
    low, high = min(r["p10"] for r in measured), max(r["p90"] for r in measured)
    return Rate(_rounded(p50), _rounded(low), _rounded(high), sum(r["count"] for r in measured))


def _rounded(value: float) -> float:
    """Six significant digits: more than was measured, and a file that people can read."""
    return float(f"{value:.6g}")
