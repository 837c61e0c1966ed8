"""Jobs in child processes, each with a time limit; one that hangs or crashes costs its own result and no other's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

from warpplan.kernels.isolate import run_isolated

Result = dict[str, Any]


def each(
    target: str,
    jobs: Sequence[Any],
    *,
    limit_s: float,
    start_limit_s: float | None = None,
    workers: int = 1,
    until: float = float("inf"),
    stop: Callable[[], bool] | None = None,
    skip: Callable[[Any], str] = lambda job: "",
    on_result: Callable[[Any, Result], None] = lambda job, result: None,
) -> list[Result]:
    """``target`` ("module:function") takes a list of JSON jobs and yields a dict for each; one for each job comes back.

    A child that dies, or is silent for ``limit_s``, gives ``{"status", "reason"}`` for the job it was at, and another
    child goes on with the next. A child may first yield ``{"started": True}``, which is no result, and has
    ``start_limit_s`` for it. A dict with ``"fatal"`` true says that its child ends there by its own will. Whenever a
    child starts, jobs for which ``skip`` gives a reason are left out, and all are after ``until`` (``time.monotonic``).
    Once ``stop`` says so, or this process is interrupted, children are killed at what they are at, and what is left is
    skipped.
    """
    results: list[Result] = [{} for _ in jobs]
    interrupted = Event()

    def must_stop() -> bool:
        return interrupted.is_set() or (stop is not None and stop())

    def finish(index: int, result: Result) -> None:
        results[index] = result
        on_result(jobs[index], result)

    def work(indices: list[int]) -> None:
        while indices:
            left = []
            for index in indices:
                reason = "out of time" if time.monotonic() > until else skip(jobs[index])
                if reason:
                    finish(index, {"status": "skipped", "reason": reason})
                else:
                    left.append(index)
            if not left:
                return
            finished: list[Result] = []

            def take(item: Result, left: list[int] = left, finished: list[Result] = finished) -> None:
                if not item.get("started"):
                    finish(left[len(finished)], item)
                    finished.append(item)

            child = run_isolated(
                target, [[jobs[index] for index in left]], time_limit_s=limit_s, start_limit_s=start_limit_s,
                on_item=take, stop=must_stop,
            )  # fmt: skip
            done = len(finished)
            if child.status == "stopped":
                for index in left[done:]:
                    finish(index, {"status": "skipped", "reason": "out of time"})
                return
            if done < len(left) and not (finished and finished[-1].get("fatal")):
                finish(left[done], {"status": child.status, "reason": child.reason})
                done += 1
            indices = left[done:]

    workers = max(1, min(workers, len(jobs)))
    with ThreadPoolExecutor(workers) as pool:
        try:
            for future in [pool.submit(work, list(range(w, len(jobs), workers))) for w in range(workers)]:
                future.result()
        except BaseException:
            interrupted.set()  # leaving the pool waits for its threads, and those for their children
            raise
    return results


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:300]
