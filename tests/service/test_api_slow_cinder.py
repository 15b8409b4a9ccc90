"""A Cinder that hangs stops nobody else, and is called by its name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from host_agent.shared.contract.ports import VolumeView
from host_agent.shared.platform.lines import left_s
from ledger import rooms
from ledger.http.limits import bulkheads
from ledger.http.limits.bulkheads import BULKHEADS, CINDER_THREADS, CinderRoom
from ledger.http.problem import ApiError
from tests.doubles.direct_cinder import DirectCinder
from tests.service.api_world import HOST, Api, guest, so

#: What a test may wait for without being wrong about anything.
FOR_EVER_S = 1_000.0
#: Far longer than what does not wait for Cinder takes.
SOON_S = 30.0
MANY = 24


class Hanging:
    """Cinder's volume_show, which does not answer before it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self._go_on = threading.Event()

    def volume(self, cinder: DirectCinder, volume_id: str) -> VolumeView:
        self.asked += 1
        self._go_on.wait(FOR_EVER_S)
        return SHOW(cinder, volume_id)

    def go_on(self) -> None:
        self._go_on.set()


SHOW = DirectCinder.volume


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hanging = Hanging()
    monkeypatch.setattr(bulkheads, "CINDER_PLACE_S", FOR_EVER_S)
    monkeypatch.setattr(bulkheads, "CINDER_ASK_S", FOR_EVER_S)
    yield hanging
    hanging.go_on()


def hang(monkeypatch: pytest.MonkeyPatch, hanging: Hanging) -> None:
    def volume(cinder: DirectCinder, volume_id: str) -> VolumeView:
        return hanging.volume(cinder, volume_id)

    monkeypatch.setattr(DirectCinder, "volume", volume)


async def test_reports_fences_and_other_requests_end_while_cinder_hangs(
    api: Api, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every thread that may ask it does, and more requests wait for one."""
    room = api.http.app[BULKHEADS].cinder = CinderRoom(per_project=MANY)
    guests = [guest() for _ in range(MANY + 2)]
    await api.register(*guests)
    *servers, busy, other = [each["server_id"] for each in guests]
    begun = await api.attach(busy, api.volume())
    [command] = await api.commands()
    volumes = [api.volume() for _ in servers]
    hang(monkeypatch, hanging)
    attaches = [
        asyncio.create_task(api.attach(server, volume))
        for server, volume in zip(servers, volumes, strict=True)
    ]
    await so(lambda: hanging.asked == CINDER_THREADS, "as many as may ask Cinder do")
    await so(lambda: room.waiting == MANY - CINDER_THREADS, "the others wait for a place")

    async with asyncio.timeout(SOON_S):
        for step in command["steps"]:
            assert (await api.report(command, step["name"])).status == 200
        assert (await api.finished(begun))["outcome"] == "completed"
        await api.changes(guests[0])
        assert (await api.act(other, "os-stop")).status == 202
        why = {"reason": "dead", "evidence": "power is off", "force": True}
        assert (await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)).status == 200
    assert not any(task.done() for task in attaches)
    hanging.go_on()
    assert {answer.status for answer in await asyncio.gather(*attaches)} == {409}, "it is fenced"


async def test_one_project_does_not_take_cinder_from_the_others(
    api: Api, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = api.http.app[BULKHEADS].cinder = CinderRoom(threads=4, per_project=2)
    ours, theirs = guest(), guest(project_id="another-project")
    await api.register(ours, theirs)
    hang(monkeypatch, hanging)
    mine = [
        asyncio.create_task(api.attach(ours["server_id"], api.volume(), who="member"))
        for _ in range(5)
    ]
    await so(lambda: (hanging.asked, room.waiting) == (2, 3), "two ask, three wait")
    others = asyncio.create_task(
        api.attach(theirs["server_id"], api.volume("another-project"), who="stranger")
    )
    await so(lambda: hanging.asked == 3, "the other project's is let in past them")
    hanging.go_on()
    assert (await others).status == 200
    assert {answer.status for answer in await asyncio.gather(*mine)} == {200}


async def test_who_gets_no_place_is_told_that_the_service_waits_for_cinder(
    api: Api, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulkheads, "CINDER_PLACE_S", 0.05)
    api.http.app[BULKHEADS].cinder = CinderRoom(per_project=1)
    server = await api.server()
    hang(monkeypatch, hanging)
    first = asyncio.create_task(api.attach(server, api.volume()))
    await so(lambda: hanging.asked == 1, "the first asks")
    refused = await api.attach(server, api.volume())
    assert refused.status == 503
    assert int(refused.headers["Retry-After"]) > 0
    assert "waits for Cinder" in (await refused.json())["serviceUnavailable"]["message"]
    hanging.go_on()
    assert (await first).status == 200
    assert (await api.attach(server, api.volume())).status == 200, "places are given back"


async def test_a_slow_cinder_is_not_taken_for_a_silent_host(
    api: Api, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the answer is "no agent of host ... in contact, fence it"."""
    server = await api.server()
    hang(monkeypatch, hanging)
    attach = asyncio.create_task(api.attach(server, api.volume()))
    await so(lambda: hanging.asked == 1, "Cinder is asked")
    # From now on whatever was read before is too old.
    object.__setattr__(api.components.settings, "host_down_after_s", 1e-9)
    hanging.go_on()
    answer = await attach
    assert answer.status == 200, await answer.text()


@pytest.mark.parametrize(
    ("do", "code"), [("timeout", "cinder_timeout"), ("fail", "cinder_unavailable")]
)
async def test_what_cinder_does_not_answer_is_a_503_with_a_time_to_try_again(
    api: Api, do: str, code: str
) -> None:
    fault: dict[str, Any] = {"call": "volume_show", "do": do, "count": None}
    server, volume = await api.server(), api.volume()
    api.faults.replace([fault])
    answer = await api.ask(
        "POST",
        "/v1/servers",
        json={"name": "vm", "host": HOST, "disks": [{"volume_id": volume, "boot_index": 0}]},
    )
    assert (answer.status, (await answer.json())["code"]) == (503, code)
    assert int(answer.headers["Retry-After"]) > 0
    answer = await api.attach(server, volume)
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) > 0


async def test_a_place_that_is_given_up_is_anothers() -> None:
    room, go_on, inside = CinderRoom(threads=1), threading.Event(), threading.Event()

    def ask() -> str:
        inside.set()
        go_on.wait(FOR_EVER_S)
        return "answered"

    first = asyncio.create_task(room.run("a", ask))
    await asyncio.to_thread(inside.wait, 30)
    second, third = (asyncio.create_task(room.run("b", ask)) for _ in range(2))
    await so(lambda: room.waiting == 2, "two wait")
    second.cancel()
    await so(lambda: room.waiting == 1, "one has gone")
    go_on.set()
    assert [await first, await third] == ["answered"] * 2
    room.close()


async def test_attaches_of_a_project_that_waits_too_long_are_refused_at_once_and_nothing_else(
    api: Api, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "LATE_S", 0.0)
    room = api.http.app[BULKHEADS].cinder = CinderRoom(per_project=1)
    ours, theirs = guest(), guest(project_id="another-project")
    await api.register(ours, theirs)
    server, volumes, before = ours["server_id"], [api.volume() for _ in range(3)], await api.head()
    hang(monkeypatch, hanging)
    attaches = [asyncio.create_task(api.attach(server, volumes[0], who="member"))]
    await so(lambda: hanging.asked == 1, "the first asks")
    attaches.append(asyncio.create_task(api.attach(server, volumes[1], who="member")))
    await so(lambda: room.waiting == 1, "the second waits")

    refused = await api.attach(server, volumes[2], who="member")
    assert refused.status == 503
    assert "waits for Cinder" in await refused.text()
    assert 2 <= int(refused.headers["Retry-After"]) <= 10
    assert (hanging.asked, room.waiting, await api.head()) == (1, 1, before)

    assert await api.get(f"/v2.1/servers/{server}/os-volume_attachments", "member")
    stranger = api.attach(theirs["server_id"], api.volume("another-project"), who="stranger")
    attaches.append(asyncio.create_task(stranger))
    await so(lambda: hanging.asked == 2, "another project's is let in")
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volumes[2]}"
    detach = asyncio.create_task(api.ask("DELETE", path, "member", "2.89"))
    await so(lambda: room.waiting == 2, "what frees something waits")
    attaches.append(asyncio.create_task(api.attach(server, api.volume())))
    await so(lambda: room.waiting == 3, "an administrator's waits")
    hanging.go_on()
    assert {answer.status for answer in await asyncio.gather(*attaches)} == {200}
    assert (await detach).status == 404


@pytest.mark.parametrize(
    ("late_s", "place_s", "order"),
    [(60.0, 60.0, "abcd"), (0.0, 60.0, "adcb"), (0.0, None, "abcd")],
    ids=["in turns", "too much", "who waits for ever"],
)
async def test_the_last_goes_in_first_when_the_first_has_waited_for_long(
    late_s: float, place_s: float | None, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "LATE_S", late_s)
    room, go_on, inside = rooms.Room("test", 1, 1), threading.Event(), threading.Event()
    done: list[str] = []

    def ask(name: str) -> None:
        inside.set()
        go_on.wait(FOR_EVER_S)
        done.append(name)

    waiting = []
    for name in "abcd":
        waiting.append(asyncio.create_task(room.let_in("one", partial(ask, name), place_s=place_s)))
        await asyncio.to_thread(inside.wait, SOON_S)
    await so(lambda: room.waiting == 3, "three wait")
    go_on.set()
    await asyncio.gather(*waiting)
    room.close()
    assert "".join(done) == order


async def test_what_asks_cinder_has_an_end_set_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulkheads, "CINDER_ASK_S", 5.0)
    room = CinderRoom()
    left = await room.run("a", left_s)
    assert left is not None
    assert 0 < left <= 5
    with pytest.raises(ApiError):
        await room.run("a", _refused)
    room.close()


def _refused() -> None:
    raise ApiError(400, "refused", "no")
