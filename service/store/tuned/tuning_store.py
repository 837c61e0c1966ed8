"""What jobs' autotuners measured of kernels of their own: a row a configuration, told apart by kernel, source, tuning
key, GPU and versions. What is reported again is counted, and the least time stands: other work on the GPU only adds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, case, column, select, table
from sqlalchemy.dialects import postgresql, sqlite

from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import canonical_json
from warpplan.service.store.checksums import quick_checksum
from warpplan.service.store.database import Database, now
from warpplan.service.store.stored_values import (
    Environment,
    Unreadable,
    config_text,
    environment_text,
    read_config,
    read_environment,
)
from warpplan.service.store.tuned.launch_key_store import KeyPart, LaunchKeys

GUARDED = ("id", "kernel", "source", "tuning_key", "config", "device", "environment")
TUNING_TIMES = table(
    "tuning_times", *(column(name) for name in (*GUARDED, "time_us", "reports", "newest", "certain", "checksum"))
)  # fmt: skip
_T = TUNING_TIMES.c
_OF_KERNEL = select(TUNING_TIMES).where(_T.kernel == bindparam("kernel")).order_by(_T.source, _T.tuning_key, _T.id)
_OF_SOURCE = select(TUNING_TIMES).where(_T.source == bindparam("source")).order_by(_T.tuning_key, _T.id)


@dataclass(frozen=True)
class TunedTime:
    """``time_us`` of one configuration of a kernel under a tuning key, ``None`` where it could not run. ``source`` is
    Triton's hash of the kernel and all that it calls. Not ``certain`` is what came before version 10 of the schema: it
    may have been read from a cache."""

    kernel: str
    source: str
    key: tuple[KeyPart, ...]
    config: TuningConfig
    device: str
    environment: Environment
    time_us: float | None
    reports: int = 1
    newest: str = ""
    certain: bool = True


class Tunings:
    """Tuned times in one ``database``. Every method may raise :class:`StoreError`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.launch_keys = LaunchKeys(database)

    def record(self, times: Sequence[TunedTime]) -> None:
        """Keep ``times``, all of them measured, in one transaction. Of what is there already the least time stands,
        where that is certain."""
        at = now()
        rows: dict[str, dict[str, Any]] = {}
        for time in times:
            row = _row(time, at)
            known = rows.setdefault(row["id"], row)
            if known is not row:
                known["reports"] += 1
                known["time_us"] = min((t for t in (known["time_us"], row["time_us"]) if t is not None), default=None)
        if not rows:
            return
        with self._database.writing() as connection:
            dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
            insert = dialect.insert(TUNING_TIMES)
            new = insert.excluded
            # A NULL loses against a time: the configuration could run after all.
            replaced = _T.certain == 0
            taken = replaced | _T.time_us.is_(None) | (new.time_us < _T.time_us)
            changed = {
                "time_us": case((taken, new.time_us), else_=_T.time_us),
                "reports": case((replaced, new.reports), else_=_T.reports + new.reports),
                "newest": new.newest, "certain": 1,
            }  # fmt: skip
            statement = insert.on_conflict_do_update(index_elements=["id"], set_=changed)
            # In a fixed order, so that two writers on PostgreSQL cannot wait for each other.
            connection.execute(statement, [rows[name] for name in sorted(rows)])

    def of(self, kernel: str) -> tuple[TunedTime, ...]:
        """What was measured of ``kernel``, by source and key; a damaged row is left out: it will be tuned again."""
        with self._database.reading() as connection:
            rows = connection.execute(_OF_KERNEL, {"kernel": json.dumps(kernel)}).mappings().all()
        return tuple(time for row in rows if (time := _read(row)) is not None)

    def of_source(self, source: str) -> tuple[TunedTime, ...]:
        """The same of the kernel with this source, whatever it is called: a job imports it under a name of its own."""
        with self._database.reading() as connection:
            rows = connection.execute(_OF_SOURCE, {"source": json.dumps(source)}).mappings().all()
        return tuple(time for row in rows if (time := _read(row)) is not None)


def _row(time: TunedTime, at: str) -> dict[str, Any]:
    # ASCII escapes: PostgreSQL keeps no zero bytes, and kernels are named by whoever writes them.
    content = {
        "kernel": json.dumps(time.kernel), "source": json.dumps(time.source), "tuning_key": json.dumps(list(time.key)),
        "config": json.dumps(config_text(time.config)), "device": json.dumps(time.device),
        "environment": json.dumps(environment_text(time.environment)),
    }  # fmt: skip
    name = hashlib.sha256(canonical_json(content)).hexdigest()
    guard = quick_checksum((name, *content.values()))
    return {
        "id": name, **content, "time_us": time.time_us, "reports": time.reports, "newest": time.newest or at,
        "certain": 1, "checksum": guard,
    }  # fmt: skip


def _read(row: Any) -> TunedTime | None:
    if row["checksum"] != quick_checksum(tuple(row[name] for name in GUARDED)):
        return None
    try:
        config, environment = read_config(json.loads(row["config"])), read_environment(json.loads(row["environment"]))
    except Unreadable:
        return None
    kernel, source, key, device = (json.loads(row[name]) for name in ("kernel", "source", "tuning_key", "device"))
    return TunedTime(
        kernel, source, tuple(key), config, device, environment, row["time_us"], row["reports"], row["newest"],
        bool(row["certain"]),
    )  # fmt: skip
