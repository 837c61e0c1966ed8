"""Partitions that the solver chose, against today's best strategy and the kernel left alone: predicted and measured.

    python benchmarks/bench_partitions.py --predict                       # no GPU: prints predictions
    python benchmarks/bench_partitions.py --out benchmarks/results        # GPU: -> partitions_<card>.json

Each kernel at one tile. ``served`` is the best strategy of one producer and its consumers, ``solved`` the best whose
assignment of the loop's operations is nearest to the solved free problem (``costing/free_problem.py``); "" where the
free problem chooses what ``served`` is, or nothing else that is lowered. ``free_over_served`` is the served interval
over the shortest that any partition and order has, loop by loop. On a GPU all three are launched from compiled kernels
in one process, their outputs compared with the reference, and timed interleaved by CUDA graphs. Each kernel has a
child with a time limit: a hang costs its row.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import corpus_registry
import triton
from bench_target import CARD, TARGET, require_target
from children import each, first_line
from corpus_entry import options, source, whole_grid
from gpu_jobs import guarded
from results_file import RESULTS, head, write
from triton.backends.compiler import GPUTarget

NAME = f"partitions_{CARD}.json"
HOPPER = GPUTarget("cuda", 90, 32)
LIMIT_S = 300.0
ROUNDS = 21
Row = dict[str, Any]
LARGE = {"M": 4096, "N": 8192, "K": 8192}
KERNELS: tuple[tuple[str, str, dict[str, int], int | dict[str, int]], ...] = (
    ("dequantising int8 GEMM 128x128", "w8a16", LARGE, 3),
    ("dequantising int8 GEMM 128x256", "w8a16", LARGE, {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}),
    ("dequantising int8 GEMM 256x128", "w8a16", LARGE, {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}),
    ("block-scaled fp8 GEMM", "w8a8_block_scaled_descriptors", {}, 0),
    ("attention forward", "attention_host_descriptors_full", {}, 2),
    ("GEMM, bias and GELU", "gemm_host_bias_gelu", {}, 0),
    ("gathered rows", "fused_moe_up", {}, 0),
    ("4-bit weights", "w4a16_packed_rows", LARGE, 3),
    ("gathered rows, int8 weights", "fused_moe_int8_weights", {}, 0),
)
"""(what, entry of the corpus, sizes, number of its configuration or one of its own with 8 warps)."""


def prepared(index: int) -> tuple[Any, Any, Any]:
    """Entry, problem and configuration of a kernel."""
    _, name, sizes, config = KERNELS[index]
    entry = corpus_registry.entries()[name]
    chosen = entry.configs[config] if isinstance(config, int) else triton.Config(config, num_warps=8, num_stages=3)
    return entry, entry.problem({**entry.sizes, **sizes}), chosen


def predicted(index: int) -> tuple[Row, dict[str, Any]]:
    """A row's predictions, and the strategies by side."""
    from warpplan.kernels.compiler.analysis.capture import capture
    from warpplan.kernels.compiler.costing.free_problem import certificates
    from warpplan.kernels.compiler.costing.hopper_ranking import rank
    from warpplan.kernels.compiler.pointers.planned_cut import explained, planned_cut
    from warpplan.service.workflow.profiles import Profiles

    entry, problem, config = prepared(index)
    gpu, profile = TARGET, Profiles().of(TARGET.name).profile
    at_cut = planned_cut(source(entry, problem, config), HOPPER, options(config))
    captured = explained(capture(at_cut.text), at_cut.described)
    ranked = rank(captured, profile, gpu, stages=config.num_stages)
    planned = [r for r in ranked if r.scheme is not None]
    sides = {
        "served": next((r for r in planned if not getattr(r.scheme, "assignment", ())), None),
        "solved": next((r for r in planned if getattr(r.scheme, "assignment", ())), None),
    }
    served = sides["served"]
    found = certificates(captured, served, profile, gpu) if served is not None else ()
    row: Row = {
        "kernel": KERNELS[index][0], "entry": entry.name, "config": str(config),
        "free_over_served": [round(o.served_ii_cycles / o.free_ii_cycles, 3) for o in found],
    }  # fmt: skip
    for side, each_ranked in sides.items():
        row[side] = str(each_ranked.scheme) if each_ranked is not None else ""
        row[f"{side}_predicted_gain"] = round(each_ranked.gain, 3) if each_ranked is not None else None
        row[f"{side}_ii_cycles"] = list(each_ranked.ii_cycles) if each_ranked is not None else []
    return row, {side: r.scheme for side, r in sides.items() if r is not None}


def predict_jobs(jobs: Sequence[int]) -> Iterator[Row]:
    """Runs in a child."""
    for index in jobs:
        try:
            yield predicted(index)[0]
        except Exception as error:
            yield {"status": "error", "reason": first_line(error)}


def measure_jobs(jobs: Sequence[int]) -> Iterator[Row]:
    """Runs in a child with the GPU to itself; it ends where a launch leaves the GPU unusable."""
    return guarded(jobs, measured)


def measured(index: int) -> Row:
    """Predictions, and the median time of each side whose outputs are right."""
    import torch
    from corpus_launch import Made, arguments, errors
    from graph_timing import paired, summary
    from tl_launch import wait

    from warpplan.kernels.compiler.strategy.stage_hook import compile_with

    row, schemes = predicted(index)
    entry, problem, config = prepared(index)
    code, constants = source(entry, problem, config), entry.constants(problem, config)
    made = Made(problem, seed=index)
    given = arguments(problem, made.views, constants)
    values = [constants[p.name] if p.is_constexpr else given[p.name] for p in entry.jit.params]
    wanted = problem.reference({name: view.clone() for name, view in made.views.items()})
    launches, failed = {}, {}
    for side, scheme in {"unplanned": None, **schemes}.items():
        try:
            compiled = (
                triton.compile(code, target=HOPPER, options=options(config)) if scheme is None
                else compile_with(code, HOPPER, options(config), scheme)
            )  # fmt: skip
        except Exception as error:
            failed[side] = first_line(error)
            continue
        launcher = compiled[whole_grid(entry, problem, constants)]
        made.reset()
        launcher(*values)
        wait()
        error = errors(made.outputs(), wanted)
        if error <= entry.tolerance:
            launches[side] = [lambda launcher=launcher: launcher(*values)]
        else:
            failed[side] = f"error {error:.2e}"
    times = {side: summary(found) for side, found in paired(launches, 200.0, ROUNDS, 20.0, 20.0).items()}
    return {
        **row,
        "status": "ok",
        "times": times,
        "failed": failed,
        "overwritten": made.overwritten(),
        "device": torch.cuda.get_device_name(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of the kernels' names")
    parser.add_argument("--predict", action="store_true", help="print predictions, which need no GPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    jobs = [i for i, (what, *_) in enumerate(KERNELS) if not arguments.words or any(w in what for w in arguments.words)]
    target = "bench_partitions:predict_jobs" if arguments.predict else "bench_partitions:measure_jobs"
    rows: list[Row] = []

    def keep(index: int, result: Row) -> None:
        require_target(result.get("device", TARGET.name))
        rows.append({"kernel": KERNELS[index][0], **result})
        print(told(rows[-1]), flush=True)
        if not arguments.predict:
            write(arguments.out / NAME, {**head("partitions", TARGET.name), "rows": rows})

    each(target, jobs, limit_s=LIMIT_S, on_result=keep)


def told(row: Row) -> str:
    """A row in words."""
    sides = [side for side in ("served", "solved") if row.get(side)]
    return "\n  ".join([
        f"{row['kernel']}: {row.get('reason', '')}",
        *(f"{side}: {row[side]}, predicted {row[f'{side}_predicted_gain']:.3f}" for side in sides),
        *(f"{side}: {found}" for side, found in row.get("times", {}).items()),
        f"free over served: {row.get('free_over_served')} {row.get('failed') or ''}",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
