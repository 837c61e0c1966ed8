"""Measure the first configurations of somebody's kernel, each in a child with a time limit, and keep what was found.

The parent decides what is launched and keeps every time as it comes: what was measured before an interruption, a hang
or a crash stays. The child (:mod:`~warpplan.service.tuning.launch_child`) only launches and times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpplan.kernels.compiler.inspection.signature import parse_signature
from warpplan.kernels.isolate import run_isolated
from warpplan.kernels.isolated_jobs import each
from warpplan.planner.errors import InvalidInput, MeasurementFailed
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.store.stored_values import environment_of
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer
from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings
from warpplan.service.tuning.launch_child import TORCH_TYPES
from warpplan.service.tuning.launch_ranking import Tuner

START_LIMIT_S = 120.0
"""Seconds for a child to import torch and open the GPU. Chosen by hand; some 10 s on a busy machine."""


@dataclass(frozen=True)
class LaunchChild:
    """The functions that run in children, as ``module:function``: ``identity`` tells GPU and versions, ``times`` takes
    jobs and yields what became of each. Tests name their own."""

    identity: str = "warpplan.service.tuning.launch_child:identity"
    times: str = "warpplan.service.tuning.launch_child:time_launches"


CHILD = LaunchChild()


@dataclass(frozen=True)
class LaunchTiming:
    """What became of one configuration: ``time_us``, or ``None`` with the ``reason``. ``status`` is "ok", "refused"
    (Triton or the device would not run it), or how its child ended ("error", "crash", "timeout")."""

    answer: KernelAnswer
    config: TuningConfig
    time_us: float | None
    status: str
    reason: str = ""


def gpu_here(device: str) -> dict[str, str]:
    """The identity of this machine's GPU. Raises :class:`MeasurementFailed` where there is none, or one that is not
    ``device``."""
    found = run_isolated(CHILD.identity, time_limit_s=START_LIMIT_S)
    if found.status != "ok":
        raise MeasurementFailed(
            f"measuring needs a GPU, and this machine offers none: {found.reason}: rank without measuring here, and "
            "measure where the GPU is",
            field="measure",
        )
    identity: dict[str, str] = found.value
    if identity["gpu"] != device:
        raise MeasurementFailed(
            f"this machine's GPU is {identity['gpu']}, and the answers are for {device}: name it with --device",
            field="device", value=identity["gpu"], limit=device,
        )  # fmt: skip
    return identity


def launch_job(tuner: Tuner, shape: Mapping[str, int], config: TuningConfig) -> dict[str, Any]:
    """The launch of ``config`` for ``shape`` as JSON. Raises :class:`InvalidInput` naming the parameter that the
    signature says too little of to make an argument."""
    text, sizes = tuner.arguments(shape, config)
    elements = tuner.elements(shape)
    values: dict[str, int | float] = dict(sizes)
    for name, word in parse_signature(text).items():
        parameter = next(p for p in tuner.kernel.params if p.name == name)
        if parameter.is_constexpr or name in values or word == "None":
            continue
        if word.startswith("*"):
            _require_elements(name, word, elements)
        elif re.fullmatch(r"-?\d+\.\d*(e-?\d+)?", word):
            values[name] = float(word)
        else:
            raise _too_little(name, word, "measuring takes pointers and numbers with their values")
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, "num_ctas": config.num_ctas}
    if config.maxnreg is not None:
        options["maxnreg"] = config.maxnreg
    return {
        "spec": tuner.task.spec, "signature": text, "values": values, "elements": elements,
        "grid": list(tuner.grid(shape, config)), "options": options,
    }  # fmt: skip


def measure_first(
    tuner: Tuner, answers: Sequence[KernelAnswer], count: int, identity: Mapping[str, str], tunings: Tunings | None,
    *, time_limit_s: float, on_timing: Callable[[LaunchTiming], None] = lambda timing: None,
) -> list[LaunchTiming]:  # fmt: skip
    """Time the first ``count`` configurations of each answer; a child that is silent for ``time_limit_s`` is killed,
    and another goes on. Times are kept in ``tunings`` as they come; a configuration that was refused is kept as one
    that cannot run, one whose child crashed or hung is not kept."""
    wanted = [(answer, config) for answer in answers for config, _ in answer.ranked[:count]]
    jobs = [launch_job(tuner, dict(answer.shape), config) for answer, config in wanted]
    numbered = [{**job, "number": number} for number, job in enumerate(jobs)]
    found: list[LaunchTiming] = []

    def keep(job: dict[str, Any], result: dict[str, Any]) -> None:
        answer, config = wanted[job["number"]]
        time_us = result.get("time_us")
        status = "ok" if time_us is not None else result["status"]
        timing = LaunchTiming(answer, config, time_us, status, result.get("reason", ""))
        found.append(timing)
        if tunings is not None and status in ("ok", "refused"):
            environment = environment_of(identity)
            time = TunedTime(
                answer.kernel, answer.source, answer.tuning_key, config, answer.device, environment, time_us
            )
            tunings.record([time])
        on_timing(timing)

    each(CHILD.times, numbered, limit_s=time_limit_s, start_limit_s=START_LIMIT_S, on_result=keep)
    return found


def _require_elements(name: str, word: str, elements: Mapping[str, int]) -> None:
    if word[1:].partition(":")[0].strip() not in TORCH_TYPES:
        raise _too_little(name, word, f"measuring takes pointers to {', '.join(TORCH_TYPES)}")
    if elements.get(name, 0) < 1:
        raise _too_little(
            name, word, f"measuring needs to know how many elements lie behind it, such as {name}={word}[M * K]"
        )


def _too_little(name: str, word: str, why: str) -> InvalidInput:
    return InvalidInput(f"signature: {name} = {word}: {why}", field=f"signature.{name}", value=word)
