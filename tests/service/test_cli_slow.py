"""A service that waits for Cinder is called that: it is not to be started, and no host fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from ledger.cli import client, shell
from ledger.http import schemas
from tests.service.cli_stub import SERVER, VOLUME, Stub, refusing, running_stub

ATTACH = f"POST /v2.1/servers/{SERVER}/os-volume_attachments"
WAITS = "The service is up and waits for"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    with running_stub() as running:
        monkeypatch.setenv("LEDGER_URL", running.url)
        monkeypatch.setattr(client, "BEGIN_TIMEOUT_S", 0.2)
        yield running


async def never(_request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


def said(capsys: pytest.CaptureFixture[str]) -> str:
    assert shell.main(["server", "add", "volume", SERVER, VOLUME]) == 1
    return capsys.readouterr().err


def test_who_waits_too_long_is_told_what_the_service_waits_for(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[ATTACH] = never
    cinder = schemas.Health(status="failing", checks={"cinder": "no answer", "database": None})
    stub.answers["GET /readyz"] = cinder
    told = said(capsys)
    assert f"{WAITS} cinder (no answer)" in told
    assert "attachment-ledger serve" not in told


def test_who_waits_too_long_for_a_service_that_is_well_is_told_to_look(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[ATTACH] = never
    stub.answers["GET /readyz"] = schemas.Health(status="ok", checks={"cinder": None})
    told = said(capsys)
    assert "Look before you repeat it" in told
    assert "attachment-ledger serve" not in told


def test_a_service_that_says_nothing_at_all_may_have_to_be_started(
    stub: Stub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "READY_TIMEOUT_S", 0.2)
    stub.answers[ATTACH] = stub.answers["GET /readyz"] = never
    assert "attachment-ledger serve" in said(capsys)


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ((503, "cinder_timeout", "Cinder did not answer in time."), f"{WAITS} Cinder."),
        ((503, "database_unavailable", "The database does not answer."), "readyz"),
    ],
    ids=["cinder", "database"],
)
def test_a_503_that_names_cinder_says_who_waits_for_whom(
    refused: tuple[Any, ...], told: str, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[ATTACH] = refusing(*refused)
    shown = said(capsys)
    assert told in shown
    assert (WAITS in shown) == ("Cinder" in refused[2])
