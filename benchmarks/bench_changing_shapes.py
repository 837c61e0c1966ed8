"""A job whose shapes change under ``planned()``: what launches wait, what trials take of the GPU, what runs planned.

    python benchmarks/bench_changing_shapes.py --out benchmarks/results              # on a GPU
    python benchmarks/bench_changing_shapes.py --simulate --out benchmarks/results   # without: a model of times

Ten kernels (``changing_kernels``) at 1,000 random shapes with fixed seeds, launched again and again in random order.
The simulation drives the real decisions on a clock of its own (``simulated_job``): its times of kernels and of trials
were measured nowhere. A launch's host time is what it takes of the processor on the way to the kernel; on a GPU it is
by the wall clock, less the median of the same launches without ``planned``.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import changing_kernels
import results_file

SHAPES, LAUNCHES, JOB_S = 1000, 100_000, 1800.0
SEEDS = (1, 2, 3)
SIMULATED = "none: simulated"


def simulated(seed: int) -> dict[str, Any]:
    """One simulated job of half an hour."""
    from simulated_job import SimulatedJob

    with tempfile.TemporaryDirectory() as folder:
        report = SimulatedJob(Path(folder), shapes=SHAPES, launches=LAUNCHES, job_s=JOB_S, seed=seed).run()
    return {
        "seed": seed, "shapes": SHAPES, "launches": report.launches, "classes": report.classes, "job_s": report.job_s,
        "longest_launch_ms": report.longest_launch_ms, "launch_us": report.launch_us,
        "waited_for_in_launches": report.forbidden, "predictions_a_launch_most": report.most_predictions,
        "trials": report.trials, "gpu_trials_s": report.gpu_trials_s, "gpu_launches_s": report.gpu_job_s,
        "gpu_launches_as_they_are_s": report.gpu_job_as_it_is_s,
        "gaining_launches_after_a_tenth": report.gaining, "of_them_planned": report.planned_share,
        "of_those_that_gain_3_percent_planned": report.clear_planned / max(1, report.clear),
        "launches_under_a_slower_plan": report.lost,
    }  # fmt: skip


def on_gpu(seed: int, job_s: float) -> dict[str, Any]:
    """One job on the GPU, of ``job_s`` seconds: launches back to back, the queue kept short."""
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    from warpplan.kernels import planned

    kernels = changing_kernels.kernels()
    arguments = [_arguments(kernels, draw, torch, TensorDescriptor) for draw in _draws(seed, len(kernels))]
    draw, folder = random.Random(f"launches {seed}"), tempfile.mkdtemp()
    as_it_is = [_host_ms(kernels[number].jit, launch, torch) for number, launch in arguments]
    as_it_is = [_host_ms(kernels[number].jit, launch, torch) for number, launch in arguments]  # compiled by then
    scope, waits, count, planned_launches, late = planned(folder), [], 0, 0, 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < job_s:
        index = draw.randrange(len(arguments))
        number, launch = arguments[index]
        with scope:
            waits.append(_host_ms(kernels[number].jit, launch, torch) - as_it_is[index])
        count += 1
        if time.perf_counter() - begin > job_s / 10:
            late += 1
            planned_launches += _runs_planned(kernels[number].jit, scope)
    budget = scope._table()._beside.budget  # type: ignore[union-attr]
    return {
        "seed": seed, "shapes": SHAPES, "launches": count, "job_s": job_s, "longest_launch_ms": max(waits),
        "launch_us": statistics.median(waits) * 1e3, "launches_over_50_ms": sum(wait > 50 for wait in waits),
        "trials": budget.trials, "gpu_trials_s": budget.spent_s, "launches_after_a_tenth": late,
        "of_them_planned": planned_launches / max(1, late),
        "speed": _compared(kernels, arguments, scope, torch),
    }  # fmt: skip


def _draws(seed: int, kernels: int) -> list[tuple[int, int, int, int]]:
    """(kernel, M, N, K) of each shape."""
    draw = random.Random(f"shapes {seed}")
    return [
        (draw.randrange(kernels), round(2 ** draw.uniform(0, 13.5)), 64 * round(2 ** draw.uniform(3, 7)),
         64 * round(2 ** draw.uniform(2, 7)))
        for _ in range(SHAPES)
    ]  # fmt: skip


def _arguments(kernels: Any, drawn: tuple[int, int, int, int], torch: Any, descriptor: Any) -> tuple[int, Any]:
    """The kernel's number and its launch. All shapes share memory, one pool for each argument."""
    number, m, n, k = drawn
    made: list[Any] = []

    def make(*shape: int) -> Any:
        pool = _pool(len(made), torch)
        count = math.prod(shape)
        offset = 64 * random.Random(f"{drawn} {len(made)}").randrange((pool.numel() - count) // 64)
        made.append(pool[offset : offset + count].view(*shape))
        return made[-1]

    return number, kernels[number].launch(m, n, k, make, descriptor.from_tensor)


_POOLS: dict[int, Any] = {}


def _pool(argument: int, torch: Any) -> Any:
    if argument not in _POOLS:
        _POOLS[argument] = torch.randn(1 << 28, device="cuda", dtype=torch.bfloat16)
    return _POOLS[argument]


_LAST: list[Any] = []


def _host_ms(jit: Any, launch: Any, torch: Any) -> float:
    """Milliseconds of the host for one launch, the queue empty before it."""
    args, options, grid = launch
    torch.cuda.synchronize()
    begin = time.perf_counter()
    _LAST[:] = [jit[grid](*args, **options)]
    return (time.perf_counter() - begin) * 1e3


def _runs_planned(jit: Any, scope: Any) -> bool:
    """Whether the launch just made ran a plan, or takes part in a comparison of which every second one does."""
    from warpplan.kernels.compiler.background.watched_kernel import WatchedKernel

    ran = _LAST[0]
    if isinstance(ran, WatchedKernel):
        return ran._usual is not ran.kernel
    return "ttg.warp_specialize" in ran.asm.get("ttgir", "")


def _compared(kernels: Any, arguments: Any, scope: Any, torch: Any) -> float:
    """Geometric mean over shapes of time as they are over time as they now run, by events."""
    ratios = []
    for number, (args, options, grid) in arguments[:: max(1, len(arguments) // 100)]:
        times: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(20):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            inside = bool(turn % 2)
            before.record()
            if inside:
                with scope:
                    kernels[number].jit[grid](*args, **options)
            else:
                kernels[number].jit[grid](*args, **options)
            after.record()
            after.synchronize()
            times[inside].append(before.elapsed_time(after))
        ratios.append(statistics.median(times[False]) / statistics.median(times[True]))
    return statistics.geometric_mean(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="no GPU: the real decisions on a model of times")
    parser.add_argument("--job", type=float, default=600.0, help="seconds of a job on the GPU")
    parser.add_argument("--out", type=Path, help="folder to write changing_shapes_<gpu>.json to")
    options = parser.parse_args()
    if options.simulate:
        device, slug = SIMULATED, "simulated"
        rows = [simulated(seed) for seed in SEEDS]
    else:
        import torch

        device = torch.cuda.get_device_name()
        slug = device.lower().replace("nvidia ", "").replace(" ", "_")
        rows = [on_gpu(SEEDS[0], options.job)]
    for row in rows:
        print(
            "  ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    if options.out:
        path = options.out / f"changing_shapes_{slug}.json"
        results_file.write(path, {**results_file.head("changing_shapes", device), "rows": rows})


if __name__ == "__main__":
    main()
