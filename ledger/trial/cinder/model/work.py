"""What Cinder does with a volume by itself: backups, extensions, images; as cinder 29 does them.

All set a status of their own while they last, check the status at their beginning only, and set
one at their end whatever was done to the volume meanwhile: a backup and an image the status before
them, an extension the one that follows from its attachments.
"""

from __future__ import annotations

from ledger.trial.cinder.model import connection as cinder_connection
from ledger.trial.cinder.model.model import CinderModel, invalid_volume
from ledger.trial.cinder.model.rows import CinderFault, Late, StoredVolume

BACKING_UP, EXTENDING = "backing-up", "extending"
#: The size that is waited for.  Cinder 29 has it in the metadata for administrators, which it
#: shows nobody, and no driver of its own waits; whoever brings such a driver has to show it.
NEW_SIZE = "extend_new_size"


def begin_backup(volume: StoredVolume, *, force: bool = False) -> None:
    """`force`: of a volume that is in use."""
    if volume.status not in ("available", "in-use"):
        raise invalid_volume(
            "Volume to be backed up must be available or in-use, but the current status is "
            f'"{volume.status}".'
        )
    if volume.status == "in-use" and not force:
        raise invalid_volume("Backing up an in-use volume must use the force flag.")
    volume.previous_status, volume.status = volume.status, BACKING_UP


def end_backup(volume: StoredVolume) -> None:
    volume.status, volume.previous_status = volume.previous_status or volume.status, BACKING_UP


def begin_extension(volume: StoredVolume, *, attached: bool = False) -> None:
    """`attached`: the caller's microversion allows it of a volume in use (3.42)."""
    expected = "in-use" if attached and volume.status == "in-use" else "available"
    if volume.status != expected:
        raise invalid_volume(
            f"Volume {volume.id} status must be '{{'status': '{expected}'}}' to extend, "
            f"currently {volume.status}."
        )
    volume.previous_status, volume.status = volume.status, EXTENDING


def begin_waiting_extension(volume: StoredVolume, size: int) -> None:
    """By a driver whose guests extend a file that they have open: it waits for them (3.71)."""
    begin_extension(volume, attached=True)
    volume.metadata[NEW_SIZE] = str(size)


def end_extension(
    model: CinderModel, volume: StoredVolume, size: int, *, error: bool = False
) -> None:
    """An error stays in the status until an administrator resets it."""
    if error:
        volume.status = "error_extending"
        return
    volume.size = size
    rows = model.attachments_of(volume.id)
    volume.status = "in-use" if rows else "available"
    for row in rows:
        if row.connection_info:
            row.connection_info |= cinder_connection.size_of(volume)


def complete_extension(model: CinderModel, volume: StoredVolume, *, error: bool) -> None:
    """Whoever has the volume has grown it, or could not."""
    if volume.status != EXTENDING:
        raise invalid_volume("Volume is not being extended.")
    if NEW_SIZE not in volume.metadata:
        raise invalid_volume("Required volume admin metadata is malformed or missing.")
    end_extension(model, volume, int(volume.metadata.pop(NEW_SIZE)), error=error)


def begin_reimage(
    model: CinderModel, volume: StoredVolume, image_id: str, *, reserved: bool = False
) -> None:
    """The second read that follows finds it done.  `reserved`: of one that is, too.

    What is done to one in `error` ends in `error`, for Cinder then writes the status from before.
    """
    if len(model.attachments_of(volume.id)) > 1:
        text = "Cannot re-image a volume which is attached to more than one server."
        raise CinderFault(409, text)
    allowed = ("available", "error", *(("reserved",) if reserved else ()))
    if volume.status not in allowed:
        raise invalid_volume(
            f"Volume {volume.id} status must be {' or '.join(allowed)}, but current status is "
            f"{volume.status}."
        )
    volume.previous_status, volume.status = volume.status, "downloading"
    volume.next_image_id = image_id
    volume.imaging = Late(at=model.clock(), reads=1)
