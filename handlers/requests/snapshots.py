"""Cinder requests the guest's part in a snapshot: nova-api's checks, and our own.

Cinder names no server, so a volume of several servers is refused (S3).  What cannot be done is
refused before anything is changed.  QEMU has no job for a guest that is off.  Cinder renews the
connection of only one attachment, and only of the new calls, so the server must not have a second
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from aggregates import errors
from aggregates.host import Host
from aggregates.instance import Instance, VmState
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.volume import Volume
from handlers.engine.plan import Place
from handlers.requests.guards import (
    Concerned,
    Contact,
    RequestOrigin,
    check_contact,
    check_vm_state,
    refuse_deleting,
    refuse_guestless,
    start,
)
from handlers.results.meaning import Book
from host_agent.shared.contract.ports import VolumeView

#: In these the guest has its disks open.
_STATES = (VmState.ACTIVE, VmState.PAUSED)
#: nova-api's words.
_NO_MAPPING = "No volume Block Device Mapping with id {}."
_MULTI_ATTACH = (
    "Block Device Mapping {} is a multi-attach volume and is not valid for this operation."
)


@dataclass(frozen=True, kw_only=True)
class SnapshotInUse:
    """POST and DELETE os-assisted-volume-snapshots; `flow`: "snapshot" or "delete_snapshot".

    `files`: see Lane.snapshot; the host gets them together with the snapshot's id.
    """

    flow: str
    volume_id: str
    snapshot_id: str
    files: dict[str, str | None]


def begin(
    request: SnapshotInUse,
    origin: RequestOrigin,
    book: Book,
    view: VolumeView,
    contact: Callable[[str], Contact],
) -> Operation:
    """Accept it.  Raises SnapshotError, VmStateError, ClaimedError, HostUnavailableError,
    GuestNotThereError.
    """
    volume = book.get(Volume, request.volume_id)
    instance = book.get(Instance, _holder(volume, view))
    refuse_deleting(instance, request.flow, str(origin.operation_id))
    instance.refuse_claimed(exclusive=True)
    check_vm_state(instance, request.flow, _STATES, origin.context)
    refuse_guestless(instance, request.flow)
    device, name = instance.device_of(request.volume_id), instance.host
    mapping = book.get(BlockDeviceMapping, device.bdm_id) if device else None
    if mapping is None or not mapping.live or mapping.attachment_id is None or name is None:
        raise errors.SnapshotError(why=_NO_MAPPING.format(volume.id))
    _check_volume(mapping, view)
    check_contact(book.get(Host, name), contact(name))
    wanted = {"id": request.snapshot_id, **request.files}
    lane = replace(mapping.lane(volume, name), snapshot=wanted)
    concerned = Concerned(known=[volume], shown=lambda: [view])
    return start(request.flow, origin, instance, [lane], {Place.HOST: name}, concerned)


def _holder(volume: Volume, view: VolumeView) -> str:
    """The only server that has the volume, by its only attachment.  Raises SnapshotError."""
    if view.multiattach:
        raise errors.SnapshotError(why=_MULTI_ATTACH.format(volume.id))
    if not volume.holders:
        raise errors.SnapshotError(why=_NO_MAPPING.format(volume.id))
    if len(volume.holders) > 1:
        why = f"Volume {volume.id} has two attachments: wait until its server has settled."
        raise errors.SnapshotError(why=why)
    return next(iter(volume.holders.values()))


def _check_volume(mapping: BlockDeviceMapping, view: VolumeView) -> None:
    if view.encrypted:
        why = f"Volume {view.id} is encrypted: detach it, then its snapshots are Cinder's alone."
        raise errors.SnapshotError(why=why)
    if mapping.legacy:
        why = (
            f"Volume {view.id} was attached by Cinder's old calls, and Cinder cannot let their "
            "connection follow: convert its server first."
        )
        raise errors.SnapshotError(why=why)
