"""Reads of operations, now and as of a moment; and leases on those that are due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce

from handlers.engine.verbs import PUT_OFF_MAX_S
from projections.base import Row
from projections.operations import OPERATIONS
from projections.reads.log import PAGE_MAX, LogReads
from projections.running.detached import DetachedError

#: Columns that do not follow from the operation's events.
NOT_OF_A_MOMENT: Row = {"progress": [], "server_name": None}


class OperationReads(LogReads):
    """Operations, their progress, and the work that is due."""

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

    async def open_on_host(self, host: str) -> list[str]:
        """The unfinished operations that concern this host, oldest first."""
        return [row["operation_id"] for row in await self._all("open_on_host", host=host)]

    async def evacuating(self, host: str) -> list[str]:
        """The unfinished evacuations from this host."""
        rows = await self._all("open_on_host", host=host)
        return [row["operation_id"] for row in rows if row["evacuates"]]

    async def counts(self) -> Row:
        """Counts of `running`, `parked`, `due` and `leased` operations; the ages `oldest_parked_s`,
        `oldest_due_s`, `oldest_running_s` (since its start); and in how many seconds the last
        postponed one is due, `latest_due_s`.
        """
        [row] = await self._all("counts")
        return row

    async def oldest_due(self) -> Row | None:
        """The operation that is due first, also in the future: `operation_id`, `flow`, `due_at`."""
        return await self._one("oldest_due")

    # --- work that is due ---------------------------------------------------------------

    async def due(
        self, limit: int, holder: str, lease_s: float, but: Sequence[str] = ()
    ) -> list[tuple[str, str, bool]]:
        """Take leases on operations that are due and not leased, except those of the projects
        `but`.

        With each, its project ("" if none), and whether its last holder never released the lease.
        """
        rows = await self._all(
            "due",
            limit=limit,
            holder=holder,
            lease_s=lease_s,
            put_off_max_s=PUT_OFF_MAX_S,
            but=list(but),
        )
        return [(row["operation_id"], row["project_id"], row["taken_over"]) for row in rows]

    async def renew(self, holder: str, ids: Sequence[str], lease_s: float) -> list[str]:
        """Prolong leases; returns those that `holder` still has."""
        rows = await self._all("renew", holder=holder, ids=list(ids), lease_s=lease_s)
        return [row["operation_id"] for row in rows]

    async def release(self, holder: str, ids: Sequence[str]) -> None:
        """Give leases back."""
        await self._all("release", holder=holder, ids=list(ids))

    async def waiting_on_old_epoch(self) -> list[tuple[str, str]]:
        """Operations with an active run of an older epoch of its host, with that host."""
        rows = await self._all("waiting_on_old_epoch", limit=PAGE_MAX)
        return [(row["operation_id"], row["host"]) for row in rows]

    async def expire_previous_leases(self, place: str, holder: str) -> None:
        """End the leases of earlier holders in the same place."""
        await self._all("expire_previous_leases", place=place, holder=holder)
