"""Jobs in children on many cores, each with a time limit; one that hangs or crashes costs its own result alone.

Children start at once and take jobs as they come, so that what they import is imported once, while whoever has jobs
for them is still finding out which.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType

from warpplan.kernels.compiler.exceptions import CannotPlan, reason_of
from warpplan.kernels.isolate import Child
from warpplan.kernels.triton_types import Json

IMPORT_S = 60.0
"""Seconds by the clock that a child may take to start and prepare itself. Chosen by hand."""

Job = tuple[str, Sequence[Json], "Future[dict[str, Json]]"]


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


class JobPool:
    """At most ``most`` children, no more than there are cores, until it is left or ``stop`` says so: what they are at
    is then given up. Each first calls ``prepare`` ("module:function", then its arguments), whose answer nobody waits
    for."""

    def __init__(
        self, *prepare: Json, most: int, time_limit_s: float, stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.size = max(1, min(cores(), most))
        self._prepare, self._time_limit_s, self._stop = prepare, time_limit_s, stop
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._left = threading.Event()

    def __enter__(self) -> JobPool:
        for _ in range(self.size):
            threading.Thread(target=self._work, name="warpplan-jobs", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        for _ in range(self.size):
            self._jobs.put(None)

    def submit(self, target: str, *arguments: Json) -> Future[dict[str, Json]]:
        """What ``target`` ("module:function") answers, a dict; ``{"reason"}`` where its child dies or is silent for too
        long. Jobs are begun in the order in which they are submitted."""
        answer: Future[dict[str, Json]] = Future()
        self._jobs.put((target, arguments, answer))
        return answer

    def _work(self) -> None:
        child = self._started()
        try:
            while (job := self._jobs.get()) is not None:
                target, arguments, answer = job
                if (child is None or not child.alive) and not self._given_up():
                    child = self._started()
                answer.set_result(self._answer(child, target, arguments))
        finally:
            if child is not None:
                child.kill()

    def _answer(self, child: Child | None, target: str, arguments: Sequence[Json]) -> dict[str, Json]:
        if self._given_up():
            return {"reason": "stopped: nobody waits for it any more"}
        if child is None or not child.alive:
            return {"reason": "no child could be started"}
        try:
            limit_s = self._time_limit_s
            result = child.call(target, arguments, time_limit_s=limit_s, stop=self._given_up)
        except Exception as error:
            return {"reason": reason_of(error, CannotPlan)}
        if result.status != "ok":
            return {"reason": result.reason or "the child ended without an answer"}
        found: dict[str, Json] = result.value
        return found

    def _given_up(self) -> bool:
        return self._left.is_set() or self._stop()

    def _started(self) -> Child | None:
        """A child that is prepared, where one can be started now."""
        try:
            child = Child()
        except OSError:
            return None
        target, *arguments = self._prepare
        child.call(target, arguments, time_limit_s=IMPORT_S, stop=self._given_up)
        return child
