"""One database: SQLite in WAL mode by default, PostgreSQL by URL; its schema brought up to date when it is opened."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
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

        ``timeout_s`` is how long to wait for another writer. ``readonly`` opens what is there and never writes to it,
        as is done with a file that may not be written.
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
        except ArgumentError:
            raise StoreError(
                f"store {place!r} is no database URL: expected a file or postgresql://user@host/name",
                field="store", value=place,
            ) from None  # fmt: skip
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        elif url.get_backend_name() == "sqlite":
            return cls.open(url.database or "", timeout_s=timeout_s, readonly=readonly)
        name = url.render_as_string(hide_password=True)
        if url.get_backend_name() != "postgresql":
            raise StoreError(f"store {name}: expected a file or postgresql://user@host/name", field="store", value=name)
        try:
            engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": max(1, round(timeout_s))})
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
            raise ReadOnlyStore(
                f"store {self.name} is read-only: make the file and its folder writable, serve it without --readonly, "
                "or name another with --store",
                field="store", value=self.name,
            )  # fmt: skip
        with (
            translated(self.name),
            self.engine.connect().execution_options(warpplan_write=True) as connection,
            connection.begin(),
        ):
            yield connection


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
