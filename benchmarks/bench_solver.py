"""The joint solver on the loops of ``loop_graphs.py``: writes ``benchmarks/results/solver.json``.

Per loop: the smallest initiation interval, its proof, and the CPU seconds for it (median of ``--repeats``, after
one solve that has loaded the libraries); whether the checker and the simulator accept the plan; and the interval where
the loop is scheduled first and partitioned afterwards (``schedule_first.py``).

Run it with ``python benchmarks/bench_solver.py``; ``--only`` takes parts of names.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from loop_graphs import graphs
from planning_speed import cpu_name
from results_file import head, write
from schedule_first import schedule_first

from warpplan.planner.bounds import min_ii
from warpplan.planner.check import check
from warpplan.planner.graph import DependenceGraph
from warpplan.planner.plan import Outcome
from warpplan.planner.problem import Problem, SolveOptions
from warpplan.planner.simulate import verify
from warpplan.planner.solve import solve

RESULTS = Path(__file__).parent / "results" / "solver.json"
LIMIT_S = 10.0
GOALS = {"median_cpu_s": 0.1, "worst_cpu_s": 1.0}
"""The optimum proven within so many seconds: over all loops, and for each."""


def measure(graph: DependenceGraph, repeats: int) -> dict[str, Any]:
    """The joint solution's row; ``row["outcome"]`` is for the caller."""
    cpu, wall = [], []
    for _ in range(repeats):
        before, clock = time.process_time(), time.perf_counter()
        outcome = solve(graph, SolveOptions(time_limit_s=LIMIT_S))
        cpu.append(time.process_time() - before)
        wall.append(time.perf_counter() - clock)
    bound = min_ii(Problem(graph, SolveOptions()))
    row = {
        "kernel": graph.name.split()[0],
        "loop": graph.name,
        "operations": len(graph.ops),
        "edges": len(graph.edges),
        "status": outcome.status,
        "ii": None,
        "bound": outcome.bound,
        "min_ii": bound.ii_cycles,
        "reason": outcome.reason,
        "cpu_s": round(statistics.median(cpu), 4),
        "wall_s": round(statistics.median(wall), 4),
        "runs": repeats,
        "outcome": outcome,
    }
    if outcome.plan is None:
        return row
    plan = outcome.plan
    return row | {
        "ii": plan.schedule.ii_cycles,
        "stages": plan.schedule.stages,
        "partitions": [{"warps": p.warps, "registers": p.registers, "ops": list(p.ops)} for p in plan.partitions],
        "reuses": len(plan.reuses),
        "violations": [*check(plan, graph), *verify(plan, graph)],
    }


def compare(graph: DependenceGraph, outcome: Outcome) -> dict[str, Any]:
    """The baseline, and by how much the joint interval is shorter."""
    if outcome.plan is None:
        return {}
    found = schedule_first(graph, outcome)
    better = None if found.ii_cycles is None else round(found.ii_cycles / outcome.plan.schedule.ii_cycles - 1, 4)
    return {"schedule_first": vars(found), "better_by": better}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    cpu = [row["cpu_s"] for row in rows]
    result: dict[str, Any] = {
        "loops": len(rows),
        "optimal": sum(row["status"] == "optimal" for row in rows),
        "accepted": sum(row.get("violations") == [] for row in rows),
        "median_cpu_s": statistics.median(cpu),
        "worst_cpu_s": max(cpu),
        "goals": GOALS,
    }
    compared = [row for row in rows if "schedule_first" in row]
    gains = [row["better_by"] for row in compared if row["better_by"] is not None]
    if gains:
        result |= {
            "compared": len(compared),
            "without_baseline": len(compared) - len(gains),
            "joint_shorter": sum(gain > 0 for gain in gains),
            "joint_longer": sum(gain < 0 for gain in gains),
            "better_by_geometric_mean": round(statistics.geometric_mean(1 + gain for gain in gains) - 1, 4),
            "better_by_most": max(gains),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the loops' names")
    parser.add_argument("--repeats", type=int, default=3, help="solves of each loop")
    parser.add_argument("--no-baseline", action="store_true", help="leave the comparison out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    chosen = [g for name, g in graphs().items() if not options.only or any(part in name for part in options.only)]
    solve(chosen[0], SolveOptions(time_limit_s=LIMIT_S))
    rows = []
    for graph in chosen:
        row = measure(graph, options.repeats)
        outcome = row.pop("outcome")
        if not options.no_baseline:
            row |= compare(graph, outcome)
        rows.append(row)
        first = row["schedule_first"]["ii_cycles"] if "schedule_first" in row else "-"
        accepted = "accepted" if row.get("violations") == [] else f"NOT ACCEPTED {row.get('violations', '')}"
        print(
            f"{graph.name:<58} {len(graph.ops):>2} operations: {row['status']}, II {row['ii']} (bound {row['bound']}, "
            f"MinII {row['min_ii']}), {row['cpu_s']:.3f} s CPU, {accepted}; schedule first {first}",
            flush=True,
        )
    found = summary(rows)
    write(options.out, {**head("solver", cpu_name()), "summary": found, "rows": rows})
    print(found)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
