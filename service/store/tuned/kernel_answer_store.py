"""What was predicted of anyone's kernels: the ranked configurations of one kernel for one shape, a row each.

A row is found by the kernel's name and Triton's hash of its source, so that an edited kernel finds nothing old. Another
profile, planner or Triton makes another row.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, column, select, table

from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import canonical_json
from warpplan.service.store.checksums import quick_checksum
from warpplan.service.store.database import Database, now
from warpplan.service.store.stored_values import Unreadable, config_text, read_config
from warpplan.service.store.upserts import insert_or_replace

GUARDED = ("id", "kernel", "source", "shape", "signature", "device", "profile", "planner", "ranked")
UNKNOWN_TRITON = json.dumps("")
"""What rows of schema 8 have for Triton, which their checksums do not guard."""
COLUMNS = (*GUARDED, "triton", "created_at", "checksum")
KERNEL_ANSWERS = table("kernel_answers", *(column(name) for name in COLUMNS))
_A = KERNEL_ANSWERS.c
_OF_KERNEL = (
    select(KERNEL_ANSWERS).where(_A.kernel == bindparam("kernel")).order_by(_A.created_at.desc(), _A.id)
)  # fmt: skip
WORDS = ("kernel", "source", "signature", "device", "profile", "planner", "triton")
MOST_RANKED = 64
"""Configurations kept of one answer, best first. Chosen by hand: a tuning list has some dozens, and one that is ranked
lower was never the fastest in benchmarks/results/launch_replay_h200.json. Doubled, rows are twice as long."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KernelAnswer:
    """``ranked`` has (configuration, predicted microseconds), best first. ``signature`` gives the kernel's other
    parameters as ``warpplan tune`` takes them, ``shape`` the sizes by name; ``source`` is Triton's hash of the kernel
    and all that it calls; ``profile`` and ``planner`` say what the prediction came from, ``triton`` which release
    compiled the kernel for it, "" where that is not known."""

    kernel: str
    source: str
    shape: tuple[tuple[str, int], ...]
    signature: str
    device: str
    profile: str
    planner: str
    ranked: tuple[tuple[TuningConfig, float], ...]
    date: str = ""
    triton: str = ""

    @property
    def tuning_key(self) -> tuple[str, ...]:
        """Under which measured times of this question are kept among the tunings: whatever was predicted of it."""
        return ("warpplan tune", self.signature, *(f"{name}={size}" for name, size in self.shape))


class KernelAnswers:
    """Answers in one ``database``. Every method may raise :class:`StoreError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, answers: Sequence[KernelAnswer]) -> None:
        """Keep ``answers`` in one transaction; each replaces the one of the same question, profile, planner and
        Triton."""
        at = now()
        rows = {row["id"]: row for row in (_row(answer, at) for answer in answers)}
        if not rows:
            return
        rest = tuple(name for name in COLUMNS if name != "id")
        with self._database.writing() as connection:
            statement = insert_or_replace(connection, KERNEL_ANSWERS, ("id",), rest)
            # In a fixed order, so that two writers on PostgreSQL cannot wait for each other.
            connection.execute(statement, [rows[name] for name in sorted(rows)])

    def of(
        self, kernel: str, is_current: Callable[[KernelAnswer], bool] = lambda answer: True
    ) -> tuple[KernelAnswer, ...]:
        """What is kept of ``kernel``, one answer of each question: the newest that ``is_current``, else the newest. A
        damaged row is left out with a line in the log: it can be predicted anew."""
        with self._database.reading() as connection:
            rows = connection.execute(_OF_KERNEL, {"kernel": json.dumps(kernel)}).mappings().all()
        found: dict[object, KernelAnswer] = {}
        for row in rows:
            answer = _read(row)
            if answer is None:
                _log.warning("store %s is damaged: an answer of %s is left out", self._database.name, kernel[:80])
                continue
            question = (answer.source, answer.shape, answer.signature, answer.device)
            newer = found.setdefault(question, answer)
            if is_current(answer) and not is_current(newer):
                found[question] = answer
        return tuple(found.values())


def _row(answer: KernelAnswer, at: str) -> dict[str, Any]:
    # ASCII escapes: PostgreSQL keeps no zero bytes, and kernels are named by whoever writes them.
    question = {
        "kernel": json.dumps(answer.kernel), "source": json.dumps(answer.source), "shape": json.dumps(answer.shape),
        "signature": json.dumps(answer.signature), "device": json.dumps(answer.device),
        "profile": json.dumps(answer.profile), "planner": json.dumps(answer.planner),
        "triton": json.dumps(answer.triton),
    }  # fmt: skip
    name = hashlib.sha256(canonical_json(question)).hexdigest()
    ranked = json.dumps([[config_text(config), time_us] for config, time_us in answer.ranked[:MOST_RANKED]])
    row = {"id": name, **question, "ranked": ranked, "created_at": answer.date or at}
    return {**row, "checksum": _guard(row)}


def _guard(row: Any) -> str:
    triton = () if row["triton"] == UNKNOWN_TRITON else (row["triton"],)
    return quick_checksum((*(row[name] for name in GUARDED), *triton))


def _read(row: Any) -> KernelAnswer | None:
    if row["checksum"] != _guard(row):
        return None
    words = {name: json.loads(row[name]) for name in WORDS}
    try:
        ranked = tuple((read_config(text), float(time_us)) for text, time_us in json.loads(row["ranked"]))
    except Unreadable:
        return None
    shape = tuple((str(name), int(size)) for name, size in json.loads(row["shape"]))
    return KernelAnswer(shape=shape, ranked=ranked, date=str(row["created_at"]), **words)
