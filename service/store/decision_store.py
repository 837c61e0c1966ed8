"""What jobs decided for kernels of their own, under the key of what it was decided for: the first to try one wins."""

from __future__ import annotations

import json
from dataclasses import replace

from sqlalchemy import Connection, column, delete, select, table

from warpplan.kernels.compiler.launching.decisions import Decision, from_json, to_json
from warpplan.planner.errors import InvalidInput, UnknownName, WarpplanError
from warpplan.service.store.checksums import KERNEL_PLAN, checksum, intact
from warpplan.service.store.database import Database, now
from warpplan.service.store.upserts import insert_new

KERNEL_PLANS = table(
    "kernel_plans", column("id"), column("kernel"), column("body"), column("created_at"),
    column("checksum"),
)  # fmt: skip
_K = KERNEL_PLANS.c


class UnknownKernelPlan(UnknownName):
    """Nobody has decided this yet."""

    def __init__(self, key: str) -> None:
        WarpplanError.__init__(
            self,
            f"nothing is decided under {key[:80]!r}: send what a job measured with POST /v1/kernel-plans",
            field="key", value=key,
        )  # fmt: skip


class KernelPlans:
    """Decisions in one ``database``. Every method may raise :class:`StoreError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, key: str) -> Decision:
        """The decision under ``key``; :class:`UnknownKernelPlan` where there is none."""
        with self._database.reading() as connection:
            body = _intact_body(connection, key)
        if body is None:
            raise UnknownKernelPlan(key)
        return from_json(json.loads(body), f"decision {key}")

    def settle(self, decision: Decision) -> Decision:
        """Keep ``decision`` unless there is one already: what holds. Paths of the job's machine are left out. Raises
        :class:`InvalidInput` for a prediction, which any job makes for itself."""
        if not decision.tried:
            raise InvalidInput(
                "measured and failed are false: a prediction is no decision", field="measured", value=False
            )
        mine, key = replace(decision, compiled=None), decision.situation.key
        # ASCII escapes: PostgreSQL keeps no zero bytes, and kernels are named by whoever writes them.
        row = {
            "id": key, "kernel": json.dumps(mine.situation.kernel), "body": json.dumps(to_json(mine)),
            "created_at": now(),
        }  # fmt: skip
        row["checksum"] = checksum(KERNEL_PLAN, row)
        with self._database.writing() as connection:
            body = _intact_body(connection, key)
            if body is None:
                connection.execute(delete(KERNEL_PLANS).where(_K.id == key))  # a damaged one, if any
                connection.execute(insert_new(connection, KERNEL_PLANS).values(row))
                body = connection.execute(select(_K.body).where(_K.id == key)).scalar_one()
        return from_json(json.loads(body), f"decision {key}")


def _intact_body(connection: Connection, key: str) -> str | None:
    """The text kept under ``key``; ``None`` where there is none or it is damaged: a job will try again and tell."""
    query = select(_K.id, _K.kernel, _K.body, _K.checksum).where(_K.id == key)
    row = connection.execute(query).mappings().first()
    return str(row["body"]) if row is not None and intact(KERNEL_PLAN, row) else None
