"""Lists decided on beside the job: Triton tunes at the first launch, as it does by itself; what is best planned is then
found by the background thread, and the job's own launches say whether it is faster than Triton's choice."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial

from warpplan.kernels.compiler.background.background_trials import BackgroundTrials
from warpplan.kernels.compiler.background.configuration_contest import ConfigurationContest, Times
from warpplan.kernels.compiler.exceptions import reason_of
from warpplan.kernels.compiler.launching import progress
from warpplan.kernels.compiler.launching.autotuned.list_decide import FoundList, ListDecider, TrialBeside
from warpplan.kernels.compiler.launching.autotuned.list_decisions import ListDecision
from warpplan.kernels.compiler.launching.autotuned.list_launches import NotedLaunches
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import KnownTimings, TunedLaunch, jit_of
from warpplan.kernels.compiler.launching.dispatch import warn_not_planned
from warpplan.kernels.triton_types import CompiledKernel, JitFunction, KernelArgument, TunerConfig
from warpplan.planner.errors import WarpplanError

Chosen = tuple[TunerConfig, dict[str, KernelArgument]] | None
"""A configuration and its keyword arguments; ``None``: Triton's own tuning decides."""


@dataclass(frozen=True)
class RunningContest:
    """What a key's launches run while the job's own times decide between Triton's choice and the contender."""

    contest: ConfigurationContest
    contender: tuple[TunerConfig, dict[str, KernelArgument]]


class ListsBeside:
    """What ``decide`` finds of lists on the thread of ``trials``."""

    def __init__(self, decide: ListDecider, trials: BackgroundTrials) -> None:
        self._decide, self._trials = decide, trials

    def first(
        self, launch: TunedLaunch, found: FoundList, tune: Callable[[], CompiledKernel],
        place: Callable[[Chosen | RunningContest], None],
    ) -> CompiledKernel:  # fmt: skip
        """Launch by ``tune``, Triton's own tuning, and have the list of ``found`` decided on; what follows is given to
        ``place``. Raises what ``tune`` raises."""
        noted: NotedLaunches | None = None
        jit, tuned = jit_of(launch.tuner), launch.key in launch.tuner.cache
        try:
            noted = NotedLaunches(launch, found.configs)
        except Exception as error:
            warn_not_planned(jit, f"Triton tunes its list: {reason_of(error, WarpplanError)}")
        try:
            ran = tune()
        except BaseException:
            if noted is not None:
                noted.close()
            raise
        if noted is None:
            return ran
        known = launch.known_timings(found.configs[: found.own], just_tuned=not tuned)
        if known.winner is None:  # Triton chose none of them
            noted.close()
            return ran
        sizes = sizes_of(launch.args, launch.kwargs)
        self._trials.submit(partial(self._try, jit, found, noted, known, partial(self._place, place, sizes)))
        return ran

    def _try(
        self, jit: JitFunction, found: FoundList, noted: NotedLaunches, known: KnownTimings,
        place: Callable[[ListDecision, KnownTimings, FoundList], None], stop: Callable[[], bool],
    ) -> float:  # fmt: skip
        """On the background thread. The seconds for which the GPU was kept busy."""
        beside = TrialBeside(stop)
        try:
            noted.write()
            place(self._decide.beside(found, noted, known, beside), known, found)
        except Exception as error:
            if not stop():
                _tell(jit, reason_of(error, WarpplanError))
        finally:
            noted.close()
        return beside.gpu_s

    def _place(
        self, place: Callable[[Chosen | RunningContest], None], sizes: Hashable, decision: ListDecision,
        known: KnownTimings, found: FoundList,
    ) -> None:  # fmt: skip
        """What launches run from now on. Triton's winner is planned as a kernel of its own."""
        if decision.config is None or decision.config == known.winner:
            return
        config = found.configs[decision.config]
        chosen = config, config.all_kwargs()
        if not decision.provisional:  # another process was first, and its launches have decided
            place(chosen)
            return

        def settled(won: bool, times: Times | None) -> None:
            place(chosen if won else None)
            left = decision if won else replace(decision, config=known.winner, scheme=None)
            said = "" if times is None else f", {times[1] / times[0]:.2f}x as fast as Triton's choice"
            progress.log.info("%s, by the times of its launches%s", left, said)
            self._decide.settle(replace(left, provisional=False))

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
