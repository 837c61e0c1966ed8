"""How well the planner predicts what its plans take on the GPU: whole kernels, and the phases inside them.

    python benchmarks/plan_accuracy.py --out benchmarks/results
    python benchmarks/plan_accuracy.py --dry-run        # the plans and their predictions, no GPU needed

Writes ``plan_accuracy_h200.json`` and ``plan_phases_h200.json``. The plans are every block that the space considers
for a shape at every ring depth that fits, from two slots on, each with the first epilogue that then fits: nothing is
picked by its result, and nothing was fitted on these shapes. For each plan the time that the service predicts, that of
the simulated loop alone (no fitted constant), and the measured median; for some plans a Proton trace's multiply, waits
and epilogue next to the simulator's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from results_file import RESULTS, head, write
from scipy.stats import kendalltau

from warpplan.kernels.gemm.candidates import EPILOGUES, grid, structures, tabulate
from warpplan.kernels.gemm.graph import loop_graph, plan_candidate
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import MAX_DEPTH, GemmConfig, violations
from warpplan.planner.errors import WarpplanError
from warpplan.planner.simulate.simulation import simulate
from warpplan.planner.values.device import device
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded
from warpplan.profiler.traces import predicted_phases, record, recording_cycles, trace_costs, traced_phases

Shape = tuple[int, int, int]
Row = dict[str, Any]
TARGET = device("NVIDIA H200")
DTYPE = "bfloat16"
SHAPES: tuple[Shape, ...] = ((4096, 5120, 4096), (8192, 2048, 8192), (1024, 8192, 4096))
"""In neither list of ``gemm_shapes``: no constant has seen them."""
TRACED: tuple[GemmConfig, ...] = (
    GemmConfig("single", 128, 128, 64, 8, 2),
    GemmConfig("single", 128, 128, 64, 8, 5),
    GemmConfig("single", 128, 256, 64, 8, 3),
    GemmConfig("single", 64, 128, 64, 4, 3),
    GemmConfig("single", 64, 128, 64, 4, 8),
    GemmConfig("cooperative", 128, 256, 64, 4, 2),
    GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=2),
    GemmConfig("cooperative", 192, 128, 64, 4, 4),
    GemmConfig("pingpong", 128, 128, 64, 4, 5),
    GemmConfig("pingpong", 64, 256, 64, 4, 4),
)
TRACE_SHAPE: Shape = (512, 512, 4096)
"""A few tiles, whose operands are in L2 from being made: what the loop's costs are measured for."""
ROUNDS = 7
SETTLE_MS, READ_MS = 20.0, 12.0


def block(config: GemmConfig) -> GemmConfig:
    return replace(config, depth=2, epilogue_split=1, staging="own")


def plans_of(base: GemmConfig) -> list[GemmConfig]:
    """``base`` at every depth that fits, with the first epilogue that then does."""
    found = []
    for depth in range(2, MAX_DEPTH + 1):
        options = (replace(base, depth=depth, staging=s, epilogue_split=n) for s, n in EPILOGUES)
        found += [c for c in options if not violations(c, DTYPE, TARGET)][:1]
    return found


def plans(shape: Shape) -> tuple[GemmConfig, ...]:
    """Every block considered for ``shape`` at every depth."""
    found = [c for base in dict.fromkeys(map(block, structures(DTYPE, TARGET))) for c in plans_of(base)]
    considered = grid(tabulate(found, [0] * len(found), TARGET), shape).valid
    return tuple(config for config, valid in zip(found, considered, strict=True) if valid)


@cache
def loop_cycles(config: GemmConfig, trips: int) -> int:
    """The simulated loop of one tile; of two where two blocks share the tensor cores."""
    costs = embedded(TARGET.name).costs
    graph = loop_graph(config, DTYPE, TARGET, costs)
    plan = plan_candidate(config, DTYPE, TARGET, costs).plan
    assert plan is not None
    tensor = sum(op.occupancy for op in graph.ops if op.unit == "TENSOR")
    return max(simulate(plan, graph, trips).cycles, config.ctas_per_sm * trips * tensor)


def loop_us(config: GemmConfig, shape: Shape, profile: Profile) -> float:
    """The simulated loops of the busiest block one after another, at the clock of a short kernel; nothing is fitted."""
    rounds = -(-config.units(shape, TARGET.sm_count) // (TARGET.sm_count * config.ctas_per_sm))
    cycles = rounds * loop_cycles(config, -(-shape[2] // config.block_k))
    return cycles / dict(profile.ceilings)["clock_hz_idle"].p50 * 1e6


def predicted(shape: Shape, profile: Profile) -> list[Row]:
    configs = plans(shape)
    times = Gemm().predicted(configs, shape, DTYPE, TARGET, profile)
    return [
        {
            "kernel": "gemm", "shape": shape, "config": vars(c), "predicted_us": round(p.time_us, 3),
            "bound_by": p.bound_by, "loop_us": round(loop_us(c, shape, profile), 3),
        }
        for c, p in zip(configs, times, strict=True)
    ]  # fmt: skip


def job(config: GemmConfig) -> GemmConfig:
    """What is compiled: the number of splits is a run-time value, and the prepared shape has K for two."""
    return replace(config, split_k=min(config.split_k, 2))


def compile_all(rows: Iterable[Row], workers: int | None) -> set[GemmConfig]:
    """First compile and run of all rows' jobs in children; the jobs that failed."""
    from gemm_prepare import default_workers, prepare

    jobs = dict.fromkeys((job(GemmConfig(**r["config"])), True) for r in rows)
    return {config for config, _ in prepare(jobs, workers=workers or default_workers())}


def measure(rows: list[Row], failed: set[GemmConfig]) -> None:
    """Add the measured time to each row of one shape, all its plans timed alternately."""
    import torch
    from gemm_operands import operands
    from graph_timing import paired, summary

    from warpplan.kernels.gemm.launch import prepare as prepare_launch

    shape = rows[0]["shape"]
    sets = operands(shape, torch.bfloat16)
    runnable = {i: c for i, row in enumerate(rows) if job(c := GemmConfig(**row["config"])) not in failed}
    contenders = {str(i): [prepare_launch(o.a, o.b, c, o.c) for o in sets] for i, c in runnable.items()}
    estimate = float(np.median([row["predicted_us"] for row in rows]))
    for name, samples in paired(contenders, estimate, ROUNDS, SETTLE_MS, READ_MS).items():
        times = summary(samples)
        rows[int(name)] |= {"measured_us": round(times["us"], 3)}
        rows[int(name)] |= {"low_us": round(times["low_us"], 3), "high_us": round(times["high_us"], 3)}


def accuracy(rows: list[Row]) -> dict[str, float | int]:
    """Kendall's τ and errors over the measured rows; shapes are ranked apart, and pooled by their relative times."""
    done = [r for r in rows if "measured_us" in r]
    real, model, loop = (np.array([r[k] for r in done]) for k in ("measured_us", "predicted_us", "loop_us"))
    error = np.abs(model / real - 1.0)
    return {
        "plans": len(done),
        "kendall_tau": round(float(kendalltau(model, real).statistic), 4),
        "kendall_tau_loop": round(float(kendalltau(loop, real).statistic), 4),
        "median_error": round(float(np.median(error)), 4),
        "p90_error": round(float(np.percentile(error, 90)), 4),
        "mean_bias": round(float(np.mean(np.log(model / real))), 4),
    }


def phases(profile: Profile) -> list[Row]:
    """Each traced plan's phases next to the simulator's, in cycles."""
    rows: list[Row] = []
    empty = _recording(recording_cycles)
    for config in TRACED:
        row: Row = {"kernel": "gemm", "config": vars(config), "recording_cycles": empty}
        row["predicted"] = asdict(predicted_phases(config, DTYPE, TARGET, profile.costs, trace_trips(config)))
        try:
            with tempfile.TemporaryDirectory() as folder:
                file = record(Path(folder) / "trace", config, dtype=DTYPE, shape=TRACE_SHAPE, time_limit_s=60.0)
                row["traced"] = asdict(traced_phases(trace_costs(file), empty or 0.0))
        except WarpplanError as error:
            row["failed"] = str(error)
        rows.append(row)
        print(label(row["config"]), row["predicted"], row.get("traced", row.get("failed")), flush=True)
    return rows


def trace_trips(config: GemmConfig) -> int:
    return -(-TRACE_SHAPE[2] // config.block_k)


def _recording(measure_cycles: Any) -> float | None:
    try:
        return float(measure_cycles())
    except WarpplanError as error:
        print(f"recording cost unknown: {error}", file=sys.stderr)
        return None


def label(c: Mapping[str, Any]) -> str:
    blocks = " x2" if c["ctas_per_sm"] == 2 else ""
    tile = f"{c['block_m']}x{c['block_n']}x{c['block_k']}"
    return f"{c['scheme']}{c['consumer_warps']}{blocks} {tile} depth {c['depth']} e{c['epilogue_split']} {c['staging']}"


def describe(row: Row) -> str:
    times = f"predicted {row['predicted_us']:9.2f}  loop {row['loop_us']:9.2f}  {row['bound_by']}"
    return f"{row['shape']!s:20} {label(row['config']):46} {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="list the plans and predictions, without a GPU")
    parser.add_argument("--phases", choices=("both", "only", "none"), default="both")
    parser.add_argument("--workers", type=int, help="children that compile at once")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    started = time.monotonic()
    profile = embedded(TARGET.name)
    by_shape = {} if arguments.phases == "only" else {shape: predicted(shape, profile) for shape in SHAPES}
    if arguments.dry_run:
        for rows in by_shape.values():
            print("\n".join(map(describe, rows)))
        print({str(shape): len(rows) for shape, rows in by_shape.items()})
        for config in TRACED if arguments.phases != "none" else ():
            print(label(vars(config)), predicted_phases(config, DTYPE, TARGET, profile.costs, trace_trips(config)))
        return
    import torch

    name = torch.cuda.get_device_name()
    if by_shape:
        result = {**head("plan_accuracy", name), "dtype": DTYPE, "summary": {}, "rows": []}
        failed = compile_all([r for rows in by_shape.values() for r in rows], arguments.workers)
        for shape, rows in by_shape.items():
            measure(rows, failed)
            torch.cuda.empty_cache()
            result["rows"] += rows
            result["summary"]["x".join(map(str, shape))] = accuracy(rows)
            print(shape, accuracy(rows), f"{time.monotonic() - started:.0f} s", flush=True)
            write(arguments.out / "plan_accuracy_h200.json", result)
        result["summary"]["all"] = accuracy(result["rows"])
        print("all", result["summary"]["all"], flush=True)
        write(arguments.out / "plan_accuracy_h200.json", result)
    if arguments.phases != "none":
        traced = {**head("plan_phases", name), "dtype": DTYPE, "shape": TRACE_SHAPE, "rows": phases(profile)}
        write(arguments.out / "plan_phases_h200.json", traced)
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
