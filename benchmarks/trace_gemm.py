"""Trace the real GEMM kernels with Proton, per warp, and compare the costs read back with those of the probes.

    python benchmarks/trace_gemm.py --out benchmarks/results

Writes ``gemm_traces_h200.json``: for each configuration the II, the cycles inside each scope, the exposed wait, and
the ratio of traced to probed cycles. Recording costs each scope some cycles, so traced costs are upper bounds.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path

from results_file import head, write

from warpplan.kernels.gemm.space import GemmConfig
from warpplan.planner.errors import WarpplanError
from warpplan.profiler.embedded import embedded
from warpplan.profiler.traces import compare, record, trace_costs

DEVICE = "NVIDIA H200"
DTYPE = "bfloat16"
SHAPE = (512, 512, 4096)
CONFIGS = (
    GemmConfig("single", 128, 128, 64, 8, 6),
    GemmConfig("single", 128, 256, 64, 8, 3),
    GemmConfig("single", 64, 128, 64, 4, 8),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=2),
    GemmConfig("cooperative", 192, 128, 64, 4, 5, epilogue_split=2),
    GemmConfig("pingpong", 128, 128, 64, 4, 5),
    GemmConfig("pingpong", 64, 256, 64, 4, 5, epilogue_split=4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    result = {**head("gemm_traces", DEVICE), "shape": SHAPE, "dtype": DTYPE, "rows": []}
    costs = embedded(DEVICE).costs
    for config in CONFIGS:
        row: dict[str, object] = {"kernel": "gemm", "config": vars(config)}
        try:
            with tempfile.TemporaryDirectory() as folder:
                trace = record(Path(folder) / "trace", config, dtype=DTYPE, shape=SHAPE, time_limit_s=60.0)
                summary = trace_costs(trace)
        except WarpplanError as error:
            row["failed"] = str(error)
        else:
            row["trace"] = asdict(summary)
            row["against_probes"] = {
                c.name: {"traced_cycles": c.traced_cycles, "probed_cycles": c.probed_cycles, "ratio": round(c.ratio, 3)}
                for c in compare(summary, config, DTYPE, costs)
            }
        print(config.scheme, config.block_m, config.block_n, row.get("against_probes", row.get("failed")), flush=True)
        result["rows"].append(row)
    write(arguments.out / "gemm_traces_h200.json", result)


if __name__ == "__main__":
    main()
