"""Where in the user's source an operation comes from, by the locations that TTGIR carries."""

from __future__ import annotations

import re

from warpplan.kernels.compiler.ir import Module, Operation

_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_ALIAS = re.compile(r"#loc\d*")
_DEPTH = 32


def source_line(module: Module, operation: Operation) -> str:
    """``file.py:12`` of ``operation``, or "" where nothing is known; of inlined calls the outermost place, the user's
    own."""
    table = dict(line.split(" = ", 1) for line in (*module.aliases, *module.locations) if line.startswith("#loc"))
    text = operation.location
    for _ in range(_DEPTH):
        if not _ALIAS.search(text):
            break
        text = _ALIAS.sub(lambda match: _inner(table.get(match.group(), "")), text)
    places = _FILE.findall(text)
    if not places:
        return ""
    path, line, _ = places[-1] if "callsite" in text else places[0]
    return f"{path.rsplit('/', 1)[-1]}:{line}"


def _inner(text: str) -> str:
    return text[len("loc(") : -1] if text.startswith("loc(") else text
