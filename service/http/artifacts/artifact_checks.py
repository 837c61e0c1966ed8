"""What may be kept: whose cache, under which keys and names, for which machine, and what a tuning result has."""

from __future__ import annotations

import json
import math
import re

from warpplan.planner.errors import InvalidInput, UnknownName
from warpplan.service.store.artifact_store import ArtifactKey
from warpplan.service.workflow.request import require_whole_text

KEYS = {"triton": re.compile(r"[A-Z2-7]{20,104}"), "helion": re.compile(r"[0-9a-f]{64}")}
"""What each consumer's keys look like: Triton's are digests in base32, Helion's in hexadecimal."""
MAX_NAME_BYTES = 255
MAX_SCOPE_CHARACTERS = 200


def key_pattern(consumer: str) -> re.Pattern[str]:
    if consumer not in KEYS:
        raise UnknownName("consumer", consumer, KEYS)
    return KEYS[consumer]


def place_of(consumer: str, key: str, scope: str) -> ArtifactKey:
    pattern = key_pattern(consumer)
    if not pattern.fullmatch(key):
        raise InvalidInput(
            f"{key[:80]!r} is no key of {consumer}: expected {pattern.pattern}",
            field="key", value=key, limit=pattern.pattern,
        )  # fmt: skip
    require_whole_text("scope", scope)
    if len(scope) > MAX_SCOPE_CHARACTERS or not scope.isprintable():
        raise InvalidInput(
            f"scope {scope[:40]!r}: expected at most {MAX_SCOPE_CHARACTERS} printable characters",
            field="scope", value=scope, limit=MAX_SCOPE_CHARACTERS,
        )  # fmt: skip
    return ArtifactKey(consumer, key, scope)


def require_file_name(name: str) -> None:
    """Raise :class:`InvalidInput` for what is no plain file name: consumers write it into their folders."""
    require_whole_text("name", name)
    plain = 0 < len(name.encode()) <= MAX_NAME_BYTES and name.isprintable() and not name.startswith(".")
    if not plain or "/" in name or "\\" in name:
        raise InvalidInput(
            f"{name[:80]!r} is no file name: expected 1 to {MAX_NAME_BYTES} bytes without slashes, not beginning with "
            "a dot",
            field="name", value=name, limit=MAX_NAME_BYTES,
        )  # fmt: skip


def require_tuning(body: bytes) -> None:
    """Raise :class:`InvalidInput` for a tuning result from which Triton could take no configuration."""
    try:
        times = [times[0] for _, times in json.loads(body)["configs_timings"]]
        usable = any(math.isfinite(t) and t > 0 for t in times) and not any(math.isnan(t) or t < 0 for t in times)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        usable = False
    if not usable:
        raise InvalidInput(
            "the body is no tuning result of Triton: expected configs_timings with a time above 0", field="body"
        )
