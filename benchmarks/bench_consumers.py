"""GPU: the entries that are exported for consumers' kernels, against timing each kernel's whole list.

    python benchmarks/bench_consumers.py --out benchmarks/results      # -> consumers_h200.json

``--phase rank`` needs no GPU: each list is ranked for each shape as ``warpplan tune`` ranks it, nothing measured.
``--phase compile`` fills Triton's cache in parallel children. ``--phase measure`` launches every configuration of a
list in one process: outputs are poisoned before and compared with torch after, times are read in turn by CUDA graphs,
the L2 cache cold, on a card that has been kept busy. Without ``--phase`` these three run. ``--phase judge`` needs no
GPU: it judges the times that are recorded by the rankings of today (``ranked_on`` says when). ``chosen_us`` is the
configuration that is ranked first, ``best_of_4_us`` the best of the first four. A configuration that fails or computes
something else has no time; a chosen one without a time counts as infinitely slow. Finished rows are kept: a run that
was interrupted, or that ``--limit-s`` ended, goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_compiler import geometric_mean
from bench_corpus import COLD_BYTES, MOST_SETS, ROUNDS, SHORT_ROUNDS, SHORT_US, estimate_us
from bench_target import CARD
from children import cores, each
from consumer_lists import consumers
from consumer_ranking import labelled
from gpu_jobs import guarded
from results_file import RESULTS, head, now, write
from row_store import Row, RowStore, add_arguments, of_shard

NAME, RANKED = f"consumers_{CARD}.json", f"consumers_ranked_{CARD}.json"
FIRST = 4
WARM_MS = 300.0
"""A cool card that is limited by power is faster than it stays."""
SETTLE_MS, READ_MS = 3.0, 6.0
LIMIT_S = {"rank": 300.0, "compile": 120.0, "measure": 240.0}
"""The longest silence of a child; the largest list takes a minute to rank on one of two shared cores."""
GOALS = {"best_over_chosen": 0.97, "worst": 0.90, "best_over_first_four": 0.99}
SETTINGS = {"first": FIRST, "settle_ms": SETTLE_MS, "read_ms": READ_MS}
MEASURED = ("status", "reason", "times_us", "failed", "seconds")
"""What of a row no ranking changes."""
Task = tuple[str, dict[str, int]]


def tasks(words: Sequence[str]) -> list[Task]:
    """(consumer, shape) of those whose name contains one of ``words``; all where there is none."""
    return [
        (consumer.name, shape)
        for consumer in consumers().values()
        if not words or any(word in consumer.name for word in words)
        for shape in consumer.shapes
    ]


def key(task: Task) -> tuple[Any, ...]:
    return task[0], tuple(labelled(task[1]))


def kept(store: RowStore) -> dict[tuple[Any, ...], Row]:
    return {(row["kernel"], tuple(row["shape"])): row for row in store.rows().values()}


def compile_jobs(jobs: Sequence[tuple[str, dict[str, int], int]]) -> Iterator[Row]:
    """Runs in a child: the compiled kernel of each (consumer, shape, position) is left in Triton's cache."""
    return guarded(jobs, lambda job: compiled(*job))


def compiled(name: str, shape: Mapping[str, int], position: int) -> Row:
    from corpus_launch import Made, fixed

    entry = consumers()[name].entry
    problem = entry.problem(shape)
    fixed(entry, problem, entry.configs[position], Made(problem, 0).views, warmup=True)()
    return {"status": "ok"}


def measure_jobs(jobs: Sequence[Task]) -> Iterator[Row]:
    return guarded(jobs, lambda job: measured(*job))


def measured(name: str, shape: Mapping[str, int]) -> Row:
    """The time of every configuration of the list, or why it has none."""
    import torch
    from corpus_launch import Made, errors, fixed
    from graph_timing import capture, interleaved, run_for, summary
    from tl_launch import wait

    entry = consumers()[name].entry
    problem = entry.problem(shape)
    count = max(1, min(MOST_SETS, -(-COLD_BYTES // problem.bytes)))
    sets = [Made(problem, seed) for seed in range(count)]
    wanted = problem.reference({name: view.clone() for name, view in sets[0].views.items()})
    estimate = estimate_us(problem)
    graphs: dict[str, Any] = {}
    failed: dict[str, str] = {}
    owned = []  # launches own what their graph reads
    for position, config in enumerate(entry.configs):
        try:
            launches = [fixed(entry, problem, config, made.views) for made in sets]
            sets[0].reset()
            launches[0]()
            wait()
            error = errors(sets[0].outputs(), wanted)
            if not error <= entry.tolerance or sets[0].overwritten():
                failed[str(position)] = f"wrong: error {error:.2e}, overwritten {sets[0].overwritten()}"
                continue
            graphs[str(position)] = capture(launches, estimate)
            owned.append(launches)
        except Exception as error:
            torch.cuda.synchronize()  # raises where the GPU is lost
            failed[str(position)] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    del wanted
    if not graphs:
        return {"status": "error", "reason": "no configuration ran", "failed": failed}
    run_for(*next(iter(graphs.values())), WARM_MS)
    rounds = ROUNDS if estimate > SHORT_US else SHORT_ROUNDS
    begun = time.monotonic()
    readings = interleaved(graphs, rounds, SETTLE_MS, READ_MS)
    times = {position: round(summary(sample)["us"], 3) for position, sample in readings.items()}
    result = {"status": "ok", "times_us": times, "failed": failed, "seconds": round(time.monotonic() - begun, 1)}
    del graphs, owned, sets
    torch.cuda.empty_cache()
    return result


def judged(task: Task, ranking: Row, result: Row) -> Row:
    """A row of the results file: what was ranked first, beside the best of the whole list."""
    name, shape = task
    consumer = consumers()[name]
    base = {
        "kernel": name, "shape": labelled(shape), "dtype": consumer.entry.dtypes[0], "style": consumer.entry.style,
        "split": consumer.split(shape), "listed": len(consumer.entry.configs), **result,
    }  # fmt: skip
    if result["status"] != "ok" or ranking["status"] != "ok":
        return {**base, "status": "error", "reason": result.get("reason") or ranking.get("reason")}
    times = {int(position): us for position, us in result["times_us"].items()}
    order = ranking["ranked"]
    best = min(times, key=lambda position: times[position])
    first = [times[position] for position in order[:FIRST] if position in times]
    chosen = times.get(order[0]) if order else None
    return {
        **base, "chosen_us": chosen, "best_us": times[best], "best_of_4_us": min(first, default=None),
        "predicted_us": ranking["predicted_us"][0] if order else None, "ranked": order,
        "best_over_chosen": round(times[best] / chosen, 4) if chosen else 0.0,
        "best_over_first_four": round(times[best] / min(first), 4) if first else 0.0,
        "config": str(consumer.entry.configs[order[0]]) if order else None,
        "best_config": str(consumer.entry.configs[best]),
    }  # fmt: skip


def summarised(rows: Sequence[Row]) -> Row:
    """The goals' figures, of all and of each split and kernel."""
    ok = [r for r in rows if r["status"] == "ok"]

    def figures(chosen: Sequence[Row]) -> Row:
        ratios = [r["best_over_chosen"] for r in chosen]
        return {
            "rows": len(chosen), "best_over_chosen": mean(ratios), "worst": min(ratios, default=None),
            "best_over_first_four": mean([r["best_over_first_four"] for r in chosen]),
        }  # fmt: skip

    names, splits = sorted({r["kernel"] for r in ok}), sorted({r["split"] for r in ok})
    whole = figures(ok)
    return {
        **whole, "by_split": {split: figures([r for r in ok if r["split"] == split]) for split in splits},
        "by_kernel": {name: figures([r for r in ok if r["kernel"] == name]) for name in names},
        "failed": [[r["kernel"], r["shape"], r["reason"]] for r in rows if r["status"] != "ok"], "goals": GOALS,
        "met": {goal: whole[goal] is not None and whole[goal] >= least for goal, least in GOALS.items()},
    }  # fmt: skip


def mean(ratios: Sequence[float]) -> float | None:
    """Geometric; 0 where a choice could not run."""
    return None if not ratios else round(geometric_mean(ratios), 4) if min(ratios) > 0 else 0.0


def rank(every: Sequence[Task], out: Path, until: float, *, workers: int, fresh: bool) -> RowStore:
    store = RowStore(out / RANKED, ("kernel", "label"), {"phase": "rank"}, fresh=fresh)
    found = kept(store)

    def known(task: Task) -> bool:
        row = found.get(key(task))
        return row is not None and row.get("source") == consumers()[task[0]].entry.jit.cache_key

    def keep(task: Task, result: Row) -> None:
        if result["status"] != "skipped":
            name, shape = task
            store.add({"kernel": name, "label": " ".join(labelled(shape)), "shape": labelled(shape), **result})
            print(f"ranked {name} {labelled(shape)}: {result.get('ranked', result.get('reason'))}", flush=True)

    left = [task for task in every if not known(task)]
    each("consumer_ranking:rank_jobs", left, limit_s=LIMIT_S["rank"], workers=workers, until=until, on_result=keep)
    return store


def judge_recorded(path: Path, rankings: Mapping[tuple[Any, ...], Row], date: str) -> Row:
    """The results file ``path`` with its rows judged by ``rankings``; one that is not among them stays as it is."""
    result: Row = json.loads(path.read_text())
    rows = []
    for row in result["rows"]:
        ranking = rankings.get((row["kernel"], tuple(row["shape"])))
        if ranking is not None:
            shape = {name: int(size) for name, size in (word.split("=") for word in row["shape"])}
            measured = {name: row[name] for name in MEASURED if name in row}
            row = {**judged((row["kernel"], shape), ranking, measured), "label": row["label"]}
        rows.append(row)
    return {**result, "ranked_on": date, "summary": summarised(rows), "rows": rows}


def compile_all(every: Sequence[Task], until: float, workers: int) -> None:
    listed = [(*task, position) for task in every for position in range(len(consumers()[task[0]].entry.configs))]
    each("bench_consumers:compile_jobs", listed, limit_s=LIMIT_S["compile"], workers=workers, until=until)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS, "kernels")
    parser.add_argument("--phase", choices=("rank", "compile", "measure", "judge"), action="append")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing later; what is done is kept")
    arguments = parser.parse_args()
    every = tasks(arguments.only)
    if not every:
        parser.error(f"no kernel matches {' '.join(arguments.only)}")
    phases = arguments.phase or ["rank", "compile", "measure"]
    until = time.monotonic() + arguments.limit_s
    workers = arguments.workers
    mine = of_shard(every, arguments.shard)
    fresh = arguments.fresh and "rank" in phases
    rankings = rank(mine if "rank" in phases else [], arguments.out, until, workers=workers, fresh=fresh)
    if "judge" in phases:
        if not (arguments.out / NAME).is_file():
            raise SystemExit(f"{arguments.out / NAME} is not there: nothing was recorded that could be judged")
        write(arguments.out / NAME, judge_recorded(arguments.out / NAME, kept(rankings), now()))
        return
    store = RowStore(arguments.out / NAME, ("kernel", "label"), SETTINGS, fresh=arguments.fresh)
    left = [task for task in mine if key(task) not in kept(store) and key(task) in kept(rankings)]
    if "compile" in phases:
        compile_all(left, until, workers)
    if "measure" not in phases:
        return

    def keep(task: Task, result: Row) -> None:
        if result["status"] == "skipped":
            return
        row = judged(task, kept(rankings)[key(task)], result)
        row["label"] = " ".join(row["shape"])
        store.add(row)
        said = row.get("reason") or f"{row['best_over_chosen']:.3f}, of four {row['best_over_first_four']:.3f}"
        print(f"{row['split']} {row['kernel']} {row['label']}: {said}", flush=True)

    import torch

    each("bench_consumers:measure_jobs", left, limit_s=LIMIT_S["measure"], until=until, on_result=keep)
    rows = list(kept(store).values())
    complete = len(rows) >= len(tasks([]))
    summary = summarised(rows)
    store.write({**head("consumers", torch.cuda.get_device_name()), "summary": summary}, rows, complete=complete)
    print(summary)


if __name__ == "__main__":
    main()
