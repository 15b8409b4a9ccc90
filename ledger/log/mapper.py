"""Between events and their stored form.

The body of a stored event is the JSON of exactly the fields its class declares, so that
`event_log` reads in SQL as the class reads in Python.  What an event concerns (`about`) is stored
beside it in typed, indexed columns and not read back: the aggregate has it.

Upcasting is the library's: an event class raises `class_version` and adds
`upcast_v1_v2(state)`; a body without "class_version" is of version 1.  A body that lacks a field
with a default is read with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from eventsourcing.domain import DomainEventProtocol
from eventsourcing.persistence import Mapper, StoredEvent, Transcoder
from eventsourcing.utils import get_topic

from aggregates.base import NOBODY, About, Event, complete

#: Datetimes and dataclasses in a body are mistakes: they would come back as something else.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
#: These are in a body only where there is something to say.
_SOMETIMES = ("seen", "sender")
_BESIDE_THE_BODY = (*_SOMETIMES, "originator_id", "originator_version", "about", "recording_order")


@dataclass(frozen=True)
class IndexedEvent(StoredEvent):
    """A stored event with the ids of what it concerns."""

    about: About = NOBODY


class JSONBody(Transcoder):
    """JSON-native values to UTF-8 JSON and back; raises TypeError for anything else."""

    def encode(self, obj: Any) -> bytes:
        return orjson.dumps(obj, option=_OPTIONS)

    def decode(self, data: bytes) -> Any:
        return orjson.loads(data)


class LedgerMapper(Mapper[UUID]):
    """The library's mapper with `about` kept out of the body, and defaults for what a body lacks;
    other events as the library maps them.
    """

    def to_stored_event(self, domain_event: DomainEventProtocol[UUID]) -> IndexedEvent:
        if not isinstance(domain_event, Event):
            return IndexedEvent(**vars(super().to_stored_event(domain_event)))
        kind = type(domain_event)
        fields = vars(domain_event)
        body = {name: value for name, value in fields.items() if name not in _BESIDE_THE_BODY}
        body |= {name: fields[name] for name in _SOMETIMES if fields[name] is not None}
        class_version = getattr(kind, "class_version", 1)
        if class_version > 1:
            body["class_version"] = class_version
        return IndexedEvent(
            originator_id=domain_event.originator_id,
            originator_version=domain_event.originator_version,
            topic=get_topic(kind),
            state=self.transcoder.encode(body),
            about=domain_event.about,
        )

    def to_domain_event(self, stored_event: StoredEvent) -> DomainEventProtocol[UUID]:
        event = super().to_domain_event(stored_event)
        if isinstance(event, Event):
            complete(type(event), vars(event))
        return event
