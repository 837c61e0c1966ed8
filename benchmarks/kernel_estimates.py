"""How the kernels' benchmark spends its time: readings' lengths, what is compiled once, the seconds of a phase."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from typing import Any

from kernel_cases.bench_case import case_of, set_count
from kernel_cases.bench_rows import BenchRow
from kernel_plans import PlannedRow, compiled, shortlist
from kernel_timing import FEW_REPLAYS, GRAPH_US, as_json, floor_us

from warpplan.planner.values.tuning import TuningConfig

Job = dict[str, Any]
CHUNK = 12
"""Candidates between two readings of the peer; what one that hangs takes along."""
FINALISTS = 8
"""Of the ranking."""
FOUND = 3
"""Of the search."""
POWER_LIMITED_FLOP_PER_BYTE = 300.0
"""Of compulsory traffic; denser rows draw so much power that the clock follows what runs, over tenths of a second."""
READINGS: dict[tuple[str, bool], dict[str, float]] = {
    ("search", False): {"warm_ms": 0.0, "settle_ms": 1.0, "read_ms": 3.0, "rounds": 2, "discarded": 1},
    ("search", True): {"warm_ms": 300.0, "settle_ms": 20.0, "read_ms": 15.0, "rounds": 2, "discarded": 1},
    ("compare", False): {"warm_ms": 0.0, "settle_ms": 1.0, "read_ms": 3.0, "rounds": 5, "discarded": 1},
    ("compare", True): {"warm_ms": 500.0, "settle_ms": 500.0, "read_ms": 400.0, "rounds": 2, "discarded": 0},
    ("many", False): {"warm_ms": 0.0, "settle_ms": 1.0, "read_ms": 3.0, "rounds": 5, "discarded": 1},
    ("many", True): {"warm_ms": 300.0, "settle_ms": 60.0, "read_ms": 90.0, "rounds": 3, "discarded": 1},
}
"""How a row is read, by phase and by whether power limits it. ``warm_ms``: the first contender runs before all others.
``settle_ms`` and ``read_ms``: each contender runs before it is read, and while it is. ``rounds`` are kept;
``discarded`` ones come before them.

Where power limits, a dozen contenders read for 6 ms after 3 ms differed by 20 to 30 % from round to round, and for 15
ms after 20 ms by 6 % on some cards and 30 % on others (``spread`` in the results files); a search's many candidates
are still read for 15 ms. Four linear layers, each read four times in turn with its peer for 250 ms after 150, spread
by up to 12 % and had ratios of 0.97 to 1.12; read for 400 ms after 500, they spread by 4 to 7 % with ratios of 1.01
to 1.05 (``reading_lengths_h100.json``). A reading is the mean of its replays: under the power limit they swing by a
third, 10th to 90th percentile of 0.3 s (``power_h100.json``), and their median jumps between the two ends."""
COMPILED_PEERS = ("torch.compile",)
COMPILE_S, PEER_COMPILE_S, START_S = 4.0, 20.0, 8.0
"""Of the estimate: seconds of one core a candidate or a compiled peer takes, and a child's start."""


def power_limited(row: BenchRow) -> bool:
    work = case_of(row.table).work(row)
    return work.flops / work.moved_bytes > POWER_LIMITED_FLOP_PER_BYTE


def readings(row: BenchRow, phase: str) -> dict[str, float]:
    """Of a row in a phase: see :data:`READINGS`."""
    return READINGS[phase, power_limited(row)]


def check_jobs(plans: Iterable[tuple[PlannedRow, Sequence[TuningConfig | None]]], peers: bool) -> dict[str, Job]:
    """What must be compiled once, by a key; with ``peers`` also what the rows' peers compile, which takes longest."""
    first: dict[str, Job] = {}
    found: dict[str, Job] = {}
    for plan, configs in plans:
        for config in configs or (None,):
            key, small, its_config = compiled(plan.row, config)
            values = None if its_config is None else its_config.as_dict()
            found.setdefault(key, {"row": as_json(small), "config": values})
        for peer in set(case_of(plan.row.table).peers(plan.row)) & set(COMPILED_PEERS) if peers else ():
            first[f"{peer} {plan.row.key}"] = {"row": as_json(plan.row), "peer": peer}
    return {**first, **found}


def label(row: BenchRow) -> str:
    text = " ".join(map(str, row.shape))
    return f"{row.table} {row.split} {text if len(text) < 80 else text[:77] + '...'}"


def estimate(plans: Sequence[PlannedRow], phase: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of compiling and of timing that a phase takes, and how many candidates it compiles and times."""
    shortlists = [
        shortlist(p, arguments.candidates if phase == "search" else FINALISTS + FOUND) for p in plans
    ]  # fmt: skip
    checks = check_jobs(zip(plans, shortlists, strict=True), peers=phase == "compare")
    compiling = sum(PEER_COMPILE_S if "peer" in job else COMPILE_S for job in checks.values()) / arguments.workers
    timing = sum(row_seconds(p, len(s), phase) for p, s in zip(plans, shortlists, strict=True))
    return {
        "rows": len(plans), "compiled": len(checks), "timed": sum(map(len, shortlists)),
        "compile_s": compiling + START_S * (bool(checks)), "timing_s": timing + START_S,
    }  # fmt: skip


def row_seconds(plan: PlannedRow, candidates: int, phase: str) -> float:
    """GPU seconds of one row: graphs are captured, replayed to settle, replayed to be read."""
    work = case_of(plan.row.table).work(plan.row)
    us, sets = 1.3 * floor_us(work, plan.row.dtype), set_count(work)
    launches = sets * max(1, round(GRAPH_US / (floor_us(work, plan.row.dtype) * sets)))
    graph_ms = launches * us / 1e3
    capture_ms = 3.0 + 0.03 * launches + 0.1 * sets + 2 * us / 1e3
    operands_s = 0.05 + sets * work.moved_bytes / 50e9
    warm, settle, read, rounds, discarded = readings(plan.row, phase).values()
    read_ms = (rounds + discarded) * (graph_ms + settle + max(FEW_REPLAYS * graph_ms, read))
    if phase == "search":
        chunks = math.ceil(candidates / CHUNK)
        each_ms = capture_ms + read_ms
        return operands_s + (chunks * warm + each_ms * (candidates + chunks)) / 1e3
    case = case_of(plan.row.table)
    count = candidates + len(plan.others) + len(case.peers(plan.row))
    waited_s = len(case.uncaptured(plan.row)) * 6 * 6 * us / 1e6  # six launches, each some six times as slow
    return operands_s + 0.3 + warm / 1e3 + waited_s + count * (capture_ms + read_ms) / 1e3


def print_estimates(plans: Sequence[PlannedRow], arguments: argparse.Namespace) -> None:
    print(f"{'phase':8} {'split':8} {'table':18} rows compiled timed compile_s timing_s")
    for phase in ("search", "compare"):
        for split in arguments.splits:
            total = 0.0
            for table in arguments.tables:
                mine = [p for p in plans if (p.row.table, p.row.split) == (table, split)]
                if phase == "search":
                    mine = [p for p in mine if p.ranked]
                e = (
                    estimate(mine, phase, arguments)
                    if mine
                    else dict.fromkeys(("rows", "compiled", "timed", "compile_s", "timing_s"), 0.0)
                )
                total += e["compile_s"] + e["timing_s"]
                print(
                    f"{phase:8} {split:8} {table:18} {e['rows']:4.0f} {e['compiled']:8.0f} {e['timed']:5.0f} "
                    f"{e['compile_s']:9.0f} {e['timing_s']:8.0f}"
                )
            print(f"{phase:8} {split:8} {'all':18} {total:.0f} s with {arguments.workers} cores")


def describe(plans: Sequence[PlannedRow], arguments: argparse.Namespace) -> None:
    """Every row with its candidates, peers and seconds."""
    for plan in plans:
        case = case_of(plan.row.table)
        peers = [*case.peers(plan.row), *case.uncaptured(plan.row)]
        seconds = row_seconds(plan, min(len(plan.ranked), arguments.candidates), "search")
        best = f", predicted {plan.ranked[0][1]:.1f} us" if plan.ranked else ""
        print(f"{label(plan.row)}: {len(plan.ranked)} candidates{best}, {seconds:.1f} s; {', '.join(peers)}")
    print_estimates(plans, arguments)
