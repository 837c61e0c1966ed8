"""Tuning tables as files: their names, written whole or not at all, and beside them who wrote them from what.

The readers open exact names only, so a file of another name in the folder is never in their way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpplan.planner.errors import StoreError
from warpplan.service.feeds.provenance import digest_of, keep_replaced, one_writer, write_whole

PROVENANCE_SCHEMA = "warpplan/feed-1"
Provenance = Mapping[str, str]
"""What a table was made from and for, (name, value) by name."""
Table = Mapping[int, Mapping[str, object]]
"""Tokens → an entry of a file."""


@dataclass(frozen=True)
class TableKey:
    """What both consumers look a table up by. ``columns`` are the second weight's, a rank's share of an expert;
    ``device`` as in a file's name; ``selector`` "" for no ``dtype=``."""

    experts: int
    columns: int
    device: str
    selector: str = ""
    block: tuple[int, int] | None = None
    per_channel: bool = False
    down: bool = False

    def file_name(self, *, spaced: bool) -> str:
        """``E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json``; ``spaced`` has a blank
        within the brackets."""
        dtype = f",dtype={self.selector}" if self.selector else ""
        comma = ", " if spaced else ","
        block = f",block_shape=[{comma.join(map(str, self.block))}]" if self.block else ""
        channel = ",per_channel_quant=True" if self.per_channel else ""
        down = "_down" if self.down else ""
        return f"E={self.experts},N={self.columns},device_name={self.device}{dtype}{block}{channel}{down}.json"


@dataclass(frozen=True)
class WrittenTable:
    """A table as it was written: the digest of its bytes, and its provenance."""

    digest: str
    provenance: dict[str, str]


def write_table(path: Path, table: Table) -> str:
    """``table`` in ``path``, in one step: a reader sees the old file or the new one. Answers the digest of its bytes.
    Raises :class:`StoreError`."""
    data = _text(table)
    try:
        write_whole(path, data)
    except OSError as error:
        raise _unwritable(path, error) from error
    return digest_of(data)


def keep_foreign(path: Path, table: Table, known: WrittenTable | None) -> tuple[str, ...]:
    """The copy of the file ``path`` that ``table`` is about to replace, where that is not what is ``known`` to have
    been exported; see :func:`~warpplan.service.feeds.provenance.keep_replaced`. Raises :class:`StoreError`."""
    try:
        if known is not None and path.is_file() and digest_of(path.read_bytes()) == known.digest:
            return ()
        return keep_replaced(path, _text(table))
    except OSError as error:
        raise _unwritable(path, error) from error


def _text(table: Table) -> bytes:
    return (json.dumps({str(tokens): dict(entry) for tokens, entry in table.items()}, indent=4) + "\n").encode()


def _unwritable(path: Path, error: OSError) -> StoreError:
    reason = error.strerror or str(error)
    return StoreError(f"cannot write {path}: {reason}", field="out", value=str(path.parent))


def provenance_path(out: Path, consumer: str) -> Path:
    return out / f"warpplan-{consumer}.json"


def record(out: Path, consumer: str, written: Mapping[str, WrittenTable]) -> None:
    """Add ``written``, path below ``out`` → table, to the folder's provenance. Raises :class:`StoreError`."""
    path = provenance_path(out, consumer)
    try:
        with one_writer(out):
            known = {**recorded(out, consumer), **written}
            tables = {
                name: {"sha256": table.digest, "provenance": dict(table.provenance)}
                for name, table in sorted(known.items())
            }
            text = json.dumps({"schema": PROVENANCE_SCHEMA, "consumer": consumer, "tables": tables}, indent=2) + "\n"
            write_whole(path, text.encode())
    except OSError as error:
        raise _unwritable(path, error) from error


def recorded(out: Path, consumer: str) -> dict[str, WrittenTable]:
    """The tables that were written into ``out``; none where the file is missing, damaged or none of ours."""
    try:
        plain = json.loads(provenance_path(out, consumer).read_text(encoding="utf-8"))
        if plain["schema"] != PROVENANCE_SCHEMA:
            return {}
        return {
            str(name): WrittenTable(str(table["sha256"]), {str(k): str(v) for k, v in table["provenance"].items()})
            for name, table in plain["tables"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def difference(wanted: str, folder: Path) -> str:
    """How the table in ``folder`` whose name is most like ``wanted`` differs from it, in words; "" where there is
    none."""
    asked = _fields(wanted)
    others = sorted(path.name for path in folder.glob("*.json")) if folder.is_dir() else []
    best: tuple[int, str] | None = None
    for name in others:
        found = _fields(name)
        if not found or name == wanted:
            continue
        unlike = [k for k in sorted({*asked, *found}) if asked.get(k) != found.get(k)]
        told = ", ".join(f"{k} {found.get(k, 'none')}, asked {asked.get(k, 'none')}" for k in unlike)
        if best is None or len(unlike) < best[0]:
            best = len(unlike), f"nearest is {name}: {told or 'written otherwise'}"
    return "" if best is None else best[1]


def _fields(name: str) -> dict[str, Any]:
    """The keys in a table's name."""
    stem, down = name.removesuffix(".json"), "no"
    if stem.endswith("_down"):
        stem, down = stem.removesuffix("_down"), "yes"
    pairs = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,]+)", stem))
    if "E" not in pairs:
        return {}
    return {**{k: v.replace(" ", "") for k, v in pairs.items()}, "down": down}
