"""GEMM on the GPU: the chosen plan against cuBLAS, the exhaustive search of our space, Triton's autotuner and Inductor.

    python benchmarks/bench_gemm.py --shapes all --out benchmarks/results

Writes ``gemm_h200.json`` (the comparison) and ``gemm_exhaustive_h200.json`` (every configuration's time, from which
``benchmarks/regret.py`` replays the ranking without a GPU). Each shape's contenders are timed in turn in one process.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gemm_operands import operands
from gemm_peers import PEERS, Peer, configs, warm_autotune
from gemm_prepare import default_workers, prepare
from gemm_shapes import HELDOUT, TRAIN
from gemm_table import steady_us
from graph_timing import capture, paired, run_for, summary
from results_file import head, write

from warpplan.kernels.gemm.candidates import candidates
from warpplan.kernels.gemm.launch import prepare as prepare_launch
from warpplan.kernels.gemm.space import GemmConfig
from warpplan.planner.device import device

Shape = tuple[int, int, int]
Job = tuple[GemmConfig, bool]
DTYPE = "bfloat16"
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


def exhaustive(shape: Shape, space: list[GemmConfig], sets: list[Any]) -> dict[str, Any]:
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
    for turn, index in enumerate(order):
        if turn % CUBLAS_EVERY == 0:
            run_for(*cublas, settle_ms)
            baseline.append(round(summary(run_for(*cublas, read_ms))["us"], 3))
        o = space[index]
        graph = capture([prepare_launch(s.a, s.b, o, s.c) for s in sets], estimate)
        run_for(*graph, settle_ms)
        sample = summary(run_for(*graph, read_ms))
        times[index] = [round(sample[key], 3) for key in ("us", "low_us", "high_us")] + [turn // CUBLAS_EVERY]
        del graph
    return {"times": [times[i] for i in range(len(space))], "cublas_us": baseline}


def ranking(shape: Shape) -> list[tuple[GemmConfig, float]]:
    """The planner's order with no GPU; empty where no profile is embedded yet."""
    from warpplan.kernels.gemm.kernel import Gemm
    from warpplan.planner.errors import WarpplanError
    from warpplan.profiler.embedded import embedded

    target = device("NVIDIA H200")
    try:
        ranked = Gemm().ranked(shape, DTYPE, target, embedded(target.name))
    except WarpplanError as error:
        print(f"no ranking: {error}", file=sys.stderr)
        return []
    return [(config, prediction.time_us) for config, prediction in ranked]


def compare(
    shape: Shape, split: str, failed: set[Job], peers: list[str], rounds: int, plan: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(comparison row, exhaustive row) of one shape."""
    space = [c for c in candidates(shape, DTYPE, device("NVIDIA H200")) if compile_job(c, shape) not in failed]
    sets = operands(shape, torch.bfloat16)
    search = exhaustive(shape, space, sets)
    raw = {
        "kernel": "gemm", "shape": shape, "dtype": DTYPE, "split": split, "cublas_us": search["cublas_us"],
        "configs": [list(vars(c).values()) for c in space], "times_us": search["times"],
    }  # fmt: skip
    steady = steady_us(np.array(search["times"]), np.array(search["cublas_us"])).tolist()
    by_time = sorted(range(len(space)), key=steady.__getitem__)
    ranked = [(c, t) for c, t in ranking(shape) if c in set(space)] if plan else []
    names: dict[GemmConfig, str] = {}
    for config in [c for c, _ in ranked[:FINALISTS]] + [space[i] for i in by_time[:FINALISTS]]:
        names.setdefault(config, f"config{len(names)}")
    contenders = {name: [prepare_launch(o.a, o.b, c, o.c) for o in sets] for c, name in names.items()}
    ran: dict[str, Peer] = {}
    for peer in peers:
        try:
            ran[peer] = PEERS[peer](sets)
            contenders[peer] = ran[peer].launches
        except Exception as error:
            print(f"{shape}: peer {peer} failed: {type(error).__name__}: {error}", file=sys.stderr)
    times = {name: summary(t) for name, t in paired(contenders, floor_us(shape), rounds).items()}
    ours = {config: times[name] for config, name in names.items()}
    best = min(ours, key=lambda c: ours[c]["us"])
    row: dict[str, Any] = {
        "kernel": "gemm", "shape": shape, "dtype": DTYPE, "split": split,
        "best_us": ours[best]["us"], "best_config": vars(best),
        "peers": {p: times[p]["us"] for p in ran if p in times},
        "search_seconds": {p: round(r.search_seconds, 2) for p, r in ran.items()},
        "spread": {name: [round(t["low_us"], 3), round(t["high_us"], 3)] for name, t in times.items()},
        "configurations": len(space),
    }  # fmt: skip
    if ranked:
        chosen, predicted = ranked[0]
        row |= {
            "chosen_us": ours[chosen]["us"], "config": vars(chosen), "predicted_us": predicted,
            "best_of_8_us": min(ours[c]["us"] for c, _ in ranked[:FINALISTS]),
            "chosen_name": names[chosen],
        }  # fmt: skip
    return row, raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", choices=("train", "heldout", "all"), default="all")
    parser.add_argument("--peers", default="cublas,autotune,inductor")
    parser.add_argument("--no-plan", action="store_true", help="exhaustive search only, before any profile exists")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument(
        "--limit-s", type=float, default=570.0, help="stop before this many seconds, keeping what is done"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    started = time.monotonic()
    chosen = [(s, "heldout") for s in HELDOUT if arguments.shapes != "train"]
    chosen += [(s, "train") for s in TRAIN if arguments.shapes != "heldout"]
    jobs = sorted({compile_job(c, s) for s, _ in chosen for c in candidates(s, DTYPE, device("NVIDIA H200"))})
    failures = prepare(jobs, workers=arguments.workers)
    peers = arguments.peers.split(",")
    if "autotune" in peers:
        from pebble import ProcessPool

        with ProcessPool(max_workers=arguments.workers) as pool:
            list(pool.map(warm_autotune, range(len(configs())), timeout=90).result())
    name = torch.cuda.get_device_name()
    compared, raw = head("gemm", name), head("gemm_exhaustive", name)
    compared["rows"], raw["rows"] = [], []
    raw["columns"] = list(vars(jobs[0][0]))
    raw["failures"] = [{"config": vars(c), "tma_store": tma, "reason": why} for (c, tma), why in failures.items()]
    for shape, split in chosen:
        if time.monotonic() - started > arguments.limit_s:
            print(f"out of time before {shape}", flush=True)
            break
        row, exhaustive_row = compare(shape, split, set(failures), peers, arguments.rounds, not arguments.no_plan)
        compared["rows"].append(row)
        raw["rows"].append(exhaustive_row)
        write(arguments.out / "gemm_h200.json", compared)
        write(arguments.out / "gemm_exhaustive_h200.json", raw)
        torch.cuda.empty_cache()
        peer_text = " ".join(f"{p} {us / row['best_us']:.3f}" for p, us in row["peers"].items())
        chosen_text = f"chosen {row['best_us'] / row['chosen_us']:.3f}" if "chosen_us" in row else ""
        print(
            f"{split} {shape}: best {row['best_us']:.2f} us; {peer_text}; {chosen_text}; {time.monotonic() - started:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
