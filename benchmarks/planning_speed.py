"""How fast and how small planning is, on a CPU: writes ``benchmarks/results/planning_speed.json``.

Measured, each in fresh processes so that nothing is remembered from before:

- ``first_answer``: the first ranked answer of a process for one new shape, with the loops that ship with the package;
  imports of the planner are counted apart, as ``import``.
- ``cold_answer``: the same under a profile of one's own, whose loops have to be solved first.
- ``warm_answer``: a ranked answer for another new shape, the loops solved.
- ``batch``: ``warpplan batch`` of 10,000 mixed shapes, from the command to the last row in a new SQLite store.
- ``batch_memory``: the largest resident set of that process.

Run it with ``make bench-planning``; ``--shapes``, ``--repeats`` and ``--out`` change the size of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results_file import RESULTS, head, write

KERNEL, DEVICE, DTYPES = "gemm", "NVIDIA H200", ("bfloat16", "float16")
GOALS = {"first_answer": 0.1, "cold_answer": 1.0, "warm_answer": 0.002, "batch": 30.0, "batch_memory": 500.0}
"""The largest acceptable median, in the row's unit; the batch goal is for 10,000 shapes on 2 cores."""
SEED = 20_261_120
ALIGNMENT = 8

# Run in a child: prints the seconds that its imports, its first answer and each later answer took.
CHILD = f"""
import json, sys, time
shapes, own_profile = json.loads(sys.argv[1])
start = time.perf_counter()
from warpplan.kernels import registry
from warpplan.planner.values.device import device
from warpplan.profiler.embedded import embedded
kernel = registry.kernel({KERNEL!r})
imported = time.perf_counter()
gpu = device({DEVICE!r})
profile = embedded(gpu.name)
if own_profile:
    # Every cost a little higher: nothing that ships fits it.
    from dataclasses import replace
    def slower(cost):
        return replace(cost, latency=cost.latency and replace(cost.latency, p50=cost.latency.p50 + 2))
    entries = tuple(replace(e, cost=slower(e.cost)) for e in profile.costs.entries)
    profile = replace(profile, costs=replace(profile.costs, entries=entries))
times = []
for shape in shapes:
    before = time.perf_counter()
    ranked = kernel.rank(tuple(shape), "bfloat16", gpu, profile)
    times.append(time.perf_counter() - before)
    assert ranked
print(json.dumps({{"import": imported - start, "first": times[0], "warm": times[1:]}}))
"""


def mixed_shapes(count: int, seed: int = SEED) -> list[tuple[int, int, int]]:
    """Sizes spread evenly over their magnitudes: M from 1 to 16384, N and K from 64 to 32768 in steps of 8."""
    generator = random.Random(seed)

    def size(low: int, high: int, step: int) -> int:
        exact = low * (high / low) ** generator.random()
        return max(step, round(exact / step) * step)

    return [(size(1, 16_384, 1), size(64, 32_768, ALIGNMENT), size(64, 32_768, ALIGNMENT)) for _ in range(count)]


def measure_answers(repeats: int, warm: int) -> list[dict[str, object]]:
    """Rows ``import``, ``first_answer``, ``cold_answer`` and ``warm_answer``, over ``repeats`` fresh processes each of
    ``warm`` + 1 shapes, and as many of one shape under a profile of one's own."""
    shapes = mixed_shapes(repeats * (warm + 1))
    imports, first, cold, later = [], [], [], []
    for repeat in range(repeats):
        mine = shapes[repeat * (warm + 1) : (repeat + 1) * (warm + 1)]
        times = in_child(mine, own_profile=False)
        imports.append(times["import"])
        first.append(times["first"])
        later += times["warm"]
        cold.append(in_child(mine[:1], own_profile=True)["first"])
    return [
        row("import", "s", imports),
        row("first_answer", "s", first),
        row("cold_answer", "s", cold),
        row("warm_answer", "s", later),
    ]


def in_child(shapes: list[tuple[int, int, int]], *, own_profile: bool) -> dict[str, Any]:
    """What :data:`CHILD` prints."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([shapes, own_profile])], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"planning failed: {done.stderr.strip().splitlines()[-1]}")
    times: dict[str, Any] = json.loads(done.stdout)
    return times


def measure_batch(count: int) -> list[dict[str, object]]:
    """Rows ``batch`` and ``batch_memory`` of one ``warpplan batch`` over ``count`` shapes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shapes.jsonl"
        lines = (
            json.dumps({"kernel": KERNEL, "M": m, "N": n, "K": k, "dtype": DTYPES[i % len(DTYPES)]})
            for i, (m, n, k) in enumerate(mixed_shapes(count, SEED + 1))
        )
        file.write_text("\n".join(lines) + "\n")
        command = [
            sys.executable,
            "-m",
            "warpplan.service.cli.app",
            "batch",
            str(file),
            "--store",
            f"{folder}/plans.sqlite",
        ]
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert child.stderr is not None
        complaint = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        if status:
            sys.exit(f"batch failed: {complaint.decode().strip()}")
    # Linux gives ru_maxrss in KiB.
    return [row("batch", "s", [seconds], shapes=count), row("batch_memory", "MB", [usage.ru_maxrss * 1024 / 1e6])]


def row(name: str, unit: str, samples: list[float], **more: object) -> dict[str, object]:
    ordered = sorted(samples)
    median = statistics.median(ordered)
    goal = GOALS.get(name)
    return {
        "kernel": KERNEL,
        "name": name,
        "unit": unit,
        "median": median,
        "p90": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "worst": ordered[-1],
        "count": len(ordered),
        **more,
        **({"goal": goal, "met": median <= goal} if goal is not None else {}),
    }


def cpu_name() -> str:
    """The CPU's model and how many of its threads this process may use."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=10_000, help="shapes of the batch")
    parser.add_argument("--repeats", type=int, default=7, help="fresh processes for the single answers")
    parser.add_argument("--warm", type=int, default=200, help="warm answers in each of them")
    parser.add_argument("--out", type=Path, default=RESULTS / "planning_speed.json")
    options = parser.parse_args()
    rows = [*measure_answers(options.repeats, options.warm), *measure_batch(options.shapes)]
    write(options.out, {**head("planning_speed", cpu_name()), "rows": rows})
    for r in rows:
        goal = f"  goal {r['goal']:g}: {'met' if r['met'] else 'MISSED'}" if "goal" in r else ""
        print(f"{r['name']:<14} median {r['median']:.4g} {r['unit']}, worst {r['worst']:.4g} (n={r['count']}){goal}")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
