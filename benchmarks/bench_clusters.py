"""Clusters of two CTAs beside the same tile in CTAs of their own: writes ``clusters_h200.json`` (on an
H200; ``WARPPLAN_BENCH_DEVICE`` names another). Needs Triton 3.9.

    python benchmarks/bench_clusters.py --plan         # no GPU: the first candidates of the training shapes
    python benchmarks/bench_clusters.py --limit-s 500  # on the GPU; an interrupted run goes on where it stopped

A *twin* of a candidate is the cluster whose CTAs have its tile, with the deepest ring that fits. The first
:data:`FIRST` candidates of a shape that have a twin, and the twins, are read in turn with the shape's first peer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_target import CARD, TARGET
from children import cores, each
from kernel_cases.bench_rows import BenchRow, rows
from kernel_estimates import check_jobs, label, readings
from kernel_plans import PLANS, PlannedRow, compiled, load_plans, plan_all, save_plans
from kernel_timing import as_json
from results_file import RESULTS, head
from row_store import RowStore

from warpplan.kernels.gemm.candidates import CLUSTER
from warpplan.kernels.gemm.space import MAX_DEPTH, GemmConfig, config_of, tuning, violations
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.embedded import embedded

TABLES = ("gemm_layouts", "gemm_fp8")
FIRST = 6
LIMIT_S = 90.0
"""The longest silence of a child before it is killed: a wrong barrier hangs."""


def twin(config: GemmConfig, dtype: str) -> GemmConfig | None:
    """``config``'s tile in each CTA of a cluster; ``None`` where no such cluster is valid."""
    like = replace(config, cluster=CLUSTER, block_m=config.block_m * CLUSTER, staging="own")
    for split in (config.epilogue_split, 2, 4):
        for depth in range(MAX_DEPTH, 1, -1):
            found = replace(like, epilogue_split=split, depth=depth)
            if not violations(found, dtype, TARGET):
                return found
    return None


def pairs(plan: PlannedRow) -> list[tuple[TuningConfig, TuningConfig]]:
    """The first candidates that have a twin, with it; each block once, in the first of its tile orders."""
    found: dict[GemmConfig, tuple[TuningConfig, TuningConfig]] = {}
    for config, _ in plan.ranked:
        plain = config_of(config)
        other = twin(plain, plan.row.dtype)
        if other is not None:
            found.setdefault(replace(other, group_m=1), (config, tuning(other)))
    return list(found.values())[:FIRST]


def measured(
    plan: PlannedRow, chosen: Sequence[tuple[TuningConfig, TuningConfig]], result: dict[str, Any]
) -> dict[str, Any]:
    times = result["times"]
    return {
        "table": plan.row.table,
        "shape": list(plan.row.shape),
        "dtype": plan.row.dtype,
        "split": plan.row.split,
        "peer": result["peer"],
        "peer_us": result["peer_us"],
        "plain": [config.as_dict() for config, _ in chosen],
        "cluster": [config.as_dict() for _, config in chosen],
        "plain_us": times[: len(chosen)],
        "cluster_us": times[len(chosen) :],
    }


def gain(row: dict[str, Any]) -> float | None:
    """The best plain candidate's time over the best cluster's."""
    plain, cluster = ([t[0] for t in row[name] if isinstance(t, list)] for name in ("plain_us", "cluster_us"))
    return min(plain) / min(cluster) if plain and cluster else None


def run(plans: Sequence[PlannedRow], store: RowStore, until: float) -> None:
    done = set(store.rows())
    left = {name: (p, found) for p in plans if (name := " ".join(p.row.key),) not in done and (found := pairs(p))}
    every = [(p, [c for pair in found for c in pair]) for p, found in left.values()]
    jobs = check_jobs(every, peers=False)
    listed = [{**job, "until": until} for job in jobs.values()]
    checks = each("kernel_timing:check", listed, limit_s=LIMIT_S, workers=cores())
    failures = {key: r["reason"] for key, r in zip(jobs, checks, strict=True) if "reason" in r}
    for key, reason in failures.items():
        print(f"failed: {key[:300]}: {reason}", flush=True)
    for name, (plan, found) in left.items():
        sound = [pair for pair in found if not any(compiled(plan.row, c)[0] in failures for c in pair)]
        configs = [c.as_dict() for c, _ in sound] + [c.as_dict() for _, c in sound]
        job = {"row": as_json(plan.row), "key": name, "until": until, **readings(plan.row, "compare")}
        (result,) = each("kernel_timing:search", [{**job, "configs": configs}], limit_s=LIMIT_S)
        if "times" not in result:
            print(f"{label(plan.row)}: {result.get('status')}: {result.get('reason')}", flush=True)
            continue
        row = {"row": name, **measured(plan, sound, result), "device": result["device"]}
        row["unchecked"] = [failures[k] for pair in found for c in pair if (k := compiled(plan.row, c)[0]) in failures]
        store.add(row)
        print(f"{label(plan.row)}: best plain over best cluster {gain(row)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="rank the shapes' candidates, without a GPU")
    parser.add_argument("--split", default="train", choices=("train", "heldout"))
    parser.add_argument("--limit-s", type=float, default=500.0, help="seconds after which no row begins")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args()
    path = PLANS / f"clusters_{options.split}.json"
    asked: list[BenchRow] = [row for table in TABLES for row in rows(table, options.split)]
    if options.plan:
        save_plans(path, plan_all(asked, embedded(TARGET.name)))
        return
    if not path.exists():
        raise SystemExit(f"{path} is not there: run with --plan first")
    store = RowStore(options.out / f"clusters_{CARD}.json", ("row",), {"bench": "clusters", "split": options.split})
    plans = load_plans(path)
    run([plans[row] for row in asked if row in plans], store, time.time() + options.limit_s)
    found = store.rows()
    devices = {row["device"] for row in found.values()}
    values = list(found.values())
    store.write(head("clusters", ", ".join(sorted(devices))), values, complete=len(values) == len(asked))


if __name__ == "__main__":
    main()
