"""A database that was put back from an older backup: the real command, service and agents."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from host_agent.shared.contract.messages import TOLD_HEADER
from host_agent.shared.contract.survey import CAPABILITY
from ledger.upkeep import restored
from tests.databases import Databases
from tests.doubles.host_checks import plugged
from tests.service.api_world import HOST, OTHER, Api, guest
from tests.service.test_api_external_events import extended, tell
from tests.stack import DEADLINE_S, Stack, eventually, running_stack
from tests.surveys import survey, whole

WHY = "disk of db1 lost"


# --- over the API --------------------------------------------------------------------------------


async def _restored(api: Api, database_url: str) -> restored.RestoredLog:
    """As the command does beside a service that runs."""
    found = await asyncio.to_thread(restored.mark, database_url, WHY, "root")
    await api.projected()
    return found


async def _code(api: Api, method: str, path: str, **options: Any) -> tuple[int, str]:
    answer = await api.ask(method, path, **options)
    return answer.status, (await answer.json())["code"]


async def _vouch(api: Api, host: str) -> tuple[int, str]:
    answer = await api.ask("POST", f"/v1/hosts/{host}/vouch", json={"reason": "looked at"})
    return answer.status, (await answer.json()).get("code", "")


async def _show(api: Api, host: str, *servers: str) -> None:
    """Its agent registers in the new epoch, is asked for a survey, and answers."""
    who = f"agent-{host[-1]}"
    guests = [guest(server_id=server) for server in servers]
    told = await api.register(*guests, host=host, capabilities={CAPABILITY: True})
    assert told["release"] == {"guests": [], "attachments": [], "unknown": []}
    await api.projected()
    assert await _vouch(api, host) == (409, "host_unseen")
    path = f"/v1/hosts/{host}/commands?after=0&epoch={told['epoch']}&wait_s=0"
    waiting = await api.get(path, who)
    assert waiting["commands"] == []
    shown = whole(survey(boot_id="b1", epoch=told["epoch"]), waiting["survey"]["token"])
    answer = await api.ask("PUT", f"/v1/hosts/{host}/survey", who, json=shown)
    assert answer.status == 200, await answer.text()


async def test_a_host_gets_no_work_until_it_is_vouched_for_and_it_has_to_be_seen(
    api: Api, database_url: str
) -> None:
    shown, volume = guest(), api.volume()
    await api.two_hosts(shown)
    answer = await api.attach(str(shown["server_id"]), volume)
    operation = answer.headers["X-Attachment-Ledger-Operation"]
    [command] = await api.commands()
    head = await api.head()
    found = await _restored(api, database_url)
    assert (found.position, list(found.hosts)) == (head, [HOST, OTHER])
    assert [f"/v1/operations/{id_}" for id_ in found.operations] == [URL(operation).path]
    late = await api.report(command, command["steps"][0]["name"])
    assert (late.status, (await late.json())["code"]) == (409, "stale_epoch")
    parked = await api.get(operation)
    assert parked["state"] == "parked"
    assert {left["error"]["code"] for left in parked["left"]} == {"log_restored"}
    await _show(api, HOST)
    assert await _vouch(api, HOST) == (200, "")
    assert api.looker.asked[-1][:2] == ({"host": HOST}, "vouch")
    retry = {"retry": {"reason": "looked at"}}
    assert await _code(api, "POST", f"{operation}/actions", json=retry) == (409, "host_unvouched")
    await _show(api, OTHER)
    assert await _vouch(api, OTHER) == (200, "")
    assert (await api.ask("POST", f"{operation}/actions", json=retry)).status == 200
    [again] = await api.commands(epoch=(await api.get(f"/v1/hosts/{HOST}"))["epoch"])
    assert again["operation_id"] == command["operation_id"]


async def test_what_begins_by_itself_waits_until_its_host_is_vouched_for(
    api: Api, database_url: str
) -> None:
    """Cinder tells of a volume that has grown; the host is not told before."""
    server, volume = await api.attached()
    await _restored(api, database_url)
    assert await tell(api, extended(server, volume)) == (200, [("completed", 200)])
    [operation] = (await api.get("/v1/operations?state=running"))["operations"]
    epoch = (await api.get(f"/v1/hosts/{HOST}"))["epoch"]
    assert await api.commands(epoch=epoch, wait_s=0) == []
    await _show(api, HOST, server)
    assert await _vouch(api, HOST) == (200, "")
    [command] = await api.commands(epoch=epoch)
    assert (command["operation_id"], command["flow"]) == (operation["operation_id"], "grow")


@pytest.mark.parametrize("query", ["", "&topic=Host.Fenced", "&order=asc"])
async def test_who_is_further_than_the_log_is_told_so(api: Api, query: str) -> None:
    await api.two_hosts()
    head = await api.head()
    beyond = f"/v1/events?after={head + 1}{query}"
    assert await _code(api, "GET", beyond) == (410, "beyond_the_log")
    assert (await api.get(f"/v1/events?after={head}{query}"))["events"] == []
    assert (await api.get(f"/v1/events?after={head + 1}&order=desc"))["events"] != []
    stream = f"/v1/events/stream?after={head + 1}"
    assert await _code(api, "GET", stream) == (410, "beyond_the_log")


async def _registers(api: Api, told: str | None) -> tuple[int, str]:
    headers = {} if told is None else {TOLD_HEADER: told}
    body = {"service_version": 3, "capabilities": {}, "guests": []}
    answer = await api.ask("PUT", f"/v1/hosts/{HOST}", "agent-1", json=body, headers=headers)
    return answer.status, (await answer.json()).get("code", "")


async def test_a_log_that_was_put_back_in_silence_is_found_out_by_an_agent(
    api: Api, database_url: str
) -> None:
    """It was told more than the log knows: an epoch, or a position."""
    assert await _registers(api, "0 99") == (200, ""), "of a new host nothing is known"
    head = await api.head()
    for fine in (None, f"0 {head}"):
        assert await _registers(api, fine) == (200, "")
    await api.server()
    head = await api.head()
    for more in (f"0 {head + 1}", "1 0"):
        assert await _registers(api, more) == (409, "log_restored")
    assert await api.head() == head, "nothing of it was taken, nor that its guest is not in it"
    assert (await _registers(api, "compute-1"))[0] == 400
    await _restored(api, database_url)
    assert await _registers(api, f"5 {head + 100}") == (200, "")


# --- processes -----------------------------------------------------------------------------------


@pytest.fixture
def stack(tmp_path: Path, databases: Databases) -> Iterator[Stack]:
    name = databases.create_migrated()
    with running_stack(tmp_path, databases.url(name)) as running:
        yield running
    databases.drop(name)


def _command(stack: Stack, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "ledger", *words, "-f", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_what_was_done_after_the_backup_is_not_undone(stack: Stack, databases: Databases) -> None:
    """One volume is attached after it, and another detached."""
    server = stack.add_server()
    kept, gone = stack.add_volume(), stack.add_volume()
    stack.start_service()
    for host in stack.hosts:
        stack.start_agent(host)
        stack.wait_for_host(host)
    stack.completed(stack.attach(server, gone))
    stack.agents["compute-1"].kill()
    operation = stack.operation_of(stack.attach(server, kept))
    stack.kill_all()
    backup = databases.create(stack.database_url.split("?")[0].rsplit("/", 1)[1])

    stack.start_service()
    for host in stack.hosts:
        stack.start_agent(host)
    assert stack.finished(operation)["outcome"] == "completed"
    stack.completed(stack.detach(server, gone))
    head = stack.get("/v1/events/checkpoint").json()["position"]
    stack.components[0].kill()
    before = plugged(stack.host())

    stack.database_url = databases.url(backup)
    stack.start_service()
    log = stack.components[0].log
    eventually(lambda: "log_restored" in log.read_text(), "an agent finds it out")
    assert plugged(stack.host()) == before
    stack.components[0].kill()
    where = ("--database-url", stack.database_url)
    planned = _command(stack, "db", "restored", "--dry-run", *where)
    assert planned["operations"] == [operation]
    assert planned == _command(stack, "db", "restored", "--reason", WHY, *where)
    assert planned["position"] < head
    stack.start_service()
    _vouched_for(stack, "compute-2")
    shown = stack.get("/v1/hosts/compute-1").json()
    assert (shown["unvouched"], shown["open_commands"]) == (True, 0)
    assert stack.get(f"/v1/events?after={head}").status_code == 410
    refused = stack.act(server, "os-stop")
    assert (refused.status_code, "host vouch compute-1" in refused.text) == (409, True)
    _vouched_for(stack, "compute-1")
    assert stack.get(f"/v1/operations/{operation}").json()["state"] == "parked"
    assert plugged(stack.host()) == before
    path = stack.url(f"/v1/operations/{operation}/actions")
    assert stack.http.post(path, json={"retry": {"reason": "it is plugged"}}).status_code == 200
    assert stack.finished(operation)["outcome"] == "completed"
    assert plugged(stack.host()) == before


def _vouched_for(stack: Stack, host: str) -> None:
    """As soon as its agent has registered anew, and shown what it has."""
    path, body = stack.url(f"/v1/hosts/{host}/vouch"), {"reason": "looked at"}
    eventually(lambda: stack.http.post(path, json=body).ok, f"{host} is vouched for")
