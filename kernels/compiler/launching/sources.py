"""Where plans come from: a folder of decisions, a service, or one plan that the user names.

Each source has ``load(situation)``, which answers a decision or ``None``, ``family(situation)``, which answers what
this machine keeps for other sizes, ``settle(decision)``, which keeps what was found and answers what holds, and
``replace(decision)`` for one that was compiled or timed anew.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
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
    without its parentheses would put it in the plans' place, and its calls would do nothing. A plan is read, a file of
    one too (:class:`MalformedFile`), and a folder must be one that decisions can be kept in; a service is not asked."""
    if callable(plans):
        name = getattr(plans, "__name__", plans)
        raise InvalidInput(f"plans is {name}, a function: write @planned(), with parentheses", field="plans")
    plan = given(plans)
    if plan is not None:
        plan.read()
    elif isinstance(plans, (str, Path)):
        if _is_url(plans):
            _require_host(str(plans))
        else:
            _require_decisions_folder(Path(plans))
    elif plans is not None:
        raise InvalidInput(
            f"plans {plans!r}: expected a folder, a .json file, http://host:port, a strategy or its JSON",
            field="plans", value=repr(plans),
        )  # fmt: skip


def _require_host(url: str) -> None:
    """Raise :class:`InvalidInput` for a URL that no request can be sent to."""
    reason = ""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises for what is no port
        named = bool(parts.hostname)
    except ValueError as error:
        named, reason = False, f" ({error})"
    if not named:
        raise InvalidInput(
            f"plans {url!r} names no service: expected http://host:port{reason}",
            field="plans", value=url, limit="http://host:port",
        )  # fmt: skip


def _require_decisions_folder(folder: Path) -> None:
    """Raise :class:`InvalidInput` for a path that is no folder, or one that the first decision cannot make. A folder
    that can only be read will do: it keeps nothing new."""
    try:
        os.scandir(folder).close()
        return
    except FileNotFoundError:
        if os.access(folder.parent, os.W_OK | os.X_OK):
            return
        there = folder.parent.is_dir()
        reason = f"its folder {folder.parent} {'cannot be written' if there else 'does not exist'}"
    except (OSError, ValueError) as error:  # ValueError: a path that holds a null character
        reason = getattr(error, "strerror", None) or str(error)
    raise InvalidInput(
        f"plans {str(folder)!r}: {reason}: expected a folder, http://host:port or a plan in a .json file",
        field="plans", value=str(folder),
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
    """One plan for all that is launched, or for the kernel that it names."""

    def __init__(self, plan: Strategy | Mapping[str, Json] | Path) -> None:
        self._plan = plan
        self._where: object = plan if isinstance(plan, Path) else "the plan"

    def read(self) -> Strategy | Decision:
        """The plan, and the kernel that it is for where it names one. Raises :class:`MalformedFile` where the plan is
        damaged or its file cannot be read."""
        plan: Json = self._plan
        if isinstance(plan, Strategy):
            return plan
        if isinstance(plan, Path):
            try:
                plan = parse(plan.read_bytes(), plan)
            except (OSError, ValueError) as error:  # ValueError: a path that holds a null character
                reason = getattr(error, "strerror", None) or str(error)
                raise MalformedFile(self._where, f"cannot be read: {reason}", field="plans") from None
        if not isinstance(plan, Mapping) or "schema" not in plan:
            return strategy_from_json(plan, self._where)
        return from_json(plan, self._where)

    def scheme(self, kernel: str, source: str) -> Strategy:
        """The scheme for a kernel. Raises as :meth:`read` does, and :class:`CannotPlan` where the plan is for another
        kernel or another state of its source."""
        plan = self.read()
        if not isinstance(plan, Decision):
            return plan
        if plan.situation.kernel != kernel:
            raise CannotPlan(f"{self._where} is for the kernel {plan.situation.kernel}")
        if plan.situation.source != source:
            raise CannotPlan(f"{self._where} is for another state of the kernel's source")
        if plan.scheme is None:
            raise CannotPlan(f"{self._where} says to leave the kernel as it is: {plan.reason}")
        return plan.scheme


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
        decision = from_json(parse(answer, where), where)
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
                if error.code == 404 or (body is not None and error.code == 403):  # not there; it keeps nothing
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
    """The source that ``plans``, which passed :func:`require_plans`, names."""
    if not isinstance(plans, (str, Path)) or given(plans) is not None:
        return Folder(default)
    if _is_url(plans):
        return Service(str(plans), Folder(default))
    return Folder(Path(plans))


def _is_url(plans: object) -> bool:
    return isinstance(plans, str) and plans.startswith(("http://", "https://"))
