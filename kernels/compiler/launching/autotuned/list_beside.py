"""Lists decided on beside the job: Triton tunes at the first launch, as it does by itself; what is best planned is then
found by the background thread, and the job's own launches say whether it is faster than Triton's choice."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
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

if TYPE_CHECKING:
    from warpplan.kernels.compiler.launching.autotuned.list_decide import ListDecider


@dataclass(frozen=True)
class RunningContest:
    """What a key's launches run while the job's own times decide between Triton's choice and the contender."""

    contest: ConfigurationContest
    contender: tuple[TunerConfig, dict[str, KernelArgument]]


class ListsBeside:
    """What is found of lists on the thread of ``trials``, by what ``decider`` makes there; ``lookup`` keeps it."""

    def __init__(self, decider: Callable[[], ListDecider], lookup: ListLookup, trials: BackgroundTrials) -> None:
        self._decider, self._lookup, self._trials = decider, lookup, trials

    def first(
        self, launch: TunedLaunch, found: FoundList, tune: Callable[[], CompiledKernel],
        place: Callable[[Chosen | RunningContest], None],
    ) -> CompiledKernel:  # fmt: skip
        """Launch by ``tune``, Triton's own tuning, and have the list of ``found`` decided on: what needs no GPU while
        Triton tunes. What follows is given to ``place``. Raises what ``tune`` raises."""
        jit, in_cache = jit_of(launch.tuner), launch.key in launch.tuner.cache
        if not self._trials.budget.share:  # nothing is to be tried
            return tune()
        try:
            noted = NotedLaunches(launch, found.configs)
        except Exception as error:
            warn_not_planned(jit, f"Triton tunes its list: {reason_of(error, WarpplanError)}")
            return tune()
        tuned: Future[KnownTimings | None] = Future()
        sizes = sizes_of(launch.args, launch.kwargs)
        self._trials.hold(name_of(jit))
        self._trials.submit(partial(self._try, jit, found, noted, tuned, partial(self._place, place, sizes)))
        try:
            ran = tune()
            tuned.set_result(launch.known_timings(found.configs[: found.own], just_tuned=not in_cache))
            return ran
        finally:
            if not tuned.done():
                tuned.set_result(None)

    def _try(
        self, jit: JitFunction, found: FoundList, noted: NotedLaunches, tuned: Future[KnownTimings | None],
        place: Callable[[ListDecision, int | None, FoundList], None], stop: Callable[[], bool],
    ) -> float:  # fmt: skip
        """On the background thread, which imports what decides. The seconds for which the GPU was kept busy."""
        if len(found.configs) < LEAST_AHEAD:
            tuned.result()
        from warpplan.kernels.compiler.launching.autotuned.list_decide import TrialBeside

        beside = TrialBeside(stop, tuned)
        try:
            noted.write()
            decision = self._decider().beside(found, noted, beside)
            place(decision, beside.known().winner, found)
        except Exception as error:
            if not stop() and (not tuned.done() or tuned.result() is not None):
                _tell(jit, reason_of(error, WarpplanError))
            self._trials.release(name_of(jit))
        finally:
            noted.close()
        return beside.gpu_s

    def _place(
        self, place: Callable[[Chosen | RunningContest], None], sizes: Hashable, decision: ListDecision,
        winner: int | None, found: FoundList,
    ) -> None:  # fmt: skip
        """What launches run from now on. Triton's ``winner`` is planned as a kernel of its own."""
        name = found.situation.kernel
        if decision.config is None or decision.config == winner:
            self._trials.release(name)
            return
        config = found.configs[decision.config]
        chosen = config, config.all_kwargs()
        if not decision.provisional:  # another process was first, and its launches have decided
            place(chosen)
            self._trials.release(name)
            return

        def settled(won: bool, times: Times | None) -> None:
            place(chosen if won else None)
            self._trials.release(name)
            left = decision if won else replace(decision, config=winner, scheme=None)
            said = "" if times is None else f", {times[1] / times[0]:.2f}x as fast as Triton's choice"
            progress.log.info("%s, by the times of its launches%s", left, said)
            self._lookup.settle(replace(left, provisional=False))

        contest = ConfigurationContest(
            sizes, settled=settled, capturing=self._trials.capturing, timer=self._trials.timer
        )
        place(RunningContest(contest, chosen))


def sizes_of(args: tuple[KernelArgument, ...], kwargs: dict[str, KernelArgument]) -> Hashable:
    """Equal for launches that do equal work, as far as their arguments tell."""
    return tuple(
        value if type(value) is int else tuple(getattr(value, "shape", ())) for value in (*args, *kwargs.values())
    )


def _tell(jit: JitFunction, reason: str) -> None:
    try:
        warn_not_planned(jit, f"Triton's own choice of its list stays: {reason}")
    except Exception:  # a warning that is made an error reaches no job from here
        progress.log.debug("no warning could be given", exc_info=True)
