"""The trial's process, started while the list is still ranked and compiled: importing torch and opening the GPU take as
long as all of that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from warpplan.kernels.isolate import Child, IsolatedResult
from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import MeasurementFailed

MODULE = "warpplan.kernels.compiler.launching.autotuned.list_children.list_trial"
OPEN, TRIAL = f"{MODULE}:open_gpu", f"{MODULE}:tried"
OPEN_S = 60.0
"""Seconds by the clock that opening the GPU may take, beside the limit of a step. Chosen by hand."""


class TrialChild:
    """One trial: started on entering, given its request with :meth:`run`, killed on leaving, or when ``stop`` says
    so."""

    def __init__(self, device: int, time_limit_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        self._device, self._time_limit_s, self._stop = device, time_limit_s, stop
        self._left = threading.Event()
        self._child: Child | None = None
        self._opened: IsolatedResult | None = None
        self._thread = threading.Thread(target=self._open, name="warpplan-trial", daemon=True)

    def __enter__(self) -> TrialChild:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if not self._thread.is_alive() and self._child is not None:  # else its thread kills it
            # Closing a GPU takes a while, which nobody waits for.
            threading.Thread(target=self._child.kill, name="warpplan-trial", daemon=True).start()

    def run(self, request: dict[str, Json]) -> IsolatedResult:
        """What comes of ``request``, see :mod:`.list_trial`. Raises :class:`MeasurementFailed` where no process could
        be started."""
        self._thread.join()
        if self._child is None or self._opened is None:
            raise MeasurementFailed("the process of a trial could not be started")
        if self._opened.status != "ok":
            return self._opened
        return self._child.call(TRIAL, [request], time_limit_s=self._time_limit_s, stop=self._stop)

    def another(self) -> TrialChild:
        """One more, where this one's process is lost."""
        return TrialChild(self._device, self._time_limit_s, self._stop)

    def _open(self) -> None:
        try:
            self._child = Child()
        except OSError:  # no more processes, or none of memory
            return
        limit_s = OPEN_S + self._time_limit_s
        self._opened = self._child.call(
            OPEN, [self._device], time_limit_s=limit_s, stop=lambda: self._left.is_set() or self._stop()
        )
        if self._left.is_set():
            self._child.kill()

    def _given_up(self) -> bool:
        return self._left.is_set() or self._stop()
