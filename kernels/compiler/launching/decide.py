"""What happens at a kernel's first launch: look its plan up, carry one from other sizes, or try plans in a child
process, and remember.

The launch itself always runs the kernel as it is. Whatever goes wrong leaves it so, with one warning. Here the launch
waits; :mod:`~.background_decider` does the same beside the job. What only a trial needs is imported for one: a job that
finds its decisions waits for as few imports as may be.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from warpplan.kernels.compiler.background.launch_comparison import GAIN
from warpplan.kernels.compiler.background.launch_memory import launch_sizes, shared_memory
from warpplan.kernels.compiler.exceptions import CannotPlan, by_reason, reason_of
from warpplan.kernels.compiler.launching import packed as packing
from warpplan.kernels.compiler.launching import progress
from warpplan.kernels.compiler.launching.arguments import Storages, describe
from warpplan.kernels.compiler.launching.carrying import LEFT, CarriedDecisions
from warpplan.kernels.compiler.launching.decisions import (
    Compiled,
    Decision,
    Folder,
    Situation,
    default_folder,
    own_version,
)
from warpplan.kernels.compiler.launching.dispatch import Call, Launch, name_of, warn_not_planned
from warpplan.kernels.compiler.launching.sources import (
    DecisionSource,
    Given,
    Plans,
    given,
    open_source,
)
from warpplan.kernels.compiler.sizes.gain_model import GainBasis, model_from_json
from warpplan.kernels.compiler.sizes.least_arguments import require_least
from warpplan.kernels.compiler.sizes.size_expressions import LaunchSizes
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json, strategy_text
from warpplan.kernels.isolate import IsolatedResult, run_isolated
from warpplan.kernels.triton_types import CompiledKernel, JitFunction, Json
from warpplan.planner.errors import MeasurementFailed, WarpplanError
from warpplan.planner.values.device import DEVICES, Device

if TYPE_CHECKING:
    from warpplan.planner.values.profile import Profile

PROFILED = (9,)
"""Major compute capabilities of the profiles that ship with the package."""
CHILD = "warpplan.kernels.compiler.launching.trial:trial"
MOST_SCHEMES = 5
"""Strategies that one kernel is tried with at most, each compiled, compared and timed; without measuring, compiled
until one can be. Chosen by hand."""
PLANNING_LIMIT_S = 300.0
"""Seconds by the clock until a child must have planned. Chosen by hand."""
MOST_CHILDREN = 3
"""Children that may die over one kernel; what stays untried then stays untried."""
MACHINE_FAILS = ("MeasurementFailed", "OutOfMemoryError")
"""Failures of the machine, by the name of their exception: a later launch may succeed, so nothing is remembered."""
LIKE = {9: "NVIDIA H200", 10: "NVIDIA B200"}
"""The GPU that stands for those of its compute capability whose own numbers are not known: sm_90, sm_100 and sm_103."""


@dataclass(frozen=True)
class TrialLaunch:
    """Where a trial is: the ``situation``, the ``sizes`` of its launch, and the arguments in it that share memory."""

    situation: Situation
    sizes: LaunchSizes
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelPlace:
    """A kernel with its source, and where it runs: the GPU's name, and the versions of the driver, Triton and
    warpplan."""

    kernel: str
    source: str
    device: str
    driver: str
    triton: str
    warpplan: str


class Decider:
    """``plans`` is what the user gave; ``measure`` False trusts plans without running them; ``time_limit_s`` how long
    a child may be silent, from step to step."""

    takes_provisional = False
    """Whether a plan that was timed beside a job may be used: where launches go on to compare it."""

    def __init__(
        self,
        plans: Plans = None,
        *,
        measure: bool = True,
        profile: Profile | None = None,
        time_limit_s: float = 60.0,
    ) -> None:
        self._plans = plans
        self._given: Given | None = given(plans)
        self._source: DecisionSource | None = None
        self._measure = measure
        self._profile = profile
        self._time_limit_s = time_limit_s
        self._carried = CarriedDecisions(measure=measure)
        self._loaded: weakref.WeakValueDictionary[tuple[int, Compiled], CompiledKernel] = weakref.WeakValueDictionary()
        progress.show_progress()

    def __call__(self, call: Call, launch: Launch) -> tuple[CompiledKernel, CompiledKernel]:
        """Launch ``call`` as it is. Answers the kernel that ran and the one to run from now on, which may be the same;
        ``(None, None)`` where a hook of Triton's kept it from compiling."""
        from triton.runtime.jit import JITFunction

        if type(call.jit) is not JITFunction:  # Gluon's kernels are specialised by their authors
            ran = _result(launch())
            return ran, ran
        with contextlib.ExitStack() as stack:
            place: TrialLaunch | None = None
            known: Decision | None = None
            description: dict[str, Json] | None = None
            problem: Exception | None = None
            try:
                place = self._place(call)
                known = self._known(place)
                if known is None and self._measure:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warpplan-")))
                    constants = {p.name for p in call.jit.params if p.is_constexpr}
                    description = describe(call.arguments, constants, Storages(folder))
            except Exception as error:
                problem = error
            ran = _result(launch())
            if ran is None:
                return None, None
            if problem is None:
                try:
                    assert place is not None
                    if known is not None:
                        progress.known(known)
                    decision = known or self._decide(place, call, ran, description)
                    if decision.failed:
                        warn_not_planned(call.jit, decision.reason)
                    if decision.scheme is None:
                        return ran, ran
                    planned = self._ready(decision, ran, call.device)
                    require_least(planned, call.arguments)
                    return ran, planned
                except Exception as error:
                    problem = error
            warn_not_planned(call.jit, reason_of(problem, WarpplanError))
            return ran, ran

    @property
    def given(self) -> bool:
        """Whether the user gave one plan, for whatever is launched."""
        return self._given is not None

    @property
    def measures(self) -> bool:
        return self._measure

    @property
    def time_limit_s(self) -> float:
        return self._time_limit_s

    @property
    def source(self) -> DecisionSource:
        """Where decisions on kernels are kept."""
        return self._opened()

    @property
    def folder(self) -> Path:
        """Where decisions of other kinds are kept: beside those on kernels, on this machine."""
        folder = self._opened()
        return folder.path if isinstance(folder, Folder) else default_folder()

    @property
    def cache(self) -> Path:
        """The folder of planned compiles."""
        return default_folder() / own_version()

    def capability(self, device: int) -> int:
        """Of a GPU by its number: major · 10 + minor."""
        return gpu(device)[1]

    def place_of(self, jit: JitFunction, device: int) -> KernelPlace:
        """What any decision on a launch of ``jit`` on ``device`` holds for. Raises as :meth:`situation` does."""
        import triton

        from warpplan.kernels import triton_compat  # noqa: F401  # refuses a Triton that it does not know

        name, capability = gpu(device)
        if capability // 10 not in LIKE:
            raise CannotPlan(f"plans are for GPUs of sm_90, sm_100 and sm_103: this one is sm_{capability}")
        return KernelPlace(name_of(jit), jit.cache_key, name, driver_version(), triton.__version__, own_version())

    def situation(self, call: Call) -> Situation:
        """What a decision on ``call`` holds for. Raises :class:`CannotPlan` for a GPU, a Triton or a plan that does not
        fit."""
        return self._situation(call)

    def predicts_with(self, name: str) -> tuple[Profile, Device]:
        """The profile and the device by which kernels are ranked on the GPU called ``name``, of sm_90."""
        from warpplan.kernels.plan_source import default_profile
        from warpplan.planner.values import codec
        from warpplan.planner.values.profile import Profile

        profile = self._profile or codec.from_json(default_profile(name), Profile)
        return profile, DEVICES.get(name, DEVICES[LIKE[9]])

    def finish_work(self, device: int) -> None:
        """Wait for what the job has queued: it would share the GPU with a trial."""
        _finish_work(device)

    def _place(self, call: Call) -> TrialLaunch:
        """Raises as :meth:`_situation` does."""
        return TrialLaunch(
            self._situation(call), launch_sizes(call.arguments, call.grid), shared_memory(call.arguments)
        )

    def _situation(self, call: Call) -> Situation:
        """Raises :class:`CannotPlan` for a GPU, a Triton or a plan that does not fit."""
        from triton.runtime.jit import compute_cache_key

        place = self.place_of(call.jit, call.device)
        return Situation(
            kernel=place.kernel,
            source=place.source,
            specialization=compute_cache_key({}, call.specialization, sorted(call.options.items())),
            sizes=call.sizes,
            device=place.device,
            driver=place.driver,
            triton=place.triton,
            warpplan=place.warpplan,
            plan="" if self._given is None else strategy_text(self._given.scheme(place.kernel, place.source)),
        )

    def _opened(self) -> DecisionSource:
        if self._source is None:
            self._source = open_source(self._plans, default_folder())
        return self._source

    def _load(self, situation: Situation) -> Decision | None:
        """What is kept for ``situation`` and can be relied on: to a job that measures a plan that nobody ran is as good
        as none."""
        known = self._opened().load(situation)
        return known if known is not None and self._usable(known) else None

    def _usable(self, known: Decision) -> bool:
        if known.provisional and not self.takes_provisional:
            return False
        return not self._measure or known.tried or bool(known.carried_from)

    def _known(self, place: TrialLaunch) -> Decision | None:
        """What is decided for ``place``, or carried to it from other sizes, and then kept."""
        known = self._load(place.situation)
        # Where launches go on, what was carried before may be carried otherwise by what is known since.
        revisable = known is not None and self.takes_provisional and known.weight == 1
        if known is not None and not revisable:
            self._carried.add(known)
            return known
        if self._carried.gain(place.situation.family, place.sizes) is None:
            for other in self._opened().family(place.situation):
                if self._usable(other):
                    self._carried.add(other)
        carried = self._carried.carry(place.situation, place.sizes, place.aliases)
        if carried is None or self._carried.origin(carried).provisional:  # what follows from it is not known yet
            return carried or known
        if known is not None and known.scheme != carried.scheme:
            self._opened().replace(carried)
            return carried
        return known or self._opened().settle(carried)

    def _decide(
        self, place: TrialLaunch, call: Call, kernel: CompiledKernel, description: dict[str, Json] | None
    ) -> Decision:
        began, situation = time.monotonic(), place.situation
        schemes = self._given_schemes(situation)
        progress.begun(situation.kernel, 1 if self._given is not None else MOST_SCHEMES)
        self._require_profile(call.device)
        if self._measure:
            _finish_work(call.device)
        launch = description and {"arguments": description, "grid": list(call.grid), "device": call.device}
        try:
            decision = self._try(place, self._request(packing.pack(kernel), situation.device, launch, schemes))
        except CannotPlan as error:
            decision = Decision(situation, None, str(error), failed=True)
        progress.decided(decision, time.monotonic() - began)
        settled = self._opened().settle(decision)
        self._carried.add(settled)
        return settled

    def _given_schemes(self, situation: Situation) -> list[Strategy] | None:
        """The plan that the user gave, ``None`` where warpplan plans."""
        return None if self._given is None else [self._given.scheme(situation.kernel, situation.source)]

    def _require_profile(self, device: int) -> None:
        """Raise :class:`CannotPlan` where predictions are trusted and there is nothing to predict by."""
        trusting = self._given is None and not self._measure and self._profile is None
        if trusting and gpu(device)[1] // 10 not in PROFILED:
            raise CannotPlan("no profile of such a GPU is recorded to predict by: let it measure, or give a profile")

    def _request(
        self, packed: dict[str, Json], device: str, launch: Json, schemes: list[Strategy] | None
    ) -> dict[str, Json]:
        from warpplan.kernels.plan_source import default_profile
        from warpplan.planner.values import codec

        return {
            "kernel": packed,
            "launch": launch,
            "schemes": None if schemes is None else [scheme.to_json() for scheme in schemes],
            "device": device if device in DEVICES else LIKE[packed["target"][1] // 10],
            "profile": default_profile(device) if self._profile is None else codec.to_json(self._profile),
            "cache": str(default_folder() / own_version()),
            "most": MOST_SCHEMES,
        }

    def _try(
        self, place: TrialLaunch, request: dict[str, Json], run: Callable[..., IsolatedResult] | None = None
    ) -> Decision:
        """Try each scheme, in a new child where one died over the one before; ``run`` starts it.

        Raises :class:`MeasurementFailed` where the machine failed and no scheme: that is nothing to remember."""
        found: list[Decision] = []
        refused: list[tuple[object, str]] = []
        models: dict[Strategy, Json] = {}
        for _ in range(MOST_CHILDREN):
            # Planning takes its time before the first item; every step after it runs against the clock of a hang.
            start_limit_s = max(self._time_limit_s, PLANNING_LIMIT_S)
            start = run or run_isolated
            result = start(CHILD, [request], time_limit_s=self._time_limit_s, start_limit_s=start_limit_s)
            if result.status == "stopped":
                raise MeasurementFailed(result.reason)
            items = [item for item in result.items if item["step"] != "plan"]
            for plan in (item for item in result.items if item["step"] == "plan"):
                planned = [strategy_from_json(scheme, "a trial's answer") for scheme in plan["schemes"]]
                models |= dict(zip(planned, plan.get("models", ()), strict=False))
            found += _found(place, items, models, measured=request["launch"] is not None)
            refused += [(_scheme(item), item["reason"]) for item in items if item["step"] == "failed"]
            if result.status == "ok":
                break
            if result.reason.startswith("CannotPlan: "):
                raise CannotPlan(result.reason.removeprefix("CannotPlan: "))
            if not items or items[-1]["step"] in ("done", "failed") or result.reason.startswith(MACHINE_FAILS):
                if found:
                    break
                raise MeasurementFailed(f"no plan could be tried: {result.reason}")
            refused.append((f"{_scheme(items[-1])}, step {items[-1]['step']!r}", result.reason))
            begun = sum(item["step"] == "compile" for item in items)
            request = {**request, "schemes": result.items[0]["schemes"][begun:]}
            if not request["schemes"]:
                break
        if not found:
            why = "; ".join(by_reason(refused)) or LEFT
            return Decision(place.situation, None, why, failed=bool(refused))
        best = max(found, key=lambda decision: decision.gain or 1.0)
        if best.measured and not request.get("beside") and (best.gain or 1.0) <= GAIN:
            return replace(best, scheme=None, reason="as fast without a plan", compiled=None)
        return best

    def _ready(self, decision: Decision, kernel: CompiledKernel, device: int) -> CompiledKernel:
        """The planned ``CompiledKernel``, loaded on the current device: a launch inside of a graph's capture cannot."""
        compiled = decision.compiled
        if compiled is None or not compiled.there:
            assert decision.scheme is not None
            request = self._request(packing.pack(kernel), decision.situation.device, None, [decision.scheme])
            again = self._try(TrialLaunch(decision.situation, LaunchSizes((), ())), request)
            if again.compiled is None:
                raise CannotPlan(again.reason)
            compiled = again.compiled
            self._opened().replace(replace(decision, compiled=compiled))
        planned = self._loaded.get((device, compiled))
        if planned is None:
            planned = packing.load(compiled, kernel.src)
            planned.run  # noqa: B018  # loads the module
            self._loaded[device, compiled] = planned
        return planned


def gpu(number: int) -> tuple[str, int]:
    """Name and capability (major · 10 + minor) of a device."""
    import torch

    major, minor = torch.cuda.get_device_capability(number)
    return torch.cuda.get_device_name(number), major * 10 + minor


@cache
def driver_version() -> str:
    """The kernel driver's version, "unknown" where it does not say."""
    try:
        found = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return "unknown"
    return found[1] if found else "unknown"


def _finish_work(device: int) -> None:
    """Wait for what the job has queued: it would share the GPU with the trial."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize(device)


def _found(
    place: TrialLaunch, items: Sequence[dict[str, Json]], models: dict[Strategy, Json], *, measured: bool
) -> list[Decision]:
    """The schemes that came to their end: measured, or compiled where nothing is measured."""

    def decision(scheme: Strategy, compiled: Compiled) -> Decision:
        model = models.get(scheme)
        basis = None if model is None else GainBasis(model_from_json(model, "a trial's answer"), place.sizes)
        return Decision(place.situation, scheme, compiled=compiled, basis=basis, aliases=place.aliases)

    files = {_scheme(i): Compiled(i["hash"], tuple((n, p) for n, p in i["files"])) for i in items if i["step"] == "run"}
    if not measured:
        return [decision(scheme, compiled) for scheme, compiled in files.items()]
    return [
        replace(
            decision(_scheme(i), files[_scheme(i)]),
            measured=True, planned_us=i["planned_us"], unplanned_us=i["unplanned_us"],
        )
        for i in items
        if i["step"] == "done"
    ]  # fmt: skip


def _scheme(item: dict[str, Json]) -> Strategy:
    return strategy_from_json(item["scheme"], "a trial's answer")


def _result(kernel: CompiledKernel) -> CompiledKernel:
    """Triton compiles in the background where it is asked to; ``result`` waits for it."""
    return kernel.result() if hasattr(kernel, "result") else kernel
