"""The PostgreSQL that is measured: as it is shipped, and nothing of durability switched off."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger.log import schema
from ledger.trial.embedded import EmbeddedPostgres


@contextmanager
def server() -> Iterator[str]:
    """A fresh server with the current schema, fsync and synchronous_commit on; its DSN."""
    with tempfile.TemporaryDirectory(prefix="attachment-ledger-bench-") as home:
        Path(home).chmod(0o711)  # PostgreSQL runs as another user when we are root
        with EmbeddedPostgres(fsync=True) as postgres:
            dsn = postgres.start(Path(home))
            schema.upgrade(dsn)
            yield dsn
