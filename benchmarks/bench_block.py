"""GPU: a decoder block of Llama 3 8B, forward and backward, with planned linear layers and attention and without.

    python benchmarks/bench_block.py --out benchmarks/results

Each case runs in a child with a time limit: the block as it is (cuDNN's attention where torch can choose it), the same
under ``torch.compile``, and that with ``patch`` and ``warpplan.kernels.attention``. All have the same weights; output
and gradients are compared with float32 before anything is timed, then the three are timed in turn. A step takes
milliseconds, so that no graph is needed to hide the host. Writes ``block_<card>.json``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench_target import CARD, require_target
from children import each
from results_file import RESULTS, head, write
from time_statistics import geomean

NAME = f"block_{CARD}.json"
CASES = {"train": [(1, 2048), (2, 4096)], "heldout": [(1, 4096), (4, 2048), (1, 8192), (3, 1024)]}
"""(batch, tokens of each)."""
GOAL = 1.03
LIMIT_S = 280.0
ROUNDS, SETTLE_MS, READ_MS = 9, 60.0, 150.0
WORST = 1.5
"""Times the error of torch's own block in bfloat16, with which ours is compared."""
EAGER, COMPILED, OURS = "eager", "torch.compile", "warpplan"


def compare_jobs(jobs: list[tuple[str, int, int]]) -> Iterator[dict[str, Any]]:
    """Runs in a child: (split, batch, length)."""
    from tl_launch import ended

    for _, batch, length in jobs:
        try:
            yield compare(batch, length)
        except Exception as error:
            yield (result := ended(error))
            if "fatal" in result:
                os._exit(1)


def compare(batch: int, length: int) -> dict[str, Any]:
    import torch
    from graph_timing import summary
    from llama_block import BlockSizes, gradients, relative_errors
    from llama_block import block as made
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from warpplan.kernels import attention, patch

    torch.backends.cuda.matmul.allow_tf32 = False
    sizes = BlockSizes(batch, length)

    def cudnn(*tensors: Any, **options: Any) -> Any:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
            return scaled_dot_product_attention(*tensors, **options)

    generator = torch.Generator("cuda").manual_seed(length)
    shape = (batch, length, sizes.width)
    x, dy = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator) for _ in range(2))
    exact = made(sizes, scaled_dot_product_attention, "cuda", torch.float32)
    right = gradients(exact, exact, x.float(), dy.float())
    del exact
    ours = made(sizes, attention, "cuda", torch.bfloat16)
    report = patch(ours)
    peer = made(sizes, cudnn, "cuda", torch.bfloat16)
    steps: dict[str, tuple[Any, Any]] = {
        EAGER: (peer, peer),
        COMPILED: (torch.compile(peer, dynamic=False), peer),
        OURS: (torch.compile(ours, dynamic=False), ours),
    }
    errors = {name: relative_errors(gradients(*step, x, dy), right) for name, step in steps.items()}
    del right
    wrong = [name for name, error in errors[OURS].items() if not error <= WORST * errors[EAGER][name] + 1e-4]
    calls = {name: _step(*step, x, dy) for name, step in steps.items()}
    times = {name: summary(t) for name, t in _in_turn(calls).items()}
    return {
        "status": "wrong" if wrong else "ok", "wrong": wrong, "times": times, "errors": errors, "left": report.left,
        "flops": sizes.flops,
    }  # fmt: skip


def _step(call: Any, module: Any, x: Any, dy: Any) -> Callable[[], None]:
    def step() -> None:
        module.zero_grad(set_to_none=True)
        call(x.detach().requires_grad_()).backward(dy)

    return step


def _in_turn(calls: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """µs a step of each round, each call run warm before it is read; the order turns from round to round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(ROUNDS + 1):
        for name in calls if round_ % 2 else reversed(calls):
            _run_for(calls[name], SETTLE_MS)
            us = _run_for(calls[name], READ_MS)
            if round_:
                times[name].append(us)
    return times


def _run_for(call: Callable[[], None], milliseconds: float) -> float:
    """Mean µs of a call over about so long, at least three calls."""
    import torch

    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    call()
    ended.record()
    ended.synchronize()
    count = max(3, round(milliseconds / begun.elapsed_time(ended)))
    begun.record()
    for _ in range(count):
        call()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) * 1e3 / count


def compared(split: str, batch: int, length: int, result: dict[str, Any]) -> dict[str, Any]:
    """A results row; ``over`` is another's time over ours, "best" the faster peer's."""
    row = {"kernel": "llama block", "split": split, "batch": batch, "length": length, **result}
    times = result.get("times")
    if result["status"] == "ok" and times:
        us = times[OURS]["us"]
        row["over"] = {name: round(t["us"] / us, 4) for name, t in times.items() if name != OURS}
        row["over"]["best"] = min(row["over"].values())
        row["tflops"] = round(result["flops"] / us * 1e-6, 1)
    return row


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By split: the geometric mean and the least of the faster peer's time over ours, and what went wrong."""
    found: dict[str, Any] = {"goal": GOAL}
    for split in CASES:
        over = [row["over"]["best"] for row in rows if row["split"] == split and "over" in row]
        if over:
            found[split] = {"mean": round(geomean(over), 4), "least": min(over), "cases": len(over)}
    found["failed"] = [[row["batch"], row["length"], row["status"]] for row in rows if row["status"] != "ok"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", choices=sorted(CASES), action="append", help="both by default")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="of a case")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    jobs = [(split, *case) for split in arguments.split or CASES for case in CASES[split]]
    import torch

    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU")
    device, rows = torch.cuda.get_device_name(), []
    require_target(device)

    def report(job: Any, result: dict[str, Any]) -> None:
        rows.append(compared(*job, result))
        print(rows[-1].get("over", rows[-1]["status"]), job, flush=True)
        write(arguments.out / NAME, {**head("block", device), "summary": summary_of(rows), "rows": rows})

    each("bench_block:compare_jobs", jobs, limit_s=arguments.limit_s, on_result=report)


if __name__ == "__main__":
    main()
