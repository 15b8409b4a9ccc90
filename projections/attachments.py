"""Attachments, deleted ones too, and the spans in which hosts held their volumes.

A span begins when Cinder has a host's connector, because from then on the host may have the volume
connected.  It ends with the proof of the disconnect, or with its waiver.  So it is never shorter
than the truth.

A migration in Cinder may change the volume's id: then the span with the former id ends and a new
one begins, so that answers about a past moment stay the same.
"""

from __future__ import annotations

from collections.abc import Callable

from aggregates.attachment import Attachment, AttachmentState
from projections.base import Derived, LoggedEvent, Projection, Row, origin_of, originator

_STATE_AFTER = {kind.TOPIC: state.value for kind, (_, state) in Attachment.TRANSITIONS.items()}
_STATE_AFTER[Attachment.Renamed.TOPIC] = AttachmentState.DELETED.value  # nothing has this id now


#: Of a span of the ledger's own: its begin and end were not observed but done.
_DONE: Row = {"from_seen": None, "to_seen": None}


def _fold(row: Row | None, event: LoggedEvent) -> Row:
    topic = event.topic
    row = {**(row or _new(event)), **event.stamp}
    row["state"] = _STATE_AFTER.get(topic) or row["state"]
    if event.operation_id is not None:
        row["operation_id"] = event.operation_id
    if topic in _CHANGES:
        row.update(_CHANGES[topic](row, event))
    return row


def _new(event: LoggedEvent) -> Row:
    """The first event may be `Disowned`, which has fewer fields than `AttachmentCreated`."""
    return {
        "volume_id": event.body["volume_id"],
        "server_id": event.body["server_id"],
        "adopted": event.body.get("adopted", False),
        "legacy": event.body.get("legacy", False),
        "access_mode": event.body.get("access_mode"),
        "attachment_id": event.originator_id,
        "origin": origin_of(event),
        "spans": [],
        "created_at": event.recorded_at,
        "created_position": event.position,
    }


def _created(row: Row, event: LoggedEvent) -> Row:
    """Reopened, if this id ended only because of Attachment.Renamed."""
    return {"origin": origin_of(event), "ended_at": None} if row.get("ended_at") else {}


def _connector(row: Row, event: LoggedEvent) -> Row:
    changed = {name: event.body[name] for name in ("host", "driver", "target_digest")}
    changed["access_mode"] = event.body.get("access_mode") or row["access_mode"]
    if any(span["host"] == changed["host"] for span in row["spans"] if _open(span)):
        return changed
    begun = {"from_position": event.position, "from_at": event.recorded_at.isoformat()}
    span = {"host": changed["host"], **begun, "to_position": None, "to_at": None}
    if event.seen:
        span["from_seen"] = event.seen
    return {**changed, "spans": [*row["spans"], span]}


def _released(row: Row, event: LoggedEvent) -> Row:
    if not any(map(_open, row["spans"])):
        return {}
    end = {"to_position": event.position, "to_at": event.recorded_at.isoformat()}
    if event.seen:
        end["to_seen"] = event.seen
    return {"spans": [{**span, **end} if _open(span) else span for span in row["spans"]]}


def _renamed(row: Row, event: LoggedEvent) -> Row:
    """A span without a volume id is of the present one; from now on each span has its own."""
    spans = [{"volume_id": row["volume_id"], **span} for span in row["spans"]]
    ended = _released({"spans": spans}, event).get("spans", spans)
    begun = {"from_position": event.position, "from_at": event.recorded_at.isoformat()}
    again = [
        {"host": span["host"], **begun, "to_position": None, "to_at": None}
        for span in spans
        if _open(span)
    ]
    return {"volume_id": event.body["volume_id"], "spans": [*ended, *again]}


def _deleted(row: Row, event: LoggedEvent) -> Row:
    return {**_released(row, event), "ended_at": event.recorded_at}


def _open(span: Row) -> bool:
    return span["to_position"] is None


def _spans(row: Row) -> list[Row]:
    common = {name: row[name] for name in ("attachment_id", "volume_id", "server_id")}
    return [{**_DONE, **common, **span} for span in row["spans"]]


_CHANGES: dict[str, Callable[[Row, LoggedEvent], Row]] = {
    Attachment.VolumeRenamed.TOPIC: _renamed,
    Attachment.ConnectorUpdated.TOPIC: _connector,
    Attachment.Connected.TOPIC: lambda _, event: {"device_path": event.body["device_path"]},
    Attachment.Disconnected.TOPIC: _released,
    Attachment.Deleted.TOPIC: _deleted,
    Attachment.Disowned.TOPIC: _deleted,
    Attachment.Renamed.TOPIC: _deleted,
    Attachment.AttachmentCreated.TOPIC: _created,
    Attachment.Adopted.TOPIC: lambda _row, _event: {"origin": None},
    Attachment.HandedBack.TOPIC: lambda _, event: {"origin": event.body["to"]},
}

ATTACHMENTS = Projection(
    table="attachments",
    key="attachment_id",
    topics=frozenset({*_STATE_AFTER, *_CHANGES}),
    key_of=originator,
    fold=_fold,
    derived=(Derived("spans", _spans),),
)
