"""S2's use cases, told end to end: all processes, requests as users send them to Nova.

The simulated Cinder keeps no data.  Which volume a guest runs from is seen in its domain:
the path of a disk names the volume that is connected there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests

from host_agent.libvirt import disk_xml
from ledger.trial.cinder.views import MAX_VERSION, Microversion
from tests.databases import Databases
from tests.stack import PROJECT, Stack, eventually, running_stack

OURS = "2.105"


@pytest.fixture
def sites(tmp_path: Path, databases: Databases) -> Iterator[tuple[Stack, Stack]]:
    """Two clouds that share nothing."""
    with ExitStack() as exits:
        yield _cloud(tmp_path / "a", databases, exits), _cloud(tmp_path / "b", databases, exits)


def _cloud(home: Path, databases: Databases, exits: ExitStack) -> Stack:
    home.mkdir()
    name = databases.create_migrated()
    exits.callback(databases.drop, name)
    cloud = exits.enter_context(running_stack(home, databases.url(name)))
    start(cloud, "compute-1", "compute-2")
    return cloud


def start(cloud: Stack, *hosts: str) -> None:
    cloud.start_service()
    for host in hosts:
        cloud.start_agent(host)
        cloud.wait_for_host(host)


def sources(cloud: Stack, server: str, copy: str = "live") -> dict[str, str]:
    """The volume behind each disk of a guest, by the disk's name."""
    guest = cloud.host(cloud.servers[server]).read()["guests"][server]
    domain = guest[copy]
    assert domain is not None, f"{server} has no {copy} definition"
    return {
        disk.target: str(disk_xml.short(disk.place)).partition("volume-")[2]
        for disk in disk_xml.parse(domain).disks
    }


def found_on(cloud: Stack, server: str) -> None:
    """Look where the scheduler put it."""
    cloud.servers[server] = cloud.server(server)["OS-EXT-SRV-ATTR:host"]


def refused_for_its_root(answer: requests.Response, action: str) -> None:
    assert answer.status_code == 403
    wanted = f"Can't {action} instance without a root device volume."
    assert answer.json()["forbidden"]["message"].startswith(wanted)


@pytest.mark.parametrize("dies_at", [None, "brick.connect", "guests.spawn"])
def test_a_site_takes_over_with_replicas_of_the_volumes_of_another(
    sites: tuple[Stack, Stack], dies_at: str | None
) -> None:
    site_a, site_b = sites
    originals = {"vda": site_a.add_volume(bootable=True), "vdb": site_a.add_volume()}
    application = site_a.build(*disks(originals))
    assert sources(site_a, application) == originals

    # Before: the same infrastructure at B, seen to work, then dormant without volumes.
    drafts = {"vda": site_b.add_volume(bootable=True), "vdb": site_b.add_volume()}
    server = site_b.build(*disks(drafts))
    assert sources(site_b, server) == drafts
    site_b.completed(site_b.act(server, "shelve"))
    for volume in drafts.values():
        site_b.completed(site_b.detach(server, volume, version=OURS))
        assert site_b.cinder.model.volume(volume).status == "available"
        assert site_b.cinder.model.attachments_of(volume) == []
    assert site_b.host().read()["connected"] == {}
    refused_for_its_root(site_b.act(server, "unshelve"), "unshelve")

    # The disaster, and the replicas that were made until then.
    site_a.kill_all()
    replicas = {
        device: site_b.add_volume(name=f"replica of {original}", bootable=device == "vda")
        for device, original in originals.items()
    }
    site_b.completed(site_b.attach(server, replicas["vdb"], device="/dev/vdb"))
    refused_for_its_root(site_b.act(server, "unshelve"), "unshelve")
    # As OpenStack's client does it, which cannot say `is_root`.
    site_b.completed(site_b.attach(server, replicas["vda"], version="2.20", device="/dev/vda"))
    site_b.completed(unshelved(site_b, server, dies_at))

    found_on(site_b, server)
    assert site_b.server(server)["status"] == "ACTIVE"
    assert sources(site_b, server) == replicas
    shown = site_b.attachments(server, OURS)
    assert {(row["device"], row["volumeId"], row["boot_index"]) for row in shown} == {
        ("/dev/vda", replicas["vda"], 0),
        ("/dev/vdb", replicas["vdb"], None),
    }
    for volume in replicas.values():
        [row] = site_b.cinder.model.attachments_of(volume)
        assert (row.instance, row.host, row.status) == (server, site_b.servers[server], "attached")
    for host in ("compute-1", "compute-2"):
        site_b.check_host(host)


def disks(volumes: dict[str, str]) -> list[dict[str, Any]]:
    """How a build asks for them: vda is the root."""
    root, *data = volumes.values()
    return [{"volume_id": root, "boot_index": 0}, *({"volume_id": volume} for volume in data)]


def unshelved(cloud: Stack, server: str, dies_at: str | None) -> requests.Response:
    """Unshelve, on a host whose agent is killed in the middle and started again."""
    if dies_at is None:
        return cloud.act(server, "unshelve")
    for host in ("compute-1", "compute-2"):
        cloud.set_agent_faults({"call": dies_at, "do": "crash_after"}, host=host)
    answer = cloud.act(server, "unshelve")
    agents = cloud.agents
    eventually(lambda: any(a.died() for a in agents.values()), f"an agent dies at {dies_at}")
    [dead] = [host for host, agent in agents.items() if agent.died()]
    cloud.start_agent(dead)
    return answer


@pytest.mark.parametrize("cinder", [MAX_VERSION, (3, 43)], ids=["new", "old"])
def test_a_server_goes_back_to_a_snapshot_of_its_root_and_stays_the_same(
    tmp_path: Path, database_url: str, cinder: Microversion
) -> None:
    with running_stack(tmp_path, database_url) as cloud:
        cloud.start_cinder(cinder)  # an old one: by the old flow
        start(cloud, "compute-1")
        _go_back(cloud)


def _go_back(cloud: Stack) -> None:
    now, data = cloud.add_volume(bootable=True), cloud.add_volume()
    server = cloud.build(*disks({"vda": now, "vdb": data}))
    then = volume_of_snapshot(cloud, cloud.cinder.model.add_snapshot(now).id)
    before = cloud.server(server)

    assert cloud.detach(server, now, version=OURS).status_code == 403, "it runs"
    cloud.completed(cloud.act(server, "os-stop"))
    cloud.completed(cloud.detach(server, now, version=OURS))
    assert sources(cloud, server, "persistent") == {"vdb": data}
    refused_for_its_root(cloud.act(server, "os-start"), "start")
    cloud.completed(cloud.attach(server, then, version=OURS, is_root=True))
    cloud.completed(cloud.act(server, "os-start"))

    assert sources(cloud, server) == {"vda": then, "vdb": data}
    assert [row.status for row in cloud.cinder.model.attachments_of(now)] == []
    assert cloud.cinder.model.volume(now).status == "available"
    after = cloud.server(server)
    same = ("id", "name", "created", "status", "flavor", "OS-EXT-SRV-ATTR:host")
    assert [after[key] for key in same] == [before[key] for key in same]
    cloud.check_host()


def volume_of_snapshot(cloud: Stack, snapshot_id: str) -> str:
    """Made by the user, in Cinder, before the server is touched."""
    user = {"X-Auth-Token": f"user:{PROJECT}"}
    wanted: dict[str, Any] = {"volume": {"size": 1, "snapshot_id": snapshot_id}}
    volumes = f"{cloud.cinder.endpoint}/{PROJECT}/volumes"
    answer = requests.post(volumes, headers=user, json=wanted, timeout=30)
    made = str(answer.json()["volume"]["id"])

    def available() -> bool:
        volume = requests.get(f"{volumes}/{made}", headers=user, timeout=30).json()["volume"]
        return bool(volume["status"] == "available" and volume["snapshot_id"] == snapshot_id)

    eventually(available, f"volume {made} is made of the snapshot")
    return made
