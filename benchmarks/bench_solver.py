"""The joint solver on the training, practice and held-out loops: writes ``benchmarks/results/solver.json``.

Per loop (``loop_splits.py``): the smallest initiation interval, its proof or the gap that the work budget left, and the
seconds for it by the clock and of CPU (median of ``--repeats``, once the libraries are loaded; the search has a second
thread, so two idle cores are asked for); whether the checker and the simulator accept the plan; and the interval where
the loop is scheduled first and partitioned afterwards (``schedule_first.py``).

The baseline is no part of the solver: what it decides first, the order on every unit, the solver never starts from.

Run it with ``python benchmarks/bench_solver.py``; ``--split`` takes one split, ``--only`` parts of names,
``--shard 1/2`` every second loop. An interrupted run goes on where it stopped. What a longer limit is worth:

    python benchmarks/bench_solver.py --unproven-in benchmarks/results/solver.json --work-limit-s 60 --repeats 1 \\
        --no-baseline --out benchmarks/results/solver_60s.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from loop_splits import SPLITS, Split, loops
from planning_speed import cpu_name
from results_file import RESULTS, head
from row_store import Row, RowStore, add_arguments, of_shard
from schedule_first import QUERY_SECONDS, schedule_first

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.check.plan_check import check
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.simulate.simulation import verify
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Outcome

WORK_LIMIT_S = 10.0
"""The work budget of a solve, in seconds of a slow core."""
SLOW_S = 1.0
"""A solve that takes longer is not repeated."""
GOALS = {"median_wall_s": 0.1, "worst_wall_s": 1.0}
"""Seconds within which the optimum is to be proven on two cores: the median of all training loops, and the worst."""


def measure(graph: DependenceGraph, split: Split, work_limit_s: float, repeats: int) -> tuple[Row, Outcome]:
    """The joint solution's row, and the outcome."""
    cpu: list[float] = []
    wall: list[float] = []
    while len(cpu) < repeats and (not wall or wall[0] < SLOW_S):
        before, clock = time.process_time(), time.perf_counter()
        outcome = solve(graph, SolveOptions(work_limit_s=work_limit_s))
        cpu.append(time.process_time() - before)
        wall.append(time.perf_counter() - clock)
    row: Row = {
        "kernel": graph.name.split()[0],
        "split": split,
        "loop": graph.name,
        "operations": len(graph.ops),
        "edges": len(graph.edges),
        **answer(outcome),
        "min_ii": min_ii(Problem(graph, SolveOptions())).ii_cycles,
        "reason": outcome.reason,
        "cpu_s": round(statistics.median(cpu), 4),
        "wall_s": round(statistics.median(wall), 4),
        "runs": len(cpu),
    }
    if outcome.plan is not None:
        plan = outcome.plan
        row |= {
            "stages": plan.schedule.stages,
            "partitions": [{"warps": p.warps, "registers": p.registers, "ops": list(p.ops)} for p in plan.partitions],
            "reuses": len(plan.reuses),
            "violations": [*check(plan, graph), *verify(plan, graph)],
        }
    return row, outcome


def answer(outcome: Outcome) -> Row:
    ii = None if outcome.plan is None else outcome.plan.schedule.ii_cycles
    return {"status": outcome.status, "ii": ii, "bound": outcome.bound}


def compare(graph: DependenceGraph, outcome: Outcome) -> Row:
    """The baseline, and by what share of the joint interval it is longer: as proven, and as found."""
    if outcome.plan is None:
        return {}
    joint, found = outcome.plan.schedule.ii_cycles, schedule_first(graph, outcome)
    row: Row = {"schedule_first": vars(found), "better_by_proven": round(found.bound / joint - 1, 4)}
    if found.ii_cycles is not None:
        row["better_by_found"] = round(found.ii_cycles / joint - 1, 4)
    return row


def summary(rows: Sequence[Row]) -> Row:
    """One split's figures. ``gap``: (interval − bound) / bound of what was not proven."""
    wall, cpu = ([row[name] for row in rows] for name in ("wall_s", "cpu_s"))
    planned = [row for row in rows if row["ii"] is not None]
    gaps = [row["ii"] / row["bound"] - 1 for row in planned if row["status"] != "optimal"]
    proven = [row for row in rows if row["status"] in ("optimal", "infeasible")]
    result: Row = {
        "loops": len(rows),
        "proven": len(proven),
        "proven_within_1s": sum(row["wall_s"] <= GOALS["worst_wall_s"] for row in proven),
        "optimal": sum(row["status"] == "optimal" for row in rows),
        "infeasible": sum(row["status"] == "infeasible" for row in rows),
        "without_plan": sum(row["status"] == "unknown" for row in rows),
        "accepted": sum(row["violations"] == [] for row in planned),
        "median_wall_s": statistics.median(wall),
        "p90_wall_s": percentile(wall, 0.9),
        "worst_wall_s": max(wall),
        "median_cpu_s": statistics.median(cpu),
        "p90_cpu_s": percentile(cpu, 0.9),
        "worst_cpu_s": max(cpu),
        "gap_mean": round(statistics.mean(gaps), 4) if gaps else 0.0,
        "gap_worst": round(max(gaps, default=0.0), 4),
        "goals": GOALS,
    }
    compared = [row for row in rows if "schedule_first" in row]
    return result | compared_summary(compared) if compared else result


def compared_summary(compared: Sequence[Row]) -> Row:
    """Joint decision against schedule first. A loop is longer where the joint interval exceeds the baseline's."""
    proven = [row["better_by_proven"] for row in compared]
    found = [row for row in compared if row["schedule_first"]["ii_cycles"] is not None]
    gains = [row["better_by_found"] for row in found]
    return {
        "compared": len(compared),
        "schedule_first_query_s": QUERY_SECONDS,
        "joint_shorter_proven": sum(gain > 0 for gain in proven),
        "joint_longer": [row["loop"] for row in found if row["better_by_found"] < 0],
        "better_by_proven_mean": mean_gain(proven),
        "better_by_proven_most": max(proven),
        "schedule_first_without_plan": len(compared) - len(found),
        "better_by_found_mean": mean_gain(gains),
    }  # fmt: skip


def shortened(rows: Sequence[Row], earlier: Mapping[str, int]) -> Row:
    """By how much of the shortest known interval ``earlier`` ones are longer."""
    gaps = [max(0.0, earlier[row["loop"]] / row["ii"] - 1) for row in rows if row["ii"] is not None]
    return {"earlier_gap_median": round(statistics.median(gaps), 4), "earlier_gap_worst": round(max(gaps), 4)}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def mean_gain(gains: Sequence[float]) -> float:
    """The geometric mean of the ratios, less one."""
    return round(statistics.geometric_mean(1 + gain for gain in gains) - 1, 4) if gains else 0.0


def describe(row: Row) -> str:
    plan = "" if row["ii"] is None else "accepted" if row["violations"] == [] else f"NOT ACCEPTED {row['violations']}"
    first = f", schedule first {row['schedule_first']['ii_cycles']}" if "schedule_first" in row else ""
    return (
        f"{row['split']:<8} {row['loop']:<62} {row['operations']:>2} operations: {row['status']}, II {row['ii']} "
        f"(bound {row['bound']}, MinII {row['min_ii']}), {row['wall_s']:.3f} s, {row['cpu_s']:.3f} s CPU, {plan}{first}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS / "solver.json", "loops")
    parser.add_argument("--split", choices=SPLITS, help="only this one")
    parser.add_argument("--repeats", type=int, default=3, help="solves of each loop")
    parser.add_argument("--work-limit-s", type=float, default=WORK_LIMIT_S, help="work budget of a solve")
    parser.add_argument("--no-baseline", action="store_true", help="leave the comparison out")
    parser.add_argument("--unproven-in", type=Path, metavar="FILE", help="only loops that FILE has without a proof")
    return parser.parse_args()


def main() -> None:
    options = parse()
    earlier = intervals_of_unproven(options.unproven_in) if options.unproven_in else {}
    wanted: list[tuple[Split, DependenceGraph]] = [
        (split, graph)
        for split in SPLITS
        for name, graph in loops(split).items()
        if options.split in (None, split) and (not options.only or any(part in name for part in options.only))
        if not options.unproven_in or name in earlier
    ]
    if not wanted:
        raise SystemExit(f"no loop has any of {options.only or list(earlier)} in its name")
    settings = {"work_limit_s": options.work_limit_s, "repeats": options.repeats, "baseline": not options.no_baseline}
    store = RowStore(options.out, ("loop",), settings, fresh=options.fresh)
    for library in ("networkx", "scipy.optimize", "ortools.sat.python.cp_model"):
        import_module(library)
    solve(wanted[0][1], SolveOptions(work_limit_s=options.work_limit_s))
    for split, graph in of_shard(wanted, options.shard):
        if (graph.name,) in store.rows():
            continue
        row, outcome = measure(graph, split, options.work_limit_s, options.repeats)
        if not options.no_baseline:
            row |= compare(graph, outcome)
        store.add(row)
        print(describe(row), flush=True)
    report(store, [graph.name for _, graph in wanted], settings, earlier)


def intervals_of_unproven(path: Path) -> dict[str, int]:
    """The interval of each loop that a results file has with a plan and without a proof, by the loop's name."""
    return {row["loop"]: row["ii"] for row in json.loads(path.read_text())["rows"] if row["status"] == "feasible"}


def report(store: RowStore, names: Sequence[str], settings: dict[str, Any], earlier: Mapping[str, int]) -> None:
    """Writes what is there; the partial file stays while another process has rows to come."""
    known = store.rows()
    rows = [known[(name,)] for name in names if (name,) in known]
    by_split = {split: of for split in SPLITS if (of := [row for row in rows if row["split"] == split])}
    found = {split: summary(of) | (shortened(of, earlier) if earlier else {}) for split, of in by_split.items()}
    store.write({**head("solver", cpu_name()), **settings, "summary": found}, rows, complete=len(rows) == len(names))
    for split, figures in found.items():
        print(split, figures)
    print(f"{len(rows)} of {len(names)} rows written to {store.out}")


if __name__ == "__main__":
    main()
