"""Reads of operations, now and as of a moment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce

from projections.base import Row
from projections.operations import OPERATIONS
from projections.reads.log import PAGE_MAX, LogReads
from projections.running.detached import DetachedError

#: Columns that do not follow from the operation's events.
NOT_OF_A_MOMENT: Row = {"progress": [], "server_name": None}


class OperationReads(LogReads):
    """Operations and their progress."""

    async def operation(self, operation_id: str, *, named: bool = True) -> Row | None:
        """With the `progress` of its long steps, by run, and its server's project (`owner_id`).
        `named`: through `with_persons`.
        """
        return await self._one("operation", named=named, operation_id=operation_id)

    async def operation_at(self, operation_id: str, at: datetime) -> Row | None:
        """As of a moment, without NOT_OF_A_MOMENT; None if it had not begun.  Raises
        MomentToComeError, and DetachedError if its events are detached.
        """
        position = await self.settled_at(at)
        row = await self.operation(operation_id)
        if row is None or row["started_position"] > position:
            return None
        if row["position"] <= position:
            return {**row, **NOT_OF_A_MOMENT}
        events = await self.streams([operation_id], position)
        if not events or events[0].position != row["started_position"]:
            months = await self._all("detached", after=row["started_position"] - 1)
            raise DetachedError(months[-1]["last_position"], [each["file"] for each in months])
        followed = reduce(OPERATIONS.fold, events, None)
        [row] = await self.with_persons([{**row, **followed.row(), **NOT_OF_A_MOMENT}])
        return row

    async def operations(
        self,
        *,
        state: str | None = None,
        flow: str | None = None,
        server_id: str | None = None,
        volume_id: str | None = None,
        host: str | None = None,
        limit: int = PAGE_MAX,
        after: int | None = None,
    ) -> list[Row]:
        """Newest first; `after`: the `started_position` of the last one of the page before."""
        rows = await self._all(
            "operations",
            state=state,
            flow=flow,
            server_id=server_id,
            volume_id=volume_id,
            host=host,
            limit=limit,
            after=after,
        )
        return await self.with_persons(rows)

    async def operations_of_server(
        self,
        server_id: str,
        *,
        request_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = PAGE_MAX,
        after: int | None = None,
    ) -> list[Row]:
        """As `operations`: those of a request, or whose last event is between two moments."""
        rows = await self._all(
            "operations_of_server",
            server_id=server_id,
            request_id=request_id,
            since=since,
            until=until,
            limit=limit,
            after=after,
        )
        return await self.with_persons(rows)

    async def moves(
        self,
        flows: Sequence[str],
        *,
        server_id: str | None = None,
        project_id: str | None = None,
        after: int | None = None,
        limit: int = PAGE_MAX,
    ) -> list[Row]:
        """Operations of these flows, newest first, with their progress in bytes, and what confirmed
        or reverted a resize (`settled_flow`, `settled_outcome`).  `project_id`: the server's.
        """
        rows = await self._all(
            "moves",
            flows=list(flows),
            server_id=server_id,
            project_id=project_id,
            after=after,
            limit=limit,
        )
        return await self.with_persons(rows)

    async def note_progress(
        self, host: str, operation_id: str, run: int, done_bytes: int, total_bytes: int
    ) -> bool:
        """Store the progress of a run; False if the host has no such active run."""
        rows = await self._all(
            "note_progress",
            host=host,
            operation_id=operation_id,
            run=run,
            done_bytes=done_bytes,
            total_bytes=total_bytes,
        )
        return bool(rows)
