"""No GPU: which (configuration, strategy) of each corpus kernel's list is predicted best, and by how much.

    python benchmarks/plan_lists.py [WORDS] [--workers N]

Every configuration is bounded by its Triton IR, those that can win are compiled for sm_90 to the cut and ranked with
the profile of an H200, as `planned(measure=False)` does at a first launch. ``gain`` is the predicted time of the list's
best as it is over that of the best of all; ``winner_planned`` the same for the best strategy of the configuration that
wins as it is: what planning the winner of Triton's own tuning would give. Prints a table, writes ``corpus_lists.json``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import corpus_registry
from bench_compiler import geometric_mean
from children import cores, each, first_line
from corpus_entry import Box, Entry, Problem, options, resolved, source
from results_file import RESULTS, head, write

NAME = "corpus_lists.json"
DEVICE = "NVIDIA H200"
LIMIT_S = 300.0
"""For one kernel's list; the slowest takes a third of it on one of two shared cores."""
Row = dict[str, Any]


def list_jobs(names: Sequence[str]) -> Iterator[Row]:
    """Runs in a child: what is found of each entry's list."""
    for name in names:
        begun = time.monotonic()
        try:
            found = ranked_list(corpus_registry.entries()[name])
        except Exception as error:
            found = {"status": "error", "reason": first_line(error)}
        yield {**found, "seconds": round(time.monotonic() - begun, 1)}


def numbers(problem: Problem) -> dict[str, Any]:
    """The whole numbers of a launch; of descriptors their shapes and strides."""
    found: dict[str, Any] = {}
    for name, value in resolved(problem).items():
        if isinstance(value, Box):
            tensor = problem.tensors[value.tensor]
            found[name] = (*tensor.shape, *tensor.strides)
        elif type(value) is int:
            found[name] = value
    return found


@cache
def costs() -> tuple[Any, Any]:
    """The profile and the device that all is ranked with."""
    from warpplan.planner.values.device import device
    from warpplan.service.workflow.profiles import Profiles

    return Profiles().of(DEVICE).profile, device(DEVICE)


def packed(entry: Entry, problem: Problem, config: Any) -> tuple[Row, float]:
    """A job of :mod:`~warpplan.kernels.compiler.launching.autotuned.list_children.list_jobs` for one configuration, and
    its bound."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    from warpplan.kernels.compiler.costing.whole_launch import launch_bound
    from warpplan.kernels.compiler.launching.autotuned.front_end import launch_size
    from warpplan.kernels.compiler.launching.packed import pack_source
    from warpplan.kernels.compiler.pipeline.cutting import new_context
    from warpplan.kernels.compiler.ttgir.parsing import parse

    made, target = source(entry, problem, config), GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    parsed = backend.parse_options(options(config))
    module = made.make_ir(
        target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), new_context(backend)
    )
    kernel = pack_source(made, target, dict(parsed.__dict__), str(module))
    grid = tuple(map(int, problem.grid(entry.constants(problem, config))))
    text = str(backend.make_ttir(module, {}, parsed, 90))
    job = {"kernel": kernel, "numbers": numbers(problem), "grid": list(grid), "bytes": problem.bytes}
    return job, launch_bound(parse(text).function, launch_size(text, job["numbers"], grid, problem.bytes), *costs())


def ranked_list(entry: Entry) -> Row:
    """What is predicted of the list of ``entry`` at its own sizes."""
    from warpplan.kernels.compiler.exceptions import CannotPlan, by_reason
    from warpplan.kernels.compiler.launching.autotuned.list_children.list_jobs import rank_one
    from warpplan.kernels.compiler.launching.autotuned.list_choice import ranked, within_bounds
    from warpplan.kernels.compiler.launching.autotuned.tuner_calls import KnownTimings

    problem, listed = entry.problem(), entry.configs
    try:
        jobs = [packed(entry, problem, config) for config in listed]
    except CannotPlan as error:
        return {"status": "left", "reason": error.reason, "listed": len(listed), "ranked": 0}
    bounds = [bound for _, bound in jobs]
    chosen = within_bounds(bounds, KnownTimings())
    results = {index: rank_one(jobs[index][0], *costs()) for index in chosen}
    found = ranked(results, bounds, KnownTimings())
    base = {"listed": len(listed), "ranked": len(chosen)}
    if not any(c.scheme is not None for c in found):
        said = by_reason([(f"configuration {i}", r["obstacle"]) for i, r in results.items()])
        return {**base, "status": "left", "reason": "; ".join(said)[:300]}
    best, alone = found[0], next(c for c in found if c.scheme is None)
    own = next((c for c in found if c.config == alone.config and c.scheme is not None), alone)
    return {
        **base, "status": "ranked", "config": str(listed[best.config]), "scheme": best.scheme and str(best.scheme),
        "best_us": best.predicted_us, "alone_config": str(listed[alone.config]), "alone_us": alone.predicted_us,
        "gain": round(alone.predicted_us / best.predicted_us, 3),
        "winner_planned": round(alone.predicted_us / min(own.predicted_us, alone.predicted_us), 3),
        "other_configuration": best.config != alone.config,
    }  # fmt: skip


def summarised(rows: Sequence[Row]) -> Row:
    """Over the kernels with a product for which a strategy fits at least one configuration."""
    fits = [r for r in rows if r["status"] == "ranked" and r["has_dot"]]
    return {
        "kernels": len(rows), "ranked": len(fits), "left": sum(r["status"] == "left" for r in rows),
        "best_is_another_configuration": sum(r["other_configuration"] for r in fits),
        "gain": geometric_mean([r["gain"] for r in fits]) if fits else None,
        "gain_of_planning_the_winner": geometric_mean([r["winner_planned"] for r in fits]) if fits else None,
        "configurations": sum(r.get("listed", 0) for r in rows), "compiled": sum(r.get("ranked", 0) for r in rows),
        "defects": sorted(r["kernel"] for r in rows if r["status"] not in ("ranked", "left")),
    }  # fmt: skip


def line(r: Row) -> str:
    if r["status"] != "ranked":
        return f"{r['kernel']:34} {r['status']:8} {r['reason'][:110]}"
    tile = r["config"].partition(", num_ctas")[0]
    return f"{r['kernel']:34} {r['gain']:5.2f} ({r['winner_planned']:.2f}) {tile}: {r['scheme'] or 'as it is'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of the kernels' names, families or styles")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--limit-s", type=float, default=math.inf, help="start nothing later")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    chosen = corpus_registry.chosen(arguments.words)
    if not chosen:
        parser.error(f"no kernel matches {' '.join(arguments.words)}")
    rows: dict[str, Row] = {}

    def report(name: str, result: Row) -> None:
        entry = corpus_registry.entries()[name]
        rows[name] = {
            "kernel": name, "family": entry.family, "style": entry.style, "has_dot": entry.has_dot,
            "shape": [f"{size}={value}" for size, value in entry.sizes.items()], "dtype": entry.dtypes[0], **result,
        }  # fmt: skip
        print(line(rows[name]), flush=True)

    names = [entry.name for entry in chosen]
    until = time.monotonic() + arguments.limit_s
    each("plan_lists:list_jobs", names, limit_s=LIMIT_S, workers=arguments.workers, until=until, on_result=report)
    ordered = [rows[name] for name in names]
    summary = summarised(ordered)
    write(
        arguments.out / NAME, {**head("corpus_lists", "none: compiled for sm_90"), "summary": summary, "rows": ordered}
    )
    print(f"\n{summary}")
    if summary["defects"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
