"""GPU: linear layers that power limits, forward and backward, read for two lengths of time in turn with torch's.

    python benchmarks/bench_readings.py    # -> reading_lengths_<card>.json

Whether the ratio of two contenders depends on how long each runs before it is read: no shape is one of the tables'.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench_target import CARD, TARGET, require_target
from children import each
from kernel_cases.bench_rows import make_row
from kernel_estimates import READINGS
from kernel_timing import as_json
from results_file import RESULTS, head, write

SHAPES = ((8192, 5120, 5120), (4096, 12288, 6144), (8192, 3584, 16384), (8192, 8192, 4096))
"""Tokens, outputs and inputs of the layers."""
ROUNDS = 4
WAYS: Mapping[str, Mapping[str, float]] = {
    "short": {**READINGS["compare", True], "settle_ms": 150.0, "read_ms": 250.0, "rounds": ROUNDS},
    "settled": {**READINGS["compare", True], "rounds": ROUNDS},
}
LIMIT_S = 120.0


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each way: least and largest ratio of torch's median time to ours, and the largest spread of four readings."""
    found = {}
    for way in WAYS:
        samples = [row["samples_us"] for row in rows if row["way"] == way]
        ratios = [statistics.median(s["torch"]) / statistics.median(s["chosen"]) for s in samples]
        spreads = [max(us) / min(us) - 1 for s in samples for us in s.values()]
        values = {"least_ratio": min(ratios), "largest_ratio": max(ratios), "largest_spread": max(spreads)}
        found[way] = {name: round(value, 3) for name, value in values.items()}
    return found


def main() -> None:
    jobs = [
        {
            "row": as_json(make_row("linear", "linear", shape, "bfloat16", "train")), "way": way, **reading,
            "ours": {"chosen": {"config": None}}, "check": None, "until": time.time() + len(SHAPES) * LIMIT_S,
        }
        for shape in SHAPES for way, reading in WAYS.items()
    ]  # fmt: skip
    rows = []
    for job, result in zip(jobs, each("kernel_timing:compare", jobs, limit_s=LIMIT_S), strict=True):
        if "samples" not in result:
            print(job["row"]["sizes"], result.get("status"), result.get("reason"), flush=True)
            continue
        require_target(result["device"])
        shape = list(job["row"]["sizes"])
        rows.append({"kernel": "linear", "shape": shape, "way": job["way"], "samples_us": result["samples"]})
    found = {**head("reading_lengths", TARGET.name), "summary": summary(rows), "rows": rows}
    print(found["summary"])
    write(RESULTS / f"reading_lengths_{CARD}.json", found)


if __name__ == "__main__":
    main()
