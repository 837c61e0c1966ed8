"""What ``warpplan ws`` says of an autotuned kernel's list: which (configuration, strategy) is predicted best.

No launch is meant, so times are those of equal work: a signature gives types, and sizes only where it writes numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from warpplan.kernels.triton_types import Autotuner, Json, TunerConfig
from warpplan.planner.errors import InvalidInput, WarpplanError
from warpplan.planner.values.profile import Profile

if TYPE_CHECKING:
    from warpplan.kernels.compiler.strategy.protocol import Strategy

ANY_GRID = (64, 64, 1)
"""Programs for which loops are counted where no grid is known: a count that is not the same for all of them is none."""


@dataclass(frozen=True)
class InspectedConfig:
    """One configuration: as Triton prints it, the whole ``signature`` under it, ``warps`` and ``stages``; the best
    ``strategy`` that fits, ``None`` for none, with times of equal work in microseconds; or ``reason`` why there are
    none."""

    config: str
    signature: str
    warps: int
    stages: int
    strategy: Strategy | None = None
    planned_us: float | None = None
    alone_us: float | None = None
    reason: str = ""

    @property
    def best_us(self) -> float:
        return min((us for us in (self.planned_us, self.alone_us) if us is not None), default=float("inf"))


def list_of(kernel: Autotuner, signature: str) -> list[TunerConfig]:
    """The configurations of the autotuner around ``kernel`` that ``signature`` leaves open; none where it gives all
    that they would, or there is no autotuner."""
    from warpplan.kernels.compiler.inspection.signature import parse_signature

    given = parse_signature(signature)
    layer = kernel
    while hasattr(layer, "fn") and not hasattr(layer, "device_caches"):
        if hasattr(layer, "configs"):
            return [config for config in layer.configs if set(config.kwargs) - set(given)]
        layer = layer.fn
    return []


def inspect_list(
    kernel: Autotuner, configs: Sequence[TunerConfig], signature: str, profile: Profile
) -> tuple[InspectedConfig, ...]:
    """Every one of ``configs`` for sm_90, best first, those that cannot be ranked last. ``kernel`` is the outermost
    layer, whose heuristics are computed from the configuration and the numbers of the signature.

    Raises :class:`InvalidInput` for a signature that does not fit, and where no configuration compiles.
    """
    from warpplan.kernels.compiler.costing.kernel_model import CANNOT_RANK

    found = [_inspected(kernel, config, signature, profile) for config in configs]
    if all(each.alone_us is None and each.strategy is None for each in found):
        reason = found[0].reason.removeprefix(f"{CANNOT_RANK}: ")
        raise InvalidInput(f"no configuration of the list can be ranked: {reason}", field="kernel")
    return tuple(sorted(found, key=lambda each: each.best_us))


def completed(kernel: Autotuner, config: TunerConfig, signature: str) -> str:
    """``signature`` with what ``config`` and heuristics give, and names in descriptors' blocks as numbers.

    Raises :class:`InvalidInput` for a heuristic that needs what the signature does not say.
    """
    from warpplan.kernels.compiler.inspection.signature import parse_signature

    given = parse_signature(signature)
    values: dict[str, Json] = {name: _read(text) for name, text in given.items()}
    values |= config.all_kwargs()
    made = {name: value for name, value in config.kwargs.items() if name not in given}
    layer = kernel
    while hasattr(layer, "fn") and not hasattr(layer, "device_caches"):
        for name, heuristic in getattr(layer, "values", {}).items():
            if name in given:
                continue
            try:
                made[name] = values[name] = heuristic(dict(values))
            except Exception as error:
                raise InvalidInput(
                    f"signature: {name} is computed by a heuristic that raised {type(error).__name__}: {error}; give "
                    f"{name}=VALUE, or the sizes that it needs as numbers, such as M=4096",
                    field=f"signature.{name}",
                ) from None
        layer = layer.fn
    boxes = {name: _box(text, values) for name, text in given.items()}
    return ", ".join([*(f"{n}={t}" for n, t in boxes.items()), *(f"{n}={_written(v)}" for n, v in made.items())])


def _inspected(kernel: Autotuner, config: TunerConfig, signature: str, profile: Profile) -> InspectedConfig:
    from triton.backends.compiler import GPUTarget

    from warpplan.kernels.compiler.analysis.capture import capture
    from warpplan.kernels.compiler.costing import hopper_ranking
    from warpplan.kernels.compiler.costing.kernel_model import CANNOT_RANK
    from warpplan.kernels.compiler.costing.whole_launch import LaunchSize
    from warpplan.kernels.compiler.inspection.compile_errors import compile_error_line
    from warpplan.kernels.compiler.inspection.signature import parse_signature, source_of
    from warpplan.kernels.compiler.pointers.planned_cut import explained, planned_cut
    from warpplan.kernels.compiler.sizes.loop_trips import trip_counts
    from warpplan.kernels.compiler.ttgir.parsing import parse
    from warpplan.planner.values.device import H200, device

    text = completed(kernel, config, signature)
    base = InspectedConfig(str(config), text, config.num_warps, config.num_stages)
    jit = kernel
    while not hasattr(jit, "device_caches"):
        jit = jit.fn
    source = source_of(jit, text)
    try:
        at_cut = planned_cut(source, GPUTarget("cuda", 90, 32), _options(config))
    except WarpplanError:
        raise
    except Exception as error:  # Triton's front end and passes raise types of their own
        return replace(base, reason=f"does not compile: {compile_error_line(error, jit)}")
    numbers = {name: value for name, value in map(_number, parse_signature(text).items()) if value is not None}
    counted = trip_counts(parse(at_cut.text).function, numbers, ANY_GRID)
    size = LaunchSize(0, tuple(trips if trips and trips.mean == trips.most else None for trips in counted))
    gpu = device(profile.identity.gpu)
    try:
        ranked = hopper_ranking.rank(
            explained(capture(at_cut.text), at_cut.described), profile, gpu if gpu.has_wgmma else H200,
            stages=config.num_stages, launch=size,
        )  # fmt: skip
    except WarpplanError as error:  # of this configuration: the others are ranked
        return replace(base, reason=f"{CANNOT_RANK}: {error}")
    alone = next(r for r in ranked if r.scheme is None)
    best = next((r for r in ranked if r.scheme is not None), None)
    if best is None:
        return replace(base, reason=alone.reason, alone_us=alone.launch_us)
    return replace(base, strategy=best.scheme, planned_us=best.launch_us, alone_us=alone.launch_us)


def _options(config: TunerConfig) -> dict[str, int]:
    given = {"num_warps": config.num_warps, "num_stages": config.num_stages, "num_ctas": config.num_ctas}
    return given if config.maxnreg is None else {**given, "maxnreg": config.maxnreg}


def _box(text: str, values: Mapping[str, Json]) -> str:
    """``bf16[BM,BK]`` with the numbers that the names stand for."""
    head, bracket, rest = text.partition("[")
    if not bracket:
        return text
    return head + bracket + re.sub(r"[A-Za-z_]\w*", lambda name: str(values.get(name[0], name[0])), rest)


def _read(text: str) -> Json:
    """What a heuristic sees of an argument: its number where the signature has one."""
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _number(pair: tuple[str, str]) -> tuple[str, int | None]:
    name, text = pair
    return name, int(text) if re.fullmatch(r"-?\d+", text) else None


def _written(value: Json) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else str(value)
