"""Artifacts of a consumer's cache, kept by the service at an URL: ``/v1/artifacts/{consumer}/{key}``.

Runs in training jobs: standard library only, each exchange over within a time limit, and a service that does not answer
is left alone for a while. What arrives is checked against the digest it was kept under.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
import zlib
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from typing import Any

from warpplan.kernels.isolate import within as within

URL_VARIABLE = "WARPPLAN_URL"
TIMEOUT_VARIABLE = "WARPPLAN_CACHE_TIMEOUT_S"
TIMEOUT_S = 1.0
"""Seconds that a job waits for one exchange. Chosen by hand: a local network answers in milliseconds, and a compilation
that the answer saves takes longer."""
PAUSE_S = 30.0
"""Seconds for which a service that failed is left alone, so that a job with a thousand kernels waits once."""
MAX_BYTES = 16 << 20
"""The largest artifact that is sent or taken; a compiled kernel has well below a megabyte."""

REFUSALS = (413, 422)
"""What the service answers to a question that it does not take: others may fare better."""

_warned: set[str] = set()


class RemoteArtifacts:
    """One consumer's artifacts at ``url``; the empty one answers as a service that is away. Safe to share between
    threads and across fork. No method raises."""

    def __init__(self, consumer: str, url: str, timeout_s: float = TIMEOUT_S, pause_s: float = PAUSE_S) -> None:
        self._base = f"{url.rstrip('/')}/v1/artifacts/{urllib.parse.quote(consumer, safe='')}"
        self._url, self._timeout_s, self._pause_s = url, timeout_s, pause_s
        self._away_until = self._refuses_until = 0.0

    @classmethod
    def of_environment(cls, consumer: str) -> RemoteArtifacts:
        """The service that ``WARPPLAN_URL`` names, waited for as long as ``WARPPLAN_CACHE_TIMEOUT_S`` says."""
        url = os.environ.get(URL_VARIABLE, "").strip()
        if not _names_host(url):
            warn_once(
                f"warpplan: {URL_VARIABLE}={url!r} names no service (expected http://host:port): local files only"
            )
            url = ""
        return cls(consumer, url, _timeout(os.environ.get(TIMEOUT_VARIABLE, "")))

    def get(self, key: str, names: Iterable[str], scope: str = "") -> dict[str, bytes] | None:
        """What is kept under ``key`` of the files ``names``, whole and as it was sent; ``None`` where the service is
        away. ``scope`` is the machine whose artifacts are meant, empty for those that hold everywhere."""
        query = urllib.parse.urlencode([("scope", scope), *(("name", name) for name in names)])
        reply = self._exchange(f"{_quoted(key)}?{query}")
        if reply is None:
            return None
        files = reply.get("files")
        if not isinstance(files, Mapping):
            self._left_alone("answers without files")
            return None
        return {name: data for name, kept in files.items() if (data := _opened(name, kept)) is not None}

    def put(self, key: str, name: str, data: bytes, scope: str = "") -> str | None:
        """Send ``data`` to be kept as ``name`` unless there is one already: the SHA-256 of what is kept, ``None`` where
        nobody knows."""
        if len(data) > MAX_BYTES or time.monotonic() < self._refuses_until:
            return None
        query = urllib.parse.urlencode({"name": name, "scope": scope, "sha256": hashlib.sha256(data).hexdigest()})
        reply = self._exchange(f"{_quoted(key)}?{query}", data)
        return None if reply is None else str(reply.get("sha256") or "") or None

    def keys(self) -> tuple[str, ...] | None:
        """Every key that has artifacts; ``None`` where the service is away."""
        reply = self._exchange("")
        found = None if reply is None else reply.get("keys")
        if reply is not None and not isinstance(found, list):
            self._left_alone("answers without keys")
        return tuple(map(str, found)) if isinstance(found, list) else None

    def _exchange(self, path: str, data: bytes | None = None) -> dict[str, Any] | None:
        """The reply to GET, or to PUT of ``data``, at ``path``; ``None`` where there is none to be used."""
        if not self._url or time.monotonic() < self._away_until:
            return None
        try:
            reply = json.loads(within(self._timeout_s, lambda: _read(self._base + path, data, self._timeout_s)))
        except urllib.error.HTTPError as error:
            if data is not None:  # a store that is full or read-only still serves what it has
                self._refuses_until = time.monotonic() + (0.0 if error.code in REFUSALS else self._pause_s)
                warn_once(f"warpplan: {self._url} keeps no artifacts of this job: it answers {error.code}")
            elif error.code in REFUSALS:
                warn_once(f"warpplan: {self._url} refuses a name or key of this job: it answers {error.code}")
            else:
                self._left_alone(f"answers {error.code}")
            return None
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            self._left_alone(f"does not answer: {getattr(error, 'reason', None) or error or type(error).__name__}")
            return None
        if not isinstance(reply, dict):
            self._left_alone("answers what is no object")
            return None
        return reply

    def _left_alone(self, reason: str) -> None:
        self._away_until = time.monotonic() + self._pause_s
        warn_once(f"warpplan: {self._url} {reason}: the job goes on with its local files")


def warn_once(message: str) -> None:
    """Warn with ``message`` unless this process already has."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def packed(data: bytes) -> str:
    """``data`` as it is kept and sent: compressed, in base64."""
    return base64.b64encode(zlib.compress(data, 6)).decode()


def unpacked(text: str, most: int = MAX_BYTES) -> bytes:
    """The inverse of :func:`packed`; raises ``ValueError`` for what is none, or longer than ``most``."""
    try:
        opener = zlib.decompressobj()
        data = opener.decompress(base64.b64decode(text, validate=True), most + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(str(error)) from None
    if not opener.eof or len(data) > most:
        raise ValueError("cut short, or too long")
    return data


def _opened(name: str, kept: object) -> bytes | None:
    """The bytes of one file of a reply; ``None``, with a warning, where they are not what was kept."""
    fields = kept if isinstance(kept, Mapping) else {}
    try:
        data = unpacked(str(fields.get("data", "")))
    except ValueError:
        data = b""
    if hashlib.sha256(data).hexdigest() == fields.get("sha256"):
        return data
    warn_once(f"warpplan: the service's {name} does not match its checksum: not used")
    return None


def _names_host(url: str) -> bool:
    """Whether a request can be sent to ``url``."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises for one that is no port
    except ValueError:  # a port, or brackets that do not close
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _quoted(key: str) -> str:
    return f"/{urllib.parse.quote(key, safe='')}"


def _read(url: str, data: bytes | None, timeout_s: float) -> bytes:
    headers = {} if data is None else {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, data, headers, method="GET" if data is None else "PUT")
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        return bytes(reply.read())


def _timeout(given: str) -> float:
    try:
        seconds = float(given or TIMEOUT_S)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 60:
        warn_once(f"warpplan: {TIMEOUT_VARIABLE}={given!r}: expected seconds above 0, at most 60; {TIMEOUT_S:g} taken")
        return TIMEOUT_S
    return seconds
