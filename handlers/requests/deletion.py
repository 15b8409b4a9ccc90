"""The deletion of a server: at once, or after the operations that work on it (decision 0086).

Nova accepts a deletion at any time, and its clients request it once.  So a running operation does
not refuse it.  The server remembers the request (`Instance.DeletionAwaited`), and the transaction
in which the other operation ends or parks begins it (`begin_awaited`).  Meanwhile no other
operation begins on the server (`handlers.requests.guards.start`).

The operation in the way may work only on a volume, for another server that shares it.  So the end
of an operation checks all servers of its volumes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar
from uuid import UUID, uuid5

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Actor, Aggregate, EventContext
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation, OperationState, Outcome
from aggregates.volume import Volume
from handlers.engine.engine import Wait, Work
from handlers.engine.plan import arrival, plan_of, volumes_of
from handlers.requests import actions, grow, operator
from handlers.requests.guards import RequestOrigin, WholeServer
from handlers.results.meaning import Book
from handlers.results.progress import Execution
from host_agent.shared.contract.lane import Lane

A = TypeVar("A", bound=Aggregate)

#: Flows whose end Cinder waits for.
CINDER_WAITS = frozenset({"migrate_volume", "grow_for_cinder", "snapshot", "delete_snapshot"})
#: Why a parked operation ends when its server is deleted.
SUPERSEDED = "its server is deleted"


def advance(execution: Execution, now: float) -> Work | Wait:
    """As `Execution.advance`; if the operation is at rest then, begin what waited for it."""
    operation, book, decision = execution.operation, execution.book, execution.advance(now)
    if operation.state is OperationState.RUNNING:
        return decision
    servers = _servers_of(operation, book)
    if operation.state is OperationState.FINISHED:
        grow.after(operation, servers, book)
    begin_awaited(servers, book, now)
    return decision


def begin(server_id: str, origin: RequestOrigin, book: Book) -> Operation:
    """Accept a deletion.  Parked operations on the server end, and the deletion releases their
    volumes.

    Raises ClaimedError, possibly after it has changed aggregates.
    """
    server = server_of(server_id, book)
    actions.check_deletion(server.instance, origin)
    if server.instance.deletion is not None:
        origin = _origin(server.instance.deletion)
    grow.forget(server.instance)
    volumes, hosts, unlearnt = dict(server.volumes), set[str](), list[Lane]()
    coming: str | None = None
    unmade: list[Lane] = []
    unconnected: set[str] = set()
    for claimant in list(server.instance.claims):
        operation = book.get(Operation, claimant)
        # Cinder has to hear the end from the operation itself.
        cinder_waits = operation.started and operation.started.flow in CINDER_WAITS
        if operation.state is OperationState.PARKED and not cinder_waits:
            ids = volumes_of(operation)
            volumes |= {id_: book.get(Volume, id_) for id_ in ids}
            hosts |= set(filter(None, plan_of(operation).hosts.values()))
            coming = coming or arrival(operation)
            unlearnt += operator.unlearnt(operation)
            unmade += operator.unmade(operation, book)
            unconnected |= operator.unconnected(operation)
            Execution(operation, book).finish(Outcome.CANCELLED, reason=SUPERSEDED)
    held = [
        book.get(Attachment, attachment_id)
        for volume in volumes.values()
        for attachment_id in volume.held_by(server_id)
    ]
    left = [
        (a, a.host if a.may_be_connected and str(a.id) not in unconnected else None)
        for a in held
        if a.state is not AttachmentState.DELETED
    ]
    instance = server.instance
    others = sorted(hosts - {instance.host, instance.resize_source, coming})
    return actions.delete(
        origin,
        server=replace(server, volumes=volumes),
        attachments=left,
        unlearnt=unlearnt,
        unmade=unmade,
        other_host=others[0] if others else None,
        arrival=coming,
    )


def keep(
    server_id: str, origin: RequestOrigin, claimed: errors.ClaimedError, book: Book
) -> str | None:
    """Remember the deletion until the operation of `claimed` has ended; returns the id of the
    future operation.

    None: that operation is no longer in the way, so the caller tries again.
    """
    instance, known = book.get(Instance, server_id), claimed.fields
    what = book.get(Volume, known["id"]) if known["what"] == Volume.__name__ else instance
    if known["operation_id"] not in what.claims:
        return None
    if instance.deletion is None:
        context = origin.context
        instance.record(
            Instance.DeletionAwaited,
            operation_id=str(origin.operation_id),
            request_id=context.request_id,
            actor=context.actor.stored(),
            fingerprint=origin.fingerprint,
            global_request_id=context.global_request_id,
            traceparent=context.traceparent,
            sender=context.sender,
        )
    return instance.deletion.operation_id if instance.deletion else None


def begin_awaited(servers: Iterable[str], book: Book, now: float) -> None:
    """An operation has ended or parked: begin the waiting deletions that nothing blocks now."""
    for server_id in servers:
        awaited = book.get(Instance, server_id).deletion
        if awaited is None:
            continue
        origin = _origin(awaited)
        try:  # on copies: what is refused half way has changed things
            begin(server_id, origin, _Copies(book))
        except errors.ClaimedError:
            continue
        deletion = begin(server_id, origin, book)
        book.add(deletion)
        Execution(deletion, book).advance(now)


def _servers_of(operation: Operation, book: Book) -> list[str]:
    """The servers whose waiting deletion may have waited for this operation."""
    assert operation.started is not None
    servers = {operation.started.server_id}
    for volume_id in volumes_of(operation):
        volume = book.get(Volume, volume_id)
        servers |= set(volume.holders.values())
        servers |= {claim.server_id for claim in volume.claims.values()}
    return sorted(servers)


def _origin(awaited: Instance.DeletionAwaited) -> RequestOrigin:
    """The origin of the accepted request: a later lock does not stop it."""
    context = EventContext(
        actor=Actor.of(awaited.actor),
        request_id=awaited.request_id,
        global_request_id=awaited.global_request_id,
        traceparent=awaited.traceparent,
        sender=awaited.sender,
        passes_locks=True,
    )
    operation_id = UUID(awaited.operation_id)
    return RequestOrigin(
        operation_id=operation_id,
        bdm_id=uuid5(operation_id, "no mapping"),  # of another aggregate than the operation's
        context=context,
        fingerprint=awaited.fingerprint,
    )


def server_of(server_id: str, book: Book) -> WholeServer:
    """The server with its mappings, attachments and volumes."""
    instance = book.get(Instance, server_id)
    mappings = [book.get(BlockDeviceMapping, bdm_id) for bdm_id in instance.devices]
    ids = sorted({m.volume_id for m in mappings if m.live and m.volume_id is not None})
    volumes = {volume_id: book.get(Volume, volume_id) for volume_id in ids}
    return WholeServer(instance=instance, mappings=mappings, volumes=volumes)


class _Copies:
    """A book of copies: changes to them can be discarded."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._copies: dict[tuple[type[Aggregate], str], Aggregate] = {}

    def get(self, kind: type[A], id: str) -> A:  # noqa: A002
        copy = self._copies.get((kind, id))
        if copy is None:
            copy = self._copies[kind, id] = self._book.get(kind, id).fork()
        return copy  # type: ignore[return-value]

    def add(self, aggregate: Aggregate) -> None:
        self._copies[type(aggregate), str(aggregate.id)] = aggregate
