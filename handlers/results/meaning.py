"""What a verb's success means: its domain events.

The transaction that records the success also records them, whether a step did it, an undo, or an
operator who vouches for it (`waived` then has the reason).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Aggregate
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.volume import Volume
from handlers.engine.plan import Place
from handlers.engine.verbs import LedgerVerb
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import GuestOrder, Verb

A = TypeVar("A", bound=Aggregate)
Outputs = dict[str, Any]


class Book(Protocol):
    """Aggregates by id, each loaded once; what changed is saved together."""

    def get(self, kind: type[A], id: str) -> A: ...  # noqa: A002
    def add(self, aggregate: Aggregate) -> None: ...


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """A successful step: of one lane, or (`order`) of the whole server.

    `host` did it; None: the ledger.  `error` is the operation's first error.
    """

    operation_id: str
    server_id: str
    outputs: Outputs
    host: str | None
    hosts: dict[Place, str | None]
    book: Book
    error: str | None = None
    of_lane: Lane | None = None
    order: GuestOrder | None = None

    @property
    def lane(self) -> Lane:
        assert self.of_lane is not None, "the verb is one of lanes"
        return self.of_lane

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self.order.lanes if self.order else ()

    @property
    def attachment_id(self) -> str:
        if self.lane.attachment_id is None:  # every other step comes after one that says it
            raise errors.NoAttachmentIdError(volume_id=self.lane.volume_id)
        return self.lane.attachment_id

    @property
    def attachment(self) -> Attachment:
        return self.book.get(Attachment, self.attachment_id)

    @property
    def volume(self) -> Volume:
        return self.book.get(Volume, self.lane.volume_id)

    @property
    def instance(self) -> Instance:
        return self.book.get(Instance, self.server_id)

    @property
    def mapping(self) -> BlockDeviceMapping:
        return self.book.get(BlockDeviceMapping, self.lane.bdm_id)


# --- attachments -----------------------------------------------------------------------


def _reserved(done: StepDone) -> None:
    _held_as(done, legacy=done.lane.legacy)


def _held_as(done: StepDone, *, legacy: bool) -> None:
    done.attachment.record(
        Attachment.AttachmentCreated,
        volume_id=done.lane.volume_id,
        server_id=done.server_id,
        adopted=bool(done.outputs.get("adopted")),
        legacy=legacy,
        access_mode=done.lane.access_mode,
    )
    _hold(done, done.lane.volume_id)


def _hold(done: StepDone, volume_id: str) -> None:
    done.book.get(Volume, volume_id).record(
        Volume.Held, server_id=done.server_id, attachment_id=done.attachment_id
    )


def _created(done: StepDone) -> None:
    _reserved(done)
    _updated(done)


def _updated(done: StepDone) -> None:
    connector_host = done.outputs.get("connector_host")
    if connector_host not in {None, done.host}:
        names = {"id": done.attachment_id, "host": done.host, "connector_host": connector_host}
        raise errors.ForeignConnectorError(**names)
    done.attachment.record(
        Attachment.ConnectorUpdated,
        host=done.host,
        driver=done.outputs.get("driver"),
        target_digest=done.outputs.get("target_digest"),
        access_mode=_access_mode_of(done),
    )


def _access_mode_of(done: StepDone) -> str | None:
    """The mode that the host reports; None: not reported.  Never wider than requested."""
    return "ro" if done.lane.access_mode == "ro" else done.outputs.get("access_mode")


def _connected(done: StepDone) -> None:
    # Before a start it is only made sure of: nothing is recorded if it is attached already.
    path = done.outputs.get("device_path")
    if done.attachment.state is not AttachmentState.ATTACHED:
        done.attachment.record(Attachment.Connected, device_path=path)
    done.mapping.learn_access_mode(_access_mode_of(done))


def _completed(done: StepDone) -> None:
    state = done.attachment.state
    # Cinder was told once more; or, in place of a fenced host that never connected it, nothing.
    if state is AttachmentState.ATTACHED or (
        done.host is None and state is AttachmentState.RESERVED
    ):
        return
    # In place of a fenced host, which may have been at a refresh:
    if done.host is None and state is AttachmentState.CONNECTING:
        done.attachment.record(Attachment.Connected, device_path=None)
    done.attachment.record(Attachment.Completed)


def _disconnected(done: StepDone) -> None:
    if done.lane.attachment_id is None:  # whatever there is, nobody connected it
        return
    # One that never had a connector has nothing to disconnect (LP 1738254).
    if done.attachment.state not in {AttachmentState.RESERVED, AttachmentState.DELETED}:
        done.attachment.record(
            Attachment.Disconnected,
            shared=bool(done.outputs.get("shared")),
            waived=done.outputs.get("waived"),
        )


def _ended(done: StepDone) -> None:
    """The log did not know them, and they are deleted."""
    for attachment_id, volume_id in done.outputs.get("ended", {}).items():
        attachment = done.book.get(Attachment, attachment_id)
        if attachment.version == 0:
            attachment.record(
                Attachment.Disowned,
                volume_id=volume_id,
                server_id=done.server_id,
                why="found in Cinder, and no operation knew it",
            )


def _deleted(done: StepDone) -> None:
    _ended(done)
    if done.lane.attachment_id is None:  # the reservation never came to be
        return
    # Undoing may delete at the host and again in the ledger: one fact (LP 1812969).
    if done.attachment.state is not AttachmentState.DELETED:
        done.attachment.record(Attachment.Deleted, waived=done.outputs.get("waived"))
        done.volume.record(
            Volume.Released, server_id=done.server_id, attachment_id=done.attachment_id
        )


def _converted(done: StepDone) -> None:
    """The old calls' record in Cinder is now of the new kind; without a host it is a bare
    reservation.
    """
    _held_as(done, legacy=False)
    assert done.lane.other is not None, "only a mapping that has one is converted"
    former = done.book.get(Attachment, done.lane.other.attachment_id or "")
    if done.host is not None:
        _updated(done)
        done.attachment.record(Attachment.Connected, device_path=done.outputs.get("device_path"))
        done.attachment.record(Attachment.Completed)
        done.mapping.learn_access_mode(_access_mode_of(done))
        former.record(Attachment.Disconnected, converted_to=done.attachment_id)
    former.record(Attachment.Deleted, converted_to=done.attachment_id)
    done.volume.record(Volume.Released, server_id=done.server_id, attachment_id=str(former.id))


def _released(done: StepDone) -> None:
    """The ledger may not know the attachment, or have it on another host."""
    if done.lane.attachment_id is None:  # the host was asked about the guest alone
        return
    attachment = done.attachment
    if attachment.may_be_connected and attachment.host == done.host:
        shared = bool(done.outputs.get("shared"))
        stands_for = _stands_for(done)
        attachment.record(Attachment.Disconnected, shared=shared, converted_to=stands_for)


def _stands_for(done: StepDone) -> str | None:
    """The attachment that has its connection from now on."""
    return done.lane.other.attachment_id if done.lane.other else None


def _attachment_forgotten(done: StepDone) -> None:
    """Cinder does not have the attachment, and its host has disconnected it."""
    attachment, volume_id = done.attachment, done.lane.volume_id
    if attachment.state is not AttachmentState.DELETED:
        attachment.record(Attachment.Deleted, converted_to=_stands_for(done))
        done.book.get(Volume, volume_id).record(
            Volume.Released, server_id=done.server_id, attachment_id=done.attachment_id
        )


def _dropped(done: StepDone) -> None:
    for attachment_id, volume_id in done.outputs["ended"].items():
        attachment = done.book.get(Attachment, attachment_id)
        if attachment.version == 0:
            why = "found in Cinder, and no host has it"
            about = {"volume_id": volume_id, "server_id": done.server_id}
            attachment.record(Attachment.Disowned, **about, why=why)


# --- volumes ---------------------------------------------------------------------------


def _made(done: StepDone) -> None:
    volume_id = done.outputs.get("volume_id")
    if volume_id is None:
        return
    volume = done.book.get(Volume, volume_id)
    volume.made(done.server_id, done.lane.bdm_id)
    if not volume.claims:
        volume.claim(done.operation_id, server_id=done.server_id, flow="boot")


def _unmade(done: StepDone) -> None:
    _volumes_deleted(done, "made for a server that could not be built")


def _volume_let_go(done: StepDone) -> None:
    _volumes_deleted(done, "it goes with its server")


def _volumes_deleted(done: StepDone, why: str) -> None:
    _ended(done)
    for volume_id in done.outputs.get("deleted", ()):
        volume = done.book.get(Volume, volume_id)
        if not volume.deleted:
            volume.record(Volume.VolumeDeleted, server_id=done.server_id, why=why)
    if (refused := done.outputs.get("refused")) and done.lane.volume_id:
        done.volume.record(Volume.VolumeDeletionRefused, server_id=done.server_id, why=refused)


def _migrated_by_cinder(done: StepDone) -> None:
    """Cinder says which id the volume keeps; every record of the volume follows (LP 1943431).

    If nobody has asked Cinder (a skipped step), the volume has the id of the copy.
    """
    kept, mapping = done.outputs.get("volume_id"), done.mapping
    if kept in {None, mapping.volume_id} or mapping.volume_id is None:
        return
    held = {"server_id": done.server_id, "attachment_id": done.attachment_id}
    done.book.get(Volume, mapping.volume_id).record(Volume.Released, **held, renamed_to=kept)
    _hold(done, kept)
    done.attachment.record(
        Attachment.VolumeRenamed, volume_id=kept, former_volume_id=mapping.volume_id
    )
    mapping.record(
        BlockDeviceMapping.AttachmentSwitched, volume_id=kept, attachment_id=done.attachment_id
    )


def _volume_dropped(done: StepDone) -> None:
    if not done.volume.deleted:
        why = "made for a server that never had it"
        done.volume.record(Volume.VolumeDeleted, server_id=done.server_id, why=why)


# --- mappings --------------------------------------------------------------------------


def _bound(done: StepDone) -> None:
    lane, mapping = done.lane, done.mapping
    what = {
        "volume_id": lane.volume_id,
        "attachment_id": done.attachment_id,
        "delete_on_termination": lane.delete_on_termination,
        "multiattach": lane.multiattach,
        "legacy": lane.legacy,
        "serial": lane.disk_serial,
        "access_mode": lane.access_mode,
    }
    done.instance.set_device_volume(lane.bdm_id, lane.volume_id)
    if mapping.state is MappingState.VACANT:
        mapping.record(BlockDeviceMapping.RootAttached, **what, tag=lane.tag)
        return
    mapping.record(
        BlockDeviceMapping.MappingCreated,
        server_id=lane.server_id,
        device_name=lane.device_name,
        tag=lane.tag,
        boot_index=lane.boot_index,
        **what,
    )


def _unbound(done: StepDone) -> None:
    mapping, instance = done.mapping, done.instance
    if mapping.boot_index == 0 and not instance.deleted:  # S2: the place stays
        if mapping.live and mapping.state is not MappingState.VACANT:
            mapping.detach_root()
        instance.set_device_volume(done.lane.bdm_id, None)
        return
    if mapping.live:
        mapping.record(BlockDeviceMapping.MappingEnded)
    instance.release_device(done.lane.bdm_id)


def _switched(done: StepDone) -> None:
    _switch(done, kept=None)


def _switched_keeping(done: StepDone) -> None:
    _switch(done, kept=done.lane.other.attachment_id if done.lane.other else None)


def _switch(done: StepDone, kept: str | None) -> None:
    done.mapping.record(
        BlockDeviceMapping.AttachmentSwitched,
        volume_id=done.lane.volume_id,
        attachment_id=done.attachment_id,
        kept=kept,
        legacy=done.attachment.legacy,
    )
    done.instance.set_device_volume(done.lane.bdm_id, done.lane.volume_id)


def _replaced(done: StepDone) -> None:
    """For a resized server: what it has now, or what its source has kept."""
    mapping, former = done.mapping, done.lane.other and done.lane.other.attachment_id
    now = {"attachment_id": mapping.attachment_id, "kept": mapping.kept, "legacy": mapping.legacy}
    if former == mapping.kept:
        now |= {"kept": done.attachment_id}
    else:
        now |= {"attachment_id": done.attachment_id, "legacy": done.attachment.legacy}
    mapping.record(BlockDeviceMapping.AttachmentSwitched, volume_id=done.lane.volume_id, **now)


def _plugged(done: StepDone) -> None:
    done.mapping.record(
        BlockDeviceMapping.DevicePlugged,
        device_name=done.outputs.get("device_name", done.lane.device_name),
        bus=done.outputs.get("bus"),
    )


def _unplugged(done: StepDone) -> None:
    _unplug(done.mapping, done.outputs.get("waived"))


def _unplug(mapping: BlockDeviceMapping, waived: str | None) -> None:
    if mapping.state in {MappingState.BOUND, MappingState.PLUGGED}:
        mapping.record(BlockDeviceMapping.DeviceUnplugged, waived=waived)


def _spawned(done: StepDone) -> None:
    _powered(done)
    for lane in done.lanes:
        mapping = done.book.get(BlockDeviceMapping, lane.bdm_id)
        if mapping.live and mapping.state is not MappingState.PLUGGED:
            mapping.record(BlockDeviceMapping.DevicePlugged, device_name=lane.device_name)


def _powered(done: StepDone) -> None:
    power_state = done.outputs.get("power_state") or done.instance.power_state
    if done.host is not None:
        _placed(done, done.host, power_state)


def _power_waived(done: StepDone) -> None:
    """The intended power state on a fenced host, for the flow that continues from there.

    Nobody has put the guest there since the fence, so the fence covers it as before.
    """
    fenced = str(done.outputs["fenced_host"])
    runs = done.order is not None and done.order.running
    epoch = done.book.get(Host, fenced).epoch - 1
    done.instance.place(fenced, "running" if runs else "shutdown", epoch)


def _removed(done: StepDone) -> None:
    """No guest has its disks any more, unless another host shows one, or a resize has kept one."""
    instance, fenced = done.instance, done.outputs.get("fenced_host")
    if fenced is not None:
        instance.record(Instance.GuestLeft, host=fenced)
    there = fenced or done.host
    last = there in {None, instance.host} and instance.resize_source in {None, there}
    for lane in done.lanes if last or instance.deleted else ():
        _unplug(done.book.get(BlockDeviceMapping, lane.bdm_id), done.outputs.get("waived"))


def _moved(done: StepDone) -> None:
    destination = done.hosts[Place.DESTINATION]
    assert destination is not None, "a migration has a destination"
    _placed(done, destination, done.instance.power_state)


def _placed(done: StepDone, host: str, power_state: str) -> None:
    """`fences` decides in which epoch of the host the guest arrived: a host that moves its guest to
    another one may do so after that one was fenced.
    """
    epoch = done.book.get(Host, host).epoch
    done.instance.place(host, power_state, epoch)


def _failed(done: StepDone) -> None:
    # Under its own name, so that it lasts when the operation is over.
    message = done.error or "The server could not be built."
    done.instance.record(Instance.Faulted, claimant=done.server_id, message=message)


def _offloaded(done: StepDone) -> None:
    done.instance.record(Instance.Offloaded)


def _forgotten(done: StepDone) -> None:
    instance = done.instance
    vacant = [id_ for id_, device in instance.devices.items() if device.volume_id is None]
    for bdm_id in vacant:  # a root's place without a volume needs no release
        done.book.get(BlockDeviceMapping, bdm_id).record(BlockDeviceMapping.MappingEnded)
        instance.release_device(bdm_id)
    instance.record(Instance.Deleted)


def _resized(done: StepDone) -> None:
    instance, source = done.instance, done.hosts[Place.SOURCE]
    instance.record(Instance.Resized, source=source, source_definition=instance.definition or "")
    wanted = done.order.definition if done.order else None
    if wanted and wanted != instance.definition:
        instance.record(Instance.DefinitionChanged, definition=wanted)


def _settled(done: StepDone) -> None:
    instance = done.instance
    former, reverted = instance.source_definition, instance.host == instance.resize_source
    instance.record(Instance.ResizeSettled)
    if reverted and former and former != instance.definition:
        instance.record(Instance.DefinitionChanged, definition=former)


MEANING: dict[str, Callable[[StepDone], None]] = {
    LedgerVerb.ATTACHMENT_RESERVE: _reserved,
    Verb.ATTACHMENT_CREATE: _created,
    Verb.ATTACHMENT_UPDATE: _updated,
    Verb.ATTACHMENT_REFRESH: _updated,
    Verb.ATTACHMENT_CONVERT: _converted,
    LedgerVerb.RESERVATION_CONVERT: _converted,
    Verb.VOLUME_CONNECT: _connected,
    Verb.ATTACHMENT_COMPLETE: _completed,  # equals LedgerVerb.ATTACHMENT_COMPLETE
    Verb.VOLUME_DISCONNECT: _disconnected,
    LedgerVerb.CONNECTION_WAIVE: _disconnected,
    Verb.CONNECTION_RELEASE: _released,
    LedgerVerb.RESERVATION_TIDY: _ended,
    LedgerVerb.ATTACHMENTS_CLEAR: _ended,
    LedgerVerb.SNAPSHOT_TAKEN: _ended,
    Verb.ATTACHMENT_DELETE: _deleted,  # equals LedgerVerb.ATTACHMENT_DELETE
    LedgerVerb.ATTACHMENT_DROP: _dropped,
    LedgerVerb.ATTACHMENT_FORGET: _attachment_forgotten,
    LedgerVerb.VOLUME_CREATE: _made,
    LedgerVerb.VOLUME_UNMAKE: _unmade,
    LedgerVerb.VOLUME_DELETE: _volume_let_go,
    LedgerVerb.VOLUME_DROP: _volume_dropped,
    LedgerVerb.MIGRATION_COMPLETE: _migrated_by_cinder,
    LedgerVerb.MAPPING_BIND: _bound,
    LedgerVerb.MAPPING_UNBIND: _unbound,
    LedgerVerb.MAPPING_SWITCH: _switched,
    LedgerVerb.MAPPING_SWITCH_KEEPING: _switched_keeping,
    LedgerVerb.MAPPING_REPLACE: _replaced,
    Verb.DISK_PLUG: _plugged,
    Verb.DISK_UNPLUG: _unplugged,
    LedgerVerb.DISK_WAIVE: _unplugged,
    Verb.GUEST_SPAWN: _spawned,
    Verb.GUEST_START: _powered,
    Verb.GUEST_STOP: _powered,
    Verb.GUEST_PAUSE: _powered,
    Verb.GUEST_RESUME: _powered,
    Verb.GUEST_REMOVE: _removed,
    LedgerVerb.GUEST_WAIVE: _removed,
    LedgerVerb.POWER_WAIVE: _power_waived,
    Verb.GUEST_MIGRATE: _moved,
    LedgerVerb.INSTANCE_FAIL: _failed,
    LedgerVerb.INSTANCE_OFFLOAD: _offloaded,
    LedgerVerb.INSTANCE_DELETE: _forgotten,
    LedgerVerb.INSTANCE_RESIZED: _resized,
    LedgerVerb.INSTANCE_SETTLED: _settled,
}
