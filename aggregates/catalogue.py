"""Every event that the log can have, by aggregate."""

from __future__ import annotations

import inspect

from aggregates.attachment import Attachment
from aggregates.base import Aggregate, Event
from aggregates.finding import Finding
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.look import Look
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.person import Person
from aggregates.remnant import Remnant
from aggregates.volume import Volume

AGGREGATES: tuple[type[Aggregate], ...] = (
    Operation,
    Attachment,
    BlockDeviceMapping,
    Volume,
    Instance,
    Host,
    Remnant,
    Finding,
    Look,
    Person,
)


def events_of(aggregate: type[Aggregate]) -> list[type[Event]]:
    """The events that are declared inside an aggregate, in the order of the code."""
    return [
        each
        for each in vars(aggregate).values()
        if inspect.isclass(each) and issubclass(each, Event)
    ]


#: What an event is called in the log.
TOPICS = tuple(kind.TOPIC for aggregate in AGGREGATES for kind in events_of(aggregate))
