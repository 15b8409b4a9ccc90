"""An upgrade under servers that run, in the spirit of grenade: S1's old flow beside the new.

All processes are real.  What was attached by Cinder's old calls before the upgrade keeps
its disk through it, and is detached, or converted, after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doubles.host_checks import connected_paths
from tests.stack import DEADLINE_S, Stack, eventually, running_stack
from tests.tokens import token_of

OLD_CINDER = (3, 43)  # the newest without what the new flow needs
OTHER = "compute-2"


@pytest.fixture
def cloud(tmp_path: Path, database_url: str) -> Iterator[Stack]:
    with running_stack(tmp_path, database_url) as running:
        running.add_server()
        yield running


def old_cinder(cloud: Stack) -> Callable[[], None]:
    """Cinder is too old.  Its upgrade: everything is stopped but the guests."""
    cloud.start_cinder(OLD_CINDER)
    start(cloud)

    def upgrade() -> None:
        for process in (*cloud.agents.values(), *cloud.components.values()):
            assert not process.running or process.stop() == 0, process.log.read_text()[-2000:]
        cloud.start_cinder()
        start(cloud)

    return upgrade


def old_agent(cloud: Stack) -> Callable[[], None]:
    """Another host's agent is too old.  Its upgrade is that of this one agent."""
    start(cloud)
    registered = cloud.http.put(
        cloud.url(f"/v1/hosts/{OTHER}"),
        headers={"X-Auth-Token": token_of(OTHER)},
        json={"service_version": 0, "capabilities": {}, "guests": []},
        timeout=DEADLINE_S,
    )
    assert registered.ok, registered.text

    def upgrade() -> None:
        cloud.start_agent(OTHER)
        eventually(
            lambda: cloud.get(f"/v1/hosts/{OTHER}").json()["service_version"] > 0,
            f"{OTHER} registers anew",
        )

    return upgrade


def start(cloud: Stack) -> None:
    cloud.start_service()
    cloud.start_agent()
    cloud.wait_for_host()


@pytest.mark.parametrize("before", [old_cinder, old_agent])
def test_what_the_old_calls_attached_lives_on_beside_the_new(
    cloud: Stack, before: Callable[[Stack], Callable[[], None]]
) -> None:
    [server] = cloud.servers
    leaving, staying, new = cloud.add_volume(), cloud.add_volume(), cloud.add_volume()
    shared = cloud.add_volume(multiattach=True)
    upgrade = before(cloud)
    for volume in (leaving, staying):
        cloud.completed(cloud.attach(server, volume))
    assert new_calls(cloud) == set()
    assert cloud.attachments(server, "2.89") == [], "they have no attachment's id to show"
    refused = cloud.attach(server, shared)
    assert refused.status_code == 409, "multi-attach needs the new calls"
    guest = live(cloud, server)

    upgrade()
    assert live(cloud, server) == guest, "the guest noticed nothing"
    assert [row["volumeId"] for row in cloud.attachments(server, "2.88")] == [leaving, staying]
    cloud.completed(cloud.attach(server, new))
    assert "attachment_complete" in new_calls(cloud)
    assert set(cloud.disks(server)) == {leaving, staying, new}
    assert shown(cloud, server) == {new: attachment_of(cloud, new)}

    before_detach = dict(cloud.cinder.model.counts)
    cloud.completed(cloud.detach(server, leaving))
    assert cloud.cinder.model.volume(leaving).status == "available"
    deleted = cloud.cinder.model.counts.get("attachment_delete", 0)
    assert deleted == before_detach.get("attachment_delete", 0), "it went by the old calls"

    guest = live(cloud, server)
    converted = cloud.http.post(cloud.url(f"/v1/servers/{server}/convert"), timeout=DEADLINE_S)
    cloud.completed(converted)
    assert live(cloud, server) == guest, "the guest noticed nothing"
    assert shown(cloud, server) == {each: attachment_of(cloud, each) for each in (staying, new)}
    cloud.completed(cloud.attach(server, shared))
    for volume in (staying, new, shared):
        cloud.completed(cloud.detach(server, volume))
        assert cloud.cinder.model.volume(volume).status == "available"
        assert cloud.cinder.model.attachments_of(volume) == []
    assert cloud.disks(server) == {}
    assert connected_paths(cloud.host()) == set()
    cloud.check_host()


def test_what_began_before_the_upgrade_ends_by_the_calls_it_began_with(cloud: Stack) -> None:
    [server], volume = cloud.servers, cloud.add_volume()
    upgrade = old_cinder(cloud)
    cloud.set_agent_faults({"call": "brick.connect", "do": "crash_after"})
    operation = cloud.operation_of(cloud.attach(server, volume))
    eventually(cloud.agents["compute-1"].died, "the agent dies at brick.connect")
    upgrade()
    assert cloud.finished(operation)["outcome"] == "completed"
    assert new_calls(cloud) == set()
    assert set(cloud.disks(server)) == {volume}
    cloud.completed(cloud.detach(server, volume))
    assert cloud.cinder.model.volume(volume).status == "available"
    cloud.check_host()


def new_calls(cloud: Stack) -> set[str]:
    """What Cinder was asked for that makes attachments of the new kind."""
    made = {"attachment_create", "attachment_update", "attachment_complete"}
    return made & {call for call, count in cloud.cinder.model.counts.items() if count}


def live(cloud: Stack, server: str) -> str:
    return str(cloud.host().read()["guests"][server]["live"])


def shown(cloud: Stack, server: str) -> dict[str, str]:
    rows = cloud.attachments(server, "2.89")
    return {row["volumeId"]: row["attachment_id"] for row in rows}


def attachment_of(cloud: Stack, volume: str) -> str:
    [row] = cloud.cinder.model.attachments_of(volume)
    assert row.status == "attached"
    return row.id
