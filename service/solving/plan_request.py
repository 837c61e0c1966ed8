"""A plan request: a loop body and how to solve it, checked, with its one text and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from warpplan.planner.errors import InvalidInput
from warpplan.planner.problem.validate import require_slot_capacity, validate
from warpplan.planner.values import codec
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.service.config_request import canonical_json

WORK_LIMIT = {"time_limit_s": "work_limit_s"}
"""A request's limit counts seconds of a slow core, so that every machine answers alike: the solver's work budget."""


@dataclass(frozen=True)
class PlanRequest:
    """A checked request: the loop body and how to solve it."""

    graph: DependenceGraph
    options: SolveOptions

    @classmethod
    def of(cls, graph: object, options: Mapping[str, Any]) -> PlanRequest:
        """Of JSON values; :class:`InvalidInput` names the element that cannot be planned by its path in the body."""
        try:
            loop = codec.from_json(graph, DependenceGraph)
            chosen = SolveOptions(**{WORK_LIMIT.get(name, name): value for name, value in options.items()})
            validate(loop, chosen)
            require_slot_capacity(loop)
        except InvalidInput as error:
            error.field = "time_limit_s" if error.field == "work_limit_s" else error.field
            within = "options" if error.field in options else "graph"
            error.field = f"{within}.{error.field}" if error.field else within
            raise
        return cls(loop, chosen)

    @classmethod
    def read(cls, text: str) -> PlanRequest:
        """Of :attr:`text`."""
        body = json.loads(text)
        return cls.of(body["graph"], body["options"])

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that a request can set."""
        o = self.options
        return {"time_limit_s": float(o.work_limit_s), "depth": o.depth, "slack_cycles": o.slack_cycles}

    @cached_property
    def text(self) -> str:
        """The one text of this request: canonical JSON, defaults written out."""
        return canonical_json({"graph": codec.to_json(self.graph), "options": self.chosen}).decode()

    @cached_property
    def id(self) -> str:
        """SHA-256 of :attr:`text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()
