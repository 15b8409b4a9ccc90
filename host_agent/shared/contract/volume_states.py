"""The meaning of volume statuses in Cinder, and how to delete an attachment safely.

A backup or a retype saves the volume's status (`previous_status`) and restores it at its end; a
migration keeps it `in-use`.  Cinder's attachment_delete checks none of that (cinder/volume/api.py,
attachment_delete): if the last attachment is deleted meanwhile, the volume is `in-use` afterwards
without an attachment.  Nova avoids that by os-begin_detaching, which accepts only an `in-use`
volume; Cinder begins no task on a `detaching` one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import Cinder, PortError, VolumeView

#: Statuses that follow only from the volume's attachments.
OF_ATTACHMENTS = frozenset({"available", "reserved", "attaching", "in-use", "detaching"})
#: A task of Cinder failed; the volume's attachments are not affected.
FAILED = frozenset(
    {
        *("error", "error_extending", "error_backing-up", "error_restoring"),
        *("error_deleting", "error_managing"),
    }
)
#: Cinder or an administrator works on the volume, and sets its status at the end.
AT_WORK = frozenset(
    {"retyping", "extending", "backing-up", "restoring-backup", "downloading", "maintenance"}
)
#: Values of migration_status without a migration (Cinder's AVAILABLE_MIGRATION_STATUS).
NOT_MIGRATING = frozenset({None, "", "none", "deleting", "error", "success"})


def is_migrating(volume: VolumeView) -> bool:
    """Whether Cinder migrates the volume to another backend, or it is the target of that."""
    return volume.migration_status not in NOT_MIGRATING


def state_of(volume: VolumeView) -> str:
    """The volume's status, for messages."""
    return f"{volume.status}, migrating" if is_migrating(volume) else volume.status


@dataclass
class Deletion:
    """`shown`: whether Cinder's answer shows that this request deleted the attachment."""

    shown: bool = True


@contextmanager
def letting_go(cinder: Cinder, lane: Lane, *, first: bool = False) -> Iterator[Deletion]:
    """Around the deletion of the lane's attachment; RETRYABLE `volume_busy` while that would leave
    the volume with a wrong status.

    The status is checked and set to `detaching`, so that Cinder cannot begin a task between the
    check and the deletion.  The deletion resets `detaching`.  If it fails, or there was nothing to
    delete, this function does (LP 880399); if it cannot, that is an error to be retried, because
    nobody else would reset it.  The volume may stay in use: by other servers, if it is
    multi-attach; or by the same server, if an attachment was added meanwhile.

    `first`: `detaching` is set before the check, because the volume is nearly always `in-use`.
    """
    left = _is_left(cinder, lane)
    held = _held(cinder, lane.volume_id, first=first) if left else None
    deletion = Deletion()
    try:
        yield deletion
    except PortError as failed:
        if held is not None:
            with _less_than(failed):
                cinder.roll_detaching(lane.volume_id)  # no effect if it is not `detaching`
        raise
    if held is not None and (held.multiattach or not deletion.shown):
        cinder.roll_detaching(lane.volume_id)


def _is_left(cinder: Cinder, lane: Lane) -> bool:
    """Whether the server loses the volume with this attachment.

    Not in a move; nor in a swap for a migration of Cinder's, which waits for the deletion.
    """
    other = lane.other.volume_id if lane.other is not None else None
    if other is None:
        return True
    return other != lane.volume_id and not _is_pair(cinder, lane.volume_id, other)


def _is_pair(cinder: Cinder, one: str, other: str) -> bool:
    """Whether Cinder migrates one of them to the other."""
    shown = [_shown(cinder, volume_id) for volume_id in (one, other)]
    migrations = {volume.migration_status for volume in shown if volume is not None}
    return bool({f"target:{one}", f"target:{other}"} & migrations)


def _held(cinder: Cinder, volume_id: str, *, first: bool) -> VolumeView | None:
    """The volume, if it is `detaching` now; None: its status needs no protection.

    begin_detaching succeeds for a migrating volume, which is then rolled back.  So later attempts
    check first, because it would be `detaching` for a moment each time.
    """
    if not first:
        volume = _shown(cinder, volume_id)
        if volume is None:  # then it has no attachment either
            return None
        _refuse_at_work(volume)
        if volume.status != "in-use":
            return volume if volume.status == "detaching" else None
    begun = _begin_detaching(cinder, volume_id)
    volume = _shown(cinder, volume_id)
    if volume is None:
        return None
    try:
        _refuse_at_work(volume)
    except PortError:
        if begun:
            cinder.roll_detaching(volume_id)
        raise
    return volume if volume.status == "detaching" else None


def _begin_detaching(cinder: Cinder, volume_id: str) -> bool:
    """Whether Cinder accepted it; the volume's status shows why not."""
    try:
        cinder.begin_detaching(volume_id)
    except PortError as error:
        if error.code not in {"refused", "not_found"}:
            raise
        return False
    return True


@contextmanager
def _less_than(failed: PortError) -> Iterator[None]:
    """Ignore this error in favour of the first one, unless that is FINAL (it ends the retries)."""
    try:
        yield
    except PortError:
        if failed.kind is ErrorKind.FINAL:
            raise


def _shown(cinder: Cinder, volume_id: str) -> VolumeView | None:
    try:
        return cinder.volume(volume_id)
    except PortError as error:
        if error.code != "not_found":
            raise
        return None


def _refuse_at_work(volume: VolumeView) -> None:
    if volume.status in AT_WORK or is_migrating(volume):
        raise _busy(volume)


def _busy(volume: VolumeView) -> PortError:
    text = (
        f"Volume {volume.id} is {state_of(volume)}: Cinder works on it. Its attachment is deleted "
        "when that is over; if it never is, an administrator resets the volume's state."
    )
    return PortError(ErrorKind.RETRYABLE, "volume_busy", text)
