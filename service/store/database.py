"""One database: SQLite in WAL mode by default, PostgreSQL by URL; its schema brought up to date when it is opened."""

from __future__ import annotations

import os
import re
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool

from warpplan.planner.errors import StoreError
from warpplan.service.store.migrations import MIGRATIONS, migrate, require_known, version
from warpplan.service.store.store_failures import ReadOnlyStore, translated


class Database:
    """One database. Every method may raise :class:`StoreError`; writing to a read-only one raises ``ReadOnlyStore``."""

    def __init__(self, engine: Engine, name: str, *, readonly: bool) -> None:
        self.engine = engine
        self.name = name
        self.readonly = readonly

    @classmethod
    def open(cls, where: str | Path, *, timeout_s: float = 10.0, readonly: bool = False) -> Database:
        """Open or create the one at a path or a database URL, and bring it to the current schema.

        ``timeout_s`` is how long to wait for another writer, and for a server to take the connection. ``readonly``
        opens what is there and never writes to it, as is done with a file that may not be written.
        """
        place = str(where)
        if "://" in place:
            return cls._open_url(place, timeout_s, readonly)
        path = Path(place)
        # os.path: a folder that may not be looked into is what SQLite will say in its own words.
        readonly = readonly or (os.path.exists(path) and not _may_write(path))
        if path.is_dir():
            raise StoreError(f"store {place} is a folder: name a file in it", field="store", value=place)
        if not path.parent.is_dir():
            raise StoreError(f"store {place}: folder {path.parent} does not exist", field="store", value=place)
        database = cls(sqlite_engine(path, timeout_s, readonly=readonly), place, readonly=readonly)
        database._prepare()
        return database

    @classmethod
    def _open_url(cls, place: str, timeout_s: float, readonly: bool) -> Database:
        try:
            place.encode()
            url = make_url(place)
        except UnicodeEncodeError:
            raise StoreError(
                "the store's URL is not ASCII, as this process's encoding is: write it with %XX, or set PYTHONUTF8=1",
                field="store",
            ) from None
        except (ArgumentError, ValueError):  # ValueError: a port that is no number
            shown = re.sub("password=[^&]*", "password=***", re.sub("(://[^:/@]*:).*@", r"\1***@", place))
            raise StoreError(
                f"store {shown!r} is no database URL: expected a file or postgresql://user@host:port/name",
                field="store", value=shown,
            ) from None  # fmt: skip
        if url.get_backend_name() == "sqlite":
            return cls.open(url.database or "", timeout_s=timeout_s, readonly=readonly)
        name = _name_of(url)
        if url.drivername not in _POSTGRES_DRIVERS:
            raise StoreError(
                f"store {name}: expected a file or postgresql://user@host:port/name", field="store", value=name
            )
        try:
            engine = postgres_engine(url.set(drivername="postgresql+psycopg"), timeout_s)
        except ModuleNotFoundError as error:
            raise StoreError(
                f"store {name} needs the package {error.name}: pip install 'warpplan[postgres]'",
                field="store", value=name,
            ) from None  # fmt: skip
        database = cls(engine, name, readonly=readonly)
        database._prepare()
        return database

    def _prepare(self) -> None:
        try:
            with translated(self.name):
                if not self.readonly:
                    migrate(self.engine)
                    return self._require_whole()
                with self.engine.connect() as connection:
                    found = version(connection)
                require_known(found)
                if found < MIGRATIONS[-1].version:
                    raise ReadOnlyStore(
                        f"store {self.name} is read-only and has schema {found}, older than {MIGRATIONS[-1].version}: "
                        "open it for writing once, so that it is brought up to date",
                        field="store", value=found, limit=MIGRATIONS[-1].version,
                    )  # fmt: skip
                self._require_whole()
        except StoreError:
            self.close()
            raise

    def _require_whole(self) -> None:
        """Raise :class:`StoreError` where SQLite finds measured times damaged.

        An answer that was not planned before is planned again, so a lost row of ``configs`` costs time only. A
        measured time that a damaged index no longer finds would change an answer without a word. Reports are not looked
        through: of 10⁶ that would take seconds, and none is read for an answer.
        """
        if self.engine.dialect.name != "sqlite":
            return
        with self.engine.connect() as connection:
            found = connection.execute(text("PRAGMA integrity_check(measured_times)")).scalars().first()
        if found != "ok":
            raise StoreError(
                f"store {self.name} is damaged ({' '.join(str(found).split())[:120]}): restore it from a copy, or move "
                "it away and plan again",
                field="store", value=self.name,
            )  # fmt: skip

    def ping(self) -> None:
        """Raise :class:`StoreError` where the store does not answer."""
        with self.reading() as connection:
            connection.execute(text("SELECT version FROM warpplan_schema LIMIT 1")).all()

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for one consistent read."""
        with translated(self.name), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection in one transaction, committed at the end; on SQLite the only writer from its start on."""
        if self.readonly:
            writable = "make the file and its folder writable, " if self.engine.dialect.name == "sqlite" else ""
            raise ReadOnlyStore(
                f"store {self.name} is read-only: {writable}serve it without --readonly, or name another with --store",
                field="store", value=self.name,
            )  # fmt: skip
        with (
            translated(self.name),
            self.engine.connect().execution_options(warpplan_write=True) as connection,
            connection.begin(),
        ):
            yield connection


_POSTGRES_DRIVERS = ("postgres", "postgresql", "postgresql+psycopg")


def _name_of(url: URL) -> str:
    """``url`` as it may be shown: without the passwords that its user part or its query holds."""
    secret = [key for key in url.query if "password" in key.lower()]
    return url.difference_update_query(secret).render_as_string(hide_password=True)


_SILENCE_S = 10
"""Seconds until a connection counts as lost whose sent bytes are not acknowledged, and until a quiet one is probed.
Linux's own are 15 minutes and 2 hours, and a request would wait as long. On a busy network a few seconds would end
connections that work."""


def postgres_engine(url: URL, timeout_s: float) -> Engine:
    """Connections to PostgreSQL that wait ``timeout_s`` for the server, for a lock and for one another."""
    chosen = {
        "connect_timeout": max(1, round(timeout_s)), "tcp_user_timeout": 1_000 * _SILENCE_S,
        "keepalives_idle": _SILENCE_S, "keepalives_interval": 5, "keepalives_count": 3,
    }  # fmt: skip
    engine = create_engine(
        url, pool_pre_ping=True, pool_timeout=timeout_s,
        connect_args={key: value for key, value in chosen.items() if key not in url.query},
    )  # fmt: skip

    @event.listens_for(engine, "connect")
    def _opened(connection: Any, _: object) -> None:
        # Not libpq's "options": poolers such as PgBouncer refuse it, and it may be in the URL.
        connection.execute(f"SET lock_timeout = {max(1, round(1_000 * timeout_s))}")
        connection.commit()

    return engine


def sqlite_engine(path: Path, timeout_s: float, *, readonly: bool) -> Engine:
    made_wal = False

    def connect() -> sqlite3.Connection:
        # isolation_level None: the begin event below opens transactions, DDL included (the driver would not).
        connection = sqlite3.connect(
            _uri(path, readonly=readonly), uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )
        # A damaged text is not the end of the statement: its row fails its checksum.
        connection.text_factory = _lenient_text
        nonlocal made_wal
        if not readonly:
            if not made_wal:
                # The file remembers it, and to ask takes half of a lookup's time.
                connection.execute("PRAGMA journal_mode=WAL")
                made_wal = True
            # WAL with NORMAL loses no consistency, only the last commits on power loss: they can be planned again.
            connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    # To open a connection takes longer than a lookup. One that reads a file which nobody writes is not worth keeping.
    engine = create_engine("sqlite://", creator=connect, **({"poolclass": NullPool} if readonly else _POOLED))
    if not readonly:
        _reopen_where_replaced(engine, path)
        _reopen_after_fork(engine)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer that starts as a reader may fail on upgrade without waiting; IMMEDIATE waits its turn.
        write = connection.get_execution_options().get("warpplan_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _reopen_where_replaced(engine: Engine, path: Path) -> None:
    """Give up a kept connection whose file was moved away, replaced by another, or written to since it was opened: by a
    checkpoint, or by somebody who is no SQLite, which pages in its cache would hide. One that was opened for this use
    has nothing in its cache, and is kept however fast others write."""

    def state() -> tuple[int, int]:
        try:
            found = os.stat(path)
        except OSError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    @event.listens_for(engine, "connect")
    def _opened(_: object, record: ConnectionPoolEntry) -> None:
        record.info["state"], record.info["unused"] = state(), True

    @event.listens_for(engine, "checkout")
    def _taken(_: object, record: ConnectionPoolEntry, __: object) -> None:
        if not record.info.pop("unused", False) and record.info["state"] != state():
            raise DisconnectionError(f"{path} is another file now")


def _reopen_after_fork(engine: Engine) -> None:
    """A child opens connections of its own. Those that it inherits stay open: to close them is the parent's."""
    known = weakref.ref(engine)

    def forget() -> None:
        inherited = known()
        if inherited is not None:
            _INHERITED.append(inherited.pool)
            inherited.dispose(close=False)

    os.register_at_fork(after_in_child=forget)


_INHERITED: list[object] = []
_POOLED: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 8, "max_overflow": -1}
"""Eight connections are kept for as many threads; further ones are closed after use."""


def _lenient_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _uri(path: Path, *, readonly: bool) -> str:
    uri = path.absolute().as_uri()
    if not readonly:
        return uri
    # A WAL database needs its -shm file even to be read; where nobody has it open and it cannot be made, only
    # "immutable" reads it.
    return f"{uri}?mode=ro" + ("" if Path(f"{path}-wal").exists() or _may_write(path) else "&immutable=1")


def now() -> str:
    """The time as it is kept: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
