"""Give a role of the database what its kind needs, and take from it what is more.

The least that does: a service that is taken over cannot change what was recorded, an auditor
reads the views that are promised and writes nothing.
"""

from __future__ import annotations

from typing import Any

import psycopg

import sql
from projections.rights import SCHEMAS, Kind, rights


class RoleError(Exception):
    """The role cannot be had as it should be; nothing was changed.  The message says why."""


def grant(dsn: str, role: str, kind: Kind) -> tuple[str, ...]:
    """Make the role what its kind is; returns the statements that were needed, none if it was.

    A role that does not exist is created, with LOGIN and no password.  To be called as the owner
    of the tables, who may create roles.  Raises RoleError.
    """
    needed = rights(kind)
    asked = {
        "role": role,
        "schemas": list(SCHEMAS[kind]),
        "names": [name for name, _ in needed],
        "privileges": [privilege for _, privilege in needed],
    }
    with psycopg.connect(dsn, application_name="attachment-ledger roles") as connection:
        try:
            return _grant(connection, role, asked)
        except psycopg.errors.InsufficientPrivilege as error:
            raise RoleError(
                f"this may be done by the owner of the tables alone, and by one who may create "
                f"roles where there is none of that name: {error.diag.message_primary}"
            ) from None


def _grant(
    connection: psycopg.Connection[Any], role: str, asked: dict[str, Any]
) -> tuple[str, ...]:
    done = []
    [unlimited] = _rows(connection, "role", asked)
    if unlimited is None:
        done += _do(connection, "create", asked)
    elif unlimited:
        raise RoleError(f"role {role} is a superuser or owns the log: rights do not limit it")
    done += _do(connection, "lacking", asked)
    done += _do(connection, "beyond", asked)
    if left := _rows(connection, "beyond", asked):
        raise RoleError(
            f"role {role} has more than it needs by PUBLIC or by a role that it is in; it would "
            f"have to be: {'; '.join(left)}"
        )
    return tuple(done)


def _do(connection: psycopg.Connection[Any], query: str, asked: dict[str, Any]) -> list[str]:
    statements = _rows(connection, query, asked)
    for statement in statements:
        connection.execute(statement)
    return statements


def _rows(connection: psycopg.Connection[Any], query: str, asked: dict[str, Any]) -> list[Any]:
    return [value for (value,) in connection.execute(sql.query("roles", query), asked)]
