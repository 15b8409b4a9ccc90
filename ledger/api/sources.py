"""What the disks of a new server are, or are made of: whose that is, and how large.

Cinder is asked as a service that sees all projects, so whose a volume or a snapshot is, is ours to
check.  Of images Cinder says nothing, and would take any that our user may read: so Glance is asked
with the caller's own token (`ledger.api.images`).  Whose token is not Keystone's names no image,
unless he is an operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from handlers.build import BootDisk
from host_agent.shared.ports import SnapshotView, VolumeView
from ledger.api import accepting
from ledger.api.call import Call
from ledger.api.problem import ApiError, not_found


@dataclass(frozen=True, kw_only=True)
class Sources:
    """`disks`: with the sizes of those that are to be as large as what they are made of.

    `volumes`: of each disk the volume that it is, None for one that is to be made.
    """

    disks: tuple[BootDisk, ...]
    volumes: tuple[VolumeView | None, ...]

    @property
    def sharing(self) -> bool:
        """Whether the server is to have a multi-attach volume."""
        return any(volume.multiattach for volume in self.volumes if volume is not None)


def looked(call: Call, disks: Iterable[BootDisk]) -> Sources:
    """What Cinder shows of them.  Raises ApiError 400, 403, 404, PortError.  Blocks."""
    seen = [_seen(call, disk) for disk in disks]
    return Sources(
        disks=tuple(disk for disk, _ in seen), volumes=tuple(volume for _, volume in seen)
    )


def _seen(call: Call, disk: BootDisk) -> tuple[BootDisk, VolumeView | None]:
    if disk.volume_id is not None:
        volume = accepting.refuse_foreign_volume(call, disk.volume_id)
        return disk, volume or call.components.cinder.volume(disk.volume_id)
    made = disk.create or {}
    if (image_id := made.get("image_id")) is not None:
        _refuse_image(call, image_id)
    if made.get("snapshot_id") is None:
        return disk, None
    snapshot = _snapshot(call, made["snapshot_id"], disk)
    wanted = made.get("size_gb") or snapshot.size_gb
    if wanted < snapshot.size_gb:
        message = f"A volume of snapshot {snapshot.id} has {snapshot.size_gb} GiB or more."
        raise ApiError(400, "invalid", message)
    return replace(disk, create={**made, "size_gb": wanted}), None


def _refuse_image(call: Call, image_id: str) -> None:
    if call.identity.everywhere:
        return
    images = call.components.images
    if not (call.identity.vouched.methods and images.known):
        text = "To give an image needs a token of Keystone's, or the role admin or operator."
        raise ApiError(403, "forbidden", text)
    if not images.may_use(image_id, call.request.headers["X-Auth-Token"]):
        raise not_found("not_found", f"Image {image_id} could not be found.")


def _snapshot(call: Call, snapshot_id: str, disk: BootDisk) -> SnapshotView:
    cinder = call.components.cinder
    snapshot = cinder.snapshot(snapshot_id)
    if not call.identity.sees(snapshot.project_id):
        raise not_found("not_found", f"Snapshot {snapshot_id} could not be found.")
    if disk.boot_index == 0 and not cinder.volume(snapshot.volume_id).bootable:
        raise ApiError(400, "not_bootable", f"Block Device {snapshot_id} is not bootable.")
    return snapshot
