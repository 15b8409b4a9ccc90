"""What a released version stored and sent is read by this one, for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from typing import Any
from uuid import UUID

import orjson
import psycopg
import pytest
from eventsourcing.persistence import StoredEvent
from eventsourcing.utils import resolve_topic

import sql
from aggregates.base import Event
from aggregates.operation import History
from handlers.engine.engine import Start, decide
from handlers.engine.plan import Plan
from host_agent.shared.contract import wire
from host_agent.shared.contract.messages import Command
from ledger.log import schema
from ledger.log.mapper import JSONBody, LedgerMapper
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep.rehearsal import Rehearsal
from projections.base import upcast
from projections.catalog import ALL
from projections.running.runner import catch_up
from tests.golden.stored import HERE, Golden
from tests.service.api_world import running_api
from tests.store.test_projector import tables
from tests.world import HOST

VERSIONS = [Golden(path) for path in sorted(HERE.glob("*.*.*"))]
SILENT_S = 60.0

pytestmark = pytest.mark.parametrize("golden", VERSIONS, ids=lambda golden: golden.path.name)


@pytest.fixture
def kept_url(golden: Golden, database_url: str) -> str:
    """A database with the log of that version."""
    with closing(LedgerRecorder(database_url)) as recorder:
        for event, context in golden.events():
            recorder.insert_events([event], context=context)
    return database_url


def holds(now: Any, then: Any) -> bool:
    """Whether what was there then is there now, as it was; there may be more."""
    if isinstance(then, dict):
        return all(name in now and holds(now[name], value) for name, value in then.items())
    if isinstance(then, list):
        return len(now) == len(then) and all(map(holds, now, then))
    return bool(now == then)


def test_every_event_of_it_is_read(golden: Golden) -> None:
    mapper = LedgerMapper(JSONBody())
    for topic, body in golden.read("samples").items():
        read = mapper.to_domain_event(StoredEvent(UUID(int=1), 1, topic, orjson.dumps(body)))
        assert isinstance(read, Event)
        own = {each.name for each in fields(resolve_topic(topic))[len(fields(Event)) :]}
        assert own <= vars(read).keys()
        assert own == upcast(topic, dict(body)).keys(), "what is given up needs an upcast"


def test_its_log_is_loaded_and_its_operations_can_go_on(golden: Golden, kept_url: str) -> None:
    rehearsal = Rehearsal()
    with psycopg.connect(kept_url, autocommit=True) as connection:
        for _ in rehearsal.follow(connection):
            pass
    assert (rehearsal.troubles, rehearsal.unfolded) == ([], 0)
    assert rehearsal.events == len(list(golden.events()))
    assert rehearsal.under_way == 2


def test_its_log_shows_what_it_showed(golden: Golden, kept_url: str) -> None:
    catch_up(kept_url, ALL)
    with psycopg.connect(kept_url) as connection:
        shown = tables(connection)
    then = golden.read("rows")
    for projection in ALL:
        now = {str(row[projection.key]): row for row in shown[projection.table]}
        assert now.keys() == {row[projection.key] for row in then[projection.name]}
        for row in then[projection.name]:
            for name, value in timeless(row):
                assert holds(plain(now[row[projection.key]][name]), value), (projection.name, name)


def timeless(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Without times: those of the database are its own."""
    return ((name, row[name]) for name in row if not name.endswith("_at") and name != "spans")


def plain(value: Any) -> Any:
    return json.loads(orjson.dumps(value))


def test_its_plans_are_read_and_something_is_next(golden: Golden) -> None:
    for flow, stored in golden.read("plans").items():
        plan = Plan.from_json(stored)
        assert plan.flow == flow
        assert holds(plan.to_json(), stored)
        assert isinstance(decide(plan, History(), 0.0), Start)


def test_its_service_may_command_an_agent_of_this_version(golden: Golden) -> None:
    command = golden.read("messages")["command"]
    assert holds(wire.plain(wire.read(command, Command)), command)


async def test_its_agent_may_serve_a_host_of_this_version(golden: Golden, kept_url: str) -> None:
    said = golden.read("messages")
    async with running_api(kept_url) as api:

        async def send(method: str, what: str, body: Any) -> Any:
            answer = await api.ask(method, f"/v1/hosts/{HOST}{what}", "agent-1", json=body)
            assert answer.status in {200, 204}, await answer.text()
            return await answer.json() if answer.status == 200 else None

        await send("PUT", "", said["registration"])
        await api.projected()
        asked = await api.components.queries.want_surveys(None, silent_after_s=SILENT_S)
        await send("PUT", "/survey", {**said["survey"], "token": asked[HOST]})
        await send("POST", "/guests", said["changes"])
        [command] = await api.commands()
        # A lane is sent without what it says by default, which every version reads so.
        assert holds(wire.plain(wire.read(command, Command)), said["command"])
        await send("POST", "/progress", said["progress"])
        taken = await send("POST", "/reports", said["report"])
        assert taken["taken"] == len(command["steps"])
        await api.projected()
        operation = await api.get(f"/v1/operations/{command['operation_id']}")
        done = {step["step"] for step in operation["steps"] if step["status"] == "done"}
        assert {step["name"] for step in command["steps"]} <= done


def test_its_migrations_are_as_they_were(golden: Golden) -> None:
    """A database that was made by them would be refused."""
    now = {name: schema.checksum(text) for name, text in sql.migrations().items()}
    assert holds(now, golden.read("migrations"))
