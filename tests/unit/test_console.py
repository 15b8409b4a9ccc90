"""The parts of the console that need no service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ledger.web import drawn, sessions, texts
from ledger.web.sessions import AGE_S, IDLE_S, SESSIONS_MAX, Sessions

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_when_nobody_uses_it_and_at_its_age_all_the_same() -> None:
    clock = Clock()
    known = Sessions(clock)
    idle, used = known.begin("idle"), known.begin("used")
    for _ in range(int(AGE_S / IDLE_S) * 2 - 1):
        clock.now += IDLE_S / 2
        assert known.token(used) == "used"
    assert known.token(idle) is None
    clock.now = AGE_S
    assert known.token(used) is None
    assert known.token("never begun") is None


def test_of_too_many_sessions_the_one_unused_for_longest_ends() -> None:
    known = Sessions(Clock())
    first, second = known.begin("first"), known.begin("second")
    known.token(first)
    for _ in range(SESSIONS_MAX - 1):
        known.begin("another")
    assert (known.token(first), known.token(second)) == ("first", None)


def test_a_session_tells_no_token() -> None:
    known = Sessions(Clock())
    known.begin("secret")
    assert "secret" not in repr(vars(known))
    assert len({known.begin("x") for _ in range(SESSIONS_MAX)}) == sessions.SESSIONS_MAX


def made(created: int, ended: int | None, **more: Any) -> dict[str, Any]:
    """An attachment, by minutes before noon."""
    at = [None if each is None else (NOON - timedelta(minutes=each)) for each in (created, ended)]
    begin, end = (each and each.isoformat() for each in at)
    given = {"attachment_id": "a", "host": "compute-1", "state": "attached", **more}
    return {**given, "created_at": begin, "ended_at": end}


def test_a_time_line_has_its_bars_where_they_were() -> None:
    rows = [made(60, 30), made(30, None, host=None)]
    began = (NOON - timedelta(minutes=15)).isoformat()
    operation = {"operation_id": "o", "flow": "detach", "state": "running", "outcome": None}
    late = {**operation, "started_at": (NOON - timedelta(hours=2)).isoformat()}
    line = drawn.timeline(
        rows, [{**operation, "started_at": began}, late], NOON, NOON - timedelta(minutes=45)
    )
    assert line is not None
    assert [(bar.x, bar.width, bar.state) for bar in line.bars] == [
        (0.0, drawn.WIDTH / 2, "ended"),
        (drawn.WIDTH / 2, drawn.WIDTH / 2, "attached"),
    ]
    assert line.bars[1].label == "no host"
    assert [mark.x for mark in line.marks] == [drawn.WIDTH * 3 / 4], "what is outside is not drawn"
    assert line.at == drawn.WIDTH / 4
    assert drawn.timeline([], [], NOON) is None


def test_times_are_told_by_the_databases_clock() -> None:
    assert texts.ago((NOON - timedelta(seconds=200)).isoformat(), NOON) == "3 min 20 s ago"
    assert texts.ago((NOON + timedelta(seconds=40)).isoformat(), NOON) == "in 40 s"
    assert texts.ago(None, NOON) == texts.moment(None) == ""
    assert texts.moment("2026-01-31T13:00:00+01:00") == "2026-01-31 12:00:00 UTC"
