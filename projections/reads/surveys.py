"""Requests for hosts' surveys, and their answers.

A request is a token and the position of the log at that time.  The answer is as of some moment
between that position and the one at its arrival, so it may or may not include what happened in
between.  `SurveyReads` is for an event loop, `BlockingSurveyReads` for threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import psycopg
from psycopg.rows import dict_row, tuple_row

import sql
from host_agent.shared.contract.survey import Survey
from host_agent.shared.contract.wire import WireError, read
from projections.base import Row
from projections.reads.log import LogReads

#: Until a request is so old, a new one returns its token.
ASK_AGAIN_S = 60.0
#: So long a host counts as sending, and what it shows as so: two periods of its timer, and what a
#: survey takes.
SENDS_AGAIN_S = 150.0


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The state of a host's survey; all but `host` may be None before there is one.

    `why_unknown`: why the last survey says nothing about the host, as a sentence; None: it was true
    at some moment between the two positions.
    `wanted`: the token of a request without an answer, made `wanted_s` ago.
    """

    host: str
    why_unknown: str | None
    token: str | None
    boot_id: str | None
    epoch: int | None
    digest: str | None
    taken_at: datetime | None
    age_s: float | None
    asked_position: int | None
    arrived_position: int | None
    wanted: str | None
    wanted_s: float | None


def standing(row: Row, silent_after_s: float, age_max_s: float | None) -> Standing:
    """From a row of the query `standings`."""
    own = {name: row[name] for name in Standing.__dataclass_fields__ if name in row}
    return Standing(**own, why_unknown=_why_unknown(row, silent_after_s, age_max_s))


def _why_unknown(row: Row, silent_after_s: float, age_max_s: float | None) -> str | None:
    return next((why for holds, why in _reasons(row, silent_after_s, age_max_s) if holds), None)


def _reasons(
    row: Row, silent_after_s: float, age_max_s: float | None
) -> Iterator[tuple[bool, str]]:
    silent_s, age_s = row["silent_s"], row["age_s"]
    yield row["fenced"], "the host is fenced"
    yield row["suspect"], "the host was unfenced, and has not shown yet what it holds"
    yield silent_s is None, "the host's agent has never been in contact"
    yield silent_s >= silent_after_s, f"the host's agent has been silent for {silent_s:.0f} s"
    yield not row["able"], "the host's agent is of a version that shows no surveys"
    yield row["token"] is None, _unanswered(row)
    yield row["epoch"] != row["host_epoch"], "its last survey is older than a fence of the host"
    too_old = age_max_s is not None and age_s > age_max_s
    yield too_old, f"its last survey is {age_s:.0f} s old"


def _unanswered(row: Row) -> str:
    if row["wanted"] is None:
        return "the host has not been asked yet"
    return f"the host was asked {row['wanted_s']:.0f} s ago and has not answered yet"


class SurveyReads(LogReads):
    """For an event loop: it requests and stores surveys, and does not read them."""

    async def want_surveys(
        self, hosts: Sequence[str] | None, *, silent_after_s: float
    ) -> dict[str, str]:
        """Request surveys of these hosts (None: of all); the tokens, of those that can be asked."""
        asked = _wanting(hosts, silent_after_s)
        return _tokens(await self._all("want", group="surveys", **asked))

    async def note_survey(self, host: str, **answer: Any) -> bool:
        """Store an answer: `token`, `epoch`, `digest`, `boot_id` and `document` (JSON; None: as the
        stored one).  False: it was not requested, or the document is needed.
        """
        return bool(await self._all("note", group="surveys", host=host, **answer))

    async def send_survey(self, host: str, *, age_s: Callable[[], float], **sent: Any) -> bool:
        """Store what a host that is not the ledger's has sent of itself: `digest`, `boot_id` and
        `document` as `note_survey`, made `age_s()` ago.  False: see the query `send`.

        The database tells the moment first: a write that waits, or is tried again, makes no survey
        younger.
        """
        [now] = await self._all("now", group="observed")
        made_at = now["clock_timestamp"] - timedelta(seconds=age_s())
        more = {"host": host, "made_at": made_at, "silent_after_s": SENDS_AGAIN_S, **sent}
        return bool(await self._all("send", group="surveys", **more))

    async def sent_shows(self, server_id: str, volume_id: str) -> list[str]:
        """Hosts that are not the ledger's and have just shown the volume in the server's guest."""
        rows = await self._all(
            "sent_shows",
            group="surveys",
            server_id=server_id,
            volume_id=volume_id,
            young_s=SENDS_AGAIN_S,
        )
        return [row["host"] for row in rows]

    async def survey_standing(self, host: str, *, silent_after_s: float) -> Standing:
        [row] = await self._all("standings", group="surveys", hosts=[host])
        return standing(row, silent_after_s, None)


def sent_since(connection: psycopg.Connection[Any], since: datetime) -> dict[str, Survey]:
    """What hosts that are not the ledger's have made of themselves after that moment, by host;
    without those in a form of another version.
    """
    found = {}
    cursor = connection.cursor(row_factory=tuple_row)
    for host, document in cursor.stream(sql.query("surveys", "sent_since"), {"since": since}):
        with suppress(msgspec.ValidationError):
            found[host] = msgspec.json.decode(document, type=Survey)
    return found


class BlockingSurveyReads:
    """For threads, over a blocking connection in autocommit mode (see `tables.prepare`)."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def want(self, hosts: Sequence[str] | None, *, silent_after_s: float) -> dict[str, str]:
        """Request surveys of these hosts (None: of all); the tokens, of those that can be asked."""
        return _tokens(self._rows("want", **_wanting(hosts, silent_after_s)))

    def standings(
        self,
        hosts: Sequence[str] | None,
        *,
        silent_after_s: float,
        age_max_s: float | None = None,
    ) -> list[Standing]:
        """Of these hosts (None: of all), in the order of names."""
        rows = self._rows("standings", hosts=_named(hosts))
        return [standing(row, silent_after_s, age_max_s) for row in rows]

    def survey(self, host: str, token: str) -> Survey | None:
        """The host's survey; None: not the answer to this request, or another version's form."""
        rows = self._rows("document", host=host, token=token)
        try:
            return read(rows[0]["document"], Survey) if rows else None
        except WireError:
            return None

    def _rows(self, query: str, **parameters: Any) -> list[Row]:
        cursor = self._connection.cursor(row_factory=dict_row)
        return cursor.execute(sql.query("surveys", query), parameters).fetchall()


def _wanting(hosts: Sequence[str] | None, silent_after_s: float) -> dict[str, Any]:
    return {"hosts": _named(hosts), "silent_after_s": silent_after_s, "again_s": ASK_AGAIN_S}


def _named(hosts: Sequence[str] | None) -> list[str] | None:
    return None if hosts is None else list(hosts)


def _tokens(rows: Sequence[Row]) -> dict[str, str]:
    return {row["host"]: row["token"] for row in rows}
