"""`/readyz` says whether the process can do its work, and if not, why and what to do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from host_agent.shared.cinder.settings import CinderSettings
from host_agent.shared.contract.messages import SERVICE_VERSION
from ledger.config import AuthMode, KeystoneSettings, Settings
from ledger.http.probes import health, neighbours
from ledger.http.probes.health import NEIGHBOURS, HealthReport, InThread, Readiness
from ledger.log.roles import grant
from projections.reads.database_trouble import in_words
from projections.running.rights import RoleKind
from tests.doubles.running_cinder import running_cinder
from tests.doubles.served import Handler, served
from tests.service.api_world import DEADLINE_S, Api, eventually, running_api
from tests.service.test_metrics import shown
from tests.stack import eventually as eventually_true
from tests.stack import running_stack


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_AGE_S", 0.0)


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(db: psycopg.Connection[Any], database_url: str) -> Iterator[sql.Identifier]:
    """Somebody who may do what the service does, and nothing else."""
    name = sql.Identifier(f"service_of_{db.info.dbname}")
    grant(database_url, f"service_of_{db.info.dbname}", RoleKind.SERVICE)
    yield name
    db.execute(sql.SQL("DROP OWNED BY {}").format(name))
    db.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.fixture
async def api_of_role(database_url: str, role: sql.Identifier) -> AsyncIterator[Api]:
    url = urlsplit(database_url)
    who = role.as_string().strip('"')
    dsn = f"{url.scheme}://{who}@{url.netloc.rpartition('@')[2]}{url.path}?{url.query}"
    async with running_api(dsn) as running:
        yield running


async def checks(api: Api) -> Any:
    answer = await api.ask("GET", "/readyz", None)
    found = await answer.json()
    failing = any(found["checks"].values())
    assert (answer.status, found["status"]) == ((503, "failing") if failing else (200, "ok"))
    return found["checks"]


async def says(api: Api, check: str, words: str) -> None:
    async def said() -> bool:
        return words in ((await checks(api))[check] or "")

    await eventually(said, f"{check}: {words}")


async def ready(api: Api) -> None:
    async def well() -> bool:
        return not any((await checks(api)).values())

    await eventually(well, "ready again")


def cut(db: psycopg.Connection[Any]) -> None:
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'attachment-ledger%' AND datname = current_database()"
    )


# --- the database -----------------------------------------------------------------------------


async def test_a_database_that_can_only_be_read(api: Api, db: psycopg.Connection[Any]) -> None:
    name = sql.Identifier(db.info.dbname)
    setting = sql.SQL("ALTER DATABASE {} {} default_transaction_read_only")
    await ready(api)
    db.execute(setting.format(name, sql.SQL("SET")) + sql.SQL(" = on"))
    cut(db)
    await says(api, "database", "events cannot be stored: cannot execute")
    await says(api, "database", "in a read-only transaction")
    await says(api, "projections", "in a read-only transaction")

    db.execute("SET default_transaction_read_only = off")
    db.execute(setting.format(name, sql.SQL("RESET")))
    cut(db)
    await ready(api)


async def test_a_role_without_connections_left(
    api_of_role: Api, role: sql.Identifier, db: psycopg.Connection[Any]
) -> None:
    await ready(api_of_role)
    db.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT 0").format(role))
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'attachment-ledger writer' AND datname = current_database()"
    )
    await says(api_of_role, "database", "events cannot be stored: too many connections")
    db.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT -1").format(role))
    await ready(api_of_role)


async def test_a_connection_that_was_lost_and_made_anew_is_no_trouble(
    api: Api, db: psycopg.Connection[Any]
) -> None:
    await ready(api)
    for _ in range(3):
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'attachment-ledger writer' AND datname = current_database()"
        )
        for _ in range(2):
            assert (await checks(api))["database"] is None


@pytest.mark.parametrize(
    "right",
    ["UPDATE on leases", "INSERT on events", "UPDATE on log_head", "DELETE on hosts"],
)
async def test_a_right_that_is_missing_is_named(
    right: str, api_of_role: Api, role: sql.Identifier, db: psycopg.Connection[Any]
) -> None:
    await ready(api_of_role)
    privilege, _, table = right.partition(" on ")
    change = sql.SQL("{} {} ON {} {} {}")
    what = sql.SQL(privilege), sql.Identifier(table)
    db.execute(change.format(sql.SQL("REVOKE"), *what, sql.SQL("FROM"), role))
    assert (await checks(api_of_role))["database"] == f"rights are missing: {right}"
    db.execute(change.format(sql.SQL("GRANT"), *what, sql.SQL("TO"), role))
    await ready(api_of_role)


async def test_projections_that_this_process_cannot_write(
    api_of_role: Api, role: sql.Identifier, db: psycopg.Connection[Any]
) -> None:
    db.execute(sql.SQL("REVOKE UPDATE ON tracking FROM {}").format(role))
    registering = asyncio.create_task(api_of_role.register())
    trouble = "this process projects nothing: permission denied for table tracking"
    await says(api_of_role, "projections", trouble)
    db.execute(sql.SQL("GRANT UPDATE ON tracking TO {}").format(role))
    await registering
    await ready(api_of_role)


async def test_a_full_disk_is_told_as_long_as_somebody_meets_it(
    api: Api, db: psycopg.Connection[Any]
) -> None:
    """What fails is to make the table longer: an append of nothing would succeed."""
    db.execute(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device';"
        " END $$"
    )
    db.execute("CREATE TRIGGER full_disk BEFORE INSERT ON events EXECUTE FUNCTION full_disk()")
    registering = asyncio.create_task(api.register())
    await says(api, "database", "events cannot be stored: could not extend file: No space left")
    for _ in range(20):
        assert "No space left" in (await checks(api))["database"]
    db.execute("DROP TRIGGER full_disk ON events")
    await registering
    await ready(api)


async def test_a_log_that_is_locked_by_somebody(
    api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "APPEND_S_MAX", 0.1)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM log_head FOR UPDATE")
        await says(api, "database", "an append takes longer than 0.1 s")
    monkeypatch.undo()
    await ready(api)


async def test_asking_stores_no_event_and_counts_as_no_append(api: Api) -> None:
    before, head = await shown(api), await api.head()
    await ready(api)
    assert await api.head() == head
    name = "ledger_append_seconds_count"
    assert (await shown(api))[name] == before[name]


# --- projections ------------------------------------------------------------------------------


async def test_a_projection_that_is_held_back_is_named_with_what_to_type(api: Api) -> None:
    await api.register()
    await api.projected()
    async with api.connection() as connection:
        await connection.execute("UPDATE tracking SET position = 0 WHERE projection = 'hosts'")
    await api.register(service_version=SERVICE_VERSION + 1)

    async def held() -> bool:
        return (await shown(api))["ledger_projection_held hosts"] == 1

    await eventually(held, "it stands where its rows have been")
    answer = await api.ask("GET", "/readyz", None)
    assert answer.status == 503
    said = (await answer.json())["checks"]["projections"]
    assert "hosts is held back by position 1" in said
    assert "RowBeyondMarkError" in said
    assert "attachment-ledger projection rebuild hosts" in said
    assert (await shown(api))["ledger_projection_held operations"] == 0


# --- Cinder -----------------------------------------------------------------------------------


def settings_for(endpoint: str) -> Settings:
    return Settings(cinder=CinderSettings(endpoint=endpoint))


async def test_cinder_is_asked_whether_it_is_there() -> None:
    async with AsyncExitStack() as stack:
        with running_cinder() as cinder:
            check = neighbours.checks(settings_for(cinder.endpoint), stack)["cinder"]
            assert await check() is None
        said = await check()
    assert said is not None
    assert "Cinder cannot be reached" in said


async def test_what_anybody_reads_of_trouble_does_not_say_where_or_who() -> None:
    """/readyz needs no token."""
    refused = psycopg.OperationalError(
        'connection to server at "10.0.0.5", port 5432 failed: FATAL:  no pg_hba.conf entry for '
        'host "10.0.0.9", user "ledger", database "ledger", no encryption\n'
        "HINT:  ask 10.0.0.1\n"
    )
    told = 'no pg_hba.conf entry for host "...", user "...", database "...", no encryption'
    assert in_words(refused) == told
    assert in_words(psycopg.OperationalError("10.0.0.5: Connection refused")) == "no connection"
    with served(Handler) as url:
        async with AsyncExitStack() as stack:
            said = await neighbours.checks(settings_for(url), stack)["cinder"]()
    assert said == "Cinder's endpoint has no version document."


async def test_a_cinder_that_takes_calls_and_never_answers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ledger.http.probes.neighbours.CINDER_S_MAX", 0.1)
    async with AsyncExitStack() as stack:
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            port = silent.getsockname()[1]
            check = neighbours.checks(settings_for(f"http://127.0.0.1:{port}/v3"), stack)["cinder"]
            said = await check()
    assert said is not None
    assert "did not answer in time" in said


def test_a_service_whose_cinder_is_gone_says_so(tmp_path: Path, database_url: str) -> None:
    with running_stack(tmp_path, database_url) as stack:
        stack.start_service()
        assert stack.get("/readyz").json()["checks"]["cinder"] is None
        stack._exits.close()

        def said() -> str | None:
            answer = stack.get("/readyz")
            return answer.json()["checks"]["cinder"] if answer.status_code == 503 else None

        assert "Cinder cannot be reached" in eventually_true(said, "not ready")


async def test_a_neighbour_that_is_away_takes_no_process_out(api: Api) -> None:
    """It is away for all of them, and agents, operators and readers need it for nothing."""
    said: dict[str, str | None] = {"cinder": "Cinder cannot be reached"}

    def check(name: str) -> Callable[[], Coroutine[Any, Any, str | None]]:
        async def look() -> str | None:
            return said.get(name)

        return look

    for name in (*NEIGHBOURS, "dispatcher"):
        api.components.checks[name] = check(name)  # type: ignore[index]
    for own, status in ((None, 200), ("it has stopped", 503)):
        said["dispatcher"] = own
        answer = await api.ask("GET", "/readyz?neighbours=false", None)
        assert answer.status == status
        assert (await answer.json())["checks"]["cinder"] == said["cinder"], (
            "it is told all the same"
        )
        assert (await api.ask("GET", "/readyz", None)).status == 503
    assert (await api.ask("GET", "/readyz?neighbour=false", None)).status == 400


async def test_what_counts_as_a_neighbour_is_what_is_asked_beside_the_service() -> None:
    keystone = KeystoneSettings(auth={"auth_url": "http://127.0.0.1:9/v3"})
    alone = settings_for("http://127.0.0.1:9/v3")
    beside = replace(alone, auth=AuthMode.KEYSTONE, keystone=keystone)
    async with AsyncExitStack() as stack:
        assert set(neighbours.checks(beside, stack)) == NEIGHBOURS


# --- what asking costs ------------------------------------------------------------------------


async def test_any_number_of_callers_is_one_check(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    async def count() -> str | None:
        made.append(1)
        await asyncio.sleep(0)
        return None

    monkeypatch.setattr(health, "ANSWER_AGE_S", 3600.0)
    api.components.checks["count"] = count  # type: ignore[index]
    readiness = Readiness(api.components)
    await asyncio.gather(*(readiness.found() for _ in range(50)))
    checks: dict[str, str | None] = dict.fromkeys(("database", "projections", "count"))
    assert await readiness.found() == HealthReport(checks, [])
    assert len(made) == 1

    readiness._until = 0.0  # as an hour later
    await readiness.found()
    assert len(made) == 2


async def test_checks_do_not_pile_up_behind_one_that_hangs() -> None:
    begun: list[int] = []
    go_on = threading.Event()

    def hang() -> str | None:
        begun.append(1)
        go_on.wait()
        return "it hung"

    check = InThread(hang)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(check(), 0.01)
    assert len(begun) == 1
    go_on.set()
    assert await check() == "it hung"
    assert len(begun) == 2


async def test_the_threads_of_checks_end_with_the_service(database_url: str) -> None:
    before = {*threading.enumerate()}
    async with running_api(database_url) as api, AsyncExitStack() as stack:
        found = neighbours.checks(settings_for("http://127.0.0.1:1/v3"), stack)
        assert "cannot be reached" in (await found["cinder"]() or "")
        assert not any((await checks(api)).values())
        new = {*threading.enumerate()} - before
        threads = [each for each in new if each.name.startswith("readiness")]
        assert len(threads) == 2
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(each.is_alive() for each in threads)
