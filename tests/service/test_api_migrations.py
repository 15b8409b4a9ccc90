"""Nova's migrations and instance actions, told from operations."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.api_world import HOST, OTHER, PROJECT, Api, guest

LIVE = {"host": OTHER, "block_migration": False}


async def migrating(api: Api) -> tuple[str, Any, dict[str, Any]]:
    """A server under live migration, its guest on the way: id, answer, migration."""
    server, _ = await api.attached()
    await api.register(host=OTHER)
    answer = await api.act(server, "os-migrateLive", LIVE)
    await api.played(answer, until="migrate")
    [row] = (await api.get(f"/v2.1/servers/{server}/migrations", version="2.80"))["migrations"]
    return server, answer, row


async def status(api: Api, **query: str) -> list[str]:
    rows = (await api.get("/v2.1/os-migrations", version="2.80", params=query))["migrations"]
    return [row["status"] for row in rows]


async def test_a_live_migration_is_shown_while_it_lasts_with_its_progress(api: Api) -> None:
    server, answer, row = await migrating(api)
    operation = answer.headers["X-Attachment-Ledger-Operation"].rpartition("/")[2]
    assert (row["status"], row["server_uuid"], row["uuid"]) == ("running", server, operation)
    assert (row["source_compute"], row["dest_compute"]) == (HOST, OTHER)
    for host in (HOST, OTHER):
        listed = (await api.get(f"/v1/operations?host={host}&state=running"))["operations"]
        assert [each["operation_id"] for each in listed] == [operation], "of both its hosts"
    assert (row["project_id"], row["user_id"]) == (PROJECT, "user-admin")
    [command] = await api.commands()
    said = {"operation_id": operation, "run": command["run"], "done_bytes": 3, "total_bytes": 10}
    noted = await api.ask("POST", f"/v1/hosts/{HOST}/progress", "agent-1", json=said)
    assert noted.status == 204
    path = f"/v2.1/servers/{server}/migrations/{row['id']}"
    shown = (await api.get(path, version="2.23"))["migration"]
    assert shown["memory_total_bytes"] == 10
    assert (shown["memory_processed_bytes"], shown["memory_remaining_bytes"]) == (3, 7)
    assert "uuid" not in shown
    [far] = (await api.get(f"/v1/operations/{operation}"))["progress"]
    assert (far["done_bytes"], far["total_bytes"]) == (3, 10)
    assert (await api.ask("GET", path, version="2.22")).status == 404
    await api.played(answer)
    assert (await api.ask("GET", path, version="2.23")).status == 404
    assert (await api.get(f"/v2.1/servers/{server}/migrations", version="2.23")) == {
        "migrations": []
    }
    assert await status(api) == ["completed"]


async def test_progress_of_what_the_host_is_not_at_is_dropped(api: Api) -> None:
    _, answer, _ = await migrating(api)
    operation = answer.headers["X-Attachment-Ledger-Operation"]
    [command] = await api.commands()
    said = {"operation_id": command["operation_id"], "run": command["run"] + 7}
    said |= {"done_bytes": 1, "total_bytes": 2}
    assert (await api.ask("POST", f"/v1/hosts/{HOST}/progress", "agent-1", json=said)).status == 204
    said["run"] = command["run"]
    assert (
        await api.ask("POST", f"/v1/hosts/{OTHER}/progress", "agent-2", json=said)
    ).status == 204
    assert (await api.get(operation))["progress"] == []


async def test_an_aborted_live_migration_leaves_the_guest_where_it_is(api: Api) -> None:
    server, answer, row = await migrating(api)
    path = f"/v2.1/servers/{server}/migrations/{row['id']}"
    [before] = await api.commands()
    assert (await api.ask("DELETE", path, version="2.23")).status == 404
    aborted = await api.ask("DELETE", path, version="2.24")
    assert (aborted.status, await aborted.text()) == (202, "")
    [again] = await api.commands(after=before["position"])
    assert (again["run"], again["cancel"]) == (before["run"], True)
    error = {"kind": "final", "code": "cancelled", "message": "the migration was cancelled"}
    await api.report(again, "migrate", error=error)
    assert (await api.played(answer))["outcome"] == "cancelled"
    assert await status(api) == ["cancelled"]
    found = (await api.get(f"/v2.1/servers/{server}"))["server"]
    assert (found["status"], found["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", HOST)
    refused = await api.ask("DELETE", path, version="2.24")
    assert refused.status == 400
    assert "is cancelled. Cannot abort" in (await refused.json())["badRequest"]["message"]


async def test_a_migration_has_failed_when_all_is_undone_and_else_is_in_error(api: Api) -> None:
    """S1: a source that cannot disconnect leaves server and migration in ERROR."""
    server, answer, _ = await migrating(api)
    await fails(api, "migrate", "operation_failed")
    assert (await api.played(answer))["outcome"] == "failed"
    assert await status(api) == ["failed"]
    assert (await api.get(f"/v2.1/servers/{server}"))["server"]["status"] == "ACTIVE"
    answer = await api.act(server, "os-migrateLive", LIVE)
    await api.played(answer, until="disconnect")
    assert (await status(api))[0] == "post-migrating"
    await fails(api, "disconnect", "flush_failed")
    assert (await api.played(answer))["state"] == "parked"
    assert await status(api) == ["error", "failed"]
    assert (await api.get(f"/v2.1/servers/{server}/migrations", version="2.80")) == {
        "migrations": []
    }
    shown = (await api.get(f"/v2.1/servers/{server}"))["server"]
    assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"]) == ("ERROR", OTHER)


async def fails(api: Api, step: str, code: str) -> None:
    """The source's step fails for good."""
    [command] = await api.commands()
    error = {"kind": "final", "code": code, "message": "it will not work"}
    assert (await api.report(command, step, error=error)).status == 200


async def test_what_cannot_be_aborted_or_forced(api: Api) -> None:
    server, _, row = await migrating(api)
    path = f"/v2.1/servers/{server}/migrations"
    assert (await api.ask("DELETE", f"{path}/999999", version="2.24")).status == 404
    assert (await api.ask("DELETE", f"{path}/x", version="2.24")).status == 404
    force = await api.ask(
        "POST", f"{path}/{row['id']}/action", version="2.22", json={"force_complete": None}
    )
    assert force.status == 400
    for method in ("GET", "DELETE"):
        answer = await api.ask(method, f"{path}/{row['id']}", "member", "2.24")
        assert answer.status == 403


async def test_a_resize_is_finished_then_confirmed_or_reverted(api: Api) -> None:
    server, _ = await api.attached()
    await api.register(host=OTHER)
    for settle, during, after in (
        ("revertResize", "reverting", "reverted"),
        ("confirmResize", "confirming", "confirmed"),
    ):
        answer = await api.act(server, "migrate")
        assert (await status(api))[0] == "migrating"
        await api.played(answer)
        assert (await status(api))[0] == "finished"
        answer = await api.act(server, settle)
        assert (await status(api))[0] == during
        await api.played(answer)
        assert (await status(api))[0] == after
    assert await status(api) == ["confirmed", "reverted"]


async def test_migrations_are_filtered_and_paged(api: Api) -> None:
    one, two = guest(), guest()
    await api.two_hosts(one, two)
    for each in (one, two):
        await api.played(await api.act(each["server_id"], "os-migrateLive", LIVE))
    await api.played(await api.act(one["server_id"], "migrate", {"host": HOST}))
    assert await status(api) == ["finished", "completed", "completed"]
    assert await status(api, status="finished") == ["finished"]
    assert await status(api, migration_type="live-migration") == ["completed", "completed"]
    assert await status(api, instance_uuid=two["server_id"]) == ["completed"]
    assert await status(api, instance_uuid="none") == []
    assert len(await status(api, host=OTHER)) == 3
    assert await status(api, host="compute-3") == []
    assert await status(api, **{"changes-since": "2100-01-01T00:00:00"}) == []
    first = await api.get("/v2.1/os-migrations?limit=2", version="2.59")
    [link] = first["migrations_links"]
    second = await api.get("/v2.1" + link["href"].partition("/v2.1")[2], version="2.59")
    seen = [row["id"] for row in first["migrations"] + second["migrations"]]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 3
    for query in ("colour=red", "limit=x", "marker=x", "changes-since=soon"):
        answer = await api.ask("GET", f"/v2.1/os-migrations?{query}", version="2.66")
        assert answer.status == 400, query
    assert (await api.ask("GET", "/v2.1/os-migrations", "member")).status == 403


@pytest.mark.parametrize(
    ("version", "more"), [("2.1", set()), ("2.59", {"migration_type", "uuid"})]
)
async def test_what_each_version_tells_of_a_migration(
    api: Api, version: str, more: set[str]
) -> None:
    _, answer, _ = await migrating(api)
    await api.played(answer)
    [row] = (await api.get("/v2.1/os-migrations", version=version))["migrations"]
    assert set(row) & {"migration_type", "uuid", "user_id"} == more


# ------------------------------------------------------------------------ instance actions


async def actions(api: Api, server: str, version: str = "2.84", **query: str) -> list[Any]:
    path = f"/v2.1/servers/{server}/os-instance-actions"
    return list((await api.get(path, version=version, params=query))["instanceActions"])


async def test_actions_are_told_with_the_results_of_their_steps(api: Api) -> None:
    server, volume = await api.attached()
    detach = await api.ask("DELETE", f"/v2.1/servers/{server}/os-volume_attachments/{volume}")
    [command] = await api.commands()
    error = {"kind": "final", "code": "guest_refused", "message": "the guest keeps it"}
    await api.report(command, "unplug", error=error)
    await api.played(detach)
    newest, oldest = await actions(api, server)
    assert (oldest["action"], oldest["message"]) == ("attach_volume", None)
    assert (newest["action"], newest["message"]) == ("detach_volume", "Error")
    assert newest["request_id"] == detach.headers["X-Openstack-Request-Id"]
    path = f"/v2.1/servers/{server}/os-instance-actions/{newest['request_id']}"
    shown = (await api.get(path, version="2.84"))["instanceAction"]
    wrong = next(event for event in shown["events"] if event["result"] == "Error")
    assert (wrong["event"], wrong["host"]) == ("compute_disk_unplug", HOST)
    assert wrong["details"] == "the guest keeps it"
    path = path.replace(newest["request_id"], oldest["request_id"])
    shown = (await api.get(path, "member", version="2.51"))["instanceAction"]
    assert [event["event"] for event in shown["events"]][::-1] == [
        "ledger_attachment_reserve",
        "ledger_mapping_bind",
        "compute_attachment_update",
        "compute_volume_wait_ready",
        "compute_volume_connect",
        "compute_disk_plug",
        "compute_attachment_complete",
    ]
    assert not {"traceback", "host", "hostId"} & set(shown["events"][0])
    assert "events" not in (await api.get(path, "member", version="2.50"))["instanceAction"]
    assert (await api.ask("GET", path[:-1] + "x")).status == 404


async def test_actions_of_a_deleted_server_can_be_read_from_2_21(api: Api) -> None:
    server, _ = await api.attached()
    await api.played(await api.ask("DELETE", f"/v2.1/servers/{server}"))
    path = f"/v2.1/servers/{server}/os-instance-actions"
    assert (await api.ask("GET", path, version="2.20")).status == 404
    assert [row["action"] for row in await actions(api, server, "2.21")] == [
        "delete",
        "attach_volume",
    ]
    assert (await api.ask("GET", path, "stranger", "2.21")).status == 404


async def test_an_action_can_be_read_while_its_month_is_detached(api: Api) -> None:
    """Page by page: a run may have begun on a page that is gone, and its results be there."""
    server, _ = await api.attached()
    [row] = await actions(api, server)
    path = f"/v2.1/servers/{server}/os-instance-actions/{row['request_id']}"
    whole = (await api.get(path, version="2.84"))["instanceAction"]["events"]
    first = "DELETE FROM events WHERE originator_version = 2 AND topic = 'Operation.RunStarted'"
    async with api.connection() as connection:
        await connection.execute(first)
    left = (await api.get(path, version="2.84"))["instanceAction"]["events"]
    assert 0 < len(left) < len(whole)
    assert left == whole[: len(left)]


async def test_pages_of_actions_end_though_one_request_has_led_to_several(api: Api) -> None:
    server, first = await api.attached()
    second = api.volume()
    assert (await api.played(await api.attach(server, second)))["outcome"] == "completed"
    events = []
    for volume in (first, second):
        api.cinder.volume(volume).size = 2
        events.append({"name": "volume-extended", "server_uuid": server, "tag": volume})
    told = "/v2.1/os-server-external-events"
    assert (await api.ask("POST", told, "cinder", "2.93", json={"events": events})).status == 200
    every = await actions(api, server)
    assert [row["action"] for row in every] == ["grow", "grow", "attach_volume", "attach_volume"]
    assert every[0]["request_id"] == every[1]["request_id"]

    path, found = f"/v2.1/servers/{server}/os-instance-actions?limit=1", []
    for _ in every:
        page = await api.get(path, version="2.84")
        found += page["instanceActions"]
        [link] = page.get("links", [{"href": ""}])
        path = "/v2.1" + link["href"].partition("/v2.1")[2]
    assert (found, link["href"]) == (every, "")
    # By a request's id, as clients without links have it: behind all that it has led to.
    assert await actions(api, server, marker=every[0]["request_id"]) == every[2:]
    [operation, *_] = (await api.get(f"/v1/operations?server={server}"))["operations"]
    other = await api.server()
    for marker in (operation["operation_id"], other):
        path = f"/v2.1/servers/{other}/os-instance-actions?marker={marker}"
        assert (await api.ask("GET", path, version="2.84")).status == 400


async def test_actions_are_paged_from_2_58(api: Api) -> None:
    server, _ = await api.attached()
    for name in ("os-stop", "os-start", "pause"):
        await api.played(await api.act(server, name))
    assert [row["action"] for row in await actions(api, server, "2.57")] == [
        "pause",
        "start",
        "stop",
        "attach_volume",
    ]
    first = await api.get(f"/v2.1/servers/{server}/os-instance-actions?limit=3", version="2.58")
    [link] = first["links"]
    second = await api.get("/v2.1" + link["href"].partition("/v2.1")[2], version="2.58")
    assert [row["action"] for row in second["instanceActions"]] == ["attach_volume"]
    assert await actions(api, server, **{"changes-since": "2100-01-01T00:00:00Z"}) == []
    assert len(await actions(api, server, **{"changes-before": "2100-01-01T00:00:00Z"})) == 4
    assert await actions(api, server, **{"changes-before": "2000-01-01T00:00:00Z"}) == []
    for query in ("colour=red", "marker=none", "limit=x"):
        answer = await api.ask(
            "GET", f"/v2.1/servers/{server}/os-instance-actions?{query}", version="2.58"
        )
        assert answer.status == 400, query
