"""What happened, in words: one sentence per event, one phrase per verb.

Pure.  An event whose topic is not known here (it was stored by a newer version)
is shown by its name, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from handlers.plan import LedgerVerb
from host_agent.contract import Verb

Body = Mapping[str, Any]

#: Events that keep the ledger's own order (claims, names, intents' echoes); the story is
#: told without them unless somebody asks.
BOOKKEEPING = frozenset(
    {
        "Instance.Claimed",
        "Instance.ClaimReleased",
        "Instance.DeviceReserved",
        "Instance.DeviceReleased",
        "Volume.Claimed",
        "Volume.ClaimReleased",
        "Volume.Held",
        "Volume.Released",
    }
)

#: What a step does, as an order.
VERBS: dict[str, str] = {
    LedgerVerb.ATTACHMENT_RESERVE: "reserve the volume in Cinder (attachment without connector)",
    LedgerVerb.MAPPING_BIND: "record the device of the server",
    LedgerVerb.MAPPING_UNBIND: "forget the device of the server",
    Verb.ATTACHMENT_UPDATE: "give Cinder this host's connector",
    Verb.VOLUME_WAIT_READY: "wait until the volume is provisioned",
    Verb.VOLUME_CONNECT: "connect the volume to the host (os-brick)",
    Verb.DISK_PLUG: "plug the disk into the guest (libvirt)",
    Verb.ATTACHMENT_COMPLETE: "tell Cinder that the attachment is in use",
    Verb.DISK_UNPLUG: "unplug the disk from the guest (libvirt)",
    Verb.VOLUME_DISCONNECT: "disconnect the volume from the host (os-brick)",
    Verb.ATTACHMENT_DELETE: "delete the attachment in Cinder",
}


def sentence(topic: str, body: Body, *, host: str | None = None) -> str:
    """What this event says.  `host` is the event's typed column, if it has one."""
    told = SENTENCES.get(topic)
    if told is None:
        return topic.partition(".")[2] or topic
    return told({"host": host, **{k: v for k, v in body.items() if v is not None}})


def _text(template: str) -> Callable[[Body], str]:
    return lambda body: template.format_map(_Blank(body))


class _Blank(dict[str, Any]):
    """An event of an older or newer form may lack a field; a sentence is still told."""

    def __missing__(self, key: str) -> str:
        return "?"


def _waived(template: str) -> Callable[[Body], str]:
    """An operator's reason to do without proof belongs into the sentence."""

    def tell(body: Body) -> str:
        text = template.format_map(_Blank(body))
        return (
            f"{text}; taken as done without proof: {body['waived']}" if "waived" in body else text
        )

    return tell


def _started(body: Body) -> str:
    lanes = body.get("plan", {}).get("lanes", [])
    volumes = ", ".join(str(lane.get("volume_id")) for lane in lanes)
    flow = str(body.get("flow", "operation")).capitalize()
    return f"{flow} requested: volume {volumes}, server {body.get('server_id')}"


def _steps(body: Body) -> str:
    return ("undo of " if body.get("undo") else "") + ", ".join(body.get("steps", []))


def _run_started(body: Body) -> str:
    where = f"Sent to {body['host']}" if body.get("host") else "The ledger begins"
    return f"{where}: {_steps(body)}"


def _step(body: Body) -> str:
    return f"{'Undo of step' if body.get('undo') else 'Step'} {body.get('step')}"


def _succeeded(body: Body) -> str:
    return f"{_step(body)} done in {body.get('took_ms', '?')} ms"


def error_text(error: Any) -> str:
    """An error of a step for people; unknown outcomes are called that."""
    if not isinstance(error, Mapping):
        return "reason unknown"
    unknown = "outcome unknown, " if error.get("kind") == "unknown" else ""
    return f"{unknown}{error.get('message')} ({error.get('code')})"


def _retried(body: Body) -> str:
    at = datetime.fromtimestamp(float(body.get("retry_at", 0)), UTC)
    return f"{_step(body)} did not work: {error_text(body.get('error'))}; again at {at:%H:%M:%S}"


def _failed(body: Body) -> str:
    return f"{_step(body)} FAILED: {error_text(body.get('error'))}"


def _parked(body: Body) -> str:
    left = ", ".join(left_text(item) for item in body.get("left", []))
    return f"PARKED, an operator is needed; left: {left}"


def left_text(item: Body) -> str:
    """A step that is not done."""
    return f"{'undo of ' if item.get('undo') else ''}{item.get('step')}"


_ENDS = {
    "completed": "Operation completed",
    "failed": "Operation failed, all was undone",
    "cancelled": "Operation cancelled",
}


def _finished(body: Body) -> str:
    text = _ENDS.get(str(body.get("outcome")), f"Operation ended: {body.get('outcome')}")
    if body.get("error"):
        text += f": {error_text(body['error'])}"
    return f"{text}; reason given: {body['reason']}" if body.get("reason") else text


def _created(body: Body) -> str:
    if body.get("adopted"):
        return "Reservation found in Cinder and adopted"
    return "Volume reserved in Cinder"


def _connector(body: Body) -> str:
    driver = f" ({body['driver']})" if body.get("driver") else ""
    return f"Cinder has the connector of host {body.get('host')}{driver}"


def _disconnected(body: Body) -> str:
    text = "Host let the volume go"
    if body.get("shared"):
        text = "Attachment no longer needs the host's connection, another guest there does"
    return _waived(text)(body)


def _seen(body: Body) -> str:
    devices = ", ".join(body.get("devices", [])) or "no disks"
    return (
        f"Server {body.get('name')} seen on {body.get('host')}: "
        f"{body.get('power_state')}, {devices}"
    )


def _delete_flag(body: Body) -> str:
    kept = "deleted" if body.get("delete_on_termination") else "kept"
    return f"Volume will be {kept} when the server is deleted"


def _plugged(body: Body) -> str:
    bus = f" on the {body['bus']} bus" if body.get("bus") else ""
    return f"Guest has the disk as {body.get('device_name')}{bus}"


SENTENCES: dict[str, Callable[[Body], str]] = {
    "Attachment.AttachmentCreated": _created,
    "Attachment.ConnectorUpdated": _connector,
    "Attachment.Connected": _text("Host sees the volume at {device_path}"),
    "Attachment.Completed": _text("Attachment complete: Cinder was told that it is in use"),
    "Attachment.Disconnected": _disconnected,
    "Attachment.Deleted": _waived("Attachment deleted in Cinder"),
    "BlockDeviceMapping.MappingCreated": _text("Recorded as device {device_name} of the server"),
    "BlockDeviceMapping.DevicePlugged": _plugged,
    "BlockDeviceMapping.DeviceUnplugged": _waived("Guest let the disk go"),
    "BlockDeviceMapping.DeleteOnTerminationSet": _delete_flag,
    "BlockDeviceMapping.MappingEnded": _text("The server has this volume no more"),
    "Host.HostRegistered": _text("Agent of {name} registered, service version {service_version}"),
    "Host.Fenced": _text("Host FENCED, epoch {epoch}: {reason}; evidence: {evidence}"),
    "Host.Unfenced": _text("Host unfenced: {reason}"),
    "Instance.InstanceRegistered": _seen,
    "Instance.InstanceObserved": _seen,
    "Instance.DeviceReserved": _text("Device name {device_name} given to volume {volume_id}"),
    "Instance.DeviceReleased": _text("Device name of volume {volume_id} is free again"),
    "Instance.Claimed": _text("Server claimed by operation {claimant}"),
    "Instance.ClaimReleased": _text("Server released by operation {claimant}"),
    "Instance.Faulted": _text("Server shows ERROR: {message}"),
    "Instance.FaultCleared": _text("Server no longer shows the error of operation {claimant}"),
    "Operation.OperationStarted": _started,
    "Operation.RunStarted": _run_started,
    "Operation.StepSucceeded": _succeeded,
    "Operation.StepRetried": _retried,
    "Operation.StepFailed": _failed,
    "Operation.Parked": _parked,
    "Operation.RetryRequested": _text("Retry requested: {reason}"),
    "Operation.StepSkipped": _text("Step {step} of lane {lane} skipped: {reason}"),
    "Operation.UnwindRequested": _text("Unwind requested: {reason}"),
    "Operation.OperationFinished": _finished,
    "Volume.Claimed": _text("Volume claimed by operation {claimant}"),
    "Volume.ClaimReleased": _text("Volume released by operation {claimant}"),
    "Volume.Held": _text("Volume held by server {server_id}"),
    "Volume.Released": _text("Volume no longer held by server {server_id}"),
}
