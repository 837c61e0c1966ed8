"""A second thread for the question that is likely to be next.

What is asked is a pure function of the question, so an answer that is ready early is the answer that would have come
later: with one thread or two, the search goes the same way. CP-SAT runs without the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from types import TracebackType
from typing import Generic, TypeVar

from warpplan.planner.cpsat.runner import Stop
from warpplan.planner.values.search_params import SearchParams

T = TypeVar("T")
Task = Callable[[Stop], T]


@dataclass
class _Pending(Generic[T]):
    """A task that may be wanted: begun when it is, or once ``patience`` has passed."""

    key: Hashable
    task: Task[T]
    patience: float
    wanted: Event = field(default_factory=Event)
    stop: Stop = field(default_factory=Stop)
    began: bool = False
    future: Future[T | None] = field(init=False)

    def run(self) -> T | None:
        self.wanted.wait(self.patience)
        self.began = True
        return None if self.stop.called else self.task(self.stop)

    @property
    def under_way(self) -> bool:
        return self.began and not self.future.done()


class Ahead(Generic[T]):
    """Tasks by key, of which one may be expected while another one is waited for, after ``patience`` seconds by the
    clock; None: never."""

    def __init__(self, patience: float | None = SearchParams().driver.patience_wall_s) -> None:
        self.patience = patience
        self._pool: ThreadPoolExecutor | None = None
        self._pending: _Pending[T] | None = None

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._drop()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def result(self, key: Hashable, task: Task[T], then: tuple[Hashable, Task[T]] | None = None) -> T:
        """What ``task`` comes to: begun already, or done now. ``then`` is begun beside it, unless it is soon done."""
        begun = self._pending
        if begun is not None and begun.key != key:
            self._drop()
            begun = None
        # What was begun while a hard one was waited for, and is still not done, is taken to be a hard one too.
        patience = 0.0 if begun is not None and begun.under_way else self.patience
        self._pending = None if then is None or patience is None else self._begin(*then, patience)
        if begun is not None:
            begun.wanted.set()
            ready = begun.future.result()
            if ready is not None:
                return ready
        return task(Stop())

    def _begin(self, key: Hashable, task: Task[T], patience: float) -> _Pending[T]:
        # One for what is waited for, if it was expected, and one for what is expected next.
        self._pool = self._pool or ThreadPoolExecutor(2, "ahead")
        pending = _Pending(key, task, patience)
        pending.future = self._pool.submit(pending.run)
        return pending

    def _drop(self) -> None:
        if self._pending is not None:
            self._pending.stop.call()
            self._pending.wanted.set()
            self._pending = None
