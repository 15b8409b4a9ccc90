"""`flow verify`: whether this version can go on from a log that another version has written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from aggregates.operation import Operation
from ledger.cli import shell
from ledger.log.mapper import IndexedEvent
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep import rehearsal as module
from ledger.upkeep.rehearsal import Rehearsal
from tests.store.histories import stored_events
from tests.world import OTHER, World

STARTED = Operation.OperationStarted.TOPIC
Body = dict[str, Any]


def under_way() -> tuple[World, str]:
    """A server that has moved, and an attach that its host has been told to do."""
    world = World(volumes=2)
    world.done(world.attach()).done(world.act("live_migrate", destination=OTHER))
    operation_id = world.attach(world.volumes[1])
    world.service.advance(operation_id)
    return world, operation_id


def keep(
    recorder: LedgerRecorder,
    world: World,
    change: Callable[[IndexedEvent], IndexedEvent] = lambda event: event,
) -> None:
    for event, context in stored_events(world):
        recorder.insert_events([change(event)], context=context)


def rehearsed(database_url: str) -> Rehearsal:
    rehearsal = Rehearsal()
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.read_only = True
        for _ in rehearsal.follow(connection):
            pass
    return rehearsal


def test_all_of_a_log_is_tried_and_what_is_under_way(
    recorder: LedgerRecorder, database_url: str
) -> None:
    world, _ = under_way()
    keep(recorder, world)
    rehearsal = rehearsed(database_url)
    assert (rehearsal.troubles, rehearsal.total, rehearsal.unfolded) == ([], 0, 0)
    assert rehearsal.events == len(world.store.log)
    assert rehearsal.aggregates == len(world.store.streams)
    assert rehearsal.under_way == len(world.open_operations()) == 1


def test_no_transaction_lasts_longer_than_a_page(
    recorder: LedgerRecorder, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep VACUUM from all tables, and a standby would cancel it."""
    world, _ = under_way()
    keep(recorder, world)
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 3)
    rehearsal = Rehearsal()
    with psycopg.connect(database_url, autocommit=True) as connection:
        for _ in rehearsal.follow(connection):
            assert connection.info.transaction_status is TransactionStatus.IDLE
    assert rehearsal.events == len(world.store.log)
    assert (rehearsal.troubles, rehearsal.aggregates) == ([], len(world.store.streams))


def test_nothing_is_needed_but_the_events(
    recorder: LedgerRecorder, database_url: str, db: psycopg.Connection[Any]
) -> None:
    """The schema may be an earlier version's."""
    keep(recorder, under_way()[0])
    db.execute("DROP TABLE schema_migrations, tracking, operations, instances, hosts CASCADE")
    assert rehearsed(database_url).troubles == []


def other_verb(body: Body) -> Body:
    body["plan"]["stages"][0]["steps"][0]["do"] = "volume_teleport"
    return body


def without(name: str) -> Callable[[Body], Body]:
    return lambda body: {key: value for key, value in body.items() if key != name}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_verb, "volume_teleport"),
        (lambda body: {**body, "flow": "teleport"}, "there is no flow 'teleport'"),
        (lambda body: {**body, "plan": without("stages")(body["plan"])}, "'stages'"),
        (without("server_id"), "server_id"),
    ],
    ids=["verb", "flow", "plan", "field"],
)
def test_an_operation_that_this_version_cannot_go_on_with_is_named(
    change: Callable[[Body], Body], why: str, recorder: LedgerRecorder, database_url: str
) -> None:
    world, operation_id = under_way()

    def changed(event: IndexedEvent) -> IndexedEvent:
        if (event.topic, str(event.originator_id)) != (STARTED, operation_id):
            return event
        return replace(event, state=orjson.dumps(change(orjson.loads(event.state))))

    keep(recorder, world, changed)
    rehearsal = rehearsed(database_url)
    [trouble] = rehearsal.troubles
    assert trouble.id == operation_id
    assert why in trouble.why
    assert rehearsal.events == len(world.store.log), "the others are tried all the same"


def test_an_event_that_this_version_does_not_know_is_named_with_its_place(
    recorder: LedgerRecorder, database_url: str
) -> None:
    world, _ = under_way()
    last = len(world.store.log)
    keep(recorder, world)
    known = world.store.log[-1][0]
    unknown = IndexedEvent(known.originator_id, known.originator_version + 1, "Host.Moved", b"{}")
    recorder.insert_events([unknown], context=world.store.log[-1][1])
    [trouble] = rehearsed(database_url).troubles
    assert (trouble.position, trouble.topic) == (last + 1, "Host.Moved")
    assert UUID(trouble.id) == known.originator_id
    assert "Host.Moved" in trouble.why


def test_what_is_partly_in_a_file_is_loaded_and_not_folded(
    recorder: LedgerRecorder, database_url: str, db: psycopg.Connection[Any]
) -> None:
    world = World()
    world.done(world.attach()).done(world.detach())
    keep(recorder, world)
    gone = "DELETE FROM events WHERE topic = 'Attachment.ConnectorUpdated'"
    assert db.execute(gone).rowcount == 1
    rehearsal = rehearsed(database_url)
    assert (rehearsal.troubles, rehearsal.unfolded) == ([], 1)


def test_the_command_says_what_was_tried_and_ends_with_4_if_it_cannot_go_on(
    recorder: LedgerRecorder,
    database_url: str,
    empty_database_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world, _ = under_way()
    keep(recorder, world)
    command = ["flow", "verify", f"--database-url={database_url}"]
    assert shell.main(command) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{len(world.store.log)} events of {len(world.store.streams)} aggregates" in said.err
    assert "1 operations that are under way" in said.err
    assert "This version can go on from this log." in said.err

    unknown = IndexedEvent(UUID(int=7), 1, "Host.Moved", b"{}")
    recorder.insert_events([unknown], context=world.store.log[-1][1])
    assert shell.main([*command, "-f", "json"]) == 4
    said = capsys.readouterr()
    [row] = json.loads(said.out)
    assert (row["Aggregate"], row["Event"]) == (str(UUID(int=7)), "Host.Moved")
    assert "cannot take 1 aggregates: do not install it" in said.err

    assert shell.main(["flow", "verify", f"--database-url={empty_database_url}"]) == 3
    assert "no log" in capsys.readouterr().err
