"""Bring a database to the schema of this code, and refuse to work on any other.

Migrations only go forward.  Each runs in a transaction that also records its name and
checksum; a lock lets any number of processes start at once.  A migration must not change after
it was applied: a database that another text has made is refused.

Nor does one stop the service: it gives up a lock that it does not get in 2 s, because all that ask
for the table later wait behind it, and tries again until no long transaction is in the way.

The end of a migration's name says what it asks of the versions before it.  After an `.expand`
they work on: it only adds, and nothing that they would have to fill.  A `.contract` takes away or
changes what they use, so they refuse the database.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

import sql

log = structlog.get_logger(__name__)

SERVER_VERSION_MIN = 150000
EXPAND = ".expand"
LOCK_PAUSE_S = 1.0  # in which those who waited behind it go on; no event tells of a free lock
_LOCK_KEY = 0x617474_6C6467  # "attldg": advisory locks have numbers, not names


class SchemaError(Exception):
    """The database does not have the schema that this version of the ledger works on."""


@dataclass(frozen=True)
class Status:
    """Where a database stands, by names of migrations."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]
    unknown: tuple[str, ...]  # applied by newer code
    changed: tuple[str, ...]  # applied with another text

    @property
    def foreign(self) -> tuple[str, ...]:
        """Those of the unknown that this code cannot work with."""
        return tuple(name for name in self.unknown if not name.endswith(EXPAND))

    @property
    def current(self) -> bool:
        """Whether this code can work on it."""
        return not (self.pending or self.foreign or self.changed)


def upgrade(dsn: str) -> tuple[str, ...]:
    """Apply what is pending and return its names.

    Raises SchemaError, and changes nothing, if the server is too old, the database too new
    for this code or made by another text, or a migration refuses what it finds.
    """
    with _connect(dsn) as connection:
        _run(connection, "lock", key=_LOCK_KEY)
        _refuse_old_server(connection)
        _run(connection, "create_table")
        state = _status(connection)
        _refuse_foreign(state)
        for name in state.pending:
            while not _apply(connection, name, sql.migrations()[name]):
                log.warning(
                    "migration_waits",
                    name=name,
                    why="a transaction, or autovacuum, uses its tables",
                )
                time.sleep(LOCK_PAUSE_S)
        return state.pending


def status(dsn: str) -> Status:
    """Where the database stands; changes nothing."""
    with _connect(dsn) as connection:
        return _status(connection)


def check(dsn: str) -> None:
    """Raise SchemaError, saying what to run, unless this code can work on the schema."""
    state = status(dsn)
    _refuse_foreign(state)
    if state.pending:
        raise SchemaError(
            f"The database lacks {', '.join(state.pending)}. Run: attachment-ledger db upgrade"
        )


def _refuse_foreign(state: Status) -> None:
    if state.foreign:
        raise SchemaError(
            f"The database was upgraded by another version ({', '.join(state.foreign)} is not "
            "known here). Run that version, or restore a backup made before the upgrade."
        )
    if state.changed:
        raise SchemaError(
            f"The database was upgraded with a different text of {', '.join(state.changed)}. "
            "Run the version that upgraded it; released migrations must never be edited."
        )


def _refuse_old_server(connection: psycopg.Connection[Any]) -> None:
    [(version,)] = _run(connection, "server_version")
    if version < SERVER_VERSION_MIN:
        raise SchemaError(
            f"PostgreSQL {version // 10000} is too old: the ledger needs "
            f"{SERVER_VERSION_MIN // 10000} or newer."
        )


def _status(connection: psycopg.Connection[Any]) -> Status:
    [(exists,)] = _run(connection, "exists")
    applied = dict(_run(connection, "applied")) if exists else {}
    known = {name: checksum(text) for name, text in sql.migrations().items()}
    return Status(
        applied=tuple(applied),
        pending=tuple(name for name in known if name not in applied),
        unknown=tuple(name for name in applied if name not in known),
        changed=tuple(name for name in known if applied.get(name, known[name]) != known[name]),
    )


def _apply(connection: psycopg.Connection[Any], name: str, text: str) -> bool:
    """False, and nothing is changed, if others were in the way."""
    try:
        with connection.transaction():
            _run(connection, "patience")
            connection.execute(text.encode())
            _run(connection, "record", name=name, checksum=checksum(text))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return False
    except psycopg.errors.RaiseException as error:  # the migration itself refuses
        raise SchemaError(f"{error.diag.message_primary} {error.diag.message_hint}") from None
    return True


def checksum(text: str) -> str:
    """SHA-256 of a migration, its includes expanded."""
    return hashlib.sha256(text.encode()).hexdigest()


def _connect(dsn: str) -> psycopg.Connection[Any]:
    """Raises SchemaError if texts would not come back as they were stored."""
    made = psycopg.connect(dsn, autocommit=True, application_name="attachment-ledger migrations")
    encoding = made.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        made.close()
        raise SchemaError(
            f"The database has the encoding {encoding}: the ledger needs UTF8. Make it anew with: "
            "createdb --encoding UTF8 --lc-collate C --template template0"
        )
    return made


def _run(connection: psycopg.Connection[Any], query: str, /, **parameters: Any) -> list[Any]:
    cursor = connection.execute(sql.query("migrations", query), parameters or None)
    return cursor.fetchall() if cursor.description else []
