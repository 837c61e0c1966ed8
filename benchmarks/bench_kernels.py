"""The kernels that training runs, on the GPU: chosen plans, exhaustive search of their spaces, peers in turn.

    python benchmarks/bench_kernels.py --phase plan                      # no GPU: candidates and predictions
    python benchmarks/bench_kernels.py --dry-run                         # no GPU: what would run, and for how long
    python benchmarks/bench_kernels.py --phase search --split train      # -> kernels_exhaustive_h200_<table>.json
    python benchmarks/bench_kernels.py --phase compare --split heldout   # -> kernels_h200_<table>.json

``WARPPLAN_BENCH_DEVICE="NVIDIA H100 80GB HBM3"`` plans for that GPU, and its rows go to files of their own.

``search`` first compiles, runs and checks every candidate in child processes on all cores, then reads the candidates
in turn with a peer, a dozen at a time. ``compare`` times the chosen plan, the best of the ranking and of the search,
and every peer in turn. Both keep each finished row, so that an interrupted run, or one that ``--limit-s`` ended, goes
on where it stopped.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_target import TARGET, require_target
from children import cores, each
from kernel_cases.bench_rows import SPLITS, TABLES, BenchRow, rows
from kernel_estimates import (
    CHUNK,
    FINALISTS,
    FOUND,
    Job,
    check_jobs,
    describe,
    label,
    readings,
)
from kernel_plans import PLANS, PlannedRow, compiled, load_plans, plan_all, save_plans, shortlist
from kernel_tables import (
    best_configs,
    compare_store,
    comparison_row,
    exhaustive_store,
    exhaustive_values,
    write_tables,
)
from kernel_timing import as_json, config_of
from results_file import RESULTS

from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.profile_files import load

Contenders = dict[str, dict[str, Any]]
CHECK_LIMIT_S, CHUNK_LIMIT_S, COMPARE_LIMIT_S = 120.0, 60.0, 120.0
"""The longest silence of a child before it is killed."""


def run_checks(jobs: dict[str, Job], workers: int, until: float) -> dict[str, str]:
    """The keys of what failed, with the reason; hangs and crashes of the child are reasons too."""
    started = time.monotonic()
    listed = [{**job, "until": until} for job in jobs.values()]
    results = each("kernel_timing:check", listed, limit_s=CHECK_LIMIT_S, workers=workers)
    found = list(zip(jobs, results, strict=True))
    failures = {key: r["reason"] for key, r in found if "reason" in r and r.get("status") != "skipped"}
    for key, reason in failures.items():
        print(f"failed: {key[:400]}: {reason}", flush=True)
    skipped = sum(r.get("status") == "skipped" for r in results)
    seconds = time.monotonic() - started
    print(f"checked {len(jobs)}: {len(failures)} failed, {skipped} skipped, {seconds:.0f} s", flush=True)
    return failures


def search_all(plans: Sequence[PlannedRow], arguments: argparse.Namespace, until: float) -> None:
    """Every candidate of every row that has not been searched yet."""
    stores = {table: exhaustive_store(arguments.out, table) for table in {p.row.table for p in plans if p.ranked}}
    done = set() if arguments.fresh else {key for store in stores.values() for key in store.rows()}
    left = {p.row.key: (p, shortlist(p, arguments.candidates)) for p in plans if p.ranked and p.row.key not in done}
    failures = run_checks(check_jobs(left.values(), peers=False), arguments.workers, until)
    usable = {key: [c for c in cs if compiled(p.row, c)[0] not in failures] for key, (p, cs) in left.items()}
    jobs: list[Job] = []
    for key, (plan, _) in left.items():
        shared = {"row": as_json(plan.row), "key": key, "until": until, **readings(plan.row, "search")}
        for start in range(0, len(usable[key]), CHUNK):
            jobs.append({**shared, "configs": [c.as_dict() for c in usable[key][start : start + CHUNK]]})
    chunks: dict[tuple[str, ...], list[dict[str, Any]]] = {key: [] for key in left}
    last = time.monotonic()

    def keep(job: Job, result: dict[str, Any]) -> None:
        nonlocal last
        require_target(result.get("device", TARGET.name))
        key = tuple(job["key"])
        plan, configs = left[key]
        chunks[key].append(result)
        if "times" not in result:
            print(f"{label(plan.row)}: {result['status']}: {result['reason']}", flush=True)
        finished = len(chunks[key]) == math.ceil(len(usable[key]) / CHUNK)
        if not finished or any(chunk.get("status") == "skipped" for chunk in chunks[key]):
            return
        row = exhaustive_values(plan, usable[key], chunks[key], CHUNK)
        row["unchecked"] = [failures[k] for c in configs if (k := compiled(plan.row, c)[0]) in failures]
        if row["times_us"]:
            stores[plan.row.table].add(row)
        seconds, last = time.monotonic() - last, time.monotonic()
        print(f"searched {label(plan.row)}: {len(row['times_us'])} candidates, {seconds:.1f} s", flush=True)

    each("kernel_timing:search", jobs, limit_s=CHUNK_LIMIT_S, on_result=keep)
    write_tables(arguments.out, stores)


TWINS = {"grouped_gemm_fp8": "grouped_gemm", "attention_fp8": "attention_fwd"}
"""The table with the same shapes in bfloat16, beside which a table of fp8 is measured."""


def contenders(plan: PlannedRow, found: Sequence[TuningConfig], every: dict[tuple[Any, ...], PlannedRow]) -> Contenders:
    """Ours by name: the first of the ranking ("chosen", "rank 2", …), the first of the search ("found 1", …) where they
    are others, plans for other group sizes, and of an fp8 row the bfloat16 plan on bfloat16 operands.
    """
    if not plan.ranked:
        return {"chosen": {"config": None}}
    named: dict[TuningConfig, str] = {}
    for index, (config, _) in enumerate(plan.ranked[:FINALISTS]):
        named.setdefault(config, "chosen" if index == 0 else f"rank {index + 1}")
    for index, config in enumerate(found[:FOUND]):
        named.setdefault(config, f"found {index + 1}")
    ours: Contenders = {name: {"config": config.as_dict()} for config, name in named.items()}
    ours |= {name: {"config": config.as_dict()} for name, config in plan.others}
    twin = every.get((TWINS.get(plan.row.table), plan.row.shape))
    if twin is not None:
        ours["own bfloat16"] = {"config": twin.ranked[0][0].as_dict(), "row": as_json(twin.row)}
    return ours


def compare_all(
    plans: Sequence[PlannedRow], every: dict[tuple[Any, ...], PlannedRow], arguments: argparse.Namespace, until: float
) -> None:
    """Chosen, best of the ranking, best found and peers, for every row that has not been compared yet."""
    stores = {table: compare_store(arguments.out, table) for table in {p.row.table for p in plans}}
    done = set() if arguments.fresh else {key for store in stores.values() for key in store.rows()}
    left = {p.row.key: p for p in plans if p.row.key not in done}
    ours = {key: contenders(p, best_configs(arguments.out, p.row), every) for key, p in left.items()}
    checks: dict[str, Job] = {}
    for key, plan in left.items():
        for spec in ours[key].values():
            its = every[(TWINS[plan.row.table], plan.row.shape)] if "row" in spec else plan
            checks |= check_jobs([(its, _configs(spec))], peers=its is plan)
    failures = run_checks(checks, arguments.workers, until)
    jobs = []
    for key, plan in left.items():
        kept = {
            name: spec
            for name, spec in ours[key].items()
            if "row" in spec or compiled(plan.row, *_configs(spec))[0] not in failures
        }
        shared = {"row": as_json(plan.row), "key": key, "until": until}
        jobs.append({**shared, **readings(plan.row, "compare"), "ours": kept, "check": "chosen"})

    def keep(job: Job, result: dict[str, Any]) -> None:
        require_target(result.get("device", TARGET.name))
        plan = left[tuple(job["key"])]
        if "times" not in result:
            print(f"{label(plan.row)}: {result['status']}: {result['reason']}", flush=True)
            return
        row = comparison_row(plan, job["ours"], result)
        stores[plan.row.table].add(row)
        us = row.get("chosen_us", math.nan)
        others = {"best": row.get("best_us", math.nan), "roofline": row["roofline_us"], **row["peers"], **row["others"]}
        ratios = ", ".join(f"{name} {other / us:.3f}" for name, other in others.items())
        print(f"{label(plan.row)}: {us:.2f} us; {ratios}; error {row['relative_error']}; {row['failed']}", flush=True)

    each("kernel_timing:compare", jobs, limit_s=COMPARE_LIMIT_S, on_result=keep)
    write_tables(arguments.out, stores)


def _configs(spec: dict[str, Any]) -> list[TuningConfig | None]:
    """The one configuration of a contender, as a list; ``None`` where the kernel finds its own."""
    return [None if spec["config"] is None else config_of(spec["config"])]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", choices=("plan", "search", "compare"), default="plan")
    parser.add_argument("--kernel", dest="tables", nargs="*", choices=TABLES, default=list(TABLES), help="tables")
    parser.add_argument("--split", dest="splits", nargs="*", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--only", nargs="*", default=[], help="rows whose shape has one of these texts in it")
    parser.add_argument(
        "--candidates", type=int, default=10**6, help="of a row at most; the best and a spread of others"
    )
    parser.add_argument("--workers", type=int, default=max(1, cores() - 1))
    parser.add_argument("--limit-s", type=float, default=3600.0, help="begin nothing later; what is done is kept")
    parser.add_argument("--fresh", action="store_true", help="measure the rows again that are there already")
    parser.add_argument("--profile", type=Path, help="plan with this profile; by default with the one that ships")
    parser.add_argument("--plans", type=Path, default=PLANS, help="folder of the plan files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="measure nothing: list rows, candidates, peers, seconds")
    return parser.parse_args()


def chosen_rows(arguments: argparse.Namespace) -> list[BenchRow]:
    listed = [row for table in arguments.tables for split in arguments.splits for row in rows(table, split)]
    wanted = arguments.only
    return [row for row in listed if not wanted or any(text in " ".join(map(str, row.shape)) for text in wanted)]


def main() -> int:
    arguments = parse()
    until = time.time() + arguments.limit_s
    listed = chosen_rows(arguments)
    if arguments.phase == "plan" and not arguments.dry_run:
        from warpplan.profiler.embedded import embedded

        profile = load(arguments.profile) if arguments.profile else embedded(TARGET.name)
        for table in arguments.tables:
            found = plan_all((row for split in SPLITS for row in rows(table, split)), profile)
            save_plans(arguments.plans / f"{table}.json", found)
            print(f"{table}: {len(found)} rows, {sum(len(p.ranked) for p in found)} candidates", flush=True)
        return 0
    known: dict[BenchRow, PlannedRow] = {}
    for table in TABLES:
        if (path := arguments.plans / f"{table}.json").exists():
            known |= load_plans(path)
    plans = [known[row] for row in listed if row in known]
    if len(plans) < len(listed):
        print(
            f"{len(listed) - len(plans)} of {len(listed)} rows have no plan: --phase plan makes them", file=sys.stderr
        )
    if arguments.dry_run:
        describe(plans, arguments)
    elif importlib.util.find_spec("torch") is None:
        print("torch is not installed: the kernels are measured where it finds a GPU", file=sys.stderr)
        return 1
    elif arguments.phase == "search":
        search_all(plans, arguments, until)
    else:
        compare_all(plans, {(row.table, row.shape): plan for row, plan in known.items()}, arguments, until)
    return 0


if __name__ == "__main__":
    sys.exit(main())
