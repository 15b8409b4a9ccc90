"""What requests led to; and refused requests, which are kept outside the log for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from aggregates.base import Actor
from projections.base import Row
from projections.reads.log import LogReads


class RequestReads(LogReads):
    """Part of `projections.reads.queries.Queries`."""

    async def requested(
        self, low: str, high: str, actor: Actor, *, project_id: str | None
    ) -> list[Row]:
        """What the requests with ids from `low` to `high` led to, as `named`; refused ones too.

        With `project_id` only what concerns its servers, and only refusals of `actor`.
        """
        return await self._all(
            "requested",
            low=low,
            high=high,
            actor=actor.name,
            user_id=actor.user_id,
            project_id=project_id,
        )

    async def asker(self, actor: Actor, sender: Row) -> tuple[Actor, Row, tuple[Row, ...]]:
        """The actor and the sender (EventContext) as events store them, with hashes in the place of
        a person, and the rows for EventContext's `persons`.  Raises psycopg.Error.
        """
        if actor.user_id is None:
            return actor, sender, ()
        who: dict[str, Any] = {"user_id": actor.user_id, "name": actor.name or actor.user_id}
        who |= {name: sender[name] or "" for name in ("address", "agent")}
        person, place = rows = await self._all("met", group="persons", **who)
        actor = replace(actor, known_as=person["known_as"])
        sender = {"address": place["known_as"], "agent": None}  # one is enough to find both
        return actor, sender, tuple(row for row in rows if row["salt"] is not None)

    async def note_refusals(self, rows: Sequence[Row]) -> None:
        """Each row has its age in seconds, `age_s`."""
        await self._all("note_refusals", rows=orjson.dumps(list(rows)).decode())

    async def trim_refusals(self, kept_s: float, asker_max: int, total_max: int) -> None:
        """Delete those older than `kept_s`, and the oldest beyond the limits of asker and all."""
        await self._all("trim_refusals", kept_s=kept_s, asker_max=asker_max, total_max=total_max)

    async def refusal(self, request_id: str) -> Row | None:
        return await self._one("refusal", request_id=request_id)

    async def refusals_after(
        self, after: str | None, after_id: str, late_s: float, limit: int
    ) -> list[Row]:
        """In order, those refused after a moment (ISO 8601) and an id of that moment, and at least
        `late_s` ago.
        """
        return await self._all(
            "refusals_after", after=after, after_id=after_id, late_s=late_s, limit=limit
        )
