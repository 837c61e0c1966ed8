"""Workers of a server that solve the plans waiting in its store: a bounded number at once, each in a child process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Event, Thread
from typing import Any

from warpplan.planner.errors import StoreError
from warpplan.service.metrics import Metrics
from warpplan.service.solving.plan_queue import Claim, Plans
from warpplan.service.solving.solver_process import GRACE_S, Stopped, clock_limit_s, solve_apart
from warpplan.service.workflow.profiles import planner_version

LEASE_S = 30.0
"""A plan is taken up again so long after the server that solved it was last alive."""
POLL_S = 2.0
"""How often to look for plans that other servers of the store have queued or left behind."""
LOOK_S = 0.5
"""How often to tell the progress of the plans under way, and to see whether they were forgotten."""
TRIES = 150
"""How often to try to keep an answer while the store is locked or away, ``POLL_S`` apart: five minutes, in which a
database server restarts or another takes over. Twice as many hold a worker twice as long with an answer that no store
takes."""

_log = logging.getLogger(__name__)


@dataclass
class _UnderWay:
    """A plan that a child of this server solves."""

    claim: Claim
    progress: dict[str, Any] | None = None
    told: dict[str, Any] | None = None
    renewed: float = field(default_factory=time.monotonic)
    unwanted: bool = False


class _Outage:
    """Logs once that the store is away, which may be seen twice a second for a day."""

    def __init__(self) -> None:
        self._told = ""

    def tell(self, what: str, error: StoreError) -> None:
        if str(error) != self._told:
            self._told = str(error)
            _log.warning("%s: %s", what, error)

    def end(self) -> None:
        self._told = ""


class Solvers:
    """``count`` threads that wait for children, which do the solving, and one that keeps their claims alive."""

    def __init__(
        self, plans: Plans, metrics: Metrics, *, count: int, lease_s: float = LEASE_S, poll_s: float = POLL_S,
        grace_s: float = GRACE_S,
    ) -> None:  # fmt: skip
        self._plans, self._metrics = plans, metrics
        self._lease_s, self._poll_s, self._grace_s = lease_s, poll_s, grace_s
        self._threads = [Thread(target=self._work, name=f"solver-{n}", daemon=True) for n in range(count)]
        self._threads.append(Thread(target=self._keep_claims, name="solver-claims", daemon=True))
        self._under_way: dict[str, _UnderWay] = {}
        self._news = Condition()
        self._submitted = 0
        self._stopping = Event()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """There is a plan to solve: do not wait for the next look."""
        with self._news:
            self._submitted += 1
            self._news.notify_all()

    def stop(self, wait_s: float = 10.0) -> None:
        """End the children and put their plans back into the queue."""
        self._stopping.set()
        self.wake()
        until = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        outage = _Outage()
        while not self._stopping.is_set():
            seen = self._submitted
            try:
                claim = self._plans.claim(self._lease_s, planner_version())
                outage.end()
                if claim is not None:
                    self._solve(claim)
                    continue
            except StoreError as error:
                # A claim that could not be given back runs out; the plan is then taken up again.
                outage.tell("plans wait", error)
            except Exception:
                _log.exception("a solver failed unexpectedly and goes on with the next plan")
            with self._news:
                if self._submitted == seen:
                    self._news.wait(self._poll_s)

    def _solve(self, claim: Claim) -> None:
        mine = self._under_way[claim.token] = _UnderWay(claim)
        started = time.monotonic()

        def tell(progress: dict[str, Any] | None) -> None:
            mine.progress = progress
            if mine.unwanted or self._stopping.is_set():
                raise Stopped

        try:
            solved = solve_apart(claim.request, clock_limit_s(claim.time_limit_s, self._grace_s), tell)
            if solved.outcome is not None:
                ending = solved.outcome["status"]
                keep = partial(self._plans.finish, claim, solved.outcome, mine.progress)
            else:
                ending, keep = solved.kind, partial(self._plans.fail, claim, solved.kind, solved.reason)
            stands = self._kept(keep)
        except Stopped:
            if self._stopping.is_set():
                self._plans.release(claim)
                return
            ending, stands = "", False
        finally:
            del self._under_way[claim.token]
        self._metrics.add("warpplan_plans_total", outcome=ending if stands else "forgotten")
        self._metrics.add("warpplan_plan_seconds_total", time.monotonic() - started)

    def _kept(self, keep: Callable[[], bool]) -> bool:
        """Try again where the store does not answer: what took minutes to find is worth it."""
        outage = _Outage()
        for _ in range(TRIES - 1):
            try:
                return keep()
            except StoreError as error:
                outage.tell("an answer waits", error)
                if self._stopping.wait(self._poll_s):
                    break
        return keep()

    def _keep_claims(self) -> None:
        outage = _Outage()
        while not self._stopping.wait(LOOK_S):
            for one in tuple(self._under_way.values()):
                try:
                    self._look_at(one)
                    outage.end()
                except StoreError as error:
                    outage.tell(f"plan {one.claim.id[:12]} is solved on", error)

    def _look_at(self, one: _UnderWay) -> None:
        at, progress = time.monotonic(), one.progress
        if progress == one.told and at - one.renewed < self._lease_s / 3:
            one.unwanted = not self._plans.holds(one.claim)
            return
        one.unwanted = not self._plans.renew(one.claim, self._lease_s, progress)
        one.told, one.renewed = progress, at
