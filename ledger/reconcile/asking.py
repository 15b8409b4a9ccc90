"""Asking for a look, which any process may then begin: the question outlives who asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import orjson

import sql
from aggregates.base import Actor, EventContext
from projections.database_connections import DbConnection

NAME = "reconcile"


class LookRequests:
    """Takes questions for a database, which whoever looks for drift answers; all calls block."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def ask(
        self,
        scope: Mapping[str, str],
        why: str,
        context: EventContext,
        *,
        believe: Sequence[str] = (),
        reason: str | None = None,
    ) -> str:
        """Ask for a look; its id, or that of one at the same that nobody has begun yet.

        `scope`, `why`, `believe`, `reason`: as aggregates.look.Look has them.  One that believes
        something else is another look.  Raises psycopg.Error.
        """
        asked = {
            "look_id": str(uuid4()),
            "scope": orjson.dumps(dict(scope)).decode(),
            "why": why,
            "believe": orjson.dumps(sorted(set(believe))).decode(),
            "reason": reason,
            "context": orjson.dumps(_kept(context)).decode(),
            "persons": orjson.dumps(context.persons).decode(),
        }
        with DbConnection.connect(
            self.dsn, autocommit=True, application_name="attachment-ledger looks"
        ) as connection:
            [row] = connection.execute(sql.query("reconcile", "ask"), asked).fetchall()
            return str(row[0])


def _kept(context: EventContext) -> dict[str, Any]:
    """Without the sender, which a process of 0.2.0 that begins the look could not read."""
    left = ("sender", "persons", "in_time")
    kept = {name: value for name, value in asdict(context).items() if name not in left}
    return {**kept, "actor": context.actor.stored()}


def own_context() -> EventContext:
    """Of looks that nobody in particular asks for."""
    return EventContext(actor=Actor(name=NAME), request_id=f"req-{uuid4()}", cause=NAME)
