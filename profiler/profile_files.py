"""Profiles in files: written whole or not at all, read with the file and line of what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

from warpplan.kernels.isolate import Json
from warpplan.planner.errors import InvalidInput, MalformedFile
from warpplan.planner.values import codec
from warpplan.planner.values.profile import Profile


def save(profile: Profile, path: Path) -> None:
    """Write ``profile`` to ``path``, replacing it at once."""
    write_json(codec.to_json(profile), path)


def load(path: Path) -> Profile:
    """The profile in ``path``.

    Raises :class:`InvalidInput` where the file cannot be read, :class:`MalformedFile` where it holds no profile.
    """
    profile: Profile = codec.loads(read_bytes(path), path, Profile)
    return profile


def write_json(value: Json, path: Path) -> None:
    """Write JSON beside ``path`` and move it there: a reader, or a crash, never sees half a file."""
    if path.is_dir():
        raise InvalidInput(f"{path} cannot be written: Is a directory", field="path", value=str(path))
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise _unusable(path, "written", error) from None
    finally:
        beside.unlink(missing_ok=True)


def read_json(path: Path) -> Json:
    """The JSON value in ``path``."""
    try:
        return json.loads(read_bytes(path))
    except json.JSONDecodeError as error:
        raise MalformedFile(path, f"not JSON: {error.msg} at column {error.colno}", line=error.lineno) from None
    except UnicodeDecodeError as error:
        raise MalformedFile(path, f"not JSON: {error.reason}") from None


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unusable(path, "read", error) from None


def _unusable(path: Path, verb: str, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path} cannot be {verb}: {error.strerror or error}", field="path", value=str(path))
