"""Where plans come from: a folder of decisions, a service, or one plan that the user names.

Each source has ``load(situation)``, which answers a decision or ``None``, ``family(situation)``, which answers what
this machine keeps for other sizes, ``settle(decision)``, which keeps what was found and answers what holds, and
``replace(decision)`` for one that was compiled or timed anew.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Protocol

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.launching.decisions import (
    Decision,
    Folder,
    Situation,
    from_json,
    parse,
    to_json,
)
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json
from warpplan.kernels.isolate import within
from warpplan.kernels.triton_types import Json
from warpplan.planner.errors import InvalidInput, MalformedFile, StoreError

Plans = str | Path | Strategy | Mapping[str, Json] | None
"""A folder, the URL of a service, or a plan: a value, JSON, a ``.json`` file. ``None``: a folder in Triton's cache."""
LONGEST_STEP_S = 86_400.0
SERVICE_WAIT_S = 3.0
"""Seconds that a launch waits for the service's answer before it goes on without. Chosen by hand."""


def require_plans(plans: Plans) -> None:
    """Raise :class:`InvalidInput` for what says nothing of where plans come from, a function above all: a decorator
    without its parentheses would put it in the plans' place, and its calls would do nothing."""
    if callable(plans):
        name = getattr(plans, "__name__", plans)
        raise InvalidInput(f"plans is {name}, a function: write @planned(), with parentheses", field="plans")
    if not isinstance(plans, (str, Path, Mapping, type(None))) and not hasattr(plans, "architecture"):
        raise InvalidInput(
            f"plans {plans!r}: expected a folder, a .json file, http://host:port, a strategy or its JSON",
            field="plans", value=repr(plans),
        )  # fmt: skip


def require_time_limit(seconds: float) -> None:
    """Raise :class:`InvalidInput` for a time that no step of a trial can have."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST_STEP_S:
        raise InvalidInput(
            f"time_limit_s {seconds!r}: expected seconds, more than 0 and at most {LONGEST_STEP_S:g}",
            field="time_limit_s", value=seconds,
        )  # fmt: skip


class DecisionSource(Protocol):
    def load(self, situation: Situation) -> Decision | None: ...
    def family(self, situation: Situation) -> list[Decision]: ...
    def settle(self, decision: Decision) -> Decision: ...
    def replace(self, decision: Decision) -> None: ...


class Given:
    """One plan for all that is launched, or for the kernel that it names. Reads a file at the first launch."""

    def __init__(self, plan: Strategy | Mapping[str, Json] | Path) -> None:
        self._plan = plan

    def scheme(self, kernel: str, source: str) -> Strategy:
        """The scheme for a kernel. Raises :class:`MalformedFile` where the plan is damaged, :class:`CannotPlan` where
        it is for another kernel or another state of its source."""
        plan: Json = self._plan
        where: Json = "the plan"
        if isinstance(plan, Strategy):
            return plan
        if isinstance(plan, Path):
            where = plan
            try:
                plan = parse(plan.read_bytes(), plan)
            except OSError as error:
                raise MalformedFile(where, f"cannot be read: {error.strerror}") from None
        if not isinstance(plan, Mapping) or "schema" not in plan:
            return strategy_from_json(plan, where)
        decision = from_json(plan, where)
        if decision.situation.kernel != kernel:
            raise CannotPlan(f"{where} is for the kernel {decision.situation.kernel}")
        if decision.situation.source != source:
            raise CannotPlan(f"{where} is for another state of the kernel's source")
        if decision.scheme is None:
            raise CannotPlan(f"{where} says to leave the kernel as it is: {decision.reason}")
        return decision.scheme


class Service:
    """Decisions that a warpplan service keeps, behind the folder of this machine: ``GET /v1/kernel-plans/{key}``, and
    ``POST /v1/kernel-plans``, which answers what holds. Once it does not answer it is not asked again."""

    def __init__(self, url: str, folder: Folder) -> None:
        self._url = url.rstrip("/")
        self._folder = folder
        self._down = ""

    def load(self, situation: Situation) -> Decision | None:
        """Raises :class:`StoreError` where the service is down, :class:`MalformedFile` where it answers nonsense."""
        known = self._folder.load(situation)
        if known is not None:
            return known
        answer = self._ask(f"/{situation.key}")
        return None if answer is None else self._folder.settle(self._read(answer, situation))

    def family(self, situation: Situation) -> list[Decision]:
        return self._folder.family(situation)

    def settle(self, decision: Decision) -> Decision:
        kept = self._folder.settle(decision)
        if not kept.tried or kept.provisional:
            return kept
        elsewhere = replace(kept, compiled=None)
        try:
            answer = self._ask("", json.dumps(to_json(elsewhere)).encode())
            holds = elsewhere if answer is None else self._read(answer, decision.situation)
        except (StoreError, MalformedFile):  # this kernel is decided; the next one's warning says so
            return kept
        if holds == elsewhere:
            return kept
        self._folder.replace(holds)
        return holds

    def replace(self, decision: Decision) -> None:
        self._folder.replace(decision)

    def _read(self, answer: bytes, situation: Situation) -> Decision:
        where = f"the answer of {self._url}"
        try:
            decision = from_json(parse(answer, where), where)
        except RecursionError:
            raise MalformedFile(where, "nested too deeply") from None
        if decision.situation != situation:
            raise MalformedFile(where, "it is for another kernel")
        return replace(decision, compiled=None)

    def _ask(self, path: str, body: bytes | None = None) -> bytes | None:
        if self._down:
            raise StoreError(self._down, field="plans", value=self._url)
        request = urllib.request.Request(
            f"{self._url}/v1/kernel-plans{path}", data=body, headers={"Content-Type": "application/json"}
        )
        try:
            return within(SERVICE_WAIT_S, lambda: _reply(request))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                self._down = f"{self._url} answers {error.code}"
        except (OSError, HTTPException, ValueError) as error:
            self._down = f"{self._url} does not answer: {getattr(error, 'reason', error)}"
        raise StoreError(self._down, field="plans", value=self._url)


def _reply(request: urllib.request.Request) -> bytes:
    with urllib.request.urlopen(request, timeout=SERVICE_WAIT_S) as response:
        return bytes(response.read())


def given(plans: Plans) -> Given | None:
    """``plans`` where it is one plan."""
    if isinstance(plans, (Strategy, Mapping)):
        return Given(plans)
    if isinstance(plans, (str, Path)) and str(plans).endswith(".json") and not _is_url(plans):
        return Given(Path(plans))
    return None


def open_source(plans: Plans, default: Path) -> DecisionSource:
    """The source that ``plans`` names. Raises :class:`InvalidInput` where it can be none."""
    if plans is None or given(plans) is not None:
        return Folder(default)
    if _is_url(plans):
        return Service(str(plans), Folder(default))
    if isinstance(plans, (str, Path)):
        if Path(plans).is_file():
            raise InvalidInput(f"{plans} is a file: expected a folder, a URL or a plan in a .json file", field="plans")
        return Folder(Path(plans))
    raise InvalidInput(f"plans {plans!r}: expected a folder, a URL, a plan or a .json file", field="plans")


def _is_url(plans: object) -> bool:
    return isinstance(plans, str) and plans.startswith(("http://", "https://"))
