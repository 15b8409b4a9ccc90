"""Audit views over several ledgers (cells), in a database of the auditors' own.

Theory of operation.  PostgreSQL's postgres_fdw does the work: of each cell a server, a user mapping
for who runs this, and foreign tables of what auditors may read there; over them views called as
a ledger's own, with a column `cell` more, so that the questions of docs/audit.md are asked of all.
No ledger knows of it.

All is one transaction.  Each cell is asked for a row of everything before a view is replaced, so
one that is away changes nothing.  What an earlier run has made gives way under another name and
goes in the end; views are replaced and not dropped, and keep whom they were granted to.
"""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

import sql
from host_agent.shared.platform.files import regular_file
from host_agent.shared.platform.settings import refuse_readable
from projections.running.rights import RoleKind, rights

#: How long a cell may take to let anybody in (libpq's connect_timeout, seconds), unless told.
CONNECT_S = "10"
#: PostgreSQL's names have at most 63 bytes, and ours stand behind "old cell_".
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}\Z")
#: Asked of several cells at once, one answer of all of them is waited for as long as the slowest.
_DEFAULTS = {"connect_timeout": CONNECT_S, "async_capable": "true"}
_OF_A_USER = ("user", "password")
_NEEDED = ("host", "dbname", "user")
_HIDDEN = "********"


class FederateError(Exception):
    """Nothing was changed; the message says which cell, and why."""


class AuditedCell(NamedTuple):
    """A ledger's database: how it is reached, and as whom."""

    name: str
    server: Mapping[str, str]
    user: Mapping[str, str]


def cells_of(file: Path) -> list[AuditedCell]:
    """What a file in the form of libpq's pg_service.conf names, a section each.

    Raises FederateError, OSError, ConfigError if others may read it.
    """
    read = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=("#",), interpolation=None, default_section=""
    )
    read.optionxform = str  # type: ignore[assignment, method-assign]
    with regular_file(file) as name:
        refuse_readable(file, name.stat())
        try:
            read.read_string(name.read_text())
        except (configparser.Error, UnicodeDecodeError) as error:
            raise FederateError(f"{file} is no pg_service.conf: {_first_line(error)}") from None
    if not read.sections():
        raise FederateError(f"{file} names no cell")
    return [_cell(name, dict(read[name])) for name in read.sections()]


def _cell(name: str, given: dict[str, str]) -> AuditedCell:
    if not _NAME.match(name):
        raise FederateError(f"{name!r} cannot be a cell's name: letters, digits, '_', '.', '-'")
    if lacking := [key for key in _NEEDED if key not in given]:
        raise FederateError(f"cell {name}: {', '.join(lacking)} is not given")
    user = {key: given.pop(key) for key in _OF_A_USER if key in given}
    return AuditedCell(name, {**_DEFAULTS, **given}, user)


def federate(dsn: str, cells: list[AuditedCell], *, dry_run: bool) -> list[str]:
    """Make views of the cells in that database; the statements, without passwords.

    `dry_run`: they are carried out and taken back.  Raises FederateError, and psycopg's
    OperationalError if the database itself is away.
    """
    with psycopg.connect(dsn, application_name="attachment-ledger federate") as connection:
        [(own,)] = connection.execute(sql.query("federate", "is_a_ledger")).fetchall()
        if own:
            raise FederateError(
                "this database is a ledger's own, and its views are not to be replaced: name one "
                "of the auditors' own"
            )
        done = list(_statements(connection, cells))
        if dry_run:
            connection.rollback()
    return done


def _statements(connection: psycopg.Connection[Any], cells: list[AuditedCell]) -> Iterator[str]:
    names = [name.split(".") for name, _ in rights(RoleKind.AUDITOR)]
    promised = {
        "schemas": [name[0] if name[1:] else "public" for name in names],
        "relations": [name[-1] for name in names],
        "cells": [cell.name for cell in cells],
    }
    yield from _do(connection, "begin", promised)
    yield from _do(connection, "make_room", promised)
    for cell in cells:
        about = {**promised, "cell": cell.name, "server": json.dumps(dict(cell.server))}
        shown = {key: _HIDDEN if key == "password" else text for key, text in cell.user.items()}
        about["user"] = json.dumps(dict(cell.user))
        yield from _do(connection, "make", about, {**about, "user": json.dumps(shown)})
        list(_do(connection, "ask", about))
    yield from _do(connection, "views", promised)
    yield from _do(connection, "drop_old", promised)


def _do(
    connection: psycopg.Connection[Any],
    query: str,
    given: Mapping[str, Any],
    shown: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Carry out what the query makes.  `shown`: what it is told as, in place of what is given."""
    where = f"cell {given['cell']}: " if "cell" in given else ""
    statements = _made(connection, query, given)
    for statement, told in zip(statements, _made(connection, query, shown or given), strict=True):
        try:
            connection.execute(statement.encode())
        except psycopg.Error as error:
            raise FederateError(f"{where}{_why(error)}") from None
        yield told


def _made(connection: psycopg.Connection[Any], query: str, given: Mapping[str, Any]) -> list[str]:
    return [text for (text,) in connection.execute(sql.query("federate", query), given)]


def _why(error: psycopg.Error) -> str:
    """PostgreSQL's word, and for a connection that was not had its reason."""
    parts = (error.diag.message_primary or str(error), error.diag.message_detail)
    return ": ".join(" ".join(part.split()) for part in parts if part)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
