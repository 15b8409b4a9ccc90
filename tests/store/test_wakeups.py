"""Who waits is woken by what it waits for, by nothing else, and never too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from aggregates.host import Host, host_uuid
from ledger.core import wakeups as wakeups_module
from ledger.core.wakeups import ANY_EVENT, DUE, Wakeups, bound_key, ended_key, host_key
from ledger.log.application import Ledger
from ledger.log.clock import DatabaseClock
from ledger.log.recorder import LedgerRecorder
from ledger.upkeep import long_work
from ledger.upkeep.rebuild import rebuild
from projections.catalog import ALL
from projections.running import news as news_module
from projections.running.news import Moved, News
from projections.running.runner import catch_up
from projections.running.writes import Replacement, TablePlace
from tests.store.histories import stored_events
from tests.world import HOST, World

SOON_S = 10
NEVER_S = 0.3


@pytest.fixture
async def wakeups(database_url: str) -> AsyncIterator[Wakeups]:
    async with Wakeups(database_url, DatabaseClock.of(database_url)) as wakeups:
        with wakeups.watch(ANY_EVENT) as started:
            deadline = asyncio.get_running_loop().time() + SOON_S
            while not wakeups._seen:  # it has looked once
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)
            started.event.clear()
        yield wakeups


async def in_thread(function: Any, *args: Any) -> Any:
    return await asyncio.to_thread(function, *args)


def attach_up_to_the_hosts_turn(recorder: LedgerRecorder, database_url: str) -> str:
    world = World()
    operation_id = world.attach()
    while world.service.advance(operation_id) is None:
        pass
    for event, context in stored_events(world):
        recorder.insert_events([event], context=context)
    catch_up(database_url, ALL)
    return operation_id


def register(ledger: Ledger, database_url: str, name: str) -> None:
    host = ledger.load(Host, host_uuid(name))
    host.register(name, 1, {})
    ledger.save(host)
    catch_up(database_url, ALL)


async def test_a_command_wakes_its_host_and_its_operation_alone(
    wakeups: Wakeups, recorder: LedgerRecorder, database_url: str
) -> None:
    with (
        wakeups.watch(host_key(HOST)) as host,
        wakeups.watch(host_key("another")) as another,
        wakeups.watch(ANY_EVENT) as any_event,
    ):
        operation_id = await in_thread(attach_up_to_the_hosts_turn, recorder, database_url)
        assert await host.wait(SOON_S)
        assert await any_event.wait(SOON_S)
        assert not await another.wait(NEVER_S)
    assert operation_id


async def test_who_waits_for_mappings_to_be_bound_sleeps_until_then(
    wakeups: Wakeups, recorder: LedgerRecorder, database_url: str
) -> None:
    world = World()
    operation_id = world.attach()
    begun = stored_events(world)
    while world.service.advance(operation_id) is None:
        pass
    with (
        wakeups.watch(bound_key(operation_id)) as bound,
        wakeups.watch(ended_key(operation_id)) as end,
    ):
        for is_bound, events in ((False, begun), (True, stored_events(world)[len(begun) :])):
            for event, context in events:
                recorder.insert_events([event], context=context)
            await in_thread(catch_up, database_url, ALL)
            assert await bound.wait(SOON_S if is_bound else NEVER_S) == is_bound
        assert not await end.wait(NEVER_S)


async def test_who_waits_for_the_end_sleeps_until_then(
    wakeups: Wakeups, recorder: LedgerRecorder, database_url: str
) -> None:
    world = World()
    operation_id = world.attach()
    begun = stored_events(world)
    world.run(operation_id)
    with wakeups.watch(ended_key(operation_id)) as end, wakeups.watch(DUE) as due:
        for ended, events in ((False, begun), (True, stored_events(world)[len(begun) :])):
            for event, context in events:
                recorder.insert_events([event], context=context)
            await in_thread(catch_up, database_url, ALL)
            assert await end.wait(SOON_S if ended else NEVER_S) == ended
        assert await due.wait(SOON_S)


async def test_only_what_is_the_ledgers_turn_wakes_the_dispatchers(
    wakeups: Wakeups, recorder: LedgerRecorder, database_url: str
) -> None:
    world = World()
    operation_id = world.attach()
    begun = stored_events(world)
    while world.service.advance(operation_id) is None:
        pass
    with wakeups.watch(DUE) as due, wakeups.watch(ANY_EVENT) as any_event:
        for expected, events in ((True, begun), (False, stored_events(world)[len(begun) :])):
            for event, context in events:
                recorder.insert_events([event], context=context)
            await in_thread(catch_up, database_url, ALL)
            assert await any_event.wait(SOON_S)
            assert await due.wait(SOON_S if expected else NEVER_S) == expected


async def test_events_of_others_wake_no_host(
    wakeups: Wakeups, ledger: Ledger, database_url: str
) -> None:
    with wakeups.watch(host_key(HOST)) as host, wakeups.watch(ANY_EVENT) as any_event:
        await in_thread(register, ledger, database_url, "another")
        assert await any_event.wait(SOON_S)
        assert not await host.wait(NEVER_S)


async def test_a_host_that_is_fenced_wakes_its_agent(
    wakeups: Wakeups, ledger: Ledger, database_url: str
) -> None:
    """Its epoch is over: it has to hear of it though there is no command."""

    def fence() -> None:
        host = ledger.load(Host, host_uuid(HOST))
        host.fence("dead", "power is off")
        ledger.save(host)
        catch_up(database_url, ALL)

    await in_thread(register, ledger, database_url, HOST)
    with wakeups.watch(host_key("another")) as another:
        with wakeups.watch(host_key(HOST)) as host:
            await host.wait(NEVER_S)  # of its registration
            await in_thread(fence)
            assert await host.wait(SOON_S)
        assert not another.event.is_set()


async def test_thousands_wait_and_only_who_is_concerned_wakes(
    wakeups: Wakeups, recorder: LedgerRecorder, database_url: str
) -> None:
    watches = [wakeups.watch(host_key(f"h{n}")) for n in range(5_000)]
    waiting = [watch.__enter__() for watch in watches]
    with wakeups.watch(host_key(HOST)) as mine:
        await in_thread(attach_up_to_the_hosts_turn, recorder, database_url)
        assert await mine.wait(SOON_S)
    assert not any(watch.event.is_set() for watch in waiting)
    for watch in watches:
        watch.__exit__(None, None, None)
    assert wakeups._watches == {}


async def test_what_was_told_is_not_asked_for(
    wakeups: Wakeups, recorder: LedgerRecorder, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups_module, "POLL_INTERVAL_S", SOON_S)
    with wakeups.watch(ANY_EVENT) as polled:
        await polled.wait(1)  # the longer interval has begun
    with wakeups.watch(host_key(HOST)) as host, wakeups.watch(ANY_EVENT) as any_event:
        await in_thread(attach_up_to_the_hosts_turn, recorder, database_url)
        assert await host.wait(SOON_S)
        assert await any_event.wait(SOON_S)
        async with await wakeups._connect() as connection:
            assert await wakeups._changed(connection) == set(), "it knows all of it"


async def test_what_is_too_long_to_be_told_is_asked_for(
    wakeups: Wakeups, recorder: LedgerRecorder, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news_module, "TEXT_BYTES_MAX", 100)
    with wakeups.watch(host_key(HOST)) as host, wakeups.watch(DUE) as due:
        await in_thread(attach_up_to_the_hosts_turn, recorder, database_url)
        assert await host.wait(SOON_S)
        assert not due.event.is_set()


async def test_what_is_projected_later_than_it_was_seen_in_the_log_wakes_again(
    wakeups: Wakeups, recorder: LedgerRecorder, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks in between is shown what was before."""
    monkeypatch.setattr(news_module, "TEXT_BYTES_MAX", 100)
    world = World()
    world.attach()
    with wakeups.watch(ANY_EVENT) as any_event:
        for event, context in stored_events(world):
            recorder.insert_events([event], context=context)
        while wakeups._seen["head"] < (recorder.max_notification_id() or 0):
            assert await any_event.wait(SOON_S)
        await in_thread(catch_up, database_url, ALL)
        assert await any_event.wait(SOON_S)


async def test_news_that_do_not_follow_what_is_known_leave_a_gap_to_ask_for(
    wakeups: Wakeups,
) -> None:
    wakeups._seen = {"head": 7, "operations": 5, "hosts": 7}
    moved: list[Moved] = [
        ("operation", "o", None, False, True, True),
        ("host", "h", None, False, False, False),
    ]
    news = News(["attachments", "hosts", "operations"], 7, 9, moved)
    assert wakeups._noticed(news) == {ANY_EVENT, DUE, ended_key("o"), host_key("h")}
    assert wakeups._seen == {"head": 9, "operations": 5, "hosts": 9}


async def test_who_waits_for_mappings_is_woken_by_an_operation_that_parks(wakeups: Wakeups) -> None:
    parked = {"operation_id": "o", "state": "parked", "bound": False, "due_at": None}
    place = TablePlace("operations", "operations", "operation_id", "uuid", ())
    text = news_module.text_of(["operations"], 0, 1, [Replacement(place, [], [parked])])
    assert wakeups._noticed(News.read(text)) == {ANY_EVENT, bound_key("o"), ended_key("o")}


async def test_a_command_of_which_steps_are_done_now_is_news_to_nobody(wakeups: Wakeups) -> None:
    """Its host has it: woken, its agent's poll would look and find nothing."""
    place = TablePlace("operations", "mailbox", "operation_id", "uuid", ())
    rows = [{"host": "had-it", "position": 7}, {"host": "gets-it", "position": 8}]
    text = news_module.text_of(["operations"], 7, 9, [Replacement(place, [], rows)])
    assert wakeups._noticed(News.read(text)) == {ANY_EVENT, host_key("gets-it")}


async def test_what_a_rebuild_writes_is_news_to_nobody(
    wakeups: Wakeups, recorder: LedgerRecorder, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_thread(attach_up_to_the_hosts_turn, recorder, database_url)
    told: list[News] = []

    def noted(_: Wakeups, news: News) -> set[str]:
        told.append(news)
        return set()

    monkeypatch.setattr(Wakeups, "_noticed", noted)
    with wakeups.watch(ANY_EVENT) as any_event:
        await any_event.wait(NEVER_S)  # what was told before
        told.clear()
        await in_thread(long_work.run, database_url, "rebuild", rebuild(database_url, ALL), print)
        await any_event.wait(NEVER_S)
    assert told == []


async def test_a_lost_notification_costs_a_poll_interval_and_no_more(
    wakeups: Wakeups,
    ledger: Ledger,
    database_url: str,
    db: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups_module, "POLL_INTERVAL_S", 0.1)
    db.execute(
        "CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ $$;"
        f'ALTER DATABASE "{db.info.dbname}" SET search_path = public, pg_catalog'
    )
    with wakeups.watch(ANY_EVENT) as watch:
        await in_thread(register, Ledger(database_url), database_url, "h")
        assert await watch.wait(SOON_S)
    with wakeups.watch(ANY_EVENT) as projected:
        wakeups._seen = {**wakeups._seen, "hosts": 0}  # when it was seen in the log alone
        assert await projected.wait(SOON_S)


async def test_a_lost_connection_wakes_everybody_and_is_made_anew(
    wakeups: Wakeups, ledger: Ledger, database_url: str, db: psycopg.Connection[Any]
) -> None:
    with wakeups.watch(host_key("h")) as watch, wakeups.watch(ANY_EVENT) as any_event:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'attachment-ledger wakeups'"
            " AND datname = current_database()"
        )
        assert await watch.wait(SOON_S)
        assert await any_event.wait(SOON_S)
        await in_thread(register, ledger, database_url, "h")
        assert await any_event.wait(SOON_S)


async def test_a_mistake_of_ours_costs_a_pause_and_no_more(
    wakeups: Wakeups, ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, failures = Wakeups._noticed, [KeyError("what")]

    def failing(self: Wakeups, news: News) -> set[str]:
        if failures:
            raise failures.pop()
        return told(self, news)

    monkeypatch.setattr(Wakeups, "_noticed", failing)
    with wakeups.watch(ANY_EVENT) as any_event:
        await in_thread(register, ledger, database_url, "h")
        assert await any_event.wait(SOON_S)
    assert not failures
