"""GPU: the corpus under Triton's autotune and under `planned()`, winner against winner; and a soak of random cases.

    python benchmarks/bench_corpus.py --out benchmarks/results                    # -> corpus_<card>.json
    python benchmarks/bench_corpus.py --phase first --out benchmarks/results      # -> corpus_first_launch_<card>.json
    python benchmarks/bench_corpus.py --phase soak --cases 2000 --out benchmarks/results   # -> corpus_soak_<card>.json

``compare``: each kernel tuned over its list by Triton, and tuned and planned, in one process, Triton's compiles done
beforehand on all cores; both and the peers are checked against torch, then timed in turn with the L2 cache cold (input
sets that fill it) and warm (one set).
``first``: seconds of the first launch from cold caches, each side in a process of its own, and again in a later process
with the caches that it left: Triton's own tuning of the list (``autotuned``), ``planned()``, which goes on beside the
job until its launches have settled on a configuration, and ``planned(background=False)``, which waits (``waiting``).
``soak``: see ``corpus_soak.py``.

Every finished row is kept: a run that was interrupted, or that ``--limit-s`` ended, goes on where it stopped, and one
of some kernels (``--only``) leaves the other kernels' rows in the file; ``date`` says when a row was measured. Children
have time limits: a hang costs its row. A row of ``compare`` has what ``planned`` tried, with times or the reasons of
failures, what it decided, and what was warned of: a kernel that gains nothing says why.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import corpus_registry
from bench_compiler import geometric_mean
from bench_target import CARD, require_target
from children import cores, each, first_line
from corpus_entry import Entry, Problem
from corpus_soak import run_soak, summarised_soak
from gpu_jobs import guarded
from results_file import RESULTS, head, now
from row_store import Row, RowStore, add_arguments, of_shard

LIMIT_S = {"compile": 120.0, "compare": 600.0, "first": 600.0}
"""The longest silence of a child: tuning a list from cold caches takes minutes."""
BATCH = 12
"""Kernels whose lists are compiled together before they are compared."""
ROUNDS, SHORT_ROUNDS, SHORT_US = 7, 21, 50.0
COLD_BYTES = 192 * 2**20
"""Three times the L2 of an H200."""
MOST_SETS = 32
PEAK_FLOPS, PEAK_BYTES = 1.5e15, 4.8e12
"""For a first estimate of a kernel's time, in which only the rounds of a reading depend on it."""
LEAST_US = 3.0
BESIDE = ("settled_s", "us_at_first", "us_settled", "decided")
SETTLED_S, LAUNCHES_AT_ONCE, BATCHES, AFTER_SETTLED = 30.0, 20, 9, 400
"""Of ``first``: how long a job launches until its list is settled, launches between two looks at the clock, batches of
as many that are timed, and launches between the list's settling and those batches."""
GOALS = {
    "with_dot_over_autotuned": 1.15, "worst_over_autotuned": 0.99, "pointer_gemm_over_cublas": 0.98,
    "moe_over_autotuned": 1.10, "attention_backward_over_autotuned": 1.15, "attention_over_cudnn": 1.0,
}  # fmt: skip


def estimate_us(problem: Problem) -> float:
    return max(LEAST_US, 1e6 * max(problem.flops / PEAK_FLOPS, problem.bytes / PEAK_BYTES))


def compile_jobs(jobs: Sequence[tuple[str, int]]) -> Iterator[Row]:
    """Runs in a child: the compiled kernel of each (kernel, position in its list) is left in Triton's cache."""
    return guarded(jobs, lambda job: compiled(corpus_registry.entries()[job[0]], job[1]))


def compiled(entry: Entry, position: int) -> Row:
    from corpus_launch import Made, fixed

    problem = entry.problem()
    fixed(entry, problem, entry.configs[position], Made(problem, 0).views, warmup=True)()
    return {"status": "ok"}


def compare_jobs(jobs: Sequence[str]) -> Iterator[Row]:
    return guarded(jobs, lambda name: compare(corpus_registry.entries()[name]))


def first_jobs(jobs: Sequence[tuple[str, str, str]]) -> Iterator[Row]:
    return guarded(jobs, lambda job: first_launch(corpus_registry.entries()[job[0]], job[1], job[2]))


def compare(entry: Entry) -> Row:
    """Time of each side and of the peers, cold and warm, their errors, what each chose."""
    import contextlib

    from corpus_launch import Made, errors, fresh, tuned
    from graph_timing import capture, interleaved, summary
    from tl_launch import wait

    from warpplan.kernels import planned

    problem = entry.problem()
    count = max(1, min(MOST_SETS, -(-COLD_BYTES // problem.bytes)))
    sets = [Made(problem, seed) for seed in range(count)]
    wanted = problem.reference({name: view.clone() for name, view in sets[0].views.items()})
    sides: dict[str, Any] = {
        "autotuned": contextlib.nullcontext(),
        "planned": planned(folder := tempfile.mkdtemp(), background=False),
    }
    said: list[str] = []
    cold, warm, found, chosen = {}, {}, {}, {}
    estimate = estimate_us(problem)
    for side, context in sides.items():
        kernel = fresh(entry)
        launches = [tuned(entry, problem, made.views, kernel) for made in sets]
        with context:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                launches[0]()  # tunes; where it is planned, tries
            said += [str(warning.message)[:300] for warning in caught]
            wait()
            sets[0].reset()
            launches[0]()
            wait()
            found[side] = errors(sets[0].outputs(), wanted)
            chosen[side] = str(getattr(kernel, "best_config", ""))
            cold[side] = capture(launches, estimate)
            warm[side] = capture(launches[:1], estimate)
    failed = {side: f"error {error:.2e}" for side, error in found.items() if not error <= entry.tolerance}
    for name, peer in problem.peers.items():
        try:
            launches = [peer(made.views) for made in sets]
            cold[name], warm[name] = capture(launches, estimate), capture(launches[:1], estimate)
        except Exception as error:
            failed[name] = first_line(error)
    rounds = ROUNDS if estimate > SHORT_US else SHORT_ROUNDS
    times = {
        kind: {name: summary(samples) for name, samples in interleaved(graphs, rounds, 5.0, 8.0).items()}
        for kind, graphs in (("cold", cold), ("warm", warm))
    }
    overwritten = [name for made in sets[:1] for name in made.overwritten()]
    return {
        "status": "ok", "times": times, "errors": found, "failed": failed, "chosen": chosen, "overwritten": overwritten,
        "said": said, **decided(Path(folder)),
    }  # fmt: skip


def decided(folder: Path) -> Row:
    """What ``planned`` left in ``folder``: ``tried`` are the candidates of a kernel's list with median microseconds, or
    why they failed; ``decided`` says what came of the list and of single kernels. Both are empty where a trial as a
    whole failed: what was warned of says why."""
    from warpplan.kernels.compiler.launching import decisions, progress
    from warpplan.kernels.compiler.launching.autotuned import list_decisions

    found: Row = {"tried": [], "decided": []}
    for file in sorted(folder.glob("*.json")):
        value = json.loads(file.read_text())
        if not file.name.endswith(".list.json"):
            found["decided"].append(progress.told(decisions.from_json(value, file)))
            continue
        decision = list_decisions.from_json(value, file)
        found["decided"].insert(0, str(decision))
        found["tried"] += [
            {"number": t.config, "scheme": t.scheme and str(t.scheme), "us": t.us, "reason": t.reason}
            for t in decision.tried
        ]
    return found


def first_launch(entry: Entry, side: str, caches: str) -> Row:
    """Seconds from the call to the end of the launch, with Triton's cache and ours in the folder ``caches``; and which
    configuration was chosen of how many. Where the list is decided on beside the job, also the seconds until the job's
    launches have settled on a configuration, and the microseconds of a launch before and after."""
    import contextlib

    from corpus_launch import Made, fresh, tuned
    from tl_launch import wait

    os.environ["TRITON_CACHE_DIR"] = caches
    from warpplan.kernels import planned

    contexts: dict[str, Any] = {"planned": planned(), "waiting": planned(background=False)}
    problem = entry.problem()
    made = Made(problem, 0)
    kernel = fresh(entry)
    launch = tuned(entry, problem, made.views, kernel)
    wait()
    begun = time.perf_counter()
    found: Row = {}
    with contexts.get(side, contextlib.nullcontext()):
        launch()
        wait()
        seconds = round(time.perf_counter() - begun, 3)
        if side == "planned":
            found = settling(launch, Path(caches) / "warpplan", begun)
    chosen = str(getattr(kernel, "best_config", ""))
    return {"status": "ok", "seconds": seconds, "chosen": chosen, "listed": len(entry.configs), **found}


def settling(launch: Callable[[], object], folder: Path, begun: float) -> Row:
    """Launch as a job does until its list's decision in ``folder`` is settled, and a while longer."""
    from tl_launch import wait

    from warpplan.kernels.compiler.launching import decisions
    from warpplan.kernels.compiler.launching.autotuned import list_decisions

    found: Row = {"us_at_first": launch_us(launch)}
    while time.perf_counter() - begun < SETTLED_S:
        for _ in range(LAUNCHES_AT_ONCE):
            launch()
        wait()
        files = folder.glob("*.list.json")
        decided = [list_decisions.from_json(decisions.parse(file.read_bytes(), file), file) for file in files]
        if decided and not decided[0].provisional:
            found["settled_s"] = round(time.perf_counter() - begun, 3)
            found["decided"] = str(decided[0])
            break
    for _ in range(AFTER_SETTLED):  # the kernel's own plan is put into its place, or compared
        launch()
    wait()
    return {**found, "us_settled": launch_us(launch)}


def launch_us(launch: Callable[[], object]) -> float:
    """Median microseconds of a launch among its like: the GPU has the next before it is through with one."""
    import torch

    times = []
    for _ in range(BATCHES):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(LAUNCHES_AT_ONCE):
            launch()
        after.record()
        after.synchronize()
        times.append(1e3 * before.elapsed_time(after) / LAUNCHES_AT_ONCE)
    return round(sorted(times)[len(times) // 2], 2)


def compared(name: str, result: Row) -> Row:
    """A row of the results file: ``chosen_us`` is planned, cold; ratios are other time over planned time."""
    entry = corpus_registry.entries()[name]
    base = {
        "kernel": name, "family": entry.family, "style": entry.style, "has_dot": entry.has_dot,
        "shape": [f"{size}={value}" for size, value in entry.sizes.items()], "dtype": entry.dtypes[0],
        "date": now(), **result,
    }  # fmt: skip
    if result["status"] != "ok":
        return base
    us = {kind: {side: t["us"] for side, t in times.items()} for kind, times in result["times"].items()}
    over = {
        kind: {side: round(t / times["planned"], 4) for side, t in times.items() if side != "planned"}
        for kind, times in us.items()
    }
    peers = {side: t for side, t in us["cold"].items() if side not in ("planned", "autotuned")}
    return {
        **base, "chosen_us": us["cold"]["planned"], "peers": {"autotuned": us["cold"]["autotuned"], **peers},
        "over": over["cold"], "over_warm": over["warm"],
    }  # fmt: skip


def summarised(rows: Sequence[Row]) -> Row:
    """The goals' figures."""
    ok = [r for r in rows if r["status"] == "ok" and not r["failed"].get("planned")]

    def mean(chosen: Sequence[Row], side: str = "autotuned") -> float | None:
        return geometric_mean([r["over"][side] for r in chosen if side in r["over"]])

    pointers = [r for r in ok if r["style"] in ("affine pointer", "block pointer")]
    return {
        "with_dot_over_autotuned": mean([r for r in ok if r["has_dot"]]),
        "worst_over_autotuned": min((r["over"]["autotuned"] for r in ok), default=None),
        "by_style": {style: mean([r for r in ok if r["style"] == style]) for style in sorted({r["style"] for r in ok})},
        "by_family": {f: mean([r for r in ok if r["family"] == f]) for f in sorted({r["family"] for r in ok})},
        "pointer_gemm_over_cublas": mean([r for r in pointers if r["family"] == "gemm"], "cublas"),
        "attention_over_cudnn": mean([r for r in ok if r["family"] == "attention"], "cudnn"),
        "compared": len(ok), "not_compared": sorted(r["kernel"] for r in rows if r not in ok), "goals": GOALS,
    }  # fmt: skip


def summarised_first(rows: Sequence[Row]) -> Row:
    """First launches over Triton's own tuning; of later processes the seconds, for one side then tunes anew."""

    def ratios(side: str) -> list[float]:
        both = [r for r in rows if r.get(side) and r.get("autotuned_s")]
        return [r[side] / r["autotuned_s"] for r in both]

    def middle(key: str) -> float | None:
        found = sorted(r[key] for r in rows if r.get(key))
        return found[len(found) // 2] if found else None

    ours, waiting = ratios("planned_s"), ratios("waiting_s")
    gains = [r["us_at_first"] / r["us_settled"] for r in rows if r.get("us_settled")]
    return {
        "first_launch_over_autotune": geometric_mean(ours), "worst": max(ours, default=None), "goal": 1.0,
        "waiting_over_autotune": geometric_mean(waiting), "worst_waiting": max(waiting, default=None),
        "later_process_s": middle("planned_again_s"),
        "worst_later_s": max((r["planned_again_s"] for r in rows if r.get("planned_again_s")), default=None),
        "settled_s": middle("settled_s"),
        "not_settled": [r["kernel"] for r in rows if r.get("planned_s") and not r.get("settled_s")],
        "gain_when_settled": geometric_mean(gains), "worst_gain": min(gains, default=None),
        "kernels": len(ours), "configurations": sum(r["listed"] or 0 for r in rows if r.get("planned_s")),
    }  # fmt: skip


def run_compare(arguments: argparse.Namespace, until: float, names: list[str]) -> RowStore:
    store = RowStore(arguments.out / f"corpus_{CARD}.json", ("kernel",), {"phase": "compare"}, fresh=arguments.fresh)
    left = [name for name in names if (name,) not in store.rows()]

    def report(name: str, result: Row) -> None:
        if result["status"] == "skipped":
            return
        made = compared(name, result)
        store.add(made)
        print(f"{name}: {made.get('over', made.get('reason'))} {made.get('failed', '')}", flush=True)

    for start in range(0, len(left), BATCH):
        batch = left[start : start + BATCH]
        listed = [(name, i) for name in batch for i in range(len(corpus_registry.entries()[name].configs))]
        each("bench_corpus:compile_jobs", listed, limit_s=LIMIT_S["compile"], workers=cores(), until=until)
        each("bench_corpus:compare_jobs", batch, limit_s=LIMIT_S["compare"], until=until, on_result=report)
    return store


def run_first(arguments: argparse.Namespace, until: float, names: list[str]) -> RowStore:
    settings = {"phase": "first"}
    store = RowStore(arguments.out / f"corpus_first_launch_{CARD}.json", ("kernel",), settings, fresh=arguments.fresh)
    for name in names:
        if (name,) in store.rows() or time.monotonic() > until:
            continue
        # Each side in a child of its own: a process that has compiled once compiles faster.
        results: dict[str, Row] = {}
        for side in ("autotuned", "planned", "waiting"):
            with tempfile.TemporaryDirectory() as caches:
                for when in (side, f"{side}_again"):
                    job = (name, side, caches)
                    results[when] = each("bench_corpus:first_jobs", [job], limit_s=LIMIT_S["first"])[0]
        seconds = {f"{when}_s": result.get("seconds") for when, result in results.items()}
        reasons = {when: r["reason"] for when, r in results.items() if r["status"] != "ok"}
        chosen = {when: r.get("chosen") for when, r in results.items()}
        listed = next((r["listed"] for r in results.values() if "listed" in r), None)
        beside = {key: results["planned"].get(key) for key in BESIDE}
        store.add({"kernel": name, **seconds, **beside, "chosen": chosen, "listed": listed, "failed": reasons})
        print(f"{name}: {seconds} {reasons}", flush=True)
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS, "kernels")
    parser.add_argument("--phase", choices=("compare", "first", "soak"), default="compare")
    parser.add_argument("--cases", type=int, default=2000, help="of the soak")
    parser.add_argument("--seed", type=int, default=0, help="the soak's first")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing later; what is done is kept")
    arguments = parser.parse_args()
    import torch

    require_target(torch.cuda.get_device_name())
    chosen = [entry.name for entry in corpus_registry.chosen(arguments.only)]
    until = time.monotonic() + arguments.limit_s
    phase = arguments.phase
    names = chosen if phase == "soak" else of_shard(chosen, arguments.shard)
    run = {"compare": run_compare, "first": run_first, "soak": run_soak}[phase]
    summarise = {"compare": summarised, "first": summarised_first, "soak": summarised_soak}[phase]
    store = run(arguments, until, names)
    some = bool(arguments.only) and phase != "soak"
    rows = store.beside_recorded() if some else list(store.rows().values())
    bench = {"compare": "corpus", "first": "corpus_first_launch", "soak": "corpus_soak"}[phase]
    summary = summarise(rows)
    complete = len(store.rows()) >= (arguments.cases if phase == "soak" else len(chosen))
    store.write({**head(bench, torch.cuda.get_device_name()), "summary": summary}, rows, complete=complete)
    print(summary)


if __name__ == "__main__":
    main()
