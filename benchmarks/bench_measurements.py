"""What a store of many measurements costs: bytes, and the time of a lookup, of a report and of a calibration.

    python benchmarks/bench_measurements.py --out benchmarks/results

No GPU: the configurations are the GEMM's own candidates, the times their predictions with noise. Each of the shapes has
``CONFIGS`` configurations in two environments, and each of these series as many reports as make ``--reports`` together.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from results_file import head, write

from warpplan.profiler.embedded import embedded
from warpplan.service.calibration.calibrate import calibrate
from warpplan.service.store.answer_store import Store
from warpplan.service.store.measured_times import Measurement
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.profiles import Profiles
from warpplan.service.workflow.request import Item

DEVICE = "NVIDIA H200"
CONFIGS, SHAPES = 20, 1000
ENVIRONMENT = embedded(DEVICE).identity
ENVIRONMENTS = tuple(
    tuple(sorted({name: getattr(ENVIRONMENT, name) for name in ("cuda", "triton", "torch")}.items() | {("driver", d)}))
    for d in (ENVIRONMENT.driver, "550.54.15")
)
BATCH = 10_000
LOOKUPS = 2_000
SPREAD = ("median_us", "p10_us", "p99_us", "cpu_us")


def items() -> list[Item]:
    """Shapes of decoding, of training, and odd ones."""
    pick = np.random.default_rng(18)
    chosen: dict[tuple[int, int, int], None] = {}
    while len(chosen) < SHAPES:
        m, n, k = (int(2 ** pick.uniform(a, b)) for a, b in ((3, 13), (8, 13), (8, 13)))
        chosen[m, n - n % 8, k - k % 8] = None
    return [Item("gemm", (("M", m), ("N", n), ("K", k))) for m, n, k in chosen]


def reports(workflow: Workflow, count: int) -> Iterator[Measurement]:
    """``count`` reports, those of a series together."""
    pick = np.random.default_rng(81)
    of_each = count // (SHAPES * CONFIGS * len(ENVIRONMENTS)) or 1
    made = 0
    for item in items():
        problem, candidates = workflow.candidates(item, CONFIGS)
        for candidate, environment in product(candidates, ENVIRONMENTS):
            scatter = np.exp(pick.normal(0, 0.03, of_each)) * candidate.prediction.time_us
            for run, time_us in enumerate(scatter.round(4).tolist()):
                if made == count:
                    return
                made += 1
                yield Measurement(problem, candidate.config, time_us, 50, environment, f"job-{run}")


def filled(store: Store, workflow: Workflow, count: int) -> float:
    """Seconds that writing took, in transactions of :data:`BATCH`."""
    batch: list[Measurement] = []
    seconds = 0.0

    def flush() -> None:
        nonlocal seconds
        began = time.perf_counter()
        store.measurements.record(batch)
        seconds += time.perf_counter() - began
        batch.clear()

    for report in reports(workflow, count):
        batch.append(report)
        if len(batch) == BATCH:
            flush()
    flush()
    return seconds


def spread_us(call: Callable[[int], object], rounds: int) -> dict[str, float]:
    """Median and 99th percentile of ``call(0)``, ``call(1)``, … in microseconds by the clock, the fastest tenth's
    limit, which another process on the machine disturbs least, and the mean of the processor's time."""
    taken, used = [], time.process_time()
    for number in range(rounds):
        began = time.perf_counter_ns()
        call(number)
        taken.append((time.perf_counter_ns() - began) / 1e3)
    used = 1e6 * (time.process_time() - used) / rounds
    parts = statistics.quantiles(taken, n=100)
    median = statistics.median(taken)
    return {name: round(v, 1) for name, v in zip(SPREAD, (median, parts[9], parts[98], used), strict=True)}


def measure(place: str, count: int) -> dict[str, Any]:
    """One row of the results: what a store at ``place`` with ``count`` reports costs."""
    began = time.perf_counter()
    store = Store.open(place)
    planned = Workflow(store)
    asked = items()[:100]
    answers = [planned.configure(item) for item in asked]
    write_s = filled(store, Workflow(), count)
    store.close()
    opened = time.perf_counter()
    store = Store.open(place)
    open_s = time.perf_counter() - opened
    problems = [answer.problem for answer in answers]
    key, planner = answers[0].profile, answers[0].planner
    series = sum(len(times) for times in store.times(problems).values()) / len(problems)
    lookup = spread_us(lambda i: store.look_up([problems[i % 100]], key, planner), LOOKUPS)
    config = answers[0].config
    one = spread_us(
        lambda i: store.record(Measurement(problems[i % 100], config, 5.0 + i, 1, ENVIRONMENTS[0], "one")), 200
    )
    began_fit = time.perf_counter(), time.process_time()
    found = calibrate(store, Profiles().of(DEVICE))
    calibrated = {
        "seconds": round(time.perf_counter() - began_fit[0], 1),
        "cpu_seconds": round(time.process_time() - began_fit[1], 1), "configurations": found.used,
    }  # fmt: skip
    size = sum(Path(f"{place}{end}").stat().st_size for end in ("", "-wal") if Path(f"{place}{end}").exists())
    store.close()
    print(f"{count} reports: {time.perf_counter() - began:.0f} s", flush=True)
    return {
        "kernel": "gemm", "reports": count, "shapes": SHAPES, "series_of_a_shape": series,
        "store_bytes": size, "lookup": lookup, "record_one": one, "record_all_s": round(write_s, 1),
        "open_s": round(open_s, 3), "calibrate": calibrated, "load_average": os.getloadavg()[0],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--folder", help="where the stores are written; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = [measure(f"{folder}/{count}.sqlite", count) for count in arguments.reports]
    for row in rows:
        print(row)
    write(arguments.out / "measurements.json", {**head("measurements", "none"), "rows": rows})


if __name__ == "__main__":
    main()
