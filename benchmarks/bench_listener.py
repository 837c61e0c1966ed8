"""What ``warpplan.service.client.listen()`` costs the thread that tunes: microseconds an event. No GPU.

    python benchmarks/bench_listener.py --out benchmarks/results

An event is the call that Triton 3.9 makes once a tuning, with 24 configurations. Nobody answers at the URL, and
the queue is full for half of the events: both have to cost the job nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from results_file import head, write

from warpplan.service.client import listen

EVENTS, CONFIGS = 20_000, 24


def event() -> dict[str, Any]:
    def kernel() -> None: ...

    configs = [
        SimpleNamespace(kwargs={"BLOCK": 64 * n}, num_warps=4, num_stages=3, num_ctas=1, maxnreg=None)
        for n in range(CONFIGS)
    ]
    # As Triton's, but by identity: these configurations have no hash.
    timings = SimpleNamespace(items=lambda: [(config, [0.5, 0.4, 0.6]) for config in configs])
    return {
        "fn": SimpleNamespace(fn=kernel, cache_key="0" * 64), "key": (4096, 4096, "torch.bfloat16"),
        "best_config": configs[0], "configs_timings": timings, "duration": 1.0, "cache_hit": False,
    }  # fmt: skip


def measure(most_waiting: int) -> dict[str, Any]:
    """One row: the calls' times with a queue of that length."""
    said, taken = event(), []
    listener = listen("http://127.0.0.1:9", most_waiting=most_waiting, interval_s=3600.0, timeout=0.1)
    used = time.process_time()
    for _ in range(EVENTS):
        began = time.perf_counter_ns()
        listener(**said)
        taken.append((time.perf_counter_ns() - began) / 1e3)
    used = 1e6 * (time.process_time() - used) / EVENTS
    listener._waiting.clear()
    listener.close()
    parts = statistics.quantiles(taken, n=100)
    return {
        "kernel": "listen", "events": EVENTS, "configurations": CONFIGS, "most_waiting": most_waiting,
        "dropped": listener.dropped, "median_us": round(statistics.median(taken), 3), "p99_us": round(parts[98], 3),
        "cpu_us": round(used, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    rows = [measure(waiting) for waiting in (EVENTS, EVENTS // 2, 1)]
    for row in rows:
        print(row)
    write(arguments.out / "listener.json", {**head("listener", "none"), "rows": rows})


if __name__ == "__main__":
    main()
