"""`rebuild` with an image: who may, what is refused, and Cinder's event (decision 0083)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from handlers.engine.verbs import VERBS, LedgerVerb, RetryPolicy
from host_agent.shared.cinder.settings import CinderSettings
from ledger.trial.cinder.model.rows import StoredVolume
from ledger.trial.cinder.model.snapshots import GUEST_IS_DONE, begin_online, go_on
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.simulated_keystone import SimulatedKeystone
from tests.service.api_world import HOST, PROJECT, Api, eventually, running_api
from tests.service.keystone_world import settings
from tests.service.test_api_create import boot, created, refused, running_glance
from tests.service.test_api_external_events import tell

GIB = 1 << 30


async def built(api: Api) -> tuple[str, StoredVolume]:
    """A server that runs from a root volume, of 1 GiB."""
    root = api.volume(bootable=True, image_id=str(uuid4()))
    return await boots(api, root), api.cinder.volume(root)


async def boots(api: Api, root: str, **more: Any) -> str:
    """A server is built of the root; in Cinder its host has it, as the agent would have said."""
    answer = await created(api, boot(root), **more)
    assert (await api.played(answer))["outcome"] == "completed"
    server = str((await answer.json())["server"]["id"])
    for row in api.cinder.attachments_of(root):
        api.cinder.drop_attachment(row.id)
    api.cinder.attachment_complete(api.cinder.attachment_create(root, server, {"host": HOST}).id)
    return server


async def rebuilt(api: Api, server: str, image: str, version: str = "2.93", **more: Any) -> Any:
    path, body = f"/v2.1/servers/{server}/action", {"rebuild": {"imageRef": image}}
    return await api.ask("POST", path, more.pop("who", "admin"), version, json=body, **more)


def reimaged(server: str, volume: str) -> dict[str, Any]:
    return {"name": "volume-reimaged", "server_uuid": server, "tag": volume}


async def test_a_rebuild_with_an_image_writes_it_to_the_root_and_hears_cinder(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else than Cinder would wake it before a minute is over."""
    patient = RetryPolicy(attempts=100, first_s=60.0)
    row = replace(VERBS[LedgerVerb.VOLUME_REIMAGE], retry=patient)
    monkeypatch.setitem(VERBS, LedgerVerb.VOLUME_REIMAGE, row)
    await api.register(service_version=5)
    server, root = await built(api)
    [former] = api.cinder.attachments_of(root.id)
    image, head = str(uuid4()), await api.head()
    answer = await rebuilt(api, server, image)
    assert (answer.status, (await answer.json())["server"]["status"]) == (202, "REBUILD")
    await api.played(answer, until="delete")
    api.cinder.attachment_delete(former.id)  # as the agent would

    async def writes() -> bool:
        for command in await api.commands(wait_s=0):
            for step in command["steps"]:
                await api.report(command, step["name"])
        return "Operation.StepRetried" in await topics()

    async def topics() -> set[str]:
        return {event["topic"] for event in (await api.get(f"/v1/events?after={head}"))["events"]}

    await eventually(writes, "Cinder to write the image, and the ledger to wait")
    assert root.status == "downloading"
    root.end_imaging()
    assert await tell(api, reimaged(server, root.id)) == (200, [("completed", 200)])
    assert "Operation.RetryRequested" in await topics()
    done = await api.played(answer)
    assert (done["flow"], done["outcome"], root.image_id) == ("reimage", "completed", image)
    [action, *_] = (await api.get(f"/v2.1/servers/{server}/os-instance-actions"))["instanceActions"]
    assert action["action"] == "rebuild"


async def test_below_2_93_another_image_is_unacceptable_and_the_same_changes_nothing(
    api: Api,
) -> None:
    await api.register()
    server, root = await built(api)
    other = str(uuid4())
    said = (
        f"Image {other} is unacceptable: Unable to rebuild with a different image for a "
        "volume-backed server."
    )
    assert await refused(await rebuilt(api, server, other, "2.92")) == (400, said)
    answer = await rebuilt(api, server, root.image_id or "", "2.92")
    done = await api.played(answer)
    assert (done["flow"], done["outcome"]) == ("rebuild", "completed")


async def test_what_is_no_image_or_has_nowhere_to_go_is_refused(api: Api) -> None:
    bare = await api.server()
    status, text = await refused(await rebuilt(api, bare, str(uuid4())))
    assert (status, "no root volume" in text) == (400, True)
    server, _ = await built(api)
    status, text = await refused(await rebuilt(api, server, "http://glance/images/1"))
    assert (status, text) == (400, "imageRef: must be the id of an image.")
    assert (await refused(await rebuilt(api, server, str(uuid4()), who="member")))[0] == 403
    assert (await refused(await rebuilt(api, server, str(uuid4()), who="stranger")))[0] == 404


async def test_glance_says_who_may_have_it_and_how_large_a_root_it_needs(
    keystone: SimulatedKeystone, database_url: str
) -> None:
    alice = {"X-Auth-Token": keystone.token("alice", "member", project=PROJECT)}
    token, images = alice["X-Auth-Token"], [str(uuid4()) for _ in range(5)]
    fits, theirs, large, expands, wide = images
    active = {"status": "active"}
    answers: dict[tuple[str, str], tuple[int, Any]] = {
        (token, fits): (200, {"id": fits, **active, "size": GIB, "min_disk": 1}),
        ("ours", theirs): (200, {"id": theirs, **active}),
        (token, large): (200, {"id": large, **active, "size": GIB + 1}),
        (token, expands): (200, {"id": expands, **active, "size": 9, "virtual_size": 2 * GIB}),
        (token, wide): (200, {"id": wide, **active, "size": 9, "min_disk": 2}),
    }
    with running_glance(answers) as (url, shown):
        auth = {"auth_type": "admin_token", "endpoint": f"{url}/v2", "token": "ours"}
        given = replace(settings(keystone), cinder=CinderSettings(auth=auth))
        async with running_api(database_url, given) as api:
            await api.register()
            root = api.volume(bootable=True)
            server = await boots(api, root, who=None, headers=alice)
            asked: dict[str, Any] = {"who": None, "headers": alice}
            said = await refused(await rebuilt(api, server, theirs, **asked))
            assert said == (400, "Cannot find image for rebuild")
            for image in (large, expands, wide):
                said = await refused(await rebuilt(api, server, image, **asked))
                assert said == (400, f"Image {image} needs 2 GiB, and root volume {root} has 1.")
            assert set(shown) == {token}
            answer = await rebuilt(api, server, fits, **asked)
            assert (await api.played(answer, until="stop"))["flow"] == "reimage"


async def test_an_old_cinder_is_not_asked_to_write_images(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.register()
    server, _ = await built(api)
    monkeypatch.setattr(DirectCinder, "reimages", lambda _self: False)
    status, text = await refused(await rebuilt(api, server, str(uuid4())))
    assert (status, "(3.68)" in text) == (400, True)


async def test_an_image_that_nobody_waits_for_is_nobodys_news(api: Api) -> None:
    """As Nova: it has passed it to the host, which drops it; of a server on no host it cannot."""
    server, volume = await api.attached()
    told = [
        reimaged(server, volume),
        {"name": "volume-reimaged", "server_uuid": server},
        reimaged(str(uuid4()), volume),
    ]
    assert await tell(api, *told) == (
        207,
        [("completed", 200), ("completed", 200), ("failed", 404)],
    )
    assert (await api.get(f"/v1/operations?server={server}&flow=reimage"))["operations"] == []


async def test_a_root_that_is_a_chain_of_files_on_a_share_is_refused(api: Api) -> None:
    """Cinder would write to the first file, and the guest has the last."""
    await api.register(service_version=5)
    root = api.volume(bootable=True, driver="nfs")
    server, image = await boots(api, root), str(uuid4())
    [row] = api.cinder.attachments_of(root)
    plain = dict(row.connection_info)
    assert plain["name"] == f"volume-{root}"
    snapshot, head = begin_online(api.cinder, root), await api.head()
    snapshot.progress = GUEST_IS_DONE
    go_on(api.cinder, snapshot)
    assert row.connection_info["name"] == f"volume-{root}.{snapshot.id}"
    status, text = await refused(await rebuilt(api, server, image))
    assert (status, "is a chain of files on a share" in text) == (400, True)
    assert await api.head() == head
    row.connection_info = plain
    assert (await rebuilt(api, server, image)).status == 202
