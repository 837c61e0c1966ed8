"""Time launches by CUDA-graph replay: the host's launch cost stays out, the GPU's own stays in."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

Launch = Callable[[], object]
TARGET_US = 2_000.0


def capture(
    launches: Sequence[Launch], estimate_us: float, target_us: float = TARGET_US
) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph that runs every launch in order, as often as fills about ``target_us``; and its launch count.

    The caller keeps the launches as long as the graph: they own what it reads and writes. What other threads do, such
    as PyTorch's own of a backward pass, does not end the capture.
    """
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    rounds = max(1, round(target_us / (max(estimate_us, 2.0) * len(launches))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(rounds):
            for launch in launches:
                launch()
    return graph, rounds * len(launches)


def replay_us(graph: torch.cuda.CUDAGraph, launches: int, replays: int) -> list[float]:
    """Microseconds a launch of each replay."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    events[-1].synchronize()
    return [a.elapsed_time(b) * 1e3 / launches for a, b in itertools.pairwise(events)]


def run_for(graph: torch.cuda.CUDAGraph, launches: int, milliseconds: float) -> list[float]:
    """Replay for about so long, at least three times; microseconds a launch of each replay."""
    first = replay_us(graph, launches, 1)
    replays = max(2, min(200, round(milliseconds * 1e3 / (first[0] * launches))))
    return first + replay_us(graph, launches, replays) if replays < 4 else replay_us(graph, launches, replays)


def paired(
    contenders: Mapping[str, Sequence[Launch]], estimate_us: float, rounds: int, settle_ms: float, read_ms: float
) -> dict[str, list[float]]:
    """Each round's median time of every contender, the order reversed from round to round, so that drift is shared.

    A contender runs for ``settle_ms`` before it is read: the clock then answers to its own power draw.
    """
    graphs = {name: capture(launches, estimate_us) for name, launches in contenders.items()}
    return interleaved(graphs, rounds, settle_ms, read_ms)


def interleaved(
    graphs: Mapping[str, tuple[torch.cuda.CUDAGraph, int]], rounds: int, settle_ms: float, read_ms: float
) -> dict[str, list[float]]:
    """:func:`paired` of what is captured already."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    for round_ in range(rounds + 1):
        for name in names if round_ % 2 else reversed(names):
            run_for(*graphs[name], settle_ms)
            sample = statistics.median(run_for(*graphs[name], read_ms))
            if round_:  # the first round only warms up
                times[name].append(sample)
    return times


def summary(samples: Sequence[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "us": statistics.median(ordered),
        "low_us": ordered[len(ordered) // 10],
        "high_us": ordered[-1 - len(ordered) // 10],
    }
