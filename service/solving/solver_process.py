"""One plan solved in a process of its own: a crash, a hang or an overrun ends that process and is a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any, Literal

from warpplan.kernels.isolate import run_isolated
from warpplan.planner.values.search_params import CpSatParams

HEARTBEAT_S = 0.25
"""The child tells how far it is so often, which is also how soon it can be stopped."""
GRACE_S = 60.0
"""Beyond the solver's own limits: starting Python, heuristics, packing, checks."""

Json = dict[str, Any]


class Stopped(Exception):
    """The caller wants the answer no more; the child is gone."""


@dataclass(frozen=True)
class Solved:
    """``kind`` is "ok" with ``outcome`` (schema warpplan/outcome-1); else "error", "crash" or "timeout" with why."""

    kind: Literal["ok", "error", "crash", "timeout"]
    outcome: Json | None
    reason: str


class _Overrun(Exception):
    pass


def clock_limit_s(time_limit_s: float, grace_s: float = GRACE_S) -> float:
    """Seconds after which a solve is killed. Its own limit is in deterministic time, which a slow machine may take
    ``CpSatParams.clock_factor`` times as long for."""
    return CpSatParams.clock_factor * time_limit_s + grace_s


def solve_apart(request: str, limit_s: float, tell: Callable[[Json | None], None]) -> Solved:
    """Solve ``request`` (the text of a ``PlanRequest``) in a child, killed after ``limit_s`` seconds.

    ``tell`` is called every ``HEARTBEAT_S`` seconds with the progress so far; what it raises ends the child and leaves
    this function.
    """
    until = time.monotonic() + limit_s
    outcome: Json | None = None

    def on_item(item: Json) -> None:
        nonlocal outcome
        outcome = item.get("outcome")
        if outcome is None and time.monotonic() > until:
            raise _Overrun
        tell(item["progress"])

    try:
        # The longest silence allowed is the whole limit: a child that is stuck for good does not even beat.
        done = run_isolated(f"{__name__}:solving", [request], time_limit_s=limit_s, on_item=on_item)
    except _Overrun:
        return _overrun(limit_s)
    if done.status == "timeout":
        return _overrun(limit_s)
    if done.status == "crash":
        return Solved("crash", None, f"the solver's process died: {done.reason}")
    if done.status == "error" or outcome is None:
        return Solved("error", None, done.reason or "the solver gave no answer")
    return Solved("ok", outcome, "")


def _overrun(limit_s: float) -> Solved:
    return Solved("timeout", None, f"the solver had not ended after {limit_s:g} s and was killed")


def solving(request: str) -> Iterator[Json]:
    """The child's side: progress while the solver works in a thread, then its outcome."""
    progress: list[Json] = []
    answer: Future[Json] = Future()
    # A daemon: where nobody listens any more, the process must be able to end.
    Thread(target=_solve, args=(request, progress.append, answer), daemon=True).start()
    while not answer.done():
        yield {"progress": progress[-1] if progress else None}
        wait([answer], timeout=HEARTBEAT_S)
    outcome = answer.result()
    yield {"progress": progress[-1] if progress else None, "outcome": outcome}


def _solve(request: str, tell: Callable[[Json], None], answer: Future[Json]) -> None:
    from warpplan.planner.solve import solve
    from warpplan.planner.values import codec
    from warpplan.service.solving.plan_request import PlanRequest

    def progress(asked: int, proven: int, best: int | None) -> None:
        tell({"ii_asked": asked, "ii_lower_bound": proven, "ii_best": best})

    try:
        question, began = PlanRequest.read(request), time.monotonic()
        outcome = solve(question.graph, question.options, progress=progress)
        answer.set_result(codec.to_json(replace(outcome, seconds=round(time.monotonic() - began, 3))))
    except BaseException as error:
        answer.set_exception(error)
