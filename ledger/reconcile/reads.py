"""What a look reads of the ledger: pages by id, and what belongs to one volume or one host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

import sql
from aggregates.base import About
from aggregates.finding import Finding
from aggregates.look import Look
from projections.base import Row

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Rows of the ledger that are read at once.
PAGE_ROWS = 500
#: The projections that a look compares; it waits until they are where it begins.
PROJECTIONS = ("attachments", "mappings", "instances", "operations", "hosts", "findings")
#: Topics of events that happen to a finding, and not to what it is about.
_OWN = [
    kind.TOPIC
    for aggregate in (Finding, Look)
    for kind in vars(aggregate).values()
    if isinstance(kind, type) and hasattr(kind, "TOPIC")
]


@dataclass(frozen=True, kw_only=True)
class Move:
    """What explains a difference: a claim, or something that happened at a position."""

    claimed: bool
    moved_at: int

    def explains(self, position: int) -> bool:
        """Whether a difference that is judged as of this position is none."""
        return self.claimed or self.moved_at > position


class LedgerReads:
    """Over a connection in autocommit mode, made ready by `projections.running.tables.prepare`.

    `scope`: as aggregates.look.Look has it.
    """

    def __init__(self, connection: psycopg.Connection[Any], scope: Mapping[str, str]) -> None:
        self._connection = connection
        self._scope: dict[str, Any] = dict.fromkeys(("host", "server", "volume"))
        self._scope |= {**scope, "whole": not scope}

    def rows(self, query: str, /, **parameters: Any) -> list[Row]:
        cursor = self._connection.cursor(row_factory=dict_row)
        cursor.execute(sql.query("reconcile", query), parameters)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: str, /, **parameters: Any) -> Any:
        """The only column of the only row."""
        [row] = self.rows(query, **parameters)
        [value] = row.values()
        return value

    def paged(self, query: str, key: str, after: str | None, **more: Any) -> Iterator[list[Row]]:
        """Pages in the order of a key, after one; in memory is one page."""
        while True:
            page = self.rows(query, after=after, limit=PAGE_ROWS, **more)
            if not page:
                return
            yield page
            after = page[-1][key]

    def scoped(self, query: str, key: str, after: str | None, **more: Any) -> Iterator[list[Row]]:
        """The same, of the part of the cloud that is looked at."""
        return self.paged(query, key, after, **self._scope, **more)

    # --- by ids -------------------------------------------------------------------------------

    def attachments(self, ids: Iterable[str]) -> dict[str, Row]:
        """Those that are open."""
        rows = self.rows("attachments_by_id", ids=uuids(ids))
        return {row["attachment_id"]: row for row in rows}

    def servers(self, ids: Iterable[str | None]) -> dict[str, Row]:
        """Those that there are: `server`, "live" or "deleted", and volumes by `legacy` calls."""
        return {row["server_id"]: row for row in self.rows("servers", ids=uuids(ids))}

    def volume_facts(self, ids: Iterable[str]) -> dict[str, Row]:
        rows = self.rows("volume_facts", ids=uuids(ids))
        return {row["volume_id"]: row for row in rows}

    def of_volume(self, volume_id: str) -> list[Row]:
        """Its open attachments."""
        return self.rows("attachments_of", volume_id=volume_id) if is_uuid(volume_id) else []

    def made_for(self, mark: str) -> Row:
        """The operation that was to make a volume with this mark, and for which server; empty if
        the log has none, or no more.
        """
        return next(iter(self.rows("made_for", mark=mark)), {})

    def moves(self, abouts: Sequence[About]) -> list[Move]:
        """What has happened, and who is at work; in this order."""
        if not abouts:
            return []
        rows = self.rows(
            "moves",
            servers=[_id(about.server_id) for about in abouts],
            volumes=[_id(about.volume_id) for about in abouts],
            attachments=[_id(about.attachment_id) for about in abouts],
            hosts=[about.host if _only_host(about) else None for about in abouts],
            own=_OWN,
        )
        return [Move(**row) for row in rows]


def _only_host(about: About) -> bool:
    return not (about.server_id or about.volume_id or about.attachment_id)


def about(row: Row) -> About:
    names = ("server_id", "volume_id", "attachment_id", "host")
    return About(**{name: row.get(name) for name in names})


def is_uuid(text: str | None) -> bool:
    """In the form that we write.  A look asks this of all that it compares."""
    return text is not None and _UUID.fullmatch(text) is not None


def _id(text: str | None) -> str | None:
    return text if is_uuid(text) else None


def uuids(ids: Iterable[str | None]) -> list[str]:
    """What hosts and Cinder tell may be anything; what is no id nobody here knows."""
    return sorted({id_ for id_ in ids if id_ is not None and is_uuid(id_)})
