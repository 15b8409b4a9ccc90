"""Controllers of high availability drive us by python-novaclient, as they are.

Which calls each makes, in which version, is read from its source: Red Hat's InstanceHA
(infra-operator, instanceha.py), Masakari 22 (masakari/compute/nova.py and host_failure.py), and
fence_compute of ClusterLabs' fence-agents, which Pacemaker runs after the one that cuts the power.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from keystoneauth1 import session, token_endpoint
from novaclient import client, exceptions

from aggregates.host import host_uuid
from ledger.config import Fencing
from tests.service.api_world import HOST, NEWEST, OTHER, SETTINGS, TOKENS, Api, guest, running_api
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
    """A client as the controllers make theirs; its calls block."""
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
    return server, guest(server_id=server, volumes=[volume], devices=["vda"])


@asynccontextmanager
async def calling(what: Any, *args: Any, **kwargs: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """A blocking call of a controller, in a thread of its own."""
    yield asyncio.create_task(asyncio.to_thread(what, *args, **kwargs))


async def test_instance_ha_forces_down_evacuates_and_forces_up(api: Api) -> None:
    server, _ = await guarded(api)
    theirs = nova(api, INSTANCE_HA)
    await asyncio.to_thread(theirs.versions.get_current)
    [failed, _] = await asyncio.to_thread(theirs.services.list, binary="nova-compute")
    assert (failed.host, failed.state, failed.forced_down) == (HOST, "up", False)

    def disabled() -> None:
        theirs.services.force_down(failed.id, True)
        theirs.services.disable_log_reason(failed.id, "instanceha evacuation: now")

    await asyncio.to_thread(disabled)
    [shown] = await asyncio.to_thread(theirs.services.list, host=HOST, binary="nova-compute")
    assert (shown.state, shown.status, shown.forced_down) == ("down", "disabled", True)
    opts = {"host": HOST, "all_tenants": 1}
    [there] = await asyncio.to_thread(theirs.servers.list, search_opts=opts)
    assert (there.id, there.status) == (server, "ACTIVE")

    await asyncio.to_thread(theirs.servers.lock, server, reason="instanceha-evacuation")
    response, _ = await asyncio.to_thread(theirs.servers.evacuate, server=server)
    assert response.status_code == 200
    refused = await asyncio.to_thread(failing, theirs.services.force_down, failed.id, False)
    assert "1 servers are still being evacuated" in str(refused)
    assert isinstance(refused, exceptions.Conflict)
    assert (await host_of(api))["fenced"], "it was refused"
    assert (await api.played(response))["outcome"] == "completed"
    [migration] = await asyncio.to_thread(
        theirs.migrations.list,
        instance_uuid=server,
        migration_type="evacuation",
        changes_since=(datetime.now(UTC) - timedelta(minutes=7)).isoformat(),
        limit="1000",
    )
    assert (migration.status, migration.source_compute) == ("completed", HOST)
    await asyncio.to_thread(theirs.servers.unlock, server)
    moved = await asyncio.to_thread(theirs.servers.get, server)
    assert getattr(moved, "OS-EXT-SRV-ATTR:host") == OTHER

    await asyncio.to_thread(theirs.services.force_down, failed.id, False)
    await asyncio.to_thread(theirs.services.enable, failed.id)
    host = await host_of(api)
    assert (host["fenced"], host["disabled"], host["suspect"]) == (False, False, True)
    await api.register(guest(server_id=server))
    await api.projected()
    assert (await host_of(api))["leftovers"]["guests"] == [server], "it has to let go first"


def failing(call: Any, *args: Any) -> Exception:
    try:
        call(*args)
    except exceptions.ClientException as error:
        return error
    raise AssertionError("it was not refused")
