"""Who asked is beside the log, told by all that reads it, and can be erased; the proofs stay."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql as compose

from aggregates.base import Actor
from aggregates.person import Person
from ledger.config import Role, Token
from ledger.log.application import ConflictError, Ledger
from ledger.reconcile.asking import LookRequests
from ledger.upkeep import erase
from ledger.upkeep.verify import Statement, verify
from projections.reads.queries import Queries, read_pool
from tests.service.api_world import (
    HOST,
    PROJECT,
    SETTINGS,
    TOKENS,
    Api,
    eventually,
    guest,
    running_api,
)
from tests.tokens import token_of
from tests.world import CONTEXT

#: Her name and her id have this in common, and nothing else here has it.
EVE = "evelyn"
HERS = Token(
    name=EVE,
    roles=(Role.ADMIN,),
    token=token_of(EVE),
    user_id=f"{EVE}-id",
    project_id=PROJECT,
)
PROGRAM = f"{EVE}s-own/1.0"
FROM = {"address": "127.0.0.1", "agent": PROGRAM}
NOWHERE = {"address": None, "agent": None}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """As everybody's, and she may ask."""
    async with running_api(database_url, replace(SETTINGS, tokens=(*TOKENS, HERS))) as running:
        yield running


async def asked(api: Api) -> dict[str, Any]:
    """An attach of hers that is over."""
    server = await api.server()
    answer = await api.attach(server, api.volume(), who=EVE, headers={"User-Agent": PROGRAM})
    assert answer.status == 200, await answer.text()
    operation = await api.played(answer)
    assert operation["outcome"] == "completed", operation
    return dict(operation)


async def built(api: Api) -> dict[str, Any]:
    """A server that she made, as Nova's form has it."""
    disks = [{"volume_id": api.volume(bootable=True), "boot_index": 0}]
    body = {"name": "db", "host": HOST, "vcpus": 1, "memory_mb": 512, "disks": disks}
    answer = await api.ask("POST", "/v1/servers", EVE, json=body)
    assert answer.status == 202, await answer.text()
    operation = await api.played(answer)
    shown = await api.get(f"/v2.1/servers/{operation['server_id']}")
    return dict(shown["server"])


def tables_with(database_url: str, word: str) -> list[str]:
    """The tables that have it anywhere, in bytes too."""
    found = []
    with psycopg.connect(database_url) as connection:
        connection.execute("SET bytea_output = 'escape'")
        names = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 2"
        ).fetchall()
        for name in names:
            text = compose.SQL("SELECT FROM {} AS t WHERE strpos(t::text, %s) > 0 LIMIT 1")
            if connection.execute(text.format(compose.Identifier(*name)), [word]).rowcount:
                found.append(name[1])
    return found


def rows_of_persons(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        return int(connection.execute("SELECT count(*) FROM persons").fetchall()[0][0])


def proven(database_url: str) -> Statement:
    with psycopg.connect(database_url, autocommit=True) as connection:
        [(end, _)] = deque(verify(connection), maxlen=1)
    return end


def wrong(database_url: str) -> list[tuple[str, str]]:
    with psycopg.connect(database_url) as connection:
        return erase.wrong(connection)


async def erased(database_url: str, person: str = HERS.user_id or "") -> erase.KnownPerson:
    return await asyncio.to_thread(erase.erase, database_url, person, "asked for it", "root")


async def test_the_log_knows_a_person_by_a_hash_alone_and_all_that_reads_it_by_name(
    api: Api, database_url: str
) -> None:
    operation, server = await asked(api), await built(api)
    assert (operation["actor"], operation["user_id"]) == (EVE, HERS.user_id)
    assert server["user_id"] == HERS.user_id
    found = (await api.get(f"/v1/operations/{operation['operation_id']}/history"))["events"]
    assert {each["asked_by"]["name"] for each in found} == {EVE}
    assert {each["asked_by"]["user_id"] for each in found} == {HERS.user_id}
    assert {each["asked_by"]["agent"] for each in found} == {PROGRAM}
    [started] = [e["body"] for e in found if e["topic"] == "Operation.OperationStarted"]
    assert (started["actor"]["name"], started["sender"]) == (EVE, FROM)
    listed = await api.get(f"/v2.1/servers?all_tenants=1&user_id={HERS.user_id}")
    assert [each["id"] for each in listed["servers"]] == [server["id"]]
    at = f"/v1/operations/{operation['operation_id']}?at={operation['finished_at']}"
    assert (await api.get(at))["actor"] == EVE
    assert tables_with(database_url, EVE) == ["persons"]
    with psycopg.connect(database_url) as connection:
        for view in ("event_log", "audit.operations"):
            told = connection.execute(f"SELECT DISTINCT actor, user_id FROM {view}").fetchall()
            assert (EVE, HERS.user_id) in told, view
            assert not [who for who, _ in told if who and who.startswith("p:")], view


async def test_a_host_reports_a_guest_by_the_hash_of_its_user(api: Api, database_url: str) -> None:
    await asked(api)
    with psycopg.connect(database_url) as connection:
        query = "SELECT known_as FROM persons WHERE name = %s"
        [(known_as,)] = connection.execute(query, [EVE]).fetchall()
    shown = guest(user_id=known_as)
    await api.register(shown)
    server = await api.get(f"/v2.1/servers/{shown['server_id']}")
    assert server["server"]["user_id"] == HERS.user_id


async def test_who_is_erased_is_so_everywhere_and_what_is_proven_stays_proven(
    api: Api, database_url: str
) -> None:
    first, second = await asked(api), await asked(api)
    await built(api)
    before = proven(database_url)
    refused = await api.ask("POST", f"/v1/hosts/{EVE}/vouch", EVE, json={"reason": "x"})
    assert refused.status == 404

    async def noted() -> bool:
        return "refusals" in await asyncio.to_thread(tables_with, database_url, EVE)

    await eventually(noted, "the refusal is written")
    found = await erased(database_url)
    assert found.events > 20
    assert found.plain == 0
    await api.projected()
    for operation in (first, second):
        shown = await api.get(f"/v1/operations/{operation['operation_id']}")
        assert shown["actor"] == f"erased {shown['user_id']}"
        assert shown["user_id"] in found.known_as, "still the same person of both"
    assert proven(database_url).checkpoint.position == before.checkpoint.position + 1
    with psycopg.connect(database_url, autocommit=True) as connection:
        deque(verify(connection, held=[before]), maxlen=0)
    assert wrong(database_url) == []
    assert tables_with(database_url, EVE) == []
    again = await asked(api)
    assert (again["actor"], again["user_id"]) == (EVE, HERS.user_id)
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT known_as FROM persons WHERE name = %s", [EVE]).fetchall()
    assert not {row[0] for row in rows} & set(found.known_as), "somebody else from now on"


async def test_a_rule_for_whose_a_server_is_holds_by_the_persons_id(api: Api) -> None:
    """Also where the same user has another name by now."""
    await api.register()
    server = await built(api)
    row = await api.components.queries.instance(server["id"])
    assert row is not None
    assert row["user_id"] == HERS.user_id
    renamed = Actor(name="eve", user_id=HERS.user_id)
    known, _, new = await api.components.queries.asker(renamed, dict(FROM))
    hers, _, none = await api.components.queries.asker(replace(renamed, name=EVE), dict(NOWHERE))
    assert known.known_as != hers.known_as
    assert [row["name"] for row in new] == ["eve", ""]
    assert [row["name"] for row in none] == [""], "she has a row, and this place has none"


async def test_who_is_refused_has_no_row_and_who_is_not_one_for_each_program(
    api: Api, database_url: str
) -> None:
    """A user with a token may call himself as he likes, and as often."""
    await api.register()
    server = await built(api)
    there = rows_of_persons(database_url)
    vouch, name = f"/v1/hosts/{EVE}/vouch", f"/v2.1/servers/{server['id']}"
    for number in range(20):
        program = {"User-Agent": f"refused/{number}"}
        answer = await api.ask("POST", vouch, EVE, json={"reason": "x"}, headers=program)
        assert answer.status == 404
        answer = await api.attach(server["id"], str(uuid4()), who=EVE, headers=program)
        assert answer.status == 404
    assert rows_of_persons(database_url) == there
    for number in range(10):
        program = {"User-Agent": f"accepted/{number % 5}"}
        body = {"server": {"name": f"db{number}"}}
        answer = await api.ask("PUT", name, EVE, json=body, headers=program)
        assert answer.status == 200, await answer.text()
    assert rows_of_persons(database_url) == there + 5


async def test_an_append_that_is_refused_brings_nobody(api: Api, database_url: str) -> None:
    actor, sender, new = await api.components.queries.asker(
        Actor(name="m", user_id="m-1"), {"address": "::1", "agent": "a"}
    )
    context = replace(CONTEXT, actor=actor, sender=sender, persons=new)
    first, second = Person(uuid4()), Person(uuid4())
    second.__dict__.update(id=first.id)
    there = rows_of_persons(database_url)
    with closing(Ledger(database_url)) as ledger:
        for each in (first, second):
            each.record(Person.Erased, known_as=[], reason="m")
        ledger.save(first, context=CONTEXT)
        with pytest.raises(ConflictError):
            ledger.save(second, context=context)
        assert rows_of_persons(database_url) == there
        third = Person(uuid4())
        third.record(Person.Erased, known_as=[], reason="m")
        ledger.save(third, context=context)
    assert rows_of_persons(database_url) == there + 2


async def test_who_asks_for_a_look_is_known_before_it_begins(api: Api, database_url: str) -> None:
    queries = api.components.queries
    actor, _, new = await queries.asker(Actor(name=EVE, user_id=HERS.user_id), dict(FROM))
    context = replace(CONTEXT, actor=actor, persons=new)
    await asyncio.to_thread(LookRequests(database_url).ask, {}, "asked", context)
    [look] = await queries.looks_asked(10)
    assert look["asked_by"] == EVE
    assert tables_with(database_url, EVE) == ["persons"]


async def test_two_processes_that_meet_a_person_first_may_know_them_by_two_hashes(
    api: Api, database_url: str
) -> None:
    """Each with a row, so both are told and erased; from then on there is one for all."""
    actor, sender = Actor(name="m", user_id="m-1"), {"address": "::1", "agent": "a"}
    async with read_pool(database_url) as pool:
        both = api.components.queries, Queries(pool)
        met = await asyncio.gather(*(each.asker(actor, dict(sender)) for each in both))
        with closing(Ledger(database_url)) as ledger:
            for known, place, new in met * 2:
                told = Person(uuid4())
                told.record(Person.Erased, known_as=[], reason="nobody is")
                context = replace(CONTEXT, actor=known, sender=place, persons=new)
                ledger.save(told, context=context)
        again = [await each.asker(actor, dict(sender)) for each in both]
    assert again[0] == again[1]
    assert again[0][2] == ()
    assert again[0][0] in [known for known, _, _ in met]
    assert wrong(database_url) == []
    events = [event for event in (await api.get("/v1/events"))["events"] if event["actor"] == "m"]
    assert len(events) == 4
    assert [event["body"]["sender"] for event in events] == [sender] * 4
    assert len((await erased(database_url, "m-1")).known_as) == 4
    assert tables_with(database_url, "m-1") == []


async def test_what_was_changed_in_the_table_of_persons_is_found(
    api: Api, database_url: str
) -> None:
    await asked(api)
    assert wrong(database_url) == []
    with psycopg.connect(database_url, autocommit=True) as connection:
        [(hers,)] = connection.execute(
            "UPDATE persons SET user_id = 'm', name = 'mallory' WHERE name = %s RETURNING known_as",
            [EVE],
        )
        assert wrong(database_url) == [("forged", hers)]
        connection.execute("DELETE FROM persons WHERE known_as = %s", [hers])
        assert wrong(database_url) == [("lost", hers)], "no event says that it was erased"
        [(place,)] = connection.execute(
            "DELETE FROM persons WHERE agent = %s RETURNING known_as", [PROGRAM]
        )
        assert wrong(database_url) == sorted([("lost", hers), ("lost", place)])


async def test_an_erasure_that_was_stopped_is_found_and_done_again_by_the_hash(
    api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is one that a restored backup has taken back."""
    monkeypatch.setattr(erase, "PAGE_EVENTS", 2)
    await asked(api)
    found = erase.look(database_url, HERS.user_id or "")
    told = Person(uuid4())
    told.record(Person.Erased, known_as=list(found.known_as), reason="and then it crashed")
    with closing(Ledger(database_url)) as ledger:
        ledger.save(told, context=CONTEXT)
    assert wrong(database_url) == [("left", each) for each in found.known_as]
    assert tables_with(database_url, EVE) == ["persons"]
    await erased(database_url, found.known_as[0])
    assert wrong(database_url) == []
    assert tables_with(database_url, EVE) == []
    assert (await erased(database_url, found.known_as[0])).known_as == [], "and once is enough"


async def test_who_is_erased_while_persons_are_checked_is_not_lost(
    api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asked(api)
    pages, begun = erase._pages, list[bool]()

    def read(*args: Any, **parameters: Any) -> Iterator[Any]:
        yield from pages(*args, **parameters)
        if not begun:
            begun.append(True)
            erase.erase(database_url, HERS.user_id or "", "asked for it", "root")

    monkeypatch.setattr(erase, "_pages", read)
    assert wrong(database_url) == []
    assert tables_with(database_url, EVE) == []


async def test_what_older_versions_stored_is_counted_and_told_as_it_is(
    api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of 0.2.0 stores names; a host shows a guest's owner."""
    monkeypatch.setattr(erase, "PAGE_EVENTS", 1)
    with closing(Ledger(database_url)) as ledger:
        told = Person(uuid4())
        told.record(Person.Erased, known_as=[], reason="it has no table of persons")
        ledger.save(told, context=replace(CONTEXT, actor=Actor(name="olga", user_id="olga-id")))
    await api.register(guest(user_id="olga-id"))
    await api.projected()
    found = await erased(database_url, "olga-id")
    assert (found.known_as, found.events, found.plain) == ([], 0, 2)
    events = (await api.get("/v1/events"))["events"]
    assert "olga" in {each["actor"] for each in events}


async def test_no_host_and_no_name_of_a_server_passes_for_a_person(api: Api) -> None:
    who, _, _ = await api.components.queries.asker(Actor(name="m", user_id="m-1"), dict(NOWHERE))
    shown = guest(name=str(who.known_as))
    await api.register(shown)
    await api.projected()
    server = await api.get(f"/v2.1/servers/{shown['server_id']}")
    assert server["server"]["name"] == who.known_as
