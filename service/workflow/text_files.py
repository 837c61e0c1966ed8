"""Files that a command reads and writes: every failure is one line that names the file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from warpplan.planner.errors import InvalidInput, MalformedFile

MAX_BYTES = 64 * 2**20


def source_name(path: str) -> str:
    """``path`` as messages name it; "-" is standard input."""
    return "<stdin>" if path == "-" else path


def read_bytes(path: str) -> bytes:
    """All of ``path``, or of standard input for "-".

    Raises :class:`MalformedFile` where it cannot be read or is larger than :data:`MAX_BYTES`.
    """
    try:
        if path == "-":
            body = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                body = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path that holds a null character
        reason = getattr(error, "strerror", None) or str(error)
        raise MalformedFile(source_name(path), f"cannot be read: {reason}", field="path") from None
    if len(body) > MAX_BYTES:
        raise MalformedFile(source_name(path), f"is larger than {MAX_BYTES >> 20} MiB", field="path")
    return body


def require_folder(path: Path) -> None:
    """Raise :class:`InvalidInput` where ``path`` cannot be written for want of its folder, before the work begins."""
    if path.is_dir():
        raise InvalidInput(f"{path} cannot be written: Is a directory", field="path", value=str(path))
    if not path.parent.is_dir():
        raise InvalidInput(
            f"{path} cannot be written: its folder {path.parent} does not exist", field="path", value=str(path)
        )


def write_text(path: Path, text: str) -> None:
    """Write beside ``path`` and move it there: a reader, or a crash, never sees half a file.

    A device or pipe is written in place. Raises :class:`InvalidInput` where that fails.
    """
    special = path.exists() and not path.is_file()
    beside = path if special else path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8", newline="")
        if not special:
            os.replace(beside, path)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror or error}", field="path", value=str(path)
        ) from None
    finally:
        if not special:
            beside.unlink(missing_ok=True)
