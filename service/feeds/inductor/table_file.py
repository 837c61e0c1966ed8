"""The file that holds a lookup table for Inductor, with what it was made from and for.

    {"schema": "warpplan/inductor-table-1", "device", "driver", "versions", "profile", "planner", "date",
     "table": {key: [entry, …]}, "digest"}

``digest`` is of the table: one that was cut short or edited is not used. Standard library only: training jobs read it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpplan.planner.errors import MalformedFile
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.provenance import EntryProvenance, write_whole

SCHEMA = "warpplan/inductor-table-1"
FILE_NAME = "inductor_table.json"
Entry = Mapping[str, Any]
Table = Mapping[str, Sequence[Entry]]


@dataclass(frozen=True)
class TableFile:
    """``table`` in Inductor's own form; ``provenance.device`` is the GPU that it is for."""

    provenance: EntryProvenance
    table: Table

    def stale(self, machine: Machine, versions: Mapping[str, str]) -> str:
        """Why the table does not hold on ``machine`` with the packages ``versions``; empty where it does."""
        return self.provenance.stale(machine, versions)


def digest(table: Table) -> str:
    """The SHA-256 of a table's canonical JSON."""
    return hashlib.sha256(json.dumps(table, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def save_table(path: Path, found: TableFile) -> None:
    """Write the file, replacing an older one atomically. Raises ``OSError``."""
    p = found.provenance
    fields = {
        "schema": SCHEMA, "device": p.device, "driver": p.driver, "versions": dict(p.versions), "profile": p.profile,
        "planner": p.planner, "date": p.date, "digest": digest(found.table), "table": found.table,
    }  # fmt: skip
    write_whole(path, json.dumps(fields, indent=1).encode() + b"\n")


def load_table(path: Path) -> TableFile:
    """The file at ``path``. Raises :class:`MalformedFile` where it cannot be read or is not what was written."""
    try:
        fields = json.loads(path.read_bytes())
    except OSError as error:
        raise MalformedFile(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise MalformedFile(path, f"is no JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        raise MalformedFile(path, f"is not of schema {SCHEMA}: export it again", field="schema")
    table = fields.get("table")
    if not isinstance(table, dict) or digest(table) != fields.get("digest"):
        raise MalformedFile(path, "is cut short or was edited: its digest does not match; export it again")
    versions = fields.get("versions")
    texts = {name: str(fields.get(name)) for name in ("device", "driver", "profile", "planner", "date")}
    if not isinstance(versions, dict) or not all(isinstance(fields.get(name), str) for name in texts):
        raise MalformedFile(path, "does not say what it is for: export it again", field="versions")
    pairs = tuple(sorted((str(name), str(version)) for name, version in versions.items()))
    return TableFile(EntryProvenance("inductor", str(fields["digest"]), versions=pairs, **texts), table)
