"""What the rows of looks, findings and remnants say after each event."""

from __future__ import annotations

from typing import Any

from aggregates.finding import Finding
from aggregates.look import Look
from aggregates.remnant import Remnant
from projections.base import Row
from projections.findings import FINDINGS
from projections.looks import LOOKS
from projections.remnants import REMNANTS
from tests.unit.test_aggregate_facts import FOUND, ID, LEFT
from tests.unit.test_rows import at, changes, told


def test_the_row_of_a_look() -> None:
    ended = {"outcome": "completed", "compared": {"server": 3}, "found": {"c": 1}}
    more = {"unknown": {"h": "w"}, "braked": {"c": 2}, "trouble": "t", "examples": {"c": ["k"]}}
    begun = {"scope": {"host": "h"}, "why": "asked", "believe": ["c"], "reason": "r"}
    assert changes(
        LOOKS,
        Look,
        (Look.LookBegun, begun),
        (Look.LookStopped, {"reason": "later"}),
        (Look.LookResumed, {"reason": "now"}),
        (Look.LookEnded, {**ended, **more}),
    ) == [
        {
            "look_id": str(ID),
            **begun,
            "kind": "host",
            "state": "under_way",
            "began_at": at(1),
            "began_position": 1,
            **dict.fromkeys(ended | more),
            "ended_at": None,
        },
        {"state": "stopped"},
        {"state": "under_way"},
        {"state": "ended", "ended_at": at(4), **ended, **more},
    ]
    whole = next(told(LOOKS, Look, (Look.LookBegun, {**begun, "scope": {}})))
    assert whole is not None
    assert whole["kind"] == "all"


_AGAIN = {"look_id": "m", "at_position": 9}
_CHANGED = {**_AGAIN, "differs": {"host": {}}, "boot_id": "next", "epoch": 6}
_REPAIR = {"repair": "r", "by_operation": "o", "reason": "why"}
_FIRST = {k: v for k, v in FOUND.items() if k != "at_position"}
_UNSET = dict.fromkeys(("over_at", "over_position", "over_how", "repairing", "repaired_by"))
_NOT_IGNORED = {"ignored_until": None, "ignored_reason": None}
#: What happens to a finding, and what each of it changes in its row.
FINDING: tuple[tuple[Any, Row, Row], ...] = (
    (
        Finding.DriftFound,
        FOUND,
        {
            **_FIRST,
            **_UNSET,
            **_NOT_IGNORED,
            "finding_id": str(ID),
            "state": "suspected",
            "times": 1,
            "first_position": 1,
            "found_at": at(1),
            "found_position": 1,
            "seen_at": at(1),
            "seen_position": 1,
            "confirmed_at": None,
        },
    ),
    (Finding.DriftConfirmed, _AGAIN, {"state": "confirmed", "confirmed_at": at(2), "look_id": "m"}),
    (
        Finding.DriftIgnored,
        {"reason": "known", "until": at(0).timestamp()},
        {"state": "ignored", "ignored_until": at(0), "ignored_reason": "known"},
    ),
    (Finding.DriftIgnored, {"reason": "known", "until": None}, {"ignored_until": None}),
    (
        Finding.DriftHeeded,
        {"reason": "over"},
        {"state": "suspected", "confirmed_at": None, "ignored_reason": None},
    ),
    (
        Finding.DriftChanged,
        _CHANGED,
        {
            "differs": {"host": {}},
            "boot_id": "next",
            "epoch": 6,
            "seen_at": at(6),
            "seen_position": 6,
        },
    ),
    (Finding.DriftConfirmed, _AGAIN, {"state": "confirmed", "confirmed_at": at(7)}),
    (Finding.RepairBegun, _REPAIR, {"repairing": "o"}),
    (Finding.RepairFailed, {"by_operation": "o", "why": "w"}, {"repairing": None}),
    (Finding.RepairBegun, _REPAIR, {"repairing": "o"}),
    (
        Finding.DriftRepaired,
        {"by_operation": "o"},
        {
            "state": "over",
            "over_at": at(11),
            "over_position": 11,
            "over_how": "repaired",
            "repairing": None,
            "repaired_by": "o",
        },
    ),
    (
        Finding.DriftFound,
        FOUND,
        {
            **{name: _FIRST[name] for name in ("differs", "boot_id", "epoch", "look_id")},
            **{name: None for name in _UNSET if name != "repairing"},
            "state": "suspected",
            "times": 2,
            "found_at": at(12),
            "found_position": 12,
            "seen_at": at(12),
            "seen_position": 12,
            "confirmed_at": None,
        },
    ),
    (
        Finding.DriftGone,
        _AGAIN,
        {
            "state": "over",
            "over_at": at(13),
            "over_position": 13,
            "over_how": "gone",
            "look_id": "m",
        },
    ),
)


def test_the_row_of_a_finding() -> None:
    rows = changes(FINDINGS, Finding, *((kind, body) for kind, body, _ in FINDING))
    assert rows == [row for *_, row in FINDING]


def test_the_row_of_a_remnant() -> None:
    kept = {name: value for name, value in LEFT.items() if name != "what"}
    assert changes(
        REMNANTS,
        Remnant,
        (Remnant.RemnantLeft, LEFT),
        (Remnant.RemnantAcknowledged, {"reason": "it is gone"}),
    ) == [
        {
            **kept,
            "kind": "disk",
            "remnant_id": str(ID),
            "left_position": 1,
            "left_at": at(1),
            "state": "open",
            "acknowledged_at": None,
            "acknowledged_reason": None,
        },
        {"state": "acknowledged", "acknowledged_at": at(2), "acknowledged_reason": "it is gone"},
    ]
