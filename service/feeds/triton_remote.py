"""Triton's remote cache, kept by a warpplan service: what one process compiles or tunes, no other does again.

    TRITON_CACHE_MANAGER=triton.runtime.cache:RemoteCacheManager
    TRITON_REMOTE_CACHE_BACKEND=warpplan.service.feeds.triton_remote:Backend
    WARPPLAN_URL=http://planner:8000

Compiled kernels and the results of ``@triton.autotune(cache_results=True)`` go through it alike. Without a service the
files under ``$TRITON_CACHE_DIR`` answer, as they do for Triton's own manager. Shared libraries (the launchers that the
host's C compiler made) stay on the host. Standard library only: it is imported by training jobs.

Source: triton 3.6.0 and 3.9.0, ``runtime/cache.py`` (``RemoteCacheManager``) and ``knobs.py`` (``env_class``, which
wants ``MODULE:CLASS`` and a base of the name ``RemoteCacheBackend``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from warpplan.service.feeds import provenance
from warpplan.service.feeds.machine_here import Machine, machine_here
from warpplan.service.feeds.remote_artifacts import RemoteArtifacts, warn_once

CONSUMER = "triton"
TUNED_SUFFIX = ".autotune.json"
GROUP_PREFIX = "__grp__"
HOST_SUFFIXES = (".so", ".pyd", ".dll")


class RemoteCacheBackend:
    """Triton asks for a base of this name. Its own would have to be imported from triton."""


class Backend(RemoteCacheBackend):
    """The files of one cache ``key``, which Triton digests from all that a compilation depends on.

    Triton's key holds the architecture, not the GPU: tuning results are kept for the model and driver of this machine,
    and those of another are a miss. Where these are not known, tuning results stay on the host.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._remote, self._machine = _shared(os.getpid())
        self._folder = _cache_folder() / key

    def get(self, filenames: Iterable[str]) -> dict[str, bytes]:
        """What there is of ``filenames``: several are the parts of one kernel, of which all are there or none is."""
        names = list(filenames)
        found: dict[str, bytes] = {}
        missing: list[str] = []
        for scope, group in self._by_scope(names):
            kept = self._remote.get(self._key, group, scope)
            good = {n: d for n, d in (kept or {}).items() if n in group and not self._damaged(n, d)}
            found |= good
            for name in good if scope else ():
                self._note(name, good[name])
            missing += [] if kept is None else [n for n in group if n not in good]
        for name in names:
            if name not in found and (data := self._local(name)) is not None:
                found[name] = data
                if name in missing:
                    # The service was away when it was made, or has forgotten it.
                    self._remote.put(self._key, name, data, self._scope(name))
        return found if len(found) == len(names) else {}

    def put(self, filename: str, data: bytes) -> None:
        """Keep ``data``; Triton itself writes the local file."""
        if not self._stays_here(filename):
            self._remote.put(self._key, filename, data, self._scope(filename))
        if filename.endswith(TUNED_SUFFIX):
            self._note(filename, data)

    def _note(self, name: str, data: bytes) -> None:
        provenance.write_beside(self._folder / name, provenance.measured(CONSUMER, data, self._machine))

    def _by_scope(self, names: list[str]) -> list[tuple[str, list[str]]]:
        groups: dict[str, list[str]] = {}
        for name in names:
            if not self._stays_here(name):
                groups.setdefault(self._scope(name), []).append(name)
        return list(groups.items())

    def _stays_here(self, name: str) -> bool:
        """Whether the file is this host's alone. What an unknown machine measured holds on no other: not even on
        another unknown one, which may have another GPU."""
        return name.endswith(HOST_SUFFIXES) or (name.endswith(TUNED_SUFFIX) and not self._machine.label)

    def _scope(self, name: str) -> str:
        return self._machine.label if name.endswith(TUNED_SUFFIX) else ""

    def _local(self, name: str) -> bytes | None:
        """The file that Triton's own manager would find; ``None`` where there is none, it is damaged, or its
        provenance says that it is for another machine."""
        path = self._folder / name
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if self._damaged(name, data):
            return None
        if name.endswith(TUNED_SUFFIX):
            written = provenance.read_beside(path)
            if written is not None and (reason := written.stale(self._machine)):
                warn_once(f"warpplan: {path} is not used: {reason}")
                return None
        return data

    def _damaged(self, name: str, data: bytes) -> bool:
        """Whether a file that Triton parses would fail there, which ends the job in some releases."""
        if not name.endswith(".json"):
            return False
        wanted = "child_paths" if name.startswith(GROUP_PREFIX) else "configs_timings"
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        whole = isinstance(body, dict) and (wanted in body or not name.startswith(GROUP_PREFIX))
        if whole and name.endswith(TUNED_SUFFIX):
            whole = bool(body.get(wanted))
        if not whole:
            warn_once(f"warpplan: {self._folder / name} is damaged: made anew")
        return not whole


@cache
def _shared(process: int) -> tuple[RemoteArtifacts, Machine]:
    """Triton makes a backend for every key: they share what is known of the service. Anew after a fork."""
    return RemoteArtifacts.of_environment(CONSUMER), machine_here()


def _cache_folder() -> Path:
    # Imported here: whoever makes a backend is triton, or has none.
    try:
        from triton import knobs
    except ImportError:
        return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    return Path(knobs.cache.dir)
