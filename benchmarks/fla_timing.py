"""GPU: every configuration of one of FLA's autotuned kernels, timed on the arguments of a layer's own launch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from bench_target import require_target
from fla_cases import CASES, step
from fla_ranking import launch_with, text_of
from gpu_jobs import guarded
from graph_timing import capture, interleaved, run_for, summary
from row_store import Row
from tl_launch import wait

from warpplan.service.feeds.fla.launch_recorder import RecordedLaunch

ROUNDS, SETTLE_MS, READ_MS = 7, 3.0, 6.0
WARM_MS = 300.0
"""A cool card that is limited by power is faster than it stays."""
TOLERANCE = 0.02
"""Of the difference of two outputs, over the norm of one. Rounding to bfloat16 alone gives 0.002 to 0.004."""
REFERENCES = 3
"""Configurations that are tried as the reference: one with which less than half of the list agrees is wrong itself."""


def measure_jobs(jobs: Sequence[tuple[str, str, str]]) -> Iterator[Row]:
    """Runs in a child: a result for each (case, kernel, folder of the case's exported files)."""
    require_target(torch.cuda.get_device_name())
    return guarded(jobs, lambda job: measured(*job))


def measured(name: str, kernel: str, folder: str) -> Row:
    """The time of every configuration by its position in the list, or why it has none; and which of them FLA reads."""
    launch = caught(name, kernel)
    configs = launch.candidates()
    listed = [text_of(config) for config in configs]
    chosen = read_by_fla(launch, folder)
    begun = time.monotonic()
    failed, estimates = checked(launch, configs)
    graphs: dict[str, Any] = {}
    for position, estimate_us in estimates.items():
        launches = [lambda config=configs[position]: launch_with(launch, config)]
        try:
            graphs[str(position)] = capture(launches, estimate_us)
        except Exception as error:
            failed[str(position)] = reason_of(error)
    result = {"configs": listed, "chosen": listed.index(chosen) if chosen in listed else None, "failed": failed}
    if not graphs:
        return {"status": "error", "reason": "no configuration ran", **result}
    run_for(*next(iter(graphs.values())), WARM_MS)
    readings = interleaved(graphs, ROUNDS, SETTLE_MS, READ_MS)
    times = {position: round(summary(sample)["us"], 3) for position, sample in readings.items()}
    graphs.clear()
    torch.cuda.empty_cache()
    return {"status": "ok", **result, "times_us": times, "seconds": round(time.monotonic() - begun, 1)}


def caught(name: str, kernel: str) -> RecordedLaunch:
    """The first launch of ``kernel`` in the case ``name``, on tensors of its own as they were before it. Memory that
    the layer leaves uninitialised holds NaN."""
    from fla.ops.utils.cache import AutotuneKey, CachedAutotuner

    found: list[RecordedLaunch] = []

    def run(tuner: Any, *positional: object, grid: Any = (1,), warmup: bool = False, **keywords: object) -> None:
        key = AutotuneKey.build(tuner.arg_names, tuner.keys, positional, keywords)
        launch = RecordedLaunch(tuner.kernel_name, key, tuner, positional, keywords, grid)
        if tuner.kernel_name == kernel and not found:
            found.append(cloned(launch))
        launch_with(launch, launch.candidates()[0])

    with mock.patch.object(CachedAutotuner, "run", run), first_of_other_lists(), poisoned():
        step(CASES[name], "cuda")
    wait()
    if not found:
        raise LookupError(f"{name} launches no {kernel} on this GPU")
    return found[0]


@contextmanager
def first_of_other_lists() -> Iterator[None]:
    """Kernels under Triton's own autotuner, of which FLA reads no files, take the first of their list, unmeasured."""
    from triton.runtime.autotuner import Autotuner

    def run(tuner: Any, *positional: object, **keywords: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, positional, strict=False))
        config = tuner.prune_configs(keywords)[0]
        tuner.nargs = None
        return tuner.fn.run(*positional, **keywords, **config.all_kwargs())

    with mock.patch.object(Autotuner, "run", run):
        yield


@contextmanager
def poisoned() -> Iterator[None]:
    """``torch.empty`` and its like give NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def cloned(launch: RecordedLaunch) -> RecordedLaunch:
    """The same launch on copies; one tensor that is passed twice stays one."""
    copies: dict[int, Any] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copies:
            made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
            copies[id(value)] = made.copy_(value.detach())
        return copies[id(value)]

    keywords = {name: copy(value) for name, value in launch.keywords.items()}
    return replace(launch, positional=tuple(map(copy, launch.positional)), keywords=keywords)


def tensors_of(launch: RecordedLaunch) -> dict[str, torch.Tensor]:
    return {name: value for name, value in launch.arguments.items() if isinstance(value, torch.Tensor)}


def checked(launch: RecordedLaunch, configs: Sequence[Any]) -> tuple[dict[str, str], dict[int, float]]:
    """Why positions of the list are wrong or do not run; of the others one launch's time, µs."""
    arguments = tensors_of(launch)
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    broken: dict[str, str] = {}

    def outputs(position: int, names: Sequence[str]) -> float:
        """Restores what the kernel writes, launches it twice, the second time measured, and restores once more."""
        for _ in range(2):  # the first launch may compile or load
            for name in names:
                arguments[name].copy_(before[name])
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            launch_with(launch, configs[position])
            end.record()
            wait()
        return start.elapsed_time(end) * 1e3

    written = list(arguments)
    for reference in range(min(REFERENCES, len(configs))):
        try:
            outputs(reference, written)
        except Exception as error:
            torch.cuda.synchronize()  # raises where the GPU is lost
            broken[str(reference)] = reason_of(error)
            continue
        changed = [name for name in arguments if not same_bytes(arguments[name], before[name])]
        for name in set(arguments) - set(changed):  # what an earlier kernel left unwritten must not spread
            arguments[name].nan_to_num_(nan=0.0, posinf=float("inf"), neginf=float("-inf"))
        outputs(reference, changed)
        wanted = {name: arguments[name].clone() for name in changed}
        wrong: dict[str, str] = {}
        times: dict[int, float] = {}
        for position in range(len(configs)):
            if str(position) in broken:
                continue
            try:
                us = outputs(position, changed)
                error = max((relative_error(arguments[name], wanted[name]) for name in changed), default=float("inf"))
                if error <= TOLERANCE:
                    times[position] = us
                else:
                    wrong[str(position)] = f"wrong: error {error:.2e} from position {reference}"
            except Exception as error:
                torch.cuda.synchronize()
                broken[str(position)] = reason_of(error)
        if 2 * len(times) >= len(configs) - len(broken):
            return {**broken, **wrong}, times
    return {**broken, **dict.fromkeys(map(str, range(len(configs))), "no reference: the list's results differ")}, {}


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """NaN equals NaN."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Infinite where the one is NaN, such as unwritten, and the other is not, and where nothing is written."""
    unwritten = torch.isnan(wanted)
    if bool(unwritten.all()) or not torch.equal(torch.isnan(found), unwritten):
        return float("inf")
    one, other = found.float().masked_fill(unwritten, 0.0), wanted.float().masked_fill(unwritten, 0.0)
    return float((one - other).norm() / other.norm().clamp_min(1e-30))


def read_by_fla(launch: RecordedLaunch, folder: str) -> str | None:
    """What FLA's own autotuner takes from the exported files for this launch, in its strict mode."""
    from fla.ops.utils import cache

    tuner: Any = launch.tuner
    tuner.cache.clear()
    cache.load_config_file.cache_clear()
    named: Mapping[str, Any] = dict(zip(tuner.arg_names, launch.positional, strict=False))
    with (
        mock.patch.dict(os.environ, {"FLA_CONFIG_DIR": folder}),
        mock.patch.object(cache, "FLA_CACHE_MODE", cache.FlaCacheMode.STRICT),
    ):
        tuner.maybe_load_cached_config(key=launch.key, nargs=named, runtime_kwargs=dict(launch.keywords))
    found = tuner.cache.pop(launch.key.autotune_key, None)
    cache.load_config_file.cache_clear()
    return None if found is None else text_of(found)


def reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
