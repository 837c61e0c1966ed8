"""GPU: the entries that ``warpplan export --target helion`` writes, against Helion's own search.

    export HELION_EXAMPLES=FOLDER  # as helion_cases.py says
    warpplan export --target helion --consumer benchmarks/helion_cases.py:calls --out build/helion_cache  # needs no GPU
    python benchmarks/bench_helion.py --cache build/helion_cache --out benchmarks/results

Kernels are those of Helion's public examples as they are, sizes are drawn with a fixed seed (``helion_cases.py``). Of
each, in one process: Helion's own cache reads our entry, Helion searches anew (``quick`` effort, at most
``--search-s``), and three configurations are timed alternately by CUDA graphs: ours, that of the search, and Helion's
default, which runs without an entry and without a search. Of kernels with products the configuration of the search runs
under ``planned`` too. Torch's kernel is beside them where it has one. Each one's outputs, NaN before, are compared with
the default's. A row that was measured is kept, and a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from bench_compiler import geometric_mean
from bench_target import CARD, require_target
from children import each
from helion_cases import CASES, SEED, HelionCase, arguments, kernel_of, peer
from results_file import RESULTS, head
from row_store import Row, RowStore, add_arguments, of_shard

NAME = f"helion_{CARD}.json"
ROUNDS, SETTLE_MS, READ_MS, WARM_MS = 7, 3.0, 6.0, 300.0
TOLERANCE = 0.02
"""Of the difference of two outputs, over the norm of one. Rounding to bfloat16 alone gives 0.002 to 0.004."""
SILENCE_S = 240.0


def measure_jobs(jobs: Sequence[tuple[str, str, int]]) -> Iterator[Row]:
    """Runs in a child: a result for each (case, folder of entries, seconds of search)."""
    import torch
    from gpu_jobs import guarded

    require_target(torch.cuda.get_device_name())
    return guarded(jobs, lambda job: measured(CASES[job[0]], *job[1:]))


def measured(case: HelionCase, cache: str, search_s: int) -> Row:
    """The configurations and their times."""
    import torch

    given = kernel_of(case).normalize_args(*arguments(case))
    bound = kernel_of(case).bind(given)
    ours, read_s = tuned(bound, given, cache)
    if ours is None:
        return {"status": "error", "reason": "Helion finds no entry for its key"}
    with tempfile.TemporaryDirectory() as empty:
        searched, search_took = tuned(bound, given, empty, seconds=search_s)
    configs = {"default": bound.config_spec.default_config(), "ours": ours, "searched": searched}
    runs = {name: bound.compile_config(config, allow_print=False) for name, config in configs.items()}
    if case.has_product:
        runs["planned"] = under_plans(runs["searched"])
    launches: dict[str, Any] = {}
    failed: dict[str, str] = {}
    expected = poisoned(runs["default"], given)  # where it fails, so does the row
    for name, run in runs.items():
        try:
            found = poisoned(run, given)
        except Exception as error:
            failed[name] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            continue
        worst = max(difference(a, b) for a, b in zip(found, expected, strict=True))
        if worst <= TOLERANCE:
            launches[name] = lambda run=run: run(*given)
        else:
            failed[name] = f"its output is off by {worst:.3g}"
    theirs = peer(case, given)
    if theirs is not None:
        launches["torch"] = theirs
    times = timed(launches)
    torch.cuda.empty_cache()
    return {
        "status": "ok", "failed": failed, "read_s": round(read_s, 2), "search_s": round(search_took, 1),
        **{f"{name}_us": us for name, us in times.items()},
        "configs": {name: config.to_json() for name, config in configs.items()},
    }  # fmt: skip


def tuned(bound: Any, given: Sequence[Any], folder: str, seconds: int = 0) -> tuple[Any, float]:
    """The configuration that Helion's cache in ``folder`` has, or that its search of at most ``seconds`` finds; and the
    seconds that it took."""
    from helion.autotuner import PatternSearch
    from helion.autotuner.local_cache import LocalAutotuneCache

    begun = time.perf_counter()
    with mock.patch.dict(os.environ, {"HELION_CACHE_DIR": folder}):
        if not seconds:
            return LocalAutotuneCache(PatternSearch(bound, given)).get(), time.perf_counter() - begun
        settings = bound.settings
        settings.autotune_effort, settings.autotune_budget_seconds, settings.autotune_log_level = "quick", seconds, 0
        return bound.autotune(given, force=True), time.perf_counter() - begun


def under_plans(run: Any) -> Any:
    """``run`` under ``planned``, decided on before it returns."""
    from warpplan.kernels import planned

    scope = planned(tempfile.mkdtemp(), background=False)

    def launch(*given: Any) -> Any:
        with scope:
            return run(*given)

    return launch


def poisoned(run: Any, given: Sequence[Any]) -> tuple[Any, ...]:
    """A launch's outputs; memory that it leaves as it was holds NaN."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = run(*given)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.cuda.synchronize()
    return tuple(found) if isinstance(found, tuple) else (found,)


def difference(one: Any, other: Any) -> float:
    """The norm of the difference over that of ``other``; infinite where either has values that are not finite."""
    import torch

    one, other = one.float(), other.float()
    off = float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other))
    return off if off == off else float("inf")


def timed(launches: Mapping[str, Any]) -> dict[str, float]:
    """Medians in µs, read alternately on a card that has been kept busy."""
    from graph_timing import capture, interleaved, run_for, summary

    graphs = {name: capture([launch], 100.0) for name, launch in launches.items()}
    run_for(*next(iter(graphs.values())), WARM_MS)
    return {
        name: round(summary(sample)["us"], 2)
        for name, sample in interleaved(graphs, ROUNDS, SETTLE_MS, READ_MS).items()
    }


def judged(case: HelionCase, result: Row) -> Row:
    """A row of the results file."""
    row = {
        "kernel": case.kernel, "shape": "x".join(map(str, case.sizes)), "label": case.name, "split": case.split,
        **result,
    }  # fmt: skip
    if result["status"] == "ok" and "searched_us" in result:
        ours = result.get("ours_us")
        row["searched_over_ours"] = round(result["searched_us"] / ours, 4) if ours else 0.0
        if "planned_us" in result:
            row["searched_over_planned"] = round(result["searched_us"] / result["planned_us"], 4)
        row["default_over_ours"] = round(result.get("default_us", 0.0) / ours, 4) if ours else 0.0
    return row


def figures(rows: Sequence[Row]) -> Row:
    """Geometric means; a configuration that did not run has none and is the worst."""
    over = [row["searched_over_ours"] for row in rows]
    planned = [row["searched_over_planned"] for row in rows if "searched_over_planned" in row]
    default = [row["default_over_ours"] for row in rows if row["default_over_ours"]]
    return {
        "rows": len(rows), "searched_over_ours": round(geometric_mean(over), 4) if over and min(over) > 0 else None,
        "worst": min(over, default=None), "default_over_ours": round(geometric_mean(default), 4) if default else None,
        "searched_over_planned": round(geometric_mean(planned), 4) if planned else None,
        "least_planned": min(planned, default=None),
        "search_s": round(sum(row["search_s"] for row in rows), 1),
        "read_s": round(sum(row["read_s"] for row in rows), 2),
    }  # fmt: skip


def summarised(rows: Sequence[Row]) -> Row:
    """Of all rows and of each split and kernel."""
    ok = [row for row in rows if "searched_over_ours" in row]
    parts = {
        f"by_{field}": {
            value: figures([row for row in ok if row[field] == value]) for value in sorted({row[field] for row in ok})
        }
        for field in ("split", "kernel")
    }
    failed = [[row["label"], row.get("reason") or row.get("failed")] for row in rows if row not in ok or row["failed"]]
    return {**figures(ok), **parts, "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS, "cases")
    parser.add_argument("--cache", type=Path, required=True, help="the folder that the entries were exported into")
    parser.add_argument("--search-s", type=int, default=60, help="the longest that Helion searches a kernel")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing later; what is done is kept")
    chosen = parser.parse_args()
    if "HELION_EXAMPLES" not in os.environ:
        parser.error("HELION_EXAMPLES is not set: name the folder of Helion's examples, as helion_cases.py says")
    until = time.monotonic() + chosen.limit_s
    store = RowStore(chosen.out / NAME, ("label",), {"seed": SEED, "search_s": chosen.search_s}, fresh=chosen.fresh)
    done = store.rows()
    names = [name for name in CASES if not chosen.only or any(word in name for word in chosen.only)]
    jobs = [
        (name, str(chosen.cache.resolve()), chosen.search_s)
        for name in of_shard(names, chosen.shard)
        if (name,) not in done
    ]

    def keep(job: tuple[str, str, int], result: Row) -> None:
        if result["status"] != "skipped":
            row = judged(CASES[job[0]], result)
            store.add(row)
            print({name: value for name, value in row.items() if name not in ("configs", "kernel")}, flush=True)

    each("bench_helion:measure_jobs", jobs, limit_s=SILENCE_S, until=until, on_result=keep)
    import torch

    rows = list(store.rows().values())
    summary = summarised(rows)
    store.write(
        {**head("helion", torch.cuda.get_device_name()), "summary": summary}, rows, complete=len(rows) == len(CASES)
    )
    print(summary)


if __name__ == "__main__":
    main()
