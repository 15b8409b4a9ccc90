"""Block device mappings that are alive: what `os-volume_attachments` lists."""

from __future__ import annotations

from aggregates.mapping import BlockDeviceMapping, MappingState
from projections.base import LoggedEvent, Projection, Row, originator

_STATE_AFTER = {
    kind.TOPIC: state.value for kind, (_, state) in BlockDeviceMapping.TRANSITIONS.items()
}
_FLAG_SET = BlockDeviceMapping.DeleteOnTerminationSet.TOPIC


def _fold(row: Row | None, event: LoggedEvent) -> Row | None:
    if event.topic == BlockDeviceMapping.MappingEnded.TOPIC:
        return None
    row = {**(row or _new(event)), **event.stamp}
    row["state"] = _STATE_AFTER.get(event.topic, row.get("state", MappingState.BOUND))
    match event.topic:
        case BlockDeviceMapping.DevicePlugged.TOPIC:
            row.update(device_name=event.body["device_name"], bus=event.body["bus"])
        case BlockDeviceMapping.DeleteOnTerminationSet.TOPIC:
            row["delete_on_termination"] = event.body["delete_on_termination"]
    return row


def _new(event: LoggedEvent) -> Row:
    return {
        **event.body,
        "bdm_id": event.originator_id,
        "bus": None,
        "created_at": event.recorded_at,
        "created_position": event.position,
    }


MAPPINGS = Projection(
    table="mappings",
    key="bdm_id",
    topics=frozenset({*_STATE_AFTER, _FLAG_SET}),
    key_of=originator,
    fold=_fold,
)
