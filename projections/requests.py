"""What requests led to, and those that were refused, which are beside the log for a while."""

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
        """What requests led to, or that they were refused, whose ids lie between two; as `named`.

        With `project_id` only what is of its servers, and only refusals of `actor`.
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
        """Who asks, with what a person is known as, from where (EventContext's `sender`), as
        events keep it, and EventContext's `persons`.  Raises psycopg.Error.
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
        """Each with how many seconds ago it was, `age_s`."""
        await self._all("note_refusals", rows=orjson.dumps(list(rows)).decode())

    async def trim_refusals(self, kept_s: float, asker_max: int, total_max: int) -> None:
        """Forget those that are older, and but the newest of each asker and in all."""
        await self._all("trim_refusals", kept_s=kept_s, asker_max=asker_max, total_max=total_max)

    async def refusal(self, request_id: str) -> Row | None:
        return await self._one("refusal", request_id=request_id)

    async def refusals_after(
        self, after: str | None, after_id: str, late_s: float, limit: int
    ) -> list[Row]:
        """Those refused behind a moment (ISO 8601), and an id of that moment, and no less than
        `late_s` ago, in order.
        """
        return await self._all(
            "refusals_after", after=after, after_id=after_id, late_s=late_s, limit=limit
        )
