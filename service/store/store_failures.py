"""What went wrong with the store, in one line that says the way out."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

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


class ReadOnlyStore(StoreError):
    """The store can be read but not written."""


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn the database's exceptions into :class:`StoreError` about store ``name``."""
    try:
        yield
    except DBAPIError as error:
        raise _of_driver(name, error.orig) from None
    except sqlite3.Error as error:
        raise _of_driver(name, error) from None
    except UnicodeDecodeError:
        # SQLite's own message about a damaged schema holds the damaged bytes.
        raise StoreError(f"store {name} {_SQLITE[sqlite3.SQLITE_CORRUPT]}", field="store", value=name) from None
    except SQLAlchemyError as error:
        raise StoreError(f"store {name}: {_first_line(error)}", field="store", value=name) from None


def _of_driver(name: str, error: BaseException | None) -> StoreError:
    if isinstance(error, sqlite3.Error):
        # The low byte is the primary result code; the rest says more than a user needs.
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        kind = ReadOnlyStore if code == sqlite3.SQLITE_READONLY else StoreError
        return kind(f"store {name} {_SQLITE.get(code, f'fails: {_first_line(error)}')}", field="store", value=name)
    if getattr(error, "sqlstate", None) in ("25006", "42501"):  # read_only_sql_transaction, insufficient_privilege
        return ReadOnlyStore(f"store {name} is read-only: {_first_line(error)}", field="store", value=name)
    return StoreError(f"store {name} cannot be used: {_first_line(error)}", field="store", value=name)


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0]
