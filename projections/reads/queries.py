"""Reads for the API and the dispatcher: one method for each query.

Rows are dicts with ids as strings, aware datetimes and parsed JSON.  Every list has at most
PAGE_MAX rows, whatever `limit` is.  sql/queries/reads.sql has the SQL, and the index of each query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from psycopg import AsyncConnection
from psycopg import sql as compose
from psycopg_pool import AsyncConnectionPool

from projections.base import Row
from projections.catalog import ALL
from projections.database_connections import POOL_RECONNECT_S, AsyncDbConnection
from projections.reads.drift import DriftReads
from projections.reads.log import PAGE_MAX, POSITION_MAX
from projections.reads.operations import OperationReads
from projections.reads.requests import RequestReads
from projections.reads.server_lists import ServerLists
from projections.reads.surveys import SurveyReads
from projections.running.rights import RoleKind, rights
from projections.running.tables import prepare

POOL_CONNECTIONS_MAX = 8
POOL_WAIT_S = 10.0

Servers = Literal["servers_with_volumes", "servers_on_old_flow"]


def read_pool(dsn: str) -> AsyncConnectionPool[AsyncDbConnection]:
    """A pool for `Queries`; open it with `async with` in the event loop that uses it."""

    async def configure(connection: AsyncConnection[Any]) -> None:
        prepare(connection)

    return AsyncConnectionPool(
        dsn,
        connection_class=AsyncDbConnection,
        min_size=1,
        max_size=POOL_CONNECTIONS_MAX,
        timeout=POOL_WAIT_S,
        reconnect_timeout=POOL_RECONNECT_S,
        kwargs={"autocommit": True, "application_name": "attachment-ledger reads"},
        configure=configure,
        open=False,
    )


class Cursor(NamedTuple):
    """Where a page begins: after a position, in the list's order."""

    after: int | None = None
    newest_first: bool = False


OLDEST_FIRST = Cursor()


class Whose(TypedDict, total=False):
    """A filter of attachments; None: any."""

    host: str | None
    volume_id: str | None
    server_id: str | None


_ANYBODYS: Whose = {"host": None, "volume_id": None, "server_id": None}

_OPEN: Row = {"to_position": None, "to_at": None, "to_seen": None}


def _ended(span: Row, known: datetime | None) -> bool:
    return span["to_at"] is not None and (known is None or span["to_at"] <= known)


def _certain(span: Row, at: datetime, since: datetime) -> bool:
    """Whether it had certainly begun by `at` and was not over by `since`; an observed begin or end
    is known only as an interval.
    """
    begun, over = span["from_at"], span["to_at"]
    if span["from_seen"] is not None:
        begun = datetime.fromisoformat(span["from_seen"]["before"])
    if span["to_seen"] is not None:
        after = span["to_seen"]["after"]
        over = datetime.fromisoformat(after) if after else since
    return begun <= at and (over is None or over > since)


class Queries(SurveyReads, DriftReads, OperationReads, ServerLists, RequestReads):
    """All reads of the service."""

    # --- servers and their volumes ------------------------------------------------------

    async def instance(self, server_id: str) -> Row | None:
        """A server, with the last contact of its host's agent, `host_seen_at` (None: never)."""
        return await self._one("instance", named=True, server_id=server_id)

    async def ours(self, server_ids: list[str]) -> list[Row]:
        """For each, `ours`: whether it is the ledger's own; `late`: that is not projected yet."""
        return await self._all("ours", ids=server_ids)

    async def named(
        self, text: str, low: str | None, high: str | None, *, project_id: str | None = None
    ) -> list[Row]:
        """Objects with an id from `low` to `high`, or the name `text`: `kind`, `id`, `name`.

        With `project_id` only what belongs to that project's servers.
        """
        return await self._all("named", text=text, low=low, high=high, project_id=project_id)

    async def mappings(
        self, server_id: str, limit: int = PAGE_MAX, offset: int = 0, *, legacy: bool = True
    ) -> list[Row]:
        """The server's mappings with a volume, in the order of creation.

        `legacy`: also those of Cinder's old calls.
        """
        return await self._all(
            "mappings", server_id=server_id, limit=limit, offset=offset, legacy=legacy
        )

    async def mapping(self, server_id: str, volume_id: str) -> Row | None:
        return await self._one("mapping", server_id=server_id, volume_id=volume_id)

    async def pair(self, server_id: str, volume_id: str) -> Row | None:
        """A server, its mapping of a volume (columns None: there is none), and the attachments by
        which a host may have the volume now (`connected`).  None: there is no such server.

        `host_seen_at`: the last contact of its host's agent.  `shown`: the host shows the volume in
        the guest, and no mapping explains that.
        """
        return await self._one("pair", server_id=server_id, volume_id=volume_id)

    async def attachment(self, attachment_id: str) -> Row | None:
        return await self._one("attachment", attachment_id=attachment_id)

    async def attachments(
        self,
        *,
        volume_id: str | None = None,
        server_id: str | None = None,
        host: str | None = None,
        legacy: bool | None = None,
        open_only: bool = False,
        limit: int = PAGE_MAX,
        page: Cursor = OLDEST_FIRST,
    ) -> list[Row]:
        """In the order of creation, or backwards; `legacy`: only (or none) of the old calls."""
        after, newest_first = page
        if after is None:
            after = POSITION_MAX if newest_first else 0
        way, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        return await self._all(
            "attachments",
            {"way": compose.SQL(way), "beyond": compose.SQL(beyond)},
            volume_id=volume_id,
            server_id=server_id,
            host=host,
            legacy=legacy,
            open_only=open_only,
            limit=limit,
            after=after,
        )

    async def attachments_at(
        self,
        at: datetime | None,
        *,
        since: datetime | None = None,
        known_at: datetime | None = None,
        legacy: bool | None = None,
        limit: int = PAGE_MAX,
        **where: Unpack[Whose],
    ) -> list[Row]:
        """The spans that were open at a moment, with `legacy` of their attachments: of a volume
        (on a host), on a host, or of Cinder's old calls anywhere.  `since`: at any moment from then
        to `at` (None: now), newest first.

        As known at `at`, or at `known_at`, which is not earlier; later ends are left out, so the
        answer never changes.  `known_at` adds what was true at `at` and was observed only later;
        `certain` is False if it only may have been true.
        """
        asked: dict[str, Any] = {**_ANYBODYS, **where, "limit": limit, "legacy": legacy}
        asked |= {"at": at or "infinity", "since": since or at, "known": known_at}
        asked["way"] = 1 if since is None else -1
        if asked["volume_id"] is not None:
            name = "held_at"
        else:
            name = "on_old_flow_at" if asked["host"] is None else "open_at"
        rows = await self._all(name, **asked)
        known = known_at or at
        rows = [row if _ended(row, known) else {**row, **_OPEN} for row in rows]
        if known_at is None or at is None:
            return rows
        return [{**row, "certain": _certain(row, at, since or at)} for row in rows]

    # --- hosts -----------------------------------------------------------

    async def servers(
        self, which: Servers, host: str | None = None, after: str | None = None, *, limit: int
    ) -> list[str]:
        """Ids, in order, of servers on a host (None: any; `servers_on_old_flow`: also on none)."""
        rows = await self._all(which, host=host, after=after, limit=limit)
        return [str(row["server_id"]) for row in rows]

    async def mailboxes(
        self, wanted: Sequence[tuple[str, int]], limit: int = PAGE_MAX
    ) -> list[Row]:
        """The mailboxes of hosts after a cursor of each, in the given order.

        `commands`: with their positions.  `epoch`: None if no agent has registered.  `shut`: the
        host is fenced.  `awaited`: it was unfenced and has not shown yet what it has.  `survey`:
        the token of a requested survey; `survey_digest`: of the last one.
        """
        hosts, afters = [host for host, _ in wanted], [after for _, after in wanted]
        return await self._all("mailboxes", hosts=hosts, afters=afters, limit=limit)

    async def hosts(self) -> list[Row]:
        """With `seen_at` and `clock_ahead_s` (None: never reported), and the counts
        `open_attachments`, `flows` (of them), `open_commands` and `guests`.
        """
        return await self._all("hosts", host=None)

    async def hosts_observed(self) -> list[Row]:
        """Hosts that are not the ledger's but have observed servers: `host`, `origin`, `guests`,
        `open_attachments`, `surveyed_at`.
        """
        return await self._all("hosts_observed")

    async def host(self, host: str) -> Row | None:
        return await self._one("hosts", host=host)

    async def seen_at(self, host: str) -> datetime | None:
        """The last contact of the host's agent; None: never, or there is no such host."""
        row = await self._one("contact", host=host)
        return row["seen_at"] if row else None

    async def older_agents(self, version: int) -> bool:
        """Whether a host that is not fenced has an agent of an older service version."""
        [row] = await self._all("older_agents", version=version)
        return bool(row["found"])

    async def claim_host(self, host: str, agent: str | None, silent_after_s: float) -> bool:
        """Whether this agent may act for the host now; if so, stores it, and the contact."""
        found = await self._one("claim_host", host=host, agent=agent, silent_after_s=silent_after_s)
        return found is not None

    async def free_host(self, host: str) -> None:
        """Let the next agent, whichever it is, act for the host."""
        await self._all("free_host", {}, "reads", timeout_ms=None, host=host)

    async def connectors_in_use(self, **connectors: Sequence[str | None]) -> list[Row]:
        """The `other` hosts that reported the `initiators` or `nqns` of `hosts` before them."""
        return await self._all("connectors_in_use", {}, "reads", timeout_ms=None, **connectors)

    async def touch_hosts(self, heard: Mapping[str, tuple[float, float | None]]) -> None:
        """Store, by host, how many seconds ago its agent was in contact, and how many seconds its
        clock is ahead (None: not reported).
        """
        ages_s = [age_s for age_s, _ in heard.values()]
        ahead_s = [ahead_s for _, ahead_s in heard.values()]
        await self._all("touch_hosts", hosts=list(heard), ages_s=ages_s, ahead_s=ahead_s)

    async def guests_of_hosts(self, hosts: Sequence[str]) -> dict[str, set[str]]:
        """The servers whose guests each of these hosts shows, by the projections."""
        guests: dict[str, set[str]] = {host: set() for host in hosts}
        for row in await self._all("guests_of_hosts", hosts=list(guests)):
            guests[row["host"]].add(row["server_id"])
        return guests

    async def in_use_by(self, host: str) -> list[Row]:
        """What keeps the host from being forgotten: `what`, the first `id` of it, its `count`."""
        return await self._all("in_use_by", host=host)

    async def fenced(self) -> dict[str, int]:
        """The fenced hosts, without forgotten ones, with the epoch that the fence began."""
        return {row["host"]: row["epoch"] for row in await self._all("fenced")}

    async def hosts_by_state(self, silent_after_s: float) -> Row:
        """Counts of hosts: `alive`, `silent`, `fenced`, and `unvouched` (not fenced); and the
        largest clock skew of those alive, `clock_skew_max_s`.
        """
        [row] = await self._all("hosts_by_state", silent_after_s=silent_after_s)
        return row

    async def agents_by_version(self) -> dict[int, int]:
        """Counts of the agents of hosts that are not fenced, by service version."""
        rows = await self._all("agents_by_version")
        return {row["service_version"]: row["count"] for row in rows}

    # --- the service itself -----------------------------------------------------------

    async def missing_rights(self) -> list[str]:
        """Privileges that the service needs and its role lacks."""
        names, privileges = zip(*rights(RoleKind.SERVICE), strict=True)
        rows = await self._all("missing_rights", names=list(names), privileges=list(privileges))
        return [row["missing"] for row in rows]

    async def tracking(self) -> list[Row]:
        """For each projection: `projection`, `position`, `lag_events`, `lag_s`, `held`."""
        return await self._all("lags", group="projections", names=[each.name for each in ALL])

    async def activity(self, now: datetime, after: int, each: int, most: int) -> list[Row]:
        """Counts of what happened after a position: `what`, `ago` (in units of `each` minutes) and
        `count`, of the newest `most` of each kind; and `moved`, the number of operations.
        """
        return await self._all("activity", now=now, after=after, each=each, most=most)

    async def ages(
        self, now: datetime, after: int, each: int, numbers: int, most: int
    ) -> list[Row]:
        """The age (`age_s`) of the oldest open item of each kind (`what`), for each of the last
        `numbers` intervals of `each` minutes (`ago`), and for now (`ago` -1); at most `most` items
        of each kind are read.
        """
        return await self._all("ages", now=now, after=after, each=each, numbers=numbers, most=most)
