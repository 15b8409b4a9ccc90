"""`db preflight`: whether all is at rest, for scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ledger.cli import shell
from ledger.log import schema
from ledger.log.application import Ledger
from tests.service.api_world import HOST, Api, guest
from tests.service.test_api_v1 import parked_detach
from tests.store.drifting import Seen

Ask = Callable[[], tuple[int, list[tuple[str, str | None, int]]]]
FROM_ELSEWHERE = "INSERT INTO schema_migrations (name, checksum) VALUES ('9999_later', 'x')"


@pytest.fixture
def ask(database_url: str, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The exit code, and the reasons."""

    def asked() -> tuple[int, list[tuple[str, str | None, int]]]:
        capsys.readouterr()
        code = shell.main(["db", "preflight", "--database-url", database_url, "-f", "json"])
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return code, [(row["Reason"], row["About"], row["Count"]) for row in rows]

    return asked


async def test_a_service_at_rest_is_ready(
    api: Api, database_url: str, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    await api.attached()
    assert await asyncio.to_thread(ask) == (0, [])
    where = ["--database-url", database_url]
    assert await asyncio.to_thread(shell.main, ["db", "preflight", *where]) == 0
    assert "Nothing is running, parked, drifted or behind." in capsys.readouterr().err


async def test_what_is_under_way_is_told_by_its_host(api: Api, ask: Ask) -> None:
    answer = await api.attach(await api.server(), api.volume())
    await api.projected()
    assert await asyncio.to_thread(ask) == (4, [("running", HOST, 1)])
    await api.do_next_command()
    await api.finished(answer)
    assert await asyncio.to_thread(ask) == (0, [])


async def test_what_waits_for_a_person_is_told(api: Api, database_url: str, ask: Ask) -> None:
    await parked_detach(api)
    with Ledger(database_url) as ledger:
        other = guest()
        await api.changes(other)
        Seen(ledger, host=HOST, server=other["server_id"]).look()
    await api.projected()
    assert await asyncio.to_thread(ask) == (4, [("drift", HOST, 1), ("parked", HOST, 1)])


def test_tables_that_lag_behind_the_log_prove_nothing(database_url: str, ask: Ask) -> None:
    with Ledger(database_url) as ledger:
        Seen(ledger, host=HOST, server=str(uuid4())).look()
    code, reasons = ask()
    assert code == 4
    assert ("projection", "findings", 1) in reasons


def test_of_a_schema_that_others_made_nothing_else_is_told(database_url: str, ask: Ask) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(FROM_ELSEWHERE)
    assert schema.status(database_url).foreign == ("9999_later",)
    assert ask() == (4, [("schema", "9999_later", 1)])


def test_an_empty_database_has_no_log(
    empty_database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(["db", "preflight", "--database-url", empty_database_url]) == 3
    assert "the database has no log" in capsys.readouterr().err
