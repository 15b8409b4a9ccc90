"""Lists of servers: filter, order and page.

The database does all of it, so a page is full however few servers match.  Names and addresses are
regular expressions from users, so their search has a time limit.
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

#: The limit of a search with patterns.
PATTERN_MS_MAX = 2_000

#: Nova's sort keys; `node` is `host` here.
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


#: The fields of `ServerFilter` that are patterns.
PATTERNS = ("name", "access_ip_v4", "access_ip_v6")


class PatternError(Exception):
    """A pattern is not a regular expression, or takes too long; the message says which."""


@dataclass(frozen=True, kw_only=True)
class ServerFilter:
    """A filter of servers; None: any.

    PATTERNS are regular expressions, matched anywhere.  `states`: pairs of a vm_state and a task
    state ("" for none), of which one must match.  `since`, `before`: the last change.  `placed`:
    whether it is on a host.  `tags`: has all of these; `not_tags`: does not have all of them.
    `ours`: without observed servers.
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
    """Nova's task state for each flow, and number for each power state."""

    tasks: Mapping[str, str]
    powers: Mapping[str, int]


#: Sort keys in order; True: descending.
Order = Sequence[tuple[str, bool]]
NEWEST_FIRST: Order = (("created_at", True), ("uuid", True))


class ServerLists(LogReads):
    """Reads of servers."""

    async def instances(
        self,
        wanted: ServerFilter,
        words: Words,
        *,
        order: Order = NEWEST_FIRST,
        marker: str | None = None,
        limit: int = PAGE_MAX,
    ) -> list[Row]:
        """Servers that match; `marker`: the id of any server, after which the page begins.

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
            return await self.with_persons(await self._all("page", parts, "servers", **asked))
        try:
            rows = await self._all("page", parts, "servers", timeout_ms=PATTERN_MS_MAX, **asked)
        except InvalidRegularExpression as error:
            why = (error.diag.message_primary or "it is none").partition(": ")[2]
            raise PatternError(f"it is no regular expression: {why}") from None
        except QueryCanceled:
            text = f"to look for it took longer than {PATTERN_MS_MAX / 1000:g} s"
            raise PatternError(text) from None
        return await self.with_persons(rows)

    async def sizes(self, project_id: str | None) -> list[tuple[int, int]]:
        """The different sizes (vCPUs, MiB) of a project's servers (None: all), smallest first."""
        rows = await self._all("sizes", {}, "servers", project_id=project_id, limit=PAGE_MAX)
        return [(row["vcpus"], row["memory_mb"]) for row in rows]

    async def used(self, project_id: str) -> Row:
        """The totals of a project: `servers`, `vcpus`, `memory_mb`."""
        [row] = await self._all("used", {}, "servers", project_id=project_id)
        return row

    async def on_hosts(self, hosts: Sequence[str]) -> dict[str, Row]:
        """By host: `servers` (`uuid`, `name`), `vcpus`, `memory_mb`; only hosts with servers."""
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
    """The condition that row `s` comes after row `m`: the first keys equal, the next one beyond."""
    beyond = {True: " < ", False: " > "}

    def compared(key: str, how: str) -> compose.Composable:
        return _column("s", key) + compose.SQL(how) + _column("m", key)

    steps = [
        [*(compared(key, " = ") for key, _ in order[:at]), compared(last, beyond[descending])]
        for at, (last, descending) in enumerate(order)
    ]
    return compose.SQL(" OR ").join(compose.SQL(" AND ").join(step) for step in steps)
