"""The file that holds a lookup table for Inductor, with what it was made from and for.

    {"schema": "warpplan/inductor-table-1", "device", "driver", "versions", "profile", "planner", "date",
     "table": {key: [entry, …]}, "digest", "earlier": {key: {"profile", "planner"}}}

``digest`` is of the table: one that was cut short or edited is not used. ``earlier`` names the entries that an earlier
export planned from another profile or with another planner. Standard library only: training jobs read it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from warpplan.planner.errors import MalformedFile
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.provenance import EntryProvenance, keep_replaced, one_writer, write_whole

SCHEMA = "warpplan/inductor-table-1"
FILE_NAME = "inductor_table.json"
Entry = Mapping[str, Any]
Table = Mapping[str, Sequence[Entry]]
PlannedFrom = tuple[str, str]
"""The key of the profile and the version of the planner that an entry comes from."""


@dataclass(frozen=True)
class TableFile:
    """``table`` in Inductor's own form; ``provenance.device`` is the GPU that it is for. ``earlier`` tells of entries
    that come from another profile or planner than ``provenance`` has, by key."""

    provenance: EntryProvenance
    table: Table
    earlier: Mapping[str, PlannedFrom] = field(default_factory=dict)

    def planned_from(self, key: str) -> PlannedFrom:
        """What the entry ``key`` was planned from and with."""
        return self.earlier.get(key, (self.provenance.profile, self.provenance.planner))

    def unlike(self, made: EntryProvenance) -> str:
        """What the table is for, as far as ``made`` is for something else, so that no one file can hold entries of
        both; empty where it can. A driver that was not known when the table was made may be any."""
        its = self.provenance
        found = [its.device] if its.device != made.device else []
        found += [f"driver {its.driver}"] if its.driver not in ("", made.driver) else []
        if its.versions != made.versions:
            found += [f"{name} {version}" for name, version in its.versions if (name, version) not in made.versions]
        return ", ".join(found) or ("other packages" if its.versions != made.versions else "")

    def with_newer(self, newer: TableFile) -> TableFile:
        """The entries of both files, which must be for the same; of the same key those of ``newer``."""
        table = {**self.table, **newer.table}
        own = (newer.provenance.profile, newer.provenance.planner)
        kept = {key: self.planned_from(key) for key in self.table if key not in newer.table}
        earlier = {key: source for key, source in kept.items() if source != own}
        return TableFile(replace(newer.provenance, digest=digest(table)), table, earlier)

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
        "earlier": {key: {"profile": its, "planner": by} for key, (its, by) in found.earlier.items()},
    }  # fmt: skip
    write_whole(path, json.dumps(fields, indent=1).encode() + b"\n")


def add_to_table(path: Path, made: TableFile) -> tuple[tuple[str, ...], str]:
    """Write ``made`` and the entries that the file ``path`` has for the same; other exports wait meanwhile. Answers the
    copy of a file that could not be added to, if there was one, and what it is for where it is a table for something
    else. Raises ``OSError``."""
    with one_writer(path.parent):
        older, unlike = _older(path, made)
        kept = () if older else keep_replaced(path)
        save_table(path, older.with_newer(made) if older else made)
    return kept, unlike


def _older(path: Path, made: TableFile) -> tuple[TableFile | None, str]:
    """The table at ``path`` that ``made`` can be added to; ``None`` where there is none. What it is for, where it is a
    table for something else."""
    try:
        found = load_table(path)
    except MalformedFile:
        return None, ""
    unlike = found.unlike(made.provenance)
    return (None if unlike else found), unlike


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
    earlier = _earlier(fields.get("earlier", {}))
    known = all(isinstance(fields.get(name), str) for name in texts)
    if not isinstance(versions, dict) or not known or earlier is None:
        raise MalformedFile(path, "does not say what it is for: export it again", field="versions")
    pairs = tuple(sorted((str(name), str(version)) for name, version in versions.items()))
    return TableFile(EntryProvenance("inductor", str(fields["digest"]), versions=pairs, **texts), table, earlier)


def _earlier(found: object) -> dict[str, PlannedFrom] | None:
    """``found`` as :attr:`TableFile.earlier`; ``None`` where it is none."""
    if not isinstance(found, dict) or not all(isinstance(its, dict) for its in found.values()):
        return None
    return {str(key): (str(its.get("profile")), str(its.get("planner"))) for key, its in found.items()}
