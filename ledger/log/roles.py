"""Grant a role of the database what its kind needs, and revoke what it has beyond that.

Least privilege: a service that is compromised cannot change what was recorded; an auditor
reads the documented views and writes nothing.
"""

from __future__ import annotations

from typing import Any

import psycopg

import sql
from projections.running.rights import SCHEMAS, RoleKind, rights


class RoleError(Exception):
    """The role's rights cannot be set; nothing was changed.  The message says why."""


def grant(dsn: str, role: str, kind: RoleKind) -> tuple[str, ...]:
    """Set the role's rights to those of its kind; returns the statements that this needed.

    A role that does not exist is created, with LOGIN and no password.  The DSN's user must own
    the tables, and may create roles.  Raises RoleError.
    """
    needed = rights(kind)
    parameters = {
        "role": role,
        "schemas": list(SCHEMAS[kind]),
        "names": [name for name, _ in needed],
        "privileges": [privilege for _, privilege in needed],
    }
    with psycopg.connect(dsn, application_name="attachment-ledger roles") as connection:
        try:
            return _grant(connection, role, parameters)
        except psycopg.errors.InsufficientPrivilege as error:
            raise RoleError(
                "this needs the owner of the tables and, where the role does not exist, the "
                f"right to create roles: {error.diag.message_primary}"
            ) from None
        except (psycopg.errors.ReservedName, psycopg.errors.SyntaxError) as error:
            raise RoleError(f"no role can have this name: {error.diag.message_primary}") from None


def _grant(
    connection: psycopg.Connection[Any], role: str, parameters: dict[str, Any]
) -> tuple[str, ...]:
    done = []
    [unlimited] = _rows(connection, "role", parameters)
    if unlimited is None:
        done += _do(connection, "create", parameters)
    elif unlimited:
        raise RoleError(f"role {role} is a superuser or owns the log: rights do not limit it")
    done += _do(connection, "lacking", parameters)
    done += _do(connection, "beyond", parameters)
    if left := _rows(connection, "beyond", parameters):
        raise RoleError(
            f"role {role} has more than it needs by PUBLIC or by a role that it is in; this "
            f"would be needed: {'; '.join(left)}"
        )
    return tuple(done)


def _do(connection: psycopg.Connection[Any], query: str, parameters: dict[str, Any]) -> list[str]:
    statements = _rows(connection, query, parameters)
    for statement in statements:
        connection.execute(statement)
    return statements


def _rows(connection: psycopg.Connection[Any], query: str, parameters: dict[str, Any]) -> list[Any]:
    return [value for (value,) in connection.execute(sql.query("roles", query), parameters)]
