"""The packing search against CP-SAT on the memories of ``packing_instances.py``: writes
``benchmarks/results/packing.json``.

Per instance, each with its capacity equal to its peak load: whether the search packs it within ``--limit-s``, whether
an independent check finds the packing valid, and the time. Then the peer, OR-Tools' CP-SAT with one ``NoOverlap2D``,
one worker and ``--peer-limit-s`` of the clock, in the same process. ``cpu_s`` is what to compare on a machine with
other work. With ``--minimalloc FOLDER``, MiniMalloc's published instances there (``NAME.CAPACITY.csv``) come first,
with 10 seconds each; files that are not there are left out.

Run it with ``make bench-packing``; ``--only`` takes parts of names, ``--peer-limit-s 0`` leaves the peer out. An
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from ortools.sat.python import cp_model
from packing_instances import instances
from planning_speed import cpu_name
from results_file import RESULTS, head
from row_store import RowStore, add_arguments, of_shard

from warpplan.planner.packing.line.line_packing import pack
from warpplan.planner.packing.offsets import PackingBlock
from warpplan.planner.values.deadline import Deadline
from warpplan.service.workflow.buffer_files import read_buffers

LIMIT_S, PUBLISHED_LIMIT_S = 60.0, 10.0
PUBLISHED = ("A.1048576.csv", "B.1048576.csv", "C.1048576.csv")


@dataclass(frozen=True)
class Task:
    name: str
    kind: str
    blocks: tuple[PackingBlock, ...]
    capacity: int
    limit_s: float


def tasks(minimalloc: Path | None, number: int, limit_s: float) -> Iterator[Task]:
    for path in [minimalloc / name for name in PUBLISHED] if minimalloc is not None else []:
        if path.exists():
            name, capacity = path.name.split(".")[0], int(path.name.split(".")[1])
            blocks = read_buffers(str(path), capacity)
            yield Task(f"minimalloc-{name}", "minimalloc", blocks, capacity, min(limit_s, PUBLISHED_LIMIT_S))
    for made in instances(number):
        yield Task(made.name, made.kind, made.blocks, made.capacity, limit_s)


def valid(blocks: Sequence[PackingBlock], offsets: Sequence[int], capacity: int) -> bool:
    """Whether every block lies within the memory, and no two that are live together share a byte."""
    placed = list(zip(blocks, offsets, strict=True))
    return all(0 <= at <= capacity - block.size for block, at in placed) and not any(
        a.lower < b.upper and b.lower < a.upper and p < q + b.size and q < p + a.size
        for (a, p), (b, q) in combinations(placed, 2)
    )


def measure(task: Task) -> dict[str, Any]:
    """The search's row."""
    before, clock = time.process_time(), time.perf_counter()
    found = pack(task.blocks, task.capacity, deadline=Deadline.after(task.limit_s, time.perf_counter))
    cpu, wall = time.process_time() - before, time.perf_counter() - clock
    return {
        "kernel": task.kind,
        "instance": task.name,
        "buffers": len(task.blocks),
        "capacity_bytes": task.capacity,
        "peak_bytes": found.peak_bytes,
        "limit_s": task.limit_s,
        "status": found.status,
        "valid": found.status == "packed" and valid(task.blocks, found.offsets, task.capacity),
        "cpu_s": round(cpu, 4),
        "wall_s": round(wall, 4),
    }


def peer(task: Task, limit_s: float) -> dict[str, Any]:
    """CP-SAT's row: the model that one would write down first, in the coarsest unit."""
    before, clock = time.process_time(), time.perf_counter()
    unit = math.gcd(task.capacity, *(block.size for block in task.blocks))
    model = cp_model.CpModel()
    offsets = [model.new_int_var(0, (task.capacity - block.size) // unit, "") for block in task.blocks]
    lives = [model.new_fixed_size_interval_var(b.lower, b.upper - b.lower, "") for b in task.blocks]
    places = [
        model.new_fixed_size_interval_var(offset, block.size // unit, "")
        for offset, block in zip(offsets, task.blocks, strict=True)
    ]
    model.add_no_overlap_2d(lives, places)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = limit_s
    status = solver.solve(model)
    packed = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    cpu, wall = time.process_time() - before, time.perf_counter() - clock
    return {
        "status": "packed" if packed else solver.status_name(status).lower(),
        "valid": packed and valid(task.blocks, [unit * solver.value(offset) for offset in offsets], task.capacity),
        "cpu_s": round(cpu, 4),
        "wall_s": round(wall, 4),
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    cpu = [row["cpu_s"] for row in rows]
    packed = [row for row in rows if row["valid"]]
    compared = [row for row in rows if "peer" in row]
    return {
        "instances": len(rows),
        "packed": len(packed),
        "left": [row["instance"] for row in rows if not row["valid"]],
        "median_cpu_s": statistics.median(cpu),
        "worst_cpu_s": max(cpu),
        "worst_packed_cpu_s": max((row["cpu_s"] for row in packed), default=None),
        "peer_compared": len(compared),
        "peer_packed": sum(row["peer"]["valid"] for row in compared),
        "peer_alone_packed": [row["instance"] for row in compared if row["peer"]["valid"] and not row["valid"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS / "packing.json", "instances")
    parser.add_argument("--minimalloc", type=Path, help="the folder of MiniMalloc's published instances")
    parser.add_argument("--number", type=int, default=0, help="which instances: no constant has seen another than 0")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds of the clock for the search on one")
    parser.add_argument("--peer-limit-s", type=float, default=LIMIT_S, help="seconds of the clock for CP-SAT on one")
    options = parser.parse_args()
    wanted = [
        task
        for task in tasks(options.minimalloc, options.number, options.limit_s)
        if not options.only or any(part in task.name for part in options.only)
    ]
    if not wanted:
        parser.error(f"no instance has any of {options.only} in its name")
    limits = {"limit_s": options.limit_s, "peer_limit_s": options.peer_limit_s}
    store = RowStore(options.out, ("instance",), {**limits, "number": options.number}, fresh=options.fresh)
    for task in of_shard(wanted, options.shard):
        if (task.name,) in store.rows():
            continue
        row = measure(task)
        line = f"{task.name:<20} {row['status']}, valid {row['valid']}, {row['cpu_s']:.3f} s CPU"
        if options.peer_limit_s > 0:
            row["peer"] = peer(task, options.peer_limit_s)
            line += f"; CP-SAT {row['peer']['status']}, {row['peer']['cpu_s']:.3f} s CPU"
        store.add(row)
        print(line, flush=True)
    known = store.rows()
    rows = [known[(task.name,)] for task in wanted if (task.name,) in known]
    found = summary(rows)
    result = {**head("packing", cpu_name()), **limits, "summary": found}
    store.write(result, rows, complete=len(rows) == len(wanted))
    print(found)
    print(f"{len(rows)} of {len(wanted)} rows written to {options.out}")


if __name__ == "__main__":
    main()
