"""Reports a guest's part in a snapshot to Cinder, and waits for Cinder's status (flows.snapshot).

Cinder's remotefs driver looks at its own record of the snapshot: while that is `creating`, or
`deleting`, it waits; at "90%" it goes on, at an error it gives up.  Told anything else it answers
400: what it has given up is not revived.  A success is told only to a Cinder that is seen to wait,
for it changes which file it names.
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
    """The guest writes to the new file: Cinder goes on.  FINAL if it has given the snapshot up.

    It then names the file in the volume's first attachment, whichever that is: so there must be no
    other than the server's.
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
    """The guest writes to the new file, and whether Cinder has heard so is not known: if it has,
    there is only forward.
    """
    if context.uncertain:
        context.wait(LATE_S)
    seen = _seen(lane, context)
    going_on = seen is not None and seen.status == "creating" and seen.progress == HEARD
    if going_on or _is_taken(seen):
        return {"passed": True}
    return snapshot_fail(lane, context)


def snapshot_fail(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest does not: Cinder shows `error`."""
    return _tell(lane, context, "creating", "error")


def snapshot_await(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """Cinder's attachment names the new file: whoever connects the volume from now on gets it."""
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
    """The guest does without the file.  A Cinder that has given up may be asked to delete the
    snapshot again, and finds that done.
    """
    return _tell(lane, context, "deleting", "deleting")


def snapshot_keep(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """The guest needs the file: Cinder shows `error_deleting`."""
    return _tell(lane, context, "deleting", "error_deleting")


def _tell(lane: Lane, context: EffectContext, waits: str, status: str) -> dict[str, Any]:
    """Tell Cinder `status`, if it waits for that: it alone knows, for what it shows may be of
    before it began to.  It refuses it if the snapshot is not in status `waits`.
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
