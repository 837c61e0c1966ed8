"""Under which key a job's autotuner tunes a launch that was predicted: the values of the kernel's ``key=`` arguments
and the dtypes of its tensors. It is what leads from an answer to the times that autotuners reported."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, column, select, table

from warpplan.service.config_request import canonical_json
from warpplan.service.store.checksums import quick_checksum
from warpplan.service.store.database import Database
from warpplan.service.store.upserts import insert_or_replace

KeyPart = str | int | float | bool | None
GUARDED = ("id", "source", "question", "tuning_key", "arguments")
LAUNCH_KEYS = table("launch_keys", *(column(name) for name in (*GUARDED, "checksum")))
_OF_SOURCE = select(LAUNCH_KEYS).where(LAUNCH_KEYS.c.source == bindparam("source"))

Question = tuple[str, ...]
"""``KernelAnswer.tuning_key``: signature and sizes, as ``warpplan tune`` was given them."""


@dataclass(frozen=True)
class LaunchKey:
    """``source`` is Triton's hash of the kernel, ``key`` what its autotuner makes of the launch ``question``, which has
    ``arguments``: values by parameter, of tensors the dtype."""

    source: str
    question: Question
    key: tuple[KeyPart, ...]
    arguments: tuple[tuple[str, KeyPart], ...]


class LaunchKeys:
    """Launch keys in one ``database``. Every method may raise :class:`StoreError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, keys: Sequence[LaunchKey]) -> None:
        """Keep ``keys`` in one transaction; each replaces the one of the same question."""
        rows = {row["id"]: row for row in map(_row, keys)}
        if not rows:
            return
        with self._database.writing() as connection:
            statement = insert_or_replace(connection, LAUNCH_KEYS, ("id",), (*GUARDED[1:], "checksum"))
            # In a fixed order, so that two writers on PostgreSQL cannot wait for each other.
            connection.execute(statement, [rows[name] for name in sorted(rows)])

    def of_source(self, source: str) -> Mapping[Question, str]:
        """The key, as :func:`key_text` has it, of each question about the kernel ``source``. A key of launches with
        unlike arguments is no question's: a time under it may be of either. A damaged row is left out."""
        with self._database.reading() as connection:
            rows = connection.execute(_OF_SOURCE, {"source": json.dumps(source)}).mappings().all()
        whole = [row for row in rows if row["checksum"] == quick_checksum(tuple(row[name] for name in GUARDED))]
        launches = Counter(key for key, _ in {(row["tuning_key"], row["arguments"]) for row in whole})
        return {
            tuple(json.loads(row["question"])): row["tuning_key"] for row in whole if launches[row["tuning_key"]] == 1
        }


def key_text(key: Sequence[KeyPart]) -> str:
    """``key`` as rows have it. Unlike tuples, it tells 1, 1.0 and true apart, as the job's arguments do."""
    return json.dumps(list(key))


def _row(key: LaunchKey) -> dict[str, Any]:
    # ASCII escapes: PostgreSQL keeps no zero bytes.
    asked = {"source": json.dumps(key.source), "question": json.dumps(list(key.question))}
    row = {"id": hashlib.sha256(canonical_json(asked)).hexdigest(), **asked}
    row |= {"tuning_key": key_text(key.key), "arguments": json.dumps(sorted(key.arguments))}
    return {**row, "checksum": quick_checksum(tuple(row[name] for name in GUARDED))}
