"""INSERT … ON CONFLICT, in the words of the database at hand."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.expression import TableClause


def insert_new(connection: Connection, into: TableClause) -> postgresql.Insert | sqlite.Insert:
    """INSERT … ON CONFLICT DO NOTHING, in the database's own words."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(into).on_conflict_do_nothing()
    return sqlite.insert(into).on_conflict_do_nothing()


def insert_or_replace(
    connection: Connection, into: TableClause, key: Sequence[str], rest: Sequence[str]
) -> postgresql.Insert | sqlite.Insert:
    """INSERT … ON CONFLICT on the columns ``key`` DO UPDATE of the columns ``rest``."""
    statement: postgresql.Insert | sqlite.Insert
    statement = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(into)
    new = {name: statement.excluded[name] for name in rest}
    return statement.on_conflict_do_update(index_elements=list(key), set_=new)
