"""The trial's process, started while the list is still ranked and compiled: importing torch and opening the GPU take as
long as all of that. It waits for a file that says what to try.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

from warpplan.kernels.compiler.launching.decisions import write_whole
from warpplan.kernels.isolate import IsolatedResult, run_isolated
from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import MeasurementFailed

TRIAL = "warpplan.kernels.compiler.launching.autotuned.list_trial:list_trial"
WAIT_S = 600.0
"""Seconds by the clock that a child waits for its request at most: a list is ranked and compiled meanwhile. Chosen by
hand."""
POLL_S = 0.01


class TrialChild:
    """One trial: started on entering, given its request with :meth:`run`, ended on leaving where it got none."""

    def __init__(self, device: int, time_limit_s: float) -> None:
        self._device, self._time_limit_s = device, time_limit_s
        self._folder = tempfile.TemporaryDirectory(prefix="warpplan-", ignore_cleanup_errors=True)
        self._file = Path(self._folder.name) / "request.json"
        self._results: list[IsolatedResult] = []
        self._given = False
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> TrialChild:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._given:  # it ends by itself, as soon as torch is imported: that is not waited for
            self._give(None)

    def run(self, request: dict[str, Json]) -> IsolatedResult:
        """What comes of ``request``, see :mod:`.list_trial`. Raises :class:`MeasurementFailed` where no process could
        be started."""
        self._give(request)
        self._thread.join()
        if not self._results:
            raise MeasurementFailed("the process of a trial could not be started")
        return self._results[0]

    def _give(self, request: dict[str, Json] | None) -> None:
        self._given = True
        with contextlib.suppress(FileNotFoundError):  # the folder of a child that ended before it was asked is gone
            write_whole(self._file, json.dumps(request), os.replace)

    def _listen(self) -> None:
        place = {"request": str(self._file), "device": self._device}
        with self._folder:
            self._results.append(
                run_isolated(TRIAL, [place], time_limit_s=self._time_limit_s, start_limit_s=WAIT_S + self._time_limit_s)
            )


def waited_for(file: str) -> dict[str, Json] | None:
    """The request in ``file``, once it is there; ``None`` where nothing is to be tried, or nobody is left to ask."""
    parent, until = os.getppid(), time.monotonic() + WAIT_S
    while not os.path.exists(file):
        if os.getppid() != parent or time.monotonic() > until:
            return None
        time.sleep(POLL_S)
    found: dict[str, Json] | None = json.loads(Path(file).read_text())
    return found
