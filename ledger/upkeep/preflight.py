"""Whether all is at rest, before an upgrade: nothing is under way, nothing waits for a person.

Nothing has to be at rest for an upgrade to be safe (docs/log.md, "Upgrades"): this is for those
who want to know beforehand what could be blamed on it afterwards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

import sql
from ledger.log.schema import Status
from projections.catalog import ALL
from projections.running.projector import lags

#: What to look at, by reason.
_NEXT = {
    "running": "attachment-ledger operation list --state running",
    "parked": "attachment-ledger operation list --parked",
    "drift": "attachment-ledger drift list",
    "projection": "attachment-ledger projection list",
    "schema": "attachment-ledger db check",
}


class Reason(NamedTuple):
    """Why not: `about` a host (None: none), a projection, or a migration; `number` of what."""

    reason: str
    about: str | None
    number: int
    look: str


def reasons(connection: psycopg.Connection[Any], state: Status) -> list[Reason]:
    """Those against an upgrade now; a schema that this version did not make is the only one told.

    Migrations that are pending are none: applying them is the upgrade.
    """
    if odd := (*state.foreign, *state.changed):
        return [_reason("schema", name, 1) for name in odd]
    found = [
        _reason("projection", name, behind)
        for name, _, behind, *_ in lags(connection, ALL)
        if behind
    ]
    rows = connection.execute(sql.query("projections", "unrest")).fetchall()
    return found + [_reason(*row) for row in rows]


def _reason(reason: str, about: str | None, number: int) -> Reason:
    return Reason(reason, about, number, _NEXT[reason])
