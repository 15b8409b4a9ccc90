"""Block device mappings that exist: what `os-volume_attachments` lists."""

from __future__ import annotations

from aggregates.mapping import BlockDeviceMapping, MappingState
from projections.base import LoggedEvent, Projection, Row, origin_of, originator

_STATE_AFTER = {
    kind.TOPIC: state.value for kind, (_, state) in BlockDeviceMapping.TRANSITIONS.items()
}
_STATELESS = frozenset(
    {
        BlockDeviceMapping.DeleteOnTerminationSet.TOPIC,
        BlockDeviceMapping.AttachmentSwitched.TOPIC,
        BlockDeviceMapping.AccessModeLearned.TOPIC,
        BlockDeviceMapping.Adopted.TOPIC,
        BlockDeviceMapping.HandedBack.TOPIC,
    }
)


_TAKEN = frozenset({BlockDeviceMapping.MappingCreated.TOPIC, BlockDeviceMapping.RootAttached.TOPIC})


def _fold(row: Row | None, event: LoggedEvent) -> Row | None:
    if event.topic == BlockDeviceMapping.MappingEnded.TOPIC:
        return None
    body = event.body
    row = {**(row or _new(event)), **event.stamp}
    row["state"] = _STATE_AFTER.get(event.topic, row.get("state", MappingState.BOUND))
    if event.topic in _TAKEN:
        serial = body["serial"] or body["volume_id"]
        row.update(body, kept=None, serial=serial, tag=body["tag"] or row.get("tag"))
    match event.topic:
        case BlockDeviceMapping.AttachmentSwitched.TOPIC:
            row.update(body)
        case BlockDeviceMapping.RootDetached.TOPIC:
            row.update(volume_id=None, attachment_id=None, serial=None)
        case BlockDeviceMapping.DevicePlugged.TOPIC:
            row.update(device_name=body["device_name"], bus=body["bus"] or row["bus"])
        case BlockDeviceMapping.AccessModeLearned.TOPIC:
            row["access_mode"] = body["access_mode"]
        case BlockDeviceMapping.DeleteOnTerminationSet.TOPIC:
            row["delete_on_termination"] = body["delete_on_termination"]
        case BlockDeviceMapping.Adopted.TOPIC:
            row.update(origin=None, serial=row["volume_id"])
            row["boot_index"] = 0 if body["is_root"] else row["boot_index"]
            row["multiattach"] |= body["multiattach"]
        case BlockDeviceMapping.HandedBack.TOPIC:
            row["origin"] = body["to"]
    return row


def _new(event: LoggedEvent) -> Row:
    return {
        "bdm_id": event.originator_id,
        "bus": None,
        "origin": origin_of(event),
        "created_at": event.recorded_at,
        "created_position": event.position,
    }


MAPPINGS = Projection(
    table="mappings",
    key="bdm_id",
    topics=frozenset({*_STATE_AFTER, *_STATELESS}),
    key_of=originator,
    fold=_fold,
)
