"""Where an operation of TTGIR comes from: the variable and the line of the user's own source.

A location is a line of a file, a name around one (``"acc"(…)``), a call (``callsite(callee at caller)``), several
fused into one, or an alias of any of these in the table that follows the module. Of inlined calls the innermost
location counts that is the user's: a reduction comes from the line that calls ``tl.sum``, not from Triton's
library; the body of the user's own helper comes from the helper.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region

_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"\((.*)\)', re.DOTALL)
_BYTE = re.compile(rb"\\([0-9A-F]{2})")
"""How MLIR prints a byte that is not printable ASCII."""
_LIBRARIES = ("/triton/language/", "/triton/experimental/", "/torch/_inductor/runtime/")
"""Folders whose files are called by the user's, never written by them."""
_DEPTH = 64
"""Calls and names within each other; a table that refers to itself ends here."""


@dataclass(frozen=True)
class SourceLocation:
    """``name`` is the variable that the value is assigned to, "" where there is none; ``file`` a base name, "" and
    ``line`` 0 where nothing is known."""

    name: str = ""
    file: str = ""
    line: int = 0
    library: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


UNKNOWN_LOCATION = SourceLocation()


def source_line(module: Module, operation: IrOperation) -> str:
    """``file.py:12`` of ``operation`` in ``module``, "" where nothing is known."""
    return str(SourceLocations(module).of(operation))


class SourceLocations:
    """The locations of one module."""

    def __init__(self, module: Module) -> None:
        self._lines = (*module.aliases, *module.locations)
        self._known: dict[str, SourceLocation] = {}

    def of(self, operation: IrOperation) -> SourceLocation:
        """The user's location of ``operation``; a library's where the user's is not known."""
        found = self._known.get(operation.location)
        if found is None:
            found = self._known[operation.location] = self._resolve(operation.location, _DEPTH)
        return found

    def lines_in(self, function: IrOperation) -> dict[int, str]:
        """``file.py:12`` of every operation in ``function``, by ``id``. An operation that a lowering added has no
        location of its own and gets that of the next operation that has one, else of the one before, else of the
        operation around it."""
        return self._lines_in(function.regions[0], str(self.of(function)))

    def _lines_in(self, region: Region, around: str) -> dict[int, str]:
        found: dict[int, str] = {}
        known = [str(self.of(operation)) for operation in region.operations]
        after = ""
        for operation, line in zip(reversed(region.operations), reversed(known), strict=True):
            after = line or after
            found[id(operation)] = after
        before = around
        for operation, line in zip(region.operations, known, strict=True):
            before = line or before
            found[id(operation)] = found[id(operation)] or before
            for inner in operation.regions:
                found |= self._lines_in(inner, found[id(operation)])
        return found

    @cached_property
    def _table(self) -> dict[str, str]:
        pairs = (line.partition(" = ") for line in self._lines if line.startswith("#loc"))
        return {name: text.strip()[len("loc(") : -1] for name, _, text in pairs}

    def _resolve(self, text: str, depth: int) -> SourceLocation:
        text = text.strip()
        if depth == 0:
            return UNKNOWN_LOCATION
        if text.startswith("#"):
            found = self._known.get(text)
            if found is None:
                found = self._known[text] = self._resolve(self._table.get(text, ""), depth - 1)
            return found
        if text.startswith("callsite("):
            callee, _, caller = _split_call(text[len("callsite(") : -1])
            inner, outer = self._resolve(callee, depth - 1), self._resolve(caller, depth - 1)
            return outer if inner.library or not inner.file else inner
        if text.startswith("fused"):
            parts = [self._resolve(part, depth - 1) for part in _items(text[text.index("[") + 1 : -1])]
            return min(parts, key=lambda p: (not p.file, p.library), default=UNKNOWN_LOCATION)
        named = _NAMED.fullmatch(text)
        if named is not None:
            location = self._resolve(named.group(2), depth - 1)
            return SourceLocation(_unescaped(named.group(1)), location.file, location.line, location.library)
        where = _FILE.fullmatch(text)
        if where is None:
            return UNKNOWN_LOCATION
        path = _unescaped(where.group(1))
        return SourceLocation(
            "", path.rsplit("/", 1)[-1], int(where.group(2)), any(part in path for part in _LIBRARIES)
        )


def _unescaped(text: str) -> str:
    return _BYTE.sub(lambda byte: bytes.fromhex(byte[1].decode()), text.encode()).decode(errors="replace")


def _split_call(text: str) -> tuple[str, str, str]:
    """The callee and the caller, parted at the ``at`` outside of brackets and strings."""
    depth, quoted, i = 0, False, 0
    while i < len(text):
        character = text[i]
        if quoted:
            i += character == "\\"
            quoted = character != '"'
        elif character == '"':
            quoted = True
        elif depth == 0 and text.startswith(" at ", i):
            return text[:i], " at ", text[i + 4 :]
        depth += (not quoted) * ((character in "([<") - (character in ")]>"))
        i += 1
    return text, "", ""


def _items(text: str) -> list[str]:
    items, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([<") - (character in ")]>")
        if character == "," and depth == 0:
            items.append(text[start:i])
            start = i + 1
    return [*items, text[start:]] if text.strip() else items
