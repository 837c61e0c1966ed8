"""``warpplan solve``, ``pack`` and ``explain``: the planner on its own, for any graph or list of buffers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.service.cli.options import Json, print_json

if TYPE_CHECKING:
    from warpplan.planner.packing.offsets import Packing
    from warpplan.planner.values.dependence_graph import DependenceGraph
    from warpplan.planner.values.options import SolveOptions
    from warpplan.planner.values.plan import Outcome

NO_ANSWER = 1
"""Exit status of a question that was understood and has no plan, or none within the time limit."""

TimeLimit = Annotated[float, typer.Option(min=0.001, max=1e6, help="Seconds on a slow core; the answer is the same.")]


GraphFile = Annotated[str, typer.Argument(help='A file of schema warpplan/graph-1, or "-" for stdin.')]
Depth = Annotated[int | None, typer.Option(min=1, max=1024, help="Give every ring so many slots, not the fewest.")]
Slack = Annotated[int, typer.Option(min=0, max=10**9, help="Cycles of margin that every ring keeps.")]


def solve(
    graph: GraphFile,
    time_limit: TimeLimit = 10.0,
    depth: Depth = None,
    slack: Slack = 0,
    as_json: Json = False,
) -> int | None:
    """Find the software pipeline and warp partition with the smallest initiation interval of a loop body.

    Prints the schedule, partitions, channels and buffers, with the proof or the gap that the time limit left. Exit
    status 1: there is no plan, or none was found in time.
    """
    from warpplan.planner.values import codec
    from warpplan.service.views.text import outcome_lines

    loop = read_graph(graph)
    outcome = solve_telling(loop, solver_options(time_limit, depth, slack))
    if as_json:
        print_json(codec.to_json(outcome))
    else:
        for line in outcome_lines(loop, outcome):
            print(line)
    return None if outcome.plan is not None else NO_ANSWER


def read_graph(path: str) -> DependenceGraph:
    """The loop body in ``path``; :class:`MalformedFile` where it cannot be read, :class:`InvalidGraph` names what is
    wrong in it."""
    from warpplan.planner.problem.validate import require_room
    from warpplan.planner.values import codec
    from warpplan.planner.values.dependence_graph import DependenceGraph
    from warpplan.service.workflow.text_files import read_bytes, source_name

    loop: DependenceGraph = codec.loads(read_bytes(path), source_name(path), DependenceGraph)
    require_room(loop)
    return loop


def solver_options(time_limit: float, depth: int | None, slack: int) -> SolveOptions:
    from warpplan.planner.values.options import SolveOptions

    return SolveOptions(work_limit_s=time_limit, depth=depth, slack_cycles=slack)


def solve_telling(loop: DependenceGraph, options: SolveOptions) -> Outcome:
    """Solve, telling a terminal how far it is."""
    from rich.console import Console

    from warpplan.planner.solve import solve

    work = f"solving {len(loop.ops)} operations"
    with Console(stderr=True).status(work) as line:

        def progress(asked: int, proven: int, best: int | None) -> None:
            found = f"best II {best}" if best is not None else "no plan yet"
            line.update(f"{work}: {found}, proven bound {proven}, asking {asked}")

        return solve(loop, options, progress=progress)


def pack(
    buffers: Annotated[str, typer.Argument(help='A CSV file with the columns id,lower,upper,size, or "-".')],
    capacity: Annotated[int, typer.Option(min=1, max=2**53, help="Bytes of the memory.")],
    time_limit: TimeLimit = 60.0,
    out: Annotated[Path | None, typer.Option(help="Write the offsets here, not to stdout.")] = None,
    as_json: Json = False,
) -> int | None:
    """Place buffers that are live for part of the time; prints the CSV with an offset column.

    Buffers are live during [lower, upper) and may share bytes where their lives do not meet (MiniMalloc's format).
    An optional column alignment is kept. Exit status 1: there is no such placement, or none was found in time.
    """
    from rich.console import Console

    from warpplan.planner.packing import offsets
    from warpplan.service.workflow import buffer_files as files
    from warpplan.service.workflow.text_files import require_folder, write_text

    blocks = files.read_buffers(buffers, capacity)
    if out is not None:
        require_folder(out)
    with Console(stderr=True).status(f"placing {len(blocks)} buffers"):
        found = offsets.pack(blocks, capacity, time_limit_s=time_limit)
    ends = [offset + block.size for block, offset in zip(blocks, found.offsets, strict=False)]
    used = max(ends, default=0)
    text = files.write_buffers(blocks, found.offsets) if found.status == "packed" else ""
    if out is not None and text:
        write_text(out, text)
    if as_json:
        print_json(_packing_json(found, blocks, capacity, used))
    elif out is None and text:
        print(text, end="")
    print(f"warpplan: {_packing_line(found, len(blocks), capacity, used)}", file=sys.stderr)
    return None if found.status == "packed" else NO_ANSWER


def _packing_line(found: Packing, count: int, capacity: int, used: int) -> str:
    if found.status == "packed":
        share = f"{100 * used / capacity:.1f} %"
        return f"packed: {count} buffers in {used} of {capacity} bytes ({share}); {found.peak_bytes} live at once"
    return f"{found.status}: {found.reason}"


def _packing_json(found: Packing, blocks: Any, capacity: int, used: int) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "status": found.status,
        "capacity_bytes": capacity,
        "used_bytes": used if found.status == "packed" else None,
        "peak_bytes": found.peak_bytes,
        "reason": found.reason,
        "buffers": [{**asdict(b), "offset": o} for b, o in zip(blocks, found.offsets, strict=False)],
    }
