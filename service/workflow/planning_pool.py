"""Planning beside lookups: what is known is answered at once, what is new waits for a few threads of its own.

The routes of a server are coroutines: a question that waits for its plan holds no thread. A question that is asked
again while it is planned waits for the same plan.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from warpplan.planner.errors import StoreError, WarpplanError
from warpplan.service.config_request import ConfigRequest
from warpplan.service.workflow.answers import ConfigAnswer
from warpplan.service.workflow.configure import CHUNK, BatchResult, CheckedItem, Outcomes, Workflow, results
from warpplan.service.workflow.request import Item

PLANNERS = max(2, (os.cpu_count() or 1) // 2)
"""Threads that plan. Most of planning is Python and takes turns on one core; more threads only let a short plan pass a
long one."""
READERS = 40
"""Threads that look up in the store; a lookup takes a millisecond."""
MAX_WAITING = 4_096
"""New questions that may wait to be planned: some seconds of work. Beyond, clients are told to come again."""

T = TypeVar("T")
Waiting = Future[ConfigAnswer | WarpplanError]


class TooBusy(StoreError):
    """As many new questions wait to be planned as may: ask again later (HTTP 503)."""


class PlanningPool:
    """Answers questions of many clients at once over one ``workflow``.

    Coroutines of one event loop call it; :meth:`close` ends its threads.
    """

    def __init__(self, workflow: Workflow, *, planners: int = PLANNERS, max_waiting: int = MAX_WAITING) -> None:
        self._workflow = workflow
        self._planners = ThreadPoolExecutor(planners, thread_name_prefix="planner")
        self._readers = CapacityLimiter(READERS)
        self._max_waiting = max_waiting
        # By question: equal problems under another profile are other questions.
        self._under_way: dict[tuple[ConfigRequest, str], Waiting] = {}
        self._fresh: deque[CheckedItem] = deque()
        self._lock = Lock()

    def close(self) -> None:
        """Let the plans under way end; what waits is given up."""
        self._planners.shutdown(wait=True, cancel_futures=True)

    async def configure(self, item: Item) -> ConfigAnswer:
        """:meth:`Workflow.configure`, without holding a thread while the question waits to be planned."""
        question = self._workflow.check(item)
        remembered = self._workflow.remembered(question)
        if remembered is not None:
            return remembered
        outcome = (await self._answers([question]))[question.problem]
        if isinstance(outcome, WarpplanError):
            raise outcome
        return outcome

    async def batch(self, items: Sequence[Item | WarpplanError]) -> list[BatchResult]:
        """:meth:`Workflow.batch` of a list, in order."""
        lines = list(enumerate(items, 1))
        found: list[BatchResult] = []
        for start in range(0, len(lines), CHUNK):
            part = lines[start : start + CHUNK]
            checked = self._workflow.check_all(part)
            answers = await self._answers([q for q in checked if isinstance(q, CheckedItem)])
            found += results(part, checked, answers)
        return found

    async def read(self, call: Callable[[], T]) -> T:
        """``call`` in one of the threads for short reads, where nothing that plans, draws or writes is before it."""
        return await to_thread.run_sync(call, limiter=self._readers)

    async def _answers(self, questions: Sequence[CheckedItem]) -> Outcomes:
        unique = {q.problem: q for q in questions}
        outcomes: Outcomes = dict(await self.read(partial(self._workflow.known, list(unique.values()))))
        waiting = self._begin([q for problem, q in unique.items() if problem not in outcomes])
        for problem, answer in waiting.items():
            # Shielded: a client that leaves must not take the plan from the others.
            outcomes[problem] = await asyncio.shield(asyncio.wrap_future(answer))
        return outcomes

    def _begin(self, questions: Sequence[CheckedItem]) -> dict[ConfigRequest, Waiting]:
        """The plan to wait for, for each question: one under way, or a new one."""
        waiting: dict[ConfigRequest, Waiting] = {}
        with self._lock:
            fresh = [q for q in questions if (q.problem, q.source.key) not in self._under_way]
            if fresh and len(self._under_way) + len(fresh) > self._max_waiting:
                raise TooBusy(
                    f"{len(self._under_way)} new problems wait to be planned, {self._max_waiting} may: ask again later",
                    field="problems", value=len(self._under_way), limit=self._max_waiting,
                )  # fmt: skip
            for q in questions:
                key = (q.problem, q.source.key)
                if key not in self._under_way:
                    self._under_way[key] = Future()
                    self._fresh.append(q)
                waiting[q.problem] = self._under_way[key]
        if fresh:
            self._planners.submit(self._plan)
        return waiting

    def _plan(self) -> None:
        """Plan what waits, some of it at once: a transaction of the store costs as much as many plans. Each question
        came with a call of this, so that none is left."""
        with self._lock:
            questions = [self._fresh.popleft() for _ in range(min(CHUNK, len(self._fresh)))]
        if not questions:
            return
        try:
            outcomes: Outcomes = self._workflow.answer(questions)
            error: BaseException | None = None
        except BaseException as raised:
            outcomes, error = {}, raised
        with self._lock:
            done = [(q, self._under_way.pop((q.problem, q.source.key))) for q in questions]
        for q, waiting in done:
            if error is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(outcomes[q.problem])
