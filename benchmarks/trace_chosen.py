"""Trace the chosen plans that miss a goal with Proton, per warp: where their time goes.

    python benchmarks/trace_chosen.py --out benchmarks/results

Of each group of ``kernels_report.GOALS`` with a peer, the two held-out rows that fare worst beside it are traced with
the plan chosen today. Writes ``kernel_traces_h200.json``: the interval from one multiply to the next beside the plan's,
the part of the main loop that consumers wait for data, the cycles inside each scope. A launch's last 256 scopes of each
warp are read. Recording costs each scope some cycles, so that traced times are upper bounds.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernels_report import GOALS
from results_file import RESULTS, head, read_rows, write

from warpplan.kernels import registry
from warpplan.kernels.isolate import run_isolated
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded
from warpplan.profiler.traces import trace_costs

WORST = 2
TABLES = ("grouped_gemm", "gemm_fp8", "gemm_bias_act")
"""Those whose kernels carry scopes."""


def worst_rows(folder: Path) -> list[tuple[float, str, dict[str, Any]]]:
    """(ratio, peer, row) of the held-out rows to be traced, a table's worst first."""
    peers = {goal.other for goal in GOALS}
    found = []
    for table in TABLES:
        rows = [r for r in read_rows(folder / f"kernels_h200_{table}.json") if r["split"] == "heldout"]
        ratios = [(us / r["chosen_us"], peer, r) for r in rows for peer, us in r["peers"].items() if peer in peers]
        ratios = [item for item in ratios if item[1].startswith("torch._")]
        found += sorted(ratios, key=lambda item: item[0])[:WORST]
    return found


def traced(row: dict[str, Any]) -> dict[str, Any]:
    """The plan of the row's shape and its trace, or ``{"failed"}``."""
    kernel, shape, profile = registry.kernel(row["kernel"]), tuple(row["shape"]), embedded(H200.name)
    ranked = kernel.rank(shape, row["dtype"], H200, profile, limit=1)[0]
    outcome = kernel.plan(ranked.config, row["dtype"], H200, profile)
    found = {"config": ranked.config.as_dict(), "predicted_us": ranked.prediction.time_us}
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(Path(folder) / "trace"), row["kernel"], list(shape), row["dtype"], ranked.config.as_dict()]
        result = run_isolated("warpplan.profiler.traces:trace_kernel_in_process", arguments, time_limit_s=60.0)
        if result.status != "ok":
            return found | {"failed": result.reason}
        return found | {"planned_ii": outcome.plan and outcome.plan.schedule.ii_cycles,
                        "trace": asdict(trace_costs(Path(result.value)))}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the compared rows")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    result = {**head("kernel_traces", H200.name), "rows": []}
    for ratio, peer, row in worst_rows(arguments.results):
        named = {key: row[key] for key in ("kernel", "table", "shape", "dtype", "split")}
        result["rows"].append(named | {"peer": peer, "recorded_ratio": ratio} | traced(row))
        write(arguments.out / "kernel_traces_h200.json", result)
        print(result["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
