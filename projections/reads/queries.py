"""Reads for the API and the dispatcher: one method per question, plain rows out.

Rows are dicts with ids as strings, aware datetimes and parsed JSON.  Every list is bounded:
`limit` is at most PAGE_MAX, whatever was asked for.  The SQL, with the index each question
uses, is in sql/queries/reads.sql.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from psycopg import AsyncConnection
from psycopg import sql as compose
from psycopg_pool import AsyncConnectionPool

from handlers.engine.verbs import PUT_OFF_MAX_S
from projections.base import Row
from projections.lines import POOL_RECONNECT_S, AsyncLine
from projections.reads.drift import DriftReads
from projections.reads.log import PAGE_MAX, POSITION_MAX
from projections.reads.operations import OperationReads
from projections.reads.server_lists import ServerLists
from projections.reads.surveys import SurveyReads
from projections.requests import RequestReads
from projections.running.rights import RoleKind, rights
from projections.running.tables import prepare

POOL_CONNECTIONS_MAX = 8
POOL_WAIT_S = 10.0

Servers = Literal["with_volumes", "on_old_flow"]


def read_pool(dsn: str) -> AsyncConnectionPool[AsyncLine]:
    """A pool for `Queries`; open it with `async with` in the event loop that uses it."""

    async def configure(connection: AsyncConnection[Any]) -> None:
        prepare(connection)

    return AsyncConnectionPool(
        dsn,
        connection_class=AsyncLine,
        min_size=1,
        max_size=POOL_CONNECTIONS_MAX,
        timeout=POOL_WAIT_S,
        reconnect_timeout=POOL_RECONNECT_S,
        kwargs={"autocommit": True, "application_name": "attachment-ledger reads"},
        configure=configure,
        open=False,
    )


class Cursor(NamedTuple):
    """Where a page of a list begins: beyond a position, in its order."""

    after: int | None = None
    newest_first: bool = False


OLDEST_FIRST = Cursor()


class Whose(TypedDict, total=False):
    """Of what attachments are asked for; None: of any."""

    host: str | None
    volume_id: str | None
    server_id: str | None


_ANYBODYS: Whose = {"host": None, "volume_id": None, "server_id": None}

_OPEN: Row = {"to_position": None, "to_at": None, "to_seen": None}


def _ended(span: Row, known: datetime | None) -> bool:
    return span["to_at"] is not None and (known is None or span["to_at"] <= known)


def _certain(span: Row, at: datetime, since: datetime) -> bool:
    """Whether it had begun by `at` and was not over by `since`, whenever in the intervals in which
    that was seen it was so.
    """
    begun, over = span["from_at"], span["to_at"]
    if span["from_seen"] is not None:
        begun = datetime.fromisoformat(span["from_seen"]["before"])
    if span["to_seen"] is not None:
        after = span["to_seen"]["after"]
        over = datetime.fromisoformat(after) if after else since
    return begun <= at and (over is None or over > since)


class Queries(SurveyReads, DriftReads, OperationReads, ServerLists, RequestReads):
    """What is now, what was, and what is due."""

    # --- servers and their volumes ------------------------------------------------------

    async def instance(self, server_id: str) -> Row | None:
        """With the last contact of its host's agent, `host_seen_at` (None: never)."""
        return await self._one("instance", named=True, server_id=server_id)

    async def ours(self, server_ids: list[str]) -> list[Row]:
        """Of each, `ours`: whether it is the ledger's own; None: that is not projected yet."""
        return await self._all("ours", ids=server_ids)

    async def named(
        self, text: str, low: str | None, high: str | None, *, project_id: str | None = None
    ) -> list[Row]:
        """What has an id from `low` to `high`, or `text` as its name; `kind`, `id`, `name`.

        With `project_id` only servers of that project, and what is theirs.
        """
        return await self._all("named", text=text, low=low, high=high, project_id=project_id)

    async def mappings(
        self, server_id: str, limit: int = PAGE_MAX, offset: int = 0, *, legacy: bool = True
    ) -> list[Row]:
        """The server's mappings that have a volume, in the order they were made.

        `legacy`: also those that Cinder's old calls made.
        """
        return await self._all(
            "mappings", server_id=server_id, limit=limit, offset=offset, legacy=legacy
        )

    async def mapping(self, server_id: str, volume_id: str) -> Row | None:
        return await self._one("mapping", server_id=server_id, volume_id=volume_id)

    async def pair(self, server_id: str, volume_id: str) -> Row | None:
        """The volume's mapping to the server (all None: there is none), the `project_id` of the
        server, and by which attachments a host may have the volume now (`connected`).

        `host`, `host_seen_at`: where the server is, and the last contact of that host's agent;
        `shown`: the host shows the volume in the guest, and no mapping explains it.
        None: there is no such server.
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
        """In the order they were made, or backwards; `legacy`: by the old calls, or not."""
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
        on, the newest first; `at` may then be None, for up to now.

        As they were known at `at`, or at `known_at`, which is not before it, without ends that came
        later: the answer stays the same for ever.  With `known_at` also what had been so by then,
        and was seen only later; `certain`: False where it had been so perhaps.
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
        """Ids, in order, of servers on a host (None: on any; on the old flow, also on none)."""
        rows = await self._all(f"servers_{which}", host=host, after=after, limit=limit)
        return [str(row["server_id"]) for row in rows]

    async def mailboxes(
        self, wanted: Sequence[tuple[str, int]], limit: int = PAGE_MAX
    ) -> list[Row]:
        """What waits for agents, each a host and its cursor; in the order asked for.

        `commands` come with their positions; the host's `epoch` is None if there is no such
        host; `shut`: it is fenced; `awaited`: it was, and has to show what it holds first;
        `survey`: the token of one that is wanted, `survey_digest`: what the last one is called.
        """
        hosts, afters = [host for host, _ in wanted], [after for _, after in wanted]
        return await self._all("mailboxes", hosts=hosts, afters=afters, limit=limit)

    async def hosts(self) -> list[Row]:
        """With `seen_at` and `clock_ahead_s` (None: never told), `open_attachments`, by their
        `flows`, `open_commands` and `guests`.
        """
        return await self._all("hosts", host=None)

    async def hosts_observed(self) -> list[Row]:
        """Those that only somebody else's servers were seen on: `host`, `origin`, `guests`,
        `open_attachments`.
        """
        return await self._all("hosts_observed")

    async def host(self, host: str) -> Row | None:
        return await self._one("hosts", host=host)

    async def seen_at(self, host: str) -> datetime | None:
        """When the host's agent was last in contact; None: never, or there is no such host."""
        row = await self._one("contact", host=host)
        return row["seen_at"] if row else None

    async def older_agents(self, version: int) -> bool:
        """Whether the agent of a host that is not fenced is older than this service version."""
        [row] = await self._all("older_agents", version=version)
        return bool(row["found"])

    async def claim_host(self, host: str, agent: str | None, silent_after_s: float) -> bool:
        """Whether this agent may speak for the host now; if so, it is noted, as a contact."""
        found = await self._one("claim_host", host=host, agent=agent, silent_after_s=silent_after_s)
        return found is not None

    async def free_host(self, host: str) -> None:
        """Whichever agent comes next may speak for the host."""
        await self._all("free_host", {}, "reads", timeout_ms=None, host=host)

    async def connectors_in_use(self, **connectors: Sequence[str | None]) -> list[Row]:
        """`hosts` and their `initiators` and `nqns`: `other` hosts that said so before."""
        return await self._all("connectors_in_use", {}, "reads", timeout_ms=None, **connectors)

    async def touch_hosts(self, heard: Mapping[str, tuple[float, float | None]]) -> None:
        """Note how many seconds ago hosts' agents were in contact, and by how many their clocks
        are ahead (None: they did not say).
        """
        ages_s = [age_s for age_s, _ in heard.values()]
        ahead_s = [ahead_s for _, ahead_s in heard.values()]
        await self._all("touch_hosts", hosts=list(heard), ages_s=ages_s, ahead_s=ahead_s)

    async def remnants(
        self,
        *,
        state: str | None = None,
        server_id: str | None = None,
        host: str | None = None,
        limit: int = PAGE_MAX,
        after: int | None = None,
    ) -> list[Row]:
        """Newest first; `after` is the `left_position` of the last one already seen."""
        return await self._all(
            "remnants", state=state, server_id=server_id, host=host, limit=limit, after=after
        )

    async def remnant(self, remnant_id: str) -> Row | None:
        return await self._one("remnant", remnant_id=remnant_id)

    # --- looks ------------------------------------------------------------------------

    async def look_overdue(self, interval_s: float) -> bool:
        """Whether the last look at everything began longer ago than that."""
        [row] = await self._all("overdue", group="reconcile", interval_s=interval_s)
        return bool(row["overdue"])

    async def looks_waiting(self, whole: str, part: str) -> list[str]:
        """Of which kinds of look there is one to begin or to go on with."""
        rows = await self._all("waiting", group="reconcile", whole=whole, part=part)
        return [row["name"] for row in rows]

    async def looks_stopped(self) -> list[str]:
        """What of these somebody has stopped."""
        return [row["name"] for row in await self._all("stopped", group="reconcile")]

    # --- the service itself -----------------------------------------------------------

    async def missing_rights(self) -> list[str]:
        """Rights on tables that the service needs and its role does not have."""
        names, privileges = zip(*rights(RoleKind.SERVICE), strict=True)
        rows = await self._all("missing_rights", names=list(names), privileges=list(privileges))
        return [row["missing"] for row in rows]

    async def tracking(self) -> list[Row]:
        """Of each projection: `projection`, `position`, `lag_events`, `lag_s`, `held`."""
        return await self._all("tracking")

    async def guests_of_hosts(self, hosts: Sequence[str]) -> dict[str, set[str]]:
        """The servers that each of the hosts is known to have, those it has lost left out."""
        guests: dict[str, set[str]] = {host: set() for host in hosts}
        for row in await self._all("guests_of_hosts", hosts=list(guests)):
            guests[row["host"]].add(row["server_id"])
        return guests

    async def open_on_host(self, host: str) -> list[str]:
        """The operations that are not over and concern this host, oldest first."""
        return [row["operation_id"] for row in await self._all("open_on_host", host=host)]

    async def in_use_by(self, host: str) -> list[Row]:
        """What keeps the host from being forgotten: `what`, the first `id` of it, its `count`."""
        return await self._all("in_use_by", host=host)

    async def fenced(self) -> dict[str, int]:
        """The hosts that are fenced, and the epoch that the fence of each began."""
        return {row["host"]: row["epoch"] for row in await self._all("fenced")}

    async def evacuating(self, host: str) -> list[str]:
        """Of these, the evacuations from this host."""
        rows = await self._all("open_on_host", host=host)
        return [row["operation_id"] for row in rows if row["evacuates"]]

    async def hosts_by_state(self, silent_after_s: float) -> Row:
        """How many hosts are `alive`, `silent` and `fenced`; `unvouched`, of those that are not
        fenced; of those that are alive, by how much the worst clock is wrong, `clock_skew_max_s`.
        """
        [row] = await self._all("hosts_by_state", silent_after_s=silent_after_s)
        return row

    async def agents_by_version(self) -> dict[int, int]:
        """Of hosts that are not fenced: how many agents are of which service version."""
        rows = await self._all("agents_by_version")
        return {row["service_version"]: row["count"] for row in rows}

    async def counts(self) -> Row:
        """`running`, `parked`, `due` and `leased` operations; `oldest_parked_s`, `oldest_due_s`,
        `oldest_running_s` (since it began),
        and in how many seconds the last one that is put off is due, `latest_due_s`.
        """
        [row] = await self._all("counts")
        return row

    async def activity(self, now: datetime, after: int, each: int, most: int) -> list[Row]:
        """What has happened behind a position: `what`, `ago` (times `each` minutes) and `count`, of
        each kind the newest `most`; and `moved`, how many operations that is of.
        """
        return await self._all("activity", now=now, after=after, each=each, most=most)

    async def ages(
        self, now: datetime, after: int, each: int, numbers: int, most: int
    ) -> list[Row]:
        """How old (`age_s`) the oldest of `what` was not over became, `ago` (times `each` minutes),
        so many `numbers` of them, and -1 for what is not over now; of each kind `most` are
        looked at.
        """
        return await self._all("ages", now=now, after=after, each=each, numbers=numbers, most=most)

    async def oldest_due(self) -> Row | None:
        """The operation that is due first, now or later: `operation_id`, `flow`, `due_at`."""
        return await self._one("oldest_due")

    # --- work that is due ---------------------------------------------------------------

    async def due(
        self, limit: int, holder: str, lease_s: float, but: Sequence[str] = ()
    ) -> list[tuple[str, str, bool]]:
        """Take leases on operations that are due and that nobody else works on, `but` for those
        that were asked for by these projects.

        With each comes the project ("" if none) and whether it is taken over from a holder that
        never gave it back.
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
        """Operations that wait for a run of an older epoch of its host, each with that host."""
        rows = await self._all("waiting_on_old_epoch", limit=PAGE_MAX)
        return [(row["operation_id"], row["host"]) for row in rows]

    async def expire_previous_leases(self, place: str, holder: str) -> None:
        """Let run out what others than `holder` left behind in its place."""
        await self._all("expire_previous_leases", place=place, holder=holder)
