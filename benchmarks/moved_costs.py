"""The joint solver on the training loops with their costs moved: writes ``benchmarks/results/moved_costs.json``.

Each of the 32 loops of ``loop_graphs.py`` five times, every latency, occupancy and issue moved at random by up to 10 %
(``monotone.moved``): what the solver's constants do beside the very loops that they were chosen with. Seconds are CPU
seconds of a whole solve, after one that loads the libraries.

    python benchmarks/moved_costs.py
    python benchmarks/moved_costs.py --seeds 11 12 13 --out benchmarks/results/moved_costs_fresh_seeds.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from loop_graphs import graphs
from monotone import moved
from planning_speed import cpu_name
from results_file import RESULTS, head, write

from warpplan.planner.solve import solve
from warpplan.planner.values.options import SolveOptions

WORK_LIMIT_S = 10.0
SEEDS = range(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "moved_costs.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of the moves")
    arguments = parser.parse_args()
    training, options = graphs(), SolveOptions(work_limit_s=WORK_LIMIT_S)
    solve(next(iter(training.values())), options)
    rows = []
    for name, graph in training.items():
        for seed in arguments.seeds:
            began = time.process_time()
            outcome = solve(moved(graph, seed), options)
            seconds = time.process_time() - began
            ii = None if outcome.plan is None else outcome.plan.schedule.ii_cycles
            row = {"loop": name, "seed": seed, "status": outcome.status, "ii": ii, "bound": outcome.bound}
            rows.append({**row, "cpu_s": round(seconds, 4)})
    proven = [row["cpu_s"] for row in rows if row["status"] == "optimal"]
    summary = {
        "loops": len(rows),
        "proven": len(proven),
        "proven_within_1s": sum(seconds <= 1.0 for seconds in proven),
        "median_cpu_s": statistics.median(row["cpu_s"] for row in rows),
    }
    write(
        arguments.out,
        {**head("moved_costs", cpu_name()), "work_limit_s": WORK_LIMIT_S, "summary": summary, "rows": rows},
    )
    print(summary)


if __name__ == "__main__":
    main()
