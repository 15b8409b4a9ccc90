"""Reports a guest's part in a snapshot to Cinder, and waits for Cinder's status (flows.snapshot).

Cinder's remotefs driver polls its own record of the snapshot.  While that is `creating` or
`deleting`, it waits; at "90%" it continues; at an error it gives up.  Any other report gets a 400:
a snapshot that was given up is not revived.  A success is reported only while Cinder is seen to
wait, because it changes which file Cinder names.
"""

from __future__ import annotations

from typing import Any

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import LATE_S, PortError, SnapshotView
from ledger.core.steps.attachments import attachments_clear
from ledger.core.steps.context import EffectContext

#: What Cinder shows of a snapshot whose guest has done its part; and of one that it has, whatever
#: is done to it since: it may be deleted before a lost answer is asked for again.
HEARD, WHOLE = "90%", "100%"


def snapshot_taken(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest writes to the new file: Cinder continues.  FINAL if it has given the snapshot up.

    Cinder then names the file in the volume's first attachment, whichever that is: so there must be
    no attachment but the server's.
    """
    seen = _seen(lane, context)
    if seen is not None and seen.status == "creating":
        ended = attachments_clear(lane, context)
        context.cinder.tell_snapshot(seen.id, "creating")
        return ended
    if not _is_taken(seen):
        raise _given_up(lane, seen)
    return {}


def snapshot_revoke(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest writes to the new file, and it is unknown whether Cinder has been told.  If it has,
    the operation can only go forward.
    """
    if context.uncertain:
        context.wait(LATE_S)
    seen = _seen(lane, context)
    going_on = seen is not None and seen.status == "creating" and seen.progress == HEARD
    if going_on or _is_taken(seen):
        return {"passed": True}
    return snapshot_fail(lane, context)


def snapshot_fail(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest does not write to the new file: Cinder shows `error`."""
    return _tell(lane, context, "creating", "error")


def snapshot_await(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Wait until Cinder's attachment names the new file: every later connection uses it."""
    assert lane.attachment_id is not None, "a volume is a disk by an attachment"
    file = _snapshot(lane)["file"]
    if context.cinder.attachment(lane.attachment_id).connection_info.get("name") == file:
        return {}
    seen = _seen(lane, context)
    if seen is not None and seen.status == "creating":
        text = f"Cinder has not named {file} in attachment {lane.attachment_id} yet."
        raise PortError(ErrorKind.RETRYABLE, "volume_not_ready", text)
    raise _not_followed(lane, seen)


def snapshot_merged(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest no longer uses the file.  A Cinder that has given up may be asked to delete the
    snapshot again, and finds that done.
    """
    return _tell(lane, context, "deleting", "deleting")


def snapshot_keep(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest still uses the file: Cinder shows `error_deleting`."""
    return _tell(lane, context, "deleting", "error_deleting")


def _tell(lane: Lane, context: EffectContext, waits: str, status: str) -> dict[str, Any]:
    """Report `status` to Cinder, if it waits for that.  Only Cinder knows, because its record may
    be from before it began to wait.  It refuses the report if the snapshot is not in status
    `waits`.
    """
    try:
        context.cinder.tell_snapshot(_snapshot(lane)["id"], status)
    except PortError as error:
        if error.code not in {"refused", "not_found"}:
            raise
        seen = _seen(lane, context)
        if seen is not None and seen.status == waits:
            raise
    return {}


def _is_taken(seen: SnapshotView | None) -> bool:
    return seen is not None and (seen.status == "available" or seen.progress == WHOLE)


def _seen(lane: Lane, context: EffectContext) -> SnapshotView | None:
    """None: Cinder has none (any more)."""
    try:
        return context.cinder.snapshot(_snapshot(lane)["id"])
    except PortError as error:
        if error.code != "not_found":
            raise
        return None


def _snapshot(lane: Lane) -> dict[str, Any]:
    assert lane.snapshot is not None, "the flow's lanes have one"
    return lane.snapshot


def _given_up(lane: Lane, seen: SnapshotView | None) -> PortError:
    shown = f"it is {seen.status}" if seen else "it is gone"
    text = f"Cinder does not wait for snapshot {_snapshot(lane)['id']} any more: {shown}."
    return PortError(ErrorKind.FINAL, "snapshot_not_awaited", text)


def _not_followed(lane: Lane, seen: SnapshotView | None) -> PortError:
    text = (
        f"The guest writes to {_snapshot(lane)['file']}, and Cinder's attachment "
        f"{lane.attachment_id} names another file (the snapshot is "
        f"{seen.status if seen else 'gone'}): do not stop the server. Correct name and format "
        "(qcow2) in the attachment's connection_info, then retry."
    )
    return PortError(ErrorKind.FINAL, "attachment_not_followed", text)
