"""GPU: flex attention as ``torch.compile`` generates it, forward and backward, planned against the same unplanned.

    python benchmarks/bench_flex.py --out benchmarks/results      # -> flex_<card>.json

Each row in a child with a time limit. Both sides are the same compiled function, captured into a CUDA graph before
and after the plans came, timed alternately. A row of the backward pass has the forward pass in it, too. Outputs or
gradients are compared with fp32 attention. The tensors of a row are larger than L2.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_target import CARD
from children import each
from results_file import RESULTS, head
from row_store import RowStore
from time_statistics import geomean
from tl_launch import ended

LIMIT_S = 150.0
ROWS = (
    (4, 16, 4096, 128, "causal"), (4, 16, 4096, 128, "full"), (4, 32, 4096, 64, "causal"),
    (2, 16, 8192, 128, "causal"),
)  # fmt: skip
"""Batch, heads, positions, head size, mask; each forward and backward."""
PASSES = ("forward", "backward")
TOLERANCE = 1e-2
GOAL = 1.10
Shape = tuple[int, int, int, int, str]
Job = tuple[Shape, str]


def compare_jobs(jobs: list[Job]) -> Iterator[dict[str, Any]]:
    """Runs in a child."""
    for shape, which in jobs:
        try:
            yield compare(shape, which)
        except Exception as error:
            yield ended(error)


def compare(shape: Shape, which: str) -> dict[str, Any]:
    import torch
    from graph_timing import capture, interleaved, summary
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from warpplan.kernels import planned_inductor

    batch, heads, positions, size, mask = shape
    torch.manual_seed(7)
    q, k, v, d_out = (
        torch.randn(batch, heads, positions, size, device="cuda", dtype=torch.bfloat16, requires_grad=i < 3)
        for i in range(4)
    )
    causal = mask == "causal"
    blocks = None
    if causal:
        blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, positions, positions, device="cuda")
    compiled = torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks), dynamic=False)

    def forward() -> tuple[Any, ...]:
        return (compiled(q, k, v),)

    def backward() -> tuple[Any, ...]:
        return torch.autograd.grad(compiled(q, k, v), (q, k, v), d_out)

    right = reference(q, k, v, d_out, causal, which)
    call = forward if which == "forward" else backward
    graphs: dict[str, Any] = {}
    errors: dict[str, float] = {}
    flops = 4 * batch * heads * positions**2 * size * (0.5 if causal else 1.0) * (1.0 if which == "forward" else 3.5)

    def add(name: str) -> None:
        call()  # a kernel's first launch is never planned
        errors[name] = max(error_of(*pair) for pair in zip(call(), right, strict=True))
        graphs[name] = capture([call], flops / 400e12 * 1e6)

    add("unplanned")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with planned_inductor(background=False) as plans:
            add("planned")
            kernels = list(plans.kernels)
    times = {name: summary(t) for name, t in interleaved(graphs, 9, 20.0, 15.0).items()}
    wrong = any(not error < TOLERANCE for error in errors.values())
    return {
        "status": "wrong" if wrong else "ok", "kernels": kernels, "times": times, "errors": errors,
        "over": {"unplanned": round(times["unplanned"]["us"] / times["planned"]["us"], 4)},
        "warnings": sorted({str(w.message)[:300] for w in said}),
    }  # fmt: skip


def reference(q: Any, k: Any, v: Any, d_out: Any, causal: bool, which: str) -> tuple[Any, ...]:
    """The output, or the gradients, of attention in fp32."""
    import torch

    wide = [t.detach().float().requires_grad_() for t in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    return (out.detach(),) if which == "forward" else torch.autograd.grad(out, wide, d_out.float())


def error_of(found: Any, right: Any) -> float:
    error = ((found.float() - right).norm() / right.norm()).item()
    return float(error) if error == error else float("inf")


def summarised(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The geometric mean of unplanned over planned time, of all rows that are right and of those of each pass."""
    right = [row for row in rows if row["status"] == "ok"]
    ratios = {which: [row["over"]["unplanned"] for row in right if row["pass"] == which] for which in PASSES}
    both = [ratio for which in PASSES for ratio in ratios[which]]
    means = {which: round(geomean(found), 4) for which, found in {**ratios, "all": both}.items() if found}
    return {"unplanned_over_planned": means, "goal": GOAL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-s", type=float, default=400.0, help="start nothing later; what is done is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", metavar="SHAPE", help="such as 2x16x8192x128; others stay as recorded")
    parser.add_argument("--fresh", action="store_true", help="forget the rows of an interrupted run")
    arguments = parser.parse_args()
    import torch

    out = arguments.out / f"flex_{CARD}.json"
    store = RowStore(out, ("shape", "mask", "pass"), {"only": arguments.only}, fresh=arguments.fresh)
    wanted = [
        (shape, which) for shape in ROWS for which in PASSES if not arguments.only or named(shape) in arguments.only
    ]
    left = [job for job in wanted if (named(job[0]), job[0][-1], job[1]) not in store.rows()]

    def report(job: Job, result: dict[str, Any]) -> None:
        shape, which = job
        if result["status"] != "skipped":
            row = {"kernel": "flex_attention", "shape": named(shape), "mask": shape[-1], "pass": which, **result}
            store.add(row)
            print({key: value for key, value in row.items() if key != "times"}, flush=True)

    until = time.monotonic() + arguments.limit_s
    each("bench_flex:compare_jobs", left, limit_s=LIMIT_S, until=until, on_result=report)
    rows, complete = store.beside_recorded(), len(store.rows()) == len(wanted)
    store.write({**head("flex", torch.cuda.get_device_name()), "summary": summarised(rows)}, rows, complete=complete)
    print(summarised(rows))


def named(shape: Shape) -> str:
    return "x".join(map(str, shape[:-1]))


if __name__ == "__main__":
    main()
