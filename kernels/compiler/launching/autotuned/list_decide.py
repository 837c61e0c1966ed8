"""What happens at the first launch of a tuner's key: look the list's decision up, or rank, try and remember.

Whatever goes wrong leaves the list to Triton's own tuning, with one warning; its winner is then planned as a kernel of
its own.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from warpplan.kernels.compiler.background.launch_comparison import GAIN
from warpplan.kernels.compiler.exceptions import CannotPlan, by_reason, reason_of
from warpplan.kernels.compiler.launching import progress
from warpplan.kernels.compiler.launching.arguments import describe
from warpplan.kernels.compiler.launching.autotuned.front_end import FrontEnd, front_end
from warpplan.kernels.compiler.launching.autotuned.job_pool import cores, run_jobs
from warpplan.kernels.compiler.launching.autotuned.list_choice import Candidate, ranked, to_try, within_bounds
from warpplan.kernels.compiler.launching.autotuned.list_decisions import ListDecision, ListFolder, ListSituation, Tried
from warpplan.kernels.compiler.launching.autotuned.list_extend import extended
from warpplan.kernels.compiler.launching.autotuned.list_jobs import COMPILE, RANK
from warpplan.kernels.compiler.launching.autotuned.trial_child import TrialChild
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import KnownTimings, TunedLaunch, resets_of
from warpplan.kernels.compiler.launching.decide import MOST_CHILDREN, Decider
from warpplan.kernels.compiler.launching.decisions import Compiled, Decision, Situation
from warpplan.kernels.compiler.launching.dispatch import Call
from warpplan.kernels.triton_types import Json, TunerConfig
from warpplan.planner.errors import MeasurementFailed
from warpplan.planner.values import codec
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile

HOPPER = 9
"""Major compute capability of the GPUs whose predictions compare between tiles."""
CANNOT_COMPILE = ("CompilationError", "CompileTimeAssertionFailure", "OutOfResources", "PTXASError")
"""Errors of Triton's, by the name of their class or of one that it is made of, that drop one configuration."""


@dataclass(frozen=True)
class Listed:
    """One configuration of the list: its ``call`` and what the front end makes of it, ``None`` with the ``reason``
    where it does not compile."""

    config: TunerConfig
    call: Call
    front: FrontEnd | None
    reason: str = ""

    @property
    def bound_us(self) -> float | None:
        return None if self.front is None else self.front.bound_us

    @property
    def alike(self) -> str:
        """Equal for configurations that differ in nothing but what a strategy sets by itself."""
        if self.front is None:
            return ""
        options = {k: v for k, v in self.front.packed["options"].items() if k not in ("num_warps", "num_stages")}
        return json.dumps([self.front.packed["text"], options, self.front.grid], default=str, sort_keys=True)


class ListDecider:
    """Decides on lists by the terms of ``decider``, which decides on kernels; ``extend`` adds tiles to them, where they
    can be tried."""

    def __init__(self, decider: Decider, *, extend: bool = False) -> None:
        self._decider, self._extend = decider, extend and decider.measures

    def __call__(self, launch: TunedLaunch) -> TunerConfig | None:
        """The configuration to launch from now on, whose kernel's own decision is kept for the launch table; ``None``
        to leave the list to Triton. Raises whatever keeps it from being read, :class:`CannotPlan` where that is ours to
        say."""
        if self._decider.given:  # one plan for all: Triton's winner is launched under it
            return None
        configs = launch.pruned()
        # A hook sets what its configuration's launch is bound to.
        launch.hook(configs[0])
        first = launch.call(configs[0])
        if self._decider.capability(first.device) // 10 != HOPPER:
            return None
        known, own = launch.known_timings(configs), len(configs)
        if self._extend:
            configs = extended(configs)
        situation = self._situation(self._decider.situation(first), launch, configs)
        folder = ListFolder(self._decider.folder)
        decision = folder.load(situation)
        if decision is not None and self._decider.measures and not decision.measured:
            decision = None
        if decision is None:
            progress.log.info("%s: %d configurations, its first launch waits", situation.kernel, len(configs))
            began = time.monotonic()
            decision = folder.settle(self._decide(situation, launch, configs, own, known))
            progress.log.info("%s (%.1f s)", decision, time.monotonic() - began)
        if decision.config is None:
            return None
        return configs[decision.config]

    def _situation(self, of_first: Situation, launch: TunedLaunch, configs: Sequence[TunerConfig]) -> ListSituation:
        return ListSituation(
            of_first.kernel, of_first.source, repr(launch.key), tuple(map(str, configs)), of_first.device,
            of_first.driver, of_first.triton, of_first.warpplan,
        )  # fmt: skip

    def _decide(
        self, situation: ListSituation, launch: TunedLaunch, configs: Sequence[TunerConfig], own: int,
        known: KnownTimings,
    ) -> ListDecision:  # fmt: skip
        """``own`` are the list's own, the others were added."""
        profile, device = self._decider.predicts_with(situation.device)
        listed = [self._listed(launch, config, profile, device) for config in configs]
        bounds = [each.bound_us for each in listed]
        chosen = within_bounds(bounds, known)
        if not chosen:
            raise CannotPlan(f"no configuration of its list compiles: {listed[0].reason}")
        shared: dict[str, Json] = {"device": device.name, "profile": codec.to_json(profile)}
        with self._trial_child(listed[0].call) as child:
            limit_s = self._decider.time_limit_s
            jobs = [_rank_job(listed[index]) for index in chosen]
            results = dict(zip(chosen, run_jobs(RANK, shared, jobs, time_limit_s=limit_s), strict=True))
            candidates = ranked(results, bounds, known)
            if not any(candidate.scheme is not None for candidate in candidates):
                said = [(f"configuration {i}", r.get("reason") or r["obstacle"]) for i, r in results.items()]
                reason = "; ".join(by_reason(said))
                if all("reason" in result for result in results.values()):  # by the machine's fault, perhaps
                    raise CannotPlan(f"no configuration of its list could be ranked: {reason}")
                return ListDecision(situation, None, reason=reason)
            if child is None:
                return self._predicted(situation, listed, candidates)
            return self._tried(situation, launch, listed, own, candidates, known, child)

    def _trial_child(self, call: Call) -> contextlib.AbstractContextManager[TrialChild | None]:
        if not self._decider.measures:
            return contextlib.nullcontext()
        return TrialChild(call.device, self._decider.time_limit_s)

    def _listed(self, launch: TunedLaunch, config: TunerConfig, profile: Profile, device: Device) -> Listed:
        """Raises what Triton's own tuning of ``config`` would raise: a hook's error, a heuristic's."""
        launch.hook(config)
        call = launch.call(config)
        try:
            return Listed(config, call, front_end(call, profile, device))
        except Exception as error:
            if not any(kind.__name__ in CANNOT_COMPILE for kind in type(error).__mro__):
                raise
            return Listed(config, call, None, reason_of(error, CannotPlan))

    def _compiled(
        self, listed: Sequence[Listed], wanted: Sequence[Candidate], situation: ListSituation
    ) -> dict[Candidate, Json]:
        """Files of each of ``wanted`` that compiles, or ``{"reason"}``."""
        shared = {"device": self._decider.predicts_with(situation.device)[1].name, "cache": str(self._decider.cache)}
        jobs = [
            {"kernel": _front(listed[c.config]).packed, "scheme": None if c.scheme is None else c.scheme.to_json()}
            for c in wanted
        ]  # fmt: skip
        return dict(zip(wanted, run_jobs(COMPILE, shared, jobs, time_limit_s=self._decider.time_limit_s), strict=True))

    def _predicted(
        self, situation: ListSituation, listed: Sequence[Listed], candidates: Sequence[Candidate]
    ) -> ListDecision:
        """The candidate of the least predicted time that compiles; as many at once as there are cores."""
        at_once = cores()
        for start in range(0, len(candidates), at_once):
            some = candidates[start : start + at_once]
            # Its first launch is of the kernel as it is: compiled meanwhile.
            itself = [replace(some[0], scheme=None)]
            compiled = self._compiled(listed, list(dict.fromkeys([*some, *itself])), situation)
            for candidate in some:
                files = compiled[candidate]
                if "reason" not in files:
                    self._keep(listed[candidate.config], candidate, files, None, None)
                    return ListDecision(situation, candidate.config, candidate.scheme)
        raise CannotPlan("no configuration of its list compiles")

    def _tried(
        self, situation: ListSituation, launch: TunedLaunch, listed: Sequence[Listed], own: int,
        candidates: Sequence[Candidate], known: KnownTimings, child: TrialChild,
    ) -> ListDecision:  # fmt: skip
        planned, unplanned, spare = to_try(candidates, [each.alike for each in listed], known)
        as_they_are = [c for c in candidates if c.scheme is None]
        # What was added is compared with the best of the list's own.
        added = any(c.config >= own for c in (*planned, *unplanned, *spare))
        first = [c for c in as_they_are if c.config < own][:1] if added else []
        wanted = _with_references([*first, *unplanned], planned, as_they_are)
        files = self._compiled(listed, wanted, situation)
        if replacing := spare[: sum("reason" in files[c] for c in planned)]:
            more = _with_references([], replacing, as_they_are)
            wanted = list(dict.fromkeys([*wanted, *more]))
            files |= self._compiled(listed, [c for c in more if c not in files], situation)
        as_it_is = {c.config: files[c] for c in wanted if c.scheme is None and "reason" not in files[c]}
        run = [c for c in wanted if c.config in as_it_is and "reason" not in files[c]]
        refused = {c: str(files[c]["reason"]) for c in wanted if "reason" in files[c]}
        self._decider.finish_work(listed[0].call.device)
        us, failed = self._timed(launch, listed, own, run, as_it_is, files, child)
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
        self._keep(listed[chosen.config], chosen, files[chosen], us[chosen], itself)
        return ListDecision(situation, chosen.config, chosen.scheme, "", tried)

    def _timed(
        self, launch: TunedLaunch, listed: Sequence[Listed], own: int, run: Sequence[Candidate],
        as_it_is: dict[int, Json], files: dict[Candidate, Json], child: TrialChild,
    ) -> tuple[dict[Candidate, float], dict[Candidate, str]]:  # fmt: skip
        """Median microseconds of those that are right, and why others are not. Raises :class:`MeasurementFailed`."""
        with tempfile.TemporaryDirectory(prefix="warpplan-") as folder:
            launches = {c: self._described(launch, listed[c.config], Path(folder)) for c in run}
            storages = [each["arguments"]["storages"] for each in launches.values()]
            if any(other != storages[0] for other in storages):
                raise CannotPlan("its configurations are launched on different memory: their hooks replace tensors")
            request: dict[str, Json] = {
                "candidates": [
                    {
                        "kernel": {**_front(listed[c.config]).packed, "compiled": as_it_is[c.config]},
                        "launch": launches[c], "planned": None if c.scheme is None else files[c],
                        "against": 0 if c.scheme is None and c.config >= own else None,
                    }
                    for c in run
                ],
                "resets": asdict(resets_of(launch.tuner)), "right": [], "dropped": [],
            }  # fmt: skip
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
                    with TrialChild(listed[0].call.device, self._decider.time_limit_s) as another:
                        result = another.run(request)
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

    def _described(self, launch: TunedLaunch, listed: Listed, folder: Path) -> dict[str, Json]:
        """The launch of one configuration as another process can make it."""
        with launch.hooked(listed.config):
            call = launch.call(listed.config)
            constants = {p.name for p in call.jit.params if p.is_constexpr}
            arguments = describe(call.arguments, constants, folder)
        return {"arguments": arguments, "grid": list(call.grid), "device": call.device}

    def _keep(
        self, listed: Listed, chosen: Candidate, files: dict[str, Json], us: float | None, unplanned_us: float | None
    ) -> None:
        """Keep the decision on the chosen configuration's kernel, which the launch table looks up."""
        compiled = Compiled(files["hash"], tuple((str(n), str(p)) for n, p in files["files"]))
        measured = us is not None
        planned = chosen.scheme is not None
        decision = Decision(
            self._decider.situation(listed.call), chosen.scheme, "" if planned else "as fast without a plan",
            measured=measured, planned_us=us if planned else None, unplanned_us=unplanned_us,
            compiled=compiled if planned else None,
        )  # fmt: skip
        self._decider.source.settle(decision)
        if measured:
            progress.tell_listeners(decision)


def _with_references(
    first: Sequence[Candidate], planned: Sequence[Candidate], as_they_are: Sequence[Candidate]
) -> list[Candidate]:
    """``first``, ``planned``, and before these what they are compared with: their own configurations as they are."""
    configs = {candidate.config for candidate in planned}
    return list(dict.fromkeys([*first, *(c for c in as_they_are if c.config in configs), *planned]))


def _rank_job(listed: Listed) -> dict[str, Json]:
    front = _front(listed)
    return {"kernel": front.packed, "numbers": front.numbers, "grid": list(front.grid), "bytes": front.bytes}


def _front(listed: Listed) -> FrontEnd:
    assert listed.front is not None  # what does not compile is no candidate
    return listed.front
