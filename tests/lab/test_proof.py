"""Attach and detach through the unmodified `openstack` CLI, down to the bytes on the volume."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.control import Lab
from tests.lab.guest import Console, LabGuest, node_of, wait_node
from tests.lab.people import person
from tests.lab.settings import ENV

pytestmark = pytest.mark.lab

#: Where the guest writes: beyond anything that is read or written by itself.
SECTOR, BYTES_PER_SECTOR = 4096, 512

ATTACHMENT_LIFE = ["AttachmentCreated", "ConnectorUpdated", "Completed", "Deleted"]


def write(console: Console, node: str, text: str) -> None:
    target = f"of=/dev/{node} bs={BYTES_PER_SECTOR} seek={SECTOR} conv=fsync,sync"
    console.run(f"echo -n {text} | dd {target}")


def listed(lab: Lab, guest: LabGuest) -> list[str]:
    found = lab.cloud.openstack("server", "volume", "list", guest.id, "-f", "json")
    return [item["Volume ID"] for item in found]


def assert_nothing_left(lab: Lab, guest: LabGuest, volume: str) -> None:
    """No disk, no attachment, nobody on the host who has the volume open.

    The NFS share itself stays mounted: os-brick's RemoteFs connector never unmounts,
    as other volumes of the share may be in use.
    """
    assert guest.disk(volume) is None
    assert guest.disk(volume, persistent=True) is None
    assert guest.disks() == (0, 0)
    assert lab.cloud.attachments(volume) == []
    assert lab.cloud.users(volume) == []
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    assert listed(lab, guest) == []


def test_a_running_guest_gets_a_disk_writes_to_the_volume_and_gives_it_back(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    assert listed(lab, guest) == [volume]
    assert guest.disk(volume)
    assert guest.disk(volume) == guest.disk(volume, persistent=True)
    assert [item.status for item in lab.cloud.attachments(volume)] == ["attached"]
    with guest.console() as console:
        write(console, wait_node(console, volume), f"written-by-{guest.id}")
        lab.cloud.detach(guest.id, volume)
        assert node_of(console, volume) is None
    marker = f"written-by-{guest.id}".encode()
    assert lab.cloud.data(volume, SECTOR * BYTES_PER_SECTOR, len(marker)) == marker
    assert_nothing_left(lab, guest, volume)


def test_a_stopped_guest_gets_a_disk_for_its_next_start(
    lab: Lab,
    new_guest: Callable[..., LabGuest],
    new_volume: Callable[[str], str],
    backend: str,
) -> None:
    guest, kept, taken_off = new_guest("stopped", running=False), *map(new_volume, [backend] * 2)
    lab.cloud.attach(guest.id, kept)
    lab.cloud.attach(guest.id, taken_off)
    assert guest.disk(kept, persistent=True)
    lab.cloud.detach(guest.id, taken_off)
    assert guest.disk(taken_off, persistent=True) is None

    guest.start()
    with guest.console() as console:
        wait_node(console, kept)
        assert node_of(console, taken_off) is None
    guest.domain.destroy()
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    lab.cloud.detach(guest.id, kept)
    assert_nothing_left(lab, guest, kept)


def test_the_history_tells_who_attached_what_where_and_by_which_steps(
    lab: Lab, guest: LabGuest, new_volume: Callable[[str], str]
) -> None:
    volume = new_volume("nfs")
    lab.cloud.attach(guest.id, volume)
    lab.cloud.detach(guest.id, volume)
    lab.ledger.wait_outcome("detach", volume)
    events = lab.ledger.history(volume)
    topics = [event["topic"] for event in events]
    told = [f"Attachment.{name}" for name in ATTACHMENT_LIFE]
    assert [topic for topic in topics if topic in told] == told
    assert ENV["LAB_HOST"] in {event["host"] for event in events}
    assert all(event["operation_id"] and event["user_id"] for event in events)
    for flow in ("attach", "detach"):
        operation = lab.ledger.operation(flow, volume)
        assert operation["user_id"] == person("member").user_id
        assert all(step["status"] == "done" for step in operation["steps"])
