"""Events of the log as CloudEvents, for who consumes those of other systems, too.

CloudEvents 1.0.2, in the JSON event format, structured: the event is `data`, as /v1/events shows
it, and around it stands what any consumer understands.  `source` is the log, by the id that its
checkpoints have, so `source` and `id` name an event wherever it came from; a log restored to an
earlier moment is told by its checkpoints, not by its source.

`position` is an extension attribute.  It is a string, for CloudEvents' integers end at 2^31 - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import TypeAdapter

from ledger.http.schemas import Shown
from ledger.native.log.schemas_events import EventShown

#: One event, and several (JSON event format, 3 and 4).
MEDIA_TYPE = "application/cloudevents+json"
BATCH_MEDIA_TYPE = "application/cloudevents-batch+json"

#: Before the topic: whose event it is.
TYPE_PREFIX = "attachment-ledger."

#: By aggregate: below which path of /v1 the thing is that an event happened to, and its id there.
_SUBJECTS = {
    "Operation": ("operations", "originator_id"),
    "Attachment": ("attachments", "originator_id"),
    "BlockDeviceMapping": ("servers", "server_id"),
    "Volume": ("volumes", "originator_id"),
    "Instance": ("servers", "originator_id"),
    "Host": ("hosts", "host"),
    "Remnant": ("remnants", "originator_id"),
    "Finding": ("drift", "originator_id"),
    "Look": ("drift/runs", "originator_id"),
    "Person": ("persons", "originator_id"),  # there is nothing at this path: it is erased
}


class CloudEvent(Shown):
    """The attributes' names are CloudEvents' own."""

    specversion: Literal["1.0"] = "1.0"
    id: str
    source: str
    type: str
    subject: str
    time: datetime
    datacontenttype: Literal["application/json"] = "application/json"
    position: str
    data: EventShown


_BATCH = TypeAdapter(list[CloudEvent])


def cloud_event(log: UUID, event: EventShown) -> CloudEvent:
    """An event of this log."""
    path, named = _SUBJECTS[event.topic.partition(".")[0]]
    return CloudEvent(
        id=str(event.position),
        source=f"urn:uuid:{log}",
        type=TYPE_PREFIX + event.topic,
        subject=f"{path}/{getattr(event, named)}",
        time=event.recorded_at,
        position=str(event.position),
        data=event,
    )


def batch(log: UUID, events: Iterable[EventShown]) -> bytes:
    """Events as one JSON text."""
    return _BATCH.dump_json([cloud_event(log, event) for event in events])


def preferred(accept: str, offered: Sequence[str]) -> str:
    """Which of the media types offered a request wants most (RFC 9110, 12.5.1).

    The first, if it does not say; also if it wants none of them, for that says what there is.
    """
    weights = [(_weight(accept, each), -number, each) for number, each in enumerate(offered)]
    return max(weights)[2]


def _weight(accept: str, media_type: str) -> float:
    """By the range that names it most closely; 0 if none does."""
    ranges = (media_type, media_type.partition("/")[0] + "/*", "*/*")
    found: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, *parameters = (word.strip() for word in part.split(";"))
        found[name] = next(map(_number, (p[2:] for p in parameters if p.startswith("q="))), 1.0)
    return next((found[each] for each in ranges if each in found), 0.0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
