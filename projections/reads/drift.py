"""Reads of findings, now and as of a moment, and of looks.

As of a moment, findings are folded from the log up to there, so that an answer never changes
(decision 0050).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from aggregates.finding import Finding
from handlers.results.presence import (
    SHOW_GUESTS,
    SHOW_VOLUMES,
    STOP_REPAIRS,
    OthersShown,
    ShowingFinding,
)
from projections.base import Row
from projections.findings import FINDINGS
from projections.looks import kind_of
from projections.reads.log import PAGE_MAX, POSITION_MAX, LogReads

#: The events that begin and end a finding.
_BOUNDS = [
    Finding.DriftFound.TOPIC,
    Finding.DriftGone.TOPIC,
    Finding.DriftRepaired.TOPIC,
]
#: The columns that were empty while it was open.
_NOT_OVER = dict.fromkeys(("over_at", "over_position", "over_how", "repaired_by"))


@dataclass(frozen=True, kw_only=True)
class DriftFilter:
    """A filter of findings; None: any."""

    drift_class: str | None = None
    severity: str | None = None
    server_id: str | None = None
    volume_id: str | None = None
    host: str | None = None


ANY = DriftFilter()


class DriftReads(LogReads):
    """Findings, remnants and parked operations as one list; and looks."""

    async def drift(
        self,
        wanted: DriftFilter = ANY,
        *,
        state: str = "open",
        limit: int = PAGE_MAX,
        after: int | None = None,
    ) -> list[Row]:
        """Newest first; `after`: the `found_position` of the last one of the page before.

        `state`: a FindingState, "all", or "open": suspected or confirmed.
        """
        return await self._all("drift", **vars(wanted), state=state, limit=limit, after=after)

    async def drift_at(
        self,
        at: datetime,
        wanted: DriftFilter = ANY,
        *,
        limit: int = PAGE_MAX,
        after: int | None = None,
    ) -> list[Row]:
        """What differed at a moment, as it was known then, also ignored findings; newest first.

        Projections must have reached that moment.  Raises MomentToComeError.
        """
        position = await self.settled_at(at)
        rows = await self._all(
            "drift_at",
            position=position,
            bounds=_BOUNDS,
            found=Finding.DriftFound.TOPIC,
            **vars(wanted),
            limit=limit,
            after=after,
        )
        folded = await self._findings_at(position, [row["finding_id"] for row in rows])
        return [folded.get(row["finding_id"]) or _as_it_began(row) for row in rows]

    async def _findings_at(self, position: int, ids: Sequence[str]) -> dict[str, Row]:
        """The rows of these findings at a position of the log."""
        rows: dict[str, Row] = {}
        for event in await self.streams(ids, position) if ids else ():
            if event.topic in FINDINGS.topics:
                key = event.originator_id
                rows[key] = FINDINGS.fold(rows.get(key), event)
        return rows

    async def drift_one(self, finding_id: str, at: datetime | None = None) -> Row | None:
        """The finding; `owner_id`: the project of its server.

        `at`: as it was known then; None if it was not.  Raises MomentToComeError.
        """
        position = None if at is None else await self.settled_at(at)
        row = await self._one("drift_one", finding_id=finding_id, position=position)
        if row is None or position is None:
            return row
        if row["look_id"] is not None:
            return {**row, **(await self._findings_at(position, [finding_id]))[finding_id]}
        is_over = (row["over_position"] or POSITION_MAX) <= position
        return row if is_over else _as_it_began(row)

    async def drift_counts(self) -> list[Row]:
        """Counts of what is not over, by `drift_class` and `state`: `count`, `oldest_s`."""
        return await self._all("drift_counts")

    async def remnants(
        self,
        *,
        state: str | None = None,
        server_id: str | None = None,
        host: str | None = None,
        limit: int = PAGE_MAX,
        after: int | None = None,
    ) -> list[Row]:
        """Newest first; `after`: the `left_position` of the last one of the page before."""
        return await self._all(
            "remnants", state=state, server_id=server_id, host=host, limit=limit, after=after
        )

    async def remnant(self, remnant_id: str) -> Row | None:
        return await self._one("remnant", remnant_id=remnant_id)

    async def shown(self, server_id: str, volume_ids: Sequence[str]) -> Sequence[ShowingFinding]:
        """The open findings that show the server's guest, or one of the volumes, on a host."""
        return (await self.sightings(server_id, volume_ids)).findings

    async def sightings(self, server_id: str, volume_ids: Sequence[str]) -> OthersShown:
        """As `shown`, and the hosts in doubt, as of one moment."""
        rows = await self._all(
            "sightings",
            server_id=server_id,
            volume_ids=list(volume_ids),
            guests=sorted(SHOW_GUESTS),
            volumes=sorted(SHOW_VOLUMES | STOP_REPAIRS),
        )
        return OthersShown(
            findings=[ShowingFinding.of(row) for row in rows if row["finding_id"] is not None],
            in_doubt=[row["host"] for row in rows if row["finding_id"] is None],
        )

    async def unaccounted(self, server_id: str) -> list[str]:
        """The hosts without a survey, requested since the server's last event, that shows that they
        do not have its guest.
        """
        return [row["host"] for row in await self._all("unaccounted", server_id=server_id)]

    async def unfenced(self) -> list[str]:
        """The names of all hosts that are not fenced."""
        return [row["host"] for row in await self._all("unfenced")]

    async def in_doubt(self) -> list[str]:
        """The names of the hosts in doubt (Host.in_doubt)."""
        return [row["host"] for row in await self._all("in_doubt")]

    async def hosts_of_server(self, server_id: str) -> list[str]:
        """All hosts that ever had a volume of the server."""
        return [row["host"] for row in await self._all("hosts_of_server", server_id=server_id)]

    async def repairs_so_far(self, actor: str, since: datetime, host: str | None) -> Row:
        """Counts of the operations that an actor has started since: `begun`, `begun_there` (on a
        host); and of the host's attachments, `attachments_there`.
        """
        after = await self.position_at(since)
        [row] = await self._all("repairs_so_far", actor=actor, after=after, host=host)
        return row

    async def looks(
        self,
        *,
        state: str | None = None,
        limit: int = PAGE_MAX,
        after: int | None = None,
    ) -> list[Row]:
        """Newest first; `after`: the `began_position` of the last one of the page before.

        For one in progress: `done` of about `total` objects, at `rate` a second.
        """
        rows = await self._all("looks", state=state, limit=limit, after=after)
        return await self.with_persons(rows)

    async def look(self, look_id: str) -> Row | None:
        """Also a requested one that has not begun; its `state` is "asked"."""
        row = await self._one("look", named=True, look_id=look_id)
        if row is None or row["state"] is not None:
            return row
        return _asked(look_id, row)

    async def looks_asked(self, limit: int) -> list[Row]:
        """Requested looks that have not begun, oldest first, in the form of `look`."""
        rows = await self.with_persons(await self._all("looks_asked", limit=limit))
        return [_asked(row["asked_id"], row) for row in rows]

    async def looks_by_outcome(self) -> dict[str, int]:
        """Counts of ended looks by outcome."""
        return {row["outcome"]: row["count"] for row in await self._all("looks_by_outcome")}

    async def held_back(self) -> dict[str, int]:
        """Counts of the findings that the last completed full look suppressed, by class."""
        return next((row["braked"] for row in await self._all("held_back")), {})

    async def last_looks(self) -> dict[str, float]:
        """By kind: seconds since the end of the last completed look."""
        return {row["kind"]: row["age_s"] for row in await self._all("last_looks")}

    async def look_overdue(self, interval_s: float) -> bool:
        """Whether the last full look began longer ago than that."""
        [row] = await self._all("overdue", group="reconcile", interval_s=interval_s)
        return bool(row["overdue"])

    async def looks_waiting(self, whole: str, part: str) -> list[str]:
        """The kinds of look of which one can begin or continue."""
        rows = await self._all("waiting", group="reconcile", whole=whole, part=part)
        return [row["name"] for row in rows]

    async def looks_stopped(self) -> list[str]:
        """The kinds of look of which an operator has stopped the present one."""
        return [row["name"] for row in await self._all("stopped", group="reconcile")]


def _asked(look_id: str, row: Row) -> Row:
    """The row of a requested look that has not begun."""
    scope = row["asked_scope"]
    asked = {"look_id": look_id, "scope": scope, "kind": kind_of(scope), "state": "asked"}
    order = {name: row[f"asked_{name}"] for name in ("why", "believe", "reason")}
    return {**row, **asked, **order}


def _as_it_began(row: Row) -> Row:
    """A remnant, or a parking, while it was open: it never changes before its end."""
    begun = {"updated_at": row["found_at"], "position": row["found_position"]}
    return {**row, **begun, **_NOT_OVER, "state": "confirmed"}
