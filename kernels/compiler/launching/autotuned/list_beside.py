"""Lists decided on beside the job: Triton tunes at the first launch, as it does by itself; what is best planned is then
found by the background thread, and the job's own launches say whether it is faster than Triton's choice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from warpplan.kernels.compiler.background.background_trials import BackgroundTrials
from warpplan.kernels.compiler.background.configuration_contest import ConfigurationContest, Times
from warpplan.kernels.compiler.exceptions import reason_of
from warpplan.kernels.compiler.launching import progress
from warpplan.kernels.compiler.launching.autotuned.list_decisions import ListDecision
from warpplan.kernels.compiler.launching.autotuned.list_launches import NotedLaunches
from warpplan.kernels.compiler.launching.autotuned.list_lookup import FoundList, ListLookup
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import KnownTimings, TunedLaunch, jit_of
from warpplan.kernels.compiler.launching.dispatch import name_of, warn_not_planned
from warpplan.kernels.triton_types import CompiledKernel, JitFunction, KernelArgument, TunerConfig
from warpplan.planner.errors import WarpplanError

Chosen = tuple[TunerConfig, dict[str, KernelArgument]] | None
"""A configuration and its keyword arguments; ``None``: Triton's own tuning decides."""

LEAST_AHEAD = 4
"""Configurations of lists on which work begins while Triton tunes. Children take as long to start as Triton takes for
two or three, and with fewer the first launch is only slowed down. Measured on the first launches of the corpus."""

TRUSTED = 1.1
"""What a configuration gains over Triton's choice in a trial that is trusted without the job's launches: those that
come may all be of other sizes. Chosen by hand: times beside a busy job are a few percent off."""

if TYPE_CHECKING:
    from warpplan.kernels.compiler.launching.autotuned.list_decide import ListDecider


@dataclass(frozen=True)
class ContestWinner:
    """A contender that the job's launches have shown to be faster than Triton's choice. A CUDA graph is captured of it
    only where it has been launched before, outside of any: kernels cannot be loaded in a capture, and the job has
    warmed up under Triton's choice."""

    config: TunerConfig
    options: dict[str, KernelArgument]


@dataclass(frozen=True)
class RunningContest:
    """What a key's launches run while the job's own times decide between Triton's choice and the contender."""

    contest: ConfigurationContest
    contender: tuple[TunerConfig, dict[str, KernelArgument]]


Placed = Chosen | RunningContest | ContestWinner
"""What a key's launches run."""


class ListsBeside:
    """What is found of lists on the thread of ``trials``, by what ``decider`` makes there; ``lookup`` keeps it."""

    def __init__(self, decider: Callable[[], ListDecider], lookup: ListLookup, trials: BackgroundTrials) -> None:
        self.decider, self.lookup, self.trials = decider, lookup, trials

    def first(
        self, launch: TunedLaunch, found: FoundList, tune: Callable[[], CompiledKernel],
        place: Callable[[Placed], None],
    ) -> CompiledKernel:  # fmt: skip
        """Launch by ``tune``, Triton's own tuning, and have the list of ``found`` decided on: what needs no GPU while
        Triton tunes. What follows is given to ``place``. Raises what ``tune`` raises."""
        try:
            job = self._job(launch, found, place)
        except Exception as error:
            warn_not_planned(jit_of(launch.tuner), f"Triton tunes its list: {reason_of(error, WarpplanError)}")
            job = None
        if job is None:
            return tune()
        in_cache = launch.key in launch.tuner.cache
        with self.trials.jobs.in_launch():
            if found.decision is None:
                self.trials.submit(job)
            known: KnownTimings | None = None
            try:
                ran = tune()
                with contextlib.suppress(Exception):  # times of a benchmark of the user's own may be anything
                    known = launch.known_timings(found.configs[: found.own], just_tuned=not in_cache)
            finally:
                job.tuned.set_result(known)
        if found.decision is not None and known is not None:  # found by another process, which did not compare it
            job.place(found.decision, known.winner)
        return ran

    def _job(self, launch: TunedLaunch, found: FoundList, place: Callable[[Placed], None]) -> ListJob | None:
        """``None`` where nothing is to be tried, or nothing can be without running hooks that Triton does not run."""
        if not self.trials.budget.share:
            return None
        configs = found.configs
        if launch.has_hooks(configs) and launch.is_tuned(configs[: found.own]):
            return None
        noted = NotedLaunches(launch, configs) if found.decision is None else None
        name = name_of(jit_of(launch.tuner))
        self.trials.jobs.hold(name)
        sizes = sizes_of(launch.args, launch.kwargs)
        return ListJob(self, jit_of(launch.tuner), found, noted, sizes, place)


class ListJob:
    """One list of ``lists``: what is done about it on the background thread, where its launches are ``noted``, and what
    launches of ``sizes`` and others run then. ``tuned`` is what comes of Triton's own tuning."""

    def __init__(
        self, lists: ListsBeside, jit: JitFunction, found: FoundList, noted: NotedLaunches | None, sizes: Hashable,
        place: Callable[[Placed], None],
    ) -> None:  # fmt: skip
        self._lists, self._jit, self._found, self._noted = lists, jit, found, noted
        self._sizes, self._place_chosen = sizes, place
        self.stopped = False
        self.tuned: Future[KnownTimings | None] = Future()

    def perform(self, stop: Callable[[], bool]) -> float:
        """On the background thread, which imports what decides. The seconds for which the GPU was kept busy."""
        if len(self._found.configs) < LEAST_AHEAD:
            self.tuned.result()
        from warpplan.kernels.compiler.launching.autotuned.list_decide import TrialBeside

        beside, self.stopped = TrialBeside(stop, self.tuned), False
        assert self._noted is not None
        try:
            self._noted.write()
            decision = self._lists.decider().beside(self._found, self._noted, beside)
            self.place(decision, beside.known().winner)
        except Exception as error:
            self.stopped = stop()
            if not self.stopped and (not self.tuned.done() or self.tuned.result() is not None):
                _tell(self._jit, reason_of(error, WarpplanError))
            self._release()
        if not self.stopped:
            self.close()
        return beside.gpu_s

    def close(self) -> None:
        if self._noted is not None:
            self._noted.close()

    def place(self, decision: ListDecision, winner: int | None) -> None:
        """What launches run from now on. Triton's ``winner`` is planned as a kernel of its own."""
        if decision.config is None or decision.config == winner or winner is None:
            self._release()
            return
        config = self._found.configs[decision.config]
        chosen = config, config.all_kwargs()
        if not decision.provisional:  # another process was first, and its launches have decided
            self._place_chosen(chosen)
            self._release()
            return

        def settled(won: bool, times: Times | None) -> None:
            self._place_chosen(ContestWinner(*chosen) if won else None)
            self._release()
            if times is None:  # what another process finds may be more
                return
            left = decision if won else replace(decision, config=winner, scheme=None)
            gain = times[1] / times[0]
            said = "kept" if won else "dropped"
            progress.log.info(
                "%s: %s, by the times of its launches %.2fx as fast as Triton's choice", decision, said, gain
            )
            self._lists.lookup.settle(replace(left, provisional=False))

        trials, gain = self._lists.trials, decision.gain_over(winner)
        contest = ConfigurationContest(
            self._sizes, trusted=gain is not None and gain >= TRUSTED, settled=settled, capturing=trials.capturing,
            timer=trials.timer,
        )  # fmt: skip
        self._place_chosen(RunningContest(contest, chosen))

    def _release(self) -> None:
        self._lists.trials.jobs.release(name_of(self._jit))


def sizes_of(args: tuple[KernelArgument, ...], kwargs: dict[str, KernelArgument]) -> Hashable:
    """Equal for launches that do equal work, as far as their arguments tell."""
    return tuple(map(_size, (*args, *kwargs.values())))


def _size(value: KernelArgument) -> Hashable:
    if isinstance(value, (int, float, str)):
        return value
    if type(value) in (tuple, list):
        return tuple(map(_size, value))
    shape = getattr(value, "shape", None)
    return None if shape is None else tuple(shape)


def _tell(jit: JitFunction, reason: str) -> None:
    try:
        warn_not_planned(jit, f"Triton's own choice of its list stays: {reason}")
    except Exception:  # a warning that is made an error reaches no job from here
        progress.log.debug("no warning could be given", exc_info=True)
