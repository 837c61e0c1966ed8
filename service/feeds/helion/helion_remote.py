"""Helion's remote autotuning cache, kept by a warpplan service: what one job tuned, no other tunes again.

    HELION_AUTOTUNE_CACHE=RemoteAutotuneCache
    HELION_REMOTE_CACHE_BACKEND=warpplan.service.feeds.helion.helion_remote.HelionRecords
    WARPPLAN_URL=http://planner:8000

Helion writes what it gets to ``$HELION_CACHE_DIR/<key>.best_config`` and reads that where the service is away. Its key
has no driver, and but for its strict caches no version: records are kept apart by them, and those of others are a miss.
A machine whose GPU and driver are not known keeps its records to itself.

Source: Helion 1.5.1, ``autotuner/remote_cache.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import metadata

from helion.autotuner.remote_cache import RemoteCacheBackend as HelionBackend

from warpplan.service.feeds.machine_here import machine_here
from warpplan.service.feeds.remote_artifacts import RemoteArtifacts, warn_once

CONSUMER = "helion"
FILE = "best_config.json"
PACKAGES = ("helion", "triton", "torch")
MOST_LISTED = 64
"""Records that a search may be warmed with, where it does not say how many: one exchange each."""


class HelionRecords(HelionBackend):  # type: ignore[misc]  # helion is untyped here
    """Records under Helion's keys, for machines and versions like this one."""

    def __init__(self) -> None:
        self._remote = RemoteArtifacts.of_environment(CONSUMER)
        label = machine_here().label
        versions = [f"{name} {_version(name)}" for name in PACKAGES]
        self._scope = ", ".join((label, *versions)) if label else ""

    def get(self, key: str) -> str | None:
        """The record under ``key`` as it was put; ``None`` where there is none that Helion can read."""
        data = (self._remote.get(key, [FILE], self._scope) or {}).get(FILE) if self._scope else None
        if data is None:
            return None
        if not readable(data):
            warn_once(f"warpplan: the record {key[:12]} is no record of Helion: not used")
            return None
        return data.decode()

    def put(self, key: str, data: str) -> None:
        """Keep ``data`` under ``key``, unless there is a record."""
        if self._scope:
            self._remote.put(key, FILE, data.encode(), self._scope)

    def list(self, max_results: int | None = None) -> Iterable[str]:
        """The records of machines and versions like this one, newest first."""
        most = MOST_LISTED if max_results is None else max_results
        found: list[str] = []
        for key in (self._remote.keys() or ()) if self._scope else ():
            if len(found) >= most:
                break
            record = self.get(key)
            if record is not None:
                found.append(record)
        return found


def readable(data: bytes) -> bool:
    """Whether ``data`` is a record from which Helion can take a configuration: it raises on others."""
    try:
        body = json.loads(data)
        return isinstance(json.loads(body["config"]), dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _version(package: str) -> str:
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return "unknown"
