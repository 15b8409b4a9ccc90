"""Controllers of high availability drive us by python-novaclient, as they are.

Which calls each makes, in which version, is read from its source: Red Hat's InstanceHA
(infra-operator, instanceha.py), Masakari 22 (masakari/compute/nova.py and host_failure.py), and
fence_compute of ClusterLabs' fence-agents, which Pacemaker runs after the one that cuts the power.
"""

from __future__ import annotations

import json
from asyncio import to_thread as ask  # their calls block
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from keystoneauth1 import session, token_endpoint
from novaclient import client, exceptions

from aggregates.base import Actor, EventContext
from aggregates.host import host_uuid
from host_agent.shared.cinder.settings import CinderSettings
from ledger import bootstrap
from ledger.config import Fencing, Listen
from tests.service.api_world import (
    HOST,
    NEWEST,
    OTHER,
    SETTINGS,
    TOKENS,
    Api,
    eventually,
    guest,
    running_api,
)
from tests.tokens import token_of

INSTANCE_HA, MASAKARI, FENCE_COMPUTE = "2.73", "2.53", "2.11"
CONTROLLED = replace(SETTINGS, fencing=Fencing(controllers=("user-operator",)))
SERVICE = str(host_uuid(HOST))
FORCE = f"/v2.1/os-services/{SERVICE}"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """The operator's user is a controller's; the admin's is not."""
    async with running_api(database_url, CONTROLLED) as running:
        yield running


def nova(api: Api, version: str, who: str = "operator") -> Any:
    """A client as the controllers make theirs."""
    auth = token_endpoint.Token(str(api.http.make_url("/v2.1")), token_of(who))
    return client.Client(version, session=session.Session(auth=auth))


async def forced(api: Api, down: bool, who: str = "operator", status: int = 200) -> str:
    answer = await api.ask("PUT", FORCE, who, NEWEST, json={"forced_down": down})
    text = await answer.text()
    assert answer.status == status, text
    return text


async def host_of(api: Api, name: str = HOST) -> Any:
    return await api.get(f"/v1/hosts/{name}")


async def guarded(api: Api) -> tuple[str, dict[str, Any]]:
    """A server with a volume on compute-1, beside an empty compute-2."""
    server, volume = await api.attached()
    await api.register(host=OTHER)
    await api.projected()
    return server, guest(server_id=server, volumes=[volume])


async def test_instance_ha_forces_down_evacuates_and_forces_up(api: Api) -> None:
    server, _ = await guarded(api)
    theirs = nova(api, INSTANCE_HA)
    await ask(theirs.versions.get_current)
    [failed, _] = await ask(theirs.services.list, binary="nova-compute")
    assert (failed.host, failed.state, failed.forced_down) == (HOST, "up", False)

    def disabled() -> None:
        theirs.services.force_down(failed.id, True)
        theirs.services.disable_log_reason(failed.id, "instanceha evacuation: now")

    await ask(disabled)
    [shown] = await ask(theirs.services.list, host=HOST, binary="nova-compute")
    assert (shown.state, shown.status, shown.forced_down) == ("down", "disabled", True)
    opts = {"host": HOST, "all_tenants": 1}
    [there] = await ask(theirs.servers.list, search_opts=opts)
    assert (there.id, there.status) == (server, "ACTIVE")

    await ask(theirs.servers.lock, server, reason="instanceha-evacuation")
    response, _ = await ask(theirs.servers.evacuate, server=server)
    assert response.status_code == 200
    refused = await ask(failing, theirs.services.force_down, failed.id, False)
    assert "1 servers are still being evacuated" in str(refused)
    assert isinstance(refused, exceptions.Conflict)
    assert (await host_of(api))["fenced"], "it was refused"
    assert (await api.played(response))["outcome"] == "completed"
    [migration] = await ask(
        theirs.migrations.list,
        instance_uuid=server,
        migration_type="evacuation",
        changes_since=(datetime.now(UTC) - timedelta(minutes=7)).isoformat(),
        limit="1000",
    )
    assert (migration.status, migration.source_compute) == ("done", HOST)
    await ask(theirs.servers.unlock, server)
    moved = await ask(theirs.servers.get, server)
    assert getattr(moved, "OS-EXT-SRV-ATTR:host") == OTHER

    await ask(theirs.services.force_down, failed.id, False)
    await ask(theirs.services.enable, failed.id)
    host = await host_of(api)
    assert (host["fenced"], host["disabled"], host["suspect"]) == (False, False, True)
    await api.register(guest(server_id=server))
    await api.projected()
    assert (await host_of(api))["leftovers"]["guests"] == [server], "it has to let go first"


def failing(call: Any, *args: Any) -> Any:
    """What it is refused by."""
    try:
        call(*args)
    except exceptions.ClientException as error:
        return error
    raise AssertionError("it was not refused")


async def test_masakari_evacuates_from_what_pacemaker_has_fenced(api: Api) -> None:
    server, _ = await guarded(api)
    pacemaker, masakari = nova(api, FENCE_COMPUTE), nova(api, MASAKARI)
    await ask(pacemaker.hypervisors.list)
    await ask(pacemaker.services.force_down, HOST, "nova-compute", force_down=True)
    await ask(pacemaker.services.disable, HOST, "nova-compute")
    [fenced] = await ask(pacemaker.services.list, host=HOST, binary="nova-compute")
    assert (fenced.state, fenced.status) == ("down", "disabled"), "as it asks for: off"

    [failed] = await ask(masakari.services.list, host=HOST, binary="nova-compute")
    await ask(masakari.services.disable_log_reason, failed.id, "Masakari detected host failed.")
    opts = {"host": HOST, "all_tenants": True}
    [there] = await ask(masakari.servers.list, detailed=True, search_opts=opts)
    assert (there.id, there.metadata.get("HA_Enabled"), there.locked) == (server, None, False)
    before = getattr(there, "OS-EXT-STS:vm_state"), getattr(there, "OS-EXT-STS:task_state")
    await ask(masakari.servers.lock, server)
    response, _ = await ask(masakari.servers.evacuate, server, host=None)
    assert (await api.played(response))["outcome"] == "completed"
    moved = await ask(masakari.servers.get, server)
    assert getattr(moved, "OS-EXT-SRV-ATTR:hypervisor_hostname") == OTHER
    assert (getattr(moved, "OS-EXT-STS:vm_state"), None) == before == ("active", None)
    await ask(masakari.servers.unlock, server)

    await ask(pacemaker.services.force_down, HOST, "nova-compute", force_down=False)
    await ask(pacemaker.services.enable, HOST, "nova-compute")
    host = await host_of(api)
    assert (host["fenced"], host["disabled"]) == (False, False)


async def test_masakari_alone_evacuates_nothing(api: Api) -> None:
    """It has no word for a fence: what it disables may run on."""
    server, _ = await guarded(api)
    masakari = nova(api, MASAKARI)
    await ask(masakari.services.disable_log_reason, SERVICE, "Masakari detected host failed.")
    refused = await ask(failing, masakari.servers.evacuate, server)
    assert isinstance(refused, exceptions.BadRequest)
    assert "Fence it first" in str(refused)


async def test_only_who_is_named_is_believed(api: Api) -> None:
    """The admin may fence with evidence, and disable; nobody is believed by what he sends."""
    await guarded(api)
    head = await api.head()
    for down in (True, False):
        assert "fencing.controllers" in await forced(api, down, "admin", 403)
    assert "Policy doesn't allow" in await forced(api, True, "member", 403)
    body = {"host": HOST, "binary": "nova-compute", "forced_down": True}
    old = "/v2.1/os-services/force-down"
    said = {"X-User-Id": "user-operator", "X-Roles": "admin", "X-User-Name": "operator"}
    answer = await api.ask("PUT", old, "admin", "2.11", json=body, headers=said)
    assert (answer.status, "forbidden" in await answer.json()) == (403, True)
    answer = await api.ask("PUT", FORCE, "admin", NEWEST, json={"forced_down": True}, headers=said)
    assert answer.status == 403
    del body["forced_down"]
    answer = await api.ask("PUT", old, "operator", "2.11", json=body)
    assert (answer.status, "forced_down" in await answer.text()) == (400, True)
    assert await api.head() == head


async def test_who_is_called_like_a_controllers_id_is_none(database_url: str) -> None:
    [admin, *others] = TOKENS
    namesake = replace(admin, name="user-operator", user_id="somebody")
    settings = replace(CONTROLLED, tokens=(namesake, *others))
    async with running_api(database_url, settings) as api:
        await api.register()
        await api.projected()
        assert "User user-operator may not declare" in await forced(api, True, "admin", 403)


async def test_a_controllers_word_is_in_the_history_each_time(api: Api) -> None:
    server, _ = await guarded(api)
    for _ in range(2):
        await forced(api, True)
    host = await host_of(api)
    assert (host["epoch"], host["fence_reason"]) == (2, "forced down by operator")
    assert host["fence_evidence"].startswith(
        "word of controller user-operator; the agent was last in contact: 20"
    )
    events = (await api.get(f"/v1/hosts/{HOST}/history"))["events"]
    assert [each["topic"] for each in events[-2:]] == ["Host.Fenced", "Host.Fenced"]
    assert events[-1]["body"]["controller"] == "user-operator"
    assert (await api.played(await api.act(server, "evacuate", {})))["outcome"] == "completed"
    await forced(api, False)
    head = await api.head()
    await forced(api, False)
    assert await api.head() == head, "it is up already"


async def test_an_operators_fence_is_no_controllers_to_end(api: Api) -> None:
    await guarded(api)
    why = {"reason": "smoke", "evidence": "seen", "force": True}
    await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)
    head = await api.head()
    await forced(api, True)
    assert "was fenced by an operator" in await forced(api, False, status=409)
    assert (await api.head(), (await host_of(api))["fenced"]) == (head, True)
    await api.ask("POST", f"/v1/hosts/{HOST}/unfence", json={"reason": "it was steam"})
    await forced(api, True)
    why["evidence"] = "and now it burns"
    await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)
    await forced(api, False, status=409)


async def test_a_host_that_is_alive_is_not_believed_and_its_guests_stay(api: Api) -> None:
    """A controller's word is that the host is off.  An agent that shows the guest running
    afterwards says that it is not, or that the guest came back; somebody has to look again.
    """
    server, shown = await guarded(api)
    attach = await api.attach(server, api.volume())
    [command] = await api.commands()
    await forced(api, True)
    late = await api.report(command, command["steps"][0]["name"])
    assert (late.status, (await late.json())["code"]) == (409, "stale_epoch")
    assert (await api.finished(attach))["error"]["code"] == "host_fenced"
    await api.register(shown)
    await api.projected()
    refused = await api.act(server, "evacuate", {})
    assert refused.status == 409
    assert "does not cover instance" in await refused.text()
    head = await api.head()
    await api.register(shown)
    assert await api.head() == head, "it is shown once"
    await forced(api, True)
    assert (await api.act(server, "evacuate", {})).status == 200, "it was powered off again"


async def test_a_host_that_comes_back_without_its_guests_is_evacuated(api: Api) -> None:
    server, shown = await guarded(api)
    await forced(api, True)
    await api.register({**shown, "power_state": "shutdown"})
    await api.projected()
    answer = await api.act(server, "evacuate", {})
    assert answer.status == 200, await answer.text()


async def test_down_and_disabled_may_be_one_request(api: Api) -> None:
    await guarded(api)
    body = {"forced_down": True, "status": "disabled", "disabled_reason": "dust"}
    answer = await api.ask("PUT", FORCE, "operator", NEWEST, json=body)
    shown = (await answer.json())["service"]
    assert (shown["forced_down"], shown["status"], shown["state"]) == (True, "disabled", "down")


async def test_evacuations_wait_for_the_program_after_the_fence(database_url: str) -> None:
    fencing = replace(CONTROLLED.fencing, hook=("/bin/true",), hook_required=True)
    async with running_api(database_url, replace(CONTROLLED, fencing=fencing)) as api:
        server, _ = await guarded(api)
        unfenced = await api.act(server, "evacuate", {})
        assert (unfenced.status, "Fence it first" in await unfenced.text()) == (400, True)
        await forced(api, True)
        ended = api.components.service.change_host
        context = EventContext(actor=Actor(name="after-fence"), request_id="req-1", cause="fence")
        for code in (None, 1, 0):
            refused = await api.act(server, "evacuate", {})
            assert (refused.status, "fencing.hook" in await refused.text()) == (409, True)
            ran = methodcaller("ran_hook", 1, code, "", 1e9)
            await ask(ended, HOST, ran, context)
        assert (await api.act(server, "evacuate", {})).status == 200


async def test_a_service_runs_the_program_and_its_end_is_in_the_history(
    database_url: str, tmp_path: Path
) -> None:
    """All of it: a running service, and the program of the settings."""
    told = tmp_path / "told"
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat > {told}\necho initiators blocked\n")
    hook.chmod(0o755)
    settings = replace(
        SETTINGS,
        listen=Listen(port=0),
        cinder=CinderSettings(endpoint="http://127.0.0.1:9/v3"),
        fencing=Fencing(hook=(str(hook),)),
    )
    async with bootstrap.running(settings, database_url) as service, ClientSession() as http:

        async def ask_of(method: str, path: str, body: Any = None, who: str = "admin") -> Any:
            headers = {"X-Auth-Token": token_of(who)}
            async with http.request(method, service.url + path, json=body, headers=headers) as got:
                assert got.status == 200, await got.text()
                return await got.json()

        connector = {"initiator": "iqn.1994-05.com.example:1", "ip": "192.0.2.7"}
        agent = {"service_version": 3, "capabilities": {}, "guests": [], "connector": connector}
        await ask_of("PUT", f"/v1/hosts/{HOST}", agent, "agent-1")
        why = {"reason": "smoke", "evidence": "seen", "force": True}
        await ask_of("POST", f"/v1/hosts/{HOST}/fence", why)

        async def ended() -> Any:
            events = (await ask_of("GET", f"/v1/hosts/{HOST}/history"))["events"]
            return events[-1] if events[-1]["topic"] == "Host.HookRan" else None

        last = await eventually(ended, "the program has ended")
    assert (last["actor"], last["body"]["code"]) == ("after-fence", 0)
    assert last["body"]["output"] == "initiators blocked"
    assert json.loads(told.read_text())["connector"] == connector
