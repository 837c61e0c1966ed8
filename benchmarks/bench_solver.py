"""The joint solver on the loops of ``loop_graphs.py``: writes ``benchmarks/results/solver.json``.

Per loop: the smallest initiation interval, its proof, and the seconds for it by the clock and of CPU (median of
``--repeats``, once the libraries are loaded; the search has a second thread, so two idle cores are asked for); whether
the checker and the simulator accept the plan; and the interval where the loop is scheduled first and partitioned
afterwards (``schedule_first.py``).

Run it with ``python benchmarks/bench_solver.py``; ``--only`` takes parts of names.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from loop_graphs import graphs
from planning_speed import cpu_name
from results_file import head, write
from schedule_first import QUESTION_SECONDS, schedule_first

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.check.plan_check import check
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.simulate.simulation import verify
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Outcome

RESULTS = Path(__file__).parent / "results" / "solver.json"
LIMIT_S = 10.0
SLOW_S = 1.0
"""A solve that takes longer is not repeated."""
GOALS = {"median_wall_s": 0.1, "worst_wall_s": 1.0}
"""The optimum proven within so many seconds on two cores: over all loops, and for each."""


def measure(graph: DependenceGraph, repeats: int) -> dict[str, Any]:
    """The joint solution's row; ``row["outcome"]`` is for the caller."""
    cpu: list[float] = []
    wall: list[float] = []
    while len(cpu) < repeats and (not wall or wall[0] < SLOW_S):
        before, clock = time.process_time(), time.perf_counter()
        outcome = solve(graph, SolveOptions(work_limit_s=LIMIT_S))
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
        "runs": len(cpu),
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
    """The baseline, and by what share of the joint interval it is longer: as proven, and as found."""
    if outcome.plan is None:
        return {}
    joint, found = outcome.plan.schedule.ii_cycles, schedule_first(graph, outcome)
    row: dict[str, Any] = {"schedule_first": vars(found), "better_by_proven": round(found.bound / joint - 1, 4)}
    if found.ii_cycles is not None:
        row["better_by_found"] = round(found.ii_cycles / joint - 1, 4)
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    cpu, wall = ([row[name] for row in rows] for name in ("cpu_s", "wall_s"))
    result: dict[str, Any] = {
        "loops": len(rows),
        "optimal": sum(row["status"] == "optimal" for row in rows),
        "accepted": sum(row.get("violations") == [] for row in rows),
        "median_wall_s": statistics.median(wall),
        "worst_wall_s": max(wall),
        "within_goal": sum(seconds <= GOALS["worst_wall_s"] for seconds in wall),
        "median_cpu_s": statistics.median(cpu),
        "worst_cpu_s": max(cpu),
        "goals": GOALS,
    }
    compared = [row for row in rows if "schedule_first" in row]
    if compared:
        proven = [row["better_by_proven"] for row in compared]
        found = [row["better_by_found"] for row in compared if "better_by_found" in row]
        result |= {
            "compared": len(compared),
            "schedule_first_question_s": QUESTION_SECONDS,
            "joint_shorter_proven": sum(gain > 0 for gain in proven),
            "joint_longer": sum(gain < 0 for gain in found),
            "better_by_proven_mean": mean_gain(proven),
            "better_by_proven_most": max(proven),
            "schedule_first_without_plan": len(compared) - len(found),
            "better_by_found_mean": mean_gain(found),
        }
    return result


def mean_gain(gains: list[float]) -> float:
    """The geometric mean of the ratios, less one."""
    return round(statistics.geometric_mean(1 + gain for gain in gains) - 1, 4) if gains else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the loops' names")
    parser.add_argument("--repeats", type=int, default=3, help="solves of each loop")
    parser.add_argument("--no-baseline", action="store_true", help="leave the comparison out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    chosen = [g for name, g in graphs().items() if not options.only or any(part in name for part in options.only)]
    for library in ("networkx", "scipy.optimize", "ortools.sat.python.cp_model"):
        import_module(library)
    solve(chosen[0], SolveOptions(work_limit_s=LIMIT_S))
    rows, outcomes = [], []
    for graph in chosen:
        row = measure(graph, options.repeats)
        outcomes.append(row.pop("outcome"))
        rows.append(row)
        accepted = "accepted" if row.get("violations") == [] else f"NOT ACCEPTED {row.get('violations', '')}"
        print(
            f"{graph.name:<58} {len(graph.ops):>2} operations: {row['status']}, II {row['ii']} (bound {row['bound']}, "
            f"MinII {row['min_ii']}), {row['wall_s']:.3f} s, {row['cpu_s']:.3f} s CPU, {accepted}",
            flush=True,
        )
    written = head("solver", cpu_name())
    write(options.out, {**written, "summary": summary(rows), "rows": rows})
    for graph, row, outcome in zip(chosen, rows, outcomes, strict=True) if not options.no_baseline else ():
        row |= compare(graph, outcome)
        if "schedule_first" in row:
            print(
                "{:<58} schedule first {ii_cycles} (bound {bound})".format(graph.name, **row["schedule_first"]),
                flush=True,
            )
    found = summary(rows)
    write(options.out, {**written, "summary": found, "rows": rows})
    print(found)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
