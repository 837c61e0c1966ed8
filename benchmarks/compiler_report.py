"""No GPU: the README's table of the recorded comparison of planned with unplanned kernels.

python benchmarks/compiler_report.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "compiler_h200.json"
HEAD = """\
| kernel | planned, µs | TFLOP/s | same tile | best tile | peer |
|---|---|---|---|---|---|"""


def cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def line(row: dict[str, Any]) -> str:
    """One case: the planned kernel's time; over it the unplanned one's at that tile and at its best, and the peer's."""
    peer = next(iter(row["over_peers"].values()), None)
    return (
        f"| {row['case'].replace('_', ' ')} | {row['planned_us']:.1f} | {row['tflops']:.0f} | "
        f"{cell(row['over_same_tile'])} | {cell(row['over_unplanned'])} | {cell(peer)} |"
    )


def table(results: dict[str, Any]) -> str:
    """What was specialised, in the order of the file."""
    rows = [line(row) for row in results["rows"] if row["status"] == "ok" and row["specialised"]]
    return "\n".join([HEAD, *rows])


if __name__ == "__main__":
    results = json.loads(RESULTS.read_text())
    print(table(results))
    print(json.dumps(results["summary"], indent=1))
