"""The questions of docs/audit.md, as they stand there, on months that real flows recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from aggregates.base import Actor
from aggregates.operation import Operation, OperationState, Outcome
from host_agent.shared.contract.messages import ErrorKind
from ledger.log.application import Ledger
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep.archive import Archive
from ledger.upkeep.long_work import run
from ledger.upkeep.rebuild import rebuild
from ledger.upkeep.retention import archive, detach, restore
from projections.catalog import ALL
from projections.running.rights import RoleKind, rights
from projections.running.runner import catch_up
from tests.store.drifting import Seen
from tests.store.histories import stored_events
from tests.store.months import backdate, day
from tests.world import CONTEXT, HOST, OTHER, SERVER, Broken, World

Db = psycopg.Connection[Any]
Ask = Callable[..., list[dict[str, Any]]]
PAGE = (Path(__file__).parents[2] / "docs/audit.md").read_text()
QUESTIONS = dict(re.findall(r"### (.*?)\n(?:(?!###).)*?```sql\n(.*?)```", PAGE, re.DOTALL))
OPERATOR = replace(
    CONTEXT, actor=Actor(name="olga", user_id="o", roles=("operator",)), cause="operator"
)


class Months:
    """In March a volume is attached by the old calls.  In April it is converted, and detached: its
    host cannot disconnect, and an operator skips that.  In May a host is fenced and comes back.
    In June an attach begins that waits for its host.
    """

    def __init__(self, recorder: LedgerRecorder, database_url: str, db: Db) -> None:
        world = self.world = World(volumes=2, legacy=True, encrypted=False)
        self.volume, self.other = world.volumes
        self.attach = world.done(world.attach(self.volume))
        ends = [(len(world.store.log), day(3, 20))]
        world.legacy = False
        world.done(world.act("convert"))
        converted = len(world.store.log)
        ends.append((converted, day(4, 10)))
        Broken(world, "brick.disconnect", ErrorKind.FINAL)
        self.detach = world.detach(self.volume)
        assert world.run(self.detach).state is OperationState.PARKED
        world.service.act(self.detach, "skip", "cable is out", OPERATOR, step="disconnect")
        assert world.run(self.detach).outcome is Outcome.COMPLETED
        ends.append((len(world.store.log), day(4, 20)))
        world.service.fence(OTHER, "burning", "seen from the door", OPERATOR)
        world.service.change_host(OTHER, methodcaller("unfence", "new board"), OPERATOR)
        ends.append((len(world.store.log), day(5, 20)))
        self.waiting = world.attach(self.other)
        while world.service.advance(self.waiting) is None:
            pass
        ends.append((len(world.store.log), day(6, 20)))
        for event, context in stored_events(world):
            recorder.insert_events([event], context=context)
        backdate(db, *ends)
        catch_up(database_url, ALL)


@pytest.fixture
def months(recorder: LedgerRecorder, database_url: str, db: Db) -> Months:
    return Months(recorder, database_url, db)


@pytest.fixture
def ask(db: Db) -> Ask:
    """The answer to a question of the page, its rows as dicts."""

    def asked(words: str, **given: Any) -> list[dict[str, Any]]:
        [text] = [text for question, text in QUESTIONS.items() if words in question]
        statement: Any = re.sub(r":'(\w+)'", r"%(\1)s", text.replace("%'", "%%'"))
        cursor = db.execute(statement, given)
        names = [column.name for column in cursor.description or ()]
        return [
            {name: str(value) if "_id" in name and value else value for name, value in each}
            for each in (zip(names, row, strict=True) for row in cursor)
        ]

    return asked


def column(rows: list[dict[str, Any]], *names: str) -> list[Any]:
    return [tuple(row[name] for name in names) if names[1:] else row[names[0]] for row in rows]


def test_the_page_has_ten_questions() -> None:
    assert len(QUESTIONS) == PAGE.count("```sql") == 10


def test_the_page_has_the_columns_of_each_view_and_no_others(db: Db) -> None:
    promised = [name for name, _ in rights(RoleKind.AUDITOR) if name.startswith("audit.")]
    for view in promised:
        table = PAGE.partition(f"| `{view}` |")[2].partition("\n\n")[0]
        cells = "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE))
        has = db.execute(f"SELECT * FROM {view} LIMIT 0".encode()).description or ()
        assert re.findall(r"`(\w+)`", cells) == [each.name for each in has], view


def test_who_held_a_volume_on_which_host(months: Months, ask: Ask) -> None:
    held = ask("on which host", volume=months.volume, since=day(3, 1), until=day(5, 1))
    assert column(held, "host", "server_id", "flow") == [
        (HOST, SERVER, "old"),
        (HOST, SERVER, "new"),
    ]
    assert ask("on which host", volume=months.volume, since=day(5, 1), until=day(6, 1)) == []
    assert ask("on which host", volume=months.volume, since=day(1, 1), until=day(2, 1)) == []


def test_what_was_on_the_old_flow(months: Months, ask: Ask) -> None:
    then = ask("old flow", at=day(4, 1))
    assert column(then, "volume_id", "server_id", "host") == [(months.volume, SERVER, HOST)]
    assert ask("old flow", at=day(4, 15)) == []
    assert ask("old flow", at=day(3, 1)) == []


def test_who_asked(months: Months, ask: Ask) -> None:
    asked = ask("Who asked", volume=months.volume)
    assert column(asked, "flow") == ["attach", "convert", "detach"]
    assert set(column(asked, "actor", "user_id", "project_id", "request_id", "outcome")) == {
        ("alice", "u", "p", "req-test", "completed")
    }


def test_what_failed_on_a_host(months: Months, ask: Ask) -> None:
    failed = ask("What failed", host=HOST, since=day(4, 1), until=day(5, 1))
    assert column(failed, "operation_id", "volume_id", "step", "status", "code") == [
        (months.detach, months.volume, "disconnect", "skipped", "injected")
    ]
    assert ask("What failed", host=OTHER, since=day(4, 1), until=day(5, 1)) == []
    assert ask("What failed", host=HOST, since=day(5, 1), until=day(6, 1)) == []


def test_fences_and_what_was_waived(months: Months, ask: Ask) -> None:
    told = ask("Which fences", since=day(3, 1), until=day(7, 1))
    assert column(told, "topic", "actor", "host", "reason", "evidence") == [
        ("Attachment.Disconnected", "olga", HOST, "cable is out", None),
        ("Host.Fenced", "olga", OTHER, "burning", "seen from the door"),
        ("Host.Unfenced", "olga", OTHER, "new board", None),
    ]
    assert column(told, "volume_id")[0] == months.volume


def test_the_volumes_of_a_server(months: Months, ask: Ask) -> None:
    for at, flow in ((day(4, 1), "old"), (day(4, 15), "new")):
        had = ask("Which volumes", server=SERVER, at=at)
        assert column(had, "volume_id", "flow", "host") == [(months.volume, flow, HOST)]
    assert ask("Which volumes", server=SERVER, at=day(5, 1)) == []
    reserved = ask("Which volumes", server=SERVER, at=day(6, 25))
    assert column(reserved, "volume_id", "host") == [(months.other, None)]


def test_what_was_half_done(months: Months, ask: Ask, db: Db) -> None:
    [(started, finished)] = db.execute(
        "SELECT started_at, finished_at FROM operations WHERE operation_id = %s", [months.detach]
    ).fetchall()
    assert column(ask("half done", at=started + (finished - started) / 2), "operation_id") == [
        months.detach
    ]
    assert ask("half done", at=day(5, 1)) == []
    assert column(ask("half done", at=day(6, 25)), "operation_id") == [months.waiting]


def test_what_was_done_by_hand(months: Months, ask: Ask) -> None:
    done = ask("by hand", since=day(3, 1), until=day(7, 1))
    assert {row["actor"] for row in done} == {"olga"}
    assert {(row["topic"], row["reason"]) for row in done} >= {
        ("Operation.StepSkipped", "cable is out"),
        ("Host.Fenced", "burning"),
        ("Host.Unfenced", "new board"),
    }


def test_what_differed_on_a_host(database_url: str, ask: Ask, db: Db) -> None:
    """Also what was gone by now, or came again."""

    def moment() -> Any:
        catch_up(database_url, ALL)
        [(now,)] = db.execute("SELECT clock_timestamp()").fetchall()
        return now

    with Ledger(database_url) as ledger:
        seen, elsewhere = Seen(ledger, host=HOST), Seen(ledger, host=OTHER)
        moments = [moment()]
        for change in (elsewhere.look, seen.look, seen.miss, seen.look):
            change()
            moments.append(moment())
    answers = [ask("What differed", host=HOST, at=at) for at in moments]
    assert [column(rows, "finding_id") for rows in answers] == [
        *([], [], [str(seen.id)], [], [str(seen.id)])
    ]
    assert answers[2][0]["found_at"] < moments[2] < moments[3] < answers[4][0]["found_at"]


def test_every_answer_is_the_same_after_the_months_are_archived_and_detached_and_rebuilt(
    months: Months, ask: Ask, db: Db, files: Archive, database_url: str
) -> None:
    given = {
        "volume": months.volume,
        "server": SERVER,
        "host": HOST,
        "at": day(4, 15),
        "known_at": day(6),
        "since": day(1, 1),
        "until": day(12, 31),
    }

    def answers() -> dict[str, Any]:
        return {question: ask(question, **given) for question in QUESTIONS}

    before, events = answers(), db.execute("SELECT count(*) FROM events").fetchone()
    earlier = {at: ask("old flow", at=at) for at in (day(4, 1), day(4, 15))}
    list(archive(db, files, day(6)))
    list(detach(db, files, day(6)))
    assert db.execute("SELECT count(*) FROM events").fetchone() != events
    assert answers() == before
    assert {at: ask("old flow", at=at) for at in earlier} == earlier
    empty = [question for question, rows in before.items() if not rows]
    assert empty == [q for q in QUESTIONS if re.search("old flow|half done|differed", q)]

    list(restore(db, files))
    run(database_url, "rebuild", rebuild(database_url, ALL), lambda _: None)
    assert answers() == before


def test_streams_with_acts_that_were_kept_are_loaded_as_they_ended(
    months: Months, db: Db, files: Archive, database_url: str
) -> None:
    list(archive(db, files, day(6)))
    list(detach(db, files, day(6)))
    kept = db.execute(
        "SELECT topic FROM events WHERE originator_id = %s ORDER BY position", [months.detach]
    ).fetchall()
    assert [topic for (topic,) in kept] == [
        "Operation.OperationStarted",
        "Operation.StepSkipped",
        "Operation.OperationFinished",
    ]
    with Ledger(database_url) as ledger:
        operation = ledger.load(Operation, UUID(months.detach))
    assert operation.state is OperationState.FINISHED
    assert operation.outcome is Outcome.COMPLETED
