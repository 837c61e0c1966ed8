"""Facts of the consumers' kernels of the tested versions, captured once and shipped: what is predicted from where
neither the consumer nor Triton is installed.

A file a consumer and scheme under ``data/``: numbers and kinds of operations, registers and shared memory as compiled,
and where they come from. No line of the kernels is in them.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts, from_json, to_json
from warpplan.planner.errors import MalformedFile
from warpplan.service.feeds.moe_facts.moe_kernels import MoeTile

SCHEMA = "warpplan/moe-facts-1"


@dataclass(frozen=True)
class TileFacts:
    """A kernel captured for one tile. ``registers`` and ``spill_bytes`` are a thread's as compiled with
    ``num_stages`` 3, ``None`` where it was not compiled or did not compile."""

    facts: KernelFacts
    registers: int | None = None
    spill_bytes: int | None = None


@dataclass(frozen=True)
class RecordedFacts:
    """``version`` of the consumer, ``kernel`` the digest of its kernel's source, ``triton`` what captured it."""

    consumer: str
    version: str
    kernel: str
    triton: str
    date: str
    tiles: dict[MoeTile, TileFacts]


def kernel_digest(path: Path, function: str) -> str:
    """SHA-256 of the syntax of ``function`` in ``path``, comments and layout aside and in every Python alike; "" where
    it is not there."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return hashlib.sha256(_syntax(node).encode()).hexdigest()[:16]
    return ""


def _syntax(node: object) -> str:
    """``node`` in full, without fields that are empty: Python 3.12 has some that 3.11 has not, 3.13 prints none of
    them."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return f"{type(node).__name__}({', '.join(f'{name}={_syntax(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_syntax, node))}]"
    return repr(node)


def file_name(consumer: str, scheme: str) -> str:
    return f"{consumer}-{scheme}.json.gz"


@cache
def shipped(consumer: str, scheme: str) -> RecordedFacts | None:
    """What ships for ``consumer`` and ``scheme``, if anything does. Raises :class:`MalformedFile` where the installed
    package's file is damaged."""
    name = file_name(consumer, scheme)
    file = resources.files("warpplan.service.feeds.moe_facts") / "data" / name
    if not file.is_file():
        return None
    try:
        return loads(gzip.decompress(file.read_bytes()))
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedFile(Path(name), f"is damaged ({error}): install warpplan again", field="facts") from error


def loads(text: bytes) -> RecordedFacts:
    """What :func:`dumps` wrote. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for anything else."""
    plain: dict[str, Any] = json.loads(text)
    if plain["schema"] != SCHEMA:
        raise ValueError(f"schema {plain['schema']!r}, expected {SCHEMA}")
    tiles = {
        MoeTile(*entry["tile"]): TileFacts(from_json(entry["facts"]), entry["registers"], entry["spill_bytes"])
        for entry in plain["tiles"]
    }
    return RecordedFacts(plain["consumer"], plain["version"], plain["kernel"], plain["triton"], plain["date"], tiles)


def dumps(recorded: RecordedFacts) -> bytes:
    """``recorded`` as text, tiles in order."""
    tiles = [
        {
            "tile": [tile.m, tile.n, tile.k, tile.warps],
            "registers": found.registers,
            "spill_bytes": found.spill_bytes,
            "facts": to_json(found.facts),
        }
        for tile, found in sorted(recorded.tiles.items(), key=lambda item: item[0].label)
    ]
    head = {name: getattr(recorded, name) for name in ("consumer", "version", "kernel", "triton", "date")}
    return json.dumps({"schema": SCHEMA, **head, "tiles": tiles}, separators=(",", ":"), sort_keys=True).encode()
