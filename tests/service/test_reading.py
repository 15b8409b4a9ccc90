"""Who reads from the database first when more is asked than can be read."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from psycopg_pool import PoolTimeout

from ledger import rooms
from ledger.http.limits import reading
from ledger.http.limits.connections import CONNECTIONS
from ledger.http.limits.reading import InTurn, NoTurnError
from ledger.http.problem import explain
from ledger.rooms import Places
from projections.database_connections import AsyncDbConnection
from tests.service.api_world import HOST, READ_CONNECTIONS_MAX, Api, eventually, so

COMMANDS = f"/v1/hosts/{HOST}/commands?after=0&epoch=0&wait_s=0"
SOON_S = 30.0


class OneConnection:
    """A pool of one connection."""

    async def getconn(self) -> str:
        return "connection"

    async def putconn(self, connection: str) -> None:
        assert connection == "connection"

    async def drain(self) -> None: ...


@pytest.mark.parametrize(
    ("late_s", "order"),
    [(60.0, "own a1 b1 c1 a2 b2 c2"), (0.0, "own c1 b1 c2 b2 a1 a2")],
    ids=["in turns", "too much"],
)
async def test_what_is_no_request_goes_first_and_requests_are_finished_when_it_is_too_much(
    late_s: float, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "LATE_S", late_s)
    pool: Any = OneConnection()
    places, lent = Places(1, 1), list[str]()
    requests, inner = (InTurn(pool, places, first=first) for first in (False, True))

    async def read(who: InTurn, *names: str) -> None:
        for name in names:
            connection = await who.getconn()
            lent.append(name)
            await asyncio.sleep(0)  # meanwhile others come
            await who.putconn(connection)

    held = await requests.getconn()
    asked = [asyncio.create_task(read(requests, f"{name}1", f"{name}2")) for name in "abc"]
    await so(lambda: places.waiting == 3, "three wait")
    asked.append(asyncio.create_task(read(inner, "own")))
    await so(lambda: places.waiting == 4, "one more")
    await requests.putconn(held)
    await asyncio.gather(*asked)
    assert " ".join(lent) == order


async def test_a_turn_that_came_to_nothing_is_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "POOL_WAIT_S", 0.01)
    pool: Any = OneConnection()
    places = Places(1, 1)
    line = InTurn(pool, places, first=False)
    held = await line.getconn()
    with pytest.raises(NoTurnError) as found:
        await line.getconn()
    failure = explain(found.value, "req-1", None)
    assert (failure.status, failure.code) == (503, "service_busy")
    assert 2 <= int(failure.headers["Retry-After"]) <= 10
    await line.putconn(held)
    monkeypatch.setattr(pool, "getconn", _away, raising=False)
    with pytest.raises(PoolTimeout, match="away"):
        await line.getconn()
    assert (places.inside, places.waiting) == (0, 0)


async def test_users_are_refused_at_once_while_others_wait_too_long_to_read(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators, services and agents are not; nothing of what is refused is begun."""
    monkeypatch.setattr(rooms, "LATE_S", 0.0)
    monkeypatch.setattr(reading, "POOL_WAIT_S", 1_000.0)  # who reads is not answered here
    server, volume, before = await api.server(), api.volume(), await api.head()
    turns, connections = api.components.queries.turns, api.http.app[CONNECTIONS]
    for _ in range(READ_CONNECTIONS_MAX):
        await turns.enter("", None)
    user = asyncio.create_task(turns.enter("", 1_000.0))
    await so(lambda: turns.is_late(""), "a user waits too long")

    path, idle = f"/v2.1/servers/{server}/os-volume_attachments", connections.under_way
    asked = (("operator", path), ("cinder", f"{path}/{volume}"), ("agent-1", COMMANDS))
    let_in = [asyncio.create_task(api.ask("GET", what, who)) for who, what in asked]
    await so(lambda: connections.under_way == idle + len(asked), "all of these are let in")
    async with asyncio.timeout(SOON_S):
        for answer in (
            await api.attach(server, volume, who="member"),
            await api.ask("DELETE", f"{path}/{volume}", "member"),
            await api.ask("GET", path, "member"),
        ):
            assert answer.status == 503
            assert 2 <= int(answer.headers["Retry-After"]) <= 10
        assert (await api.http.get("/healthz")).status == 200

    for _ in range(READ_CONNECTIONS_MAX):
        turns.leave("")
    await user
    turns.leave("")
    assert [(await task).status for task in let_in] == [200, 404, 200]
    assert await api.head() == before
    assert (await api.attach(server, volume, who="member")).status == 200


async def _away() -> None:
    raise PoolTimeout("the database is away")


async def test_what_is_accepted_is_carried_out_while_no_request_can_read(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, volume = await api.server(), api.volume()
    answer = await api.attach(server, volume)
    assert answer.status == 200
    turn = asyncio.Event()
    requests = api.components.queries._pool
    assert requests is not api.components.inner._pool
    getconn = requests.getconn

    async def in_its_turn() -> Any:
        await turn.wait()
        return await getconn()

    monkeypatch.setattr(requests, "getconn", in_its_turn)
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    waiting = asyncio.create_task(api.get(path))
    [command] = await api.commands()
    said = {name: command[name] for name in ("operation_id", "run", "epoch")}
    said["results"] = [{"step": step["name"], "took_ms": 5} for step in command["steps"]]
    told = await api.ask("POST", f"/v1/hosts/{HOST}/reports", "agent-1", json=said)
    assert (await told.json())["taken"] == len(command["steps"])

    async def is_over() -> bool:
        found = await api.components.inner.operation(command["operation_id"])
        return found is not None and found["outcome"] == "completed"

    await eventually(is_over, "the operation is completed")
    assert not waiting.done()
    turn.set()
    assert (await waiting)["volumeAttachment"]["volumeId"] == volume


async def test_the_databases_name_is_looked_up_while_all_threads_wait_to_read(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg looks names up in the loop's own threads: who waits for the answer has others."""
    server, queries = await api.server(), api.components.queries
    loop, connect, sightings = (
        asyncio.get_running_loop(),
        AsyncDbConnection.connect,
        queries.sightings,
    )
    loop.set_default_executor(ThreadPoolExecutor(1))

    async def by_name(*given: Any, **options: Any) -> Any:
        await loop.getaddrinfo("localhost", 5432)
        return await connect(*given, **options)

    async def after_a_failover(*about: Any) -> Any:
        await cast("Any", queries)._pool.drain()
        return await sightings(*about)

    monkeypatch.setattr(AsyncDbConnection, "connect", by_name)
    monkeypatch.setattr(queries, "sightings", after_a_failover)
    async with asyncio.timeout(5):
        assert (await api.act(server, "os-stop")).status == 202
