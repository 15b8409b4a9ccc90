"""Findings: what differs, the state, and how it ended.

A finding has one id however often the difference returns (aggregates.finding).  Its row is about
the last time; the log has the earlier ones.  The view `drift` shows findings together with remnants
and parked operations.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from aggregates.finding import UNTIL_MAX_S, Finding, FindingState
from projections.base import LoggedEvent, Projection, Row, originator

_FROM_THE_EVENT = (
    *("drift_class", "severity", "subject", "key"),
    *("server_id", "volume_id", "attachment_id", "host"),
)
_NOT_IGNORED: Row = {"ignored_until": None, "ignored_reason": None}
_STATE_AFTER = {kind.TOPIC: state.value for kind, (_, state) in Finding.TRANSITIONS.items()}


def _fold(row: Row | None, event: LoggedEvent) -> Row:
    row = {**(row or _NEW), **event.stamp}
    if event.topic in _CHANGES:
        row.update(_CHANGES[event.topic](row, event))
    row["state"] = _STATE_AFTER.get(event.topic) or row["state"]
    if row["state"] != FindingState.IGNORED:
        row.update(_NOT_IGNORED)
    return row


def _found(row: Row, event: LoggedEvent) -> Row:
    return {
        **{name: event.body[name] for name in _FROM_THE_EVENT},
        **_seen(row, event),
        "finding_id": event.originator_id,
        "first_position": row["first_position"] or event.position,
        "found_at": event.recorded_at,
        "found_position": event.position,
        "times": row["times"] + 1,
        **dict.fromkeys(("over_at", "over_position", "over_how", "repairing", "repaired_by")),
    }


def _seen(_: Row, event: LoggedEvent) -> Row:
    """The values have changed, so the finding must be confirmed again."""
    seen = {name: event.body[name] for name in ("differs", "look_id", "boot_id", "epoch")}
    at = {"seen_at": event.recorded_at, "seen_position": event.position}
    return {**seen, **at, "confirmed_at": None}


def _confirmed(_: Row, event: LoggedEvent) -> Row:
    return {"confirmed_at": event.recorded_at, "look_id": event.body["look_id"]}


def _gone(_: Row, event: LoggedEvent) -> Row:
    return {**_over(event, "gone"), "look_id": event.body["look_id"]}


def _repaired(_: Row, event: LoggedEvent) -> Row:
    return {**_over(event, "repaired"), "repaired_by": event.body["by_operation"]}


def _over(event: LoggedEvent, how: str) -> Row:
    ended = {"over_at": event.recorded_at, "over_position": event.position, "over_how": how}
    return {**ended, "repairing": None}


def _ignored(_: Row, event: LoggedEvent) -> Row:
    until = event.body["until"]  # 0.2.0 stored it without an upper bound
    moment = None if until is None else datetime.fromtimestamp(min(until, UNTIL_MAX_S), UTC)
    return {"ignored_until": moment, "ignored_reason": event.body["reason"]}


_CHANGES: dict[str, Callable[[Row, LoggedEvent], Row]] = {
    Finding.DriftFound.TOPIC: _found,
    Finding.DriftConfirmed.TOPIC: _confirmed,
    Finding.DriftChanged.TOPIC: _seen,
    Finding.DriftGone.TOPIC: _gone,
    Finding.DriftIgnored.TOPIC: _ignored,
    Finding.DriftHeeded.TOPIC: lambda *_: {"confirmed_at": None},
    Finding.RepairBegun.TOPIC: lambda _, event: {"repairing": event.body["by_operation"]},
    Finding.DriftRepaired.TOPIC: _repaired,
    Finding.RepairFailed.TOPIC: lambda *_: {"repairing": None},
}
_NEW: Row = {"first_position": None, "times": 0}

FINDINGS = Projection(
    table="findings",
    key="finding_id",
    topics=frozenset(_CHANGES),
    key_of=originator,
    fold=_fold,
)
