"""What went wrong with the store, in one line that says the way out."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from warpplan.planner.errors import StoreError

_SQLITE = {
    sqlite3.SQLITE_BUSY: "is locked by another process: wait for it to end, or name another store with --store",
    sqlite3.SQLITE_LOCKED: "is locked by another process: wait for it to end, or name another store with --store",
    sqlite3.SQLITE_READONLY: "is read-only: make the file and its folder writable, or name another store with --store",
    sqlite3.SQLITE_NOTADB: "is not a database: move the file away, or name another store with --store",
    sqlite3.SQLITE_CORRUPT: "is damaged or cut short: restore it from a copy, or move it away and plan again",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its folder exists and may be written",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_PERM: "may not be opened: check the file's permissions",
}

_BUSY = "57014", "55P03", "40P01"
"""PostgreSQL's SQLSTATEs of what another transaction kept waiting: query_canceled by a time limit, lock_not_available,
deadlock_detected."""


class ReadOnlyStore(StoreError):
    """The store can be read but not written."""


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn the database's exceptions into :class:`StoreError` about store ``name``."""
    try:
        yield
    except DBAPIError as error:
        raise _of_driver(name, error.orig, operational=isinstance(error, OperationalError)) from None
    except sqlite3.Error as error:
        raise _of_driver(name, error) from None
    except UnicodeDecodeError:
        # SQLite's own message about a damaged schema holds the damaged bytes.
        raise StoreError(f"store {name} {_SQLITE[sqlite3.SQLITE_CORRUPT]}", field="store", value=name) from None
    except PoolTimeout:
        raise StoreError(
            f"store {name} has no free connection: all that this process may open are in use: ask again later",
            field="store", value=name,
        ) from None  # fmt: skip
    except SQLAlchemyError as error:
        raise StoreError(f"store {name}: {_first_line(error)}", field="store", value=name) from None


def _of_driver(name: str, error: BaseException | None, *, operational: bool = True) -> StoreError:
    if isinstance(error, sqlite3.Error):
        # The low byte is the primary result code; the rest says more than a user needs.
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        kind = ReadOnlyStore if code == sqlite3.SQLITE_READONLY else StoreError
        return kind(f"store {name} {_SQLITE.get(code, f'fails: {_first_line(error)}')}", field="store", value=name)
    state, reason = getattr(error, "sqlstate", None), _first_line(error)
    if state == "42501":  # insufficient_privilege
        told = f"is closed to this role: {reason}: GRANT it the right, or name another role or store with --store"
        return ReadOnlyStore(f"store {name} {told}", field="store", value=name)
    if state == "25006":  # read_only_sql_transaction
        told = f"is read-only: {reason}: name the primary server or another store with --store"
        return ReadOnlyStore(f"store {name} {told}", field="store", value=name)
    if state in _BUSY:
        return StoreError(f"store {name} {_SQLITE[sqlite3.SQLITE_BUSY]}", field="store", value=name)
    way_out = ""
    if state is None and operational:  # the driver could not connect, or lost the connection
        way_out = ": check that the server runs, and the host, port, role, password and database of the URL"
    return StoreError(f"store {name} cannot be used: {reason}{way_out}", field="store", value=name)


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0]
