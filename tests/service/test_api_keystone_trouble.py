"""Keystone in trouble, wrong tokens by the thousand, and where no token may be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from ledger.auth import keystone as tokens
from ledger.auth import keystone_client
from ledger.config import AuthMode
from tests.authority import Authority
from tests.doubles.simulated_keystone import Fault, SimulatedKeystone, running_keystone
from tests.service.api_world import PROJECT, Api, eventually, running_api
from tests.service.keystone_world import SERVERS, ask, settings, status
from tests.tokens import token_of


@pytest.fixture
async def api(keystone: SimulatedKeystone, database_url: str) -> AsyncIterator[Api]:
    async with running_api(database_url, settings(keystone)) as running:
        yield running


#: Those of them that answer every question in a bad way; the others have tests of their own.
_OF_ALL_CALLS = [
    each for each in Fault if each not in {Fault.HANGS, Fault.FORBIDS_LOGIN, Fault.UNKNOWN_LOGIN}
]


@pytest.mark.parametrize("fault", _OF_ALL_CALLS)
async def test_a_keystone_in_trouble_is_a_503_that_names_it_and_who_is_known_goes_on(
    fault: Fault, api: Api, keystone: SimulatedKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keystone_client, "LOGIN_PAUSE_S", 0.0)
    known = keystone.token("alice", "member", project=PROJECT)
    unknown = keystone.token("bob", "member", project=PROJECT)
    if fault is not Fault.NO_LOGIN:
        assert await status(api, known) == 200
    keystone.fault = fault
    for token in (unknown, "gAAAAABnonsense"):
        answer = await ask(api, token)
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0
        assert "Keystone" in (await answer.json())["serviceUnavailable"]["message"]
        assert "WWW-Authenticate" not in answer.headers
    if fault is not Fault.NO_LOGIN:
        assert await status(api, known) == 200
    assert await status(api, token_of("operator")) == 200  # break-glass
    keystone.fault = None
    assert await status(api, unknown) == 200  # a trouble is not remembered
    assert await status(api, "gAAAAABnonsense") == 401


@pytest.mark.parametrize(
    ("days", "status_", "said"), [(30, 200, ""), (-1, 503, "Keystone's certificate is not taken")]
)
async def test_a_keystone_whose_certificate_has_ended_is_not_asked(
    days: int, status_: int, said: str, database_url: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.pair("IP:127.0.0.1", days=days, since=-3)
    with running_keystone(pair) as keystone:
        given = settings(keystone, cacert=str(authority.certificate))
        async with running_api(database_url, given) as api:
            answer = await ask(api, keystone.token("alice", "member", project=PROJECT))
            assert answer.status == status_
            assert said in await answer.text()
            assert bool(keystone.asked["log-in"]) == (status_ == 200)
            assert await status(api, token_of("operator")) == 200  # break-glass


async def test_our_own_token_is_renewed_once_for_a_request(
    api: Api, keystone: SimulatedKeystone
) -> None:
    assert await status(api, keystone.token("alice", "member", project=PROJECT)) == 200
    for name, token in keystone.tokens.items():
        if token.body["user"]["name"] == "ledger":
            keystone.revoke(name)
    before = keystone.asked["log-in"]
    assert await status(api, keystone.token("bob", "member", project=PROJECT)) == 200
    assert keystone.asked["log-in"] == before + 1
    keystone.fault = Fault.REFUSES_US
    asked = keystone.asked["validation"]
    assert await status(api, keystone.token("carl", "member", project=PROJECT)) == 503
    assert keystone.asked["log-in"] == before + 2
    assert keystone.asked["validation"] == asked + 2


async def test_a_keystone_that_hangs_is_given_up_and_others_do_not_wait_for_it(
    api: Api, keystone: SimulatedKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = keystone.token("alice", "member", project=PROJECT)
    assert await status(api, known) == 200
    keystone.fault = Fault.HANGS
    monkeypatch.setattr(tokens, "KEYSTONE_ASK_S", 1.0)
    monkeypatch.setattr(tokens, "KEYSTONE_PLACE_S", 0.2)
    hanging = [
        asyncio.create_task(ask(api, keystone.token("bob", "member", project=PROJECT)))
        for _ in range(tokens.KEYSTONE_THREADS_PER_ADDRESS + 3)
    ]

    async def asked() -> bool:
        return keystone.asked["validation"] > tokens.KEYSTONE_THREADS_PER_ADDRESS

    await eventually(asked, "as many as may ask do")
    assert await status(api, known) == 200
    assert await status(api, token_of("member")) == 200
    answers = await asyncio.gather(*hanging)
    assert {answer.status for answer in answers} == {503}
    texts = [await answer.text() for answer in answers]
    assert sum("questions are not answered yet" in text for text in texts) == 3
    assert sum("did not answer in time" in text for text in texts) == len(texts) - 3


@pytest.mark.parametrize("order", [("tokens", "keystone"), ("keystone", "tokens")])
async def test_static_tokens_need_no_keystone_in_either_order(
    order: tuple[str, ...], keystone: SimulatedKeystone, database_url: str
) -> None:
    given = settings(keystone, order=tuple(map(AuthMode, order)))
    async with running_api(database_url, given) as api:
        assert await status(api, token_of("operator"), "/v1/hosts") == 200
        assert keystone.asked["validation"] == (order[0] == "keystone")
        keystone.fault = Fault.AWAY
        assert await status(api, token_of("admin"), "/v1/hosts") == 200
        assert await status(api, keystone.token("alice", "member", project=PROJECT)) == 503


# ----------------------------------------------------------------------- bounded work


async def test_wrong_tokens_cost_keystone_so_many_calls_whatever_their_number(
    api: Api, keystone: SimulatedKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "WRONG_TOKENS_S", 3600.0)
    known = keystone.token("alice", "member", project=PROJECT)
    assert await status(api, known) == 200
    before = keystone.asked["validation"]
    found = []
    for _ in range(20):
        found += await asyncio.gather(*(status(api, f"gAAAAAB{uuid4()}") for _ in range(50)))
    asked = keystone.asked["validation"] - before
    assert asked >= tokens.WRONG_TOKENS_MAX
    assert asked <= tokens.WRONG_TOKENS_MAX + tokens.KEYSTONE_THREADS_PER_ADDRESS
    assert found.count(401) == asked
    assert found.count(429) == 1000 - asked
    answer = await ask(api, f"gAAAAAB{uuid4()}")
    assert 0 < int(answer.headers["Retry-After"]) <= 3600
    assert await status(api, known) == 200
    assert await status(api, token_of("member")) == 200


async def test_one_wrong_token_is_asked_about_once_however_often_it_comes(
    api: Api, keystone: SimulatedKeystone
) -> None:
    for _ in range(10):
        found = await asyncio.gather(*(status(api, "gAAAAABnonsense") for _ in range(30)))
        assert set(found) == {401}
    assert keystone.asked["validation"] == 1


async def test_a_log_in_that_failed_is_not_tried_again_for_each_token(
    api: Api, keystone: SimulatedKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keystone_client, "LOGIN_PAUSE_S", 3600.0)
    keystone.fault = Fault.NO_LOGIN
    for _ in range(5):
        answers = await asyncio.gather(*(ask(api, f"gAAAAAB{uuid4()}") for _ in range(10)))
        assert {answer.status for answer in answers} == {503}
        assert "refuses our own log-in" in await answers[-1].text()
    assert keystone.asked["log-in"] == 1


async def test_requests_of_a_user_are_counted_whichever_token_they_come_with(
    keystone: SimulatedKeystone, database_url: str
) -> None:
    given = settings(keystone)
    given = replace(given, limits=replace(given.limits, requests_per_token_max=1))
    async with running_api(database_url, given) as api:
        first, second = (keystone.token("root", "admin", project=PROJECT) for _ in range(2))
        stream = await ask(api, first, "/v1/events/stream")
        assert stream.status == 200
        assert await status(api, second) == 429
        assert await status(api, keystone.token("alice", "member", project=PROJECT)) == 200
        stream.close()


# ------------------------------------------------------------------------- no token anywhere


async def test_no_token_is_in_a_log_an_answer_the_database_or_a_command_line(
    api: Api,
    keystone: SimulatedKeystone,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    user = keystone.token("alice", "member", project=PROJECT)
    wrong = f"gAAAAAB{uuid4().hex}"
    service = keystone.token("cinder", "service", project="service")
    server = await api.server()
    path = f"{SERVERS}/{server}/os-volume_attachments"
    body = {"volumeAttachment": {"volumeId": api.volume()}}
    said = []
    answer = await ask(api, user, path, method="POST", json=body, service=service)
    assert answer.status == 200
    for fault in (None, Fault.HTML, Fault.AWAY, Fault.ERROR, Fault.REFUSES_US):
        keystone.fault = fault
        said.append(await ask(api, wrong + str(fault)[-4:]))
        said.append(await ask(api, user, service=wrong + str(fault)[-5:]))
    wrong_static = "not-the-operators-token-" * 2
    for static in (token_of("operator"), wrong_static):
        said.append(await ask(api, static, "/v1/hosts"))
        said.append(await ask(api, static, "/v1/no-such-thing"))
    form = {"user": "alice", "domain": "Default", "project": "p", "password": "pass-of-nobody"}
    said.append(await api.ask("POST", "/ui/login", None, data=form, allow_redirects=False))
    texts = [await each.text() + str(each.headers) for each in said]
    texts += [caplog.text, *capfd.readouterr()]
    texts += [Path(f"/proc/self/{name}").read_text() for name in ("cmdline", "environ")]  # noqa: ASYNC240
    async with api.connection() as connection:
        tables = await connection.execute(
            "SELECT format('SELECT t::text FROM %I.%I AS t', schemaname, tablename) AS query"
            " FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        for row in await tables.fetchall():
            rows = await connection.execute(row["query"] if isinstance(row, dict) else row[0])
            texts += [str(each) for each in await rows.fetchall()]
    assert "id-of-alice" in "".join(texts)
    secrets = (token_of("operator"), wrong_static)
    for token in [*keystone.tokens, wrong, *secrets, "pass-of-ledger", "pass-of-nobody"]:
        assert not [text for text in texts if token in text]
