"""The times of a job's products, measured on its GPU when training is over and reported to the service.

Tunings of Triton's and of ``planned()`` are reported by ``listen()`` as they happen; these are the times that
``warpplan calibrate`` learns from: of each product the first few candidates, not the best alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from warpplan.kernels.declaration import Shape
from warpplan.kernels.plan_source import default_profile
from warpplan.kernels.registry import kernel
from warpplan.kernels.timing import input_sets, paired
from warpplan.planner.values import codec
from warpplan.planner.values.device import DEVICES, H200
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.client import Client, ServiceRefused

CANDIDATES = 4
"""Of each product, beside the configuration that was served. Calibration takes up to 48; four take a minute for the
twelve products of the example and hold the ranking's first choices, which are what it has to put right."""


@dataclass(frozen=True)
class TimedConfig:
    """A configuration's median microseconds over ``samples`` rounds."""

    kernel: str
    shape: Shape
    config: TuningConfig
    time_us: float
    samples: int


def timed(wanted: Mapping[tuple[str, Shape], TuningConfig], dtype: str, device: str) -> list[TimedConfig]:
    """Times of the served configurations in ``wanted`` and of the first :data:`CANDIDATES` of each product's ranking,
    interleaved, with operands that are not in L2. Raises :class:`MeasurementFailed`."""
    found = []
    for (name, shape), served in wanted.items():
        configs = list(dict.fromkeys([served, *candidates(name, shape, dtype, device)]))
        calls, sets = _calls(name, shape, configs, dtype, device)
        for number, timing in paired(calls, sets=sets).items():
            found.append(TimedConfig(name, shape, configs[int(number)], timing.median_us, timing.count))
    return found


def candidates(name: str, shape: Shape, dtype: str, device: str) -> list[TuningConfig]:
    """The best predicted configurations, under the profile that ships."""
    gpu = DEVICES.get(device, H200)
    profile = codec.from_json(default_profile(gpu.name), Profile)
    return [plan.config for plan in kernel(name).rank(shape, dtype, gpu, profile, limit=CANDIDATES)]


def report(
    client: Client, times: Sequence[TimedConfig], dtype: str, device: str, environment: Mapping[str, str], run: str
) -> tuple[int, list[str]]:
    """How many times the service took, and what it said of those that it refused. Raises
    :class:`ServiceUnavailable`."""
    taken, refused = 0, []
    for time in times:
        try:
            taken += client.measured(
                time.kernel, time.config.as_dict(), time.time_us, dtype=dtype, device=device, samples=time.samples,
                environment=environment, run=run, **kernel(time.kernel).declaration.named(time.shape),
            )  # fmt: skip
        except ServiceRefused as error:
            refused.append(str(error))
    return taken, refused


def _calls(
    name: str, shape: Shape, configs: Sequence[TuningConfig], dtype: str, device: str
) -> tuple[dict[str, Callable[[int], object]], int]:
    """A call for each configuration, by its number, and how many sets of operands they go through."""
    declaration = kernel(name).declaration
    (m, n, k), options = declaration.sizes(shape), declaration.chosen(shape)
    adds = options.get("residual") == "yes"
    element = getattr(torch, dtype)
    set_bytes = element.itemsize * (m * k + n * k + (1 + adds) * m * n)
    sets = input_sets(set_bytes, DEVICES.get(device, H200).l2_bytes)

    def stored(rows: int, columns: int, by_rows: bool) -> torch.Tensor:
        drawn = torch.randn((rows, columns) if by_rows else (columns, rows), device="cuda", dtype=element)
        return drawn if by_rows else drawn.t()

    operands = [
        (stored(m, k, options["layout"][0] == "n"), stored(n, k, options["layout"][1] == "t"), stored(m, n, True))
        for _ in range(sets)
    ]

    def run(config: TuningConfig, a: torch.Tensor, b: torch.Tensor, residual: torch.Tensor) -> Callable[[], None]:
        out = torch.empty_like(residual)
        if name == "gemm":
            from warpplan.kernels.gemm.launch import prepare

            return prepare(a, b, config, out)
        from warpplan.kernels.gemm_bias_act.launch import prepare as prepare_fused

        return prepare_fused(a, b, config, out, residual=residual if adds else None)

    calls: dict[str, Callable[[int], object]] = {}
    for number, config in enumerate(configs):
        runs = [run(config, *each) for each in operands]
        calls[str(number)] = lambda i, runs=runs: runs[i]()
    return calls, sets
