"""A guest that writes to a file that nobody knows loses nothing by what is asked for its server."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from aggregates.operation import Outcome
from host_agent.libvirt import disk_xml
from host_agent.shared.contract.messages import PowerState
from host_agent.simulated import host_state
from tests.world import HOST, OTHER, SERVER, World

STRAY = "/simulated/mnt/stray.qcow2"


def snapshot_by_hand(world: World) -> None:
    """`virsh snapshot-create --disk-only`."""
    with world.host.edit() as state:
        guest = state["guests"][SERVER]
        for copy in ("live", "persistent"):
            root = ET.fromstring(guest[copy])
            for disk in root.iterfind("devices/disk"):
                disk_xml.set_source(disk, {"type": "file", "path": STRAY})
            guest[copy] = ET.tostring(root, encoding="unicode")
        state["connected"]["stray"] = {"driver": "rbd", "path": STRAY, "bytes": 1 << 30}


@pytest.mark.parametrize("driver", ["nfs", "rbd", "iscsi"])
@pytest.mark.parametrize("flow", ["detach", "resize", "live_migrate", "shelve", "reboot"])
def test_what_would_lose_it_fails_and_the_guest_goes_on_as_it_was(driver: str, flow: str) -> None:
    world = World(driver=driver)
    world.done(world.attach())
    snapshot_by_hand(world)
    before = world.summary()
    to = {"destination": OTHER} if flow in {"resize", "live_migrate"} else {}
    asked = world.detach() if flow == "detach" else world.act(flow, **to)
    operation = world.run(asked)
    assert operation.outcome is Outcome.FAILED
    assert operation.first_error is not None
    assert operation.first_error["code"] == "other_source"
    assert world.summary() == before
    guest = world.hosts[HOST].read()["guests"][SERVER]
    assert guest["power_state"] == PowerState.RUNNING
    assert [disk_xml.short(disk.place) for disk in disk_xml.parse(guest["live"]).disks] == [STRAY]


def test_once_it_is_brought_back_the_volume_can_be_detached() -> None:
    world = World(driver="nfs")
    world.done(world.attach())
    guests = world.host.read()["guests"]
    snapshot_by_hand(world)
    assert world.run(world.detach()).outcome is Outcome.FAILED
    with world.host.edit() as state:  # `virsh blockcommit --active --pivot`
        state["guests"] = guests
    host_state.set_power(world.host, SERVER, PowerState.RUNNING)
    world.done(world.detach())
    assert world.cinder.volume(world.volumes[0]).status == "available"
