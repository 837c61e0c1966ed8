"""GEMM over the 1,200 shapes of ``gemm_many_shapes.json``: chosen plan, the ranking's first eight and cuBLAS, in turn.

    python benchmarks/bench_gemm_many.py --dry-run         # no GPU: rows left, kernels to compile, seconds
    python benchmarks/bench_gemm_many.py --limit-s 280     # -> gemm_many_<card>.json; the next call goes on
    CUDA_VISIBLE_DEVICES=0 python benchmarks/bench_gemm_many.py --shard 1/2   # one of two processes, a GPU each
    python benchmarks/bench_gemm_many.py --tiles 20 --out F   # training rows: the best of each of the first 20 tiles

Rows are taken in the order of the list, a batch at a time: what a batch needs is compiled, run and checked against fp32
in child processes on all cores, then its rows are timed one after the other in one process (``kernel_timing.compare``:
CUDA graphs, operands that L2 does not hold, a warm card, poisoned results). Every finished row is kept; rows of another
device, profile, list or version of torch, Triton or CUDA are not mixed with them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_kernels import COMPARE_LIMIT_S, run_checks
from bench_target import CARD, TARGET, require_target
from children import cores, each
from kernel_estimates import COMPILE_S, FINALISTS, READINGS, START_S, Job, check_jobs, label, readings, row_seconds
from kernel_plans import PlannedRow, compiled, planned
from kernel_tables import gathered, spread
from kernel_timing import as_json
from many_shapes import LIST, DrawnShape, read_list
from results_file import RESULTS, head
from row_store import RowStore, of_shard, shard
from time_statistics import least_us

from warpplan.planner.errors import WarpplanError
from warpplan.planner.values.codec import key
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.embedded import embedded
from warpplan.profiler.profile_files import load

BATCH = 120
"""Rows between two compilations, which take minutes each at first."""
TILES_BATCH = 40
"""The same, of rows that share fewer kernels."""
OUT = RESULTS / f"gemm_many_{CARD}.json"
KEY = ("product", "sizes_text")
TILE = ("BLOCK_M", "BLOCK_N", "SWAP", "SPLIT_K", "STREAM_K", "CTAS_PER_SM")
"""What tells one kind of tile from another, beside whether it has a producer of its own."""
FARTHEST = 2.0
"""Candidates predicted to take more than this many times the first one's time are left out. Chosen by hand."""
VERSIONS = ("torch", "triton", "cuda", "warpplan")

Settings = dict[str, Any]
Plans = dict[DrawnShape, PlannedRow]


def plan(shapes: Sequence[DrawnShape], profile: Profile, tiles: int = 0) -> tuple[Plans, dict[DrawnShape, str]]:
    """The candidates to time of every shape that the kernel takes, and of the others why not; with ``tiles``, of the
    training shapes."""
    plans: Plans = {}
    refused: dict[DrawnShape, str] = {}
    for shape in shapes:
        if tiles and shape.split != "train":
            continue
        try:
            found = planned(shape.row, profile)
        except WarpplanError as error:
            refused[shape] = str(error)
            continue
        ranked = best_of_tiles(found, tiles) if tiles else found.ranked[:FINALISTS]
        plans[shape] = replace(found, ranked=ranked)
    return plans, refused


def best_of_tiles(found: PlannedRow, tiles: int) -> tuple[tuple[TuningConfig, float], ...]:
    """The first candidate of each of the first ``tiles`` kinds of tile: what a fit cannot learn of a ranking's first
    few, which are alike. None is predicted to take more than :data:`FARTHEST` times the first."""
    first: dict[tuple[object, ...], tuple[TuningConfig, float]] = {}
    for config, us in found.ranked:
        values = dict(config.kwargs)
        kind = (values["SCHEME"] == "pipelined", *(values.get(name) for name in TILE))
        if us <= FARTHEST * found.ranked[0][1]:
            first.setdefault(kind, (config, us))
    return tuple(first.values())[:tiles]


def changed(plans: Plans, earlier: Sequence[dict[str, Any]]) -> Plans:
    """The plans of rows that were measured earlier with another first choice."""
    known = {tuple(row[name] for name in KEY): row.get("config") for row in earlier}
    return {
        shape: plan
        for shape, plan in plans.items()
        if known.get(key_of(shape)) not in (None, plan.ranked[0][0].as_dict())
    }


def settings_of(device: str, profile: Profile, versions: dict[str, str]) -> Settings:
    """What rows that are compared with one another have in common."""
    return {
        "device": device,
        "profile": key(profile),
        "list": hashlib.sha256(LIST.read_bytes()).hexdigest(),
        "versions": {name: versions[name] for name in VERSIONS if name in versions},
        "readings": [READINGS["many", limited] for limited in (False, True)],
    }


def resumed(out: Path, settings: Settings, fresh: bool) -> RowStore:
    """The store of finished rows, with those of a results file that an earlier call wrote. Raises :class:`SystemExit`
    where they were measured with other settings."""
    earlier: dict[str, Any] = json.loads(out.read_text()) if out.exists() and not fresh else {"rows": []}
    if earlier["rows"] and earlier["settings"] != settings:
        raise SystemExit(f"{out} was measured with {earlier['settings']}, not {settings}: use --fresh or another --out")
    store = RowStore(out, KEY, settings, fresh=fresh)
    known = store.rows()
    for row in earlier["rows"]:
        if tuple(row[name] for name in KEY) not in known:
            store.add(spread(row, earlier["configs"]))
    return store


def key_of(shape: DrawnShape) -> tuple[str, str]:
    """The values of :data:`KEY`."""
    return shape.product, " ".join(map(str, shape.sizes))


def compare_job(shape: DrawnShape, plan: PlannedRow, failures: dict[str, str], until: float) -> Job:
    """The first candidates that compiled and computed what they should, "rank 1" the first of the ranking."""
    ours = {
        f"rank {rank}": {"config": config.as_dict()}
        for rank, (config, _) in enumerate(plan.ranked, 1)
        if compiled(plan.row, config)[0] not in failures
    }
    shared = {"row": as_json(plan.row), "key": key_of(shape), "until": until}
    return {**shared, **readings(plan.row, "many"), "ours": ours, "check": next(iter(ours), None)}


def names_of(shape: DrawnShape) -> dict[str, Any]:
    """What tells a row of the results file apart."""
    of_list = {name: getattr(shape, name) for name in ("split", "kind", "model", "product", "tokens")}
    row = shape.row
    return {"kernel": "gemm", "sizes_text": key_of(shape)[1], "shape": list(row.shape), "dtype": row.dtype, **of_list}


def row_of_result(shape: DrawnShape, plan: PlannedRow, job: Job, result: dict[str, Any]) -> dict[str, Any]:
    """A row of the results file; times are medians in µs, ``ranked_us`` those of the ranking's first candidates in its
    order, ``None`` where one did not run. The first that ran is the chosen one; ``best_of_8_us`` is not the least of
    them, which noise makes too short, but :func:`~time_statistics.least_us`."""
    times = result["times"]
    names = [f"rank {rank}" for rank in range(1, len(plan.ranked) + 1)]
    ranked_us = [times[name]["us"] if name in times else None for name in names]
    ran = [index for index, us in enumerate(ranked_us) if us is not None]
    chosen, best = ran[0], min(ran, key=lambda index: ranked_us[index])
    predicted_us = [round(us, 3) for _, us in plan.ranked]
    samples = [result["samples"][names[index]] for index in ran]
    return {
        **names_of(shape), "configs": [config.as_dict() for config, _ in plan.ranked],
        "chosen_us": ranked_us[chosen], "predicted_us": predicted_us[chosen],
        "config": job["ours"][names[chosen]]["config"], "best_of_8_us": round(least_us(samples), 3),
        "best_config": job["ours"][names[best]]["config"], "ranked_us": ranked_us,
        "predicted_ranked_us": predicted_us,
        "peers": {name: sample["us"] for name, sample in times.items() if name not in job["ours"]},
        "spread": {name: [sample["low_us"], sample["high_us"]] for name, sample in times.items()},
        "relative_error": result["error"], "failed": result["failed"],
    }  # fmt: skip


def run_batch(plans: Plans, store: RowStore, known: dict[str, str | None], workers: int, until: float) -> None:
    """Compile and check what the batch needs beyond ``known`` (reasons of failures by key), then time its rows."""
    checks = check_jobs([(p, [c for c, _ in p.ranked]) for p in plans.values()], peers=False)
    new = {name: job for name, job in checks.items() if name not in known}
    if new:
        failures = run_checks(new, workers, until)
        known |= {name: failures.get(name) for name in new}
    failed = {name: reason for name, reason in known.items() if reason is not None}
    by_key = {key_of(shape): shape for shape in plans}
    jobs = [compare_job(shape, plan, failed, until) for shape, plan in plans.items()]

    def keep(job: Job, result: dict[str, Any]) -> None:
        shape = by_key[tuple(job["key"])]
        if "times" not in result:
            print(f"{label(shape.row)}: {result['status']}: {result['reason']}", flush=True)
            if result["status"] == "wrong":  # a result of the measurement; what crashed or was skipped is tried again
                store.add({**names_of(shape), "wrong": result["reason"]})
            return
        row = row_of_result(shape, plans[shape], job, result)
        store.add(row)
        ratios = ", ".join(f"{name} {us / row['chosen_us']:.3f}" for name, us in row["peers"].items())
        best = row["best_of_8_us"] / row["chosen_us"]
        print(f"{label(shape.row)}: {row['chosen_us']:.2f} us; {ratios}, best of 8 {best:.3f}", flush=True)

    each("kernel_timing:compare", [job for job in jobs if job["check"]], limit_s=COMPARE_LIMIT_S, on_result=keep)


def write_rows(
    store: RowStore, shapes: Sequence[DrawnShape], refused: dict[DrawnShape, str], settings: Settings
) -> None:
    """The results file of what is there so far, in the order of the list."""
    found = store.rows()
    if not found:  # Another process has had the last row, and written them all.
        return
    rows, configs = gathered([{"configs": [], **found[key_of(shape)]} for shape in shapes if key_of(shape) in found])
    begin = {
        **head("gemm_many", settings["device"]), "settings": settings, "configs": configs,
        "refused": [{"shape": list(shape.row.shape), "reason": reason} for shape, reason in refused.items()],
    }  # fmt: skip
    store.write(begin, rows, complete=len(rows) + len(refused) == len(shapes))


def describe_left(plans: Plans, refused: dict[DrawnShape, str], workers: int) -> None:
    """What is left to do, and how many rows fit calls of five minutes that each begin on a machine without a cache."""
    print(f"{len(plans)} rows left, {len(refused)} that the kernel refuses")
    ordered = list(plans.values())
    for count in sorted({*(n for n in (60, 120, 180, 240, 480) if n < len(ordered)), len(ordered)}):
        some = ordered[:count]
        checks = check_jobs([(p, [c for c, _ in p.ranked]) for p in some], peers=False)
        compiling = len(checks) * COMPILE_S / workers + START_S
        timing = sum(row_seconds(p, len(p.ranked), "many") for p in some) + START_S
        print(
            f"first {count}: {len(checks)} kernels, {compiling:.0f} s to compile with {workers} cores, {timing:.0f} s"
        )


def parser_of(description: str | None, out: Path) -> argparse.ArgumentParser:
    """The options of a benchmark whose rows of one shape each are kept in ``out`` as they are finished."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=max(1, cores() - 1))
    parser.add_argument("--limit-s", type=float, default=3600.0, help="begin no row later; what is done is kept")
    parser.add_argument("--fresh", action="store_true", help="forget the rows that are there")
    parser.add_argument("--profile", type=Path, help="plan with this profile; by default with the one that ships")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--dry-run", action="store_true", help="measure nothing: list what is left")
    return parser


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, OUT)
    parser.add_argument("--tiles", type=int, default=0, metavar="N", help="training rows: the best of each of N tiles")
    parser.add_argument("--changed", type=Path, metavar="FILE", help="only rows of FILE whose first choice has changed")
    parser.add_argument(
        "--shard",
        type=shard,
        default=(1, 1),
        metavar="I/N",
        help="every N-th row, from I on: for processes with own GPUs",
    )
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    until = time.time() + arguments.limit_s
    shapes = read_list()
    profile = load(arguments.profile) if arguments.profile else embedded(TARGET.name)
    plans, refused = plan(shapes, profile, arguments.tiles)
    if arguments.changed:
        plans = changed(plans, json.loads(arguments.changed.read_text())["rows"])
    if arguments.dry_run:
        describe_left(plans, refused, arguments.workers)
        return 0
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: the kernels are measured where it finds a GPU", file=sys.stderr)
        return 1
    import torch

    name = torch.cuda.get_device_name()
    require_target(name)
    settings = settings_of(name, profile, head("gemm_many", name)["versions"])
    if arguments.tiles:
        settings["tiles"] = arguments.tiles
    store = resumed(arguments.out, settings, arguments.fresh)
    known: dict[str, str | None] = {}
    finished = store.rows()
    left = [shape for shape in of_shard(list(plans), arguments.shard) if key_of(shape) not in finished]
    batch = TILES_BATCH if arguments.tiles else BATCH
    for start in range(0, len(left), batch):
        if time.time() > until:
            break
        run_batch({s: plans[s] for s in left[start : start + batch]}, store, known, arguments.workers, until)
        write_rows(store, shapes, refused, settings)
    measured = len(json.loads(arguments.out.read_text())["rows"]) if arguments.out.exists() else 0
    print(f"{measured} of {len(plans)} rows measured", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
