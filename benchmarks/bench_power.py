"""GPU: candidates of shapes that are limited by power, each run until clock and power have settled.

    python benchmarks/bench_power.py --plan           # no GPU: which candidates of which rows
    python benchmarks/bench_power.py --limit-s 500    # -> power_<card>.json; goes on where it stopped
    CUDA_VISIBLE_DEVICES=0 python benchmarks/bench_power.py --shard 1/2   # one of two processes, a GPU each

A card that draws its power limit lowers its clock, over tenths of a second: readings of some milliseconds answer to
what ran before. Here each candidate runs alone for :data:`WARM_MS`, then is read for :data:`READ_MS`: mean, median and
10th and 90th percentiles of its time, the energy that the card's counter took meanwhile, power and SM clock.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench_target import CARD, TARGET, require_target
from children import cores, each
from kernel_cases.bench_rows import SPLITS, BenchRow, rows
from kernel_estimates import check_jobs, label, power_limited
from kernel_plans import PLANS, PlannedRow, compiled, load_plans, plan_all, save_plans
from kernel_timing import Result, as_json, config_of, row_of
from many_shapes import read_list
from results_file import RESULTS, head
from row_store import RowStore, of_shard, shard

from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.embedded import embedded

TABLES = ("gemm_layouts", "gemm_bias_act", "grouped_gemm", "gemm_fp8", "grouped_gemm_fp8")
STRUCTURES, ORDERS = 6, 3
"""Of a row: tiles and schemes, the best predicted ones; and tile orders of each."""
STRUCTURE = ("BLOCK_M", "BLOCK_N", "SCHEME", "SWAP", "SPLIT_K", "SPLIT_TAIL")
SHORTEST_US = 100.0
"""Of the prediction. A graph repeats what is shorter than its replay, so power settles for any; the shortest are left
out because they wait for memory and launches as well."""
MANY_EVERY = 8
"""One in this number of the training shapes of ``bench_gemm_many.py`` that power limits is read."""
WARM_MS, READ_MS = 500.0, 300.0
SAMPLE_S = 0.02
LIMIT_S = 120.0


def asked() -> list[BenchRow]:
    """The rows that power limits: of the list of many shapes, then of the kernels' tables, training rows first."""
    many = [shape.row for shape in read_list() if shape.split == "train" and power_limited(shape.row)]
    tables = [row for split in SPLITS for table in TABLES for row in rows(table, split) if power_limited(row)]
    return [*many[::MANY_EVERY], *tables]


def chosen(plan: PlannedRow) -> list[TuningConfig]:
    """Of the best structures, in the ranking's order, the best depth and staging at each of some tile orders."""
    found: dict[tuple[Any, ...], dict[int, TuningConfig]] = {}
    for config, _ in plan.ranked:
        values = dict(config.kwargs)
        structure = tuple(values.get(name) for name in STRUCTURE)
        if structure in found or len(found) < STRUCTURES:
            found.setdefault(structure, {}).setdefault(int(values["GROUP_M"]), config)
    return [config for configs in found.values() for config in list(configs.values())[:ORDERS]]


def not_read(plans: Sequence[PlannedRow], store: RowStore) -> list[PlannedRow]:
    """The plans of rows that an interrupted run has not read."""
    read = {row["row"] for row in store.rows().values()}
    return [plan for plan in plans if " ".join(plan.row.key) not in read]


def sustained_jobs(jobs: Sequence[dict[str, Any]]) -> Iterator[Result]:
    """Runs in a child: ``{"us", "low_us", "high_us", "joules", "watts", "mhz"}`` of every configuration of each job,
    and of its row's first peer."""
    import torch

    for job in jobs:
        if time.time() > job["until"]:
            yield {"status": "skipped", "reason": "out of time"}
            continue
        yield _sustained_row(job) | {"device": torch.cuda.get_device_name()}


def _sustained_row(job: dict[str, Any]) -> Result:
    import gc

    import torch
    from graph_timing import capture
    from kernel_timing import GRAPH_US, prepare_row

    prepared = prepare_row(row_of(job["row"]))
    readings: list[Any] = []
    for values in job["configs"]:
        try:
            launches = [prepared.case.ours(prepared.row, config_of(values), o) for o in prepared.sets]
            readings.append(_settled(*capture(launches, prepared.estimate_us, GRAPH_US)))
            del launches
        except Exception as error:
            torch.cuda.synchronize()  # raises where the GPU is lost
            readings.append(f"{type(error).__name__}: {error}".splitlines()[0][:200])
        gc.collect()
    return {"peer": prepared.peer, "peer_reading": _settled(*prepared.graph), "readings": readings}


def _settled(graph: Any, launches: int) -> dict[str, float]:
    """One reading, of a card that has run nothing else for :data:`WARM_MS`."""
    import pynvml
    import torch
    from graph_timing import replay_us

    pynvml.nvmlInit()
    # By its name: NVML counts all cards, torch those that it may see.
    card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
    replay_ms = replay_us(graph, launches, 3)[-1] * launches / 1e3
    replay_us(graph, launches, max(1, round(WARM_MS / replay_ms)))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(max(5, round(READ_MS / replay_ms)) + 1)]
    before, watts, mhz = pynvml.nvmlDeviceGetTotalEnergyConsumption(card), [], []
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    while not events[-1].query():
        watts.append(pynvml.nvmlDeviceGetPowerUsage(card) / 1e3)
        mhz.append(pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM))
        time.sleep(SAMPLE_S)
    joules = (pynvml.nvmlDeviceGetTotalEnergyConsumption(card) - before) / 1e3
    us = sorted(a.elapsed_time(b) * 1e3 / launches for a, b in itertools.pairwise(events))
    count = len(us)
    found = {
        "us": statistics.fmean(us), "median_us": us[count // 2], "low_us": us[count // 10],
        "high_us": us[-1 - count // 10], "joules": joules / (count * launches), "watts": statistics.fmean(watts),
        "mhz": statistics.fmean(mhz),
    }  # fmt: skip
    return {name: round(value, 6) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="choose the candidates, without a GPU")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose label has one of these texts in it")
    parser.add_argument("--limit-s", type=float, default=500.0, help="seconds after which no row begins")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="every N-th of the rows, from I on")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args()
    path = PLANS / f"power_{CARD}.json"
    if options.plan:
        plans = [p for p in plan_all(asked(), embedded(TARGET.name)) if p.ranked and p.ranked[0][1] > SHORTEST_US]
        save_plans(path, plans)
        for plan in plans:
            print(label(plan.row), len(chosen(plan)))
        return
    until = time.time() + options.limit_s
    store = RowStore(options.out / f"power_{CARD}.json", ("row",), {"warm_ms": WARM_MS, "read_ms": READ_MS})
    plans = not_read(of_shard(list(load_plans(path).values()), options.shard), store)
    plans = [p for p in plans if not options.only or any(text in label(p.row) for text in options.only)]
    every = [(p, chosen(p)) for p in plans]
    checks = check_jobs(every, peers=False)
    listed = [{**job, "until": until} for job in checks.values()]
    results = each("kernel_timing:check", listed, limit_s=LIMIT_S, workers=max(1, cores() - 1))
    failed = {key for key, result in zip(checks, results, strict=True) if "reason" in result}
    for plan, configs in every:
        sound = [c for c in configs if compiled(plan.row, c)[0] not in failed]
        job = {"row": as_json(plan.row), "configs": [c.as_dict() for c in sound], "until": until}
        (result,) = each("bench_power:sustained_jobs", [job], limit_s=LIMIT_S)
        if "readings" not in result:
            print(f"{label(plan.row)}: {result.get('status')}: {result.get('reason')}", flush=True)
            continue
        require_target(result["device"])
        names = {"row": " ".join(plan.row.key), "table": plan.row.table, "shape": list(plan.row.shape)}
        store.add({**names, "dtype": plan.row.dtype, "split": plan.row.split, **result, "configs": job["configs"]})
        us = [r["us"] for r in result["readings"] if isinstance(r, dict)]
        print(f"{label(plan.row)}: {result['peer_reading']['us']} {result['peer']}, ours {us}", flush=True)
    values = list(store.rows().values())
    store.write(head("power", TARGET.name), values, complete=len(values) == len(load_plans(path)))


if __name__ == "__main__":
    main()
