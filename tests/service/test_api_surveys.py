"""Surveys over the API: who is asked and told, what is kept, and what is refused."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from host_agent.shared.contract.messages import SURVEY_HEADER, PowerState
from host_agent.shared.contract.survey import (
    CAPABILITY,
    ITEMS_MAX,
    PARTS,
    TEXT_CHARS_MAX,
    ConnectionShown,
    DiskShown,
    GuestShown,
    StorageShown,
    Survey,
    UnlabelledShown,
)
from host_agent.shared.platform.masking import MASK
from ledger.agents import calls as agents
from ledger.core.wakeups import host_key
from ledger.http import call
from projections.reads.surveys import BlockingSurveyReads
from projections.running.tables import prepare
from tests.service.api_world import HOST, OTHER, Api, eventually
from tests.surveys import survey, whole

SILENT_S = 90.0
SOON_S = 10.0
PATH = f"/v1/hosts/{HOST}/survey"


def an_id() -> str:
    return str(uuid4())


def disk(**over: Any) -> DiskShown:
    told: dict[str, Any] = {"serial": an_id(), "live": "vdb", "persistent": "vdb"}
    return DiskShown(**told | over)


def a_guest(*disks: DiskShown) -> GuestShown:
    return GuestShown(server_id=an_id(), power_state=PowerState.RUNNING, disks=disks)


def a_survey(*guests: GuestShown, **over: Any) -> Survey:
    shown = survey(
        boot_id="b1",
        epoch=0,
        guests=tuple(sorted(guests, key=lambda guest: guest.server_id)),
        connections=(
            ConnectionShown(
                attachment_id=an_id(),
                volume_id=an_id(),
                server_id=an_id(),
                serial=an_id(),
                present=True,
                used=False,
            ),
        ),
        storage=(StorageShown(kind="mount", name="nas:/v", recorded=False, used=False),),
        secrets=(an_id(),),
        blind=("storage",),
        why_blind=("no /sys",),
    )
    return replace(shown, **over)


class Asked:
    """The host is asked for its survey, and answers."""

    def __init__(self, api: Api, database_url: str) -> None:
        self.api, self._url = api, database_url

    async def registered(self) -> Asked:
        await self.api.register(capabilities={CAPABILITY: True})
        await self.api.register(host=OTHER)
        await self.api.projected()
        return self

    async def want(self) -> str:
        queries = self.api.components.queries
        asked = await queries.want_surveys(None, silent_after_s=SILENT_S)
        assert set(asked) == {HOST}, "the other one is older"
        return asked[HOST]

    async def poll(self, got: str | None = None, wait_s: float = SOON_S) -> Any:
        query = f"after=0&epoch=0&wait_s={wait_s}"
        headers = {SURVEY_HEADER: got} if got else {}
        return await self.api.get(f"/v1/hosts/{HOST}/commands?{query}", "agent-1", headers=headers)

    async def is_waited_for(self) -> bool:
        return host_key(HOST) in self.api.components.wakeups._watches

    async def send(self, body: Any, who: str = "agent-1") -> tuple[int, Any]:
        data, headers = io.BytesIO(json.dumps(body).encode()), {"Content-Type": "application/json"}
        response = await self.api.ask("PUT", PATH, who, data=data, headers=headers)
        return response.status, await response.json()

    async def answer(self, survey: Survey, token: str, **over: Any) -> tuple[int, Any]:
        return await self.send({**whole(survey, token), **over})

    async def shown(self) -> tuple[Any, Survey | None]:
        queries = self.api.components.queries
        standing = await queries.survey_standing(HOST, silent_after_s=SILENT_S)
        with psycopg.connect(self._url, autocommit=True) as connection:
            prepare(connection)
            reads = BlockingSurveyReads(connection)
            return standing, reads.survey(HOST, standing.token or an_id())


@pytest.fixture
async def asked(api: Api, database_url: str) -> Asked:
    return await Asked(api, database_url).registered()


async def test_who_polls_is_told_what_is_wanted_and_what_is_known(asked: Asked) -> None:
    polling = asyncio.create_task(asked.poll())
    await eventually(asked.is_waited_for, "the poll is held")
    token = await asked.want()
    answer = await asyncio.wait_for(polling, SOON_S)
    assert answer["survey"] == {"token": token, "digest": None}
    assert (answer["commands"], answer["after"]) == ([], 0)
    assert (await asked.poll(wait_s=0))["survey"] == answer["survey"], "a restarted agent asks"
    assert (await asked.poll(token, wait_s=0))["survey"] is None, "it has got it"
    survey = a_survey()
    assert await asked.answer(survey, token) == (200, {"again": False})
    assert (await asked.poll(wait_s=0))["survey"] is None, "it is answered"
    again = await asked.want()
    told = (await asked.poll(token, wait_s=0))["survey"]
    assert told == {"token": again, "digest": survey.digest()}


async def test_what_a_host_shows_is_kept_as_it_is(asked: Asked) -> None:
    survey = a_survey(a_guest(disk(), disk(live=None)), a_guest())
    disks = [
        replace(g, disks=tuple(sorted(g.disks, key=lambda d: d.serial))) for g in survey.guests
    ]
    survey = replace(survey, guests=tuple(disks))
    assert (await asked.answer(survey, await asked.want()))[0] == 200
    standing, kept = await asked.shown()
    assert kept == survey
    assert (standing.why_unknown, standing.digest) == (None, survey.digest())


async def test_what_has_not_changed_is_not_sent_again(asked: Asked) -> None:
    survey = a_survey()
    unchanged = {"epoch": 0, "digest": survey.digest()}
    token = await asked.want()
    assert await asked.send({**unchanged, "token": token}) == (200, {"again": True})
    await asked.answer(survey, token)
    token = await asked.want()
    assert await asked.send({**unchanged, "token": token}) == (200, {"again": False})
    standing, kept = await asked.shown()
    assert (standing.token, standing.why_unknown, kept) == (token, None, survey)


async def test_another_epoch_or_question_or_a_fenced_host_is_refused(asked: Asked) -> None:
    survey, token = a_survey(), await asked.want()
    status, told = await asked.answer(survey, an_id())
    assert (status, told["code"]) == (409, "survey_not_wanted")
    later = replace(survey, epoch=1)
    status, told = await asked.answer(later, token)
    assert (status, told["code"]) == (409, "stale_epoch")
    fence = {"reason": "no answer", "evidence": "power is off", "force": True}
    path = f"/v1/hosts/{HOST}"
    assert (await asked.api.ask("POST", f"{path}/fence", "admin", json=fence)).status == 200
    status, told = await asked.answer(survey, token)
    assert (status, told["code"]) == (409, "stale_epoch")
    status, told = await asked.answer(later, token)
    assert (status, told["code"]) == (409, "host_fenced")
    answer = await asked.api.get(f"{path}/commands?after=0&epoch=1&wait_s=0", "agent-1")
    assert answer["survey"] is None
    why = {"reason": "repaired"}
    assert (await asked.api.ask("POST", f"{path}/unfence", "admin", json=why)).status == 200
    status, told = await asked.answer(later, token)
    assert (status, told["code"]) == (409, "host_fenced"), "it owes its leftovers"
    assert (await asked.shown())[1] is None


async def test_only_the_agent_of_the_host_shows_it(asked: Asked) -> None:
    token = await asked.want()
    for who in ("agent-2", "admin", "member"):
        status, _ = await asked.send(whole(a_survey(), token), who)
        assert status == 403
    response = await asked.api.ask("PUT", f"/v1/hosts/{OTHER}/survey", "agent-2", json={})
    assert response.status == 400


UNLABELLED = {"target": "vdz", "source": "/mnt/volume", "volume_id": "a" * 32}
Bent = Callable[[dict[str, Any]], Any]


BENT: list[Bent] = [
    lambda body: body.pop("guests"),
    lambda body: body.pop("secrets"),
    lambda body: body.update(digest="x" * 64),
    lambda body: body.update(token="x"),
    lambda body: body.update(boot_id="a b"),
    lambda body: body.update(epoch=-1),
    lambda body: body.update(blind=["guests", "moon"], why_blind=["", ""]),
    lambda body: body.update(blind=["guests"], why_blind=[]),
    lambda body: body.update(secrets=["no id"]),
    lambda body: body["guests"].append(body["guests"][0]),
    lambda body: body["connections"].append(body["connections"][0]),
    lambda body: body["storage"].append(body["storage"][0]),
    lambda body: body["guests"][0].update(server_id="x"),
    lambda body: body["guests"][0].update(power_state="asleep"),
    lambda body: body["guests"][0]["disks"].append(body["guests"][0]["disks"][0]),
    lambda body: body["guests"][0]["disks"][0].update(serial="x"),
    lambda body: body["guests"][0]["disks"][0].update(live="\x1b[2J"),
    lambda body: body["guests"][0]["disks"][0].update(differs=["a"] * 17),
    lambda body: body["guests"][0]["disks"][0].update(differs=["\x1b"]),
    lambda body: body["guests"][0]["disks"][0].update(source=1),
    lambda body: body["guests"][0]["disks"][0].update(recorded="yes"),
    lambda body: body["guests"][0]["disks"][0].update(size_bytes=-1),
    lambda body: body["guests"][0]["disks"][0].update(device_bytes=2**53),
    lambda body: body["guests"][0].update(unlabelled=[UNLABELLED, UNLABELLED]),
    lambda body: body["guests"][0].update(unlabelled=[{**UNLABELLED, "volume_id": "x"}]),
    lambda body: body["guests"][0].update(unlabelled=[{**UNLABELLED, "target": "\x1b"}]),
    lambda body: body["connections"][0].update(serial="x"),
    lambda body: body["storage"][0].update(kind="\x1b"),
    lambda body: body["storage"][0].update(used=None),
    lambda body: body["storage"][0].update(name="\x00"),
]


async def test_what_no_host_can_show_is_refused_whole(asked: Asked) -> None:
    for number, bend in enumerate(BENT):
        body = whole(a_survey(a_guest(disk())), await asked.want())
        bend(body)
        status, told = await asked.send(body)
        assert (status, told["code"]) == (400, "malformed"), number
        assert (await asked.shown())[1] is None


async def test_texts_are_made_showable_and_cut_and_secrets_are_masked(asked: Asked) -> None:
    odd = a_survey(
        a_guest(disk(source="/dev/\x1b[31mred\u202e")),
        storage=(
            StorageShown(kind="mount", name="x" * 600, recorded=False, used=False),
            StorageShown(kind="loop", name="auth_password=topsecret", recorded=False, used=False),
        ),
        why_blind=("password: topsecret",),
    )
    assert (await asked.answer(odd, await asked.want()))[0] == 200
    _, kept = await asked.shown()
    assert kept is not None
    assert kept.guests[0].disks[0].source == "/dev/\\u001b[31mred\\u202e"
    assert [len(each.name) for each in kept.storage if each.kind == "mount"] == [TEXT_CHARS_MAX]
    assert "topsecret" not in str(kept)
    assert MASK in kept.why_blind[0]


@pytest.mark.parametrize("unlabelled", [None, (), ("vdy", "vdz")], ids=["unseen", "none", "two"])
async def test_disks_without_our_label_are_kept_and_so_is_that_nobody_could_see_them(
    asked: Asked, unlabelled: tuple[str, ...] | None
) -> None:
    told = None
    if unlabelled is not None:
        told = tuple(
            UnlabelledShown(target=target, source=f"/mnt/{target}", volume_id=an_id())
            for target in unlabelled
        )
    guest = replace(a_guest(disk(recorded=False, size_bytes=5)), unlabelled=told)
    assert (await asked.answer(a_survey(guest), await asked.want()))[0] == 200
    _, kept = await asked.shown()
    assert kept is not None
    assert kept.guests == (guest,)


async def test_lists_are_kept_in_order_however_they_come(asked: Asked) -> None:
    survey = a_survey(*(a_guest(disk(), disk(), disk()) for _ in range(3)))
    mixed = replace(
        survey, guests=tuple(replace(g, disks=g.disks[::-1]) for g in survey.guests[::-1])
    )
    assert (await asked.answer(mixed, await asked.want()))[0] == 200
    _, kept = await asked.shown()
    assert kept is not None
    assert [each.server_id for each in kept.guests] == [each.server_id for each in survey.guests]
    for each in kept.guests:
        serials = [one.serial for one in each.disks]
        assert serials == sorted(serials)


async def test_a_large_survey_is_read_in_pieces_and_a_larger_one_refused(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey = a_survey(*(a_guest(*(disk() for _ in range(10))) for _ in range(200)))
    body, token = whole(survey, ""), await asked.want()
    assert len(str(body)) > call.SMALL_BYTES_MAX
    assert (await asked.send({**body, "token": token}))[0] == 200
    _, kept = await asked.shown()
    assert kept is not None
    assert sum(len(each.disks) for each in kept.guests) == 2000
    monkeypatch.setattr(agents, "SURVEY_BYTES_MAX", call.SMALL_BYTES_MAX)
    assert (await asked.send({**body, "token": await asked.want()}))[0] == 413


async def test_more_items_than_there_may_be_are_refused(asked: Asked) -> None:
    for part in set(PARTS) - {"guests"}:
        body = whole(a_survey(), await asked.want())
        body[part] = body[part] * (ITEMS_MAX + 1)
        status, told = await asked.send(body)
        assert (status, told["detail"]) == (
            400,
            f"Expected `array` of length <= {ITEMS_MAX} - at `$.{part}`.",
        )


async def test_more_disks_than_there_may_be_are_refused(asked: Asked) -> None:
    body = whole(a_survey(a_guest(disk())), await asked.want())
    [guest] = body["guests"]
    guest["disks"] = guest["disks"] * (ITEMS_MAX + 1)
    status, told = await asked.send(body)
    assert (status, told["detail"]) == (400, f"'guests' have more than {ITEMS_MAX} disks.")
