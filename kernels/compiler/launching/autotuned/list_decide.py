"""What happens at the first launch of a tuner's key: look the list's decision up, or rank, try and remember.

Whatever goes wrong leaves the list to Triton's own tuning, with one warning; its winner is then planned as a kernel of
its own.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from warpplan.kernels.compiler.background.launch_comparison import GAIN
from warpplan.kernels.compiler.exceptions import CannotPlan, by_reason, reason_of
from warpplan.kernels.compiler.launching import progress
from warpplan.kernels.compiler.launching.autotuned.front_end import front_end
from warpplan.kernels.compiler.launching.autotuned.list_children.job_pool import JobPool, cores
from warpplan.kernels.compiler.launching.autotuned.list_children.list_jobs import PREPARE, PREPARE_COMPILES, RANK
from warpplan.kernels.compiler.launching.autotuned.list_children.trial_child import TrialChild
from warpplan.kernels.compiler.launching.autotuned.list_choice import (
    MOST_PLANNED,
    MOST_UNPLANNED,
    Candidate,
    ranked,
    to_try,
    within_bounds,
)
from warpplan.kernels.compiler.launching.autotuned.list_decisions import ListDecision, ListSituation, Tried
from warpplan.kernels.compiler.launching.autotuned.list_launches import ListLaunches, WaitingLaunches
from warpplan.kernels.compiler.launching.autotuned.list_lookup import FoundList, ListLookup
from warpplan.kernels.compiler.launching.autotuned.listed import ListCompiles, Listed, front_of, rank_job
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import KnownTimings, TunedLaunch
from warpplan.kernels.compiler.launching.decide import MOST_CHILDREN, Decider
from warpplan.kernels.compiler.launching.decisions import Compiled, Decision
from warpplan.kernels.compiler.launching.dispatch import Call
from warpplan.kernels.triton_types import Json, TunerConfig
from warpplan.planner.errors import MeasurementFailed
from warpplan.planner.values import codec
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

CANNOT_COMPILE = ("CompilationError", "CompileTimeAssertionFailure", "OutOfResources", "PTXASError")
"""Errors of Triton's, by the name of their class or of one that it is made of, that drop one configuration."""


POLL_S = 0.1
"""Seconds between two looks at whether to stop."""
RUN_LIMIT_S = 20.0
"""Seconds that a step of a trial beside a job may take: a hang shares the GPU with the job for as long. Chosen by
hand."""


@dataclass
class TrialBeside:
    """A trial beside a job, until ``stop`` says so, which has kept the GPU busy for ``gpu_s`` at most. Triton tunes
    meanwhile: ``tuned`` is what comes of that, ``None`` where nothing does."""

    stop: Callable[[], bool]
    tuned: Future[KnownTimings | None]
    gpu_s: float = 0.0

    def known(self) -> KnownTimings:
        """Wait for Triton's tuning. Raises :class:`MeasurementFailed` where nothing comes of it."""
        while not self.stop():
            with contextlib.suppress(TimeoutError):
                known = self.tuned.result(timeout=POLL_S)
                if known is None or known.winner is None:
                    break
                return known
        raise MeasurementFailed("Triton has chosen none of its configurations")


class ListDecider:
    """Decides on lists by the terms of ``decider``, which decides on kernels; ``lookup`` reads and keeps."""

    def __init__(self, decider: Decider, lookup: ListLookup) -> None:
        self._decider, self._lookup = decider, lookup

    def __call__(self, launch: TunedLaunch) -> TunerConfig | None:
        """The configuration to launch from now on, whose kernel's own decision is kept for the launch table; ``None``
        to leave the list to Triton. Raises whatever keeps it from being read, :class:`CannotPlan` where that is ours to
        say."""
        found = self._lookup.find(launch)
        if found is None:
            return None
        if found.decision is None:
            progress.log.info("%s: %d configurations, its first launch waits", *_told(found))
            known = launch.known_timings(found.configs[: found.own])
            decision = self._decided(found, WaitingLaunches(launch, found.configs), known, None)
            found = replace(found, decision=decision)
        return found.chosen

    def beside(self, found: FoundList, launches: ListLaunches, trial: TrialBeside) -> ListDecision:
        """Decide on the list of ``found`` beside the job. Raises as ``__call__`` does."""
        progress.log.info("%s: %d configurations, in the background", *_told(found))
        return self._decided(found, launches, KnownTimings(), trial)

    def _decided(
        self, found: FoundList, launches: ListLaunches, known: KnownTimings, beside: TrialBeside | None
    ) -> ListDecision:
        began = time.monotonic()
        decision = self._lookup.settle(self._decide(found, launches, known, beside))
        busy = "" if beside is None else f", the GPU busy for {beside.gpu_s:.1f} s at most"
        progress.log.info("%s (%.1f s%s)", decision, time.monotonic() - began, busy)
        return decision

    def _decide(
        self, found: FoundList, launches: ListLaunches, known: KnownTimings, beside: TrialBeside | None
    ) -> ListDecision:
        from triton.runtime.cache import triton_key

        situation, count = found.situation, len(found.configs)
        profile, device = self._decider.predicts_with(situation.device)
        text = json.dumps(codec.to_json(profile))
        made = {0: self._listed(launches, 0, profile, device)}  # raises where nothing can be planned in it
        with contextlib.ExitStack() as stack:
            waiting = beside is None and self._decider.measures
            child = stack.enter_context(self._trial_child(made[0].call, None)) if waiting else None
            pool = stack.enter_context(self._pool(text, count, beside))
            compiles = ListCompiles(pool, made, {"device": device.name, "cache": str(self._decider.cache)})
            for number in reversed(range(1, count)):
                made[number] = self._listed(launches, number, profile, device)
                tuning = beside is not None and not beside.tuned.done() and number < found.own
                if tuning and made[number].front is not None:
                    # Triton compiles them from the first on meanwhile, and finds those from the last on.
                    compiles.submit([Candidate(number, None, 0.0)])
            listed = [made[number] for number in range(count)]
            bounds = [each.bound_us for each in listed]
            chosen = within_bounds(bounds, known)
            if not chosen:
                raise CannotPlan(f"no configuration of its list compiles: {listed[0].reason}")
            shared: dict[str, Json] = {"device": device.name, "profile": text}
            ranking = {pool.submit(RANK, shared, rank_job(listed[index])): index for index in chosen}
            # Cores that would idle compile meanwhile what will hardly be left out.
            idle = max(0, pool.size - len(chosen)) if child is not None and known.winner is None else 0
            compiles.submit([Candidate(index, None, 0.0) for index in chosen[: min(idle, MOST_UNPLANNED)]])
            triton_key()  # the launch itself will need it, once a process
            results: dict[int, dict[str, Json]] = {index: {} for index in chosen}
            for job in as_completed(ranking):
                results[ranking[job]] = job.result()
                if idle:
                    best = ranked({ranking[job]: job.result()}, bounds, known)[:1]
                    compiles.submit([c for c in best if c.scheme is not None])
            if beside is not None:
                known = beside.known()
                if known.winner is not None and known.winner not in results:
                    results[known.winner] = pool.submit(RANK, shared, rank_job(listed[known.winner])).result()
            candidates = ranked(results, bounds, known)
            if not any(candidate.scheme is not None for candidate in candidates):
                return ListDecision(situation, None, reason=_why_unplanned(results))
            if beside is not None:
                child = stack.enter_context(self._trial_child(listed[0].call, beside))
            if child is None:
                return self._predicted(situation, listed, candidates, compiles)
            return self._tried(found, launches, listed, candidates, known, child, compiles, beside)

    def _trial_child(self, call: Call, beside: TrialBeside | None) -> TrialChild:
        if beside is None:
            return TrialChild(call.device, self._decider.time_limit_s)
        return TrialChild(call.device, min(RUN_LIMIT_S, self._decider.time_limit_s), beside.stop)

    def _pool(self, profile: str, count: int, beside: TrialBeside | None) -> JobPool:
        """Half of the cores are left to a job that runs on. The first jobs there are compiles of the list as it is,
        which Triton comes to soon."""
        most, limit_s = max(count, 1 + MOST_PLANNED) + min(count, MOST_UNPLANNED), self._decider.time_limit_s
        if beside is None:
            return JobPool(PREPARE, profile, most=most, time_limit_s=limit_s)
        most = min(most, cores() // 2)
        return JobPool(PREPARE_COMPILES, most=most, time_limit_s=limit_s, stop=beside.stop)

    @staticmethod
    def _listed(launches: ListLaunches, number: int, profile: Profile, device: Device) -> Listed:
        """Raises as :meth:`~.list_launches.ListLaunches.call` does."""
        call, config = launches.call(number), launches.configs[number]
        try:
            return Listed(config, call, front_end(call, profile, device))
        except Exception as error:
            if not any(kind.__name__ in CANNOT_COMPILE for kind in type(error).__mro__):
                raise
            return Listed(config, call, None, reason_of(error, CannotPlan))

    def _predicted(
        self,
        situation: ListSituation,
        listed: Sequence[Listed],
        candidates: Sequence[Candidate],
        compiles: ListCompiles,
    ) -> ListDecision:
        """The candidate of the least predicted time that compiles; as many at once as there are cores."""
        at_once = cores()
        for start in range(0, len(candidates), at_once):
            some = candidates[start : start + at_once]
            # Its first launch is of the kernel as it is: compiled meanwhile.
            itself = [replace(some[0], scheme=None)]
            compiled = compiles.files([*some, *itself])
            for candidate in some:
                files = compiled[candidate]
                if "reason" not in files:
                    self._keep(listed[candidate.config], candidate, files, None, None)
                    return ListDecision(situation, candidate.config, candidate.scheme)
        raise CannotPlan("no configuration of its list compiles")

    def _tried(
        self, found: FoundList, launches: ListLaunches, listed: Sequence[Listed], candidates: Sequence[Candidate],
        known: KnownTimings, child: TrialChild, compiles: ListCompiles, beside: TrialBeside | None,
    ) -> ListDecision:  # fmt: skip
        own = found.own
        planned, unplanned, spare = to_try(candidates, [each.alike for each in listed], known)
        as_they_are = [c for c in candidates if c.scheme is None]
        # What was added is compared with the best of the list's own.
        added = any(c.config >= own for c in (*planned, *unplanned, *spare))
        first = [c for c in as_they_are if c.config < own][:1] if added else []
        wanted = _with_references([*first, *unplanned], planned, as_they_are)
        compiles.submit(wanted)
        if beside is None:
            self._decider.finish_work(listed[0].call.device)
        with tempfile.TemporaryDirectory(prefix="warpplan-") as folder:
            described: dict[int, dict[str, Json]] = {}
            self._describe(launches, wanted, Path(folder), described)
            files = compiles.files(wanted)
            if replacing := spare[: sum("reason" in files[c] for c in planned)]:
                wanted = list(dict.fromkeys([*wanted, *_with_references([], replacing, as_they_are)]))
                files = compiles.files(wanted)
                self._describe(launches, wanted, Path(folder), described)
            as_it_is = {c.config: files[c] for c in wanted if c.scheme is None and "reason" not in files[c]}
            run = [c for c in wanted if c.config in as_it_is and "reason" not in files[c]]
            refused = {c: str(files[c]["reason"]) for c in wanted if "reason" in files[c]}
            storages = [described[c.config]["arguments"]["storages"] for c in run]
            if any(other != storages[0] for other in storages):
                raise CannotPlan("its configurations are launched on different memory: their hooks replace tensors")
            request: dict[str, Json] = {
                "candidates": [
                    {
                        "kernel": {**front_of(listed[c.config]).packed, "compiled": as_it_is[c.config]},
                        "launch": described[c.config], "planned": None if c.scheme is None else files[c],
                        "against": 0 if c.scheme is None and c.config >= own else None,
                    }
                    for c in run
                ],
                "resets": asdict(launches.resets), "right": [], "dropped": [], "beside": beside is not None,
            }  # fmt: skip
            if beside is None:
                self._decider.finish_work(listed[0].call.device)
            us, failed = self._timed(request, run, child, beside)
        reasons = {**refused, **failed}
        tried = tuple(Tried(c.config, c.scheme, us.get(c), reasons.get(c, "")) for c in wanted)
        right = [c for c in run if c in us]
        alone = [c for c in right if c.scheme is None]
        if not alone:
            raise MeasurementFailed(f"no configuration could be timed: {'; '.join(reasons.values()) or 'none ran'}")
        best = min(alone, key=lambda c: us[c])
        fastest = min((c for c in right if c.scheme is not None), key=lambda c: us[c], default=best)
        chosen = fastest if us[best] > GAIN * us[fastest] else best
        itself = next((us[c] for c in alone if c.config == chosen.config), us[best])
        of_winner = beside is not None and chosen.config == known.winner
        # The job's launches first show what the plan is worth to its own configuration.
        self._keep(listed[chosen.config], chosen, files[chosen], us[chosen], itself, provisional=beside is not None)
        provisional = beside is not None and not of_winner
        return ListDecision(found.situation, chosen.config, chosen.scheme, "", tried, provisional)

    @staticmethod
    def _timed(
        request: dict[str, Json], run: Sequence[Candidate], child: TrialChild, beside: TrialBeside | None
    ) -> tuple[dict[Candidate, float], dict[Candidate, str]]:
        """Median microseconds of those of ``run``, which ``request`` is about, that are right, and why others are not.
        Raises :class:`MeasurementFailed`."""
        failed: dict[Candidate, str] = {}

        def drop(number: int, reason: str) -> None:
            """Out, and with a configuration as it is all that would be compared with it."""
            gone = run[number]
            for other, candidate in enumerate(run):
                if other == number or (gone.scheme is None and candidate.config == gone.config):
                    request["dropped"].append(other)
                    failed.setdefault(candidate, reason)

        reason = ""
        for attempt in range(MOST_CHILDREN):
            if attempt == 0:
                result = child.run(request)
            else:
                with child.another() as another:
                    result = another.run(request)
            if beside is not None:
                told = sum(item.get("gpu_s", 0.0) for item in result.items)
                beside.gpu_s += told if result.status == "ok" else result.seconds
            reason = result.reason
            timed: dict[Candidate, float] | None = None
            for item in result.items:
                if item["step"] == "right":
                    request["right"].append(item["candidate"])
                elif item["step"] == "failed":
                    drop(item["candidate"], item["reason"])
                elif item["step"] == "untimed":
                    failed[run[item["candidate"]]] = item["reason"]
                elif item["step"] == "times":
                    timed = (timed or {}) | {run[int(number)]: us for number, us in item["us"].items()}
            if timed is not None:
                return timed, failed
            last: dict[str, Json] = result.items[-1] if result.items else {"step": ""}
            if last["step"] != "check":
                break
            drop(last["candidate"], reason)
        raise MeasurementFailed(f"its list could not be tried: {reason}")

    @staticmethod
    def _describe(
        launches: ListLaunches, wanted: Sequence[Candidate], folder: Path, described: dict[int, dict[str, Json]]
    ) -> None:
        """Add to ``described`` the launches of the configurations of ``wanted``."""
        for config in dict.fromkeys(c.config for c in wanted if c.config not in described):
            described[config] = launches.described(config, folder)

    def _keep(
        self, listed: Listed, chosen: Candidate, files: dict[str, Json], us: float | None, unplanned_us: float | None,
        *, provisional: bool = False,
    ) -> None:  # fmt: skip
        """Keep the decision on the chosen configuration's kernel, which the launch table looks up."""
        compiled = Compiled(files["hash"], tuple((str(n), str(p)) for n, p in files["files"]))
        measured = us is not None
        planned = chosen.scheme is not None
        decision = Decision(
            self._decider.situation(listed.call), chosen.scheme, "" if planned else "as fast without a plan",
            measured=measured, planned_us=us if planned else None, unplanned_us=unplanned_us,
            compiled=compiled if planned else None, provisional=provisional and planned,
        )  # fmt: skip
        self._decider.source.settle(decision)
        if measured:
            progress.tell_listeners(decision)


def _why_unplanned(results: Mapping[int, dict[str, Json]]) -> str:
    """Why no configuration has a strategy. Raises :class:`CannotPlan` where none could even be ranked."""
    said = [(f"configuration {i}", r.get("reason") or r["obstacle"]) for i, r in results.items()]
    reason = "; ".join(by_reason(said))
    if all("reason" in result for result in results.values()):  # by the machine's fault, perhaps
        raise CannotPlan(f"no configuration of its list could be ranked: {reason}")
    return reason


def _told(found: FoundList) -> tuple[str, int]:
    return found.situation.kernel, len(found.configs)


def _with_references(
    first: Sequence[Candidate], planned: Sequence[Candidate], as_they_are: Sequence[Candidate]
) -> list[Candidate]:
    """``first``, ``planned``, and before these what they are compared with: their own configurations as they are."""
    configs = {candidate.config for candidate in planned}
    return list(dict.fromkeys([*first, *(c for c in as_they_are if c.config in configs), *planned]))
