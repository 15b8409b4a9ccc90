"""Attach and detach through all processes, with crashes of each in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psycopg
import pytest
import requests

from tests.stack import Stack, eventually
from tests.tokens import token_of


def the_server(stack: Stack) -> str:
    return next(iter(stack.servers))


def test_attach_and_detach_with_the_whole_history(ready: Stack) -> None:
    server, volume = the_server(ready), ready.add_volume()
    answer = ready.attach(server, volume)
    assert answer.status_code == 200
    assert answer.json()["volumeAttachment"]["volumeId"] == volume
    assert ready.finished(ready.operation_of(answer))["outcome"] == "completed"
    assert ready.cinder.model.volume(volume).status == "in-use"
    assert ready.disks(server) == {volume: ("vdb", "vdb")}
    ready.check_host()

    answer = ready.detach(server, volume)
    assert answer.status_code == 202
    assert ready.finished(ready.operation_of(answer))["outcome"] == "completed"
    assert ready.cinder.model.volume(volume).status == "available"
    assert ready.cinder.model.attachments_of(volume) == []
    assert ready.disks(server) == {}
    ready.check_host()

    topics = ready.history(volume)
    story = [
        "Attachment.AttachmentCreated",
        "BlockDeviceMapping.MappingCreated",
        "Attachment.ConnectorUpdated",
        "Attachment.Connected",
        "BlockDeviceMapping.DevicePlugged",
        "Attachment.Completed",
        "BlockDeviceMapping.DeviceUnplugged",
        "Attachment.Disconnected",
        "Attachment.Deleted",
        "BlockDeviceMapping.MappingEnded",
    ]
    assert [topic for topic in topics if topic in story] == story

    numbers = ready.get("/metrics").text
    for counted in (
        'ledger_call_seconds_count{neighbour="cinder",outcome="2xx"}',
        'ledger_step_seconds_count{flow="attach",step="connect"} 1.0',
        'ledger_step_seconds_count{flow="detach",step="unplug"} 1.0',
        'ledger_ready{check="cinder"} 1.0',
    ):
        assert counted in numbers


def test_an_agent_killed_in_the_middle_of_an_attach_loses_nothing(ready: Stack) -> None:
    server, volume = the_server(ready), ready.add_volume()
    ready.set_agent_faults({"call": "guests.plug", "do": "crash_after"})
    operation = ready.operation_of(ready.attach(server, volume))
    eventually(ready.agents["compute-1"].died, "the agent dies")
    assert ready.get(f"/v1/operations/{operation}").json()["state"] == "running"
    ready.start_agent()
    assert ready.finished(operation)["outcome"] == "completed"
    assert ready.disks(server) == {volume: ("vdb", "vdb")}
    assert ready.cinder.model.volume(volume).status == "in-use"
    ready.check_host()


@pytest.mark.parametrize(
    "call",
    ["attachment_create", "attachment_update", "attachment_complete", "attachment_delete"],
)
def test_a_service_killed_while_cinder_works_loses_nothing(ready: Stack, call: str) -> None:
    """Cinder is slow at one call; the service dies meanwhile, and comes back."""
    server, volume = the_server(ready), ready.add_volume()
    detaching = call == "attachment_delete"
    if detaching:
        ready.finished(ready.operation_of(ready.attach(server, volume)))
    ready.cinder.faults.replace([{"call": call, "do": "delay", "seconds": 1.0}])
    before = ready.cinder.model.counts.get(call, 0)
    asking = Thread(target=_ask, args=(ready.detach if detaching else ready.attach, server, volume))
    asking.start()
    eventually(lambda: ready.cinder.model.counts.get(call, 0) > before, f"{call} is called")
    ready.components[0].kill()
    asking.join()
    ready.start_service()
    newest = ready.get(f"/v1/operations?volume={volume}&limit=1").json()["operations"][0]
    assert ready.finished(newest["operation_id"])["outcome"] == "completed"
    wanted = "available" if detaching else "in-use"
    assert ready.cinder.model.volume(volume).status == wanted
    assert len(ready.cinder.model.attachments_of(volume)) == (0 if detaching else 1)
    ready.check_host()


def _ask(request: Callable[[str, str], object], server: str, volume: str) -> None:
    with suppress(requests.ConnectionError):  # the service dies before it answers
        request(server, volume)


def test_two_services_share_the_work_and_show_each_others_answers(ready: Stack) -> None:
    ready.start_service(1)
    server = the_server(ready)
    volumes = [ready.add_volume() for _ in range(6)]
    for number, volume in enumerate(volumes):
        answer = ready.attach(server, volume, number % 2)
        assert answer.status_code == 200
        path = f"/v2.1/servers/{server}/os-volume_attachments/{volume}"
        assert ready.get(path, (number + 1) % 2).status_code == 200, "the other one knows it too"
        assert ready.finished(ready.operation_of(answer))["outcome"] == "completed"
    assert len(ready.disks(server)) == len(volumes)
    for volume in volumes:
        assert len(ready.cinder.model.attachments_of(volume)) == 1
    ready.check_host()


def kept_of(stack: Stack) -> str:
    """All that is stored, logged and told."""
    kept = _database_dump(stack.database_url) + stack.logs() + _lock_files(stack.home)
    return kept + stack.get("/v1/events?limit=1000").text + stack.get("/v1/operations").text


def _database_dump(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT quote_ident(table_name) FROM information_schema.tables"
            " WHERE table_schema = 'public'"
        ).fetchall()
        rows = [
            connection.execute(f"SELECT t::text FROM {table} AS t").fetchall()
            for (table,) in tables
        ]
        bodies = connection.execute("SELECT convert_from(body, 'UTF8') FROM events").fetchall()
    return repr(rows) + repr(bodies)


def _lock_files(home: Path) -> str:
    found = [path for path in home.glob("*-locks/**/*") if path.is_file()]
    assert found, "the agents keep lock files"
    return "".join(f"{path.name}{path.read_text()}" for path in found)


def test_a_user_cannot_delete_the_attachment_of_a_connected_volume(ready: Stack) -> None:
    """CVE-2023-2088: Cinder asks our endpoint, which tells the truth."""
    server, volume = the_server(ready), ready.add_volume()
    ready.finished(ready.operation_of(ready.attach(server, volume)))
    [row] = ready.cinder.model.attachments_of(volume)
    user = {"X-Auth-Token": token_of("admin"), "OpenStack-API-Version": "volume 3.71"}
    url = f"{ready.cinder.endpoint}/attachments/{row.id}"
    assert requests.delete(url, headers=user, timeout=30).status_code == 409
    assert ready.cinder.model.volume(volume).status == "in-use"
