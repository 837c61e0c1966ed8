"""Decisions beside the job: what :class:`~.decide.Decider` does at a first launch, done by the background thread."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from warpplan.kernels.compiler.background.launch_comparison import GAIN, KEPT, LaunchPairs
from warpplan.kernels.compiler.background.launch_memory import shared_memory
from warpplan.kernels.compiler.background.plan_choices import (
    PRIOR_GAIN,
    PlanChoice,
    Snapshot,
    TrialOutcome,
    WatchedLaunch,
)
from warpplan.kernels.compiler.exceptions import CannotPlan, reason_of
from warpplan.kernels.compiler.launching import packed as packing
from warpplan.kernels.compiler.launching import progress
from warpplan.kernels.compiler.launching.arguments import Later, Storages, describe
from warpplan.kernels.compiler.launching.decide import MOST_SCHEMES, Decider, TrialLaunch, driver_version
from warpplan.kernels.compiler.launching.decisions import Decision, own_version
from warpplan.kernels.compiler.launching.dispatch import warn_not_planned
from warpplan.kernels.compiler.sizes.least_arguments import require_least
from warpplan.kernels.compiler.sizes.size_expressions import LaunchSizes
from warpplan.kernels.isolate import IsolatedResult, run_isolated
from warpplan.kernels.triton_types import CompiledKernel, Json, KernelArgument
from warpplan.planner.errors import MeasurementFailed, WarpplanError

BESIDE_SCHEMES = 3
"""Strategies that a kernel is tried with beside a job, at most. Chosen by hand: each costs the GPU some 0.1 s."""
RUN_LIMIT_S = 20.0
"""Seconds until a plan that has begun to run must have ended: a hang shares the GPU with the job for as long. Chosen by
hand: a launcher is compiled for 2 s, the rest is milliseconds."""


class BackgroundDecider(Decider):
    """A :class:`~warpplan.kernels.compiler.background.plan_choices.PlanRunner`. Launches are told by their
    :class:`~.decide.TrialLaunch`, with the :class:`~.dispatch.Call` that they came from, without its tensors."""

    takes_provisional = True

    def __init__(self, *arguments: Any, measure: bool = True, **named: Any) -> None:
        super().__init__(*arguments, measure=measure, **named)
        self.needs_arguments = measure
        self._pools: dict[str, LaunchPairs] = {}
        own_version(), driver_version()  # both read files, once: a launch does not

    def known(self, launch: WatchedLaunch) -> PlanChoice | None:
        """What can be carried within this process, of plans that are loaded."""
        place = self._place_of(launch)
        decision = self._carried.carry(place.situation, place.sizes, place.aliases)
        if decision is None:
            return None
        origin = self._carried.origin(decision)
        if origin.compiled is None or (decision.scheme is None and not origin.provisional):
            return self._as_it_is(decision)
        kernel = self._loaded.get((launch.call.device, origin.compiled))
        return None if kernel is None else self._chosen(launch, decision, kernel)

    def find(self, launch: WatchedLaunch, unplanned: CompiledKernel) -> PlanChoice | None:
        with _on(launch.call.device):
            decision = self._known(self._place_of(launch))
            if decision is None:
                return None
            progress.known(decision)
            return self._choice(launch, decision, unplanned)

    def snapshot(self, launch: WatchedLaunch, grid: tuple[int, ...], values: tuple[KernelArgument, ...]) -> Snapshot:
        folder = tempfile.TemporaryDirectory(prefix="warpplan-")
        later: Later = []
        constants = {p.name for p in launch.call.jit.params if p.is_constexpr}
        arguments = dict(zip(launch.names, values, strict=True))
        described = describe(arguments, constants, Storages(Path(folder.name), later))
        return _Snapshot(described, later, folder, launch.sizes_of(grid, values), shared_memory(arguments))

    def try_plans(
        self, launch: WatchedLaunch, unplanned: CompiledKernel, snapshot: Snapshot, stop: Callable[[], bool]
    ) -> TrialOutcome:
        place, device = self._place_of(launch), launch.call.device
        counted, described = _GpuSeconds(), None
        with _on(device), contextlib.ExitStack() as stack:
            if snapshot is not None:
                stack.callback(snapshot.folder.cleanup)
                for write in snapshot.later:
                    write()
                place = replace(place, sizes=snapshot.sizes, aliases=snapshot.aliases)
                described = {"arguments": snapshot.described, "grid": list(snapshot.sizes.grid), "device": device}
            try:
                decision = self._decide_beside(place, device, unplanned, described, partial(_run, counted, stop))
                return TrialOutcome(self._choice(launch, decision, unplanned), counted.total)
            except MeasurementFailed as error:
                return TrialOutcome(None, counted.total, str(error), stopped=stop())
            except Exception as error:
                return TrialOutcome(None, counted.total, error=error)

    def expected_gain(self, launch: WatchedLaunch) -> float:
        place = self._place_of(launch)
        gain = self._carried.gain(place.situation.family, place.sizes)
        return PRIOR_GAIN if gain is None else gain

    def settle(self, launch: WatchedLaunch, choice: PlanChoice, times: tuple[float, float] | None) -> None:
        """Times of the job's launches take the place of those of a trial beside it."""
        timed: Decision = replace(choice.decision, provisional=False)
        if times is not None:
            timed = replace(timed, planned_us=times[0], unplanned_us=times[1])
        if timed.gain is not None and timed.gain <= (GAIN if choice.pool is not None else KEPT):
            timed = replace(timed, scheme=None, reason="as fast without a plan", compiled=None)
        settled = self._opened().settle(timed)
        self._carried.add(settled)
        progress.timed(settled)

    def left(self, launch: WatchedLaunch, error: Exception) -> None:
        warn_not_planned(launch.call.jit, reason_of(error, WarpplanError))

    def _place_of(self, launch: WatchedLaunch) -> TrialLaunch:
        return TrialLaunch(self._situation(launch.call), launch.sizes, launch.aliases)

    def _decide_beside(
        self, place: TrialLaunch, device: int, unplanned: CompiledKernel, described: Json,
        run: Callable[..., IsolatedResult],
    ) -> Decision:  # fmt: skip
        began = time.monotonic()
        schemes = self._given_schemes(place.situation)
        progress.begun_beside(place.situation.kernel, 1 if schemes is not None else BESIDE_SCHEMES)
        self._require_profile(device)
        try:
            request = self._request(packing.pack(unplanned), place.situation.device, described, schemes)
            most = BESIDE_SCHEMES if self._measure else MOST_SCHEMES
            decision = self._try(place, {**request, "beside": True, "most": most}, run)
        except CannotPlan as error:
            decision = Decision(place.situation, None, str(error), failed=True)
        if decision.measured:
            decision = replace(decision, provisional=True)
        progress.decided(decision, time.monotonic() - began)
        settled = self._opened().settle(decision)
        self._carried.add(settled)
        return settled

    def _choice(self, launch: WatchedLaunch, decision: Decision, unplanned: CompiledKernel) -> PlanChoice:
        """What ``decision`` means for launches. Says once why a kernel stays as it is."""
        if decision.failed:
            warn_not_planned(launch.call.jit, decision.reason)
        origin = self._carried.origin(decision)
        if decision.scheme is None and (origin.scheme is None or not origin.provisional):
            return self._as_it_is(decision)
        return self._chosen(launch, decision, self._ready(origin, unplanned, launch.call.device))

    @staticmethod
    def _as_it_is(decision: Decision) -> PlanChoice:
        predicted = decision.predicted_gain is not None and decision.gain is None
        return PlanChoice(None, final=True, decision=decision, predicted=predicted)

    def _chosen(self, launch: WatchedLaunch, decision: Decision, kernel: CompiledKernel) -> PlanChoice:
        """``kernel`` for launches of ``launch``: compared with the kernel as it is, where nothing has shown yet which
        is faster. Raises :class:`CannotPlan` where it is not for their arguments."""
        require_least(kernel, launch.call.arguments)
        origin = self._carried.origin(decision)
        basis = decision.basis
        model = None if basis is None else basis.model
        if self._measure and origin.provisional:
            pool = self._pools.setdefault(origin.situation.key, LaunchPairs())
            reference = launch.sizes if basis is None else basis.sizes
            return PlanChoice(kernel, final=False, decision=origin, model=model, reference=reference, pool=pool)
        comparing = self._measure and bool(decision.carried_from) and decision.gain is None
        return PlanChoice(kernel, final=not comparing, decision=decision, model=model)


@dataclass(frozen=True)
class _Snapshot:
    """``described`` arguments, what is ``later`` to be written into ``folder`` for them, and what the launch was."""

    described: dict[str, Json]
    later: Later
    folder: tempfile.TemporaryDirectory[str]
    sizes: LaunchSizes
    aliases: tuple[str, ...]


class _GpuSeconds:
    """What a child keeps the GPU busy, by its own account, or by the clock where it was killed."""

    def __init__(self) -> None:
        self.total = 0.0
        self._began: float | None = None

    def see(self, item: dict[str, Json]) -> None:
        self._began = time.monotonic() if item["step"] == "run" else None
        self.total += float(item.get("gpu_s", 0.0))

    def end(self) -> None:
        if self._began is not None:
            self.total += time.monotonic() - self._began
            self._began = None


def _run(
    counted: _GpuSeconds, stop: Callable[[], bool], target: str, args: list[Json], *, time_limit_s: float,
    start_limit_s: float,
) -> IsolatedResult:  # fmt: skip
    """:func:`~warpplan.kernels.isolate.run_isolated` with the shorter limit of what shares the GPU with a job."""
    run_limit_s = min(RUN_LIMIT_S, time_limit_s)
    try:
        return run_isolated(
            target, args, time_limit_s=time_limit_s, start_limit_s=start_limit_s, on_item=counted.see, stop=stop,
            limit_after=lambda item: run_limit_s if item["step"] == "run" else None,
        )  # fmt: skip
    finally:
        counted.end()


@contextlib.contextmanager
def _on(device: int) -> Iterator[None]:
    """This thread's current GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        yield
        return
    with torch.cuda.device(device):
        yield
