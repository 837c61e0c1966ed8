"""``warpplan explain``: why this plan and not another, and its time line in four forms."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.planner.errors import InvalidInput, UnknownName
from warpplan.service.cli.shared_options import (
    DeviceName,
    Dtype,
    Json,
    ProfileFile,
    named,
    print_json,
    progress_bar,
    require_unused,
)
from warpplan.service.cli.solve_command import (
    NO_ANSWER,
    Depth,
    Slack,
    TimeLimit,
    WorkLimit,
    read_graph,
    solve_telling,
    solver_limits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from warpplan.planner.predict.alternatives import RankedCandidates
    from warpplan.planner.predict.ranking import RankedPlan
    from warpplan.planner.predict.time_model import Prediction
    from warpplan.planner.values.deadline import Deadline
    from warpplan.planner.values.dependence_graph import DependenceGraph
    from warpplan.planner.values.options import SolveOptions
    from warpplan.planner.values.plan import Outcome
    from warpplan.planner.values.timeline import Timeline
    from warpplan.planner.values.tuning import TuningConfig
    from warpplan.profiler.traces import Event
    from warpplan.service.views.sections import Section

SCHEMA = "warpplan/explanation-1"
WHAT_IF_SECONDS = 20.0
"""Seconds by the clock for what-if solves; the output says how many were finished. Chosen by hand."""

STEADY_ITERATIONS = 64
"""A comparison with measured phases plays so many iterations, so that the first ones do not decide the medians."""

Subject = Annotated[str, typer.Argument(help='A kernel, or a graph file, or "-".', metavar="SUBJECT")]
MaybeShape = Annotated[
    list[str] | None,
    typer.Argument(help="A kernel's sizes and options (see: warpplan kernels).", metavar="[NAME=VALUE]..."),
]
Iterations = Annotated[int, typer.Option(min=1, max=1000, help="Iterations of the loop in the time line.")]
SvgFile = Annotated[Path | None, typer.Option("--svg", help="Write the time line as a picture.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write everything as one page that needs no network.")]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Write the time line for Perfetto or chrome://tracing.")
]
Measured = Annotated[Path | None, typer.Option("--measured", help="Proton's .chrome_trace of the same kernel.")]


@dataclass(frozen=True)
class Explained:
    """What there is to show. ``body`` is the JSON; ``kernel`` says that the loop is one of a known kernel, whose
    measured scopes have names; ``epilogue_cycles`` follow its loop."""

    title: str
    lead: tuple[str, ...]
    graph: DependenceGraph
    outcome: Outcome
    sections: tuple[Section, ...]
    body: dict[str, Any]
    kernel: bool = False
    epilogue_cycles: int = 0


def explain(
    context: typer.Context,
    subject: Subject,
    shape: MaybeShape = None,
    dtype: Dtype = "bfloat16",
    device: DeviceName = None,
    profile: ProfileFile = None,
    time_limit: TimeLimit = None,
    work_limit: WorkLimit = None,
    depth: Depth = None,
    slack: Slack = 0,
    iterations: Iterations = 6,
    svg: SvgFile = None,
    html: HtmlFile = None,
    trace: TraceFile = None,
    measured: Measured = None,
    as_json: Json = False,
) -> int | None:
    """Say why a kernel's plan, or a graph's, is the one: what binds, what would change it, and when what runs.

    For a kernel: the terms of its time, what the best plan of another structure would need, and which measured number
    would flip the choice. For a graph: which cost would have to change for another initiation interval. The limits are
    those of the graph's solve; the questions after it take at most 20 seconds more. Exit status 1: the graph has no
    plan, or none was found in time.
    """
    began = time.monotonic()
    from warpplan.kernels import registry
    from warpplan.service.workflow.text_files import require_folder

    for path in (svg, html, trace):
        if path is not None:
            require_folder(path)
    events = _events(measured)
    if subject in registry.names():
        solving = ("time_limit", "work_limit", "depth", "slack")
        require_unused(context, solving, f"only a graph is solved on request, and {subject} is a kernel")
        found = _kernel(subject, named(shape or []), dtype, device, profile)
    elif subject == "-" or Path(subject).suffix == ".json" or Path(subject).exists():
        require_unused(context, ("dtype", "device", "profile"), f"only kernels have it, and {subject} is a graph file")
        if shape:
            raise InvalidInput(f"{shape[0]!r} after a graph file: only kernels have sizes", field="shape", value=shape)
        found = _graph(subject, *solver_limits(began, time_limit, work_limit, depth, slack))
    else:
        raise UnknownName("kernel or graph file", subject, (*registry.names(), "GRAPH.json"))
    if found.outcome.plan is None:
        return _no_plan(found, as_json)
    _show(found, iterations, events, svg, html, trace, as_json)
    return None


def _graph(path: str, options: SolveOptions, deadline: Deadline) -> Explained:
    from warpplan.planner.predict.explanation import demands
    from warpplan.planner.predict.sensitivity import cost_changes
    from warpplan.planner.values import codec
    from warpplan.planner.values.deadline import Deadline
    from warpplan.service.views import sections
    from warpplan.service.views.text import outcome_lines

    graph = read_graph(path)
    outcome, interrupted = solve_telling(graph, options, deadline)
    if interrupted:
        for line in outcome_lines(graph, outcome):
            print(line)
        raise KeyboardInterrupt
    body: dict[str, Any] = {"graph": graph.name, "outcome": codec.to_json(outcome)}
    plan = outcome.plan
    if plan is None:
        return Explained(graph.name, (), graph, outcome, (), body)
    filled = demands(graph, plan, slack_cycles=options.slack_cycles)
    with _what_ifs("asking what each cost decides") as progress:
        within = Deadline.after(WHAT_IF_SECONDS, time.monotonic)
        changes = cost_changes(graph, options, outcome, progress=progress, deadline=within)
    ii = plan.schedule.ii_cycles
    body |= {"demands": [asdict(d) for d in filled], "costs": asdict(changes)}
    lead = (f"{len(graph.ops)} operations, {outcome.status}, II {ii} cycles, proven bound {outcome.bound}",)
    shown = (sections.bounds(outcome, filled), sections.costs(changes, ii))
    return Explained(graph.name, lead, graph, outcome, shown, body)


def _kernel(name: str, shape: dict[str, object], dtype: str, device: str | None, profile: Path | None) -> Explained:
    from warpplan.planner.predict.explanation import demands
    from warpplan.planner.values import codec
    from warpplan.service.cli.display import config_line
    from warpplan.service.views import sections
    from warpplan.service.workflow.profiles import Profiles
    from warpplan.service.workflow.request import Item, check

    profiles = Profiles.given(profile, device)
    problem, kernel, gpu = check(Item(name, tuple(shape.items()), dtype, device), profiles.default_device)
    measurements = profiles.of(gpu.name).profile
    race = kernel.race(problem.canonical, dtype, gpu, measurements)
    compared = _raced(race) if race else _ranked(kernel.rank(problem.canonical, dtype, gpu, measurements), name)
    loop = kernel.loop(compared.configs[0], dtype, gpu, measurements, problem.canonical)
    filled = demands(loop.graph, loop.outcome.plan) if loop.outcome.plan else ()
    best = compared.predicted[0]
    lead = (
        config_line(compared.configs[0], name),
        f"predicted {best.time_us:.2f} us, {best.tflops:.1f} TFLOP/s, bound by {best.bound_by}",
    )
    rivals = [
        {"structure": n, "config": c.as_dict(), "predicted": asdict(p) | {"parts": dict(p.parts)}}
        for n, c, p in zip(compared.names, compared.configs, compared.predicted, strict=True)
    ]
    body = {
        "kernel": name,
        "shape": problem.shape,
        "dtype": dtype,
        "device": gpu.name,
        "outcome": codec.to_json(loop.outcome),
        "demands": [asdict(d) for d in filled],
        "contenders": rivals,
        **compared.body,
        "epilogue_cycles": loop.epilogue_cycles,
    }
    title = f"{problem.label} on {problem.device}"
    shown = (sections.terms(best), sections.bounds(loop.outcome, filled), *compared.sections)
    return Explained(title, lead, loop.graph, loop.outcome, shown, body, True, loop.epilogue_cycles)


@dataclass(frozen=True)
class _Compared:
    """The best candidate and those it is compared with, best first; what the comparison adds to page and JSON."""

    names: tuple[str, ...]
    configs: tuple[TuningConfig, ...]
    predicted: tuple[Prediction, ...]
    sections: tuple[Section, ...] = ()
    body: dict[str, Any] = field(default_factory=dict)


def _raced(race: RankedCandidates) -> _Compared:
    """Unlike structures compared number by number: what the next would need, which measurement flips the choice."""
    from warpplan.planner.predict.alternatives import flips, needs
    from warpplan.service.views import sections

    predicted = race.predictions()
    with _what_ifs("asking which measurement decides") as progress:
        doubts = flips(race, progress=progress)
    lacking = needs(race) if len(race.names) > 1 else ()
    shown: tuple[Section, ...] = ()
    if lacking:
        shown = (
            sections.contenders(race, predicted),
            sections.what_the_next_needs(race, lacking),
            sections.choice(race, doubts),
        )
    body = {
        "next_needs": [asdict(n) for n in lacking],
        "flips": {**asdict(doubts), "flips": [{**asdict(f), "within_spread": f.within_spread} for f in doubts.flips]},
    }
    return _Compared(race.names, race.configs, predicted, shown, body)


def _ranked(ranked: tuple[RankedPlan, ...], kernel: str) -> _Compared:
    """The first of the ranking, for a kernel with a time model of its own."""
    from warpplan.service.cli.display import config_line

    configs = tuple(r.config for r in ranked)
    return _Compared(tuple(config_line(c, kernel) for c in configs), configs, tuple(r.prediction for r in ranked))


def _no_plan(found: Explained, as_json: bool) -> int:
    from warpplan.service.views.text import outcome_lines

    if as_json:
        print_json({"schema": SCHEMA, **found.body})
    else:
        for line in outcome_lines(found.graph, found.outcome):
            print(line)
    return NO_ANSWER


def _show(
    found: Explained, iterations: int, events: tuple[Event, ...], svg: Path | None, html: Path | None,
    trace: Path | None, as_json: bool,
) -> None:  # fmt: skip
    from warpplan.planner.simulate.simulation import simulate
    from warpplan.planner.values import codec
    from warpplan.service.views import html as html_view
    from warpplan.service.views import lanes, perfetto, phases, sections, text
    from warpplan.service.views import svg as svg_view
    from warpplan.service.workflow.text_files import write_text

    plan = found.outcome.plan
    assert plan is not None
    timeline: Timeline = simulate(plan, found.graph, iterations)
    rows = lanes.predicted(found.graph, plan, timeline, found.epilogue_cycles)
    shown, body = list(found.sections), dict(found.body)
    scopes = phases.scopes(found.graph, plan, timeline, found.epilogue_cycles)
    drawn = rows
    block: tuple[Event, ...] = ()
    if events:
        block = phases.on_one_clock(scopes, events)
        drawn = (*rows, *phases.measured_lanes(plan, block, lanes.end_of(rows)))
        steady = simulate(plan, found.graph, max(iterations, STEADY_ITERATIONS))
        compared = phases.compare(phases.scopes(found.graph, plan, steady, found.epilogue_cycles), events)
        shown.append(sections.comparison(compared))
        body["measured"] = [asdict(c) for c in compared]
    ii = plan.schedule.ii_cycles
    picture = svg_view.timeline(drawn, f"{found.title}: {iterations} iterations", ii)
    if svg is not None:
        write_text(svg, picture)
    if html is not None:
        memory = [svg_view.memory(plan, found.graph.limits.smem_bytes)] if plan.smem_bytes else []
        plan_tables = sections.plan(found.graph, plan)
        write_text(html, html_view.page(found.title, found.lead, [picture, *memory], [*shown, *plan_tables]))
    if trace is not None:
        name = found.body["kernel"] if found.kernel else found.title
        write_text(trace, json.dumps(perfetto.trace(name, rows, scopes if found.kernel else (), block)) + "\n")
    if as_json:
        return print_json({"schema": SCHEMA, **body, "timeline": codec.to_json(timeline)})
    print(found.title)
    for line in found.lead:
        print(f"  {line}")
    for section in shown:
        print()
        for line in text.section_lines(section):
            print(line)
    print(f"\nTime line of {iterations} iterations, as simulated")
    for line in text.gantt(drawn, shutil.get_terminal_size((100, 24)).columns):
        print(line)
    return None


def _events(measured: Path | None) -> tuple[Event, ...]:
    if measured is None:
        return ()
    from warpplan.profiler.traces import parse
    from warpplan.service.views.phases import PHASES

    events = tuple(e for e in parse(measured) if e.scope in PHASES)
    if not events:
        raise InvalidInput(f"{measured} holds none of the scopes that warpplan's kernels record", field="measured")
    return events


@contextmanager
def _what_ifs(what: str) -> Iterator[Callable[[int, int], bool]]:
    """A progress bar on terminals that also ends the work when its time is over."""
    until = time.monotonic() + WHAT_IF_SECONDS
    with progress_bar(what) as tell:

        def progress(done: int, total: int) -> bool:
            tell(done, total, what)
            return time.monotonic() < until

        yield progress
