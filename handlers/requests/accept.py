"""Requests about one volume of a server: attach, detach, swap.

Each function takes the aggregates a request touches, changes them, and returns
the new operation; the caller saves all of them in one transaction, guarded by
their versions.  Two requests that would collide therefore cannot both be
accepted, whichever processes they reach (S2's bug [6], LP 1937375, LP 1762687).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from aggregates import errors
from aggregates.host import Host
from aggregates.instance import Instance, VmState
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.engine.plan import Place
from handlers.requests.grow import GrowVolume, wait
from handlers.requests.guards import (
    NEW_FLOW_VERSION,
    Concerned,
    Contact,
    RequestOrigin,
    Views,
    check_contact,
    check_vm_state,
    refuse_deleting,
    refuse_guestless,
    start,
)
from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.messages import GuestOrder
from host_agent.shared.contract.ports import VolumeView
from host_agent.shared.contract.volume_states import is_migrating

#: nova-api lets volumes be attached and detached in these.  It does so in RESIZED, too;
#: here the two hosts of a resize have to agree on the volumes until it is confirmed or reverted.
_VOLUME_STATES = frozenset(
    {VmState.ACTIVE, VmState.PAUSED, VmState.STOPPED, VmState.SHELVED_OFFLOADED}
)
#: The same before 2.20.
_VOLUME_STATES_OLD = _VOLUME_STATES - {VmState.SHELVED_OFFLOADED}
#: S2: "powered off or shelved_offloaded".
_ROOT_STATES = frozenset({VmState.STOPPED, VmState.SHELVED_OFFLOADED})
#: LP 1673090: a guest that does not run cannot copy.
_SWAP_STATES = frozenset({VmState.ACTIVE, VmState.PAUSED})

_DEVICE = re.compile(r"(?:/dev/)?(vd|sd|xvd|hd)([a-z]{1,2})")


@dataclass(frozen=True, kw_only=True)
class AttachVolume:
    """POST os-volume_attachments.  `shelved_allowed`: microversion >= 2.20;
    `multiattach_allowed`: >= 2.60.

    `is_root`: also implied by the device name of a detached root volume (decision 0093).
    """

    server_id: str
    volume_id: str
    device: str | None = None
    tag: str | None = None
    delete_on_termination: bool = False
    shelved_allowed: bool = True
    multiattach_allowed: bool = True
    is_root: bool = False


@dataclass(frozen=True, kw_only=True)
class DetachVolume:
    """DELETE os-volume_attachments.  `shelved_allowed`: microversion >= 2.20; `root_allowed`: our
    own (S2).
    """

    server_id: str
    volume_id: str
    shelved_allowed: bool = True
    root_allowed: bool = False


@dataclass(frozen=True, kw_only=True)
class SwapVolume:
    """PUT os-volume_attachments with another volume's id.

    `by_cinder`: the caller may finish Cinder's own migrations (a service, an administrator);
    `by_users`: swaps without such a migration are allowed (LP 2112187).
    """

    server_id: str
    volume_id: str
    new_volume_id: str
    by_cinder: bool = False
    by_users: bool = True


@dataclass(frozen=True, kw_only=True)
class Where:
    """The host of the server, and whether its agent answers; no host: offloaded.

    `legacy`: new attachments are made by Cinder's old calls, because Cinder or an agent
    is too old for the new ones (S1).
    """

    host: Host | None
    contact: Contact | None
    legacy: bool = False

    @property
    def name(self) -> str | None:
        return self.host.name if self.host else None

    def check(self) -> None:
        if self.host is not None and self.contact is not None:
            check_contact(self.host, self.contact)


def attach(
    request: AttachVolume,
    origin: RequestOrigin,
    *,
    instance: Instance,
    volume: Volume,
    view: VolumeView,
    where: Where,
    root: BlockDeviceMapping | None = None,
) -> Operation:
    """Accept an attach, or raise a DomainError.  `root` is the server's root mapping."""
    states = _VOLUME_STATES if request.shelved_allowed else _VOLUME_STATES_OLD
    check_vm_state(instance, "attach_volume", states, origin.context)
    refuse_deleting(instance, "attach_volume", str(origin.operation_id))
    _check_abilities(request, view, where)
    volume.refuse_leaving(request.server_id, shared=view.multiattach)
    if instance.device_of(request.volume_id):
        raise errors.AlreadyAttachedError(volume_id=request.volume_id)
    volume.refuse_second_server(request.server_id, multiattach=view.multiattach)
    bdm_id, device_name, tag = str(origin.bdm_id), device_target(request.device), request.tag
    if is_root := request.is_root or _names_root(device_name, instance, root):
        root = _root_place(instance, root)
        bdm_id, device_name, tag = str(root.id), root.device_name, tag or root.tag
        instance.set_device_volume(bdm_id, request.volume_id)
    where.check()
    if not is_root:
        device_name = instance.reserve_device(bdm_id, request.volume_id, device_name)
    lane = Lane(
        server_id=request.server_id,
        volume_id=request.volume_id,
        bdm_id=bdm_id,
        attachment_id=None,
        device_name=device_name,
        multiattach=view.multiattach,
        tag=tag,
        boot_index=0 if is_root else None,
        delete_on_termination=request.delete_on_termination,
        serial=instance.devices[bdm_id].serial,
        access_mode="ro" if view.readonly else "rw",
        legacy=where.legacy,
    )
    flow = "attach" if where.host else "attach_offloaded"
    hosts = {Place.HOST: where.name}
    concerned = Concerned(known=[volume], shown=lambda: [view])
    return start(flow, origin, instance, [lane], hosts, concerned)


def detach(
    request: DetachVolume,
    origin: RequestOrigin,
    *,
    instance: Instance,
    volume: Volume,
    mapping: BlockDeviceMapping | None,
    views: Views,
    where: Where,
) -> Operation:
    """Accept a detach, or raise a DomainError.  `mapping` is the pair's, if it has one."""
    states = _VOLUME_STATES if request.shelved_allowed else _VOLUME_STATES_OLD
    check_vm_state(instance, "detach_volume", states, origin.context)
    refuse_deleting(instance, "detach_volume", str(origin.operation_id))
    if instance.device_of(request.volume_id) is None:
        raise errors.NotAttachedError(server_id=request.server_id, volume_id=request.volume_id)
    instance.refuse_claimed(exclusive=False)
    volume.refuse_working(request.server_id)
    if mapping is None or not mapping.live or mapping.volume_id is None:
        raise errors.NotAttachedError(server_id=request.server_id, volume_id=request.volume_id)
    if mapping.boot_index == 0:
        _check_root_state(instance, "detach", allowed=request.root_allowed)
    where.check()
    lane = mapping.lane(volume, where.name)
    hosts = {Place.HOST: where.name}
    concerned = Concerned(known=[volume], shown=views)
    return start("detach", origin, instance, [lane], hosts, concerned)


def swap(
    request: SwapVolume,
    origin: RequestOrigin,
    *,
    instance: Instance,
    mapping: BlockDeviceMapping | None,
    volumes: tuple[Volume, Volume],
    views: tuple[VolumeView, VolumeView],
    where: Where,
) -> Operation:
    """Accept a swap, or raise a DomainError.  `volumes` and `views`: old, new."""
    check_vm_state(instance, "swap_volume", _SWAP_STATES, origin.context)
    refuse_deleting(instance, "swap_volume", str(origin.operation_id))
    refuse_guestless(instance, "swap_volume")  # what cannot be copied could not be undone, either
    instance.refuse_claimed(exclusive=True)
    if mapping is None or not mapping.live:
        raise errors.NotAttachedError(server_id=request.server_id, volume_id=request.volume_id)
    flow = _kind_of_swap(request, *views)
    _check_pair(request, volumes, views)
    where.check()
    new = LaneSide(volume_id=request.new_volume_id, host=where.name)
    lane = replace(mapping.lane(volumes[0], where.name), new=new)
    order = GuestOrder(server_id=request.server_id)
    hosts = {Place.HOST: where.name}
    concerned = Concerned(known=volumes, shown=lambda: views[:1], judged=views[1:])
    operation = start(flow, origin, instance, [lane], hosts, concerned, order)
    if _room(views[1]) > _room(views[0]):  # of which a copy tells the guest nothing
        # Cinder's migration gives the new volume the id of the old one.
        stays = request.volume_id if flow == "migrate_volume" else request.new_volume_id
        wait(GrowVolume(server_id=request.server_id, volume_id=stays), origin, instance)
    return operation


def _room(volume: VolumeView) -> tuple[int, bool]:
    """The sizes to compare.  The guest of an encrypted volume has it without the LUKS header."""
    return volume.size_gb, not volume.encrypted


def device_target(device: str | None) -> str | None:
    """The disk target for a requested device name ("/dev/vdc" -> "vdc"); None for any.

    Bus names that the hypervisor does not have (xvd, hd) keep their letter on virtio.  Raises
    DevicePathError.
    """
    if device is None:
        return None
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise errors.DevicePathError(device=device)
    bus, letters = match.groups()
    return ("sd" if bus == "sd" else "vd") + letters


def _check_abilities(request: AttachVolume, view: VolumeView, where: Where) -> None:
    """Check the capabilities that the host needs, before anything is reserved (S3)."""
    host = where.host
    if view.multiattach:
        if not request.multiattach_allowed:
            raise errors.MultiattachVersionError
        if where.legacy:
            raise errors.MultiattachLegacyError(needed=NEW_FLOW_VERSION)
        if host is None:
            raise errors.MultiattachOffloadedError
        if not host.capabilities.get("multiattach"):
            raise errors.MultiattachHostError(volume_id=request.volume_id)
    if request.tag is not None:
        if host is None:
            raise errors.TagOffloadedError
        if not host.capabilities.get("tag"):
            raise errors.TagHostError


def _names_root(device: str | None, instance: Instance, root: BlockDeviceMapping | None) -> bool:
    """Whether the device name is that of a root volume that is detached (decision 0093), or is
    being detached: a request that comes too early is told to wait.
    """
    if device is None or root is None or device != instance.devices[str(root.id)].device_name:
        return False
    changing = instance.own_state in _ROOT_STATES and bool(instance.claims)
    return instance.vacant_root is not None or changing


def _root_place(instance: Instance, root: BlockDeviceMapping | None) -> BlockDeviceMapping:
    """The root mapping that has no volume now (S2)."""
    _check_root_state(instance, "attach", allowed=True)
    if root is None:
        why = "it was not built to boot from a volume"
        raise errors.RootPlaceError(server_id=str(instance.id), why=why)
    instance.refuse_claimed(exclusive=False)
    if instance.vacant_root is None:
        instance.refuse_claimed(exclusive=True)  # what is there may be on its way out, or in
        why = f"volume {root.volume_id} is its root device volume"
        raise errors.RootPlaceError(server_id=str(instance.id), why=why)
    return root


def _check_root_state(instance: Instance, action: str, *, allowed: bool) -> None:
    if not allowed:
        raise errors.RootDeviceError
    if instance.own_state not in _ROOT_STATES:
        raise errors.RootStateError(
            action=action, server_id=str(instance.id), vm_state=instance.own_state
        )


def _kind_of_swap(request: SwapVolume, old: VolumeView, new: VolumeView) -> str:
    """Cinder's migration, or a user's swap (LP 2112187); a user's swap needs a volume in a state
    that the flow accepts: not `retyping`.

    It also counts as Cinder's if only its target says so: the old volume may have been read from a
    database replica that is behind, and otherwise nobody would end the migration.
    """
    if is_migrating(old) or new.migration_status == f"target:{old.id}":
        if not request.by_cinder:
            status = old.migration_status or new.migration_status
            raise errors.VolumeBusyError(volume_id=old.id, status=status)
        return "migrate_volume"
    if not request.by_users:
        raise errors.NotMigratingError(volume_id=old.id)
    return "swap"


def _check_pair(
    request: SwapVolume, volumes: tuple[Volume, Volume], views: tuple[VolumeView, VolumeView]
) -> None:
    old, new = views
    volumes[1].refuse_leaving(request.server_id, shared=False)
    if set(volumes[0].holders.values()) != {request.server_id}:
        raise errors.SwapError(why="Old volume is attached to a different instance.")
    if volumes[1].holders or new.status != "available":
        raise errors.SwapError(why="New volume must be detached in order to swap.")
    if is_migrating(new) and new.migration_status != f"target:{old.id}":  # it is Cinder's own
        raise errors.VolumeBusyError(volume_id=new.id, status=new.migration_status)
    if new.readonly:  # the copy is written to it, and then what the guest writes
        raise errors.SwapError(why="New volume must not be read-only in order to swap.")
    if new.size_gb < old.size_gb:
        raise errors.SwapError(why="New volume must be the same size or larger.")
    if old.multiattach or new.multiattach:  # S1, S3; LP 1775418
        raise errors.SwapError(why="Swapping multi-attach volumes is not supported.")
