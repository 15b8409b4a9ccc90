"""Leftovers: what a fenced host must release when it returns (decision 0027).

This is decided for each server.  While a flow moves a server, it is open to which host the server
will belong: none of it is a leftover yet, and the host stays suspect.  It also stays suspect while
an evacuation takes a server from it, whether it shows that guest or not: one list is not enough
evidence to start a guest twice.

A connection record explains a disk of its server on the host if the log knows its attachment, and
the attachment is no leftover.  An agent writes a record only after its attachment is in the log
(`VerbSpec.durable`), so a record that the log does not know explains no disk.  Its origin is
unknown: it is no leftover, keeps its connection, and a look finds it.
"""

from __future__ import annotations

from collections.abc import Iterable

from aggregates.attachment import Attachment, AttachmentState
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.operation import Operation
from handlers.engine.plan import Place, Plan, plan_of
from handlers.results.meaning import Book
from host_agent.shared.contract.messages import Registration

_GONE = frozenset({AttachmentState.DISCONNECTED, AttachmentState.DELETED})


def take(host: Host, registration: Registration, evacuating: Iterable[str], book: Book) -> bool:
    """Record what a suspect host shows; whether everything is decided.

    `evacuating`: the evacuations from it that are not over.
    """
    attachments = [
        book.get(Attachment, attachment_id) for attachment_id in registration.connections
    ]
    shown = {guest.server_id for guest in registration.guests}
    servers = shown | {a.server_id for a in attachments if a.server_id is not None}
    begun = [book.get(Operation, id_).started for id_ in evacuating]
    servers |= {started.server_id for started in begun if started is not None}
    open_ = {id_ for id_ in servers if _undecided(host.name, id_, id_ in shown, book)}
    host.report_leftovers(
        [
            s.server_id
            for s in registration.guests
            if s.server_id not in open_ and _left(host, s.server_id, book)
        ],
        [
            str(a.id)
            for a in attachments
            if a.version
            and not _of_nova(a.server_id, book)
            and a.server_id not in open_
            and (a.state in _GONE or a.host != host.name)
        ],
        all_decided=not open_,
    )
    return not open_


def unknown(registration: Registration, book: Book) -> tuple[str, ...]:
    """The host's records whose attachment the log does not know."""
    return tuple(i for i in registration.connections if not book.get(Attachment, i).version)


def _left(host: Host, server_id: str, book: Book) -> bool:
    """Whether the guest does not belong on this host.  A guest that the ledger never knew is no
    leftover, nor is one of a server that a Nova has.
    """
    instance = book.get(Instance, server_id)
    elsewhere = host.name not in {instance.host, instance.resize_source}
    given_up = instance.deleted or elsewhere or host.name in instance.left_on
    return bool(instance.version) and not _of_nova(server_id, book) and given_up


def _of_nova(server_id: str | None, book: Book) -> bool:
    """Whether a Nova has the server.  Its attachments do not tell: what adopted them may have been
    archived, with the middle of their streams.
    """
    return server_id is not None and book.get(Instance, server_id).origin is not None


def _undecided(host: str, server_id: str, shown: bool, book: Book) -> bool:
    """Whether a move is under way that decides what belongs to this host: then wait for it.

    An evacuation may still take what is here.  A live migration may have brought the guest that the
    host shows, without a report yet.  A resize may leave it here for a revert.
    """
    instance = book.get(Instance, server_id)
    if instance.host == host:
        plans = _plans(instance, {"evacuate"}, book)
        return any(plan.hosts.get(Place.SOURCE) == host for plan in plans)
    plans = _plans(instance, {"live_migrate", "resize"}, book)
    return shown and any(host in plan.hosts.values() for plan in plans)


def _plans(instance: Instance, flows: set[str], book: Book) -> list[Plan]:
    """The plans of the server's operations of these flows."""
    claims = [op for op, claim in instance.claims.items() if claim.flow in flows]
    return [plan_of(book.get(Operation, op)) for op in claims]
