"""What the ledger has of the servers that it watches, in the form in which a look is compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

import sql
from aggregates.attachment import AttachmentState
from handlers.drift.seen import SeenAttachment, SeenServer
from handlers.results.observed import power_state_of, state_of, vm_state_of

PAGE_ROWS = 500

#: What is compared of a server: its own facts, its attachments, and the volumes of its mappings.
Shape = tuple[tuple[str | None, ...], frozenset[tuple[str | None, ...]], frozenset[str]]

_RESERVED = {AttachmentState.RESERVED.value, AttachmentState.DISCONNECTED.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """`attachments`: the open ones.  `shape` None: the server is deleted."""

    shape: Shape | None
    mappings: tuple[str, ...]
    attachments: frozenset[str]

    @property
    def host(self) -> str | None:
        return self.shape[0][1] if self.shape else None

    @property
    def volumes(self) -> frozenset[str]:
        """Those of its mappings."""
        return self.shape[2] if self.shape else frozenset()


def servers(
    connection: psycopg.Connection[Any], only: Iterable[str] | None = None
) -> dict[str, Known]:
    """Those that are watched, all or `only` these, by id, as far as the projections are."""
    ids = None if only is None else list(only)
    return {row["server_id"]: _known(row) for row in _rows(connection, ids)}


def ours(connection: psycopg.Connection[Any], ids: Iterable[str]) -> frozenset[str]:
    """Those of these servers that the ledger has of itself, or has adopted."""
    rows = connection.execute(sql.query("observed", "ours"), {"ids": list(ids)})
    return frozenset(row[0] for row in rows)


def ended(
    connection: psycopg.Connection[Any], ids: AbstractSet[str], knows: Mapping[str, Known]
) -> frozenset[str]:
    """Those of these attachments that have ended in the log."""
    strange = ids - {id_ for each in knows.values() for id_ in each.attachments}
    rows = connection.execute(sql.query("observed", "ended"), {"ids": list(strange)})
    return frozenset(row[0] for row in rows)


def shape_of(server: SeenServer, attachments: Iterable[SeenAttachment]) -> Shape:
    """The same, as a look shows it."""
    own = (server.name or "", server.host, vm_state_of(server).value, power_state_of(server))
    return (
        (*own, server.project_id, server.user_id),
        frozenset(_attachment(each, server) for each in attachments),
        frozenset(server.volumes),
    )


def _attachment(seen: SeenAttachment, server: SeenServer) -> tuple[str | None, ...]:
    state, host = state_of(seen, server)
    return (seen.id, seen.volume_id, state.value, host)


def _known(row: dict[str, Any]) -> Known:
    names = ("name", "host", "vm_state", "power_state", "project_id", "user_id")
    attachments = [
        (
            id_,
            volume,
            *((AttachmentState.RESERVED.value, None) if state in _RESERVED else (state, host)),
        )
        for id_, volume, state, host in row["attachments"]
    ]
    shape = (
        tuple(row[name] for name in names),
        frozenset(attachments),
        frozenset(volume for _, volume in row["mappings"]),
    )
    return Known(
        shape=None if row["deleted"] else shape,
        mappings=tuple(id_ for id_, _ in row["mappings"]),
        attachments=frozenset(each[0] for each in attachments),
    )


def _rows(connection: psycopg.Connection[Any], only: list[str] | None) -> Iterator[dict[str, Any]]:
    cursor, after = connection.cursor(row_factory=dict_row), None
    while True:
        page_of = {"after": after, "limit": PAGE_ROWS, "only": only}
        cursor.execute(sql.query("observed", "servers"), page_of)
        page = cursor.fetchall()
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1]["server_id"]
