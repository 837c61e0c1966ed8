"""Files of consumers' caches: the first to bring one under its key wins, and damaged ones are as good as missing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, column, delete, func, select, table

from warpplan.planner.errors import InvalidInput, UnknownName, WarpplanError
from warpplan.service.store.checksums import ARTIFACT, checksum, intact
from warpplan.service.store.database import Database, now
from warpplan.service.store.upserts import insert_new

ARTIFACTS = table("artifacts", *(column(name) for name in (*ARTIFACT, "created_at", "checksum")))
_A = ARTIFACTS.c
MAX_TOTAL_BYTES = 4 << 30
"""Bytes of all bodies as they are kept. Beyond, the oldest keys are given up: what is lost is compiled again."""

MAX_ANSWER_BYTES = 64 << 20
"""Bytes of all bodies in one answer; the parts of a kernel have a few megabytes."""


@dataclass(frozen=True)
class ArtifactKey:
    """Where files are kept: the ``consumer`` whose cache it is, its ``key``, and the machine (``scope``) that they are
    for, empty where they hold everywhere."""

    consumer: str
    key: str
    scope: str = ""


@dataclass(frozen=True)
class Artifact:
    """A file: ``body`` as it is kept and sent (zlib, base64), ``size_bytes`` and ``sha256`` of the file itself."""

    name: str
    body: str
    size_bytes: int
    sha256: str


class UnknownArtifact(UnknownName):
    """Nothing is kept under this key."""

    def __init__(self, place: ArtifactKey) -> None:
        WarpplanError.__init__(
            self, f"nothing of {place.consumer} is kept under {place.key[:80]!r}", field="key", value=place.key
        )


class Artifacts:
    """Files in one ``database``, together at most ``max_total_bytes``. Every method may raise :class:`StoreError`."""

    def __init__(self, database: Database, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._database = database
        self._most = max_total_bytes

    def get(self, place: ArtifactKey, names: Iterable[str]) -> dict[str, Artifact]:
        """Those of ``names`` that are kept whole. Raises :class:`InvalidInput` where together they are more than an
        answer may hold."""
        chosen = (*_at(place), _A.name.in_(list(names)))
        query = select(ARTIFACTS).where(*chosen)
        with self._database.reading() as connection:
            total = int(
                connection.execute(select(func.coalesce(func.sum(_A.kept_bytes), 0)).where(*chosen)).scalar_one()
            )
            if total > MAX_ANSWER_BYTES:
                raise InvalidInput(
                    f"the files named are {total} bytes: at most {MAX_ANSWER_BYTES} at once, ask for fewer",
                    field="name", value=total, limit=MAX_ANSWER_BYTES,
                )  # fmt: skip
            rows = connection.execute(query).mappings().all()
        return {
            row["name"]: Artifact(row["name"], row["body"], row["size_bytes"], row["sha256"])
            for row in rows
            if intact(ARTIFACT, row)
        }

    def put(self, place: ArtifactKey, artifact: Artifact) -> tuple[Artifact, bool]:
        """Keep ``artifact`` unless its name is taken: what holds, and whether it was kept now.

        Raises :class:`InvalidInput` where it alone is more than the store may hold.
        """
        size = len(artifact.body)
        if size > self._most:
            raise InvalidInput(
                f"{artifact.name} takes {size} bytes: the store holds at most {self._most} of all artifacts",
                field="body", value=size, limit=self._most,
            )  # fmt: skip
        row = {
            "consumer": place.consumer, "key": place.key, "scope": place.scope, "name": artifact.name,
            "size_bytes": artifact.size_bytes, "sha256": artifact.sha256, "kept_bytes": size, "body": artifact.body,
            "created_at": now(),
        }  # fmt: skip
        row["checksum"] = checksum(ARTIFACT, row)
        query = select(ARTIFACTS).where(*_at(place), _A.name == artifact.name)
        with self._database.writing() as connection:
            held = connection.execute(query).mappings().first()
            if held is not None and intact(ARTIFACT, held):
                return Artifact(held["name"], held["body"], held["size_bytes"], held["sha256"]), False
            connection.execute(delete(ARTIFACTS).where(*_at(place), _A.name == artifact.name))
            self._make_space(connection, size, place)
            connection.execute(insert_new(connection, ARTIFACTS).values(row))
        return artifact, True

    def keys(self, consumer: str, most: int) -> tuple[str, ...]:
        """The keys of ``consumer`` that have files, the ``most`` newest, newest first."""
        newest = func.max(_A.created_at).desc()
        query = select(_A.key).where(_A.consumer == consumer).group_by(_A.key).order_by(newest, _A.key).limit(most)
        with self._database.reading() as connection:
            return tuple(connection.execute(query).scalars())

    def forget(self, consumer: str, key: str) -> None:
        """Remove every file under ``key``, of all machines. Raises :class:`UnknownArtifact` where there is none."""
        with self._database.writing() as connection:
            done = connection.execute(delete(ARTIFACTS).where(_A.consumer == consumer, _A.key == key))
            if done.rowcount == 0:
                raise UnknownArtifact(ArtifactKey(consumer, key))

    def _make_space(self, connection: Connection, size: int, place: ArtifactKey) -> None:
        """Give up the oldest keys, but that of ``place``, until ``size`` more bytes fit."""
        total = int(connection.execute(select(func.coalesce(func.sum(_A.kept_bytes), 0))).scalar_one())
        if total + size <= self._most:
            return
        ages = (
            select(_A.consumer, _A.key, func.sum(_A.kept_bytes))
            .group_by(_A.consumer, _A.key)
            .order_by(func.min(_A.created_at), _A.consumer, _A.key)
        )
        for consumer, key, held in connection.execute(ages).all():
            if total + size <= self._most:
                break
            if (consumer, key) != (place.consumer, place.key):
                connection.execute(delete(ARTIFACTS).where(_A.consumer == consumer, _A.key == key))
                total -= int(held)


def artifact(name: str, data: bytes, body: str) -> Artifact:
    """The file ``name`` of ``data``, whose kept form is ``body``."""
    return Artifact(name, body, len(data), hashlib.sha256(data).hexdigest())


def _at(place: ArtifactKey) -> tuple[Any, ...]:
    return (_A.consumer == place.consumer, _A.key == place.key, _A.scope == place.scope)
