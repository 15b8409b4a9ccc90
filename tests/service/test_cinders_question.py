"""What Cinder asks before a user may delete an attachment is a yes only where that is known.

CVE-2023-2088: Cinder takes a 404, or another attachment's id, for a yes.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from tests.service.api_world import HOST, PROJECT, SETTINGS, Api, eventually, guest, running_api

ASKS = "2.89"


async def asked(api: Api, server: str, volume: str, who: str = "member") -> tuple[int, str]:
    """The status of the answer, and the text in it."""
    path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
    answer = await api.ask("GET", path, who, ASKS)
    [error] = (await answer.json()).values()
    return answer.status, str(error.get("message", ""))


async def in_contact(api: Api) -> None:
    """The contact of the host's agent is written down, as it is once a second."""

    async def seen() -> bool:
        return (await api.get(f"/v1/hosts/{HOST}"))["alive"] is True

    await eventually(seen, "contact written")


@pytest.mark.parametrize("version", ["2.1", "2.88"])
async def test_older_versions_cannot_be_cinder_and_are_answered_as_nova_does(
    api: Api, version: str
) -> None:
    path = f"/v2.1/servers/{uuid4()}/os-volume_attachments/{uuid4()}"
    assert (await api.ask("GET", path, "member", version)).status == 404


async def test_a_server_that_is_not_known_may_run_elsewhere(api: Api) -> None:
    status, text = await asked(api, str(uuid4()), str(uuid4()))
    assert status == 409
    assert "does not know instance" in text


async def test_a_server_of_another_project_is_no_yes_to_the_volumes_owner(api: Api) -> None:
    """The question comes with the token of whoever wants to delete the attachment."""
    server, volume = await api.attached()
    assert (await asked(api, server, volume, "stranger"))[0] == 409
    assert "does not know instance" in (await asked(api, server, volume, "stranger"))[1]


async def test_a_volume_that_is_not_in_the_guest_may_be_let_go(api: Api) -> None:
    other = str(uuid4())
    shown = guest(PROJECT, devices=["vda", "vdb"], volumes=[other])
    await api.register(shown)
    await in_contact(api)
    assert (await asked(api, shown["server_id"], str(uuid4())))[0] == 404


async def test_a_volume_that_a_host_shows_in_a_guest_is_in_use_whoever_put_it_there(
    api: Api,
) -> None:
    volume = str(uuid4())
    shown = guest(PROJECT, devices=["vda", "vdb"], volumes=[volume])
    await api.register(shown)
    await in_contact(api)
    status, text = await asked(api, shown["server_id"], volume)
    assert (status, "nothing here attached" in text) == (409, True)

    await api.register({**shown, "devices": ["vda"], "volumes": []})
    assert (await asked(api, shown["server_id"], volume))[0] == 404


async def test_what_a_silent_host_has_is_not_known(api: Api) -> None:
    server, _ = await api.attached()
    await in_contact(api)
    assert (await asked(api, server, str(uuid4())))[0] == 404
    await api.silent()
    status, text = await asked(api, server, str(uuid4()))
    assert (status, "is silent" in text) == (409, True)


async def test_a_serial_that_a_swap_left_behind_does_not_hold_the_old_volume(
    database_url: str,
) -> None:
    """A disk keeps the serial it was plugged with; its mapping says what is behind it now."""
    async with running_api(database_url, replace(SETTINGS, swap_by_users=True)) as api:
        server, volume = await api.attached()
        path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
        body = {"volumeAttachment": {"volumeId": api.volume()}}
        answer = await api.ask("PUT", path, "cinder", "2.1", json=body)
        assert (await api.played(answer))["outcome"] == "completed"
        await api.register(guest(PROJECT, server_id=server, devices=["vda"], volumes=[volume]))
        await in_contact(api)
        assert (await asked(api, server, volume))[0] == 404
