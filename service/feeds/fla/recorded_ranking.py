"""Configurations of anyone's kernel for one launch, ranked by predicted time.

Each is compiled up to the cut with the launch's whole numbers as constants, so that loops whose bounds they say have a
known length; what is left unknown counts as :data:`NOMINAL_TRIPS` for every configuration alike. What then ranks first
is assembled: registers that spill can make a kernel ten times as slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.pipelined.assembled_first import as_assembled, assembled_first
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts, facts_of
from warpplan.kernels.compiler.costing.pipelined.launch_time import LaunchFacts, LaunchModel
from warpplan.kernels.compiler.costing.pipelined.launch_traffic import run_slowdown
from warpplan.kernels.compiler.pipeline.cutting import cut
from warpplan.kernels.compiler.sizes.gain_model import NOMINAL_TRIPS
from warpplan.kernels.triton_types import AstSource
from warpplan.planner.errors import Infeasible, InvalidConfig
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile
from warpplan.service.feeds.fla.launch_recorder import RecordedLaunch
from warpplan.service.feeds.paper_launch import target_of

if TYPE_CHECKING:
    from warpplan.kernels.compile import CompiledReport

Reports = dict[tuple[object, ...], "CompiledReport | str"]
"""By what was compiled and with which options: what ptxas made of it, or why it did not compile."""
ALIGNMENT = 16
"""Of pointers, in bytes, and of whole numbers: Triton specialises a launch on multiples of it."""


@dataclass(frozen=True)
class RecordedCandidate:
    """``launch`` under ``config``, one of the autotuner's configurations; ``model`` prices ``described``, as estimated
    or as assembled."""

    launch: RecordedLaunch
    config: Any
    model: LaunchModel
    described: LaunchFacts

    @cached_property
    def time_us(self) -> float:
        return self.model.time(self.described).time_us


class RecordedPrices:
    """Candidates of one kernel priced on ``device``. The cut lies before Triton's pipeliner: depths of one tile are
    compiled once. ``reports``, which is added to, has what was assembled for launches that specialise alike."""

    def __init__(self, profile: Profile, device: Device, reports: Reports) -> None:
        self._profile, self._device, self._reports = profile, device, reports
        self._models: dict[tuple[object, ...], LaunchModel] = {}

    def priced(self, launch: RecordedLaunch, config: Any) -> RecordedCandidate | str:
        """``launch`` under ``config``, or why it does not compile or fit."""
        tile = (launch.function.cache_key, config.num_warps, *sorted(config.kwargs.items()))
        try:
            if tile not in self._models:
                self._models[tile] = _model(launch, config, self._profile, self._device)
            model = self._models[tile]
            candidate = RecordedCandidate(launch, config, model, _described(launch, config, model))
            fits = math.isfinite(candidate.time_us)
        except Exception as error:  # Triton's front end and passes raise types of their own
            return (str(error).strip().splitlines() or [type(error).__name__])[0]
        return candidate if fits else self._too_large

    def ranked(
        self, candidates: list[RecordedCandidate]
    ) -> tuple[list[RecordedCandidate], list[tuple[RecordedCandidate, str]]]:
        """The shortest predicted time first, of equal ones in their order, the first few as ptxas assembles them; and
        those that it refuses, with the reason."""
        return assembled_first(candidates, lambda candidate: candidate.time_us, self._assembled)

    @property
    def _too_large(self) -> str:
        return f"more shared memory than {self._device.name} has"

    def _assembled(self, candidate: RecordedCandidate) -> RecordedCandidate | str:
        report = _report(candidate.launch, candidate.config, self._device, self._reports)
        if isinstance(report, str):
            return report
        described = as_assembled(candidate.described, report)
        return replace(candidate, described=described) if candidate.model.resident(described) else self._too_large


def rank_configs(
    launch: RecordedLaunch, profile: Profile, device: Device, reports: Reports
) -> tuple[tuple[Any, float], ...]:
    """The autotuner's own candidates (``triton.Config``) with their predicted time in µs, the shortest first. Those
    that do not compile or fit are left out; the first few are assembled, unless ``reports`` has them.

    Raises :class:`Infeasible` where none is left, with the reason of the first.
    """
    prices = RecordedPrices(profile, device, reports)
    found = [prices.priced(launch, config) for config in launch.candidates()]
    reasons = [each for each in found if isinstance(each, str)]
    ranked, refused = prices.ranked([each for each in found if not isinstance(each, str)])
    if not ranked:
        reason = next(iter((*reasons, *(reason for _, reason in refused))), "its list is empty")
        raise Infeasible(
            f"{launch.kernel}: none of its configurations can be predicted: {reason}",
            field="consumer", value=launch.kernel,
        )  # fmt: skip
    return tuple((candidate.config, candidate.time_us) for candidate in ranked)


def _model(launch: RecordedLaunch, config: Any, profile: Profile, device: Device) -> LaunchModel:
    at_cut = cut(_source(launch, config, constant=True), target_of(device), {"num_warps": config.num_warps})
    return LaunchModel(facts_of(capture(at_cut.text)), profile, device)


def _described(launch: RecordedLaunch, config: Any, model: LaunchModel) -> LaunchFacts:
    sizes = [value.numel() * value.element_size() for value in launch.arguments.values() if hasattr(value, "numel")]
    trips = _trips(model.facts)
    dram_bytes = sum(sizes) * run_slowdown(model.facts, trips)
    return LaunchFacts(float(launch.programs(config)), trips, config.num_stages, dram_bytes=dram_bytes)


def _report(launch: RecordedLaunch, config: Any, device: Device, reports: Reports) -> CompiledReport | str:
    """What ptxas makes of it, or why it does not compile."""
    from warpplan.kernels.compile import compile_report

    source = _source(launch, config, constant=False)
    options = {name: value for name, value in config.all_kwargs().items() if name not in config.kwargs}
    key = (source.hash(), *sorted(options.items()))
    if key not in reports:
        try:
            reports[key] = compile_report(source, options, device.capability, what=launch.kernel)
        except InvalidConfig as error:
            reports[key] = str(error)
    return reports[key]


def _trips(facts: KernelFacts) -> tuple[float, ...]:
    """Of each loop in one program, those of the loops around it multiplied in."""
    total: dict[str, float] = {"": 1.0}
    for loop in facts.loops:  # outer before inner
        once = loop.trips if loop.trips is not None else NOMINAL_TRIPS
        total[loop.id] = total.get(loop.parent, 1.0) * once
    return tuple(total[loop.id] for loop in facts.loops)


def _source(launch: RecordedLaunch, config: Any, *, constant: bool) -> AstSource:
    """The kernel with the launch's tensors as pointers; its numbers as constants, or specialised as Triton does."""
    from triton.compiler import ASTSource
    from triton.runtime.jit import mangle_type

    signature: dict[str, str] = {}
    constants: dict[tuple[int], object] = {}
    attributes: dict[tuple[int], list[list[str | int]]] = {}
    given = {**launch.arguments, **config.kwargs}
    for index, parameter in enumerate(launch.function.params):
        value = given.get(parameter.name, parameter.default if parameter.has_default else None)
        if hasattr(value, "data_ptr"):
            signature[parameter.name] = mangle_type(value)
            attributes[(index,)] = [["tt.divisibility", ALIGNMENT]]
        elif isinstance(value, float) and not parameter.is_constexpr:
            signature[parameter.name] = "fp32"
        elif not constant and not parameter.is_constexpr and (number := _launched(value, parameter)) is not None:
            signature[parameter.name] = mangle_type(number)
            if number % ALIGNMENT == 0 and not parameter.do_not_specialize:
                attributes[(index,)] = [["tt.divisibility", ALIGNMENT]]
        else:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
    return ASTSource(launch.function, signature, constants, attributes)


def _launched(value: object, parameter: Any) -> int | None:
    """``value`` where Triton passes it at a launch: it compiles 1 in where it may specialise."""
    if not isinstance(value, int) or isinstance(value, bool) or (value == 1 and not parameter.do_not_specialize):
        return None
    return value
