"""Checksums of rows: what a damaged file gives back is noticed, not served.

SQLite notices a page whose structure is broken, not a byte that has changed within a value. Each row therefore keeps a
digest of what an answer takes from it, its key included: a row that a damaged index finds under another key does not
match either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import RowMapping

Row = Mapping[str, Any] | RowMapping
CONFIG = ("kernel", "shape", "dtype", "device", "profile", "planner", "config", "plan", "prediction")
MEASUREMENT = (
    "id", "kernel", "shape", "dtype", "device", "config", "time_us", "samples", "environment", "run", "created_at",
)  # fmt: skip
SOLVE = ("id", "name", "planner", "status", "outcome", "failure")
KERNEL_PLAN = ("id", "kernel", "body")
ARTIFACT = ("consumer", "key", "name", "scope", "size_bytes", "sha256", "kept_bytes", "body")

BY_TABLE = {"configs": CONFIG, "measurements": MEASUREMENT, "solves": SOLVE, "kernel_plans": KERNEL_PLAN}
"""The columns that each table's checksum covers, of the tables that were there before checksums were."""


def checksum(columns: tuple[str, ...], row: Row) -> str:
    """The first half of the SHA-256 of the values of ``columns`` in ``row``."""
    # Whatever a damaged cell holds has a repr, bytes included.
    text = json.dumps([row[name] for name in columns], default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def intact(columns: tuple[str, ...], row: Row) -> bool:
    """Whether ``row``, read with its ``checksum``, is what was written."""
    return bool(row["checksum"] == checksum(columns, row))


def quick_checksum(values: tuple[object, ...]) -> str:
    """The same for rows of which a lookup reads dozens: 16 bytes of BLAKE2 of the values' ``repr``."""
    return hashlib.blake2b(repr(values).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def digest(body: str) -> str:
    """The SHA-256 under which a text is kept once."""
    return hashlib.sha256(body.encode()).hexdigest()
