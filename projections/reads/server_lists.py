"""Lists of servers: which fit, in which order, from where on.

All of it is the database's work, so a page is what was asked for, however few fit.  A name, as an
address, is a regular expression of a stranger's: PostgreSQL looks for so long, and no longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson
from psycopg import sql as compose
from psycopg.errors import InvalidRegularExpression, QueryCanceled

from projections.base import Row
from projections.reads.log import PAGE_MAX, LogReads

#: How long a search for a pattern may take.
PATTERN_MS_MAX = 2_000

#: The keys of an order, as Nova calls them; `host` and `node` are one here.
SORT_KEYS = frozenset(
    {
        "created_at",
        "updated_at",
        "uuid",
        "display_name",
        "host",
        "project_id",
        "user_id",
        "vm_state",
        "instance_type_id",
        "power_state",
        "task_state",
    }
)


#: Of `ServerFilter`: what may be a pattern of a stranger's.
PATTERNS = ("name", "access_ip_v4", "access_ip_v6")


class PatternError(Exception):
    """A pattern is none, or takes too long; the message says which."""


@dataclass(frozen=True, kw_only=True)
class ServerFilter:
    """Which servers are asked for; None: whatever it is.

    PATTERNS are regular expressions, found anywhere in it.  `states`: pairs of a vm_state and a
    task state ("" for none), one of which it has to be.  `since`, `before`: when it last changed.
    `deleted`: only those that are gone, or only those that are not.  `placed`: on a host.
    `tags`: with all of these; `not_tags`: not with all of them.  `ours`: none that is
    only watched.
    """

    project_id: str | None = None
    user_id: str | None = None
    uuid: str | None = None
    name: str | None = None
    host: str | None = None
    placed: bool | None = None
    vcpus: int | None = None
    memory_mb: int | None = None
    deleted: bool | None = False
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    locked: bool | None = None
    created_at: datetime | None = None
    since: datetime | None = None
    before: datetime | None = None
    vm_state: str | None = None
    power_state: int | None = None
    task_state: str | None = None
    states: tuple[tuple[str, str], ...] | None = None
    tags: list[str] | None = None
    tags_any: list[str] | None = None
    not_tags: list[str] | None = None
    not_tags_any: list[str] | None = None
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class Words:
    """Nova's words: a task state by flow, a number by power state."""

    tasks: Mapping[str, str]
    powers: Mapping[str, int]


#: Keys of an order, the first is the first; True: descending.
Order = Sequence[tuple[str, bool]]
NEWEST_FIRST: Order = (("created_at", True), ("uuid", True))


class ServerLists(LogReads):
    """Servers by what they are."""

    async def instances(
        self,
        wanted: ServerFilter,
        words: Words,
        *,
        order: Order = NEWEST_FIRST,
        marker: str | None = None,
        limit: int = PAGE_MAX,
    ) -> list[Row]:
        """Servers that fit; `marker`: the last server id already seen, of any server.

        Raises PatternError.
        """
        states = wanted.states
        asked = vars(wanted) | {
            "states": None if states is None else ["/".join(pair) for pair in states],
            "tasks": orjson.dumps(dict(words.tasks)).decode(),
            "powers": orjson.dumps(dict(words.powers)).decode(),
            "marker": marker,
            "limit": limit,
        }
        parts = {"order": _order(order), "after": _after(order)}
        if not any(getattr(wanted, name) for name in PATTERNS):
            return await self._named(await self._all("page", parts, "servers", **asked))
        try:
            rows = await self._all("page", parts, "servers", timeout_ms=PATTERN_MS_MAX, **asked)
        except InvalidRegularExpression as error:
            why = (error.diag.message_primary or "it is none").partition(": ")[2]
            raise PatternError(f"it is no regular expression: {why}") from None
        except QueryCanceled:
            text = f"to look for it took longer than {PATTERN_MS_MAX / 1000:g} s"
            raise PatternError(text) from None
        return await self._named(rows)

    async def sizes(self, project_id: str | None) -> list[tuple[int, int]]:
        """vCPUs, and memory in MiB, of the servers of a project (None: of all), smallest first."""
        rows = await self._all("sizes", {}, "servers", project_id=project_id, limit=PAGE_MAX)
        return [(row["vcpus"], row["memory_mb"]) for row in rows]

    async def used(self, project_id: str) -> Row:
        """`servers`, `vcpus` and `memory_mb` of a project."""
        [row] = await self._all("used", {}, "servers", project_id=project_id)
        return row

    async def on_hosts(self, hosts: Sequence[str]) -> dict[str, Row]:
        """By host `servers` (`uuid`, `name`), `vcpus` and `memory_mb`; none of one without any."""
        rows = await self._all("on_hosts", {}, "servers", hosts=list(hosts))
        return {row["host"]: row for row in rows}


def _column(table: str, key: str) -> compose.Composable:
    assert key in SORT_KEYS, key
    return compose.Identifier(table, f"by_{key}")


def _order(order: Order) -> compose.Composable:
    words = {True: " DESC", False: " ASC"}
    return compose.SQL(", ").join(
        _column("s", key) + compose.SQL(words[descending]) for key, descending in order
    )


def _after(order: Order) -> compose.Composable:
    """That `s` comes after `m`: equal in some of the first keys, and beyond it in the next."""
    beyond = {True: " < ", False: " > "}

    def compared(key: str, how: str) -> compose.Composable:
        return _column("s", key) + compose.SQL(how) + _column("m", key)

    steps = [
        [*(compared(key, " = ") for key, _ in order[:at]), compared(last, beyond[descending])]
        for at, (last, descending) in enumerate(order)
    ]
    return compose.SQL(" OR ").join(compose.SQL(" AND ").join(step) for step in steps)
