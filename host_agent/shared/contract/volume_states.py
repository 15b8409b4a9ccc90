"""What the status of a volume in Cinder means, and how a volume is released safely.

A backup or a retype keeps the status from before (`previous_status`) and writes it back at its
end, whatever happened meanwhile; a migration keeps it `in-use`.  Cinder's attachment_delete asks
for none of that (cinder/volume/api.py, attachment_delete): if the last attachment goes meanwhile,
the volume is `in-use` afterwards, and nobody has it.  Nova is kept from that by
os-begin_detaching, which takes a volume only if it is `in-use`; once it is `detaching`, Cinder
begins nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import Cinder, PortError, VolumeView

#: What attachments alone make of a status, and the lack of them.
OF_ATTACHMENTS = frozenset({"available", "reserved", "attaching", "in-use", "detaching"})
#: What Cinder tried with the volume went wrong; the attachments it has are as good as before.
FAILED = frozenset(
    {
        *("error", "error_extending", "error_backing-up", "error_restoring"),
        *("error_deleting", "error_managing"),
    }
)
#: Cinder, or an administrator, works on the volume, and sets its status at the end.
AT_WORK = frozenset(
    {"retyping", "extending", "backing-up", "restoring-backup", "downloading", "maintenance"}
)
#: A migration_status that says there is none (Cinder's AVAILABLE_MIGRATION_STATUS).
NOT_MIGRATING = frozenset({None, "", "none", "deleting", "error", "success"})


def is_migrating(volume: VolumeView) -> bool:
    """Whether Cinder moves the volume to another backend, or it is the target of that."""
    return volume.migration_status not in NOT_MIGRATING


def state_of(volume: VolumeView) -> str:
    """What is said of the volume's state."""
    return f"{volume.status}, migrating" if is_migrating(volume) else volume.status


@dataclass
class Deletion:
    """`shown`: whether Cinder's answer shows that the attachment went with this request."""

    shown: bool = True


@contextmanager
def letting_go(cinder: Cinder, lane: Lane, *, first: bool = False) -> Iterator[Deletion]:
    """Around the deletion of the lane's attachment; RETRYABLE `volume_busy` while that would
    leave the volume with a wrong status.

    The status is looked at, and then held by `detaching`, so that Cinder cannot begin between
    the look and the deletion.  Cinder takes that back with the deletion; if it fails, or there
    was nothing to delete, we do (LP 880399): what cannot be taken back now is an error to be tried
    again, for nobody else would.  Who else may have it: other servers, if it is shared; and
    the same one by another attachment, if somebody has moved it there meanwhile.

    `first`: it is held before it is looked at, for what is let go of is nearly always `in-use`.
    """
    left = _is_left(cinder, lane)
    held = _held(cinder, lane.volume_id, first=first) if left else None
    deletion = Deletion()
    try:
        yield deletion
    except PortError as failed:
        if held is not None:
            with _less_than(failed):
                cinder.roll_detaching(lane.volume_id)  # nothing, if it is not `detaching`
        raise
    if held is not None and (held.multiattach or not deletion.shown):
        cinder.roll_detaching(lane.volume_id)


def _is_left(cinder: Cinder, lane: Lane) -> bool:
    """Whether the server loses the volume with this attachment.

    Not in a move; and in a swap for Cinder's own migration Cinder waits for it.
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
    """The volume, if it is `detaching` now; else Cinder can begin nothing with it anyhow.

    Of one that migrates begin_detaching says yes, which is taken back.  So whoever tries again
    looks before: it would be `detaching` for a moment each time.
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
    """Whether Cinder did; why it does not is seen in what it shows."""
    try:
        cinder.begin_detaching(volume_id)
    except PortError as error:
        if error.code not in {"refused", "not_found"}:
            raise
        return False
    return True


@contextmanager
def _less_than(failed: PortError) -> Iterator[None]:
    """What failed first is told, if the step is then done again."""
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
