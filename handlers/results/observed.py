"""What is seen in another cloud, as events: the ledger's own events, marked as seen
(aggregates.base.Seen).

A state that is already known records nothing, so a look without changes appends nothing.  Only what
was requested and is not there has ended; what a look did not report stays as it was.

Theory of operation.  Cinder is the source of a server's attachments, Nova the source of its
mappings and its host.  They are read one after the other, and in a live migration they differ for
a while: the mapping names the new attachment while the server is still on the old host.  Each is
recorded as its own party reports it; none is derived from the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import NovaTold, Seen
from aggregates.host import Host
from aggregates.instance import Instance, VmState
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.volume import Volume
from handlers.drift.seen import SeenAttachment, SeenMapping, SeenServer
from handlers.results.meaning import Book
from host_agent.shared.contract.messages import PowerState

#: Cinder's statuses of an attachment that a host may have; the others are reservations.
_STATE_OF = {"attaching": AttachmentState.CONNECTING, "attached": AttachmentState.ATTACHED}
#: Nova's states of a server that ours do not have (its class InstanceState).
_STATES = {
    "suspended": VmState.PAUSED,
    "rescued": VmState.ACTIVE,
    "shelved": VmState.STOPPED,
    "soft-delete": VmState.STOPPED,
}
#: Nova's numbers of power states (its class InstancePowerState); suspended: no guest.
_POWERS = {
    1: PowerState.RUNNING,
    3: PowerState.PAUSED,
    4: PowerState.SHUTDOWN,
    6: PowerState.CRASHED,
    7: PowerState.SHUTDOWN,
}
#: What tells that a volume is attached, or is no more; a server's boot and its end go for all.
_BEGINS = {"instance.volume_attach", "instance.create"}
_ENDS = {"instance.volume_detach", "instance.delete"}
#: Nova's instance actions that give a server a volume, take one, or bring its volumes to another
#: host (nova/compute/instance_actions.py).
_OF_VOLUMES = {
    *("create", "delete", "restore", "rebuild", "attach_volume", "detach_volume", "swap_volume"),
    *("live-migration", "migrate", "resize", "confirmResize", "revertResize", "evacuate"),
    *("shelve", "unshelve"),
}
#: Of an action that failed nothing is confirmed by what is there.
_PHASES = {"start", "end"}
#: How far a clock of Nova's may be from the database's; what is further off is of another time.
CLOCKS_APART = timedelta(seconds=5)


def vm_state_of(server: SeenServer) -> VmState:
    """The ledger's state for one of Nova's."""
    told = server.vm_state or ""
    return VmState(told) if told in set(VmState) else _STATES.get(told, VmState.ERROR)


def power_state_of(server: SeenServer) -> str:
    return _POWERS.get(server.power_state or 0, PowerState.NOSTATE).value


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A notification of Nova about a server, or about this volume of it, and the boot order of its
    volumes.  It proves nothing: an event that a look has confirmed gets only the user from it.
    """

    told: NovaTold
    volume_id: str | None = None
    boot_indexes: Mapping[str, int] = field(default_factory=dict)

    def is_of(self, kinds: set[str], volume_id: str | None) -> bool:
        kind, _, phase = self.told.event.rpartition(".")
        return kind in kinds and phase in _PHASES and self.volume_id in {None, volume_id}

    def is_within(self, seen: Seen) -> bool:
        """Whether it can belong to this interval, and not to an earlier or a later one."""
        if seen.after is None:
            return False
        at = datetime.fromisoformat(self.told.at)
        after, before = map(datetime.fromisoformat, (seen.after, seen.before))
        return after - CLOCKS_APART <= at <= before + CLOCKS_APART


@dataclass(frozen=True, kw_only=True)
class ServerSeen:
    """Everything that a look has seen of one server.

    `server` None: Nova itself answered 404.  `mappings` None: Nova was not asked for them, so
    nothing is known of them.  `attachments`: those that Cinder has; `gone`: those for which Cinder
    itself answered 404.  `mapped`: the mappings that the ledger knows.  `shared`: volumes that are
    multi-attach.

    `seen`: the interval of what Nova's and Cinder's lists show; `asked`: the interval of mappings
    whose change no list shows, if nobody has asked for them since another moment.  `notices`:
    Nova's recent notifications about it, in any order, possibly repeated.  `actions`: all requests
    about it that Nova still has; None: Nova was not asked, or did not answer.
    """

    server_id: str
    server: SeenServer | None
    attachments: Iterable[SeenAttachment]
    gone: Iterable[str] = ()
    mapped: Iterable[str] = ()
    shared: frozenset[str] = frozenset()
    seen: Seen
    asked: Seen
    notices: Collection[Notice] = ()
    actions: Collection[NovaTold] | None = None

    def begun(self, volume_id: str | None = None) -> Seen:
        """With the user who attached the volume, or made the server, if Nova has reported it."""
        return self._told(_BEGINS, volume_id)

    def ended(self, volume_id: str | None = None) -> Seen:
        return self._told(_ENDS, volume_id)

    def boot_index(self, volume_id: str) -> int | None:
        """APIs show only the root's, and no notification is believed about that."""
        told = [n for n in self._lately() if volume_id in n.boot_indexes]
        return told[-1].boot_indexes[volume_id] or None if told else None

    def _told(self, kinds: set[str], volume_id: str | None) -> Seen:
        of_it = [notice for notice in self._lately() if notice.is_of(kinds, volume_id)]
        return replace(self.seen, told=of_it[-1].told) if of_it else self.seen

    def _lately(self) -> list[Notice]:
        within = (notice for notice in self.notices if notice.is_within(self.seen))
        return sorted(within, key=lambda notice: notice.told.at)


def record(sight: ServerSeen, book: Book) -> bool:
    """Record the changes of the server.  False: the ledger manages it, and nothing was recorded.

    A host of ours may have shown it before, and whatever it shows makes no server of Nova's ours.
    """
    instance = book.get(Instance, sight.server_id)
    is_novas = sight.server is not None and instance.only_shown
    if instance.version and instance.origin is None and not is_novas:
        return False
    if sight.server is None and instance.version == 0:
        return True
    if sight.server is not None:
        new = instance.origin is None
        _server(sight.server, instance, sight.begun() if new else sight.seen, book)
        # Nova shows a server that it builds before it notes who asked for it.
        if new and sight.actions is not None and (sight.actions or not sight.server.busy):
            _actions(sight.actions, instance, sight.seen)
    fresh = {each.id for each in sight.attachments if _attachment(each, sight, book)}
    _mappings(sight, fresh, book)
    for attachment_id in sight.gone:
        _gone(book.get(Attachment, attachment_id), sight, book)
    if sight.server is None and not instance.deleted:
        instance.record(Instance.Deleted, seen=sight.ended().stored())
    return True


def record_deleted(row: Mapping[str, Any], seen: Seen, book: Book) -> bool:
    """Record a soft-deleted mapping of Nova's database; `row`: the fields of DeletedRowSeen.

    False: the log has this mapping already.  NotNovasRowError: the server is the ledger's own, or
    the attachment another's; who may see that one would see this, too.
    """
    past = book.get(BlockDeviceMapping, str(uuid5(UUID(row["mapping_id"]), "deleted")))
    if past.version or book.get(BlockDeviceMapping, row["mapping_id"]).state is not None:
        return False
    instance = book.get(Instance, row["server_id"])
    novas = instance.origin or instance.came_from or instance.only_shown
    if instance.version and not novas:
        raise errors.NotNovasRowError(what=f"server {instance.id} is the ledger's own")
    if row["attachment_id"] is not None:
        known = book.get(Attachment, row["attachment_id"])
        of = (known.server_id, known.volume_id)
        if known.version and of != (row["server_id"], row["volume_id"]):
            text = f"attachment {known.id} is of another server or volume"
            raise errors.NotNovasRowError(what=text)
    past.record(BlockDeviceMapping.DeletedRowSeen, **row, seen=seen.stored())
    return True


def state_of(seen: SeenAttachment, server: SeenServer | None) -> tuple[AttachmentState, str | None]:
    """The ledger's state for an attachment as Cinder shows it, and its host.

    Cinder lists the host only for attached ones, and not always: then it is the server's host.
    """
    state = _STATE_OF.get(seen.status, AttachmentState.RESERVED)
    host = seen.host
    if host is None and state is AttachmentState.ATTACHED and server is not None:
        host = server.host
    return (AttachmentState.RESERVED, None) if host is None else (state, host)


def _server(server: SeenServer, instance: Instance, seen: Seen, book: Book) -> None:
    if server.host is not None:
        host = book.get(Host, server.host)
        if not host.is_known:
            host.record(Host.HostSeen, name=server.host, seen=seen.stored())
    now = {
        "name": server.name or "",
        "host": server.host,
        "power_state": power_state_of(server),
        "vm_state": vm_state_of(server).value,
        "project_id": server.project_id,
        "user_id": server.user_id,
    }
    known = {name: getattr(instance, name) for name in now if name != "vm_state"}
    known["vm_state"] = instance.own_state.value
    if instance.origin is None or now != known:
        instance.record(Instance.ServerSeen, **now, seen=seen.stored())


def _actions(actions: Collection[NovaTold], instance: Instance, seen: Seen) -> None:
    asked = sorted(actions, key=lambda each: each.at)
    instance.record(
        Instance.ActionsSeen,
        actions=[vars(each) for each in asked if each.event.partition(".")[0] in _OF_VOLUMES],
        back_to=asked[0].at if asked else None,
        whole=any(each.event == "create" for each in asked),
        seen=seen.stored(),
    )


def _attachment(seen: SeenAttachment, sight: ServerSeen, book: Book) -> bool:
    """Whether it is new."""
    attachment, begun = book.get(Attachment, seen.id), sight.begun(seen.volume_id)
    at = begun.stored()
    new = attachment.version == 0
    if new:
        ids = {"volume_id": seen.volume_id, "server_id": sight.server_id}
        attachment.record(Attachment.AttachmentCreated, **ids, adopted=True, seen=at)
        held = {"server_id": sight.server_id, "attachment_id": seen.id}
        book.get(Volume, seen.volume_id).record(Volume.Held, **held, seen=at)
    elif attachment.origin is None or _is_over(attachment):
        return False
    state, host = state_of(seen, sight.server)
    if host is None and seen.status in _STATE_OF:
        return new  # on a host that no list names: it stays where it was
    if attachment.may_be_connected and host != attachment.host:
        attachment.record(Attachment.Disconnected, seen=sight.seen.stored())
    if host is not None:
        if not attachment.may_be_connected:
            since = replace(begun, claimed=seen.since).stored()
            attachment.record(Attachment.ConnectorUpdated, host=host, seen=since)
        if state is AttachmentState.ATTACHED and attachment.state is AttachmentState.CONNECTING:
            attachment.record(Attachment.Connected, seen=at)
            attachment.record(Attachment.Completed, seen=at)
    return new


def _is_over(attachment: Attachment) -> bool:
    """Whether it had ended, or has another id here."""
    return attachment.state in {AttachmentState.DELETED, AttachmentState.RENAMED}


def _gone(attachment: Attachment, sight: ServerSeen, book: Book) -> None:
    """Cinder has it no more."""
    if attachment.origin is None or _is_over(attachment):
        return
    assert attachment.volume_id is not None, "it was created"
    at, id_ = sight.ended(attachment.volume_id).stored(), str(attachment.id)
    if attachment.state not in {AttachmentState.RESERVED, AttachmentState.DISCONNECTED}:
        attachment.record(Attachment.Disconnected, seen=at)
    attachment.record(Attachment.Deleted, seen=at)
    volume = book.get(Volume, attachment.volume_id)
    if id_ in volume.holders:
        held = {"server_id": attachment.server_id, "attachment_id": id_}
        volume.record(Volume.Released, **held, seen=at)


def _mappings(sight: ServerSeen, new: Collection[str], book: Book) -> None:
    shown: tuple[SeenMapping, ...] = ()
    if sight.server is not None:
        if sight.server.mappings is None:
            return
        shown = sight.server.mappings
    for each in shown:
        if each.attachment_id is not None:  # else by Cinder's old calls, which tell too little
            _mapping(each, each.attachment_id, sight, new, book)
    for mapping_id in set(sight.mapped) - {each.id for each in shown}:
        mapping = book.get(BlockDeviceMapping, mapping_id)
        has = sight.server.volumes if sight.server is not None else ()
        if not (
            mapping.legacy and mapping.volume_id in has
        ):  # of those Nova tells the volume alone
            _unmapped(mapping, sight.ended(mapping.volume_id))


def _mapping(
    shown: SeenMapping, attachment_id: str, sight: ServerSeen, new: Collection[str], book: Book
) -> None:
    assert sight.server is not None, "a mapping has a server"
    known, at = book.get(BlockDeviceMapping, shown.id), sight.begun(shown.volume_id).stored()
    is_root = shown.device and shown.device == sight.server.root_device
    through = {"volume_id": shown.volume_id, "attachment_id": attachment_id}
    if known.version == 0:
        known.record(
            BlockDeviceMapping.MappingCreated,
            **through,
            server_id=sight.server_id,
            device_name=shown.device,
            tag=shown.tag,
            boot_index=0 if is_root else sight.boot_index(shown.volume_id),
            delete_on_termination=shown.delete_on_termination,
            multiattach=shown.volume_id in sight.shared,
            seen=at,
        )
    elif not known.live:
        return
    elif (known.volume_id, known.attachment_id) != tuple(through.values()):
        # Nobody names an attachment before there is one.
        is_new = attachment_id in new or book.get(Attachment, attachment_id).version == 0
        since = sight.seen if is_new else sight.asked
        known.record(BlockDeviceMapping.AttachmentSwitched, **through, seen=since.stored())
    if known.delete_on_termination != shown.delete_on_termination:
        known.record(
            BlockDeviceMapping.DeleteOnTerminationSet,
            delete_on_termination=shown.delete_on_termination,
            seen=sight.asked.stored(),
        )
    attached = book.get(Attachment, attachment_id).state is AttachmentState.ATTACHED
    plugged = known.state is MappingState.PLUGGED and known.device_name == shown.device
    if attached and shown.device and not plugged:
        known.record(BlockDeviceMapping.DevicePlugged, device_name=shown.device, seen=at)


def _unmapped(mapping: BlockDeviceMapping, seen: Seen) -> None:
    if not mapping.live:
        return
    if mapping.state is MappingState.PLUGGED:
        mapping.record(BlockDeviceMapping.DeviceUnplugged, seen=seen.stored())
    mapping.record(BlockDeviceMapping.MappingEnded, seen=seen.stored())
