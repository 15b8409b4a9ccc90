"""Logging in at the console as a user of Keystone's."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ledger.auth import keystone_login
from ledger.auth.keystone_login import REFUSED_MAX
from tests.doubles.simulated_keystone import PASSWORD, Fault, SimulatedKeystone
from tests.service.api_world import PROJECT, Api, running_api
from tests.service.keystone_world import settings
from tests.service.test_console import shown

ALICE = {"user": "alice", "domain": "Default", "project": "p", "password": PASSWORD.format("alice")}


@pytest.fixture
async def api(keystone: SimulatedKeystone, database_url: str) -> AsyncIterator[Api]:
    async with running_api(database_url, settings(keystone)) as running:
        keystone.user("alice", "member", project=PROJECT)
        yield running


async def log_in(api: Api, **said: str) -> Any:
    return await api.ask("POST", "/ui/login", None, data=ALICE | said, allow_redirects=False)


async def test_a_user_of_keystone_logs_in_by_a_password(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = await api.server()
    asked = [each["name"] for each in (await shown(api, "/ui/login", None)).all("input")]
    assert asked == ["q", "to", "user", "domain", "project", "password", "to", "token"]
    answer = await log_in(api, to="/ui/servers")
    assert (answer.status, answer.headers["Location"]) == (303, "/ui/servers")
    html = await shown(api, "/ui/servers", None)
    assert "alice" in html.text
    assert server[:8] in html.text
    assert ALICE["password"] not in caplog.text


async def test_a_wrong_password_opens_nothing_and_is_not_shown_again(api: Api) -> None:
    answer = await log_in(api, password="wrong-one")
    text = await answer.text()
    assert (answer.status, "Set-Cookie" in answer.headers) == (401, False)
    assert "wrong-one" not in text
    assert 'value="alice"' in text, "the rest need not be typed again"


@pytest.mark.parametrize(
    ("fault", "said"), [(Fault.FORBIDS_LOGIN, "HTTP 403"), (Fault.UNKNOWN_LOGIN, "HTTP 404")]
)
async def test_a_no_of_keystones_is_told_as_keystones_and_counts(
    fault: Fault, said: str, api: Api, keystone: SimulatedKeystone
) -> None:
    keystone.fault = fault
    for _ in range(REFUSED_MAX):
        answer = await log_in(api)
        text = await answer.text()
        assert (answer.status, "Set-Cookie" in answer.headers) == (401, False)
        assert said in text
        assert ALICE["password"] not in text
    assert (await log_in(api)).status == 429


async def test_while_keystone_is_away_the_page_says_so(
    api: Api, keystone: SimulatedKeystone
) -> None:
    for fault in (Fault.AWAY, Fault.HTML, Fault.HTML_404, Fault.ERROR):
        keystone.fault = fault
        answer = await log_in(api)
        assert (answer.status, "Set-Cookie" in answer.headers) == (503, False)
        assert "Keystone" in await answer.text()


async def test_an_address_that_is_refused_often_has_to_wait(
    api: Api, keystone: SimulatedKeystone
) -> None:
    for _ in range(REFUSED_MAX):
        assert (await log_in(api, password="wrong-one")).status == 401
    asked = keystone.asked["log-in"]
    answer = await log_in(api)
    assert (answer.status, "Retry-After" in answer.headers) == (429, True)
    assert keystone.asked["log-in"] == asked, "whoever guesses does not reach Keystone"


def test_a_password_is_in_no_text_of_what_holds_it() -> None:
    assert "secret" not in repr(
        keystone_login.Login(user="u", domain="d", project="p", password="secret")
    )
