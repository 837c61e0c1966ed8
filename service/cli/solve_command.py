"""``warpplan solve``: the planner on its own, for any dependence graph; what ``explain`` shares with it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from warpplan.service.cli.shared_options import INTERRUPTED, Json, finish_on_ctrl_c, print_json

if TYPE_CHECKING:
    from warpplan.planner.values.deadline import Deadline
    from warpplan.planner.values.dependence_graph import DependenceGraph
    from warpplan.planner.values.options import SolveOptions
    from warpplan.planner.values.plan import Outcome

NO_ANSWER = 1
"""Exit status of a question that was understood and has no plan, or none within the time limit."""

DEFAULT_LIMIT_S = 10.0
TimeLimit = Annotated[
    float | None, typer.Option(min=0.001, max=1e6, help="Seconds by the clock; 10 without any limit.")
]
WorkLimit = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=1e6, help="Work in seconds of a slow core, the same on every machine; else the time limit."
    ),
]

GraphFile = Annotated[str, typer.Argument(help='A file of schema warpplan/graph-1, or "-" for stdin.')]
Depth = Annotated[int | None, typer.Option(min=1, max=1024, help="Give every ring this many slots, not the fewest.")]
AmongEquals = Annotated[
    str, typer.Option(help="What is made small among schedules of the smallest interval: lives or makespan.")
]
Slack = Annotated[int, typer.Option(min=0, max=10**9, help="Cycles of margin that every ring keeps.")]


def solve(
    graph: GraphFile,
    time_limit: TimeLimit = None,
    work_limit: WorkLimit = None,
    depth: Depth = None,
    slack: Slack = 0,
    among_equals: AmongEquals = "lives",
    as_json: Json = False,
) -> int | None:
    """Find the software pipeline and warp partition with the smallest initiation interval of a loop body.

    Prints the schedule, partitions, channels and buffers, with the proof or the gap that the limits left. Without a
    limit: 10 seconds by the clock. With --work-limit alone no clock decides: every machine prints the same. Exit
    status 1: there is no plan, or none was found in time. Ctrl-C or SIGTERM ends the search and prints what it has by
    then, with exit status 130; a second one ends the program at once.
    """
    began = time.monotonic()
    from warpplan.planner.values import codec
    from warpplan.service.views.text import outcome_lines

    loop = read_graph(graph)
    options, deadline = solver_limits(began, time_limit, work_limit, depth, slack)
    options = replace(options, among_equals=cast(Any, among_equals))  # validated with the other options
    outcome, interrupted = solve_telling(loop, options, deadline)
    if as_json:
        print_json(codec.to_json(outcome))
    else:
        for line in outcome_lines(loop, outcome):
            print(line)
    if interrupted:
        return INTERRUPTED
    return None if outcome.plan is not None else NO_ANSWER


def read_graph(path: str) -> DependenceGraph:
    """The loop body in ``path``; :class:`MalformedFile` where it cannot be read, :class:`InvalidGraph` names what is
    wrong in it."""
    from warpplan.planner.errors import InvalidInput, MalformedFile
    from warpplan.planner.problem.validate import require_slot_capacity, validate
    from warpplan.planner.values import codec
    from warpplan.planner.values.dependence_graph import DependenceGraph
    from warpplan.planner.values.options import SolveOptions
    from warpplan.service.workflow.text_files import read_bytes, source_name

    source = source_name(path)
    loop: DependenceGraph = codec.loads(read_bytes(path), source, DependenceGraph)
    try:
        validate(loop, SolveOptions())
        require_slot_capacity(loop)
    except InvalidInput as error:
        raise MalformedFile(source, str(error), field=error.field) from None
    return loop


def solver_limits(
    began: float, time_limit: float | None, work_limit: float | None, depth: int | None, slack: int
) -> tuple[SolveOptions, Deadline]:
    """The options of a solve, and the deadline ``time_limit`` seconds after ``began`` by ``time.monotonic``.

    Without either limit the time limit is :data:`DEFAULT_LIMIT_S`; with a work limit alone there is no deadline. A time
    limit alone limits the work, too: a core that is faster than the slow one of the work budget ends no later.
    """
    from warpplan.planner.values.deadline import NO_DEADLINE, Deadline
    from warpplan.planner.values.options import SolveOptions

    if time_limit is None and work_limit is None:
        time_limit = DEFAULT_LIMIT_S
    work = time_limit if work_limit is None else work_limit
    assert work is not None
    deadline = NO_DEADLINE if time_limit is None else Deadline(began + time_limit, time.monotonic)
    return SolveOptions(work_limit_s=work, depth=depth, slack_cycles=slack), deadline


def solve_telling(loop: DependenceGraph, options: SolveOptions, deadline: Deadline) -> tuple[Outcome, bool]:
    """Solve, telling a terminal how far it is; ``seconds`` of the outcome are those of the clock. Whether Ctrl-C or
    SIGTERM ended it: the outcome is then what was known by that time."""
    from rich.console import Console

    from warpplan.planner.solve import solve
    from warpplan.planner.values.deadline import Interruption

    began, interruption = time.monotonic(), Interruption()
    deadline = replace(deadline, interruption=interruption)
    work = f"solving {len(loop.ops)} operations"
    with Console(stderr=True).status(work) as line:

        def progress(asked: int, proven: int, best: int | None) -> None:
            found = f"best II {best}" if best is not None else "no plan yet"
            line.update(f"{work}: {found}, proven bound {proven}, asking {asked}")

        outcome = finish_on_ctrl_c(lambda: solve(loop, options, progress=progress, deadline=deadline), interruption)
    outcome = replace(outcome, seconds=round(time.monotonic() - began, 3))
    if interruption.called and outcome.status in ("feasible", "unknown"):
        outcome = replace(outcome, reason="interrupted")
    return outcome, interruption.called
