"""Configurations of anyone's kernel for one launch, ranked by predicted time.

Each is compiled up to the cut with the launch's whole numbers as constants, so that loops whose bounds they say have a
known length; what is left unknown counts as :data:`NOMINAL_TRIPS` for every configuration alike.
"""

from __future__ import annotations

import math
from typing import Any

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts, facts_of
from warpplan.kernels.compiler.costing.pipelined.launch_time import LaunchFacts, LaunchModel
from warpplan.kernels.compiler.pipeline.cutting import cut
from warpplan.kernels.compiler.sizes.gain_model import NOMINAL_TRIPS
from warpplan.kernels.triton_types import AstSource
from warpplan.planner.errors import Infeasible
from warpplan.planner.values.device import Device
from warpplan.planner.values.profile import Profile
from warpplan.service.feeds.fla.launch_recorder import RecordedLaunch
from warpplan.service.feeds.paper_launch import target_of


def rank_configs(launch: RecordedLaunch, profile: Profile, device: Device) -> tuple[tuple[Any, float], ...]:
    """The autotuner's own candidates (``triton.Config``) with their predicted time in µs, the shortest first; of equal
    ones in the list's order. Those that do not compile or fit are left out.

    Raises :class:`Infeasible` where none is left, with the reason of the first.
    """
    timed: list[tuple[Any, float]] = []
    models: dict[tuple[object, ...], LaunchModel] = {}
    reason = "its list is empty"
    for config in launch.candidates():
        # The cut lies before Triton's pipeliner: depths of one tile are compiled once.
        tile = (config.num_warps, *sorted(config.kwargs.items()))
        try:
            if tile not in models:
                models[tile] = _model(launch, config, profile, device)
            time_us = _time_us(launch, config, models[tile])
        except Exception as error:  # Triton's front end and passes raise types of their own
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            continue
        if math.isfinite(time_us):
            timed.append((config, time_us))
        else:
            reason = f"more shared memory than {device.name} has"
    if not timed:
        raise Infeasible(
            f"{launch.kernel}: none of its configurations can be predicted: {reason}",
            field="consumer", value=launch.kernel,
        )  # fmt: skip
    return tuple(sorted(timed, key=lambda found: found[1]))


def _model(launch: RecordedLaunch, config: Any, profile: Profile, device: Device) -> LaunchModel:
    at_cut = cut(_source(launch, config), target_of(device), {"num_warps": config.num_warps})
    return LaunchModel(facts_of(capture(at_cut.text)), profile, device)


def _time_us(launch: RecordedLaunch, config: Any, model: LaunchModel) -> float:
    sizes = [value.numel() * value.element_size() for value in launch.arguments.values() if hasattr(value, "numel")]
    described = LaunchFacts(
        float(launch.programs(config)), _trips(model.facts), config.num_stages, dram_bytes=float(sum(sizes))
    )
    return model.time(described).time_us


def _trips(facts: KernelFacts) -> tuple[float, ...]:
    """Of each loop in one program, those of the loops around it multiplied in."""
    total: dict[str, float] = {"": 1.0}
    for loop in facts.loops:  # outer before inner
        once = loop.trips if loop.trips is not None else NOMINAL_TRIPS
        total[loop.id] = total.get(loop.parent, 1.0) * once
    return tuple(total[loop.id] for loop in facts.loops)


def _source(launch: RecordedLaunch, config: Any) -> AstSource:
    """The kernel with the launch's tensors as pointers and everything else as constants."""
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
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float) and not parameter.is_constexpr:
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
    return ASTSource(launch.function, signature, constants, attributes)
