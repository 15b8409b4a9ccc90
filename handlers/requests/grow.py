"""Cinder reports that a volume has grown: which guests need it, and when.

Cinder reports it once (extend_volume of its volume manager).  So nothing is refused because of
another operation: the server remembers the growth (`Instance.GrowthAwaited`), and the transaction
that ends the other operation begins it (`begin_awaited`).  A second report causes a second growth,
because the volume may have grown again.  A silent host finds its command when it returns; an
operation for an agent that is too old parks.  If another host shows the guest, or its own does not,
a command would not find it: the server remembers the growth until its own host alone shows the
guest.  A fence ends what its host had not done (`after`), but may have cut off a guest that runs
on.  Nobody reports the growth again, so it begins when a host shows the guest again.

Without a host there is no guest to tell: the next start uses the volume's size of then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import uuid5

from aggregates import errors
from aggregates.base import Actor, EventContext
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.engine.plan import Place
from handlers.requests.guards import Concerned, RequestOrigin, refuse_guestless, start
from handlers.results.meaning import Book
from handlers.results.presence import elsewhere
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import VolumeView

#: What refuses it for a while: it is remembered.
IN_THE_WAY = (
    errors.ClaimedError,
    errors.ShownElsewhereError,
    errors.UnshownServerError,
    errors.GuestNotThereError,
)


@dataclass(frozen=True, kw_only=True)
class GrowVolume:
    """POST os-server-external-events, `volume-extended`.

    `waiting`: Cinder waits for the guest, and needs to be told the result.
    """

    server_id: str
    volume_id: str
    waiting: bool = False


def grow(
    request: GrowVolume, origin: RequestOrigin, view: VolumeView | None, book: Book
) -> Operation:
    """Accept it.  Raises NotAttachedError if the server does not have the volume on a host, and one
    of IN_THE_WAY if it has to wait.
    """
    instance = book.get(Instance, request.server_id)
    # Before anything is changed: what is refused here is not given up, but waits.  And before it
    # is asked who has the volume: what is in the way may bring it, and have connected it already.
    instance.refuse_claimed(exclusive=False)
    if signs := "; ".join(map(str, elsewhere(instance, book))):
        raise errors.ShownElsewhereError(flow="grow", server_id=request.server_id, signs=signs)
    mapping, host = _had(instance, request.volume_id, book)
    refuse_guestless(instance, "extend_volume")
    volume = book.get(Volume, request.volume_id)
    volume.refuse_beside(request.server_id, shared=mapping.multiattach)
    return start(
        "grow_for_cinder" if request.waiting else "grow",
        origin,
        instance,
        [mapping.lane(volume, host)],
        {Place.HOST: host},
        Concerned(known=[volume], shown=lambda: [view]),
    )


def _had(instance: Instance, volume_id: str, book: Book) -> tuple[BlockDeviceMapping, str]:
    """The mapping by which the server has the volume, and its host.  Raises NotAttachedError."""
    device = instance.device_of(volume_id)
    mapping = book.get(BlockDeviceMapping, device.bdm_id) if device else None
    if mapping is None or not mapping.live or mapping.attachment_id is None or not instance.host:
        raise errors.NotAttachedError(server_id=str(instance.id), volume_id=volume_id)
    if mapping.state is MappingState.UNPLUGGED:  # by a fence (0083): its next start connects it
        raise errors.NotAttachedError(server_id=str(instance.id), volume_id=volume_id)
    return mapping, instance.host


def is_held_up(request: GrowVolume, book: Book) -> bool:
    """Whether the growth has to wait: for an operation on the server, for one on the volume for
    another server, or until its host, and no other, shows the guest.
    """
    instance, volume = book.get(Instance, request.server_id), book.get(Volume, request.volume_id)
    busy = bool(instance.claims or volume.claims)
    unseen = instance.unshown or instance.power_state == PowerState.NOSTATE.value
    return busy or unseen or any(elsewhere(instance, book))


def wait(request: GrowVolume, origin: RequestOrigin, instance: Instance) -> None:
    """Remember the growth until nothing is in the way."""
    context = origin.context
    instance.record(
        Instance.GrowthAwaited,
        volume_id=request.volume_id,
        waiting=request.waiting,
        request_id=context.request_id,
        actor=context.actor.stored(),
        sender=context.sender,
    )


def after(operation: Operation, servers: Iterable[str], book: Book) -> None:
    """The operation has ended: begin the growths that waited for it, of all servers with its
    volumes.

    A growth that a fence has ended is remembered until a host shows the guest again.
    """
    started = operation.started
    assert started is not None, "it was"
    instance = book.get(Instance, started.server_id)
    if started.flow == "grow" and operation.history.overtaken_by_fence:
        for lane in operation.lanes:
            instance.record(
                Instance.GrowthAwaited,
                volume_id=lane.volume_id,
                waiting=False,
                request_id=started.request_id,
                actor=started.actor,
                sender=started.sender,
            )
    for server_id in servers:
        begin_awaited(book.get(Instance, server_id), book)


def begin_awaited(instance: Instance, book: Book) -> None:
    """An operation has ended, or a host shows the guest: begin the waiting growths, unless
    something else, such as a fence, is in the way.  A server with a waiting deletion gets none, and
    neither does one that was handed back, until it is adopted again.
    """
    if instance.deletion is not None or instance.origin is not None:
        return
    for volume_id, awaited in list(instance.growth.items()):
        origin = _origin(instance, awaited)
        request = GrowVolume(
            server_id=str(instance.id), volume_id=volume_id, waiting=awaited.waiting
        )
        try:
            instance.refuse_claimed(exclusive=False)
            _, host = _had(instance, volume_id, book)
            if book.get(Host, host).fenced:
                continue
            operation = grow(request, origin, None, book)
        except IN_THE_WAY:
            continue
        except errors.NotAttachedError:
            instance.record(Instance.GrowthBegun, volume_id=volume_id, by_operation=None)
            continue
        book.add(operation)
        instance.record(Instance.GrowthBegun, volume_id=volume_id, by_operation=str(operation.id))


def forget(instance: Instance) -> None:
    """The server is deleted: drop its waiting growths."""
    for volume_id in list(instance.growth):
        instance.record(Instance.GrowthBegun, volume_id=volume_id, by_operation=None)


def _origin(instance: Instance, awaited: Instance.GrowthAwaited) -> RequestOrigin:
    operation_id = uuid5(instance.id, f"growth of {awaited.volume_id}, {instance.version}")
    context = EventContext(
        actor=Actor.of(awaited.actor), request_id=awaited.request_id, sender=awaited.sender
    )
    return RequestOrigin(operation_id=operation_id, bdm_id=operation_id, context=context)
