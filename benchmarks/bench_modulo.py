"""Classic modulo scheduling against HiGHS and plain iterative modulo scheduling on the loops of
``modulo_instances.py``: writes ``benchmarks/results/modulo_scheduling.json``.

Per loop: the planner's interval, its proof or bound, whether the checker accepts the plan, and the time for it (limit
60 s) and, as ``proof_cpu_s``, until the interval was found and proven: what follows chooses among its schedules and
verifies one. Of mixed and hard loops then HiGHS on the time-indexed formulation of ``modulo_milp.py``, interval
by interval from MinII, for ``--milp-limit-s`` in all; of loops of 200 operations or more the plain heuristic of
``iterative_modulo.py``, for 60 s, and as ``ii_by_then`` the planner's interval after the time that it took. All run on
one thread, after one solve that has loaded the libraries. ``cpu_s`` is what to compare on a machine with other work;
HiGHS itself can only be limited by the clock, at which it looks seldom: its process is killed where it overruns.

Run it with ``python benchmarks/bench_modulo.py``; ``--only`` takes parts of names, ``--milp-limit-s 0`` leaves HiGHS
out. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import iterative_modulo
import modulo_milp
from modulo_instances import Instance, instances
from planning_speed import cpu_name
from results_file import RESULTS, head
from row_store import RowStore, add_arguments, of_shard

from warpplan.kernels.isolate import run_isolated
from warpplan.planner.bounds.min_ii import recurrence_bound, resource_bounds
from warpplan.planner.check.plan_check import check
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.solve import solve
from warpplan.planner.values.options import SolveOptions

LIMIT_S = 60.0
LARGE = 200
"""Operations from which on the plain heuristic is run."""
GRACE_S = 10.0
"""Beyond its limit, for a process of HiGHS: it loads the libraries, and ends the step that it is at."""
HIGHS_KINDS = ("mixed", "hard")
"""The program states no shared resources, and none of the large loops is solved by it."""
GOAL_OPTIMAL = 0.99
"""The share of loops whose smallest interval is to be found and proven within the limit."""


def measure(instance: Instance) -> dict[str, Any]:
    """The planner's row."""
    graph = instance.graph
    proofs: list[float] = []
    incumbents: list[tuple[float, int]] = []

    def progress(_: int, proven: int, best: int | None) -> None:
        now = round(time.process_time() - before, 4)
        if best is not None and (not incumbents or best < incumbents[-1][1]):
            incumbents.append((now, best))
        if proven == best:
            proofs.append(now)

    before, clock = time.process_time(), time.perf_counter()
    outcome = solve(graph, SolveOptions(work_limit_s=LIMIT_S), progress=progress)
    cpu, wall = time.process_time() - before, time.perf_counter() - clock
    problem = Problem(graph, SolveOptions())
    resource = max(bound.ii_cycles for bound in resource_bounds(problem))
    recurrence = recurrence_bound(problem).ii_cycles
    return {
        "kernel": instance.kind,
        "loop": instance.name,
        "operations": len(graph.ops),
        "edges": len(graph.edges),
        "res_mii": resource,
        "rec_mii": recurrence,
        "min_ii": max(1, resource, recurrence),
        "status": outcome.status,
        "ii": None if outcome.plan is None else outcome.plan.schedule.ii_cycles,
        "bound": outcome.bound,
        "reason": outcome.reason,
        "cpu_s": round(cpu, 4),
        "wall_s": round(wall, 4),
        "proof_cpu_s": proofs[0] if proofs else None,
        "incumbents": incumbents,
        "violations": ["no plan"] if outcome.plan is None else list(check(outcome.plan, graph)),
    }


def compare_with_heuristic(instance: Instance, row: dict[str, Any]) -> dict[str, Any]:
    """The plain heuristic's row, and the planner's interval by the time that the heuristic was done."""
    found = iterative_modulo.smallest(instance.graph, row["min_ii"], LIMIT_S)
    by_then = [ii for seconds, ii in row["incumbents"] if seconds <= found["cpu_s"]]
    return {**found, "ii_by_then": min(by_then, default=None)}


def compare_with_highs(name: str, least: int, limit_s: float) -> dict[str, Any]:
    """The row of HiGHS; of a process that was killed nothing is known but the time."""
    found = run_isolated("bench_modulo:solve_with_highs", [name, least, limit_s], time_limit_s=limit_s + GRACE_S)
    if found.status == "timeout":
        return {"status": "unknown", "ii": None, "bound": least, "valid": False, "cpu_s": limit_s, "wall_s": limit_s}
    if found.status != "ok":
        raise SystemExit(f"HiGHS on {name}: {found.status}: {found.reason}")
    result: dict[str, Any] = found.value
    return result


def solve_with_highs(name: str, least: int, limit_s: float) -> dict[str, Any]:
    """The row of HiGHS on the loop ``name``, in this process."""
    (instance,) = (i for i in instances() if i.name == name)
    return modulo_milp.smallest(instance.graph, least, limit_s)


def warm_up(instance: Instance) -> None:
    """Loads the libraries."""
    solve(instance.graph, SolveOptions(work_limit_s=LIMIT_S))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    cpu = [row["cpu_s"] for row in rows]
    proof = [row["proof_cpu_s"] for row in rows if row["proof_cpu_s"] is not None]
    optimal = [row for row in rows if row["status"] == "optimal"]
    result: dict[str, Any] = {
        "loops": len(rows),
        "optimal": len(optimal),
        "accepted": sum(row["violations"] == [] for row in rows),
        "optimum_beyond_min_ii": sum(row["ii"] > row["min_ii"] for row in optimal),
        "median_cpu_s": statistics.median(cpu),
        "worst_cpu_s": max(cpu),
        "median_proof_cpu_s": statistics.median(proof) if proof else None,
        "worst_proof_cpu_s": max(proof, default=None),
        "goal_optimal_share": GOAL_OPTIMAL,
        "met": len(optimal) >= GOAL_OPTIMAL * len(rows),
    }
    compared = [row for row in rows if "milp" in row]
    if compared:
        solved = [row for row in compared if row["milp"]["status"] == "optimal"]
        both = [row for row in solved if row["status"] == "optimal"]
        ratios = [row["milp"]["cpu_s"] / row["cpu_s"] for row in both]
        proofs = [row["milp"]["cpu_s"] / row["proof_cpu_s"] for row in both if row["proof_cpu_s"]]
        result["milp"] = {
            "optimal": len(solved),
            "valid": sum(row["milp"]["valid"] for row in solved),
            "timeouts": len(compared) - len(solved),
            "same_interval": sum(row["ii"] == row["milp"]["ii"] for row in both),
            "both_optimal": len(both),
            "planner_faster": sum(ratio > 1 for ratio in ratios),
            "cpu_ratio_geometric_mean": round(statistics.geometric_mean(ratios), 3) if ratios else None,
            "proof_ratio_geometric_mean": round(statistics.geometric_mean(proofs), 3) if proofs else None,
            "cpu_s_total": round(sum(row["milp"]["cpu_s"] for row in compared), 1),
            "planner_cpu_s_total": round(sum(row["cpu_s"] for row in compared), 1),
        }
    large = [row for row in rows if "iterative" in row]
    if large:
        result["large"] = {
            "loops": len(large),
            "optimal": sum(row["status"] == "optimal" for row in large),
            "heuristic_valid": sum(row["iterative"]["valid"] for row in large),
            "worse_than_heuristic": [row["loop"] for row in large if worse(row["ii"], row["iterative"]["ii"])],
            "worse_by_then": [
                row["loop"] for row in large if worse(row["iterative"]["ii_by_then"], row["iterative"]["ii"])
            ],
            "better_than_heuristic": sum(worse(row["iterative"]["ii"], row["ii"]) for row in large),
        }
    return result


def worse(ii: int | None, other: int | None) -> bool:
    """Whether ``ii`` cycles are more than ``other``, or none were found where ``other`` were."""
    return other is not None and (ii is None or ii > other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS / "modulo_scheduling.json", "loops")
    parser.add_argument("--limit", type=int, help="the most loops that are solved")
    parser.add_argument("--milp-limit-s", type=float, default=60.0, help="seconds of the clock for HiGHS on one loop")
    options = parser.parse_args()
    wanted = [i for i in instances() if not options.only or any(part in i.name for part in options.only)]
    wanted = wanted[: options.limit]
    if not wanted:
        parser.error(f"no loop has any of {options.only} in its name")
    limits = {"limit_s": LIMIT_S, "milp_limit_s": options.milp_limit_s}
    store = RowStore(options.out, ("loop",), limits, fresh=options.fresh)
    warm_up(wanted[0])
    for instance in of_shard(wanted, options.shard):
        if (instance.name,) in store.rows():
            continue
        row = measure(instance)
        if options.milp_limit_s > 0 and instance.kind in HIGHS_KINDS:
            row["milp"] = compare_with_highs(instance.name, row["min_ii"], options.milp_limit_s)
        if row["operations"] >= LARGE:
            row["iterative"] = compare_with_heuristic(instance, row)
        store.add(row)
        print(describe(row), flush=True)
    known = store.rows()
    rows = [known[(i.name,)] for i in wanted if (i.name,) in known]
    found = summary(rows)
    result = {**head("modulo_scheduling", cpu_name()), **limits, "summary": found}
    store.write(result, rows, complete=len(rows) == len(wanted))
    print(found)
    print(f"{len(rows)} of {len(wanted)} rows written to {options.out}")


def describe(row: dict[str, Any]) -> str:
    refused = "" if row["violations"] == [] else f", NOT ACCEPTED {row['violations']}"
    line = "{loop:<14} {status}, II {ii} (bound {bound}, MinII {min_ii}), {cpu_s:.3f} s CPU".format(**row) + refused
    if "milp" in row:
        line += "; HiGHS {status}, II {ii} (bound {bound}), {cpu_s:.3f} s CPU".format(**row["milp"])
    if "iterative" in row:
        line += "; iterative II {ii} in {cpu_s:.3f} s CPU, planner {ii_by_then} by then".format(**row["iterative"])
    return line


if __name__ == "__main__":
    main()
