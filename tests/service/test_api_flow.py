"""Which flow: what Cinder's old calls attached, and what its attachment calls did (S1)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.service.api_world import HOST, OTHER, Api, guest

OLD_AGENT = 0


async def old_and_new(api: Api) -> tuple[str, str, str]:
    """A server with a volume attached by the old calls, and one by the new ones."""
    server, old, new = await api.server(), api.volume(), api.volume()
    await api.register(host=OTHER, service_version=OLD_AGENT)
    assert (await api.played(await api.attach(server, old)))["outcome"] == "completed"
    await api.register(host=OTHER)
    assert (await api.played(await api.attach(server, new)))["outcome"] == "completed"
    return server, old, new


async def flows(api: Api, query: str, token: str = "operator") -> list[tuple[str, str]]:
    rows = (await api.get(f"/v1/attachments?{query}", token))["attachments"]
    return [(row["volume_id"], row["flow"]) for row in rows]


async def test_attachments_say_by_which_flow_they_were_made_and_are_listed_by_it(api: Api) -> None:
    server, old, new = await old_and_new(api)
    assert await flows(api, f"server={server}") == [(old, "old"), (new, "new")]
    assert await flows(api, "flow=old") == [(old, "old")]
    assert await flows(api, f"flow=new&host={HOST}") == [(new, "new")]
    assert await flows(api, f"flow=old&server={server}", "reader") == [(old, "old")]
    [row] = (await api.get("/v1/attachments?flow=old"))["attachments"]
    assert (await api.get(f"/v1/attachments/{row['attachment_id']}"))["flow"] == "old"
    assert (await api.ask("GET", "/v1/attachments?flow=legacy")).status == 400


async def test_a_host_says_how_many_attachments_are_of_which_flow(api: Api) -> None:
    await old_and_new(api)
    shown = await api.get(f"/v1/hosts/{HOST}")
    assert (shown["open_attachments"], shown["flows"]) == (2, {"new": 1, "old": 1})
    assert (await api.get(f"/v1/hosts/{OTHER}"))["flows"] == {"new": 0, "old": 0}


async def test_what_was_on_the_old_flow_at_a_moment_stays_so_after_it_is_converted(
    api: Api,
) -> None:
    server, old, new = await old_and_new(api)
    moment = (await api.get("/v1/events?limit=1000"))["events"][-1]["recorded_at"]
    then = moment.replace("+", "%2B")
    converted = await api.ask("POST", f"/v1/servers/{server}/convert")
    assert (await api.played(converted))["outcome"] == "completed"

    assert await flows(api, "flow=old") == []
    assert await flows(api, f"at={then}&flow=old") == [(old, "old")]
    assert await flows(api, f"at={then}&flow=old&host={OTHER}") == []
    assert await flows(api, f"at={then}&host={HOST}") == [(old, "old"), (new, "new")]
    assert await flows(api, f"at={then}&host={HOST}&flow=new") == [(new, "new")]
    assert await flows(api, f"at={then}&volume={old}&flow=old") == [(old, "old")]
    assert await flows(api, f"at={then}&volume={old}&flow=new") == []
    for unbounded in ("", "&flow=new"):
        assert (await api.ask("GET", f"/v1/attachments?at={then}{unbounded}")).status == 400


@pytest.mark.parametrize("silent_now", [False, True], ids=["in-contact", "silent"])
async def test_an_old_agent_that_is_not_fenced_means_the_old_flow(
    api: Api, *, silent_now: bool
) -> None:
    """S1: "only use the new API when all nova-compute nodes have been upgraded"."""
    server, first, second = await api.server(), api.volume(), api.volume()
    await api.register(host=OTHER, service_version=OLD_AGENT)
    if silent_now:
        await api.silent(OTHER)
    await api.played(await api.attach(server, first))
    assert await flows(api, f"volume={first}") == [(first, "old")]

    why = {"reason": "scrapped", "evidence": "out of the rack", "force": True}
    assert (await api.ask("POST", f"/v1/hosts/{OTHER}/fence", json=why)).status == 200
    await api.played(await api.attach(server, second))
    assert await flows(api, f"volume={second}") == [(second, "new")]


async def convert(api: Api, **body: Any) -> Any:
    answer = await api.ask("POST", "/v1/convert", "operator", json=body)
    assert answer.status == 202, await answer.text()
    return await answer.json()


async def test_a_host_and_the_fleet_are_converted_by_pages_each_begun_or_refused(api: Api) -> None:
    servers = sorted(str(uuid4()) for _ in range(3))
    await api.register(*(guest(server_id=id_) for id_ in servers))
    await api.register(host=OTHER, service_version=OLD_AGENT)
    for server in servers[:2]:
        assert (await api.played(await api.attach(server, api.volume())))["outcome"] == "completed"
    await api.register(host=OTHER)
    await api.played(await api.attach(servers[2], api.volume()))
    stopping = await api.act(servers[0], "os-stop")
    assert stopping.status == 202, await stopping.text()

    assert (await convert(api, host=OTHER))["servers"] == []
    first = await convert(api, host=HOST, limit=1)
    [refused] = first["servers"]
    assert (refused["server_id"], refused["operation_id"]) == (servers[0], None)
    assert "operation" in refused["refused"]
    rest = await convert(api, host=HOST, limit=5, after=first["next"])
    [begun] = rest["servers"]
    assert (begun["server_id"], rest["next"]) == (servers[1], None)
    assert (await api.get(f"/v1/operations/{begun['operation_id']}"))["flow"] == "convert"

    assert (await api.played(stopping))["outcome"] == "completed"
    [stopped, *_] = (await convert(api))["servers"]
    assert stopped["server_id"] == servers[0]
    assert stopped["operation_id"], "a server that is stopped is converted as one that runs"
    assert (await api.ask("POST", "/v1/convert", "member", json={})).status == 403
