"""GPU: the files that ``warpplan export --target fla`` writes, against timing each kernel's whole list.

    python benchmarks/bench_fla.py --site build/fla --out benchmarks/results      # -> fla_h200.json

``--site`` holds fla-core 0.6.0 and einops, as ``pip install --no-deps --target`` leaves them. The layers and their
sizes are in ``fla_cases.py``; a row is one kernel of one case: each of FLA's autotuned kernels that has products and a
list of at least six. ``--phase rank`` needs no GPU, but torch: the feed itself exports each case into a folder, and
each kernel's whole ranking is kept beside the folders (``--ranked``). ``--phase compile`` fills Triton's cache in
parallel children, without the GPU. ``--phase measure`` runs a layer, keeps the kernel's arguments, and launches every
configuration of the kernel's list on them: outputs are restored to what they were before (NaN where the layer left them
uninitialised) and compared with those of the list's first configuration; times are read in turn by CUDA graphs on a
card that has been kept busy.

``chosen_us`` is the configuration that FLA's own reader takes from the files, ``best_of_4_us`` the best of the first
four of the ranking. Without files FLA measures the whole list; ``first_us`` and ``median_us``, of the list, say what a
choice without measuring or predicting costs. A configuration that fails or computes something else has no time; a
chosen one without a time counts as infinitely slow. Finished rows are kept: a run that was interrupted, or that
``--limit-s`` ended, goes on where it stopped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_compiler import geometric_mean
from bench_target import CARD
from children import cores, each
from fla_cases import CASES, SEED
from results_file import RESULTS, head
from row_store import Row, RowStore, add_arguments, of_shard

NAME, RANKED, FOLDERS = f"fla_{CARD}.json", f"fla_ranked_{CARD}.json", f"fla_configs_{CARD}"
FIRST = 4
LIMIT_S = {"rank": 300.0, "compile": 120.0, "measure": 240.0}
"""The longest silence of a child."""
GOALS = {"chosen_over_best": 1.05, "best_of_4_over_best": 1.01}
SETTINGS = {"first": FIRST, "seed": SEED}
Task = tuple[str, str]
"""Case, kernel."""


def rank(names: Sequence[str], out: Path, until: float, *, workers: int, fresh: bool) -> dict[str, Row]:
    """Rankings by case: those that are kept in ``out``, and those of ``names`` that were not."""
    store = RowStore(out / RANKED, ("kernel", "case"), SETTINGS, fresh=fresh)

    def keep(job: tuple[str, str], result: Row) -> None:
        if result["status"] != "skipped":
            store.add({"kernel": CASES[job[0]].op, "case": job[0], **result})
            print(f"ranked {job[0]}: {result.get('reason') or len(result['launches'])}", flush=True)

    known = {row["case"] for row in store.rows().values() if row["status"] == "ok"}
    left = [(name, str(out / FOLDERS / name)) for name in names if name not in known]
    each("fla_ranking:rank_jobs", left, limit_s=LIMIT_S["rank"], workers=workers, until=until, on_result=keep)
    return {row["case"]: row for row in store.rows().values() if row["status"] == "ok"}


def tasks(rankings: Mapping[str, Row], words: Sequence[str]) -> list[Task]:
    """(case, kernel), in the cases' order; those with one of ``words`` in their name where there are any."""
    every = [(name, kernel) for name in CASES if name in rankings for kernel in rankings[name]["launches"]]
    return [task for task in every if not words or any(word in part for word in words for part in task)]


def judged(task: Task, ranking: Row, result: Row) -> Row:
    """A row of the results file: what FLA reads, beside the best of the whole list."""
    name, kernel = task
    case, listed = CASES[name], ranking["configs"]
    base = {
        "kernel": kernel, "shape": case.words, "label": name, "split": case.split, "key": ranking["key"],
        "listed": len(listed), "ranked": ranking["ranked"], "predicted_us": ranking["predicted_us"],
        **{field: value for field, value in result.items() if field not in ("configs", "chosen")},
    }  # fmt: skip
    if result["status"] != "ok":
        return base
    if result["configs"] != listed:
        return {**base, "status": "error", "reason": "the list is not the one that was ranked"}
    if result["chosen"] is None:
        return {**base, "status": "error", "reason": "FLA finds no entry of the list in the exported files"}
    times = {int(position): us for position, us in result["times_us"].items()}
    best = min(times, key=lambda position: times[position])
    chosen = times.get(result["chosen"])
    first = [times[position] for position in ranking["ranked"][:FIRST] if position in times]
    return {
        **base, "chosen_us": chosen, "best_us": times[best], "best_of_4_us": min(first, default=None),
        "first_us": times.get(0), "median_us": round(statistics.median(times.values()), 3),
        "best_over_chosen": round(times[best] / chosen, 4) if chosen else 0.0,
        "best_over_first_four": round(times[best] / min(first), 4) if first else 0.0,
        "config": listed[result["chosen"]], "best_config": listed[best],
    }  # fmt: skip


def figures(rows: Sequence[Row]) -> Row:
    """Regrets: times of the choice and of the best of the first four over the best time of the list."""
    chosen, four = [r["best_over_chosen"] for r in rows], [r["best_over_first_four"] for r in rows]
    return {
        "rows": len(rows), "chosen_over_best": inverse_mean(chosen), "worst_chosen": inverse(min(chosen, default=0.0)),
        "best_of_4_over_best": inverse_mean(four), "worst_of_4": inverse(min(four, default=0.0)),
        "median_over_chosen": mean([r["median_us"] / r["chosen_us"] for r in rows if r["chosen_us"]]),
    }  # fmt: skip


def inverse(ratio: float) -> float | None:
    """``None`` where a choice did not run."""
    return round(1.0 / ratio, 4) if ratio else None


def inverse_mean(ratios: Sequence[float]) -> float | None:
    return inverse(geometric_mean(ratios)) if ratios and min(ratios) > 0 else None


def mean(ratios: Sequence[float]) -> float | None:
    return round(geometric_mean(ratios), 4) if ratios else None


def summarised(rows: Sequence[Row]) -> Row:
    """The goals' figures, of all and of each split and kernel. A choice that did not run leaves its goal unmet."""
    ok = [r for r in rows if r["status"] == "ok"]
    whole = figures(ok)
    parts = {
        f"by_{field}": {
            value: figures([r for r in ok if r[field] == value]) for value in sorted({r[field] for r in ok})
        }
        for field in ("split", "kernel")
    }
    return {
        **whole, **parts, "goals": GOALS,
        "met": {goal: whole[goal] is not None and whole[goal] <= most for goal, most in GOALS.items()},
        "failed": [[r["kernel"], r["shape"], r.get("reason", r["status"])] for r in rows if r["status"] != "ok"],
    }  # fmt: skip


def said(row: Row) -> str:
    """Of a row, for people."""
    if row["status"] != "ok":
        return str(row.get("reason", row["status"]))
    return (
        f"{row['best_over_chosen']:.3f}, of four {row['best_over_first_four']:.3f}, {row['chosen_us']} of "
        f"{row['best_us']} µs, {len(row['failed'])} of {row['listed']} failed, {row['seconds']} s"
    )


def measure(left: Sequence[Task], rankings: Mapping[str, Row], ranked: Path, store: RowStore, until: float) -> None:
    def keep(job: tuple[str, str, str], result: Row) -> None:
        if result["status"] != "skipped":
            row = judged((job[0], job[1]), rankings[job[0]]["launches"][job[1]], result)
            store.add(row)
            print(f"{row['split']} {job[0]} {job[1]}: {said(row)}", flush=True)

    jobs = [(name, kernel, str(ranked.resolve() / FOLDERS / name)) for name, kernel in left]
    each("fla_timing:measure_jobs", jobs, limit_s=LIMIT_S["measure"], until=until, on_result=keep)


def compile_all(left: Sequence[Task], rankings: Mapping[str, Row], until: float, workers: int) -> None:
    from fla_ranking import compile_tasks

    begun, jobs = time.monotonic(), compile_tasks(left, rankings)
    results = each("fla_ranking:compile_jobs", jobs, limit_s=LIMIT_S["compile"], workers=workers, until=until)
    failed = [(job, r.get("reason")) for job, r in zip(jobs, results, strict=True) if r["status"] != "ok"]
    print(
        f"compiled {len(jobs) - len(failed)} of {len(jobs)} in {time.monotonic() - begun:.0f} s {failed[:3]}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS, "kernels")
    parser.add_argument(
        "--site", type=Path, help="the folder with the installed fla-core and einops; else this Python's"
    )
    parser.add_argument("--ranked", type=Path, help="the folder of rankings and exported files; --out without it")
    parser.add_argument("--phase", choices=("rank", "compile", "measure"), action="append", help="all without it")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing later; what is done is kept")
    arguments = parser.parse_args()
    if arguments.site:
        sys.path.insert(0, str(arguments.site.resolve()))  # children inherit it
    until, phases = time.monotonic() + arguments.limit_s, arguments.phase or ["rank", "compile", "measure"]
    ranked = arguments.ranked or arguments.out
    names, fresh = list(CASES) if "rank" in phases else [], arguments.fresh and "rank" in phases
    rankings = rank(names, ranked, until, workers=arguments.workers, fresh=fresh)
    if not {"compile", "measure"} & set(phases):
        return
    store = RowStore(arguments.out / NAME, ("kernel", "label"), SETTINGS, fresh=arguments.fresh)
    done = store.rows()
    mine = of_shard(tasks(rankings, arguments.only), arguments.shard)
    left = [(name, kernel) for name, kernel in mine if (kernel, name) not in done]
    if "compile" in phases:
        compile_all(left, rankings, until, arguments.workers)
    if "measure" not in phases:
        return
    import torch

    measure(left, rankings, ranked, store, until)
    rows: list[Any] = list(store.rows().values())
    summary, complete = summarised(rows), len(rows) >= len(tasks(rankings, []))
    store.write({**head("fla", torch.cuda.get_device_name()), "summary": summary}, rows, complete=complete)
    print(summary)


if __name__ == "__main__":
    main()
