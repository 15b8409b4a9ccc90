"""What happened, in words: one sentence per event.

Pure.  An event whose topic is not known here (it was stored by a newer version)
is shown by its name, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from aggregates.finding import UNTIL_MAX_S

Body = Mapping[str, Any]

#: Events that keep the ledger's own order (claims, names, intents' echoes); the story is
#: shown without them unless somebody asks.
BOOKKEEPING = frozenset(
    {
        "Instance.Claimed",
        "Instance.ClaimReleased",
        "Instance.ClaimResumed",
        "Instance.DeviceReserved",
        "Instance.DeviceReleased",
        "Instance.DeviceVolumeSet",
        "Instance.DefinitionChanged",
        "Volume.Claimed",
        "Volume.ClaimNarrowed",
        "Volume.ClaimReleased",
        "Volume.Held",
        "Volume.Released",
    }
)

#: How many of the actions of before a server was watched its sentence names.
ACTIONS_TOLD = 5


def is_bookkeeping(topic: str, body: Body, operation_id: str | None) -> bool:
    """Whether the story is told without this event; not where a volume gets another id.  What an
    operation has made of a guest, which the agent reports with its steps, the steps tell.
    """
    if operation_id and topic == "Instance.InstanceObserved":
        return True
    return topic in BOOKKEEPING and not body.get("renamed_to")


def sentence(topic: str, body: Body, *, host: str | None = None) -> str:
    """What this event says.  `host` is the event's typed column, if it has one."""
    make = SENTENCES.get(topic)
    if make is None:
        return topic.partition(".")[2] or topic
    known = {} if host is None else {"host": host}
    what = make({**known, **{k: v for k, v in body.items() if v is not None}})
    return _as_seen(what, body["seen"]) if body.get("seen") else what


def _as_seen(what: str, seen: Mapping[str, Any]) -> str:
    """Seen, not done; and when it became so, as far as anybody knows."""
    claimed = f"; by Cinder at {_second(seen['claimed'])}" if seen.get("claimed") else ""
    before = _second(seen["before"])
    when = f"{_second(seen['after'])} to {before}" if seen["after"] else f"by {before}"
    told = _as_told(seen["told"]) if seen.get("told") else ""
    return f"Seen at {seen['origin'].capitalize()} ({when}{claimed}{told}): {what}"


def _as_told(told: Mapping[str, Any]) -> str:
    """Who asked Nova for it, and when that was by its clock."""
    who = f"; {told['event']} at {_second(told['at'])}"
    who += f" for user {told['user_id']}" if told.get("user_id") else ""
    who += f" of project {told['project_id']}" if told.get("project_id") else ""
    return f"{who}, {told['request_id']}" if told.get("request_id") else who


def _second(moment: str) -> str:
    return moment[:19].replace("T", " ")


def _text(template: str) -> Callable[[Body], str]:
    return lambda body: template.format_map(_Blank(body))


class _Blank(dict[str, Any]):
    """An event of an older or newer form may lack a field; a sentence is still shown."""

    def __missing__(self, key: str) -> str:
        return "?"


def _watched(body: Body) -> str:
    where = f"on {body['host']}" if body.get("host") else "on no host"
    return f"Server {body.get('name', '?')} is {body.get('vm_state', '?')} {where}"


def _asked_before(body: Body) -> str:
    """The latest of them; all are in the event."""
    asked = [f"{_as_told(each)[2:]}" for each in body.get("actions", [])]
    more = [f"{len(asked) - ACTIONS_TOLD} before these"] if len(asked) > ACTIONS_TOLD else []
    what = "; ".join([*more, *asked[-ACTIONS_TOLD:]]) or "nothing of volumes"
    back_to = _second(body["back_to"]) if body.get("back_to") else "no moment"
    made = "its making" if body.get("whole") else "earlier actions are unknown"
    return f"Nova's instance actions, which name no volume, go back to {back_to} ({made}): {what}"


def _deleted_row(body: Body) -> str:
    """A row of Nova's database, which is no proof that the guest had the disk."""
    at = {name: _second(body.get(name, "")) for name in ("read_at", "created_at", "deleted_at")}
    text = (
        "Its database (schema {revision}, read at {read_at}) has a mapping of volume {volume_id} "
        "to server {server_id} that was created at {created_at} and deleted at {deleted_at}, by "
        "Nova's clock"
    ).format_map(_Blank({**body, **at}))
    names = ("device_name", "attachment_id", "boot_index", "tag", "bus", "delete_on_termination")
    return ", ".join([text, *(f"{name} {body[name]}" for name in names if name in body)])


def _waived(template: str) -> Callable[[Body], str]:
    """An operator's reason to do without proof belongs into the sentence."""

    def tell(body: Body) -> str:
        text = template.format_map(_Blank(body))
        return (
            f"{text}; taken as done without proof: {body['waived']}" if "waived" in body else text
        )

    return tell


def _hook_ran(body: Body) -> str:
    code, said = body.get("code"), body.get("output", "?")
    if body.get("next_at") is None:
        return f"Program after the fence has done its work: {said}"
    how = "was ended" if code is None else f"ended with {code}"
    return f"Program after the fence FAILED ({how}), and is run again: {said}"


def _older(template: str) -> Callable[[Body], str]:
    """Hosts whose word is older than the look, and how old it is, belong into the sentence."""

    def tell(body: Body) -> str:
        ages = {host: life.get("age_s") for host, life in body.get("seen_on", {}).items()}
        words = [f"what {host} showed {age:.0f} s before" for host, age in ages.items() if age]
        return ", by ".join([template.format_map(_Blank(body)), *words])

    return tell


def _started(body: Body) -> str:
    plan = body.get("plan", {})
    words = [f"volume {_lane(lane)}" for lane in plan.get("lanes", [])]
    words.append(f"server {body.get('server_id')}")
    if destination := plan.get("hosts", {}).get("destination"):
        words.append(f"to {destination}")
    return f"{flow_name(body.get('flow', 'operation')).capitalize()} requested: {', '.join(words)}"


def flow_name(flow: object) -> str:
    """A flow as people say it: "live migrate"."""
    return str(flow).replace("_", " ")


def _lane(lane: Body) -> str:
    """The volume, or both that change places; one that is still to be made has no id."""
    volume_id = lane.get("volume_id") or "(new)"
    other = (lane.get("new") or {}).get("volume_id")
    return f"{volume_id} -> {other}" if other else str(volume_id)


def _steps(body: Body) -> str:
    return ("undo of " if body.get("undo") else "") + ", ".join(body.get("steps", []))


def _run_started(body: Body) -> str:
    where = f"Sent to {body['host']}" if body.get("host") else "The ledger starts"
    return f"{where}: {_steps(body)}"


def _step(body: Body) -> str:
    lane = f" of lane {body['lane']}" if body.get("lane", 0) > 0 else ""
    return f"{'Undo of step' if body.get('undo') else 'Step'} {body.get('step')}{lane}"


def _succeeded(body: Body) -> str:
    outputs = body.get("outputs", {})
    if body.get("undo") and outputs.get("passed"):
        return f"Too late to undo step {body.get('step')}: it has happened, and the flow goes on"
    refused = f"; Cinder refused: {outputs['refused']}" if outputs.get("refused") else ""
    return f"{_step(body)} done in {body.get('took_ms', '?')} ms{refused}"


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
        return "Reservation found in Cinder and recorded"
    old = " by its old calls" if body.get("legacy") else ""
    return f"Volume reserved in Cinder{old}"


def _connector(body: Body) -> str:
    driver = f" ({body['driver']})" if body.get("driver") else ""
    whose = f"connector of host {body['host']}" if "host" in body else "host's connector"
    return f"Cinder has the {whose}{driver}"


def _connected(body: Body) -> str:
    where = f" at {body['device_path']}" if body.get("device_path") else ""  # Nova tells none
    return f"Host sees the volume{where}"


def _disconnected(body: Body) -> str:
    if "converted_to" in body:
        return f"The connection is attachment {body['converted_to']}'s now"
    text = "Host released the volume"
    if body.get("shared"):
        text = "Attachment no longer needs the host's connection, another guest there does"
    return _waived(text)(body)


def _attachment_deleted(body: Body) -> str:
    if "converted_to" in body:
        return f"Converted to attachment {body['converted_to']}"
    return _waived("Attachment deleted in Cinder")(body)


def _renamed(body: Body) -> str:
    former, now = body.get("former_volume_id", "?"), body.get("volume_id", "?")
    return f"Cinder calls the attachment's volume, which was {former}, {now} now"


def _volume_released(body: Body) -> str:
    if "renamed_to" in body:
        through = body.get("attachment_id", "?")
        return f"Cinder calls the volume {body['renamed_to']} now, with attachment {through}"
    return f"Volume no longer held by server {body.get('server_id', '?')}"


def _seen(body: Body) -> str:
    devices = ", ".join(body.get("devices", [])) or "no disks"
    where = f" on {body['host']}" if "host" in body else ""
    return f"Server {body.get('name')} seen{where}: {body.get('power_state')}, {devices}"


def _delete_flag(body: Body) -> str:
    kept = "deleted" if body.get("delete_on_termination") else "kept"
    return f"Volume will be {kept} when the server is deleted"


def _switched(body: Body) -> str:
    text = (
        f"The server has volume {body.get('volume_id')} "
        f"through attachment {body.get('attachment_id')} now"
    )
    kept = body.get("kept")
    return f"{text}; {kept} is kept until the resize is confirmed or reverted" if kept else text


def _device_volume(body: Body) -> str:
    return f"Volume {body['volume_id']} put" if "volume_id" in body else "No volume left"


def _disabled(body: Body) -> str:
    return f"Host takes no servers any more: {body.get('reason') or 'no reason was given'}"


def _left_over(body: Body) -> str:
    guests, attachments = body.get("guests", []), body.get("attachments", [])
    return (
        f"Host has leftovers to release: guests {', '.join(guests) or 'none'}; "
        f"attachments {', '.join(attachments) or 'none'}"
    )


def _disks_seen(body: Body) -> str:
    volumes = ", ".join(body.get("volumes", []))
    guest = f"the guest of server {body.get('server_id')}"
    if volumes:
        return f"Host shows in {guest} volumes that the server should not have there: {volumes}"
    return f"Host shows nothing in {guest} now that should not be there"


def _definition(body: Body) -> str:
    dropped = ", ".join(body.get("dropped") or ())
    suffix = f"; no other host will do: {dropped}" if dropped else ""
    return f"Guest's definition changed{suffix}"


def _plugged(body: Body) -> str:
    bus = f" on the {body['bus']} bus" if body.get("bus") else ""
    return f"Guest has the disk as {body.get('device_name')}{bus}"


def _ignored(body: Body) -> str:
    until = min(body.get("until") or 0, UNTIL_MAX_S)  # 0.2.0 took it as late as somebody said it
    end = f" until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M}Z" if until else ""
    return f"The difference is ignored{end}: {body.get('reason')}"


def _described(body: Body) -> str:
    fields = ", ".join(f"{name} {value!r}" for name, value in body.get("changed", {}).items())
    return f"Server is to be shown with {fields}"


def _locked(body: Body) -> str:
    who = "an operator" if body.get("by") == "admin" else "a user of its project"
    return f"Server locked by {who}: {body.get('reason', 'no reason was given')}"


def _reset(body: Body) -> str:
    if body.get("state") == "error":
        return "An operator set the server to ERROR"
    return "An operator cleared the server's error"


def _look(body: Body) -> str:
    of = ", ".join(f"{kind} {which}" for kind, which in body.get("scope", {}).items())
    believe = ", ".join(body.get("believe", ()))
    suffix = f", which is to believe {believe}: {body.get('reason')}" if believe else ""
    return f"Look at {of or 'everything'} begun ({body.get('why')}){suffix}"


def _looked(body: Body) -> str:
    found = sum(body.get("found", {}).values())
    trouble = f": {body['trouble']}" if body.get("trouble") else ""
    counts = ", ".join(f"{count} {name}" for name, count in body.get("braked", {}).items())
    suppressed = f", suppressed: {counts}" if counts else ""
    return f"Look {body.get('outcome')}, {found} new findings{suppressed}{trouble}"


SENTENCES: dict[str, Callable[[Body], str]] = {
    "Attachment.AttachmentCreated": _created,
    "Attachment.ConnectorUpdated": _connector,
    "Attachment.Connected": _connected,
    "Attachment.Completed": _text("Attachment complete: Cinder was told that it is in use"),
    "Attachment.Disconnected": _disconnected,
    "Attachment.VolumeRenamed": _renamed,
    "Attachment.Deleted": _attachment_deleted,
    "Attachment.Adopted": _text("The ledger is responsible for the attachment from now on"),
    "Attachment.Renamed": _text("The same connection has the id {now} here from now on"),
    "Attachment.HandedBack": _text("The attachment is handed back to {to}"),
    "Attachment.Disowned": _text("Attachment in Cinder that belongs to no step is given up: {why}"),
    "BlockDeviceMapping.MappingCreated": _text("Recorded as device {device_name} of the server"),
    "BlockDeviceMapping.AccessModeLearned": _text("The server has the volume as {access_mode}"),
    "BlockDeviceMapping.DevicePlugged": _plugged,
    "BlockDeviceMapping.DeviceUnplugged": _waived("Guest released the disk"),
    "BlockDeviceMapping.AttachmentSwitched": _switched,
    "BlockDeviceMapping.RootDetached": _text("Root volume {volume_id} detached; its place is kept"),
    "BlockDeviceMapping.RootAttached": _text("Volume {volume_id} takes the root's place"),
    "BlockDeviceMapping.DeleteOnTerminationSet": _delete_flag,
    "BlockDeviceMapping.Adopted": _text("The ledger is responsible for the mapping from now on"),
    "BlockDeviceMapping.HandedBack": _text("The mapping is handed back to {to}"),
    "BlockDeviceMapping.MappingEnded": _text("The server no longer has this volume"),
    "BlockDeviceMapping.DeletedRowSeen": _deleted_row,
    "Finding.DriftFound": _older("Difference found: {drift_class} ({severity})"),
    "Finding.DriftConfirmed": _text("A second look sees the same difference"),
    "Finding.DriftChanged": _older("The difference has changed"),
    "Finding.DriftGone": _text("A look does not see the difference any more"),
    "Finding.DriftIgnored": _ignored,
    "Finding.DriftHeeded": _text("The difference is no longer ignored: {reason}"),
    "Finding.RepairBegun": _text("Operation {by_operation} will repair it: {repair} ({reason})"),
    "Finding.DriftRepaired": _text("Operation {by_operation} has repaired it"),
    "Finding.RepairFailed": _text("Operation {by_operation} has not repaired it: {why}"),
    "Host.HostRegistered": _text("Agent of {name} registered, service version {service_version}"),
    "Host.Fenced": _text("Host FENCED, epoch {epoch}: {reason}; evidence: {evidence}"),
    "Host.Unfenced": _text("Host unfenced: {reason}"),
    "Host.HookRan": _hook_ran,
    "Host.Restored": _text(
        "Ledger RESTORED from a backup that ended at position {position}, host epoch {epoch}: "
        "{reason}"
    ),
    "Host.Vouched": _text("Host vouched for after the restore: {reason}"),
    "Host.HostSeen": _text("{name} has servers of Nova; the ledger changes nothing there"),
    "Host.Adopted": _text("Host {name} ADOPTED from {came_from}: {reason}"),
    "Host.Deleted": _text("Host forgotten: {reason}"),
    "Host.HandedBack": _text("Host handed back to {to}: {reason}"),
    "Host.Disabled": _disabled,
    "Host.Enabled": _text("Host takes servers again"),
    "Host.LeftoversFound": _left_over,
    "Host.LeftoversCleared": _text("Host has released all leftovers"),
    "Host.DisksSeen": _disks_seen,
    "Instance.InstanceRegistered": _seen,
    "Instance.InstanceObserved": _seen,
    "Instance.ServerSeen": _watched,
    "Instance.ActionsSeen": _asked_before,
    "Instance.Adopted": _text("Server ADOPTED from {came_from}: {reason}"),
    "Instance.HandedBack": _text("Server handed back to {to}: {reason}"),
    "Instance.Defined": _text("Server {name} requested, to be built on {host}"),
    "Instance.DefinitionChanged": _definition,
    "Instance.Placed": _text("Guest is on {host} now, {power_state}"),
    "Instance.GuestLeft": _text("Only the fence says that the guest is off {host}"),
    "Instance.SeenElsewhere": _text("{host}, which is not its host, shows the guest {power_state}"),
    "Instance.GoneElsewhere": _text("{host} does not show the guest any more"),
    "Instance.Resized": _text("Server moved from {source}, to be confirmed or reverted"),
    "Instance.GrowthAwaited": _text(
        "Volume {volume_id} has grown; the guest gets the new size later"
    ),
    "Instance.GrowthBegun": _text("The guest gets the new size of volume {volume_id}"),
    "Instance.ResizeSettled": _text("Resize confirmed or reverted"),
    "Instance.Offloaded": _text("Server is on no host; its volumes stay reserved for it"),
    "Instance.Deleted": _text("Server deleted"),
    "Instance.DeletionAwaited": _text("To be deleted when the operation in progress has ended"),
    "Instance.DeviceReserved": _text("Device name {device_name} given to volume {volume_id}"),
    "Instance.DeviceVolumeSet": _device_volume,
    "Instance.DeviceReleased": _text("Device name of volume {volume_id} is free again"),
    "Instance.Claimed": _text("Server claimed by operation {claimant}"),
    "Instance.ClaimReleased": _text("Server released by operation {claimant}"),
    "Instance.ClaimResumed": _text("Operation {claimant} works on the server again"),
    "Instance.Described": _described,
    "Instance.Locked": _locked,
    "Instance.Unlocked": _text("Server unlocked"),
    "Instance.StateReset": _reset,
    "Instance.Faulted": _text("Server shows ERROR: {message}"),
    "Instance.FaultCleared": _text("Server no longer shows the error of operation {claimant}"),
    "Look.LookBegun": _look,
    "Look.LookStopped": _text("Look stopped: {reason}"),
    "Look.LookResumed": _text("Look resumed: {reason}"),
    "Look.LookEnded": _looked,
    "Operation.OperationStarted": _started,
    "Operation.RunStarted": _run_started,
    "Operation.StepSucceeded": _succeeded,
    "Operation.StepRetried": _retried,
    "Operation.StepFailed": _failed,
    "Operation.Parked": _parked,
    "Operation.RetryRequested": _text("Retry requested: {reason}"),
    "Operation.StepSkipped": lambda body: f"{_step(body)} skipped: {body.get('reason')}",
    "Operation.UnwindRequested": _text("Unwind requested: {reason}"),
    "Operation.OperationFinished": _finished,
    "Person.Erased": _text("A person's name and id were erased: {reason}"),
    "Remnant.RemnantLeft": _text("May stay behind: {what} ({act} of step {step}: {reason})"),
    "Remnant.RemnantAcknowledged": _text("What stayed behind was acknowledged: {reason}"),
    "Volume.VolumeMade": _text("Volume made in Cinder for server {server_id}, mark {mark}"),
    "Volume.VolumeDeleted": _text("Volume deleted in Cinder: {why}"),
    "Volume.SeenInGuest": _text("{host} shows the volume in the guest of server {server_id}"),
    "Volume.GoneFromGuest": _text("{host} does not show it in the guest of server {server_id} now"),
    "Volume.VolumeDeletionRefused": _text("Cinder refused to delete the volume: {why}"),
    "Volume.Claimed": _text("Volume claimed by operation {claimant}"),
    "Volume.ClaimNarrowed": _text("Operation {claimant} connects the volume nowhere any more"),
    "Volume.ClaimReleased": _text("Volume released by operation {claimant}"),
    "Volume.Held": _text("Volume held by server {server_id}"),
    "Volume.Released": _volume_released,
}
