"""POST /v2.1/servers as Nova has it: what is accepted is built, and shown to clients that poll.

Which bodies are refused is in tests/unit/test_server_create.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from aggregates.host import host_uuid
from host_agent.shared.cinder.settings import CinderSettings
from ledger.trial.cinder.model.backends import MULTI
from tests.doubles.served import Handler, served
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.service.api_world import HOST, OTHER, PROJECT, Api, running_api
from tests.service.keystone_world import settings

PATH = "/v2.1/servers"
NEWEST = "2.104"
BLANK = {"source_type": "blank", "destination_type": "volume", "volume_size": 2}


def boot(volume: str, **more: Any) -> dict[str, Any]:
    """A disk that the server boots from."""
    return {"uuid": volume, "source_type": "volume", "boot_index": 0, **more}


async def created(
    api: Api, *disks: dict[str, Any], who: str | None = "member", path: str = PATH, **more: Any
) -> Any:
    headers, version = dict(more.pop("headers", {})), more.pop("version", NEWEST)
    server = {
        "name": "web",
        "flavorRef": "c2.m1024",
        "imageRef": "",
        "networks": "none",
        "block_device_mapping_v2": list(disks),
        **more,
    }
    return await api.ask("POST", path, who, version, json={"server": server}, headers=headers)


async def refused(answer: Any) -> tuple[int, str]:
    assert not answer.ok, await answer.text()
    [error] = (await answer.json()).values()
    return answer.status, error["message"]


async def test_a_server_is_made_of_volumes_and_polled_until_it_is_active(api: Api) -> None:
    await api.register()
    root, snapped = api.volume(bootable=True), api.volume(size=3)
    snapshot = api.cinder.add_snapshot(snapped)
    answer = await created(
        api,
        boot(root, tag="root"),
        {**BLANK, "delete_on_termination": True, "disk_bus": "scsi"},
        {"uuid": snapshot.id, "source_type": "snapshot"},
        availability_zone="nova",
    )
    assert answer.status == 202, await answer.text()
    made = (await answer.json())["server"]
    assert made.keys() == {"id", "links", "OS-DCF:diskConfig", "security_groups"}
    assert answer.headers["Location"] == made["links"][0]["href"]
    assert answer.headers["Location"].endswith(f"{PATH}/{made['id']}")
    shown = (await api.get(f"{PATH}/{made['id']}", "member", version=NEWEST))["server"]
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("BUILD", "spawning")
    assert (await api.played(answer))["outcome"] == "completed"
    shown = (await api.get(f"{PATH}/{made['id']}", "member", version=NEWEST))["server"]
    assert (shown["status"], shown["name"], shown["tenant_id"]) == ("ACTIVE", "web", PROJECT)
    assert shown["flavor"]["original_name"] == "c2.m1024"
    rows = await api.get(f"{PATH}/{made['id']}/os-volume_attachments", version="2.105")
    volumes = [row.pop("volumeId") for row in rows["volumeAttachments"]]
    assert [
        (row["device"], row["tag"], row["boot_index"], row["delete_on_termination"])
        for row in rows["volumeAttachments"]
    ] == [
        ("/dev/vda", "root", 0, False),
        ("/dev/sdb", None, None, True),
        ("/dev/vdb", None, None, False),
    ]
    assert volumes[0] == root
    sizes = [(made.size, made.project_id) for made in map(api.cinder.volume, volumes[1:])]
    assert sizes == [(2, PROJECT), (3, PROJECT)]


async def test_what_is_to_be_kept_of_a_server_is_shown_and_listed_by(api: Api) -> None:
    await api.register()
    kept: dict[str, Any] = {
        "metadata": {"role": "web"},
        "tags": ["b", "a"],
        "description": "the first",
    }
    answer = await created(api, {**BLANK, "boot_index": 0}, **kept)
    assert answer.status == 202, await answer.text()
    server = (await answer.json())["server"]["id"]
    further: list[dict[str, Any]] = [{"tags": ["a"]}, {}]
    for more in further:
        another = await created(api, {**BLANK, "boot_index": 0}, **more)
        assert another.status == 202, await another.text()
    path = f"{PATH}/{server}"
    shown = (await api.get(path, "member", version=NEWEST))["server"]
    assert {name: shown[name] for name in kept} == kept
    assert (await api.get(f"{path}/metadata", "member")) == {"metadata": {"role": "web"}}
    assert (await api.get(f"{path}/metadata/role", "member")) == {"meta": {"role": "web"}}
    assert (await api.get(f"{path}/tags", "member", version="2.26")) == {"tags": ["b", "a"]}
    for query, number in (
        ("tags=a", 2),
        ("tags=a,b", 1),
        ("tags-any=b,c", 1),
        ("not-tags=a,b", 2),
        ("not-tags-any=b,c", 2),
        ("tags=a&not-tags=b", 1),
        ("tags=", 0),
    ):
        listed = await api.get(f"{PATH}?{query}", "member", version="2.26")
        assert len(listed["servers"]) == number, query
    events = (await api.get(f"/v1/servers/{server}/history", "member"))["events"]
    [defined] = [event for event in events if event["topic"] == "Instance.Defined"]
    assert {name: defined["body"][name] for name in kept} == kept
    for wrong in (
        {"metadata": {"attachment-ledger:shown_by_host": "true"}},
        {"tags": ["a", "a"]},
    ):
        status, _ = await refused(await created(api, {**BLANK, "boot_index": 0}, **wrong))
        assert status == 400, wrong


async def test_a_server_that_cannot_be_built_is_in_error_and_says_why(api: Api) -> None:
    """What `openstack server create --wait` ends with."""
    await api.register()
    answer = await created(api, {**BLANK, "boot_index": 0}, path="/v2.1/os-volumes_boot")
    assert answer.status == 202, await answer.text()
    [command] = await api.commands()
    error = {"kind": "final", "code": "no_connector", "message": "no initiator name"}
    await api.report(command, command["steps"][0]["name"], error=error)
    assert (await api.played(answer))["outcome"] == "failed"
    shown = (await api.get(f"{PATH}/{(await answer.json())['server']['id']}"))["server"]
    assert shown["status"] == "ERROR"
    assert "no initiator name" in shown["fault"]["message"]


@pytest.mark.parametrize("named", [True, False])
async def test_s3_a_volume_that_is_made_for_a_server_is_no_multi_attach_one(
    named: bool,
    api: Api,
) -> None:
    await api.register()
    disk = {**BLANK, "boot_index": 0}
    if named:
        disk["volume_type"] = f"rbd{MULTI}"
    else:
        api.cinder.driver = f"rbd{MULTI}"
    before = set(api.cinder.volumes)
    answer = await created(api, disk)
    assert answer.status == 202, await answer.text()
    assert (await api.played(answer))["outcome"] == "failed"
    path = f"{PATH}/{(await answer.json())['server']['id']}"
    shown = (await api.get(path))["server"]
    assert (shown["status"], "multi-attach" in shown["fault"]["message"]) == ("ERROR", True)
    assert set(api.cinder.volumes) == before, "what was made is deleted"


async def test_what_is_anothers_does_not_exist_for_a_new_server(api: Api) -> None:
    await api.register()
    theirs = api.volume(project_id="another-project", bootable=True)
    snapshot = api.cinder.add_snapshot(theirs).id
    unknown = str(uuid4())
    named = [
        (boot(volume, source_type=kind), volume, kind)
        for kind, volumes in (("volume", (theirs, unknown)), ("snapshot", (snapshot, unknown)))
        for volume in volumes
    ]
    for disk, volume, kind in named:
        for who in ("member", "admin") if volume == unknown else ("member",):
            message = f"{kind.capitalize()} {volume} could not be found."
            expected = (400, f"Block Device Mapping is Invalid: {message}")
            assert await refused(await created(api, disk, who=who)) == expected
    assert (await api.get(PATH))["servers"] == []
    assert api.cinder.attachments_of(theirs) == []


async def test_what_cinder_shows_of_a_source_is_looked_at_first(api: Api) -> None:
    await api.register()
    plain, bootable = api.volume(size=3), api.volume(size=3, bootable=True)
    for source, of_plain, of_bootable, why in (
        ("volume", plain, bootable, "has 3 GiB: leave volume_size out"),
        (
            "snapshot",
            api.cinder.add_snapshot(plain).id,
            api.cinder.add_snapshot(bootable).id,
            "has 3 GiB or more",
        ),
    ):
        answer = await created(api, boot(of_plain, source_type=source))
        assert await refused(answer) == (400, f"Block Device {of_plain} is not bootable.")
        answer = await created(api, boot(of_bootable, source_type=source, volume_size=2))
        status, message = await refused(answer)
        assert (status, why in message) == (400, True)
    assert (await api.get(PATH))["servers"] == []


async def test_a_shared_volume_needs_2_60_and_a_host_that_can_share(api: Api) -> None:
    await api.register(host=HOST, capabilities={"multiattach": False})
    await api.register(host=OTHER)
    shared = api.volume(multiattach=True, bootable=True)
    old = await created(api, boot(shared), version="2.59")
    assert await refused(old) == (
        400,
        "Multiattach volumes are only supported starting with compute API version 2.60.",
    )
    answer = await created(api, boot(shared), version="2.60")
    assert answer.status == 202, await answer.text()
    shown = await api.get(f"{PATH}/{(await answer.json())['server']['id']}")
    assert shown["server"]["OS-EXT-SRV-ATTR:host"] == OTHER


async def test_who_may_names_the_host(api: Api) -> None:
    await api.two_hosts()
    for named in (
        {"availability_zone": f"nova:{OTHER}"},
        {"availability_zone": f":{OTHER}"},
        {"availability_zone": f"nova::{OTHER}"},
        {"availability_zone": f"nova:{OTHER}:{OTHER}"},
        {"host": OTHER},
        {"hypervisor_hostname": OTHER, "host": OTHER},
    ):
        disk = boot(api.volume(bootable=True))
        status, message = await refused(await created(api, disk, **named))
        assert (status, "servers:create:" in message) == (403, True)
        answer = await created(api, disk, who="admin", **named)
        assert answer.status == 202, await answer.text()
        shown = await api.get(f"{PATH}/{(await answer.json())['server']['id']}")
        assert shown["server"]["OS-EXT-SRV-ATTR:host"] == OTHER


async def test_a_place_that_there_is_not_is_refused(api: Api) -> None:
    await api.two_hosts()
    disk = boot(api.volume(bootable=True))
    places: dict[str, dict[str, str]] = {
        "The requested availability zone is not available": {"availability_zone": "elsewhere"},
        "Unable to parse availability_zone": {"availability_zone": "nova:a:b:c"},
        "Compute host nowhere could not be found.": {"availability_zone": "nova:nowhere"},
        "Compute host away could not be found.": {"host": "away"},
        "could not be found.": {"host": HOST, "hypervisor_hostname": OTHER},
        "are mutually exclusive.": {"availability_zone": f":{HOST}", "host": HOST},
    }
    for why, named in places.items():
        status, message = await refused(await created(api, disk, who="admin", **named))
        assert (status, message.endswith(why)) == (400, True), message


async def test_no_server_is_made_where_no_host_takes_one(api: Api) -> None:
    """Nova would make one in ERROR; here nothing is left behind."""
    await api.register()
    root = api.volume(bootable=True)
    disabled = {"status": "disabled", "disabled_reason": "moves"}
    path = f"/v2.1/os-services/{host_uuid(HOST)}"
    assert (await api.ask("PUT", path, version=NEWEST, json=disabled)).status == 200
    status, message = await refused(await created(api, boot(root)))
    assert (status, message) == (
        400,
        "No valid host was found. There are not enough hosts available.",
    )
    status, message = await refused(await created(api, boot(root), who="admin", host=HOST))
    assert status == 400
    assert "moves" in message
    assert (await api.get(PATH))["servers"] == []


async def test_a_request_repeated_with_its_key_makes_one_server(api: Api) -> None:
    await api.register()
    key = {"Idempotency-Key": "web-1"}
    answers = [await created(api, {**BLANK, "boot_index": 0}, headers=key) for _ in range(2)]
    first, second = [(await answer.json())["server"]["id"] for answer in answers]
    assert first == second
    assert len((await api.get(PATH))["servers"]) == 1


async def test_a_reader_makes_no_server(api: Api) -> None:
    status, message = await refused(await created(api, {**BLANK, "boot_index": 0}, who="reader"))
    assert status == 403
    assert "os_compute_api:servers:create" in message


# -------------------------------------------------------------------------------- images


@contextmanager
def running_glance(
    images: dict[tuple[str, str], tuple[int, Any]],
) -> Iterator[tuple[str, list[str]]]:
    """A Glance that answers by token and image; its URL, and the tokens it was shown."""
    shown: list[str] = []

    class Glance(Handler):
        def respond(self) -> None:
            token = self.headers["X-Auth-Token"]
            shown.append(token)
            status, said = images.get((token, self.path.removeprefix("/v2/images/")), (404, {}))
            body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            self.answer(status, body)

    with served(Glance) as url:
        yield url, shown


def imaged(image: str) -> dict[str, Any]:
    return {**BLANK, "source_type": "image", "uuid": image, "boot_index": 0}


async def test_an_image_is_whose_token_glance_shows_it_to(
    keystone: SimulatedKeystone, database_url: str
) -> None:
    alice = {"X-Auth-Token": keystone.token("alice", "member", project=PROJECT)}
    token, (mine, theirs, queued, proxied, broken) = (
        alice["X-Auth-Token"],
        [str(uuid4()) for _ in range(5)],
    )
    answers: dict[tuple[str, str], tuple[int, Any]] = {
        (token, mine): (200, {"id": mine, "status": "active"}),
        ("ours", theirs): (200, {"id": theirs, "status": "active"}),
        (token, queued): (200, {"id": queued, "status": "queued"}),
        (token, proxied): (200, "<html>log in</html>"),
        (token, broken): (500, {}),
    }
    with running_glance(answers) as (url, shown):
        auth = {"auth_type": "admin_token", "endpoint": f"{url}/v2", "token": "ours"}
        given = replace(settings(keystone), cinder=CinderSettings(auth=auth))
        async with running_api(database_url, given) as api:
            await api.register()
            for image, expected in (
                (theirs, (400, f"Image {theirs} could not be found.")),
                (queued, (400, f"Image {queued} could not be found.")),
                (proxied, (503, "Glance, or Keystone, does not answer.")),
                (broken, (503, "Glance, or Keystone, does not answer.")),
            ):
                answer = await created(api, imaged(image), who=None, headers=alice)
                status, message = await refused(answer)
                assert (status, message.endswith(expected[1])) == (expected[0], True), message
            assert (await api.get(PATH))["servers"] == []
            answer = await created(api, imaged(mine), who=None, headers=alice)
            assert answer.status == 202, await answer.text()
            assert set(shown) == {token}
            assert (await api.played(answer))["outcome"] == "completed"
            server = (await answer.json())["server"]["id"]
            [row] = (await api.get(f"{PATH}/{server}/os-volume_attachments"))["volumeAttachments"]
            made = api.cinder.volume(row["volumeId"])
            assert (made.image_id, made.project_id, made.size) == (mine, PROJECT, 2)


async def test_who_has_no_token_of_keystone_s_names_no_image_but_operators_do(api: Api) -> None:
    await api.register()
    status, message = await refused(await created(api, imaged(str(uuid4()))))
    assert status == 403
    assert message.startswith("To give an image needs a token of Keystone's")
    answer = await created(api, imaged(str(uuid4())), who="admin")
    assert (await api.played(answer))["outcome"] == "completed"
