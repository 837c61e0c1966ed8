"""First compile and first run of every configuration in child processes, each with a time limit; results are compared.

Fills Triton's disk cache on all cores, so that the timing process compiles nothing. A configuration that crashes,
hangs, or computes something else is reported and left out of the timing, never the end of the run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from multiprocessing import get_context

from warpplan.kernels.gemm.space import GemmConfig

CHECK_SHAPE = (392, 776, 1032)
"""No multiple of any tile, several tiles of the largest, 17 iterations of the shortest."""
TOLERANCE = 1e-2


def check(config: GemmConfig, tma_store: bool, shape: tuple[int, int, int] = CHECK_SHAPE) -> float:
    """Relative error ‖C − ref‖ / ‖ref‖ of one run on fresh random inputs, the output poisoned first."""
    import torch

    from warpplan.kernels.gemm.launch import gemm

    m, n, k = shape
    torch.backends.cuda.matmul.allow_tf32 = False
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    c = torch.full((m, n + (0 if tma_store else 1)), float("nan"), device="cuda", dtype=torch.bfloat16)[:, :n]
    gemm(a, b, config, out=c)
    reference = a.float() @ b.float().T
    error = ((c.float() - reference).norm() / reference.norm()).item()
    return error if error == error else float("inf")


def prepare(
    jobs: Iterable[tuple[GemmConfig, bool]], *, workers: int, limit_s: float = 90.0
) -> dict[tuple[GemmConfig, bool], str]:
    """Run :func:`check` for every (config, tma_store); the failures with their reasons."""
    from pebble import ProcessExpired, ProcessPool

    jobs = list(jobs)
    failures: dict[tuple[GemmConfig, bool], str] = {}
    started = time.monotonic()
    with ProcessPool(max_workers=workers, context=get_context("spawn")) as pool:
        futures = [pool.schedule(check, args=job, timeout=limit_s) for job in jobs]
        for done, (job, future) in enumerate(zip(jobs, futures, strict=True), 1):
            try:
                error = future.result()
                if not error < TOLERANCE:
                    failures[job] = f"relative error {error:.3g}"
            except FutureTimeout:
                failures[job] = f"no result within {limit_s:.0f} s"
            except ProcessExpired as crash:
                failures[job] = f"the process died with exit code {crash.exitcode}"
            except Exception as error:
                failures[job] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
            if job in failures:
                print(f"failed: {job[0]} tma_store={job[1]}: {failures[job]}", flush=True)
            if done % 50 == 0:
                print(f"prepared {done}/{len(jobs)} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print(
        f"prepared {len(jobs)} configurations, {len(failures)} failed, {time.monotonic() - started:.0f} s", flush=True
    )
    return failures


def compile_peers(workers: int, limit_s: float = 90.0) -> None:
    """Compile the autotuned peer's list on all cores, so that its search is timed without compilation."""
    from gemm_peers import configs, warm_autotune
    from pebble import ProcessPool

    with ProcessPool(max_workers=workers, context=get_context("spawn")) as pool:
        futures = [pool.schedule(warm_autotune, args=(i,), timeout=limit_s) for i in range(len(configs()))]
        for index, future in enumerate(futures):
            if (error := future.exception()) is not None:
                print(f"autotuned peer, configuration {index}: {type(error).__name__}", file=sys.stderr)


def default_workers() -> int:
    return max(1, (os.cpu_count() or 2) - 2)
