"""What disks are, or are made of, of new servers and rebuilt ones: whose that is, and how large.

Cinder is asked as a service that sees all projects, so whose a volume or a snapshot is, is ours to
check.  Of images Cinder says nothing, and would take any that our user may read: so Glance is asked
with the caller's own token (`ledger.core.images`).  Whose token is not Keystone's names no image,
unless he is an operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from handlers.requests.build import BootDisk
from host_agent.shared.contract.ports import SnapshotView, VolumeView
from ledger.core.images import Image
from ledger.http import microversions
from ledger.http.call import Call
from ledger.http.problem import ApiError, not_found
from ledger.native import accepting

#: nova-api's words.
_UNACCEPTABLE = (
    "Image {} is unacceptable: Unable to rebuild with a different image for a volume-backed server."
)


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
    if not call.identity.everywhere and _image(call, image_id) is None:
        raise not_found("not_found", f"Image {image_id} could not be found.")


def _image(call: Call, image_id: str) -> Image | None:
    """As Glance shows it to the caller; to our user, if an operator has no token of Keystone's."""
    images, theirs = call.components.images, bool(call.identity.vouched.methods)
    if not ((theirs or call.identity.everywhere) and images.known):
        text = "To give an image needs a token of Keystone's, or the role admin or operator."
        raise ApiError(403, "forbidden", text)
    return images.image(image_id, call.request.headers["X-Auth-Token"] if theirs else None)


#: What Cinder's drivers of shares put behind the name of a volume's file for that of a snapshot.
_OF_SNAPSHOT = re.compile(r"\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def refuse_on_root(call: Call, image_id: str, volume_id: str) -> bool:
    """Whether the image is to be written to a server's root volume: not before 2.93, when one that
    is there already is left as it is (nova-api, rebuild).

    Raises ApiError 400 for what Cinder would refuse when the server has been stopped for it; and
    PortError.  Blocks.
    """
    cinder = call.components.cinder
    volume = cinder.volume(volume_id)
    if call.version < microversions.REIMAGE:
        if volume.image_id == image_id:
            return False
        raise ApiError(400, "image", _UNACCEPTABLE.format(image_id))
    if not cinder.reimages():
        raise ApiError(400, "image", "This Cinder writes no images to volumes (3.68).")
    everywhere = call.identity.everywhere and not call.components.images.known
    image = Image(room_gb=0) if everywhere else _image(call, image_id)
    if image is None:
        raise ApiError(400, "image", "Cannot find image for rebuild")
    if image.room_gb > volume.size_gb:
        text = f"Image {image_id} needs {image.room_gb} GiB, and root volume {volume_id} has "
        raise ApiError(400, "image", f"{text}{volume.size_gb}.")
    _refuse_chain(call, volume_id)
    return True


def _refuse_chain(call: Call, volume_id: str) -> None:
    """Cinder writes an image to the file that it made for the volume; a guest of a volume that has,
    or had, snapshots on a share has the newest file of a chain, and would never see it.
    """
    for attachment in call.components.cinder.attachments(volume_id, None):
        if _OF_SNAPSHOT.search(str(attachment.connection_info.get("name", ""))):
            text = (
                f"Root volume {volume_id} is a chain of files on a share, because of its "
                "snapshots: Cinder would write the image to one that the server does not use."
            )
            raise ApiError(400, "image", text)


def _snapshot(call: Call, snapshot_id: str, disk: BootDisk) -> SnapshotView:
    cinder = call.components.cinder
    snapshot = cinder.snapshot(snapshot_id)
    if not call.identity.sees(snapshot.project_id):
        raise not_found("not_found", f"Snapshot {snapshot_id} could not be found.")
    if disk.boot_index == 0 and not cinder.volume(snapshot.volume_id).bootable:
        raise ApiError(400, "not_bootable", f"Block Device {snapshot_id} is not bootable.")
    return snapshot
