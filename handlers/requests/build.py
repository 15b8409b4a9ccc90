"""The request for a new server with its volumes (S1's first use case; S3, boot from volume)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid5

from aggregates import errors
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.engine.plan import Place
from handlers.requests.accept import device_target
from handlers.requests.edits import describe
from handlers.requests.guards import (
    NEW_FLOW_VERSION,
    Concerned,
    Contact,
    RequestOrigin,
    check_contact,
    start,
)
from host_agent.shared.contract.definition import Machine, render
from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.messages import GuestOrder
from host_agent.shared.contract.ports import VolumeView


@dataclass(frozen=True, kw_only=True)
class BootDisk:
    """A disk of a new server: an existing volume, or one to be created (`create`).

    `create` has the arguments of ports.Cinder.volume_create: size_gb, snapshot_id, image_id, ...
    """

    volume_id: str | None = None
    create: dict[str, Any] | None = None
    boot_index: int | None = None
    device: str | None = None
    tag: str | None = None
    delete_on_termination: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildServer:
    """POST /v1/servers.  If the user named no `host`, the caller has chosen one.

    `metadata`, `tags`, `description` and the other `kept` properties
    (`aggregates.server.DEFAULT_DETAILS`) are shown, and have no other effect.
    """

    name: str
    host: str
    machine: Machine = field(default_factory=Machine)
    disks: tuple[BootDisk, ...] = ()
    project_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    description: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)


def server_id_of(origin: RequestOrigin) -> str:
    """The id of the server that this request makes; the same for a repetition of the request."""
    return str(uuid5(origin.operation_id, "server"))


def build(
    request: BuildServer,
    origin: RequestOrigin,
    *,
    instance: Instance,
    host: Host,
    contact: Contact,
    volumes: dict[str, tuple[Volume, VolumeView]],
    legacy: bool = False,
) -> Operation:
    """Accept a new server, or raise a DomainError.  `instance` is the new, empty one."""
    if host.disabled:
        raise errors.DestinationError(
            host=request.host, server_id=str(instance.id), why=host.why_disabled
        )
    check_contact(host, contact)
    server_id, actor = str(instance.id), origin.context.actor
    owner_id = actor.known_as or actor.user_id
    definition = render(server_id, request.name, request.machine, request.project_id, owner_id)
    instance.record(
        Instance.Defined,
        name=request.name,
        host=host.name,
        definition=definition,
        project_id=request.project_id,
        user_id=owner_id,
        metadata=request.metadata or None,
        tags=list(request.tags) or None,
        description=request.description,
    )
    describe(instance, request.kept, origin.context)
    lanes = []
    for number, disk in enumerate(request.disks):
        known = volumes.get(disk.volume_id or "")
        if known is not None:
            _check(disk, *known, server_id=server_id, host=host, legacy=legacy)
        lanes.append(_lane(disk, number, origin, instance, known, host=host.name, legacy=legacy))
    order = GuestOrder(server_id=server_id, definition=definition, running=True)
    return start(
        "boot",
        origin,
        instance,
        lanes,
        {Place.HOST: host.name},
        Concerned(
            known=[volume for volume, _ in volumes.values()],
            shown=lambda: [view for _, view in volumes.values()],
        ),
        order,
    )


def _lane(
    disk: BootDisk,
    number: int,
    origin: RequestOrigin,
    instance: Instance,
    known: tuple[Volume, VolumeView] | None,
    *,
    host: str,
    legacy: bool,
) -> Lane:
    bdm_id = str(uuid5(origin.bdm_id, str(number)))
    wanted = device_target(disk.device) or ("vda" if disk.boot_index == 0 else None)
    volume_id = disk.volume_id or ""
    device_name = instance.reserve_device(bdm_id, volume_id, wanted)
    return Lane(
        server_id=str(instance.id),
        volume_id=volume_id,
        bdm_id=bdm_id,
        attachment_id=None,
        device_name=device_name,
        serial=instance.devices[bdm_id].serial,
        # S3: "for cases where Nova creates the volume itself ... no multi-attach".
        multiattach=known[1].multiattach if known else False,
        tag=disk.tag,
        boot_index=disk.boot_index,
        delete_on_termination=disk.delete_on_termination,
        access_mode="ro" if known and known[1].readonly else "rw",
        create=disk.create,
        legacy=legacy,
        new=LaneSide(host=host),
    )


def _check(
    disk: BootDisk,
    volume: Volume,
    view: VolumeView,
    *,
    server_id: str,
    host: Host,
    legacy: bool,
) -> None:
    """Check S3's rules before anything is reserved, as far as the facts are known."""
    volume.refuse_leaving(server_id, shared=view.multiattach)
    volume.refuse_second_server(server_id, multiattach=view.multiattach)
    if view.multiattach and legacy:
        raise errors.MultiattachLegacyError(needed=NEW_FLOW_VERSION)
    if view.multiattach and not host.capabilities.get("multiattach"):
        raise errors.MultiattachHostError(volume_id=view.id)
    if disk.boot_index == 0 and not view.bootable:
        raise errors.NotBootableError(volume_id=view.id)
