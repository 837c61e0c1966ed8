"""Plans that were asked for: requests by their digest, waiting, being solved, done or failed, kept across restarts.

A server that solves one holds a *claim* on it, a random token with an end that it moves on as long as it lives. A plan
whose claim has ended is waiting again: nothing needs to be done when a server dies. What holds no claim any more,
because the plan was forgotten or another server took it up, can change nothing.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    and_,
    case,
    column,
    delete,
    func,
    or_,
    select,
    table,
    tuple_,
    update,
)

from warpplan.planner.errors import StoreError, UnknownName, WarpplanError
from warpplan.service.config_request import canonical_json
from warpplan.service.solving.plan_request import PlanRequest
from warpplan.service.store.checksums import SOLVE, checksum, digest, intact
from warpplan.service.store.database import Database, now
from warpplan.service.store.upserts import insert_new

State = Literal["queued", "running", "done", "failed"]
STATES: tuple[State, ...] = get_args(State)

MOST_OF_A_NAME = 200
"""Characters of a graph's name that a list shows."""
MOST_CLAIMS = 3
"""Servers that may be lost while solving one plan before it is given up: it may be what ends them."""

SOLVES = table(
    "solves", column("id"), column("name"), column("request"), column("planner"), column("state"), column("status"),
    column("submitted_at"), column("started_at"), column("finished_at"), column("claim"), column("claimed_until"),
    column("claims"), column("progress"), column("outcome"), column("failure"), column("checksum"),
)  # fmt: skip
_S = SOLVES.c

_log = logging.getLogger(__name__)


class UnknownPlan(UnknownName):
    """No plan has this id, or it was forgotten."""

    def __init__(self, plan_id: str) -> None:
        WarpplanError.__init__(
            self, f"there is no plan {plan_id[:80]!r}: ask for it with POST /v1/plans", field="id", value=plan_id
        )


class QueueFull(StoreError):
    """As many plans wait as may: ask again later."""


@dataclass(frozen=True)
class Summary:
    """A plan in a list. ``status`` is the outcome's; ``progress`` the interval asked about last, the bound proven and
    the best interval found; times are UTC."""

    id: str
    name: str
    state: State
    status: str | None
    progress: dict[str, Any] | None
    planner: str
    submitted_at: str
    started_at: str | None
    finished_at: str | None


@dataclass(frozen=True)
class KeptPlan:
    """One plan with its question and what became of it: ``outcome`` is JSON of schema warpplan/outcome-1, ``failure``
    a kind and a reason."""

    summary: Summary
    request: str
    outcome: dict[str, Any] | None
    failure: dict[str, str] | None


@dataclass(frozen=True)
class Claim:
    """The right to solve plan ``id``, for as long as it is renewed."""

    id: str
    token: str
    request: str
    name: str
    planner: str

    @property
    def time_limit_s(self) -> float:
        return float(json.loads(self.request)["options"]["time_limit_s"])


class Plans:
    """The plans in ``database``. ``clock`` gives seconds that servers of one store agree on."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self._clock = clock

    def submit(self, request: PlanRequest, planner: str, *, most_queued: int) -> tuple[Summary, bool]:
        """The plan of ``request``, and whether it is to be solved: it was unknown, had failed, or came from another
        planner. :class:`QueueFull` where ``most_queued`` wait already (requests that come together on PostgreSQL may go
        beyond by one each)."""
        # PostgreSQL keeps no zero bytes; inside JSON they are escaped.
        name = request.graph.name[:MOST_OF_A_NAME].replace("\0", "\ufffd")
        fresh = {
            "name": name, "request": request.text, "planner": planner, "state": "queued", "status": None,
            "submitted_at": now(), "started_at": None, "finished_at": None, "claim": None, "claimed_until": None,
            "claims": 0, "progress": None, "outcome": None, "failure": None,
        }  # fmt: skip
        plan_id = request.id
        with self.database.writing() as connection:
            kept = self._row(connection, plan_id)
            if kept is not None and _is_whole(kept):
                summary = self._summary(kept)
                unfinished = summary.state in ("queued", "running")
                if unfinished or (summary.state == "done" and summary.planner == planner):
                    return summary, False
            waiting = connection.execute(select(func.count()).select_from(SOLVES).where(_S.state == "queued")).scalar()
            if (waiting or 0) >= most_queued:
                raise QueueFull(
                    f"{waiting} plans wait to be solved, the most that may: ask again later",
                    field="plans", value=waiting, limit=most_queued,
                )  # fmt: skip
            fresh["checksum"] = checksum(SOLVE, {**fresh, "id": plan_id})
            if kept is not None:
                connection.execute(update(SOLVES).where(_S.id == plan_id).values(fresh))
            else:
                connection.execute(insert_new(connection, SOLVES).values(id=plan_id, **fresh))
            row = connection.execute(_summaries().where(_S.id == plan_id)).mappings().one()
            return self._summary(row), True

    def get(self, plan_id: str) -> KeptPlan:
        """One plan; :class:`UnknownPlan` where there is none. One whose answer is damaged waits to be solved again;
        :class:`StoreError` where the question itself is."""
        with self.database.reading() as connection:
            row = self._row(connection, plan_id)
        if row is None:
            raise UnknownPlan(plan_id)
        if not isinstance(row["request"], str) or digest(row["request"]) != plan_id:
            raise self._damaged(plan_id, "forget it with DELETE and ask for it again")
        if not _is_whole(row):
            _log.warning("store %s is damaged: plan %s is solved anew", self.database.name, plan_id[:12])
            self.submit(PlanRequest.read(row["request"]), "", most_queued=1 << 30)
            with self.database.reading() as connection:
                row = self._row(connection, plan_id)
            if row is None:
                raise UnknownPlan(plan_id)
        outcome, failure = row["outcome"], row["failure"]
        return KeptPlan(
            self._summary(row), row["request"], outcome and json.loads(outcome), failure and json.loads(failure)
        )

    def _row(self, connection: Connection, plan_id: str) -> RowMapping | None:
        query = _summaries().add_columns(_S.request, _S.outcome, _S.failure, _S.checksum).where(_S.id == plan_id)
        return connection.execute(query).mappings().first()

    def _summary(self, row: RowMapping) -> Summary:
        """Of a row; :class:`StoreError` for one that cannot have been written here."""
        try:
            state, progress = row["state"], row["progress"]
            if state not in STATES:
                raise ValueError(state)
            fields = {name: row[name] for name in _SUMMARY}
            return Summary(**{**fields, "progress": progress and json.loads(progress)})
        except (ValueError, TypeError):
            way_out = "restore the store from a copy, or forget it with DELETE"
            raise self._damaged(str(row["id"])[:64], way_out) from None

    def _damaged(self, plan_id: str, way_out: str) -> StoreError:
        name = self.database.name
        return StoreError(f"store {name} is damaged: plan {plan_id}: {way_out}", field="store", value=name)

    def page(
        self, limit: int, *, after: tuple[str, str] | None = None, state: State | None = None
    ) -> tuple[Summary, ...]:
        """The newest ``limit`` plans, or those that follow the one submitted ``after`` (time, id)."""
        query = _summaries().order_by(_S.submitted_at.desc(), _S.id.desc()).limit(limit)
        if after is not None:
            query = query.where(tuple_(_S.submitted_at, _S.id) < tuple_(*after))
        if state is not None:
            query = query.where(_S.state == state)
        with self.database.reading() as connection:
            return tuple(self._summary(row) for row in connection.execute(query).mappings())

    def forget(self, plan_id: str) -> None:
        """Remove a plan; whoever solves it stops. :class:`UnknownPlan` where there is none."""
        with self.database.writing() as connection:
            if connection.execute(delete(SOLVES).where(_S.id == plan_id)).rowcount == 0:
                raise UnknownPlan(plan_id)

    def counts(self) -> dict[str, int]:
        """How many plans are in each state."""
        found = dict.fromkeys(("queued", "running", "done", "failed"), 0)
        with self.database.reading() as connection:
            for state, count in connection.execute(select(_S.state, func.count()).group_by(_S.state)):
                if state in found:  # a damaged one is none of these
                    found[state] = count
        return found

    def claim(self, lease_s: float, planner: str) -> Claim | None:
        """The plan that has waited longest, now this server's for ``lease_s`` seconds; ``None`` where none waits.

        A plan whose servers were lost :data:`MOST_CLAIMS` times fails instead.
        """
        waiting = or_(_S.state == "queued", and_(_S.state == "running", _S.claimed_until < self._clock()))
        query = select(_S.id, _S.request, _S.claims, _S.name).where(waiting).order_by(_S.submitted_at, _S.id).limit(1)
        with self.database.reading() as connection:
            if connection.execute(query).first() is None:
                return None  # most often so: no reason to keep other writers waiting
        with self.database.writing() as connection:
            row = connection.execute(query.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            plan_id, request, claims, name = row
            mine = update(SOLVES).where(_S.id == plan_id)
            if claims >= MOST_CLAIMS:
                reason = f"the servers that solved it were lost {claims} times: given up"
                failure = canonical_json({"kind": "lost", "reason": reason}).decode()
                lost = {"name": name, "planner": planner, "status": None, "outcome": None, "failure": failure}
                connection.execute(
                    mine.values(state="failed", finished_at=now(), claim=None, checksum=_sum(plan_id, lost), **lost)
                )
                return None
            token = uuid.uuid4().hex
            connection.execute(
                mine.values(
                    state="running", claim=token, claimed_until=self._clock() + lease_s, claims=claims + 1,
                    planner=planner, started_at=now(), checksum=_sum(plan_id, {"name": name, "planner": planner}),
                )
            )  # fmt: skip
        return Claim(plan_id, token, request, name, planner)

    def holds(self, claim: Claim) -> bool:
        """Whether ``claim`` still stands: the plan was neither forgotten nor taken up by another server."""
        with self.database.reading() as connection:
            return connection.execute(select(_S.id).where(_held(claim))).first() is not None

    def renew(self, claim: Claim, lease_s: float, progress: Mapping[str, Any] | None) -> bool:
        """Hold ``claim`` for ``lease_s`` seconds from now and tell how far it is; False where it does not stand."""
        return self._change(claim, claimed_until=self._clock() + lease_s, progress=_text(progress))

    def finish(self, claim: Claim, outcome: Mapping[str, Any], progress: Mapping[str, Any] | None) -> bool:
        """Keep what the solver answered; False where the claim does not stand."""
        answer = {"status": outcome["status"], "outcome": _text(outcome)}
        return self._change(
            claim, state="done", progress=_text(progress), finished_at=now(), claim=None,
            checksum=_sum(claim.id, {"name": claim.name, "planner": claim.planner, **answer}), **answer,
        )  # fmt: skip

    def fail(self, claim: Claim, kind: str, reason: str) -> bool:
        """Keep why there is no answer; False where the claim does not stand."""
        failure = _text({"kind": kind, "reason": reason})
        whole = _sum(claim.id, {"name": claim.name, "planner": claim.planner, "failure": failure})
        return self._change(claim, state="failed", failure=failure, finished_at=now(), claim=None, checksum=whole)

    def release(self, claim: Claim) -> bool:
        """Put the plan back into the queue, unharmed: this server stops."""
        fewer = case((_S.claims > 0, _S.claims - 1), else_=0)
        return self._change(claim, state="queued", claim=None, claims=fewer, started_at=None, progress=None)

    def _change(self, held: Claim, **values: Any) -> bool:
        with self.database.writing() as connection:
            return connection.execute(update(SOLVES).where(_held(held)).values(values)).rowcount == 1


def _held(claim: Claim) -> ColumnElement[bool]:
    return and_(_S.id == claim.id, _S.claim == claim.token)


_SUMMARY = ("id", "name", "state", "status", "progress", "planner", "submitted_at", "started_at", "finished_at")


def _summaries() -> Any:
    return select(*(_S[name] for name in _SUMMARY))


def _sum(plan_id: str, fields: Mapping[str, Any]) -> str:
    """The checksum of a row of which ``fields`` are set."""
    return checksum(SOLVE, {"id": plan_id, "status": None, "outcome": None, "failure": None, **fields})


def _is_whole(row: RowMapping) -> bool:
    return intact(SOLVE, row) and row["state"] in STATES


def _text(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else canonical_json(value).decode()
