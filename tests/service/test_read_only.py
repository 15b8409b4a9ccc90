"""A service on a standby of the database: it shows all, and changes nothing.

A real PostgreSQL with a standby; the whole service of `serve --read-only` beside the standby.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import aiohttp
import pytest

from host_agent.shared.cinder.settings import CinderSettings
from ledger import bootstrap
from ledger.config import Listen, Settings
from ledger.http import call as call_module
from ledger.http.call import READ_AFTER
from ledger.http.route import AGENT_RULE
from ledger.http.routes import ROUTES
from tests.doubles.two_leaders import TwoLeaders, two_leaders
from tests.service.api_world import Api, running_api

pytestmark = pytest.mark.slow

READ_ONLY = Settings(
    read_only=True,
    listen=Listen(port=0),
    cinder=CinderSettings(endpoint="http://127.0.0.1:9/v3", service_token=False),
)
#: Nobody has these; what is of interest is that asking for them writes nothing.
PLACES = {"host": "compute-1", "position": "1", "month": "2026-01"}


@pytest.fixture(scope="module")
def both() -> Iterator[TwoLeaders]:
    with two_leaders() as both:
        yield both


@asynccontextmanager
async def standby(both: TwoLeaders) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the service on the standby."""
    async with (
        bootstrap.running(READ_ONLY, both.second.dsn) as service,
        aiohttp.ClientSession(service.url) as client,
    ):
        yield client


async def attached(api: Api) -> tuple[str, str, str]:
    """A server, a volume that it has, and the position that the answer says."""
    server, volume = await api.server(), api.volume()
    answer = await api.attach(server, volume)
    assert answer.status == 200, await answer.text()
    return server, volume, answer.headers[READ_AFTER]


async def test_what_was_written_is_read_on_the_standby_by_its_position(both: TwoLeaders) -> None:
    async with running_api(both.first.dsn) as api, standby(both) as client:
        server, volume, position = await attached(api)
        path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
        async with client.get(path, headers={READ_AFTER: position}) as answer:
            assert answer.status == 200, await answer.text()
        async with client.get(f"/v1/volumes/{volume}/history") as answer:
            assert answer.status == 200, await answer.text()
        async with client.get("/readyz?neighbours=false") as answer:
            assert answer.status == 200, await answer.text()


async def test_the_position_of_an_answer_is_behind_what_it_shows(database_url: str) -> None:
    """An attach is bound after it was accepted: a standby between both knows no such attachment."""
    async with running_api(database_url) as api:
        _, volume, position = await attached(api)
        events = (await api.get(f"/v1/volumes/{volume}/history"))["events"]
        [bound] = [e for e in events if e["topic"] == "BlockDeviceMapping.MappingCreated"]
        assert bound["position"] <= int(position)


async def test_nothing_is_changed_there_and_agents_are_sent_elsewhere(both: TwoLeaders) -> None:
    async with standby(both) as client:
        for method, path in (
            ("POST", f"/v2.1/servers/{uuid4()}/os-volume_attachments"),
            ("POST", "/v1/hosts/compute-1/fence"),
            ("GET", "/v1/hosts/compute-1/commands"),
        ):
            async with client.request(method, path, json={}) as answer:
                assert answer.status == 503, path
                assert "changes nothing" in await answer.text()


async def test_every_reading_route_answers_on_a_standby(both: TwoLeaders) -> None:
    """None of them writes in passing: PostgreSQL would refuse that there, and it would be a 500."""
    async with standby(both) as client:
        asked = 0
        for route in ROUTES:
            if route.method != "GET" or AGENT_RULE in route.rules:
                continue
            path = re.sub(r"\{(\w+)[^}]*\}", lambda m: PLACES.get(m[1], str(uuid4())), route.path)
            async with client.get(path) as answer:
                assert answer.status < 500 or route.name == "ready", (path, await answer.text())
            asked += 1
        assert asked > 60


async def test_events_come_from_a_standby_as_they_are_replayed(both: TwoLeaders) -> None:
    async with (
        running_api(both.first.dsn) as api,
        standby(both) as client,
        client.get("/v1/events/stream") as stream,
    ):
        _, volume, _ = await attached(api)
        async with asyncio.timeout(60):
            async for line in stream.content:
                if volume.encode() in line:
                    break


async def test_what_is_not_here_yet_is_waited_for_and_not_for_ever(
    both: TwoLeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "PROJECTED_S_MAX", 0.5)
    async with standby(both) as client:
        for position, status in (("9" * 18, 503), ("-1", 400), ("x", 400), ("9" * 19, 400)):
            async with client.get("/v1/hosts", headers={READ_AFTER: position}) as answer:
                assert answer.status == status, await answer.text()
        async with client.get(f"/v1/events?after={'9' * 18}") as answer:
            assert answer.status == 503, "410 is of a log that will not come to it"


async def test_positions_that_never_come_leave_nobody_waiting(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever names some 100,000 of them would make each later answer a late one."""
    monkeypatch.setattr(call_module, "PROJECTED_S_MAX", 0.2)
    async with running_api(database_url) as api:
        answer = await api.ask("GET", "/v1/flows", headers={READ_AFTER: "9" * 18})
        assert answer.status == 503, await answer.text()
        assert api.components.runner._waiters == []


async def test_a_position_is_not_here_while_nothing_has_been_projected(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new database, before its first projector has begun, no row says that it is late."""
    monkeypatch.setattr(call_module, "PROJECTED_S_MAX", 0.2)
    async with (
        bootstrap.running(READ_ONLY, database_url) as service,
        aiohttp.ClientSession(service.url) as client,
        client.get("/v1/hosts", headers={READ_AFTER: "1"}) as answer,
    ):
        assert answer.status == 503, await answer.text()


async def test_a_moment_that_more_may_come_of_is_not_answered(both: TwoLeaders) -> None:
    async with running_api(both.first.dsn) as api, standby(both) as client:
        _, volume, position = await attached(api)
        [(before, last)] = both.first.ask(
            "SELECT max(recorded_at), clock_timestamp() FROM events WHERE recorded_at <"
            f" (SELECT recorded_at FROM events WHERE position = {position})"
        )
        for at, status in ((before, 200), (last, 503)):
            query = {"at": at.isoformat()}
            path, headers = f"/v1/volumes/{volume}/history", {READ_AFTER: position}
            async with client.get(path, params=query, headers=headers) as answer:
                told = await answer.text()
                assert answer.status == status, told
                assert ("not_replayed" in told) == (status == 503)


async def test_it_shows_all_while_the_primary_is_away(both: TwoLeaders) -> None:
    async with running_api(both.first.dsn) as api:
        _, volume, position = await attached(api)
    async with standby(both) as client:
        path, headers = f"/v1/volumes/{volume}/history", {READ_AFTER: position}
        async with client.get(path, headers=headers) as answer:
            before = await answer.json()
        await asyncio.to_thread(both.first.freeze)
        try:
            async with client.get(path, headers=headers) as answer:
                assert (answer.status, await answer.json()) == (200, before)
        finally:
            both.first.thaw()
