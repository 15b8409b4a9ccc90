"""Long work: what is said of it, and who has the right to it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Self

import pytest

from ledger.upkeep import long_work
from ledger.upkeep.long_work import Checkmark, WorkProgress, duration
from projections.database_connections import DbConnection


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s")),
        *((7500, "2 h 5 min"), (172_799, "47 h 59 min"), (172_800, "2 d 0 h")),
        (518_760, "6 d 0 h"),
    ],
)
def test_durations_are_for_people(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_the_time_left_is_that_of_this_run() -> None:
    progress = WorkProgress("verify", done=9_000, total=10_000, done_here=1_000, seconds=2.0)
    assert (progress.rate, progress.left_s) == (500.0, 2.0)
    assert str(progress) == "verify: 9,000 of 10,000 events (90 %), 500/s, 2 s left"


@pytest.mark.parametrize(("done_here", "seconds"), [(0, 5.0), (10, 0.0)])
def test_nothing_is_said_of_the_time_left_while_nothing_is_known(
    done_here: int, seconds: float
) -> None:
    progress = WorkProgress("verify", 10, 10_000, done_here, seconds)
    assert progress.left_s is None
    assert str(progress) == "verify: 10 of 10,000 events (0 %)"


def test_an_empty_log_is_no_division_by_zero() -> None:
    assert str(WorkProgress("verify", 0, 0, 0, 0.0)) == "verify: 0 of 0 events (0 %)"


def test_a_look_counts_rows() -> None:
    assert str(WorkProgress("look", 10, 20, 0, 0.0)) == "look: 10 of 20 rows (50 %)"


def test_the_server_is_to_find_out_soon_that_whoever_works_has_vanished(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a Unix socket the numbers are read as 0; that they were set is seen."""
    lines: list[DbConnection] = []
    worked = False

    class Kept(DbConnection):
        @classmethod
        def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
            made = super().connect(conninfo, **kwargs)
            lines.append(made)
            return made

    def work(_: Checkmark) -> Generator[Checkmark]:
        nonlocal worked
        [line] = lines
        found = line.execute("SELECT name FROM pg_settings WHERE source = 'session'").fetchall()
        ours = {"tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval"}
        assert {*ours, "tcp_user_timeout"} <= {name for (name,) in found}
        worked = True
        yield Checkmark()

    monkeypatch.setattr(long_work, "DbConnection", Kept)
    long_work.run(database_url, "work", work, lambda _: None)
    assert worked
