"""Proton's per-warp traces of the real GEMM kernels, read back as costs and set beside the probes.

The kernels carry scopes: ``producer_wait`` and ``tma_issue`` in the producer, ``consumer_wait``, ``mma`` and
``epilogue`` in the consumers. A trace is Chrome's JSON: one complete event a scope, ``pid`` "kernel Core 7 CTA 3",
``tid`` "warp 5 (line 0)", times in thousands of SM cycles (microseconds at a nominal 1000 MHz). Recording costs each
scope some cycles itself: :func:`recording_cycles` measures how many an empty one shows.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from warpplan.kernels import registry
from warpplan.kernels.gemm.graph import loop_graph, plan_candidate
from warpplan.kernels.gemm.space import ELEMENT_BYTES, GemmConfig, Shape, config_of
from warpplan.kernels.gemm.work import epilogue_cycles
from warpplan.kernels.grouped_gemm.space import config_of as grouped_config_of
from warpplan.kernels.isolate import Json, run_isolated
from warpplan.planner.errors import MalformedFile, MeasurementFailed
from warpplan.planner.simulate.simulation import simulate, steady_ii
from warpplan.planner.values.costs import CostTable, Quantiles
from warpplan.planner.values.device import Device
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.profile_files import read_json

SCOPES = ("producer_wait", "tma_issue", "consumer_wait", "mma", "epilogue")
EMPTY_SCOPE = "empty"
BUFFER_BYTES_PER_WARP = 4096
"""A power of two; Proton's buffer must be (profiled warps) times one. It holds the last 256 scopes of each warp."""
NOMINAL_MHZ = 1000.0


@dataclass(frozen=True)
class Event:
    """One scope of one warp, in SM cycles; ``launch`` tells apart the blocks and kernels of a file. ``name`` is as
    recorded: in a compiled kernel "mma@file.py:12", after an operation's line."""

    scope: str
    launch: str
    warp: int
    start_cycles: float
    cycles: float
    name: str = ""


@dataclass(frozen=True)
class TraceSummary:
    """``ii``: cycles from one multiply's issue to the next of the same warp and tile. ``scopes``: the cycles inside
    each scope, sorted by name. ``exposed_wait``: the part of the main loop that consumers spend waiting for data."""

    ii: Quantiles
    scopes: tuple[tuple[str, Quantiles], ...]
    exposed_wait: float

    def scope(self, name: str) -> Quantiles | None:
        return dict(self.scopes).get(name)


@dataclass(frozen=True)
class TraceComparison:
    """A cost read from a trace beside the same cost put together from probes, in cycles."""

    name: str
    traced_cycles: float
    probed_cycles: float

    @property
    def ratio(self) -> float:
        return self.traced_cycles / self.probed_cycles


def parse(path: Path, scopes: Collection[str] = (*SCOPES, EMPTY_SCOPE)) -> tuple[Event, ...]:
    """The events of ``scopes`` in ``path``, by launch, warp and time; :class:`MalformedFile` where it is no such
    trace."""
    body = read_json(path)
    if not isinstance(body, dict) or not isinstance(body.get("traceEvents"), list):
        raise MalformedFile(path, "no Chrome trace: traceEvents is missing", field="traceEvents")
    events = [event for index, raw in enumerate(body["traceEvents"]) for event in _event(path, index, raw, scopes)]
    return tuple(sorted(events, key=lambda e: (e.launch, e.warp, e.start_cycles)))


def _event(path: Path, index: int, raw: Json, scopes: Collection[str]) -> Iterator[Event]:
    if not isinstance(raw, dict) or raw.get("ph") != "X" or not isinstance(name := raw.get("name"), str):
        return
    scope = re.split("[@#]", name, maxsplit=1)[0]
    if scope not in scopes:
        return
    try:
        warp = re.match(r"warp (\d+)", raw["tid"])
        per_us = float(raw.get("args", {}).get("Frequency (MHz)", NOMINAL_MHZ))
        if warp is None:
            raise ValueError(f"tid {raw['tid']!r} names no warp")
        start, cycles = float(raw["ts"]) * per_us, float(raw["dur"]) * per_us
        yield Event(scope, str(raw["pid"]), int(warp[1]), start, cycles, name)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedFile(path, f"trace event {index}: {error}", field=f"traceEvents[{index}]") from None


def trace_costs(path: Path) -> TraceSummary:
    """What the trace in ``path`` says of the loop. Raises :class:`MeasurementFailed` where no warp multiplies twice."""
    return summarize(parse(path))


def summarize(events: Sequence[Event]) -> TraceSummary:
    """:func:`trace_costs` of events in order of launch, warp and time."""
    starts: list[float] = []
    busy = waiting = 0.0
    for warp in _by_warp(events):
        previous: Event | None = None
        waited = 0.0
        for event in warp:
            if event.scope == "mma":
                if previous is not None:
                    starts.append(event.start_cycles - previous.start_cycles)
                    busy += starts[-1]
                    waiting += waited
                previous, waited = event, 0.0
            elif event.scope == "consumer_wait":
                waited += event.cycles
            elif event.scope == "epilogue":
                previous = None
    if not starts:
        raise MeasurementFailed(
            "the trace holds no two multiplies of one tile: trace a shape with more iterations of K"
        )
    scopes = {s: [e.cycles for e in events if e.scope == s] for s in sorted(SCOPES)}
    found = tuple((s, _quantiles(cycles)) for s, cycles in scopes.items() if cycles)
    return TraceSummary(_quantiles(starts), found, waiting / busy if busy else 0.0)


def _by_warp(events: Sequence[Event]) -> Iterable[list[Event]]:
    warps: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        warps.setdefault((event.launch, event.warp), []).append(event)
    return warps.values()


def _quantiles(samples: Sequence[float]) -> Quantiles:
    p50, p90 = np.percentile(np.asarray(samples), [50, 90])
    return Quantiles(float(p50), float(p90), len(samples))


def compare(summary: TraceSummary, config: GemmConfig, dtype: str, costs: CostTable) -> tuple[TraceComparison, ...]:
    """The trace beside the probes: initiation interval against the busiest unit, the producer's issue, the epilogue.

    Raises :class:`~warpplan.planner.errors.MissingCosts` where the probes lack an operation.
    """
    element = ELEMENT_BYTES[dtype]
    sharers = config.consumers if config.scheme == "cooperative" else 1
    boxes = [config.consumer_rows * config.block_k * element] * sharers + [config.block_n * config.block_k * element]
    loads = [costs.lookup("tma_load", size, source="l2") for size in boxes]
    step = costs.lookup(config.mma_kind, config.block_n, dtype=dtype, a="shared")
    tensor = config.block_m // 64 * (config.block_k // (32 // element)) * _median(step.occupancy)
    transfer = sum(_median(load.occupancy) for load in loads)
    found = [TraceComparison("ii", summary.ii.p50, max(tensor, transfer))]
    issue = summary.scope("tma_issue")
    if issue is not None:
        found.append(TraceComparison("tma_issue", issue.p50, sum(_median(load.issue) for load in loads)))
    epilogue = summary.scope("epilogue")
    if epilogue is not None:
        # A probe's tile is one warp group's; the groups of a consumer store side by side.
        groups = config.consumer_warps // 4
        chunk = config.consumer_rows * config.block_n // config.epilogue_split // groups
        each = _median(costs.lookup("epilogue_store", chunk).latency)
        found.append(TraceComparison("epilogue", epilogue.p50, config.epilogue_split * each))
    return tuple(found)


def _median(quantiles: Quantiles | None) -> float:
    return quantiles.p50 if quantiles is not None else 0.0


@dataclass(frozen=True)
class Phases:
    """Median cycles: from one multiply's issue to the next (``multiply``), a consumer's wait for data, the producer's
    for a free slot, one tile's epilogue. ``None`` where a trace shows none."""

    multiply: float
    load_wait: float | None
    slot_wait: float | None
    epilogue: float | None


def traced_phases(summary: TraceSummary, recording: float) -> Phases:
    """The phases of a trace, less the ``recording`` cycles that each scope shows too many."""

    def scope(name: str) -> float | None:
        found = summary.scope(name)
        return None if found is None else max(0.0, found.p50 - recording)

    return Phases(summary.ii.p50, scope("consumer_wait"), scope("producer_wait"), scope("epilogue"))


def predicted_phases(config: GemmConfig, dtype: str, device: Device, costs: CostTable, trips: int) -> Phases:
    """The phases of the plan of ``config``, its loop of ``trips`` iterations played by the simulator.

    The simulator's multiply waits for its data and for the tensor cores, the kernel's scope for data alone. A wait that
    finds its barrier complete still costs the probe's ``barrier_ready``. Raises
    :class:`~warpplan.planner.errors.MissingCosts`, and :class:`MeasurementFailed` where the configuration has no plan.
    """
    graph = loop_graph(config, dtype, device, costs)
    plan = plan_candidate(config, dtype, device, costs).plan
    if plan is None:
        raise MeasurementFailed(f"{config} has no plan to play")
    timeline = simulate(plan, graph, trips)
    operands = [edge for edge in graph.edges if edge.dst == "mma0" and graph.by_id[edge.src].unit == "TMA"]
    loads = [timeline.of(edge.src) for edge in operands]
    handoff = max(map(graph.edge_handoff, operands)) if config.specialized else 0
    data = [max(spans[i].done for spans in loads) + handoff for i in range(trips)]
    waits = [max(0, at - span.ready) for at, span in zip(data, timeline.of("mma0"), strict=True)]
    # Until every slot has been filled once there is nothing to wait for. The simulated producer also waits for the TMA
    # unit, the real one queues its copies there and then waits so much longer for the slot.
    slots = [sum(spans[i].wait_cycles for spans in loads) for i in range(config.depth, trips)]
    return Phases(
        multiply=steady_ii(timeline) or 0.0,
        load_wait=max(float(np.median(waits)), _ready(costs, "group")),
        slot_wait=max(float(np.median(slots)), _ready(costs, "warp")) if slots else None,
        epilogue=epilogue_cycles(config, dtype, costs),
    )


def _ready(costs: CostTable, scope: str) -> float:
    return _median(costs.lookup("barrier_ready", scope=scope).issue)


def record(
    stem: Path,
    config: GemmConfig,
    *,
    dtype: str = "bfloat16",
    shape: Shape = (512, 512, 4096),
    time_limit_s: float = 120.0,
) -> Path:
    """Trace one launch of the GEMM kernel with ``config`` in a child and return the file, ``stem`` + ".chrome_trace".

    A few tiles are enough, and a whole grid's trace takes tens of megabytes. Raises :class:`MeasurementFailed` where
    the child fails, and for the pipelined scheme, whose source has no scopes.
    """
    if not config.specialized:
        raise MeasurementFailed("the pipelined scheme has no partitions to trace")
    arguments = [str(stem), asdict(config), dtype, list(shape)]
    result = run_isolated("warpplan.profiler.traces:trace_in_process", arguments, time_limit_s=time_limit_s)
    if result.status != "ok":
        raise MeasurementFailed(f"tracing {config.scheme} {config.block_m}x{config.block_n}: {result.reason}")
    return Path(result.value)


def trace_in_process(stem: str, config_fields: dict[str, Json], dtype: str, shape: Sequence[int]) -> str:
    """The child's part of :func:`record`: compile with Proton's records, launch once, write the trace."""
    import torch

    from warpplan.kernels.gemm.launch import prepare

    config = GemmConfig(**config_fields)
    m, n, k = shape
    kind = getattr(torch, dtype)
    a, b = torch.randn(m, k, device="cuda", dtype=kind), torch.randn(n, k, device="cuda", dtype=kind)
    run = prepare(a, b, config, torch.empty(m, n, device="cuda", dtype=kind))
    return _traced(stem, config.total_warps, run)


def trace_kernel_in_process(stem: str, kernel: str, shape: Sequence[int | str], dtype: str, config: Json) -> str:
    """The same for a gemm, gemm_bias_act or grouped_gemm of ``shape`` on random operands; ``config`` is a
    :class:`TuningConfig` as JSON."""
    fields = dict(config)
    tuning = TuningConfig.of(fields.pop("kwargs"), **fields)
    place = type(registry.kernel(kernel)).__module__.rpartition(".")[0]
    run = import_module(f"{place}.launch").random_launch(tuple(shape), dtype, tuning)
    read = grouped_config_of if kernel == "grouped_gemm" else config_of
    return _traced(stem, read(tuning).total_warps, run)


def recording_cycles(time_limit_s: float = 60.0) -> float:
    """Cycles that a scope with nothing in it shows, the median over warps that record side by side.

    Raises :class:`MeasurementFailed` where the child fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(Path(folder) / "empty")]
        result = run_isolated("warpplan.profiler.traces:trace_empty_scopes", arguments, time_limit_s=time_limit_s)
        if result.status != "ok":
            raise MeasurementFailed(f"tracing an empty scope: {result.reason}")
        cycles = [e.cycles for e in parse(Path(result.value)) if e.scope == EMPTY_SCOPE]
    if not cycles:
        raise MeasurementFailed("tracing an empty scope: the trace has none")
    return float(np.median(cycles))


def trace_empty_scopes(stem: str) -> str:
    """The child's part of :func:`recording_cycles`."""
    import torch

    from warpplan.profiler.probes.harness.device_code import SCOPE_WARPS, empty_scopes

    out = torch.zeros(32 * SCOPE_WARPS, device="cuda", dtype=torch.int32)
    return _traced(stem, SCOPE_WARPS, lambda: empty_scopes[(1,)](out, 200, num_warps=SCOPE_WARPS))


def _traced(stem: str, warps: int, launch: Callable[[], object]) -> str:
    """The file of one recorded launch; the kernel must not have been compiled in this process before."""
    import torch
    import triton.profiler as proton

    mode = proton.mode.Default(
        optimizations="clock32,time_shift", buffer_type="global", buffer_size=warps * BUFFER_BYTES_PER_WARP
    )
    proton.start(stem, data="trace", backend="instrumentation", mode=mode)
    launch()
    torch.cuda.synchronize()
    proton.finalize()
    return f"{stem}.chrome_trace"
