"""GEMM on the GPU: the chosen plan against cuBLAS, the exhaustive search of our space, Triton's autotuner and Inductor.

    python benchmarks/bench_gemm.py --shapes all --out benchmarks/results

For training and held-out shapes apart, writes ``gemm_h200_*.json`` (the comparison) and ``gemm_exhaustive_h200_*.json``
(every configuration's time, from which ``benchmarks/regret.py`` replays the ranking without a GPU). Each shape's
contenders are timed alternately in one process.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gemm_operands import Operands, operands
from gemm_peers import PEERS, Peer
from gemm_prepare import compile_peers, default_workers, prepare
from gemm_shapes import HELDOUT, TRAIN
from gemm_table import read
from graph_timing import capture, paired, run_for, summary
from results_file import RESULTS, head, write
from time_statistics import steady_us

from warpplan.kernels.gemm.candidates import candidates
from warpplan.kernels.gemm.launch import prepare as prepare_launch
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.planner.values.device import device
from warpplan.profiler.embedded import embedded

Shape = tuple[int, int, int]
Job = tuple[GemmConfig, bool]
Row = dict[str, Any]
TARGET = device("NVIDIA H200")
DTYPE = "bfloat16"
PROFILE = embedded(TARGET.name)
CUBLAS_EVERY = 12
"""Configurations between two readings of cuBLAS in the exhaustive search."""
FINALISTS = 8
POWER_LIMITED_FLOP_PER_BYTE = 300.0
"""Of compulsory traffic; denser shapes draw so much power that they are read with the clock settled."""


def compile_job(config: GemmConfig, shape: Shape) -> Job:
    """What must be compiled: tile order and the number of splits are run-time values."""
    return replace(config, group_m=8, split_k=min(config.split_k, 2)), shape[1] * 2 % 16 == 0


def floor_us(shape: Shape) -> float:
    """A lower bound of the time, to size the graphs."""
    m, n, k = shape
    return max(2 * m * n * k / 900e12, 2 * (m * k + n * k + m * n) / 4.8e12) * 1e6 + 3


def power_limited(shape: Shape) -> bool:
    m, n, k = shape
    return m * n * k / (m * k + n * k + m * n) > POWER_LIMITED_FLOP_PER_BYTE


def exhaustive(shape: Shape, space: list[GemmConfig], sets: list[Operands]) -> dict[str, Any]:
    """Every configuration's median time, in a shuffled order, with cuBLAS read again every few configurations.

    A kernel dense enough to be limited by power is run until the clock has settled before it is read: a card that
    comes from a pause is faster for some tens of milliseconds.
    """
    estimate = floor_us(shape)
    settle_ms, read_ms = (30.0, 25.0) if power_limited(shape) else (2.0, 6.0)
    cublas = capture(PEERS["cublas"](sets).launches, estimate)
    run_for(*cublas, 10 * settle_ms)
    order = list(range(len(space)))
    random.Random(0).shuffle(order)
    times: dict[int, list[float]] = {}
    baseline: list[float] = []
    for position, index in enumerate(order):
        if position % CUBLAS_EVERY == 0:
            run_for(*cublas, settle_ms)
            baseline.append(round(summary(run_for(*cublas, read_ms))["us"], 3))
        o = space[index]
        graph = capture([prepare_launch(s.a, s.b, o, s.c) for s in sets], estimate)
        run_for(*graph, settle_ms)
        sample = summary(run_for(*graph, read_ms))
        times[index] = [round(sample[key], 3) for key in ("us", "low_us", "high_us")] + [position // CUBLAS_EVERY]
        del graph
    return {"times": [times[i] for i in range(len(space))], "cublas_us": baseline}


def ranking(shape: Shape) -> list[tuple[GemmConfig, float]]:
    """The planner's order with no GPU; empty where no profile is embedded yet."""
    from warpplan.kernels.gemm.kernel import Gemm
    from warpplan.planner.errors import WarpplanError

    try:
        ranked = Gemm().ranked(shape, DTYPE, TARGET, PROFILE)
    except WarpplanError as error:
        print(f"no ranking: {error}", file=sys.stderr)
        return []
    return [(config, prediction.time_us) for config, prediction in ranked]


def relative_error(launch: Callable[[], object], o: Operands) -> float:
    """‖C − ref‖ / ‖ref‖ of one launch into a poisoned C; the reference is fp32 without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    o.c.fill_(float("nan"))
    launch()
    reference = o.a.float() @ o.b.float().T
    return ((o.c.float() - reference).norm() / reference.norm()).item()


def search(shape: Shape, failed: set[Job], sets: list[Operands], table: Path | None) -> tuple[list[GemmConfig], Row]:
    """The configurations, best first, and the raw row: measured now, or read from an earlier table."""
    if table is not None:
        (measured,) = [m for m in read(table) if m.shape == shape]
        return [measured.configs[i] for i in np.argsort(measured.time_us)], {}
    space = [c for c in candidates(shape, DTYPE, TARGET, PROFILE.costs) if compile_job(c, shape) not in failed]
    found = exhaustive(shape, space, sets)
    raw = {
        "kernel": "gemm", "shape": shape, "dtype": DTYPE, "split": split_of(shape), "cublas_us": found["cublas_us"],
        "configs": [list(vars(c).values()) for c in space], "times_us": found["times"],
    }  # fmt: skip
    steady = steady_us(np.array(found["times"]), np.array(found["cublas_us"]))
    return [space[i] for i in np.argsort(steady)], raw


def compare(shape: Shape, best_first: list[GemmConfig], sets: list[Operands], peers: list[str], rounds: int) -> Row:
    """The chosen plan, the best few of the ranking and of the search, and the peers, timed alternately."""
    known = set(best_first)
    ranked = [(c, t) for c, t in ranking(shape) if c in known]
    names: dict[GemmConfig, str] = {}
    for config in [c for c, _ in ranked[:FINALISTS]] + best_first[:FINALISTS]:
        names.setdefault(config, f"config{len(names)}")
    contenders = {name: [prepare_launch(o.a, o.b, c, o.c) for o in sets] for c, name in names.items()}
    ran: dict[str, Peer] = {}
    for peer in peers:
        try:
            ran[peer] = PEERS[peer](sets)
            contenders[peer] = ran[peer].launches
        except Exception as error:
            print(f"{shape}: peer {peer} failed: {type(error).__name__}: {error}", file=sys.stderr)
    durations = (20.0, 15.0) if power_limited(shape) else (1.0, 4.0)
    times = {name: summary(t) for name, t in paired(contenders, floor_us(shape), rounds, *durations).items()}
    ours = {config: times[name] for config, name in names.items()}
    best = min(ours, key=lambda c: ours[c]["us"])
    row: Row = {
        "kernel": "gemm", "shape": shape, "dtype": DTYPE, "split": split_of(shape),
        "best_us": ours[best]["us"], "best_config": vars(best),
        "peers": {p: times[p]["us"] for p in ran},
        "search_seconds": {p: round(r.search_seconds, 2) for p, r in ran.items()},
        "spread": {name: [round(t["low_us"], 3), round(t["high_us"], 3)] for name, t in times.items()},
        "configurations": len(best_first),
    }  # fmt: skip
    if ranked:
        chosen, predicted = ranked[0]
        row |= {
            "chosen_us": ours[chosen]["us"], "config": vars(chosen), "predicted_us": predicted,
            "best_of_8_us": min(ours[c]["us"] for c, _ in ranked[:FINALISTS]),
            "chosen_name": names[chosen],
            "chosen_relative_error": relative_error(contenders[names[chosen]][0], sets[0]),
        }  # fmt: skip
    return row


def split_of(shape: Shape) -> str:
    return "heldout" if shape in HELDOUT else "train"


def line(row: Row) -> str:
    """The row in one line: times of the peers and of the best configuration over the chosen plan's."""
    us = row.get("chosen_us", row["best_us"])
    others = {"best": row["best_us"], **row["peers"]}
    return f"{row['split']} {row['shape']}: {us:.2f} us; " + ", ".join(f"{n} {t / us:.3f}" for n, t in others.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", choices=("train", "heldout", "all"), default="all")
    parser.add_argument("--peers", default="cublas,autotune,inductor")
    parser.add_argument("--table", type=Path, help="take the search's best from this raw table instead of searching")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument("--limit-s", type=float, default=3600.0, help="start no shape later; what is done is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    started = time.monotonic()
    shapes = [s for s in HELDOUT + TRAIN if arguments.shapes in ("all", split_of(s))]
    if arguments.table is not None:
        shapes = [m.shape for m in read(arguments.table) if m.shape in shapes]
    jobs = sorted({compile_job(c, s) for s in shapes for c in candidates(s, DTYPE, TARGET, PROFILE.costs)})
    failures = prepare(jobs, workers=arguments.workers)
    peers = arguments.peers.split(",")
    if "autotune" in peers:
        compile_peers(arguments.workers)
    name = torch.cuda.get_device_name()
    columns = list(vars(jobs[0][0]))
    failed = [{"config": vars(c), "tma_store": tma, "reason": why} for (c, tma), why in failures.items()]
    for split in ("heldout", "train"):
        compared = {**head("gemm", name), "rows": []}
        raw = {**head("gemm_exhaustive", name), "columns": columns, "failures": failed, "rows": []}
        for shape in [s for s in shapes if split_of(s) == split]:
            if time.monotonic() - started > arguments.limit_s:
                print(f"out of time before {shape}", flush=True)
                break
            sets = operands(shape, torch.bfloat16)
            best_first, raw_row = search(shape, set(failures), sets, arguments.table)
            compared["rows"].append(compare(shape, best_first, sets, peers, arguments.rounds))
            write(arguments.out / f"gemm_h200_{split}.json", compared)
            if raw_row:
                raw["rows"].append(raw_row)
                write(arguments.out / f"gemm_exhaustive_h200_{split}.json", raw)
            del sets
            torch.cuda.empty_cache()
            print(f"{line(compared['rows'][-1])}; {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
