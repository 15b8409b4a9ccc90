"""Asking for a look, which any process may then begin: the question outlives who asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from uuid import uuid4

import orjson

from aggregates.base import Actor, EventContext
from ledger.reconcile.look import PART, WHOLE
from projections.queries import Queries

#: For looks that nobody in particular asks for.
NAME = "reconcile"


async def ask(
    queries: Queries, scope: Mapping[str, str], why: str, context: EventContext | None = None
) -> str:
    """Ask for a look, and return its id; one at the same that has not begun yet will do.

    `scope`, `why`: as aggregates.look.Look has them.  `context`: of who asks; None: the service.
    """
    look_id = str(uuid4())
    context = context or EventContext(
        actor=Actor(name=NAME), request_id=f"req-{look_id}", cause=NAME
    )
    return await queries.ask_look(
        look_id, orjson.dumps(dict(scope)).decode(), why, orjson.dumps(asdict(context)).decode()
    )


async def waiting(queries: Queries, interval_s: float) -> list[str]:
    """Which kinds of look there are to begin, or to go on with; asks for one that is due.

    `interval_s`: between looks at everything; 0: none are due.
    """
    if interval_s and await queries.look_overdue(interval_s):
        await ask(queries, {}, "schedule")
    return await queries.looks_waiting(WHOLE, PART)
