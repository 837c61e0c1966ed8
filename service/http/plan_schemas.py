"""The bodies of requests for plans, checked, and of answers, described for ``/docs``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from warpplan.service.http.config_schemas import ProblemDetails
from warpplan.service.solving.plan_queue import State

MAX_TIME_LIMIT_S = 600.0


class PlanOptions(BaseModel):
    """How to solve: the options of ``warpplan solve``. ``time_limit_s`` counts work in seconds of a slow core, as
    ``--work-limit`` does, so that every server answers alike; ``depth`` gives rings that many slots, not the fewest;
    every ring keeps ``slack_cycles`` of margin."""

    model_config = ConfigDict(extra="forbid")

    time_limit_s: Annotated[float, Field(strict=True, ge=0.001, le=MAX_TIME_LIMIT_S)] = 10.0
    depth: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None
    slack_cycles: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 0


class NewPlan(BaseModel):
    """``graph`` is a loop body of schema warpplan/graph-1."""

    model_config = ConfigDict(extra="forbid")

    graph: dict[str, Any]
    options: PlanOptions = PlanOptions()


class Progress(BaseModel):
    """The initiation interval asked about last, the bound proven by then, the best interval found."""

    ii_asked: int
    ii_lower_bound: int
    ii_best: int | None


class PlanSummary(BaseModel):
    """``state``: queued, running, done or failed; ``status`` is the outcome's once it is done. Times are UTC.
    ``planner`` is the release that solves it: a plan of another one is solved anew when it is asked for."""

    id: str
    name: str
    state: State
    status: str | None
    progress: Progress | None
    planner: str
    submitted_at: str
    started_at: str | None
    finished_at: str | None


class PlanStatus(PlanSummary):
    """``outcome`` is what ``warpplan solve --json`` prints (schema warpplan/outcome-1), once done; ``problem`` says why
    there is none."""

    options: PlanOptions
    outcome: dict[str, Any] | None
    problem: ProblemDetails | None


class PlanPage(BaseModel):
    """Newest first; ``next`` is the ``after`` of the page that follows, null on the last."""

    plans: list[PlanSummary]
    next: str | None
