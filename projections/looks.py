"""Looks: when ledger, Cinder and hosts were compared, and the result."""

from __future__ import annotations

from aggregates.look import Look, LookState
from projections.base import LoggedEvent, Projection, Row, originator

_END = ("outcome", "compared", "found", "unknown", "braked", "trouble", "examples")


def kind_of(scope: Row) -> str:
    """The scope's kind: all, host, server or volume."""
    return next(iter(scope), "all")


def _fold(row: Row | None, event: LoggedEvent) -> Row:
    row = {**(row or {}), **event.stamp}
    if event.topic == Look.LookBegun.TOPIC:
        scope = event.body["scope"]
        row.update(look_id=event.originator_id, scope=scope, kind=kind_of(scope))
        row.update({name: event.body[name] for name in ("why", "believe", "reason")})
        row.update(state=LookState.UNDER_WAY.value)
        row.update(began_at=event.recorded_at, began_position=event.position)
        row.update(dict.fromkeys((*_END, "ended_at")))
    elif event.topic == Look.LookStopped.TOPIC:
        row.update(state=LookState.STOPPED.value)
    elif event.topic == Look.LookResumed.TOPIC:
        row.update(state=LookState.UNDER_WAY.value)
    else:
        row.update({name: event.body[name] for name in _END})
        row.update(state=LookState.ENDED.value, ended_at=event.recorded_at)
    return row


LOOKS = Projection(
    table="looks",
    key="look_id",
    topics=frozenset(
        kind.TOPIC for kind in (Look.LookBegun, Look.LookStopped, Look.LookResumed, Look.LookEnded)
    ),
    key_of=originator,
    fold=_fold,
)
