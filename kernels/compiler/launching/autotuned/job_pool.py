"""Jobs in children on all cores, each with a time limit; one that hangs or crashes costs its own result alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from warpplan.kernels.isolate import run_isolated
from warpplan.kernels.triton_types import Json

IMPORT_S = 60.0
"""Seconds by the clock that a child may take to start, beside its first job. Chosen by hand."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def run_jobs(
    target: str, shared: dict[str, Json], jobs: Sequence[dict[str, Json]], *, time_limit_s: float
) -> list[dict[str, Json]]:
    """``target`` ("module:function") takes ``shared`` and a list of jobs and yields a dict for each; one for each of
    ``jobs`` comes back, in their order.

    A child that dies, or is silent for ``time_limit_s``, gives ``{"reason"}`` for the job that it was at, and another
    child goes on with the next. The first jobs are begun first, on whichever core.
    """
    results: list[dict[str, Json]] = [{} for _ in jobs]

    def work(indices: list[int]) -> None:
        while indices:
            child = run_isolated(
                target, [shared, [jobs[index] for index in indices]],
                time_limit_s=time_limit_s, start_limit_s=IMPORT_S + time_limit_s,
            )  # fmt: skip
            done = min(len(child.items), len(indices))
            for index, item in zip(indices, child.items, strict=False):
                results[index] = item
            if done < len(indices):
                results[indices[done]] = {"reason": child.reason or "the child ended without an answer"}
                done += 1
            indices = indices[done:]

    workers = max(1, min(cores(), len(jobs)))
    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(work, list(range(w, len(jobs), workers))) for w in range(workers)]:
            future.result()
    return results
