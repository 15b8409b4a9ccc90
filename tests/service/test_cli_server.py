"""Commands that begin operations of servers and attachments: what is asked, what is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from ledger.cli import client
from ledger.cli.servers import server_moves
from ledger.http import microversions
from ledger.native import accepting, schemas, schemas_servers
from ledger.nova import schemas_nova
from ledger.nova.servers import actions
from tests.service.cli_stub import (
    ATTACHMENT,
    OPERATION,
    SERVER,
    VOLUME,
    Run,
    Stub,
    finished,
    operation,
    parked,
    problem,
    refusing,
    running_stub,
)

ACTION = f"POST /v2.1/servers/{SERVER}/action"
MAPPINGS = f"/v2.1/servers/{SERVER}/os-volume_attachments"
IMAGE = "77777777-7777-4777-8777-777777777777"
OTHER = "66666666-6666-4666-8666-666666666666"
SPOKEN = "compute " + microversions.shown(microversions.MAX)


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub() as running:
        running.answers[f"GET /v1/operations/{OPERATION}"] = operation()
        yield running


async def begun(_request: web.Request) -> web.Response:
    return web.Response(status=202, headers=accepting.headers(OPERATION))


def saying(answer: dict[str, Any], status: int = 200) -> Callable[[web.Request], Any]:
    async def say(_request: web.Request) -> web.Response:
        return web.json_response(answer, status=status)

    return say


# --- actions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "body"),
    [
        ("start", {"os-start": None}),
        ("stop", {"os-stop": None}),
        ("pause", {"pause": None}),
        ("unpause", {"unpause": None}),
        ("reboot", {"reboot": {"type": "SOFT"}}),
        ("reboot --hard", {"reboot": {"type": "HARD"}}),
        ("rebuild", {"rebuild": {"imageRef": ""}}),
        (f"rebuild --image {IMAGE}", {"rebuild": {"imageRef": IMAGE}}),
        ("migrate", {"migrate": None}),
        ("migrate --host hv2", {"migrate": {"host": "hv2"}}),
        (
            "migrate --live-migration --host hv2",
            {"os-migrateLive": {"host": "hv2", "block_migration": "auto"}},
        ),
        ("resize --flavor c2.m4096", {"resize": {"flavorRef": "c2.m4096"}}),
        ("resize confirm", {"confirmResize": None}),
        ("resize revert", {"revertResize": None}),
        ("evacuate", {"evacuate": {}}),
        ("evacuate --host hv2", {"evacuate": {"host": "hv2"}}),
        ("shelve", {"shelve": None}),
        ("unshelve", {"unshelve": None}),
        ("unshelve --host hv2", {"unshelve": {"host": "hv2"}}),
    ],
)
def test_each_action_is_asked_for_as_nova_calls_it(
    typed: str, body: dict[str, Any], run: Run, stub: Stub
) -> None:
    [(name, said)] = body.items()
    actions.ACTIONS[name].asked(said, microversions.MAX)  # the service takes it
    stub.answers[ACTION] = begun
    assert run("server", *typed.split(), SERVER) == 0
    assert stub.asked[0].body == body
    assert stub.asked[0].headers["openstack-api-version"] == SPOKEN


def test_every_action_of_the_service_has_its_command() -> None:
    """Shelving offloads at once, so nothing is left for shelveOffload to do."""
    asked = {
        name
        for case in test_each_action_is_asked_for_as_nova_calls_it.pytestmark[0].args[1]
        for name in case[1]
    }
    asked |= {"lock", "unlock", "os-resetState"}  # begin no operation; see below
    assert set(actions.ACTIONS) - asked == {"shelveOffload"}


@pytest.mark.parametrize(
    ("typed", "body"),
    [
        ("lock", {"lock": None}),
        ("lock --reason audit", {"lock": {"locked_reason": "audit"}}),
        ("unlock", {"unlock": None}),
        ("reset-state --state error", {"os-resetState": {"state": "error"}}),
    ],
)
def test_what_is_said_of_a_server_is_shown_in_it(
    typed: str, body: dict[str, Any], run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    [(name, said)] = body.items()
    actions.ACTIONS[name].asked(said, microversions.MAX)
    stub.answers[ACTION] = saying({}, 202)
    stub.answers[f"GET /v2.1/servers/{SERVER}"] = saying({"server": nova_server(1, locked=True)})
    stub.answers[f"GET {MAPPINGS}"] = saying({"volumeAttachments": []})
    assert run("server", *typed.split(), SERVER, "-f", "json") == 0
    assert stub.asked[0].body == body
    assert json.loads(capsys.readouterr().out)["locked"] is True


@pytest.mark.parametrize(
    ("ended", "code"), [(finished(), 0), (finished("failed"), 5), (parked(), 6)]
)
def test_an_action_waits_for_its_operation_if_told_to(
    ended: schemas.OperationShown, code: int, run: Run, stub: Stub
) -> None:
    stub.answers[ACTION] = begun
    stub.answers[f"GET /v1/operations/{OPERATION}"] = [operation(), ended]
    assert run("server", "stop", SERVER, "--wait") == code


def test_an_action_that_is_refused_says_why(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    why = f"Cannot 'pause' instance {SERVER} while it is in vm_state stopped"
    stub.answers[ACTION] = saying({"conflictingRequest": {"code": 409, "message": why}}, 409)
    assert run("server", "pause", SERVER) == 4
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("why", "blamed"),
    [
        ("Can't start instance without a root device volume", False),
        ("Policy doesn't allow migrate to be performed: it needs the role admin.", True),
    ],
)
def test_only_a_policy_is_blamed_on_the_token(
    why: str, blamed: bool, run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[ACTION] = saying({"forbidden": {"code": 403, "message": why}}, 403)
    assert run("server", "start", SERVER) == 4
    assert ("token" in capsys.readouterr().err) is blamed


def test_an_answer_that_names_no_operation_is_not_taken_for_one(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers[ACTION] = saying({})
    assert run("server", "start", SERVER) == 1
    assert "is this the ledger?" in capsys.readouterr().err


# --- servers -------------------------------------------------------------------------------


def nova_server(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"{number:08}-1111-4111-8111-111111111111",
        "name": f"vm-{number}",
        "status": "ACTIVE",
        "tenant_id": "demo",
        "created": "2026-11-20T10:00:00Z",
        "updated": "2026-11-20T10:00:00Z",
        "flavor": {"original_name": "c2.m2048"},
        "OS-EXT-STS:vm_state": "active",
        "OS-EXT-STS:task_state": "migrating",
        "OS-EXT-SRV-ATTR:host": "hv1",
        "os-extended-volumes:volumes_attached": [{"id": VOLUME}],
        **more,
    }


def test_servers_are_listed_over_pages_up_to_the_limit(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"servers_links": [{"rel": "next", "href": f"x?marker={nova_server(2)['id']}"}]}
    stub.answers["GET /v2.1/servers/detail"] = [
        saying({"servers": [nova_server(1), nova_server(2)], **more}),
        saying({"servers": [nova_server(3)], **more}),
    ]
    arguments = ["--limit", "3", "--host", "hv1", "--all-projects"]
    assert run("server", "list", *arguments, "-f", "value", "-c", "Name", "-c", "Task") == 0
    assert capsys.readouterr().out == "vm-1 migrating\nvm-2 migrating\nvm-3 migrating\n"
    first, second = (asked.query for asked in stub.asked)
    assert first == {"limit": "3", "host": "hv1", "all_tenants": "1"}
    assert second == {**first, "limit": "1", "marker": nova_server(2)["id"]}


def test_a_server_is_shown_with_its_volumes_and_its_fault(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = schemas_nova.VolumeAttachment(
        volumeId=VOLUME,
        serverId=SERVER,
        device="/dev/vda",
        tag=None,
        delete_on_termination=True,
        attachment_id=ATTACHMENT,
        boot_index=0,
    )
    server = nova_server(1, fault={"code": 500, "message": "It is parked."})
    stub.answers[f"GET /v2.1/servers/{SERVER}"] = saying({"server": server})
    stub.answers[f"GET {MAPPINGS}"] = saying({"volumeAttachments": [mapping.model_dump()]})
    assert run("server", "show", SERVER) == 0
    shown = capsys.readouterr().out
    assert "It is parked." in shown
    assert f"/dev/vda  {VOLUME}  root  deleted with the server  attachment {ATTACHMENT}" in shown


def test_a_server_is_built_with_volumes_that_are_there_and_that_are_made(
    run: Run, stub: Stub
) -> None:
    stub.answers["POST /v1/servers"] = begun
    arguments = ["vm-1", "--vcpus", "2", "--memory", "2048", "--host", "hv2", "--volume", VOLUME]
    arguments += ["--block-device", f"uuid={OTHER},tag=data"]
    arguments += [
        "--block-device",
        "source_type=blank,volume_size=10,volume_type=fast,delete_on_termination=true",
    ]
    arguments += ["--block-device", f"source_type=snapshot,uuid={OTHER},volume_size=1,boot_index=1"]
    assert run("server", "create", *arguments) == 0
    body = stub.asked[0].body
    assert schemas_servers.Build.model_validate(body, strict=True).host == "hv2"
    assert body["disks"] == [
        {"volume_id": VOLUME, "boot_index": 0},
        {"volume_id": OTHER, "tag": "data"},
        {
            "delete_on_termination": True,
            "create": {"size_gb": 10, "volume_type": "fast"},
        },
        {"boot_index": 1, "create": {"size_gb": 1, "snapshot_id": OTHER}},
    ]


@pytest.mark.parametrize("wrong", ["size=10", "source_type=moon", "volume_size=much"])
def test_a_block_device_that_makes_no_sense_is_a_usage_error(
    wrong: str, run: Run, stub: Stub
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("server", "create", "vm-1", "--block-device", wrong)
    assert ended.value.code == 2
    assert stub.asked == []


def test_a_server_is_deleted_and_the_release_can_be_waited_for(run: Run, stub: Stub) -> None:
    stub.answers[f"DELETE /v2.1/servers/{SERVER}"] = begun
    stub.answers[f"GET /v1/operations/{OPERATION}"] = [operation(), finished()]
    assert run("server", "delete", SERVER, "--wait") == 0


def test_a_deletion_that_waits_for_others_is_accepted_and_followed(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its operation begins at their end; until then there is none to show."""
    stub.answers[f"DELETE /v2.1/servers/{SERVER}"] = begun
    del stub.answers[f"GET /v1/operations/{OPERATION}"]
    assert run("server", "delete", SERVER, "-f", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"server_id": SERVER, "task_state": "deleting"}
    assert run("server", "delete", SERVER, "--wait", "--timeout", "0") == 7
    stub.answers[f"GET /v1/operations/{OPERATION}"] = [missing, operation(), finished()]
    assert run("server", "delete", SERVER, "--wait") == 0
    assert "what is at work on the server comes first" in capsys.readouterr().err


async def missing(_request: web.Request) -> web.Response:
    return problem(404, "not_found", "Operation could not be found.")


# --- migrations and events -----------------------------------------------------------------


def test_aborting_a_migration_follows_its_operation(run: Run, stub: Stub) -> None:
    path = f"/v2.1/servers/{SERVER}/migrations/7"
    stub.answers[f"GET {path}"] = saying({"migration": {"id": 7, "uuid": OPERATION}})
    stub.answers[f"DELETE {path}"] = saying({}, 202)
    stub.answers[f"GET /v1/operations/{OPERATION}"] = finished("cancelled")
    assert run("server", "migration", "abort", SERVER, "7", "--wait") == 5
    assert [asked.method for asked in stub.asked] == ["GET", "DELETE", "GET"]


def test_migrations_are_listed_by_novas_filters(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    migration = {
        "id": 7,
        "uuid": OPERATION,
        "migration_type": "resize",
        "status": "finished",
        "instance_uuid": SERVER,
        "source_compute": "hv1",
        "dest_compute": "hv2",
        "created_at": "2026-11-20T10:00:00.000000",
    }
    stub.answers["GET /v2.1/os-migrations"] = saying({"migrations": [migration]})
    arguments = ["--server", SERVER, "--type", "resize", "--status", "finished"]
    assert run("server", "migration", "list", *arguments, "-f", "value", "-c", "Dest") == 0
    assert capsys.readouterr().out == "hv2\n"
    assert stub.asked[0].query == {
        "instance_uuid": SERVER,
        "migration_type": "resize",
        "status": "finished",
        "limit": "100",
    }


def test_migrations_and_events_are_listed_over_pages_however_short_these_are(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings may have pages of a few rows (limits.page_items_max)."""
    columns = (*server_moves.MIGRATION_COLUMNS.values(), *server_moves.EVENT_COLUMNS.values())

    def page(key: str, name: str, **links: Any) -> Any:
        return saying({key: [{**dict.fromkeys(columns, "-"), "status": name}], **links})

    more = [{"rel": "next", "href": "http://x/y?limit=1&marker=m1"}]
    stub.answers["GET /v2.1/os-migrations"] = [
        page("migrations", "a", migrations_links=more),
        page("migrations", "b"),
    ]
    stub.answers[f"GET /v2.1/servers/{SERVER}/os-instance-actions"] = [
        page("instanceActions", "a", links=more),
        page("instanceActions", "b"),
    ]
    limit, column = ["--limit", "150"], ["-f", "value", "-c", "Start", "-c", "Status"]
    assert run("server", "migration", "list", *limit, *column) == 0
    assert capsys.readouterr().out == "a\nb\n"
    assert run("server", "event", "list", SERVER, *limit, *column) == 0
    assert capsys.readouterr().out == "-\n-\n"
    pages = [{"limit": "100"}, {"limit": "100", "marker": "m1"}]
    assert [asked.query for asked in stub.asked] == pages + pages


def test_events_of_a_server_are_told_with_what_went_wrong(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    step = {"finish_time": "-", "host": "hv1", "event": "compute_guest_stop", "result": "Error"}
    action = {"action": "stop", "events": [{**step, "details": "It does not hear."}]}
    path = f"/v2.1/servers/{SERVER}/os-instance-actions"
    stub.answers[f"GET {path}/req-1"] = saying({"instanceAction": action})
    assert run("server", "event", "show", SERVER, "req-1") == 0
    assert "hv1  compute_guest_stop  Error  It does not hear." in capsys.readouterr().out


# --- attachments ---------------------------------------------------------------------------


def test_a_root_volume_is_attached_as_one(run: Run, stub: Stub) -> None:
    stub.answers[f"POST {MAPPINGS}"] = begun
    assert run("server", "add", "volume", SERVER, VOLUME, "--root", "--tag", "os") == 0
    body = stub.asked[0].body
    assert body == {"volumeAttachment": {"volumeId": VOLUME, "tag": "os", "is_root": True}}
    wanted = schemas_nova.AttachBody.model_validate(body, strict=True).volumeAttachment
    schemas_nova.refuse_newer(wanted, microversions.MAX)
    assert stub.asked[0].headers["openstack-api-version"] == SPOKEN


def test_detach_and_swap_name_the_volume(run: Run, stub: Stub) -> None:
    stub.answers[f"DELETE {MAPPINGS}/{VOLUME}"] = begun
    stub.answers[f"PUT {MAPPINGS}/{VOLUME}"] = begun
    assert run("server", "remove", "volume", SERVER, VOLUME) == 0
    assert run("attachment", "swap", SERVER, VOLUME, OTHER) == 0
    swap = next(asked for asked in stub.asked if asked.method == "PUT")
    assert swap.body == {"volumeAttachment": {"volumeId": OTHER}}


def test_old_attachments_of_a_server_are_converted(run: Run, stub: Stub) -> None:
    stub.answers[f"POST /v1/servers/{SERVER}/convert"] = schemas_servers.Started.model_validate(
        {"server_id": SERVER, "operation_id": OPERATION}
    )
    assert run("attachment", "convert", SERVER) == 0
    going = schemas_servers.OneOfMany.model_validate(
        {"server_id": SERVER, "operation_id": OPERATION}
    )
    refused = schemas_servers.OneOfMany.model_validate(
        {"server_id": OTHER, "refused": "It is resized."}
    )
    stub.answers["POST /v1/convert"] = [
        schemas_servers.ManyBegun.model_validate({"servers": [going], "next": SERVER}),
        schemas_servers.ManyBegun(servers=[refused], next=None),
    ]
    assert run("attachment", "convert", "--host", "hv1") == 4
    assert [(asked.body["host"], asked.body.get("after")) for asked in stub.asked[-2:]] == [
        ("hv1", None),
        ("hv1", SERVER),
    ]
    with pytest.raises(SystemExit):
        run("attachment", "convert", SERVER, "--all")


def test_what_was_begun_before_a_page_without_an_answer_is_told(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    page = {"servers": [{"server_id": SERVER, "operation_id": OPERATION}], "next": SERVER}
    stub.answers["POST /v1/refresh"] = [
        schemas_servers.ManyBegun.model_validate(page),
        refusing(503, "cinder_error", "Cinder answered 500."),
    ]
    assert run("attachment", "refresh", "--all", "-f", "value", "-c", "Operation") == 9
    told = capsys.readouterr()
    assert told.out == f"{OPERATION}\n"
    assert "error: these are not all servers: Cinder answered 500." in told.err
    assert run("attachment", "refresh", "--all") == 1  # nothing was begun
    assert "these are not all" not in capsys.readouterr().err


@pytest.mark.parametrize("whose", [("--all",), ("--server", SERVER)])
def test_what_is_begun_for_many_is_waited_for_as_long_as_that_takes(
    run: Run, stub: Stub, monkeypatch: pytest.MonkeyPatch, whose: tuple[str, ...]
) -> None:
    one = schemas_servers.OneOfMany.model_validate({"server_id": SERVER, "operation_id": OPERATION})
    stub.answers["POST /v1/refresh"] = schemas_servers.ManyBegun(servers=[one], next=None)
    stub.answers[f"POST /v1/servers/{SERVER}/refresh"] = one
    waits, real = list[float](), client.Client._answer

    def answered(*given: Any) -> Any:
        waits.append(given[-1])
        return real(*given)

    monkeypatch.setattr(client.Client, "_answer", answered)
    assert run("attachment", "refresh", *whose) == 0
    assert waits[-1] == client.BEGIN_TIMEOUT_S


def test_a_fleet_is_refreshed_page_by_page_and_the_worst_end_is_the_exit_code(
    run: Run, stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    going = schemas_servers.OneOfMany.model_validate(
        {"server_id": SERVER, "operation_id": OPERATION}
    )
    refused = schemas_servers.OneOfMany.model_validate(
        {"server_id": OTHER, "refused": "It is claimed."}
    )
    stub.answers["POST /v1/refresh"] = [
        schemas_servers.ManyBegun.model_validate({"servers": [going], "next": SERVER}),
        schemas_servers.ManyBegun(servers=[refused], next=None),
    ]
    assert run("attachment", "refresh", "--all", "-f", "json") == 4
    rows = json.loads(capsys.readouterr().out)
    assert [row["Why not"] for row in rows] == [None, "It is claimed."]
    bodies = [asked.body for asked in stub.asked]
    for body in bodies:
        schemas_servers.Many.model_validate(body, strict=True)
    assert [body.get("after") for body in bodies] == [None, SERVER]
    stub.answers[f"GET /v1/operations/{OPERATION}"] = [parked(), finished()]
    stub.answers["POST /v1/refresh"] = schemas_servers.ManyBegun(
        servers=[refused, going, going], next=None
    )
    assert run("attachment", "refresh", "--host", "hv1", "--wait") == 6


def test_a_refresh_is_of_a_server_a_host_or_all(run: Run, stub: Stub) -> None:
    with pytest.raises(SystemExit) as ended:
        run("attachment", "refresh")
    assert ended.value.code == 2
    stub.answers[f"POST /v1/servers/{SERVER}/refresh"] = refusing(409, "claimed", "Claimed.")
    assert run("attachment", "refresh", "--server", SERVER) == 4
