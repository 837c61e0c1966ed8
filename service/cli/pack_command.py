"""``warpplan pack``: offsets for a list of buffers that are live for part of the time."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.service.cli.shared_options import INTERRUPTED, Json, finish_on_ctrl_c, print_json

if TYPE_CHECKING:
    from warpplan.planner.packing.offsets import Packing, PackingBlock

NO_PACKING = 1
"""Exit status of buffers that were understood and have no placement, or none within the limits."""

Buffers = Annotated[str, typer.Argument(help='A CSV file with the columns id,lower,upper,size, or "-".')]
Capacity = Annotated[int, typer.Option(min=1, max=2**53, help="Bytes of the memory.")]
TimeLimit = Annotated[float, typer.Option(min=0.001, max=1e6, help="Seconds of the clock.")]
WorkLimit = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        max=1e6,
        help="Work, counted in search steps of a slow core's seconds: the same answer on every machine, if the time "
        "limit does not come first.",
    ),
]


def pack(
    buffers: Buffers,
    capacity: Capacity,
    time_limit: TimeLimit = 60.0,
    work_limit: WorkLimit = None,
    out: Annotated[Path | None, typer.Option(help="Write the offsets here, not to stdout.")] = None,
    as_json: Json = False,
) -> int | None:
    """Place buffers that are live for part of the time; prints the CSV with an offset column.

    Buffers are live during [lower, upper) and may share bytes where their lives do not meet (MiniMalloc's format).
    An optional column alignment is kept. Exit status 1: there is no such placement, or none was found in time. Ctrl-C
    or SIGTERM ends the search and prints the bytes that any memory needs, with exit status 130.
    """
    import math
    from dataclasses import replace

    from rich.console import Console

    from warpplan.planner.packing.line import line_packing
    from warpplan.planner.values.deadline import Deadline, Interruption
    from warpplan.service.workflow import buffer_files as files
    from warpplan.service.workflow.text_files import require_folder, write_text

    began, interruption = time.monotonic(), Interruption()
    deadline = Deadline(began + time_limit, time.monotonic, interruption)
    blocks = files.read_buffers(buffers, capacity)
    if out is not None:
        require_folder(out)
    with Console(stderr=True).status(f"placing {len(blocks)} buffers"):
        work_limit_s = math.inf if work_limit is None else work_limit
        found = finish_on_ctrl_c(
            lambda: line_packing.pack(blocks, capacity, work_limit_s=work_limit_s, deadline=deadline), interruption
        )
    if interruption.called and found.status == "unknown":
        found = replace(found, reason="interrupted")
    seconds = time.monotonic() - began
    text = files.write_buffers(blocks, found.offsets) if found.status == "packed" else ""
    if out is not None and text:
        write_text(out, text)
    if as_json:
        print_json(_packing_json(found, blocks, capacity, seconds))
    elif out is None and text:
        print(text, end="")
    print(f"warpplan: {_packing_line(found, blocks, capacity, seconds)}", file=sys.stderr)
    if interruption.called:
        return INTERRUPTED
    return None if found.status == "packed" else NO_PACKING


def _used_bytes(found: Packing, blocks: Sequence[PackingBlock]) -> int:
    return max((offset + block.size for block, offset in zip(blocks, found.offsets, strict=False)), default=0)


def _packing_line(found: Packing, blocks: Sequence[PackingBlock], capacity: int, seconds: float) -> str:
    if found.status == "packed":
        used = _used_bytes(found, blocks)
        share = f"{100 * used / capacity:.1f} %"
        return f"packed: {len(blocks)} buffers in {used} of {capacity} bytes ({share}); {found.peak_bytes} live at once"
    if found.status == "unknown":
        return f"unknown: {found.reason} after {seconds:.1f} s; {found.peak_bytes} of {capacity} bytes live at once"
    return f"{found.status}: {found.reason}"


def _packing_json(found: Packing, blocks: Sequence[PackingBlock], capacity: int, seconds: float) -> dict[str, Any]:
    """``seconds`` are those of the clock, reading the file included."""
    from dataclasses import asdict

    return {
        "status": found.status,
        "capacity_bytes": capacity,
        "used_bytes": _used_bytes(found, blocks) if found.status == "packed" else None,
        "peak_bytes": found.peak_bytes,
        "reason": found.reason,
        "solve_seconds": round(seconds, 3),
        "buffers": [{**asdict(b), "offset": o} for b, o in zip(blocks, found.offsets, strict=False)],
    }
