"""POST /v2.1/servers: a new server whose disks are volumes, in Nova's form.

The flow, its guards and its undo are those of `POST /v1/servers`; here is what a request of Nova's
means by them.  What is not done is refused by name (`properties`).  The answer comes
when the request is accepted: what follows is in the server's status, and in its fault.
"""

from __future__ import annotations

from http import HTTPStatus
from string import ascii_lowercase
from typing import Any

from aiohttp import web

from aggregates import errors
from handlers.requests.accept import device_target
from handlers.requests.build import BootDisk, BuildServer
from host_agent.shared.contract.definition import Machine
from host_agent.shared.contract.ports import PortError
from ledger.http import microversions
from ledger.http.call import Call, answer, refuse_unless
from ledger.http.problem import ApiError
from ledger.native import sources
from ledger.native.builds import begin
from ledger.native.placement import destination
from ledger.nova.flavors import size_wanted
from ledger.nova.servers import state as server_state
from ledger.nova.servers.schemas_create import BlockDevice, WantedServer, wanted
from ledger.nova.servers.servers import links_of, refuse_own_metadata

Row = dict[str, Any]

RULE = "os_compute_api:servers:create"
#: Beside it, for who gives volumes, and for who names a host in the zone, or as the host (2.74).
VOLUMES_RULE = f"{RULE}:attach_volume"
FORCED_RULE = f"{RULE}:forced_host"
REQUESTED_RULE = "compute:servers:create:requested_destination"

_INVALID = "Block Device Mapping is Invalid: {}"
_BUSES = {"virtio": "vd", "scsi": "sd"}
#: What names end with: twice DISKS_MAX, so that one is free whichever are taken.
_LETTERS = (*ascii_lowercase, *(f"a{letter}" for letter in ascii_lowercase))


async def server_create(call: Call) -> web.StreamResponse:
    """POST /servers: a new server whose disks are volumes."""
    asked = wanted(await call.shown_object(), call.version)
    _permitted(call, VOLUMES_RULE)
    vcpus, memory_mb = size_wanted(call.components.settings.flavors, asked.flavorRef)
    host = await _host(call, asked)
    disks = disks_of(asked.block_device_mapping_v2, call.identity.actor.project_id)
    found = await call.ask_cinder(lambda: _looked(call, disks, asked.block_device_mapping_v2))
    if found.sharing and call.version < microversions.MULTIATTACH:
        raise errors.MultiattachVersionError
    actor = call.identity.actor
    server_id, headers = await begin(
        call,
        BuildServer(
            name=asked.name,
            host=await destination(call, host, sharing=found.sharing),
            machine=Machine(vcpus=vcpus, memory_mb=memory_mb),
            disks=found.disks,
            project_id=actor.project_id,
            **_kept(asked, call.version),
        ),
    )
    links = links_of(call, server_id)
    created = {
        "id": server_id,
        "links": links,
        "OS-DCF:diskConfig": asked.disk_config,
        "security_groups": [],
    }
    headers = {**headers, "Location": links[0]["href"]}
    return answer({"server": created}, HTTPStatus.ACCEPTED, headers)


def _kept(asked: WantedServer, version: microversions.Version) -> Row:
    """What is kept with the server, as Nova keeps it.  ApiError 400."""
    refuse_own_metadata(asked.metadata)
    if len(set(asked.tags)) < len(asked.tags):
        raise ApiError(400, "invalid", "Invalid input for field/attribute tags: two are the same")
    return {
        "metadata": asked.metadata,
        "tags": tuple(asked.tags),
        "description": asked.description,
        "kept": asked.kept(version),
    }


# --------------------------------------------------------------------------------- where


async def _host(call: Call, asked: WantedServer) -> str | None:
    """The host that is named, by who may; None: one is to be chosen.  ApiError 400, 403."""
    zone, forced = _zone(asked.availability_zone or "")
    if zone not in {"", server_state.ZONE}:
        raise ApiError(400, "invalid", "The requested availability zone is not available")
    requested = [name for name in (asked.host, asked.hypervisor_hostname) if name]
    if forced:
        _permitted(call, FORCED_RULE)
    if requested:
        _permitted(call, REQUESTED_RULE)
    if forced and requested:
        text = (
            "One mechanism with host and/or hypervisor_hostname and another mechanism with "
            "zone:host:node are mutually exclusive."
        )
        raise ApiError(400, "invalid", text)
    named = {*forced, *requested}
    for name in named:
        if await call.components.queries.host(name) is None or len(named) > 1:
            raise ApiError(400, "no_such_host", f"Compute host {name[:100]} could not be found.")
    return named.pop() if named else None


def _zone(text: str) -> tuple[str, list[str]]:
    """The zone of zone[:host[:node]], and the names behind it; a host is its only node."""
    zone, *names = text.split(":")
    if len(names) > len(("host", "node")):
        raise ApiError(400, "invalid", "Invalid input received: Unable to parse availability_zone")
    return zone, [name for name in names if name]


def _permitted(call: Call, rule: str) -> None:
    """Raises ApiError 403."""
    refuse_unless(call.components.policy, call.identity, (rule,))


# --------------------------------------------------------------------------------- disks


def disks_of(asked: list[BlockDevice], project_id: str | None) -> tuple[BootDisk, ...]:
    """The disks as the flow wants them, in Nova's order.  Raises ApiError 400, DomainError."""
    if not asked:
        text = (
            "A server's disks are volumes here: give block_device_mapping_v2, one of them with "
            "boot_index 0."
        )
        raise ApiError(400, "no_disks", text)
    for disk in asked:
        _check(disk)
    _check_together(asked)
    return tuple(
        BootDisk(
            volume_id=disk.uuid if disk.source_type == "volume" else None,
            create=None if disk.source_type == "volume" else _created(disk, project_id),
            boot_index=_boot_index(disk),
            device=device,
            tag=disk.tag,
            delete_on_termination=disk.delete_on_termination,
        )
        for disk, device in zip(asked, _devices(asked), strict=True)
    )


def _created(disk: BlockDevice, project_id: str | None) -> Row:
    """As ports.Cinder.volume_create wants it; without a size as large as what it is made of."""
    made = {
        "size_gb": disk.volume_size,
        "volume_type": disk.volume_type,
        "project_id": project_id,
    }
    if disk.source_type != "blank":
        made[f"{disk.source_type}_id"] = disk.uuid
    return made


def _boot_index(disk: BlockDevice) -> int | None:
    return None if disk.boot_index is None or disk.boot_index < 0 else disk.boot_index


def _check(disk: BlockDevice) -> None:
    """What Nova refuses, in its words; and local disks.  ApiError 400."""
    source = disk.source_type
    destination = disk.destination_type or ("local" if source in {"image", "blank"} else "volume")
    if destination == "local":
        raise ApiError(
            400,
            "not_supported",
            f"A disk of source_type {source} and destination_type local is not supported: disks "
            "are volumes here. Give it destination_type volume, and a volume_size.",
        )
    if source == "blank" and disk.uuid:
        raise _invalid("Invalid device UUID.")
    if source != "blank" and not disk.uuid:
        raise _invalid("Missing device UUID.")
    if source == "volume" and disk.volume_type:
        raise _invalid("Specifying volume type to existing volume is not supported.")
    if source in {"image", "blank"} and not disk.volume_size:
        raise _invalid(f"A volume of source_type {source} needs a volume_size.")


def _check_together(asked: list[BlockDevice]) -> None:
    order = sorted(index for index in map(_boot_index, asked) if index is not None)
    if not order or order != list(range(len(order))):
        raise _invalid(
            "Boot sequence for the instance and image/block device mapping combination is not "
            "valid."
        )
    volumes = [disk.uuid for disk in asked if disk.source_type == "volume"]
    tags = [disk.tag for disk in asked if disk.tag is not None]
    for name, given in (("uuid", volumes), ("tag", tags)):
        if len(set(given)) < len(given):
            raise _invalid(f"Two disks have the same {name}.")


def _devices(asked: list[BlockDevice]) -> list[str]:
    """The name of each, which tells its bus: as asked for, or the next; the root's ends with a."""
    named = [name for disk in asked if (name := device_target(disk.device_name))]
    if len(set(named)) < len(named):
        raise _invalid("Two disks have the same device_name.")
    taken, found = set(named), []
    for disk in asked:
        bus = _BUSES[disk.disk_bus or "virtio"]
        letters = _LETTERS[_boot_index(disk) != 0 :]
        free = next(name for each in letters if (name := bus + each) not in taken)
        name = device_target(disk.device_name) or free
        if disk.disk_bus and not name.startswith(bus):
            raise _invalid(f"Device name {disk.device_name} is not of disk_bus {disk.disk_bus}.")
        taken.add(name)
        found.append(name)
    return found


def _invalid(why: str) -> ApiError:
    return ApiError(400, "invalid", _INVALID.format(why))


def _looked(call: Call, disks: tuple[BootDisk, ...], asked: list[BlockDevice]) -> sources.Sources:
    """As `sources.looked`; what is not there is the request's mistake, as in Nova.  Blocks."""
    try:
        found = sources.looked(call, disks)
    except (ApiError, PortError) as error:
        if error.code == "not_found":
            raise _invalid(str(error)) from None
        raise
    for disk, volume in zip(asked, found.volumes, strict=True):
        if volume is not None and disk.volume_size not in {None, volume.size_gb}:
            raise _invalid(f"Volume {volume.id} has {volume.size_gb} GiB: leave volume_size out.")
    return found
