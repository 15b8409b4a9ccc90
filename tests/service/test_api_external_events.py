"""POST /os-server-external-events: what Cinder, and others of the cloud, tell of servers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from ledger.nova.cinder_events import EVENTS
from tests.service.api_world import Api


async def tell(api: Api, *events: dict[str, Any]) -> tuple[int, list[tuple[str, int]]]:
    """Cinder's events; the status of the answer, and what was said of each."""
    path = "/v2.1/os-server-external-events"
    answer = await api.ask("POST", path, "cinder", "2.93", json={"events": list(events)})
    told = (await answer.json())["events"]
    return answer.status, [(each["status"], each["code"]) for each in told]


def extended(server: str, volume: str) -> dict[str, Any]:
    return {"name": "volume-extended", "server_uuid": server, "tag": volume}


async def test_a_growth_begins_with_cinders_event_and_shows_in_the_servers_history(
    api: Api,
) -> None:
    server, volume = await api.attached()
    api.cinder.volume(volume).size = 2
    assert await tell(api, extended(server, volume)) == (200, [("completed", 200)])
    answer = await api.ask("GET", f"/v1/operations?server={server}&flow=grow", "operator")
    [operation] = (await answer.json())["operations"]
    assert (operation["volume_ids"], operation["actor"]) == ([volume], "cinder")


async def test_each_event_has_a_code_of_its_own_as_nova_gives_them(api: Api) -> None:
    known, unknown = await api.server(), str(uuid4())
    told = [
        extended(unknown, str(uuid4())),
        {"name": "volume-extended", "server_uuid": known},
        {"name": "power-update", "server_uuid": known},
        {"name": "accelerator-request-bound", "server_uuid": known},
        {"name": "power-update", "server_uuid": known, "tag": "POWER_OFF"},
        {"name": "accelerator-request-bound", "server_uuid": known, "tag": str(uuid4())},
        {"name": "network-changed", "server_uuid": known},
        extended(known, str(uuid4())),  # it has no such volume: nothing to do
        {"name": "volume-reimaged", "server_uuid": known, "tag": str(uuid4())},  # as little
        {"name": "volume-reimaged", "server_uuid": known},
        extended(known, "data"),  # no id of a volume, after others were carried out
    ]
    assert await tell(api, *told) == (
        207,
        [
            ("failed", 404),
            *[("failed", 400)] * 3,  # as Nova's TAG_REQUIRED
            *[("failed", 422)] * 3,  # nothing here hears of these
            *[("completed", 200)] * 3,
            ("failed", 400),
        ],
    )


async def test_an_event_is_known_from_its_microversion_on(api: Api) -> None:
    path = "/v2.1/os-server-external-events"

    async def status(version: tuple[int, int], **event: Any) -> int:
        given = {"server_uuid": str(uuid4()), "tag": "x", **event}
        shown = f"{version[0]}.{version[1]}"
        body = {"events": [given]}
        return (await api.ask("POST", path, "cinder", shown, json=body)).status

    for name, since in EVENTS.items():
        assert await status(since, name=name) == 207, name
        before = (2, since[1] - 1)
        if before >= (2, 1):
            assert await status(before, name=name) == 400, name
    assert await status((2, 104), name="volume-shrunk") == 400
    assert await status((2, 104), name="volume-extended", status="done") == 400
    empty = await api.ask("POST", path, "cinder", "2.104", json={"events": []})
    assert empty.status == 400


async def test_nobody_but_a_service_tells_of_events(api: Api) -> None:
    for who in ("member", "operator"):
        answer = await api.ask("POST", "/v2.1/os-server-external-events", who, json={})
        assert answer.status == 403
