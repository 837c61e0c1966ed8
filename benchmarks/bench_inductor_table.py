"""GPU: the table that ``warpplan export --target inductor`` writes, against Inductor's own max-autotune and cuBLAS.

    python benchmarks/bench_inductor_table.py --out benchmarks/results      # -> inductor_table_h200.json

Each row is one bf16 ``mm``. ``--phase export`` needs torch and no GPU: the feed writes each shape's table, without
ATen's product beside our tile, so that Inductor measures nothing. ``--phase measure`` exports, too, and compiles each
product with fresh caches: ``max_autotune`` with ATen and Triton, whose own readings of all its choices are kept;
``table`` with our table; ``best_tile`` with a table that names the Triton tile that Inductor read as fastest. These and
eager ``cublas`` are checked into fresh, poisoned outputs and read in turn by CUDA graphs, the L2 cache cold.

``chosen_us`` is the time of ``table``; ``over`` holds the other times over it. ``tile_over_best`` is by Inductor's own
clock: the time of its fastest Triton tile over that of our tile. ``seconds`` are those of the first call; our
``export_seconds`` are told apart. A table that was not hit, or whose product is wrong, counts as infinitely slow.
Finished rows are kept: a run that was interrupted, or that ``--limit-s`` ended, goes on where it stopped.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from bench_consumers import mean
from bench_target import CARD, TARGET, require_target
from children import cores, each
from consumer_lists import PRODUCTS
from gpu_jobs import guarded
from results_file import RESULTS, head
from row_store import Row, RowStore, add_arguments, of_shard

NAME = f"inductor_table_{CARD}.json"
TABLES = Path(__file__).parents[1] / "build" / "inductor_tables"
SEED = 41
SHAPES, TRAIN = 40, 20
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384)
"""Of M: multiples of 8 or 1, so that Inductor pads no operand, which would change the product that is looked up."""
LAYOUTS = ("nt", "nt", "nt", "nt", "nn")
"""A product in five has B by rows; weights of models lie by columns."""
TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
"""What of a choice is recorded, in this order."""
PEERS = ("max_autotune", "best_tile", "cublas")
GOALS = {"max_autotune_over_table": 0.98}
LIMIT_S = {"export": 180.0, "measure": 300.0}
"""The longest silence of a child; the first row of a child also starts Inductor's compiling processes."""
SETTINGS = {"seed": SEED, "shapes": SHAPES}
Task = tuple[int, int, int, str]
"""M, N, K and the layout."""


@cache
def tasks() -> tuple[Task, ...]:
    """:data:`SHAPES` different products, the same on every machine; the first :data:`TRAIN` are for training."""
    draw = Random(SEED)
    found: dict[Task, None] = {}
    while len(found) < SHAPES:
        m, n, k = draw.choice(TOKENS), draw.choice(PRODUCTS["N"]), draw.choice(PRODUCTS["K"])
        found[m, n, k, draw.choice(LAYOUTS)] = None
    return tuple(found)


def split(task: Task) -> str:
    return "train" if task in tasks()[:TRAIN] else "heldout"


def label(task: Task) -> str:
    m, n, k, layout = task
    return f"M={m} N={n} K={k} {layout}"


def tile_of(name: str, description: str) -> tuple[int, ...] | None:
    """The values of :data:`TILE` of a choice as Inductor describes it; ``None`` where the template is not ``mm``."""
    if not re.fullmatch(r"triton_mm_\d+", name):
        return None
    found = [re.search(rf"\b{word}=(\d+)", description) for word in TILE]
    return tuple(int(match[1]) for match in found if match) if all(found) else None


def code_has_tile(code: str, tile: Mapping[str, int]) -> bool | None:
    """Whether a kernel of the ``mm`` template in Inductor's output code has ``tile`` and ATen's product is not called;
    ``None`` where neither is seen, so that nothing can be said."""
    if "extern_kernels.mm(" in code:
        return False
    if "tl.constexpr" not in code or "BLOCK_M" not in code:
        return None
    patterns = (rf"\b{name}\s*:\s*tl\.constexpr\s*=\s*{tile[name]}\b" for name in TILE if name.isupper())
    options = (rf"\b{name}\s*=\s*{tile[name]}\b" for name in ("num_warps", "num_stages"))
    return all(re.search(pattern, code) for pattern in (*patterns, *options))


def export_jobs(jobs: Sequence[tuple[Task, str]]) -> Iterator[Row]:
    """Runs in a child: the table of each (product, folder) is written by the feed."""
    return guarded(jobs, lambda job: exported((job[0][0], job[0][1], job[0][2], job[0][3]), Path(job[1])))


def exported(task: Task, folder: Path) -> Row:
    """Our tile for ``task``, as ``warpplan export --target inductor --set aten=false --untested`` writes it."""
    from warpplan.service.feeds import ExportRow, FeedRequest
    from warpplan.service.feeds.inductor import table_feed
    from warpplan.service.feeds.inductor.table_file import FILE_NAME, load_table
    from warpplan.service.workflow.profiles import Profiles, planner_version

    begun = time.monotonic()
    profile = Profiles().of(TARGET.name).profile
    m, n, k, layout = task
    shape = (m, n, k) if layout == "nt" else (m, n, k, f"layout={layout}")
    request = FeedRequest(
        folder, TARGET.name, profile, rows=lambda: [ExportRow(shape, "bfloat16", TARGET.name, profile)],
        untested=True, arguments={"aten": False}, planner=planner_version(),
    )  # fmt: skip
    (folder / FILE_NAME).unlink(missing_ok=True)
    report = table_feed.export(request)
    ((entry,),) = load_table(folder / FILE_NAME).table.values()
    tile = {name: entry[name] for name in TILE}
    seconds = round(time.monotonic() - begun, 2)
    return {"status": "ok", "tile": tile, "predicted_us": report.entries[0].predicted_us, "export_seconds": seconds}


def judged(task: Task, export: Row, result: Row) -> Row:
    """A row of the results file; ``export`` and ``result`` are those of the two phases."""
    base = {
        "kernel": "mm", "label": label(task), "shape": list(task[:3]), "layout": task[3], "dtype": "bfloat16",
        "split": split(task), **{name: value for name, value in export.items() if name not in ("status", "reason")},
        **result,
    }  # fmt: skip
    bad = next((part for part in (export, result) if part["status"] != "ok"), None)
    if bad is not None:
        return {**base, "status": "error", "reason": bad.get("reason", bad["status"])}
    times = result["times"]
    chosen = times["table"]["us"] if result["hit"] and "table" in times else None
    over = {name: round(times[name]["us"] / chosen, 4) if chosen else 0.0 for name in PEERS if name in times}
    return {
        **base, "chosen_us": chosen, "peers": {name: times[name]["us"] for name in PEERS if name in times},
        "over": over, **by_inductors_clock(export["tile"], result["choices"]),
    }  # fmt: skip


def by_inductors_clock(tile: Mapping[str, int], choices: Sequence[Sequence[Any]]) -> Row:
    """Our ``tile`` among ``choices``, the values of :data:`TILE` with a time in µs each, or ``None`` where a choice did
    not run. A tile that Inductor does not list has no time."""
    times = {tuple(choice[:-1]): choice[-1] for choice in choices if choice[-1] is not None}
    ours, best = times.get(tuple(tile[name] for name in TILE)), best_tile(choices)
    return {
        "best_tile": dict(zip(TILE, best, strict=True)) if best else None,
        "triton_best_us": times[best] if best else None, "tile_us": ours,
        "tile_over_best": round(times[best] / ours, 4) if best and ours else None,
    }  # fmt: skip


def best_tile(choices: Sequence[Sequence[Any]]) -> tuple[int, ...] | None:
    """The fastest of ``choices`` by Inductor's clock, of equal ones the first; ``None`` where none ran."""
    ran = [choice for choice in choices if choice[-1] is not None]
    return tuple(min(ran, key=lambda choice: choice[-1])[:-1]) if ran else None


def summarised(rows: Sequence[Row]) -> Row:
    """Geometric means and worst ratios, of all and of each split; seconds of the first calls of both sides."""
    ok = [row for row in rows if row["status"] == "ok"]

    def figures(chosen: Sequence[Row]) -> Row:
        found: Row = {"rows": len(chosen), "hits": sum(bool(row["hit"]) for row in chosen)}
        ratios = {f"{name}_over_table": [r["over"][name] for r in chosen if name in r["over"]] for name in PEERS}
        ratios["tile_over_best"] = [r["tile_over_best"] for r in chosen if r["tile_over_best"] is not None]
        for name, values in ratios.items():
            found[name], found[f"worst_{name}"] = mean(values), min(values, default=None)
        both = [row["seconds"] for row in chosen if {"table", "max_autotune"} <= set(row["seconds"])]
        for name in ("table", "max_autotune"):
            found[f"{name}_seconds"] = round(sum(seconds[name] for seconds in both), 1)
        found["export_seconds"] = round(sum(row["export_seconds"] for row in chosen), 1)
        return found

    whole = figures(ok)
    return {
        **whole, "by_split": {name: figures([r for r in ok if r["split"] == name]) for name in ("train", "heldout")},
        "failed": [[row["label"], row["reason"]] for row in rows if row["status"] != "ok"], "goals": GOALS,
        "met": {goal: whole[goal] is not None and whole[goal] >= least for goal, least in GOALS.items()},
    }  # fmt: skip


def folder_of(task: Task) -> Path:
    return TABLES / label(task).replace(" ", "_")


def export_all(every: Sequence[Task], until: float, workers: int) -> dict[Task, Row]:
    """The result of each, those that there was no time for left out."""
    jobs = [(task, str(folder_of(task))) for task in every]
    results = each("bench_inductor_table:export_jobs", jobs, limit_s=LIMIT_S["export"], workers=workers, until=until)
    return {task: row for task, row in zip(every, results, strict=True) if row["status"] != "skipped"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS, "products")
    parser.add_argument("--phase", choices=("export", "measure"), action="append", help="measure exports, too")
    parser.add_argument("--workers", type=int, default=cores(), help="children that export; products are read in one")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing later; what is done is kept")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.limit_s
    chosen = [t for t in tasks() if not arguments.only or any(word in label(t) for word in arguments.only)]
    if not chosen:
        parser.error(f"no product matches {' '.join(arguments.only)}")
    mine = of_shard(chosen, arguments.shard)
    if arguments.phase == ["export"]:
        for task, row in export_all(mine, until, arguments.workers).items():
            print(f"{split(task)} {label(task)}: {row}", flush=True)
        return
    import torch

    require_target(torch.cuda.get_device_name())
    store = RowStore(arguments.out / NAME, ("kernel", "label"), SETTINGS, fresh=arguments.fresh)
    done = {key[1] for key in store.rows()}
    exports = export_all([task for task in mine if label(task) not in done], until, arguments.workers)

    def keep(task: Task, result: Row) -> None:
        if result["status"] == "skipped":
            return
        row = judged(task, exports[task], result)
        store.add(row)
        print(f"{row['split']} {row['label']}: {row.get('reason') or summary_line(row)}", flush=True)

    for task, export in exports.items():
        if export["status"] != "ok":
            keep(task, {"status": "error", "reason": "nothing was exported"})
    measure([task for task, export in exports.items() if export["status"] == "ok"], until, keep)
    rows = list(store.rows().values())
    summary = summarised(rows)
    heading = {**head("inductor_table", torch.cuda.get_device_name()), "summary": summary}
    store.write(heading, rows, complete=len(rows) >= SHAPES)
    print(summary)


def measure(left: Sequence[Task], until: float, keep: Any) -> None:
    jobs = [(*task, str(folder_of(task))) for task in left]
    each(
        "inductor_contenders:measure_jobs", jobs, limit_s=LIMIT_S["measure"], until=until,
        on_result=lambda job, result: keep(job[:4], result),
    )  # fmt: skip


def summary_line(row: Row) -> str:
    shown = ("over", "tile_over_best", "seconds", "not_timed")
    return f"{row['chosen_us']} us, hit {row['hit']}, { {name: row[name] for name in shown} }"


if __name__ == "__main__":
    main()
