"""How looks run: one process at a time, stopped and gone on with, paced, in bounded memory."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from handlers.drift.rows import UNKNOWN, CinderVolume
from host_agent.shared.cinder.lists import ListedAttachment, ListedVolume
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from ledger.reconcile.asking import LookRequests
from ledger.reconcile.cinder_side import SINGLES_S, CinderSide, StoppedError
from ledger.reconcile.ids import merged
from ledger.reconcile.look import WHOLE, LookSources, look
from ledger.upkeep import long_work
from ledger.upkeep.long_work import BusyError
from tests.store.looking import Cloud, nothing
from tests.world import CONTEXT

FEW, MANY = 2_000, 20_000
#: What the growth of a peak may be for ten times the rows: allocators round.
NOISE_BYTES = 300_000


# --- stopped, and gone on with -------------------------------------------------------------------


class Killed(Exception):  # noqa: N818 - it stands for a signal
    """The process ends here."""


@pytest.mark.usefixtures("small_pages")
def test_a_look_that_is_stopped_anywhere_finds_what_one_that_is_not_finds(cloud: Cloud) -> None:
    """It goes on at the step that was noted last; no finding is lost, none confirmed by itself."""
    rows = [cloud.attached() for _ in range(7)]
    for row in rows[:5]:
        cloud.model.attachments[row.id].status = "attaching"
    cloud.host()
    look_id, killed = cloud.ask(), 0
    while True:
        steps = 0

        def watch(_: Any) -> None:
            nonlocal steps
            steps += 1
            if steps > 2:  # one is done again, one is new, and then
                raise Killed

        try:
            with cloud.answering():
                cloud.run(watch=watch)
            break
        except Killed:
            killed += 1
    assert killed > 8
    ended = cloud.ended(look_id)
    assert ended.found["attachment_status_differs"] == 5
    assert ended.compared["volume"] == 7
    cloud.projected()
    found = cloud.db.execute("SELECT state, count(*) AS n FROM findings GROUP BY 1").fetchall()
    assert {row["state"] for row in found} == {"suspected"}
    for table in ("look_cases", "looks_asked", "long_work"):
        assert cloud.db.execute(f"SELECT * FROM {table}").fetchall() == []


@pytest.mark.usefixtures("small_pages")
def test_a_look_goes_on_behind_what_is_done(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sorted(cloud.attached().id for _ in range(6))
    cloud.ask()

    def watch(_: Any) -> None:
        noted = cloud.db.execute("SELECT kept->'after' AS after FROM long_work").fetchone()
        if noted is not None and (noted["after"] or [""])[-1] == rows[3]:
            raise Killed

    with pytest.raises(Killed):
        cloud.run(watch=watch)
    asked: list[str] = []
    real = cloud.lists.attachments

    def attachments(after: Sequence[str], limit: int) -> list[ListedAttachment]:
        asked.append(after[-1])
        return real(after, limit)

    monkeypatch.setattr(cloud.lists, "attachments", attachments)
    cloud.run()
    assert asked[0] >= rows[3]


def test_two_processes_do_not_look_at_once(cloud: Cloud) -> None:
    cloud.attached()
    cloud.ask()
    met: list[str] = []

    def watch(_: Any) -> None:
        with pytest.raises(BusyError):
            cloud.run()
        met.append("busy")

    cloud.run(watch=watch)
    assert met


def test_a_look_at_a_part_does_not_wait_for_one_at_the_whole(cloud: Cloud) -> None:
    row = cloud.attached()
    cloud.ask()
    ended: list[Any] = []

    def watch(_: Any) -> None:
        if not ended:
            ended.append(cloud.look(volume=row.volume_id))

    cloud.run(watch=watch)
    assert [each.outcome for each in ended] == ["completed"]


def test_a_service_that_ends_ends_the_waiting(cloud: Cloud) -> None:
    cloud.attached()
    cloud.ask()
    cloud.stop.set()
    with pytest.raises(StoppedError):
        cloud.run()
    [row] = cloud.db.execute("SELECT name, kept->>'phase' AS phase FROM long_work").fetchall()
    assert row == {"name": WHOLE, "phase": "begin"}


def test_a_look_that_fails_is_over_and_says_so(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would fail for ever, and keep all others away."""
    cloud.attached()
    monkeypatch.setattr("ledger.reconcile.ids._volume", lambda *_: 1 // 0)
    ended = cloud.look()
    assert (ended.outcome, ended.trouble) == (
        "void",
        "ZeroDivisionError: the service's log says more",
    )


# --- asking --------------------------------------------------------------------------------------


def test_who_asks_for_what_is_asked_for_gets_the_same_look(cloud: Cloud) -> None:
    looks = LookRequests(cloud.dsn)
    first = looks.ask({}, "asked", CONTEXT)
    assert looks.ask({}, "schedule", CONTEXT) == first
    assert looks.ask({"host": "h"}, "asked", CONTEXT) != first
    cloud.run()
    assert cloud.ended(first).outcome == "completed"
    assert looks.ask({}, "asked", CONTEXT) != first


def test_who_believes_something_asks_for_a_look_of_its_own(cloud: Cloud) -> None:
    """Neither is answered by the other: one was not told what to believe, or why."""
    looks = LookRequests(cloud.dsn)
    plain = looks.ask({}, "asked", CONTEXT)
    told = looks.ask({}, "asked", CONTEXT, believe=["b", "a", "b"], reason="seen")
    assert len({plain, told}) == 2
    assert looks.ask({}, "asked", CONTEXT, believe=["a", "b"], reason="too") == told
    assert looks.ask({}, "schedule", CONTEXT) == plain
    for _ in range(2):
        cloud.run()
    cloud.projected()
    rows = cloud.db.execute("SELECT look_id::text, believe, reason FROM looks").fetchall()
    assert {row["look_id"]: (row["believe"], row["reason"]) for row in rows} == {
        plain: ([], None),
        told: (["a", "b"], "seen"),
    }


def test_without_a_question_there_is_no_look(cloud: Cloud) -> None:
    cloud.run()
    cloud.run(whole=False)
    assert cloud.db.execute("SELECT position FROM log_head").fetchall() == [{"position": 0}]


# --- pace ----------------------------------------------------------------------------------------


class Slow:
    """A Cinder whose every answer takes a second, or fails so often."""

    def __init__(self, fails: int = 0, kind: ErrorKind = ErrorKind.UNKNOWN) -> None:
        self.now, self.fails, self.kind = 0.0, fails, kind

    def own_project(self) -> str:
        self.now += 1.0
        if self.fails:
            self.fails -= 1
            raise PortError(self.kind, "cinder_timeout", "no answer")
        return "p"


class Waits(threading.Event):
    """Time that passes by waiting."""

    def __init__(self, slow: Slow) -> None:
        super().__init__()
        self._slow = slow

    def wait(self, timeout: float | None = None) -> bool:
        self._slow.now += timeout or 0.0
        return self.is_set()


def side_of(slow: Slow, share: float = 1.0, **more: Any) -> CinderSide:
    lists: Any = slow
    return CinderSide(lists, share, Waits(slow), clock=lambda: slow.now, **more)


@pytest.mark.parametrize(("share", "took_s"), [(1.0, 1.0), (0.5, 2.0), (0.1, 10.0)])
def test_waiting_for_cinder_takes_its_share_of_the_time(share: float, took_s: float) -> None:
    slow = Slow()
    side_of(slow, share).own_project()
    assert slow.now == pytest.approx(took_s)


def test_a_look_waits_for_a_cinder_that_does_not_answer_and_not_for_ever() -> None:
    slow = Slow(fails=3)
    assert side_of(slow).own_project() == "p"
    with pytest.raises(PortError):
        side_of(Slow(fails=1_000)).own_project()
    with pytest.raises(PortError):
        side_of(Slow(fails=1), patience_s=0.0).own_project()


class Untold(Slow):
    """A Cinder that tells its lists, and of each single thing after a minute that it cannot."""

    def volumes(self, _after: Sequence[str], _limit: int) -> list[Any]:
        self.now += 1.0
        return []

    def volume(self, _volume_id: str) -> Any:
        self.now += 60.0
        self.fails += 1
        raise PortError(ErrorKind.UNKNOWN, "cinder_error", "500")

    attachments_of = volume


def test_a_look_loses_only_so_much_time_by_single_things_that_cinder_does_not_tell() -> None:
    """One call may be under way when it is over."""
    cinder = Untold()
    side = side_of(cinder)
    shown = [side.shown(str(number), ["a"]) for number in range(1_000)]
    assert SINGLES_S <= cinder.now <= SINGLES_S + 60.0 + cinder.fails
    assert {each.volume for each in shown} == {UNKNOWN}
    assert {each.attachments["a"] for each in shown} == {UNKNOWN}
    assert shown[0].why_unknown == "500"
    assert "not asked for" in str(shown[-1].why_unknown)


def test_a_single_thing_that_is_told_when_it_is_asked_for_again_is_known() -> None:
    """Cinder was away for a moment."""

    class Away(Untold):
        def volume(self, volume_id: str) -> ListedVolume:
            if not self.fails:
                super().volume(volume_id)
            return ListedVolume(
                id=volume_id, status="available", migration_status=None, made_for=None, attached=()
            )

        def attachments_of(self, _volume_id: str) -> list[Any]:
            return []

    shown = side_of(Away()).shown("v", [])
    assert isinstance(shown.volume, CinderVolume)


def test_nobody_waits_for_a_cinder_that_refuses() -> None:
    slow = Slow(fails=1, kind=ErrorKind.FINAL)
    with pytest.raises(PortError):
        side_of(slow).own_project()
    assert slow.now == 1.0


# --- memory --------------------------------------------------------------------------------------


class Listed:
    """Cinder's lists, as the database has them; nothing in memory but a page."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def own_project(self) -> str:
        return "p"

    def _page(self, columns: str, after: Sequence[str], limit: int) -> list[dict[str, Any]]:
        key = columns.partition(",")[0]
        return self._cloud.db.execute(
            f"SELECT {columns} FROM attachments WHERE %s::uuid IS NULL OR {key} > %s::uuid"
            f" ORDER BY {key} LIMIT %s",
            (after[-1] if after else None, after[-1] if after else None, limit),
        ).fetchall()

    def attachments(self, after: Sequence[str], limit: int) -> list[ListedAttachment]:
        columns = "attachment_id, volume_id, server_id"
        return [
            ListedAttachment(
                id=row["attachment_id"],
                volume_id=row["volume_id"],
                server_id=row["server_id"],
                status="attached",
            )
            for row in self._page(columns, after, limit)
        ]

    def volumes(self, after: Sequence[str], limit: int) -> list[ListedVolume]:
        return [
            ListedVolume(
                id=row["volume_id"],
                status="in-use",
                migration_status=None,
                made_for=None,
                attached=(),
            )
            for row in self._page("volume_id", after, limit)
        ]

    def attachments_of(self, volume_id: str) -> list[ListedAttachment]:
        found = self._cloud.db.execute(
            "SELECT attachment_id FROM attachments WHERE volume_id = %s", (volume_id,)
        ).fetchall()
        return [
            ListedAttachment(
                id=row["attachment_id"], volume_id=volume_id, server_id=None, status="attached"
            )
            for row in found
        ]


def fill(cloud: Cloud, count: int) -> None:
    """So many attachments more, each of a server of its own."""
    cloud.db.execute(
        "CREATE TEMP TABLE IF NOT EXISTS made (a uuid, v uuid, s uuid); TRUNCATE made;"
        "INSERT INTO made SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid()"
        f" FROM generate_series(1, {count});"
        "INSERT INTO instances (server_id, name, host, project_id, power_state, vm_state,"
        " base_vm_state, faults, devices, created_at, updated_at, position)"
        " SELECT s, 's', 'h', 'x', 'running', 'active', 'active', '{}', '{}', now(), now(), 0"
        " FROM made;"
        "INSERT INTO attachments (attachment_id, volume_id, server_id, host, state, adopted,"
        " created_at, spans, created_position, updated_at, position)"
        " SELECT a, v, s, 'h', 'attached', false, now(), '[]', 0, now(), 0 FROM made;"
        "INSERT INTO mappings (bdm_id, server_id, volume_id, attachment_id,"
        " delete_on_termination, multiattach, state, created_at, created_position, updated_at,"
        " position) SELECT a, s, v, a, false, false, 'plugged', now(), 0, now(), 0 FROM made;"
    )
    for table in ("instances", "attachments", "mappings"):
        cloud.db.execute(f"ANALYZE {table}")


def peak_of_a_look(cloud: Cloud) -> int:
    lists: Any = Listed(cloud)
    sides = LookSources(
        dsn=cloud.dsn,
        store=cloud.ledger,
        lists=lists,
        share=1.0,
        silent_after_s=60.0,
        stop=cloud.stop,
    )
    look_id = cloud.ask()
    tracemalloc.start()
    try:
        long_work.run(cloud.dsn, WHOLE, look(sides, whole=True), nothing)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    ended = cloud.ended(look_id)
    assert (ended.outcome, ended.found, ended.in_flight) == ("completed", {}, 0)
    assert ended.compared["attachment"] == ended.compared["volume"]
    return peak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_cloud(cloud: Cloud) -> None:
    fill(cloud, 300)
    peak_of_a_look(cloud)  # what is loaded and cached once
    fill(cloud, FEW - 300)
    few = peak_of_a_look(cloud)
    fill(cloud, MANY - FEW)
    assert peak_of_a_look(cloud) < few + NOISE_BYTES


# --- the walk ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("", ""), ("abc", ""), ("", "abc"), ("abc", "abc"), ("ace", "bdf"), ("abe", "bcef")],
)
def test_two_lists_become_one_in_the_order_of_ids(ours: str, theirs: str) -> None:
    both = list(merged(iter([(i, 1) for i in ours]), iter([(i, 2) for i in theirs])))
    assert both == [
        (i, 1 if i in ours else None, 2 if i in theirs else None)
        for i in sorted(set(ours) | set(theirs))
    ]
