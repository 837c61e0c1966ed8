"""GPU: kernels that ``torch.compile`` generates, planned against the same unplanned, Inductor's own best and cuBLAS.

    python benchmarks/bench_inductor.py --out benchmarks/results

mm, addmm and addmm with a fused SiLU, each in a child with a time limit. "unplanned" and "planned" are the same
compiled function, from Inductor's TMA templates, captured before and after the plans came; "inductor" is max-autotune
with every Triton template; "cublas" is eager. Timed alternately, the L2 cache cold. Writes
``compiler_inductor_h200.json``.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from children import each
from results_file import RESULTS, head, write

NAME = "compiler_inductor_h200.json"
LIMIT_S = 240.0
SHAPES = {"mm": (4096, 4096, 4096), "addmm": (8192, 8192, 4096), "addmm_silu": (8192, 14336, 4096)}
COLD_BYTES = 192 * 2**20
TOLERANCE = 5e-3


def function(kind: str) -> Callable[..., Any]:
    """Of A[M, K], B[N, K] and bias[N]."""
    import torch

    return {
        "mm": lambda a, b, bias: a @ b.T,
        "addmm": lambda a, b, bias: torch.addmm(bias, a, b.T),
        "addmm_silu": lambda a, b, bias: torch.nn.functional.silu(torch.addmm(bias, a, b.T)),
    }[kind]


def reference(kind: str, a: Any, b: Any, bias: Any) -> Any:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    return function(kind)(a.float(), b.float(), bias.float())


def compare_jobs(jobs: list[tuple[str, bool]]) -> Iterator[dict[str, Any]]:
    """Runs in a child: (kind, whether Inductor's own best is compiled, too)."""
    from tl_launch import ended

    for kind, whole in jobs:
        try:
            yield compare(kind, whole)
        except Exception as error:
            yield (result := ended(error))
            if "fatal" in result:
                os._exit(1)


def compare(kind: str, whole: bool) -> dict[str, Any]:
    import torch
    from graph_timing import capture, interleaved, summary

    from warpplan.kernels import planned_inductor
    from warpplan.kernels.compiler.launching.inductor import tma_templates

    m, n, k = SHAPES[kind]
    each_bytes = 2 * (m * k + n * k + m * n)
    sets = [
        tuple(torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (n, k), (n,)))
        for _ in range(max(1, -(-COLD_BYTES // each_bytes)))
    ]
    estimate = 2 * m * n * k / 900e12 * 1e6
    right = reference(kind, *sets[0])
    graphs: dict[str, Any] = {}
    errors: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def add(name: str, call: Callable[..., Any]) -> None:
        started = time.monotonic()
        call(*sets[0])  # a kernel's first launch is never planned
        got = call(*sets[0]).float()
        torch.cuda.synchronize()
        seconds[name] = round(time.monotonic() - started, 2)
        error = ((got - right).norm() / right.norm()).item()
        errors[name] = error if error == error else float("inf")
        graphs[name] = capture([lambda s=s: call(*s) for s in sets], estimate)

    eager = function(kind)
    add("cublas", eager)
    if whole:
        every = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
        add("inductor", torch.compile(eager, options=every, dynamic=False))
        torch._dynamo.reset()
    compiled = torch.compile(eager, options=tma_templates(), dynamic=False)
    add("unplanned", compiled)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with planned_inductor(background=False) as plans:
            add("planned", compiled)
            wrong = {name: error for name, error in errors.items() if not error < TOLERANCE}
            for name in wrong:
                del graphs[name]
            times = {name: summary(t) for name, t in interleaved(graphs, 9, 20.0, 15.0).items()}
            kernels = list(plans.kernels)
    return {
        "status": "wrong" if "planned" in wrong else "ok", "kernels": kernels, "times": times, "errors": errors,
        "first_call_seconds": seconds, "warnings": sorted({str(w.message)[:300] for w in said}),
    }  # fmt: skip


def compared(kind: str, result: dict[str, Any]) -> dict[str, Any]:
    """A results row; ratios are other time over planned time."""
    m, n, k = SHAPES[kind]
    row = {"kernel": f"inductor {kind}", "shape": [m, n, k], "dtype": "bfloat16", **result}
    times = result.get("times", {})
    if "planned" in times:
        us = times["planned"]["us"]
        row["tflops"] = round(2 * m * n * k / us * 1e-6, 1)
        row["over"] = {name: round(t["us"] / us, 4) for name, t in times.items() if name != "planned"}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(SHAPES), help="of mm, addmm, addmm_silu")
    parser.add_argument("--fast", action="store_true", help="leave Inductor's own best out, which is slow to find")
    parser.add_argument("--limit-s", type=float, default=240.0, help="start nothing later; what is done is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    if unknown := set(kinds) - set(SHAPES):
        parser.error(f"kind {min(unknown)!r}: expected some of {', '.join(SHAPES)}")
    import torch

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path.home() / ".cache" / "warpplan-inductor"))
    device, rows = torch.cuda.get_device_name(), []

    def report(job: Any, result: dict[str, Any]) -> None:
        rows.append(compared(job[0], result))
        print({key: value for key, value in rows[-1].items() if key not in ("times", "dtype")}, flush=True)
        write(arguments.out / NAME, {**head("compiler_inductor", device), "rows": rows})

    jobs = [(kind, not arguments.fast) for kind in kinds]
    each(
        "bench_inductor:compare_jobs", jobs, limit_s=LIMIT_S, until=time.monotonic() + arguments.limit_s,
        on_result=report,
    )  # fmt: skip


if __name__ == "__main__":
    main()
