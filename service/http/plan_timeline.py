"""The time line of a plan that was asked for, as JSON, as a picture or as a page."""

from __future__ import annotations

from typing import Literal

from warpplan.planner.errors import InvalidInput
from warpplan.planner.predict.explanation import demands
from warpplan.planner.simulate.simulation import simulate
from warpplan.planner.values import codec
from warpplan.planner.values.plan import Outcome
from warpplan.service.config_request import canonical_json
from warpplan.service.http.problem_json import NotAcceptable, NotReady
from warpplan.service.solving.plan_queue import KeptPlan
from warpplan.service.solving.plan_request import PlanRequest
from warpplan.service.views import html, lanes, sections, svg

Format = Literal["json", "svg", "html"]
MEDIA_TYPES: dict[Format, str] = {
    "json": "application/json", "svg": "image/svg+xml", "html": "text/html; charset=utf-8",
}  # fmt: skip
ITERATIONS = 6
"""Shown where nobody says how many, or fewer of a large loop."""
MAX_SPANS = 10_000
"""Operations times iterations: a page of more is too heavy for a browser."""


def accepted(accept: str | None) -> Format:
    """The format that an Accept header likes best (RFC 9110, 12.5.1); JSON where it likes none better.
    :class:`NotAcceptable` where it takes none."""
    best: tuple[float, Format | None] = (0.0, None)
    for name, media_type in MEDIA_TYPES.items():
        quality = _quality(media_type.partition(";")[0], accept or "*/*")
        if quality > best[0]:
            best = (quality, name)
    if best[1] is None:
        raise NotAcceptable(
            f"a time line is no {accept}: accept one of {', '.join(MEDIA_TYPES.values())}",
            field="Accept", value=accept, limit=list(MEDIA_TYPES.values()),
        )  # fmt: skip
    return best[1]


def _quality(media_type: str, accept: str) -> float:
    """By the most specific range that fits; a quality that is no number counts as none."""
    found: dict[int, float] = {}
    for part in accept.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        ranges = (media_type, media_type.partition("/")[0] + "/*", "*/*")
        if name in ranges:
            given = next((p[2:] for p in parameters if p.startswith("q=")), "1")
            try:
                found.setdefault(ranges.index(name), float(given))
            except ValueError:
                continue
    return found[min(found)] if found else 0.0


def timeline(kept: KeptPlan, iterations: int | None, form: Format) -> bytes:
    """``iterations`` of the loop, :data:`ITERATIONS` where ``None``, as the plan plays them.

    :class:`NotReady` where there is no plan (yet), :class:`InvalidInput` for more spans than can be shown.
    """
    outcome = _outcome(kept)
    request = PlanRequest.read(kept.request)
    graph, plan = request.graph, outcome.plan
    most = max(1, MAX_SPANS // len(graph.ops))
    if iterations is None:
        iterations = min(ITERATIONS, most)
    if iterations > most:
        raise InvalidInput(
            f"{iterations} iterations of {len(graph.ops)} operations: at most {most} can be shown",
            field="iterations", value=iterations, limit=most,
        )  # fmt: skip
    assert plan is not None
    played = simulate(plan, graph, iterations)
    if form == "json":
        return canonical_json(codec.to_json(played))
    picture = svg.timeline(
        lanes.predicted(graph, plan, played), f"{graph.name}: {iterations} iterations", plan.schedule.ii_cycles
    )
    if form == "svg":
        return picture.encode()
    filled = demands(graph, plan, slack_cycles=request.options.slack_cycles)
    pictures = [picture, svg.memory(plan, graph.limits.smem_bytes)] if plan.smem_bytes else [picture]
    lead = f"{len(graph.ops)} operations, {outcome.status}, II {plan.schedule.ii_cycles} cycles, "
    tables = [sections.bounds(outcome, filled), *sections.plan(graph, plan)]
    return html.page(graph.name, [f"{lead}proven bound {outcome.bound}"], pictures, tables).encode()


def _outcome(kept: KeptPlan) -> Outcome:
    summary = kept.summary
    if kept.outcome is None:
        reason = f": {kept.failure['reason']}" if kept.failure else ": ask again when it is done"
        raise NotReady(
            f"plan {summary.id} is {summary.state} and has no time line{reason}", field="state", value=summary.state
        )
    outcome = codec.from_json(kept.outcome, Outcome)
    if outcome.plan is None:
        raise NotReady(
            f"plan {summary.id} is {outcome.status} and has no time line: {outcome.reason}",
            field="status", value=outcome.status,
        )  # fmt: skip
    return outcome
