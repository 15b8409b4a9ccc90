"""What agents say and get: registration, commands, reports."""

from __future__ import annotations

import asyncio
from operator import methodcaller
from typing import Any
from uuid import uuid4

import pytest

from aggregates.base import Actor, EventContext
from host_agent.shared.contract.messages import Command
from host_agent.shared.contract.wire import read
from ledger.core import dispatcher
from tests.service.api_world import HOST, OTHER, SETTINGS, Api, eventually, guest, running_api

SECRET = "AQBqPiJhHqpjGBAAkeytoCephXJ8=="


async def test_registering_shows_guests_and_answers_the_epoch(api: Api) -> None:
    release: dict[str, Any] = {"guests": [], "attachments": [], "unknown": []}
    known = {"host": HOST, "epoch": 0, "fenced": False, "release": release, "again": False}
    answer = await api.register(guest(name="vm-1"))
    assert answer == {**known, "position": await api.head()}
    [server] = (await api.get("/v2.1/servers/detail"))["servers"]
    assert server["name"] == "vm-1"


async def test_registering_again_with_nothing_new_writes_nothing(api: Api) -> None:
    one = guest()
    await api.register(one)
    head = await api.head()
    await api.register(one)
    assert await api.head() == head


async def test_a_look_at_the_host_follows_the_return_of_a_silent_agent(api: Api) -> None:
    await api.register()
    await api.register()
    assert api.looker.asked == []
    await api.silent()
    await api.register()
    assert [(scope, why) for scope, why, _ in api.looker.asked] == [({"host": HOST}, "agent_back")]


async def test_a_guest_that_a_flow_is_just_changing_is_to_be_shown_again(api: Api) -> None:
    one = guest()
    await api.register(one)
    answer = await api.act(one["server_id"], "pause")
    assert (await api.register(one))["again"] is False, "it is as it is known"
    off = {**one, "power_state": "shutdown"}
    assert (await api.register(off))["again"] is True
    assert (await api.played(answer))["outcome"] == "completed"
    assert (await api.register(off))["again"] is False
    [shown] = (await api.get("/v2.1/servers/detail"))["servers"]
    assert shown["status"] == "SHUTOFF"


async def test_changes_of_guests_leave_the_others_as_they_are(api: Api) -> None:
    one, two, three = guest(name="one"), guest(name="two"), guest(name="three")
    await api.register(one, two)
    off = {**one, "power_state": "shutdown"}
    assert await api.changes(off, three) == {"again": False}
    assert await api.changes(gone=[two["server_id"]]) == {"again": False}
    shown = {row["name"]: row for row in (await api.get("/v2.1/servers/detail"))["servers"]}
    states = {name: row["OS-EXT-STS:power_state"] for name, row in shown.items()}
    assert states == {"one": 4, "two": 0, "three": 1}
    head = await api.head()
    assert await api.changes(off, gone=[two["server_id"]]) == {"again": False}
    assert await api.head() == head, "nothing new"


async def test_a_change_that_a_flow_is_just_making_is_to_be_shown_again(api: Api) -> None:
    one = guest()
    await api.register(one)
    await api.act(one["server_id"], "pause")
    assert await api.changes({**one, "power_state": "shutdown"}) == {"again": True}
    assert await api.changes(gone=[one["server_id"]]) == {"again": True}
    assert await api.changes(one) == {"again": False}


async def test_changes_are_of_a_host_that_is_registered_in_this_epoch(api: Api) -> None:
    one = guest()
    path = f"/v1/hosts/{HOST}"
    said = {"epoch": 0, "guests": [one], "gone": []}
    assert (await api.ask("POST", f"{path}/guests", "agent-1", json=said)).status == 409
    await api.register()
    fence = {"reason": "no answer", "evidence": "power is off", "force": True}
    assert (await api.ask("POST", f"{path}/fence", "admin", json=fence)).status == 200
    for epoch in (0, 1):
        answer = await api.ask("POST", f"{path}/guests", "agent-1", json={**said, "epoch": epoch})
        problem = await answer.json()
        assert (answer.status, problem["code"]) == (409, "stale_epoch")
    assert f"of host {HOST} is out of date" in problem["detail"], "its own name is no secret for it"


async def test_a_guest_that_is_not_shown_any_more_is_lost(api: Api) -> None:
    one, two = guest(name="one"), guest(name="two")
    await api.register(one, two)
    await api.register(two)
    shown = {row["name"]: row for row in (await api.get("/v2.1/servers/detail"))["servers"]}
    assert shown["one"]["OS-EXT-STS:power_state"] == 0
    assert shown["one"]["status"] == "ACTIVE"  # losing sight of it is no stop
    assert shown["two"]["OS-EXT-STS:power_state"] == 1


async def test_a_host_cannot_take_a_guest_by_showing_it_unless_its_host_lost_it(api: Api) -> None:
    one = guest()
    path = f"/v2.1/servers/{one['server_id']}"
    await api.register(one)
    await api.register(one, host="compute-2")
    assert (await api.get(path))["server"]["OS-EXT-SRV-ATTR:host"] == "compute-1"
    await api.register()
    await api.register(one, host="compute-2")
    shown = (await api.get(path))["server"]
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:power_state"]) == ("compute-2", 1)


async def test_a_command_is_one_of_the_contract_and_comes_once_per_cursor(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    polling = asyncio.create_task(api.commands(wait_s=20))
    await api.attach(server, volume)
    [wire] = await asyncio.wait_for(polling, 10)
    command = read(wire, Command)
    assert command.lane is not None
    assert (command.lane.server_id, command.lane.volume_id) == (server, volume)
    assert command.lane.attachment_id == api.cinder.attachments_of(volume)[0].id
    assert command.steps[0].name == "update"
    assert await api.commands(after=command.position, wait_s=0) == []
    assert len(await api.commands(wait_s=0)) == 1  # a restarted agent asks from 0


async def test_a_host_with_nothing_to_do_is_heard_of_before_it_counts_as_silent(api: Api) -> None:
    await api.register()
    object.__setattr__(api.components.settings, "host_down_after_s", 1.0)
    assert api.components.settings != SETTINGS, "of this test alone"
    assert await asyncio.wait_for(api.commands(wait_s=20), 10) == []


async def test_a_restarted_agent_is_given_the_steps_that_are_left(api: Api) -> None:
    await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    await api.report(command, "update", outputs={"driver": "rbd"})

    async def steps() -> list[str]:
        [again] = await api.commands(wait_s=0)
        return [step["name"] for step in again["steps"]]

    assert await steps() in (["update", *(rest := ["ready", "connect", "plug", "complete"])], rest)


async def test_reports_move_the_operation_and_a_repeated_one_is_answered_alike(api: Api) -> None:
    await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    for step in ("update", "ready"):
        answer = await api.report(command, step)
        assert (answer.status, await answer.json()) == (
            200,
            {"goes_on": True, "taken": 1, "shown": False},
        )
    head = await api.head()
    again = await api.report(command, "update")
    assert (again.status, await again.json()) == (
        200,
        {"goes_on": True, "taken": 1, "shown": False},
    )
    assert await api.head() == head
    for step in ("connect", "plug"):
        await api.report(command, step)
    answer = await api.report(command, "complete")
    assert await answer.json() == {"goes_on": False, "taken": 1, "shown": False}


def result(step: str, **fields: Any) -> dict[str, Any]:
    return {"step": step, "took_ms": 1, "outputs": {}, "error": None, **fields}


async def test_the_results_of_a_report_are_one_append(api: Api) -> None:
    """And so are true together, or not at all."""
    await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    head = await api.head()
    answer = await api.report(command, "update", more=[result("ready"), result("connect")])
    assert (answer.status, await answer.json()) == (
        200,
        {"goes_on": True, "taken": 3, "shown": False},
    )
    events = (await api.get(f"/v1/events?after={head}"))["events"]
    assert [e["body"]["step"] for e in events if e["topic"] == "Operation.StepSucceeded"] == [
        "update",
        "ready",
        "connect",
    ]
    assert len({e["recorded_at"] for e in events}) == 1
    more = [result("complete")]
    assert (await (await api.report(command, "plug", more=more)).json())["goes_on"] is False


async def test_what_a_report_shows_of_a_guest_is_in_the_same_append_and_taken_once(
    api: Api,
) -> None:
    one = guest()
    await api.register(one)
    volume = api.volume()
    await api.attach(one["server_id"], volume)
    [command] = await api.commands()
    said = {name: command[name] for name in ("operation_id", "run", "epoch")}
    said["results"] = [result(step["name"]) for step in command["steps"]]
    now = {**one, "devices": ["vda", "vdb"], "volumes": [volume], "definition": None}
    said["guest"] = now
    head, path = await api.head(), f"/v1/hosts/{HOST}/reports"
    answer = await api.ask("POST", path, "agent-1", json=said)
    assert await answer.json() == {"goes_on": False, "taken": 5, "shown": True}
    await api.projected()
    events = (await api.get(f"/v1/events?after={head}"))["events"]
    [seen] = [e for e in events if e["topic"] == "Instance.InstanceObserved"]
    assert seen["body"]["devices"] == ["vda", "vdb"]
    assert len({e["recorded_at"] for e in events}) == 1
    head = await api.head()
    answer = await api.ask("POST", path, "agent-1", json=said)
    assert await answer.json() == {"goes_on": False, "taken": 5, "shown": False}
    assert await api.changes(now) == {"again": False}
    await api.projected()
    assert await api.head() == head, "nothing new"


async def test_a_report_goes_without_what_a_flow_is_still_changing(api: Api) -> None:
    one = guest()
    await api.register(one)
    await api.act(one["server_id"], "pause")
    [command] = await api.commands()
    said = {name: command[name] for name in ("operation_id", "run", "epoch")}
    error = {"kind": "retryable", "code": "x", "message": "x"}
    said["results"] = [result(command["steps"][0]["name"], error=error)]
    said["guest"] = {**one, "power_state": "paused"}
    answer = await api.ask("POST", f"/v1/hosts/{HOST}/reports", "agent-1", json=said)
    assert await answer.json() == {"goes_on": False, "taken": 1, "shown": False}


async def test_a_report_of_which_a_part_is_known_adds_the_rest(api: Api) -> None:
    """The answer to the first was lost, and more was done before it was sent again."""
    await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    await api.report(command, "update", more=[result("ready")])
    more = [result(step) for step in ("ready", "connect", "plug", "complete")]
    answer = await api.report(command, "update", more=more)
    assert (answer.status, await answer.json()) == (
        200,
        {"goes_on": False, "taken": 5, "shown": False},
    )
    head = await api.head()
    again = await api.report(command, "update", more=more)
    assert (again.status, await again.json()) == (
        200,
        {"goes_on": False, "taken": 5, "shown": False},
    )
    assert await api.head() == head


async def test_of_a_report_that_is_stale_nothing_is_taken(api: Api) -> None:
    await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    head = await api.head()
    answer = await api.report(command, "update", more=[result("connect")])
    assert (answer.status, (await answer.json())["code"]) == (409, "stale_report")
    assert await api.head() == head


async def test_nothing_is_reported_after_a_failed_step(api: Api) -> None:
    await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    error = {"kind": "final", "code": "no_iscsi", "message": "no portal"}
    answer = await api.report(command, "update", error=error, more=[result("ready")])
    assert (answer.status, (await answer.json())["code"]) == (400, "malformed")
    more = [result("ready", error=error)]
    answer = await api.report(command, "update", more=more)
    assert (answer.status, await answer.json()) == (
        200,
        {"goes_on": False, "taken": 2, "shown": False},
    )


async def test_an_agent_is_told_which_commands_nobody_was_given_before(api: Api) -> None:
    await api.register(shown := guest())
    position = (await api.register(shown))["position"]
    assert position == await api.head()
    await api.attach(shown["server_id"], api.volume())
    [command] = await api.commands()
    assert command["position"] > position
    assert (await api.register(shown))["position"] >= command["position"]


async def test_a_failed_step_ends_the_run(api: Api) -> None:
    await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    error = {"kind": "final", "code": "no_iscsi", "message": "no portal"}
    answer = await api.report(command, "update", error=error)
    assert await answer.json() == {"goes_on": False, "taken": 1, "shown": False}


async def test_a_late_report_is_stale(api: Api) -> None:
    await api.attach(await api.server(), api.volume())
    [command] = await api.commands()
    for wrong in ({"run": 77}, {"step": "plug"}, {"operation_id": guest()["server_id"]}):
        answer = await api.report({**command, **wrong}, str(wrong.get("step", "update")))
        assert answer.status == 409
        assert (await answer.json())["code"] == "stale_report"


async def test_only_facts_of_the_contract_reach_the_log(api: Api) -> None:
    """Decision 0025: a secret in a report has no way into events, answers or errors."""
    _, volume = await api.server(), api.volume()
    answer = await api.attach(_, volume)
    [command] = await api.commands()
    outputs = {"driver": "rbd", "auth_password": SECRET, "connection_info": {"key": SECRET}}
    assert (await api.report(command, "update", outputs=outputs)).status == 200
    error = {"kind": "retryable", "code": "failed", "message": f"password={SECRET} " + "x" * 5000}
    assert (await api.report(command, "ready", error=error)).status == 200
    events = await api.get(f"/v1/volumes/{volume}/history")
    assert SECRET not in str(events)
    operation = await api.get(answer.headers["X-Attachment-Ledger-Operation"])
    assert SECRET not in str(operation)
    [step] = [step for step in operation["steps"] if step["step"] == "ready"]
    assert len(step["error"]["message"]) <= 1000
    [row] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    assert row["driver"] == "rbd"


# ------------------------------------------------------------------- after a fence


async def test_a_host_that_was_fenced_lets_go_before_it_gets_commands(api: Api) -> None:
    server, volume = await api.attached()
    [attachment] = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    await api.register(host=OTHER)
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)
    assert (await api.played(await api.act(server, "evacuate", {})))["outcome"] == "completed"
    await api.ask("POST", f"/v1/hosts/{HOST}/unfence", json={"reason": "repaired"})
    left = [attachment["attachment_id"]]
    said = await api.register(guest(server_id=server), connections=left)
    told = {"guests": [server], "attachments": left}
    assert said["release"] == {**told, "unknown": []}
    shown = await api.get(f"/v1/hosts/{HOST}")
    assert (shown["suspect"], shown["leftovers"]) == (True, told)
    refused = await api.act(server, "os-migrateLive", {"host": None, "block_migration": False})
    assert refused.status in {400, 409}, "a suspect host is not chosen"
    assert (await api.register())["release"] == {"guests": [], "attachments": [], "unknown": []}
    shown = await api.get(f"/v1/hosts/{HOST}")
    assert (shown["suspect"], shown["leftovers"]) == (False, None)


async def test_a_host_is_suspect_while_a_server_is_evacuated_from_it_whatever_it_shows(
    api: Api,
) -> None:
    server, _ = await api.attached()
    await api.register(host=OTHER)
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)
    evacuation = await api.act(server, "evacuate", {})
    await api.played(evacuation, until="spawn")
    await api.ask("POST", f"/v1/hosts/{HOST}/unfence", json={"reason": "it was not dead"})
    assert (await api.register())["again"]
    assert (await api.get(f"/v1/hosts/{HOST}"))["suspect"]
    [spawn] = await api.commands(host=OTHER)
    assert (await api.report(spawn, "spawn", OTHER)).status == 200
    said = await api.register(guest(server_id=server))
    assert said["release"]["guests"] == [server]


@pytest.mark.parametrize("unfenced", [False, True])
async def test_what_was_under_way_ends_though_whoever_fenced_the_host_died_over_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch, unfenced: bool
) -> None:
    """The fence is stored, and no operation was handed over: no host would ever report its end."""
    monkeypatch.setattr(dispatcher, "STRANDED_EVERY_S", 0.05)
    context = EventContext(actor=Actor(name="operator"), request_id="req-f", cause="operator")
    async with running_api(database_url) as api:
        server = await api.server()
        stuck = await api.attach(server, api.volume())
        service = api.components.service
        await asyncio.to_thread(service.fence, HOST, "dead", "power is off", context)
        if unfenced:
            await asyncio.to_thread(
                service.change_host, HOST, methodcaller("unfence", "repaired"), context
            )
            await api.register(guest(server_id=server))
        await api.projected()

        async def let_go() -> bool:
            return all(command["epoch"] == 1 for command in await api.commands(epoch=1, wait_s=0))

        await eventually(let_go, "no command of the epoch that is over is left")
        async with asyncio.timeout(30):
            assert (await api.played(stuck))["outcome"] == "failed"


async def test_a_suspect_host_gets_no_commands(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)
    await api.ask("POST", f"/v1/hosts/{HOST}/unfence", json={"reason": "it was not"})
    await api.attach(server, volume)
    path = f"/v1/hosts/{HOST}/commands?after=0&epoch=1&wait_s=0"
    refused = await api.ask("GET", path, "agent-1")
    assert (refused.status, (await refused.json())["code"]) == (409, "registration_awaited")
    await api.register(guest(server_id=server))
    assert len(await api.commands(epoch=1)) == 1


async def test_a_suspect_host_is_asked_where_a_guest_is_whose_source_is_dead(api: Api) -> None:
    """What it holds is not decided before it has said so: it gets this command, and no other."""
    shown = guest()
    await api.two_hosts(shown)
    move = {"host": OTHER, "block_migration": False}
    migration = await api.act(shown["server_id"], "os-migrateLive", move)
    await api.played(migration, until="migrate")
    why = {"reason": "dead", "evidence": "power is off", "force": True}
    await api.ask("POST", f"/v1/hosts/{OTHER}/fence", json=why)
    await api.ask("POST", f"/v1/hosts/{OTHER}/unfence", json={"reason": "it came up"})
    await api.ask("POST", f"/v1/hosts/{HOST}/fence", json=why)
    said = await api.register(shown, host=OTHER)
    assert (said["release"], said["again"]) == (
        {"guests": [], "attachments": [], "unknown": []},
        True,
    )
    assert (await api.get(f"/v1/hosts/{OTHER}"))["suspect"]
    [command] = await api.commands(epoch=1, host=OTHER)
    assert [step["verb"] for step in command["steps"]] == ["guest_find"]
    answer = await api.report(command, "migrate", OTHER, outputs={"passed": True})
    assert answer.status == 200
    assert (await api.finished(migration))["outcome"] == "completed"
    assert (await api.register(shown, host=OTHER))["release"]["guests"] == []
    assert not (await api.get(f"/v1/hosts/{OTHER}"))["suspect"]


async def test_who_else_has_a_volume_on_the_host_is_told_to_its_agent(api: Api) -> None:
    """S3: the last user disconnects."""
    one, two = guest(), guest()
    await api.register(one, two)
    volume = api.volume(multiattach=True)
    for each in (one, two):
        answer = await api.attach(each["server_id"], volume)
        assert (await api.played(answer))["outcome"] == "completed"
        api.cinder.volume(volume).status = "in-use"  # as the agent would have told Cinder
    rows = (await api.get(f"/v1/attachments?volume={volume}"))["attachments"]
    for row in rows:
        query = f"attachment_id={row['attachment_id']}"
        path = f"/v1/hosts/{HOST}/volumes/{volume}/users?{query}"
        [other] = (await api.get(path, "agent-1"))["servers"]
        assert other != row["server_id"]
        assert (await api.ask("GET", path, "agent-2")).status == 403
        assert (await api.ask("GET", path)).status == 403


async def test_a_definition_that_is_none_is_dropped_and_its_host_registered(api: Api) -> None:
    for text in ("<network/>", "<domain", "<domain><!DOCTYPE a></domain>", "x" * 70_000):
        odd = guest(definition=text)
        await api.register(odd)
        await api.register(host=OTHER)
        refused = await api.act(odd["server_id"], "migrate")
        assert (refused.status, (await refused.json())["conflictingRequest"]["code"]) == (409, 409)


async def test_a_disk_has_one_source_however_deep_a_report_nests(api: Api) -> None:
    await api.register()
    deep = '{"source":' * 950 + "{}" + "}" * 950
    about = f'"operation_id": "{uuid4()}", "run": 1, "epoch": 0'
    outputs = f'"step": "connect", "took_ms": 1, "outputs": {{"disk": {deep}}}, "error": null'
    report = f'{{{about}, "results": [{{{outputs}}}]}}'
    answer = await api.ask(
        "POST",
        f"/v1/hosts/{HOST}/reports",
        "agent-1",
        data=report,
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status, (await answer.json())["code"]) == (409, "stale_report")


async def test_of_a_disk_only_what_the_contract_names_is_kept(api: Api) -> None:
    server = await api.server()
    answer = await api.attach(server, api.volume())
    [command] = await api.commands()
    await api.report(command, "update")
    await api.report(command, "ready")
    source = {
        "type": "network",
        "protocol": "rbd",
        "name": "volumes/v",
        "hosts": [["192.0.2.1", "6789"]],
        "auth": {"user": "cinder", "secret_uuid": "s-1", "secret": SECRET},
        "encryption": {"format": "luks", "secret_uuid": "s-2", "passphrase": SECRET},
        "password": SECRET,
    }
    disk = {"source": source, "format": "raw", "discard": True, "auth_password": SECRET}
    done = await api.report(command, "connect", outputs={"disk": disk})
    assert done.status == 200, await done.text()
    operation = answer.headers["X-Attachment-Ledger-Operation"]
    log = await (await api.ask("GET", f"{operation}/history")).text()
    assert ('"s-1"' in log, '"s-2"' in log, '"luks"' in log) == (True, True, True)
    assert SECRET not in log
    bad = await api.report(command, "plug", outputs={"disk": {"source": {"name": 7}}})
    assert bad.status == 400
