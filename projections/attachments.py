"""Attachments, deleted ones too, and the spans in which hosts held their volumes.

A span begins when Cinder has a host's connector, because from then on the host may hold
the volume, and ends with the proof that it let go (or the waiver of it): never earlier
than the truth, which is what an audit needs.
"""

from __future__ import annotations

from typing import Any

from aggregates.attachment import Attachment, AttachmentState
from projections.base import Derived, LoggedEvent, Projection, Row, originator

_STATE_AFTER = {kind.TOPIC: state.value for kind, (_, state) in Attachment.TRANSITIONS.items()}


def _fold(row: Row | None, event: LoggedEvent) -> Row:
    body = event.body
    row = {**(row or _new(event)), **event.stamp}
    row["state"] = _STATE_AFTER.get(event.topic, row.get("state"))
    if event.operation_id is not None:
        row["operation_id"] = event.operation_id
    match event.topic:
        case Attachment.VolumeRenamed.TOPIC:
            row["volume_id"] = body["volume_id"]
        case Attachment.ConnectorUpdated.TOPIC:
            row.update(
                host=body["host"], driver=body["driver"], target_digest=body["target_digest"]
            )
            row["spans"] = _opened(row["spans"], event)
        case Attachment.Connected.TOPIC:
            row["device_path"] = body["device_path"]
        case Attachment.Disconnected.TOPIC | Attachment.Deleted.TOPIC:
            row["spans"] = _closed(row["spans"], event)
    if row["state"] == AttachmentState.DELETED:
        row["ended_at"] = event.recorded_at
    return row


def _new(event: LoggedEvent) -> Row:
    return {
        **event.body,
        "legacy": event.body.get("legacy", False),
        "attachment_id": event.originator_id,
        "spans": [],
        "created_at": event.recorded_at,
        "created_position": event.position,
    }


def _opened(spans: list[Row], event: LoggedEvent) -> list[Row]:
    host = event.body["host"]
    if any(span["host"] == host and span["to_position"] is None for span in spans):
        return spans
    begun = {"from_position": event.position, "from_at": event.recorded_at.isoformat()}
    return [*spans, {"host": host, **begun, "to_position": None, "to_at": None}]


def _closed(spans: list[Row], event: LoggedEvent) -> list[Row]:
    end: dict[str, Any] = {
        "to_position": event.position,
        "to_at": event.recorded_at.isoformat(),
    }
    return [{**span, **end} if span["to_position"] is None else span for span in spans]


def _spans(row: Row) -> list[Row]:
    common = {name: row[name] for name in ("attachment_id", "volume_id", "server_id")}
    return [{**common, **span} for span in row["spans"]]


ATTACHMENTS = Projection(
    table="attachments",
    key="attachment_id",
    topics=frozenset({*_STATE_AFTER, Attachment.VolumeRenamed.TOPIC}),
    key_of=originator,
    fold=_fold,
    derived=(Derived("spans", _spans),),
)
