"""Requests: guards, claims, and the operation that carries them out.

Each function takes the aggregates a request touches, changes them, and returns
the new operation; the caller saves all of them in one transaction, guarded by
their versions.  Two requests that would collide therefore cannot both be
accepted, whichever processes they reach (S2's bug [6], LP 1937375, LP 1762687).

The order of the guards, and their texts, are nova-api's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from aggregates import errors
from aggregates.base import Context
from aggregates.host import Host
from aggregates.instance import Instance, VmState
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.flows import FLOWS
from handlers.plan import Place
from host_agent.contract import Lane
from host_agent.ports import VolumeView

#: nova-api lets volumes be attached and detached in these; the others we have are ERROR
#: and BUILDING.
_VOLUME_STATES = frozenset({VmState.ACTIVE, VmState.PAUSED, VmState.STOPPED})

_DEVICE = re.compile(r"(?:/dev/)?(vd|sd|xvd|hd)([a-z]{1,2})")


@dataclass(frozen=True, kw_only=True)
class AttachVolume:
    """POST os-volume_attachments.  `multiattach_allowed`: microversion >= 2.60."""

    server_id: str
    volume_id: str
    device: str | None = None
    tag: str | None = None
    delete_on_termination: bool = False
    multiattach_allowed: bool = True


@dataclass(frozen=True, kw_only=True)
class DetachVolume:
    """DELETE os-volume_attachments."""

    server_id: str
    volume_id: str


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Who asks, and the identities of what will be new (no randomness in here)."""

    operation_id: UUID
    bdm_id: UUID
    context: Context
    fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Contact:
    """Whether a host's agent has been in contact lately, and when last (for people)."""

    alive: bool
    since: str


def attach(
    request: AttachVolume,
    origin: Origin,
    *,
    instance: Instance,
    volume: Volume,
    view: VolumeView,
    host: Host,
    contact: Contact,
) -> Operation:
    """Accept an attach, or raise a DomainError."""
    _check_vm_state(instance, "attach_volume")
    _check_multiattach(request, view, host)
    if request.tag is not None and not host.capabilities.get("tag"):
        raise errors.TagHostError
    if instance.device_of(request.volume_id):
        raise errors.AlreadyAttachedError(volume_id=request.volume_id)
    volume.refuse_second_server(request.server_id, multiattach=view.multiattach)
    _check_contact(host, contact)
    operation_id = str(origin.operation_id)
    instance.claim(operation_id, exclusive=False)
    volume.claim(operation_id, server_id=request.server_id)
    device_name = instance.reserve_device(
        str(origin.bdm_id), request.volume_id, device_target(request.device)
    )
    lane = Lane(
        server_id=request.server_id,
        volume_id=request.volume_id,
        bdm_id=str(origin.bdm_id),
        attachment_id=None,
        device_name=device_name,
        multiattach=view.multiattach,
        tag=request.tag,
        delete_on_termination=request.delete_on_termination,
    )
    return _start("attach", origin, lane, host)


def detach(
    request: DetachVolume,
    origin: Origin,
    *,
    instance: Instance,
    volume: Volume,
    mapping: BlockDeviceMapping | None,
    host: Host,
    contact: Contact,
) -> Operation:
    """Accept a detach, or raise a DomainError.  `mapping` is the pair's, if it has one."""
    _check_vm_state(instance, "detach_volume")
    operation_id = str(origin.operation_id)
    if instance.device_of(request.volume_id) is None:
        raise errors.NotAttachedError(server_id=request.server_id, volume_id=request.volume_id)
    instance.claim(operation_id, exclusive=False)
    volume.claim(operation_id, server_id=request.server_id)
    if mapping is None or mapping.created is None or not mapping.live:
        raise errors.NotAttachedError(server_id=request.server_id, volume_id=request.volume_id)
    if mapping.created.boot_index == 0:
        raise errors.RootDeviceError
    _check_contact(host, contact)
    lane = Lane(
        server_id=request.server_id,
        volume_id=request.volume_id,
        bdm_id=str(mapping.id),
        attachment_id=mapping.created.attachment_id,
        device_name=mapping.device_name,
        multiattach=mapping.created.multiattach,
        tag=mapping.created.tag,
        boot_index=mapping.created.boot_index,
        delete_on_termination=mapping.delete_on_termination,
    )
    return _start("detach", origin, lane, host)


def device_target(device: str | None) -> str | None:
    """The disk target a user asked for ("/dev/vdc" -> "vdc"), None for any.

    Names of buses the hypervisor has not (xvd, hd) keep their letter on virtio.
    Raises DevicePathError.
    """
    if device is None:
        return None
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise errors.DevicePathError(device=device)
    bus, letters = match.groups()
    return ("sd" if bus == "sd" else "vd") + letters


def _start(flow: str, origin: Origin, lane: Lane, host: Host) -> Operation:
    operation = Operation(origin.operation_id)
    operation.record(
        Operation.OperationStarted,
        flow=flow,
        server_id=lane.server_id,
        plan=FLOWS[flow].expand((lane,), {Place.HOST: host.name}).to_json(),
        request_id=origin.context.request_id,
        actor={**vars(origin.context.actor), "roles": list(origin.context.actor.roles)},
        fingerprint=origin.fingerprint,
    )
    return operation


def _check_vm_state(instance: Instance, action: str) -> None:
    if instance.vm_state not in _VOLUME_STATES:
        raise errors.VmStateError(
            action=action, server_id=str(instance.id), vm_state=instance.vm_state
        )


def _check_multiattach(request: AttachVolume, view: VolumeView, host: Host) -> None:
    if not view.multiattach:
        return
    if not request.multiattach_allowed:
        raise errors.MultiattachVersionError
    if not host.capabilities.get("multiattach"):
        raise errors.MultiattachHostError(volume_id=request.volume_id)


def _check_contact(host: Host, contact: Contact) -> None:
    """Work that no agent can do is not accepted (LP 1909120)."""
    if host.fenced or not contact.alive:
        raise errors.HostUnavailableError(host=host.name, since=contact.since)
