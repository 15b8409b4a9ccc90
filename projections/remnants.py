"""What operators' acts may have left behind in Cinder and on hosts, until it is acknowledged."""

from __future__ import annotations

from aggregates.remnant import Remnant, RemnantState
from projections.base import LoggedEvent, Projection, Row, originator

_FROM_THE_EVENT = (
    *("act", "reason", "from_operation", "step"),
    *("server_id", "volume_id", "attachment_id", "host"),
)


def _fold(row: Row | None, event: LoggedEvent) -> Row:
    row = {**(row or {}), **event.stamp}
    if event.topic == Remnant.RemnantLeft.TOPIC:
        row.update({name: event.body[name] for name in _FROM_THE_EVENT})
        row.update(kind=event.body["what"], remnant_id=event.originator_id)
        row.update(left_position=event.position, left_at=event.recorded_at)
        row.update(state=RemnantState.OPEN.value)
        row.update(acknowledged_at=None, acknowledged_reason=None)
    else:
        row.update(state=RemnantState.ACKNOWLEDGED.value, acknowledged_at=event.recorded_at)
        row.update(acknowledged_reason=event.body["reason"])
    return row


REMNANTS = Projection(
    table="remnants",
    key="remnant_id",
    topics=frozenset({Remnant.RemnantLeft.TOPIC, Remnant.RemnantAcknowledged.TOPIC}),
    key_of=originator,
    fold=_fold,
)
