"""Time of whole kernels: CUDA graphs, rotating inputs, several candidates interleaved in one process.

A card's clock moves with its power and heat, so an absolute time says little. Candidates are timed in rounds, each
candidate once a round, and compared round by round: the ratio to a baseline survives what the times do not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.isolate import Json
from warpplan.kernels.isolated_jobs import first_line
from warpplan.kernels.torch_types import CudaGraph
from warpplan.planner.errors import MeasurementFailed

Call = Callable[[int], object]
"""Launches one kernel on the input set of the given number, asynchronously, on the current stream."""

COLD_L2_MULTIPLE = 3
"""Inputs of this many times L2's size between two uses of a set leave nothing of it there."""
MAX_SETS = 64


@dataclass(frozen=True)
class Timing:
    """Microseconds a launch: median, 10th and 90th percentile over ``count`` rounds.

    ``ratio`` is baseline time over this time (above 1: faster than the baseline), the median of the rounds' own ratios,
    ``ratio_p10`` and ``ratio_p90`` their spread; 1 for the baseline itself, ``None`` where there is none.
    """

    median_us: float
    p10_us: float
    p90_us: float
    count: int
    ratio: float | None = None
    ratio_p10: float | None = None
    ratio_p90: float | None = None

    @property
    def spread(self) -> float:
        """(p90 − p10) / median: 0.02 is a quiet machine, above 0.1 do not trust a comparison of times."""
        return (self.p90_us - self.p10_us) / self.median_us


def summarize(samples_us: Sequence[float], baseline_us: Sequence[float] | None = None) -> Timing:
    """The statistics of one candidate's rounds, paired with the baseline's rounds where given.

    Raises :class:`MeasurementFailed` where there are no samples, one is not a positive number, or the counts differ.
    """
    samples = _positive(samples_us)
    p10, median, p90 = (float(v) for v in np.percentile(samples, [10, 50, 90]))
    if baseline_us is None:
        return Timing(median, p10, p90, samples.size)
    baseline = _positive(baseline_us)
    if baseline.size != samples.size:
        raise MeasurementFailed(f"{samples.size} rounds cannot be paired with {baseline.size} of the baseline")
    low, ratio, high = (float(v) for v in np.percentile(baseline / samples, [10, 50, 90]))
    return Timing(median, p10, p90, samples.size, ratio, low, high)


def summarize_rounds(rounds: Sequence[Mapping[str, float]], baseline: str | None = None) -> dict[str, Timing]:
    """Each candidate's :class:`Timing` from rounds of ``{name: microseconds}``."""
    if not rounds:
        raise MeasurementFailed("no rounds were measured")
    columns = {name: [r[name] for r in rounds] for name in rounds[0]}
    if baseline is not None and baseline not in columns:
        raise MeasurementFailed(f"baseline {baseline!r} is not among {', '.join(columns)}")
    return {name: summarize(column, columns[baseline] if baseline else None) for name, column in columns.items()}


def _positive(samples_us: Sequence[float]) -> NDArray[np.float64]:
    samples = np.asarray(samples_us, dtype=np.float64)
    if samples.size == 0 or not np.all(np.isfinite(samples)) or samples.min() <= 0:
        raise MeasurementFailed(f"not a series of positive times: {list(samples_us)[:4]}")
    return samples


def input_sets(set_bytes: int, l2_bytes: int, *, cold: bool = True) -> int:
    """How many input sets to rotate through: one when warm; when cold, so many that a set's next use finds L2 full of
    others (``COLD_L2_MULTIPLE`` times its size), at most ``MAX_SETS``."""
    if set_bytes < 1:
        raise MeasurementFailed(f"an input set of {set_bytes} bytes cannot be rotated")
    return min(MAX_SETS, 1 + math.ceil(COLD_L2_MULTIPLE * l2_bytes / set_bytes)) if cold else 1


def round_order(names: Sequence[str], number: int) -> tuple[str, ...]:
    """The order of round ``number``: rotated, and reversed every other round, so that nobody always runs first or after
    the same neighbour."""
    shift = (number // 2) % len(names)
    order = (*names[shift:], *names[:shift])
    return order[::-1] if number % 2 else order


def paired(
    candidates: Mapping[str, Call],
    *,
    sets: int = 1,
    baseline: str | None = None,
    rounds: int = 20,
    launches: int | None = None,
    round_ms: float = 5.0,
    warm_s: float = 0.5,
    settle_s: float = 0.0,
) -> dict[str, Timing]:
    """Time ``candidates`` interleaved on the current GPU, each as a graph of launches over ``sets`` input sets in turn.

    ``launches`` a graph (rounded up to whole rotations) defaults to about ``round_ms`` of the slowest candidate. All
    candidates run interleaved for ``warm_s`` seconds first: seconds for sustained power, 0 for a cool card. Each runs
    for ``settle_s`` seconds before each reading: the clock then answers to its own power, not to the others'. Raises
    :class:`MeasurementFailed` whose ``value`` is the candidate whose capture or replay fails.
    """
    import torch

    graphs: dict[str, tuple[CudaGraph, int]] = {}
    for name, call in candidates.items():
        try:
            n = launches or _launches_for(call, sets, round_ms)
            n = math.ceil(n / sets) * sets
            graphs[name] = (_capture(call, sets, n), n)
            _replay_us(*graphs[name])
        except Exception as error:
            why = f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}"
            raise MeasurementFailed(why, field="candidate", value=name) from error
    names = tuple(graphs)
    until = time.perf_counter() + warm_s
    while time.perf_counter() < until:
        for name in names:
            _replay_us(*graphs[name])
    measured = [{name: _settled_us(*graphs[name], settle_s) for name in round_order(names, r)} for r in range(rounds)]
    torch.cuda.synchronize()
    return summarize_rounds([{name: r[name] for name in names} for r in measured], baseline)


def _settled_us(graph: CudaGraph, launches: int, seconds: float) -> float:
    """Microseconds a launch after ``seconds`` of replays."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        _replay_us(graph, launches)
    return _replay_us(graph, launches)


def time_one(call: Call, *, sets: int = 1, rounds: int = 20, warm_s: float = 0.2) -> Timing:
    """:func:`paired` for one candidate without a baseline."""
    return paired({"candidate": call}, sets=sets, rounds=rounds, warm_s=warm_s)["candidate"]


def timed_jobs(jobs: Sequence[Json], make: Callable[[Json], Callable[[], object]]) -> Iterator[dict[str, Json]]:
    """The body of a child that :func:`~warpplan.kernels.isolated_jobs.each` starts: ``{"started": True}``, then for
    each job ``{"time_us", "samples"}``, or ``{"status": "refused", "reason"}`` where it would not run.

    ``make(job)`` gives a launch on operands of its own; it is called for as many as leave none of the first in L2.
    """
    import torch

    torch.cuda.synchronize()  # opens the GPU
    yield {"started": True}
    launches: list[Callable[[], object]] = []
    for job in jobs:
        launches.clear()  # those of the job before, with their operands
        try:
            before = torch.cuda.memory_allocated()
            launches.append(make(job))
            set_bytes = max(1, torch.cuda.memory_allocated() - before)
            l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            launches += [make(job) for _ in range(1, input_sets(set_bytes, l2_bytes))]
            timing = time_one(partial(_launch_one_of, launches), sets=len(launches))
            yield {"time_us": timing.median_us, "samples": timing.count}
        except Exception as error:
            result: dict[str, Json] = {"status": "refused", "reason": first_line(error)}
            try:
                torch.cuda.synchronize()
            except Exception:
                yield {**result, "status": "crash", "fatal": True}
                return
            yield result


def _launch_one_of(launches: Sequence[Callable[[], object]], number: int) -> object:
    return launches[number]()


def _launches_for(call: Call, sets: int, round_ms: float) -> int:
    """Launches that take about ``round_ms``; the first calls compile and are not timed."""
    import torch

    for i in range(sets):
        call(i)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for i in range(8):
        call(i % sets)
    end.record()
    end.synchronize()
    each_ms = max(1e-3, float(begin.elapsed_time(end)) / 8)
    return max(4, min(2000, round(round_ms / each_ms)))


def _capture(call: Call, sets: int, launches: int) -> CudaGraph:
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for i in range(sets):
            call(i)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            call(i % sets)
    return graph


def _replay_us(graph: CudaGraph, launches: int) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / launches
