"""Let Cinder write an image to a volume that is reserved for a server (handlers.flows.reimage).

Cinder answers at once, shows `downloading` while it writes, and then the earlier status, or
`error`.  The status may be `reserved` before as well as after.  So the log stores, as a separate
result, that Cinder has accepted the request: `IN_WRITING`.  If that is unknown, as after a lost
answer, Cinder is asked again: the same image is written a second time, to a volume that nobody has.

Cinder's event (`volume-reimaged`) only ends the wait (`ledger/nova/cinder_events.py`); the volume's
status decides.
"""

from __future__ import annotations

from typing import Any

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import LATE_S, PortError, VolumeView
from ledger.core.steps.context import EffectContext

#: The error's code as long as Cinder writes.
IN_WRITING = "volume_in_writing"
#: And when it could not.
FAILED = "reimage_failed"


def volume_reimage(lane: Lane, context: EffectContext) -> dict[str, Any]:
    """RETRYABLE `volume_in_writing` until the volume has the image; FINAL `reimage_failed`,
    `refused`.
    """
    assert lane.image is not None, "the flow's lane has one"
    if context.uncertain:
        context.wait(LATE_S)
    volume = context.cinder.volume(lane.volume_id)
    if volume.status == "reserved":
        # Nobody may have reset the status while Cinder wrote: it notes the image before the end.
        if volume.image_id == lane.image and _was_taken(context):
            return {"image_id": lane.image}
        context.cinder.volume_reimage(lane.volume_id, lane.image)
    elif volume.status != "downloading":
        raise _failed(lane, volume)
    text = f"Cinder writes image {lane.image} to volume {lane.volume_id}."
    raise PortError(ErrorKind.RETRYABLE, IN_WRITING, text)


def _was_taken(context: EffectContext) -> bool:
    """Whether Cinder has accepted the request, and has not failed at it since."""
    operation = context.operation
    assert operation is not None, "it is a step of one"
    history = operation.history
    run = next(run for run in history.active.values() if run.number == context.run)
    record = history.of_step(run.lane, history.next_step(run), undo=run.undo)
    known = {code for _, code in record.errors}
    last = record.error["code"] if record.error else None
    return last == IN_WRITING or (IN_WRITING in known and FAILED not in known)


def _failed(lane: Lane, volume: VolumeView) -> PortError:
    text = (
        f"Image {lane.image} was not written to root volume {volume.id}, which is {volume.status} "
        "in Cinder: see its messages. Part of it may be overwritten. When an administrator has "
        "reset its state (openstack volume set --state reserved), retry; or give up, and the "
        "server keeps the volume by a bare attachment, to be rebuilt or detached."
    )
    return PortError(ErrorKind.FINAL, FAILED, text)
