"""Trials beside the job: one at a time, the most valuable first, on a daemon thread that starts when there is something
to do and ends when there is not.

The value of a trial is what it may save from now on, taken as what it would have saved so far: the predicted share of
its family's time, over all launches that were seen. A family is a kernel with its specialisation, whatever its sizes,
for what a trial finds is carried to all of them.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from warpplan.kernels.compiler.background.background_jobs import BackgroundJob, BackgroundJobs
from warpplan.kernels.compiler.background.gpu_budget import GpuBudget
from warpplan.kernels.compiler.background.launch_events import CudaTimer, LaunchTimer, apart_from_captures
from warpplan.kernels.compiler.background.plan_choices import PlanChoice, PlanRunner, Snapshot, WatchedLaunch
from warpplan.kernels.compiler.background.watched_kernel import WatchedKernel
from warpplan.kernels.triton_types import CompiledKernel, KernelArgument
from warpplan.planner.errors import MeasurementFailed

POLL_S = 0.25
"""Seconds between two looks for work. Chosen by hand."""
GRACE_S = 10.0
"""Seconds without an entered scope and without a launch that is watched after which the thread and its child end.
Chosen by hand: a job that enters a scope each step is out of it for less; doubled, a child outlives its use for
longer."""
RETRY_S = 60.0
"""Seconds until a trial that the machine failed is tried again. Chosen by hand."""
MOST_ATTEMPTS = 3
"""Trials of one class that the machine may fail."""
LEAST_LAUNCHES = 2
"""Launches of a family before a trial is worth it: what is launched once is over."""
ARM_S = 5.0
"""Seconds that the next launch of a family is waited for, so that a trial has its arguments; then another is chosen."""
MUCH = 0.25
"""Share of the time of its family's longest class that a class must take for its launches to be tried. Chosen by hand;
doubled, a trial waits longer for its launch."""
EXIT_WAIT_S = 3.0
"""Seconds that an interpreter that ends waits for the thread to kill its child."""
_log = logging.getLogger("warpplan")


@dataclass(frozen=True)
class BackgroundWork:
    """``kind`` is "find", "settle", "try", or "tell" of an ``error``; ``times`` are launches', planned and as it is."""

    kind: str
    watched: WatchedKernel
    choice: PlanChoice | None = None
    times: tuple[float, float] | None = None
    snapshot: Snapshot = None
    error: Exception | None = None


class BackgroundTrials:
    """``runner`` makes what looks up and tries plans: on the thread, for its imports take time. ``capturing`` says
    whether this thread's launches go into a CUDA graph, ``active`` whether a scope is entered."""

    def __init__(
        self,
        runner: Callable[[], PlanRunner],
        *,
        gpu_share: float,
        capturing: Callable[[], bool],
        active: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        timer: Callable[[], LaunchTimer] | None = None,
        threaded: bool = True,
    ) -> None:
        self._make_runner, self._active, self._clock, self._threaded = runner, active, clock, threaded
        self.capturing, self.timer = capturing, timer or CudaTimer
        self.budget = GpuBudget(gpu_share, clock)
        self.runner: PlanRunner | None = None
        self.launches = 0
        self.asleep = False
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        """No work and no thread: at the start, and in a process that was forked."""
        self._work: deque[BackgroundWork] = deque()
        self.jobs = BackgroundJobs(self.budget, self._clock)
        self._open: dict[int, WatchedKernel] = {}
        self._pooled: dict[int, WatchedKernel] = {}  # those that take part in the comparison of one plan
        self._left: dict[int, WatchedKernel] = {}  # those that are predicted to gain nothing, by what is known so far
        self._armed: tuple[Hashable, float] | None = None  # the family whose next launch a trial waits for, since when
        self._ready: BackgroundWork | None = None
        self._wakened = threading.Event()
        self._starting = threading.Lock()  # held for as long as a thread takes to start, or to say that it ends
        self._thread: threading.Thread | None = None
        self._seen, self._idle_since = -1, self._clock()
        self._stopped = False

    def watch(self, launch: WatchedLaunch, unplanned: CompiledKernel, place: Callable[[CompiledKernel], None]) -> None:
        """Put what runs the class of ``launch`` from now on into its ``place``. Called in a launch."""
        watched = WatchedKernel(launch, unplanned, self, place)
        place(watched)
        try:
            choice = None if self.runner is None else self.runner.known(launch)
            if choice is not None:
                self._take(watched, choice)
            self._add(BackgroundWork("find", watched, choice))
        except Exception as error:
            watched.give_up(error)

    def submit(self, job: BackgroundJob) -> None:
        """Have the thread do ``job`` when no trial is under way and there is GPU time; never, where there is to be
        none."""
        if self.budget.share:
            self.jobs.add(job)
            self.wake()

    def perform_job(self) -> bool:
        """Do the next job that was submitted, if there is one and it may begin."""
        if self._work or self._ready is not None or not self.jobs.perform_next(self._must_stop):
            return False
        for watched in list(self._open.values()):  # it may have kept what is looked for
            self._work.append(BackgroundWork("find", watched))
        return True

    def snapshot(self, watched: WatchedKernel, grid: tuple[int, ...], values: tuple[KernelArgument, ...]) -> None:
        """The launch that a trial waited for: its arguments."""
        armed = self._armed
        if armed is None or armed[0] != watched.launch.family or self._ready is not None or self.runner is None:
            return
        try:
            taken = self.runner.snapshot(watched.launch, grid, values)
        except MeasurementFailed as error:
            self._try_again(watched, str(error))
        except Exception as error:
            watched.give_up(error)
        else:
            # Before it is disarmed: the thread arms another where there is neither.
            self._ready = BackgroundWork("try", watched, snapshot=taken)
        self._disarm()
        self.wake()

    def _arm(self, chosen: WatchedKernel) -> None:
        """Let the next launch of the family of ``chosen`` hand over its arguments, of whatever class that takes much of
        the family's time: what is measured where little else than starting takes time says little of the rest."""
        self._armed = chosen.launch.family, self._clock()
        least_us = chosen.launches * chosen.time_us * MUCH
        for watched in list(self._open.values()):
            mine = watched.launch.family == chosen.launch.family and watched.not_before <= self._clock()
            if mine and watched.launches * watched.time_us >= least_us:
                watched.want()

    def _disarm(self) -> None:
        self._armed = None
        for watched in list(self._open.values()):
            watched.wanted = False

    def settled(self, watched: WatchedKernel, choice: PlanChoice, times: tuple[float, float] | None) -> None:
        """A comparison has come to its end."""
        self._add(BackgroundWork("settle", watched, choice, times))

    def gave_up(self, watched: WatchedKernel, error: Exception) -> None:
        """A class runs as it is, after a failure, which the thread tells of."""
        self._open.pop(id(watched), None)
        self._pooled.pop(id(watched), None)
        self._left.pop(id(watched), None)
        self._add(BackgroundWork("tell", watched, error=error))

    def _add(self, work: BackgroundWork) -> None:
        self._work.append(work)
        self.wake()

    def wake(self) -> None:
        """Start the thread, or tell it that there is something to do. Never waits."""
        self.asleep = False
        if not self._threaded or self._stopped:
            return
        self._wakened.set()
        with self._starting:
            if self._thread is None:
                self._idle_since = self._clock()
                self._thread = threading.Thread(target=self._run, name="warpplan-trials", daemon=True)
                self._thread.start()

    def pick(self) -> BackgroundWork | None:
        """What to do next; ``None`` where nothing can be done now."""
        if self.runner is None:
            self.runner = self._make_runner()
        if self._work:
            return self._work.popleft()
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        if self._armed is not None:
            family, since = self._armed
            if self._clock() - since < ARM_S:
                return None
            self._disarm()
            for watched in self._open.values():  # not launched any more, it seems
                if watched.launch.family == family:
                    watched.not_before = self._clock() + ARM_S
        if self.runner.needs_arguments and not self.budget.has_time:
            return None
        watched_next = self._most_valuable()
        if watched_next is None:
            return None
        if not self.runner.needs_arguments:
            return BackgroundWork("try", watched_next)
        self._arm(watched_next)
        return None

    def perform(self, work: BackgroundWork) -> None:
        """Do ``work``; what fails leaves its kernel as it is."""
        assert self.runner is not None
        watched = work.watched
        try:
            if work.kind == "find":
                self._find(watched, work.choice)
            elif work.kind == "settle" and work.choice is not None:
                self._settle(watched, work.choice, work.times)
            elif work.kind == "try":
                self._try(watched, work.snapshot)
            elif work.error is not None:
                self._tell(watched, work.error)
        except Exception as error:
            watched.give_up(error)

    def _take(self, watched: WatchedKernel, choice: PlanChoice) -> None:
        watched.take(choice)
        if choice.pool is not None and not choice.final:
            self._pooled[id(watched)] = watched
        elif choice.predicted and choice.kernel is None:
            self._left[id(watched)] = watched

    def _find(self, watched: WatchedKernel, taken: PlanChoice | None) -> None:
        """Look for what is kept, in place of ``taken``, what this process knew already."""
        assert self.runner is not None
        choice = self.runner.find(watched.launch, watched.kernel)
        if watched.given_up:  # by a launch, meanwhile
            return
        if choice is None:
            watched.forget()
            self._open[id(watched)] = watched
        elif taken is None or choice.final != taken.final or choice.kernel is not taken.kernel:
            self._take(watched, choice)

    def _settle(self, watched: WatchedKernel, choice: PlanChoice, times: tuple[float, float] | None) -> None:
        """Keep what a comparison found. What it says of other sizes is looked up for all that took part in it."""
        assert self.runner is not None
        self.runner.settle(watched.launch, choice, times)
        for waiting in (self._pooled, self._left):
            for other in list(waiting.values()):
                if other.launch.family == watched.launch.family:
                    del waiting[id(other)]
                    self._work.append(BackgroundWork("find", other))

    def _try(self, watched: WatchedKernel, snapshot: Snapshot) -> None:
        assert self.runner is not None
        if id(watched) not in self._open:  # decided meanwhile
            return
        outcome = self.runner.try_plans(watched.launch, watched.kernel, snapshot, self._must_stop)
        if self.runner.needs_arguments:
            self.budget.spend(outcome.gpu_s)
        if outcome.error is not None:
            watched.give_up(outcome.error)
            return
        if outcome.choice is None:
            if not outcome.stopped:
                self._try_again(watched, outcome.reason)
            return
        self._open.pop(id(watched), None)
        self._take(watched, outcome.choice)
        for other in list(self._open.values()):
            if other.launch.family == watched.launch.family:
                choice = self.runner.known(other.launch)
                if choice is not None:
                    self._open.pop(id(other), None)
                    self._take(other, choice)
                    self._work.append(BackgroundWork("find", other, choice))

    def _try_again(self, watched: WatchedKernel, reason: str) -> None:
        """The machine failed a trial: later, if that was not the last time."""
        watched.attempts += 1
        watched.not_before = self._clock() + RETRY_S
        if watched.attempts >= MOST_ATTEMPTS:
            watched.give_up(MeasurementFailed(reason))

    def _tell(self, watched: WatchedKernel, error: Exception) -> None:
        """Say once why ``watched`` stays as it is."""
        assert self.runner is not None
        try:
            self.runner.left(watched.launch, error)
        except Exception:  # a warning that is made an error reaches no job from here
            _log.debug("%s: no warning could be given", watched.launch.name, exc_info=error)

    def _most_valuable(self) -> WatchedKernel | None:
        """The class to try next: the one that takes most time, of the family that a plan may save most time of."""
        assert self.runner is not None
        now = self._clock()
        families: dict[Hashable, list[WatchedKernel]] = {}
        for watched in list(self._open.values()):
            families.setdefault(watched.launch.family, []).append(watched)
        best: tuple[float, WatchedKernel] | None = None
        for members in families.values():
            candidates = [
                watched for watched in members
                if watched.not_before <= now and not self.jobs.is_held(watched.launch.name)
            ]  # fmt: skip
            if not candidates or sum(watched.launches for watched in members) < LEAST_LAUNCHES:
                continue
            longest = max(candidates, key=lambda watched: watched.launches * watched.time_us)
            total = sum(watched.launches * watched.time_us for watched in members)
            value = total * (1 - 1 / max(1.0, self.runner.expected_gain(longest.launch)))
            if best is None or value > best[0]:
                best = value, longest
        return None if best is None else best[1]

    def _run(self) -> None:
        with apart_from_captures():
            while self._go_on():
                self._wakened.clear()
                try:
                    if self.perform_job():
                        continue
                    work = self.pick()
                    if work is not None:
                        self.perform(work)
                        continue
                except Exception:
                    _log.debug("what is next to be tried cannot be told", exc_info=True)
                self._wakened.wait(POLL_S)

    def _go_on(self) -> bool:
        """Whether the thread has anything left to do; where it has not it ends."""
        with self._starting:
            stop = self._must_stop()
            if not stop and (self._open or self._work or self.jobs or self._ready is not None):
                return True
            self.asleep = stop and not self._stopped
            self._thread = None
            return False

    def _must_stop(self) -> bool:
        """Whether the thread and its child are to end: at exit, or after ``GRACE_S`` without a scope or a launch."""
        if self._stopped:
            return True
        now = self._clock()
        if self._active() or self.jobs.is_launching or self.launches != self._seen:
            self._seen, self._idle_since = self.launches, now
        return now - self._idle_since > GRACE_S

    def stop(self, wait_s: float = EXIT_WAIT_S) -> None:
        """End the thread and kill its child, for good."""
        self._stopped = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(wait_s)
        if thread is None or not thread.is_alive():
            self.jobs.close()


_all: weakref.WeakSet[BackgroundTrials] = weakref.WeakSet()


def _stop_all() -> None:
    for trials in list(_all):
        trials.stop()


def _forget_threads() -> None:
    """In a process that was forked there are no threads, and locks may be held for ever."""
    for trials in list(_all):
        trials._reset()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
