"""The vector addition on a GPU: the chosen configuration against the best of the whole space and torch.add.

    python3 benchmarks/bench_vector_add.py --out benchmarks/results

Each length is measured in a child process of its own, under a time limit: every configuration and torch.add as CUDA
graphs, replayed alternately, over random operands in enough buffers that L2 holds none of the next launch's.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_target import CARD, TARGET, require_target
from children import each
from results_file import head, write

from warpplan.kernels.timing import COLD_L2_MULTIPLE, Timing, paired
from warpplan.kernels.vector_add.kernel import VectorAdd
from warpplan.kernels.vector_add.space import ELEMENT_BYTES, VectorAddConfig, candidates, config_of
from warpplan.profiler.embedded import embedded

# Fixed before the first run.
TRAIN = (2**12, 2**16, 2**20, 2**24, 2**28, 98_432, 10**7)
HELDOUT = (3 * 2**14, 2**18 + 1, 5 * 10**6, 2**26 + 5, 2**30, 123_457)
DTYPES = ("float32", "bfloat16")
PEER = "torch.add"
MAX_SETS = 4_096
"""Of the smallest operands: together still more than L2 holds."""
ALIGNMENT = 128
"""Elements: every set starts on a cache line."""
ROUNDS, WARM_S = 12, 0.3
ROW_LIMIT_S, ALL_LIMIT_S = 60.0, 150.0


def split_of(length: int) -> str:
    return "heldout" if length in HELDOUT else "train"


def name_of(config: VectorAddConfig) -> str:
    return f"{config.block_size}x{config.num_warps}"


def ranking(length: int, dtype: str) -> list[tuple[VectorAddConfig, float]]:
    """Every configuration with its predicted time in µs, best first."""
    ranked = VectorAdd().rank((length,), dtype, TARGET, embedded(TARGET.name), limit=len(candidates(dtype)))
    return [(config_of(r.config), r.prediction.time_us) for r in ranked]


def set_count(length: int, element_bytes: int, l2_bytes: int) -> int:
    """Operand sets to rotate through, so that a set's next use finds L2 full of others."""
    return min(MAX_SETS, 1 + math.ceil(COLD_L2_MULTIPLE * l2_bytes / (3 * length * element_bytes)))


def row(length: int, dtype: str, times: dict[str, Timing]) -> dict[str, Any]:
    """The measured times as a row of the results file; times in µs."""
    ranked = ranking(length, dtype)
    chosen, predicted_us = ranked[0]
    best = min((config for config, _ in ranked), key=lambda config: times[name_of(config)].median_us)
    return {
        "kernel": "vector_add",
        "shape": [length],
        "dtype": dtype,
        "split": split_of(length),
        "chosen_us": times[name_of(chosen)].median_us,
        "best_us": times[name_of(best)].median_us,
        "predicted_us": predicted_us,
        "peers": {PEER: times[PEER].median_us},
        "spread": {name: [t.p10_us, t.p90_us] for name, t in times.items()},
        "config": vars(chosen),
        "best_config": vars(best),
        "configurations": len(ranked),
    }


def measure(jobs: list[list[Any]]) -> Iterator[dict[str, Any]]:
    """In the child: a row, or why there is none, for each (length, dtype)."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA GPU")
    for length, dtype in jobs:
        yield {"row": row(length, dtype, timings(length, dtype)), "device": torch.cuda.get_device_name()}
        torch.cuda.empty_cache()


def timings(length: int, dtype: str) -> dict[str, Timing]:
    """Every configuration and torch.add, checked to the bit first, then timed alternately."""
    import torch

    from warpplan.kernels.vector_add.launch import prepare
    from warpplan.kernels.vector_add.reference import reference

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    sets = set_count(length, ELEMENT_BYTES[dtype], l2_bytes)
    padded = -(-length // ALIGNMENT) * ALIGNMENT
    kind = getattr(torch, dtype)
    x, y = (torch.randn(sets, padded, device="cuda", dtype=torch.float32).to(kind) for _ in range(2))
    out = torch.empty_like(x)
    rows = [(x[i, :length], y[i, :length], out[i, :length]) for i in range(sets)]
    expected = reference(*rows[0][:2])
    contenders = {}
    for config in candidates(dtype):
        launches = [prepare(a, b, config, c) for a, b, c in rows]
        out[0].fill_(float("nan"))
        launches[0]()
        if not torch.equal(rows[0][2], expected) or not bool(out[0, length:].isnan().all()):
            raise AssertionError(f"{name_of(config)} gives another result")
        contenders[name_of(config)] = lambda i, launches=launches: launches[i]()
    contenders[PEER] = lambda i: torch.add(rows[i][0], rows[i][1], out=rows[i][2])
    return paired(contenders, sets=sets, baseline=PEER, rounds=ROUNDS, warm_s=WARM_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    parser.add_argument(
        "--limit-s", type=float, default=ALL_LIMIT_S, help="start no length later; what is done is kept"
    )
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.limit_s
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    name = ""
    for length in (*HELDOUT, *TRAIN):
        jobs = [[length, dtype] for dtype in DTYPES]
        results = each(f"{Path(__file__).stem}:measure", jobs, limit_s=ROW_LIMIT_S, until=until)
        for (_, dtype), result in zip(jobs, results, strict=True):
            if "row" not in result:
                failures.append({"shape": [length], "dtype": dtype, **result})
                print(f"N={length} {dtype}: {result['status']}: {result['reason']}", file=sys.stderr, flush=True)
                continue
            name, found = result["device"], result["row"]
            require_target(name)
            rows.append(found)
            chosen, peer = found["chosen_us"], found["peers"][PEER]
            print(
                f"{found['split']} N={length} {dtype}: {chosen:.2f} us; best {found['best_us'] / chosen:.3f}, "
                f"{PEER} {peer / chosen:.3f}, predicted {found['predicted_us'] / chosen:.3f}",
                flush=True,
            )
        if not rows:
            break  # no GPU, or nothing works: the next length would fare no better
        begin = {**head("vector_add", name), "failures": failures}
        write(arguments.out / f"vector_add_{CARD}.json", {**begin, "rows": rows})
    return 0 if rows and not failures else 1


if __name__ == "__main__":
    sys.exit(main())
