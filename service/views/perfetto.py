"""A time line as Chrome's trace JSON, laid out as Proton lays out its own, so that both open side by side.

A process is a block of a kernel ("gemm Core0 CTA0"), a thread a warp ("warp 4 (consumer1)"), a complete event a scope;
``ts`` and ``dur`` are thousands of SM cycles, which viewers take for microseconds at a nominal 1000 MHz. Open it in
ui.perfetto.dev or chrome://tracing. Source of the format: "Trace Event Format", Google.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from warpplan.profiler.traces import NOMINAL_MHZ, Event
from warpplan.service.views.lanes import WAIT, Lane


def trace(
    name: str, lanes: Sequence[Lane], scopes: Sequence[Event] = (), measured: Sequence[Event] = ()
) -> dict[str, Any]:
    """``lanes`` are the predicted ones. A kernel's ``scopes``, in the words of Proton, take the place of its warps'
    lanes; ``measured`` events, already on the same clock, keep the block and the warps that they were recorded of."""
    return {
        "displayTimeUnit": "ns",
        "traceEvents": [*_predicted(name, lanes, scopes), *(_scope(e.launch, f"warp {e.warp}", e) for e in measured)],
    }


def _predicted(name: str, lanes: Sequence[Lane], scopes: Sequence[Event]) -> Iterator[dict[str, Any]]:
    block = f"{name} predicted Core0 CTA0"
    threads = {lane.warp: f"warp {lane.warp} ({lane.name})" for lane in lanes if lane.warp is not None}
    yield from (_scope(block, threads[e.warp], e) for e in scopes if e.cycles)
    for lane in lanes:
        if lane.warp is not None and scopes:
            continue
        process = block if lane.warp is not None else f"{name} predicted units"
        thread = threads[lane.warp] if lane.warp is not None else f"unit {lane.name}"
        for bar in lane.bars:
            title = f"wait {bar.label}" if bar.kind == WAIT else bar.label
            yield _event(title, process, thread, bar.start, bar.end - bar.start, iteration=bar.iteration, note=bar.note)


def _scope(process: str, thread: str, event: Event) -> dict[str, Any]:
    return _event(event.scope, process, thread, event.start_cycles, event.cycles)


def _event(title: str, process: str, thread: str, start: float, cycles: float, **notes: object) -> dict[str, Any]:
    return {
        "name": title,
        "cat": process.split(" Core")[0],
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": start / NOMINAL_MHZ,
        "dur": cycles / NOMINAL_MHZ,
        "args": {
            "Frequency (MHz)": NOMINAL_MHZ,
            **{key: value for key, value in notes.items() if value not in (None, "")},
        },
    }
