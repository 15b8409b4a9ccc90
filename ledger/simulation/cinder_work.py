"""What Cinder does with a volume by itself: backups and extensions, as cinder 29 does them.

Both set a status of their own while they last, check the status at their beginning only, and set
one at their end whatever was done to the volume meanwhile: a backup the status before it, an
extension the one that follows from its attachments.
"""

from __future__ import annotations

from ledger.simulation.cinder_model import CinderModel, invalid_volume
from ledger.simulation.cinder_rows import Volume

BACKING_UP, EXTENDING = "backing-up", "extending"


def begin_backup(volume: Volume, *, force: bool = False) -> None:
    """`force`: of a volume that is in use."""
    if volume.status not in ("available", "in-use"):
        raise invalid_volume(
            "Volume to be backed up must be available or in-use, but the current status is "
            f'"{volume.status}".'
        )
    if volume.status == "in-use" and not force:
        raise invalid_volume("Backing up an in-use volume must use the force flag.")
    volume.previous_status, volume.status = volume.status, BACKING_UP


def end_backup(volume: Volume) -> None:
    volume.status, volume.previous_status = volume.previous_status or volume.status, BACKING_UP


def begin_extension(volume: Volume, *, attached: bool = False) -> None:
    """`attached`: the caller's microversion allows it of a volume in use (3.42)."""
    expected = "in-use" if attached and volume.status == "in-use" else "available"
    if volume.status != expected:
        raise invalid_volume(
            f"Volume {volume.id} status must be '{{'status': '{expected}'}}' to extend, "
            f"currently {volume.status}."
        )
    volume.previous_status, volume.status = volume.status, EXTENDING


def end_extension(model: CinderModel, volume: Volume, *, error: bool = False) -> None:
    """An error stays in the status until an administrator resets it."""
    if error:
        volume.status = "error_extending"
        return
    volume.size += 1
    volume.status = "in-use" if model.attachments_of(volume.id) else "available"
