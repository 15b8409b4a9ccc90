"""os-volume_attachments from request to answer, with a host that does its part."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from handlers.engine.verbs import VERBS, LedgerVerb, RetryPolicy
from ledger.core.steps import attachments
from ledger.core.wakeups import ended_key
from ledger.native import accepting
from ledger.nova import volume_attachments
from tests.service.api_world import NEWEST, SETTINGS, Api, eventually, guest, running_api

OTHER = "00000000-0000-4000-8000-00000000000e"


def path(server: str, volume: str = "") -> str:
    return f"/v2.1/servers/{server}/os-volume_attachments" + (f"/{volume}" if volume else "")


async def message(answer: Any, name: str, code: int) -> str:
    """The text of an error in Nova's form."""
    assert answer.status == code, await answer.text()
    body = await answer.json()
    assert list(body) == [name]
    assert body[name]["code"] == code
    return str(body[name]["message"])


async def test_attach_answers_when_bound_and_does_not_wait_for_the_host(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    answer = await api.attach(server, volume)
    assert answer.status == 200
    assert (await answer.json())["volumeAttachment"]["device"] == "/dev/vdb"
    operation = await api.get(answer.headers["X-Attachment-Ledger-Operation"])
    assert (operation["state"], operation["flow"]) == ("running", "attach")
    assert api.cinder.volume(volume).status == "reserved"
    await api.do_next_command()
    assert (await api.finished(answer))["outcome"] == "completed"


async def test_what_cinder_asks_before_a_user_may_delete_an_attachment_is_true(api: Api) -> None:
    """LP 2004555, CVE-2023-2088."""
    server, volume = await api.attached()
    [row] = api.cinder.attachments_of(volume)
    for who in ("cinder", "member", "reader"):
        shown = await api.get(path(server, volume), who, version="2.89")
        assert shown["volumeAttachment"]["attachment_id"] == row.id


async def test_detach_answers_at_once_and_ends_with_the_host(api: Api) -> None:
    server, volume = await api.attached()
    answer = await api.ask("DELETE", path(server, volume))
    assert (answer.status, await answer.read()) == (202, b"")
    assert await api.get(path(server)) != {"volumeAttachments": []}  # the host has it still
    await api.do_next_command()
    assert (await api.finished(answer))["outcome"] == "completed"
    assert await api.get(path(server)) == {"volumeAttachments": []}
    shown = await api.ask("GET", path(server, volume))
    assert await message(shown, "itemNotFound", 404) == (
        f"Instance {server} is not attached to volume {volume}"
    )


async def test_from_2_101_attach_answers_202_and_nothing(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    answer = await api.attach(server, volume, NEWEST)
    assert (answer.status, await answer.read()) == (202, b"")
    assert "X-Attachment-Ledger-Operation" in answer.headers
    assert [r["volumeId"] for r in (await api.get(path(server)))["volumeAttachments"]] == [volume]


async def test_no_entry_is_shown_before_its_attachment_id_is_known(api: Api) -> None:
    """LP 2160224."""
    server, volume = await api.server(), api.volume()
    api.faults.replace([{"call": "attachment_create", "do": "delay", "seconds": 0.5}])
    attaching = asyncio.create_task(api.attach(server, volume))
    seen = 0
    while not attaching.done():
        rows = (await api.get(path(server), version="2.89"))["volumeAttachments"]
        assert all(row["attachment_id"] for row in rows)
        shown = await api.ask("GET", path(server, volume), version="2.89")
        assert shown.status in {200, 404}
        seen += not rows
    assert seen > 0, "the reservation was too quick to look in between"
    assert (await attaching).status == 200


async def test_an_attach_that_takes_too_long_is_answered_as_accepted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_attachments, "BIND_DEADLINE_S", 0.1)
    server, volume = await api.server(), api.volume()
    api.faults.replace([{"call": "attachment_create", "do": "delay", "seconds": 1.0}])
    answer = await api.attach(server, volume)
    assert answer.status == 202
    assert (await answer.json())["volumeAttachment"]["device"] == "/dev/vdb"
    operation = answer.headers["X-Attachment-Ledger-Operation"]

    async def bound() -> bool:
        return bool((await api.get(path(server)))["volumeAttachments"])

    assert await eventually(bound, "the mapping is bound later")
    assert (await api.get(operation))["state"] == "running"


# ----------------------------------------------------------------------------- refusals


async def test_cinders_refusal_is_answered_in_cinders_words(api: Api) -> None:
    """What only its attachments tell: somebody has it whom the ledger does not know."""
    server, volume = await api.server(), api.volume(status="in-use")
    answer = await api.attach(server, volume)
    assert await message(answer, "badRequest", 400) == (
        f"Invalid volume: Volume {volume} status must be available or downloading to reserve, "
        "but the current status is in-use."
    )
    assert (await api.get(path(server)))["volumeAttachments"] == []
    answer = await api.attach(server, api.volume())
    assert (await answer.json())["volumeAttachment"]["device"] == "/dev/vdb"  # it is free again


async def test_an_unknown_volume_is_404_and_writes_nothing(api: Api) -> None:
    server, volume = await api.server(), str(uuid4())
    head = await api.head()
    text = await message(await api.attach(server, volume), "itemNotFound", 404)
    assert text == f"Volume {volume} could not be found."
    assert await api.head() == head


async def test_second_attach_of_a_pair_is_400_and_of_another_server_names_the_first(
    api: Api,
) -> None:
    """LP 1741112, LP 1908075: whatever Cinder's status says."""
    server, volume = await api.attached()
    text = await message(await api.attach(server, volume), "badRequest", 400)
    assert text == f"Invalid volume: volume {volume} already attached"
    other = await api.server()
    api.cinder.volume(volume).status = "available"
    text = await message(await api.attach(other, volume), "badRequest", 400)
    assert text == f"Invalid volume: volume {volume} is already attached to instances: {server}"


async def test_of_two_attaches_at_once_exactly_one_is_accepted(api: Api) -> None:
    """LP 1937375."""
    server, volume = await api.server(), api.volume()
    answers = await asyncio.gather(*(api.attach(server, volume) for _ in range(4)))
    assert all(answer.status in {400, 409} for answer in answers if answer.status != 200)
    assert [answer.status for answer in answers].count(200) == 1
    assert len(api.cinder.attachments_of(volume)) == 1


async def test_detach_during_an_attach_is_409_naming_the_operation(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "DELETE_WAIT_S", 0.0)
    server, volume = await api.server(), api.volume()
    attach = await api.attach(server, volume)
    answer = await api.ask("DELETE", path(server, volume))
    operation = attach.headers["X-Attachment-Ledger-Operation"].rpartition("/")[2]
    assert operation in await message(answer, "conflictingRequest", 409)


async def test_a_detach_just_before_the_attach_ends_waits_for_its_end(api: Api) -> None:
    """Cinder says in-use a moment earlier than we are done; clients go by that."""
    server, volume = await api.server(), api.volume()
    await api.attach(server, volume)
    [command] = await api.commands()
    *steps, last = [step["name"] for step in command["steps"]]
    for step in steps:
        await api.report(command, step)
    detach = asyncio.create_task(api.ask("DELETE", path(server, volume)))
    waiting = ended_key(command["operation_id"])
    async with asyncio.timeout(10):
        while waiting not in api.components.wakeups._watches:  # noqa: ASYNC110 - as it is asked
            await asyncio.sleep(0.005)
    await api.report(command, last)
    assert (await detach).status == 202


async def test_a_silent_host_gets_no_new_work(api: Api) -> None:
    """LP 1909120."""
    server, volume = await api.attached()
    await api.silent()
    head = await api.head()
    for answer in (
        await api.ask("DELETE", path(server, volume)),
        await api.attach(server, api.volume()),
    ):
        text = await message(answer, "conflictingRequest", 409)
        assert text.startswith("Service is unavailable at this time.")
    assert await api.head() == head


@pytest.mark.parametrize(
    ("fields", "version", "status", "text"),
    [
        ({"device": "banana"}, "2.89", 400, "The supplied device path (banana) is invalid."),
        ({"device": "/dev/vda"}, "2.89", 409, "The supplied device path (/dev/vda) is in use."),
    ],
)
async def test_device_names_are_checked_as_nova_does(
    api: Api, fields: dict[str, Any], version: str, status: int, text: str
) -> None:
    server = await api.server(devices=["vda"])
    answer = await api.attach(server, api.volume(), version, **fields)
    assert answer.status == status
    [error] = (await answer.json()).values()
    assert error["message"] == text


async def test_multiattach_needs_2_60(api: Api) -> None:
    server, volume = await api.server(), api.volume(multiattach=True)
    text = await message(await api.attach(server, volume, "2.59"), "badRequest", 400)
    assert text == (
        "Multiattach volumes are only supported starting with compute API version 2.60."
    )
    assert (await api.attach(server, volume, "2.60")).status == 200


async def test_vm_state_forbids_in_novas_words(api: Api) -> None:
    server = await api.server(power_state="nostate")
    asked = {
        "attach_volume": await api.attach(server, api.volume()),
        "detach_volume": await api.ask("DELETE", path(server, api.volume())),
    }
    for action, answer in asked.items():
        text = await message(answer, "conflictingRequest", 409)
        assert text == f"Cannot '{action}' instance {server} while it is in vm_state building"


@pytest.mark.parametrize(
    ("status", "name", "text"),
    [
        (400, "badRequest", "Invalid volume"),
        (403, "forbidden", "Over quota"),
        (404, "itemNotFound", "No such volume"),  # it was deleted since it was asked for
    ],
)
async def test_the_first_error_is_the_answer_when_the_reservation_fails(
    api: Api, status: int, name: str, text: str
) -> None:
    """LP 1812969: not the one of cleaning up."""
    server, volume = await api.server(), api.volume()
    rule = {"call": "attachment_create", "do": "fail", "status": status, "message": text}
    api.faults.replace([rule])
    assert await message(await api.attach(server, volume), name, status) == text


@pytest.mark.parametrize("fault", [{"do": "timeout"}, {"do": "fail", "status": 500}])
async def test_a_reservation_that_cinder_never_answers_is_a_503(
    api: Api, fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Cinder is only read; the ledger has tried it, and taken it back."""
    reserve = VERBS[LedgerVerb.ATTACHMENT_RESERVE]
    once = replace(reserve, retry=RetryPolicy(attempts=1))
    monkeypatch.setitem(VERBS, LedgerVerb.ATTACHMENT_RESERVE, once)
    monkeypatch.setattr(attachments, "LATE_S", 0.0)
    server, volume = await api.server(), api.volume()
    api.faults.replace([{"call": "attachment_create", "count": None, **fault}])
    answer = await api.attach(server, volume)
    await message(answer, "serviceUnavailable", 503)
    assert (await api.finished(answer))["outcome"] == "failed"


async def test_what_others_show_by_the_time_of_the_connection_is_a_conflict_and_no_fault(
    api: Api,
) -> None:
    """Accepted before that, it is answered as it would have been refused (0088)."""
    server, volume = await api.server(), api.volume()
    api.faults.replace([{"call": "attachment_create", "do": "delay", "seconds": 1.0}])
    attaching = asyncio.create_task(api.attach(server, volume))

    async def accepted() -> bool:
        return bool((await api.get("/v1/operations"))["operations"])

    assert await eventually(accepted, "the attach is accepted")
    await api.register(guest(server_id=server), host="compute-2")
    answer = await attaching
    text = await message(answer, "conflictingRequest", 409)
    assert "its guest (running) on host compute-2" in text
    assert (await api.finished(answer))["state"] == "parked", "nothing is freed while they show it"
    assert api.cinder.volumes[volume].status == "reserved"


# -------------------------------------------------------------------------- idempotency


async def test_a_repeated_key_repeats_the_answer_and_does_nothing(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    key = {"Idempotency-Key": "once"}
    first = await api.attach(server, volume, headers=key)
    head = await api.head()
    again = await api.attach(server, volume, headers=key)
    assert again.status == first.status == 200
    assert await again.json() == await first.json()
    header = "X-Attachment-Ledger-Operation"
    assert again.headers[header] == first.headers[header]
    assert await api.head() == head


async def test_a_key_is_for_one_request_only(api: Api) -> None:
    server, volume = await api.server(), api.volume()
    key = {"Idempotency-Key": "once"}
    assert (await api.attach(server, volume, headers=key)).status == 200
    answer = await api.attach(server, api.volume(), headers=key)
    assert answer.status == 422
    assert "once" in str(await answer.json())


# -------------------------------------------------------------------------------- update


async def test_delete_on_termination_is_changed_from_2_85(api: Api) -> None:
    server, volume = await api.attached()
    body = {"volumeAttachment": {"volumeId": volume, "delete_on_termination": True}}
    answer = await api.ask("PUT", path(server, volume), version="2.85", json=body)
    assert (answer.status, await answer.read()) == (202, b"")
    shown = await api.get(path(server, volume), version="2.85")
    assert shown["volumeAttachment"]["delete_on_termination"] is True
    head = await api.head()
    await api.ask("PUT", path(server, volume), version="2.85", json=body)
    assert await api.head() == head  # saying what is so already is no event


IMMUTABLE: list[tuple[str, str]] = [
    ("device", "/dev/vdz"),
    ("tag", "other"),
    ("id", OTHER),
    ("serverId", OTHER),
]


async def test_everything_else_is_immutable(api: Api) -> None:
    server, volume = await api.attached()
    for name, value in IMMUTABLE:
        body = {"volumeId": volume, "delete_on_termination": True, name: value}
        answer = await api.ask(
            "PUT", path(server, volume), version="2.85", json={"volumeAttachment": body}
        )
        assert await message(answer, "badRequest", 400) == f"The {name} property is not mutable"
        shown = await api.get(path(server, volume), version="2.85")
        assert shown["volumeAttachment"]["delete_on_termination"] is False


async def test_repeating_what_cannot_be_changed_is_no_change(api: Api) -> None:
    server, volume = await api.attached()
    same = (await api.get(path(server, volume), version="2.85"))["volumeAttachment"]
    body = {"volumeAttachment": {**same, "delete_on_termination": True}}
    answer = await api.ask("PUT", path(server, volume), version="2.85", json=body)
    assert answer.status == 202, await answer.text()


async def test_a_user_cannot_swap_volumes_unless_the_settings_say_so(api: Api) -> None:
    """LP 2112187."""
    server, volume = await api.attached()
    head = await api.head()
    for version, wanted in (("2.1", volume), ("2.85", str(uuid4())), ("2.1", str(uuid4()))):
        answer = await api.ask(
            "PUT",
            path(server, volume),
            who="member",
            version=version,
            json={"volumeAttachment": {"volumeId": wanted}},
        )
        assert await message(answer, "conflictingRequest", 409) == (
            f"volume {volume} is not migrating; this API should only be called by Cinder"
        )
    assert await api.head() == head


async def test_cinder_may_swap_and_so_may_users_where_the_settings_say_so(
    database_url: str,
) -> None:
    settings = replace(SETTINGS, swap_by_users=True)
    async with running_api(database_url, settings) as api:
        for who, version in (("cinder", "2.1"), ("admin", "2.85"), ("member", "2.1")):
            server, volume = await api.attached()
            new = api.volume()
            body = {"volumeAttachment": {"volumeId": new}}
            answer = await api.ask("PUT", path(server, volume), who, version, json=body)
            assert answer.status == 202, await answer.text()
            assert await answer.text() == ""
            # Neither attachment may be deleted: one is named, the other refused.
            for step, named, refused in (("copy", volume, new), ("disconnect", new, volume)):
                await api.played(answer, until=step)
                for id_, status in ((named, 200), (refused, 409)):
                    asked = await api.ask("GET", path(server, id_), version="2.89")
                    assert asked.status == status, step
            assert (await api.played(answer))["outcome"] == "completed"
            assert (await api.ask("GET", path(server, new), version="2.89")).status == 200
            assert (await api.ask("GET", path(server, volume), version="2.89")).status == 404


async def test_a_swap_is_refused_if_the_new_volume_cannot_be_reserved(api: Api) -> None:
    """S1: "fail API call if we can't create that attachment"; Cinder may refuse it only then."""
    server, volume = await api.attached()
    new = api.volume()
    api.cinder.volume(volume).migration_status = "migrating"
    api.cinder.volume(new).migration_status = f"target:{volume}"
    api.faults.replace([{"call": "attachment_create", "do": "fail", "status": 400}])
    body = {"volumeAttachment": {"volumeId": new}}
    answer = await api.ask("PUT", path(server, volume), "cinder", "2.1", json=body)
    await message(answer, "badRequest", 400)
    assert (await api.ask("GET", path(server, volume), version="2.88")).status == 200


async def test_what_cannot_be_swapped(api: Api) -> None:
    server, volume = await api.attached()
    api.cinder.volume(volume).migration_status = "migrating"
    head = await api.head()
    for old, new, status, name in (
        (volume, str(uuid4()), 400, "badRequest"),  # in the body: not found is no 404
        (str(uuid4()), api.volume(), 404, "itemNotFound"),
        (volume, api.volume(size=0), 400, "badRequest"),
        (volume, api.volume(multiattach=True), 400, "badRequest"),
        (volume, volume, 400, "badRequest"),
    ):
        body = {"volumeAttachment": {"volumeId": new}}
        answer = await api.ask("PUT", path(server, old), "cinder", "2.1", json=body)
        await message(answer, name, status)
    assert await api.head() == head
