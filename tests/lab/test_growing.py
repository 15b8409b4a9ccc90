"""Volumes that grow while guests write to them: Cinder extends, tells, and the guest sees it.

Of the lab's backends only Ceph extends a volume in use.  Cinder's NFS driver refuses (LP 1870367);
what a host does with a file is shown with Cinder made to believe that it has extended one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from tests.lab.control import SHOW, Lab
from tests.lab.guest import Console, LabGuest, wait_node, wait_until
from tests.lab.settings import ENV, FULL, SETTLE_S
from tests.lab.world import VOLUME_GB, share_file
from tests.lab.writing import Writer, assert_written

pytestmark = pytest.mark.lab

GIB, SECTOR = 1 << 30, 512
GROWN_GB = VOLUME_GB + 1
#: The last sectors of the volume as it was are behind this one.
BEYOND = VOLUME_GB * GIB // SECTOR


def extend(lab: Lab, guest: LabGuest, volume: str, size_gb: int = GROWN_GB) -> None:
    if share_file(lab.cloud.backend_name(volume)):
        lab.cloud.note_size(volume, size_gb)
        assert lab.ledger.tell_extended(guest.id, volume) == [("completed", 200)]
    else:
        lab.cloud.extend(volume, size_gb)


def size(console: Console, volume: str) -> int:
    """What the guest has, in bytes."""
    return int(console.run(f"cat /sys/block/{wait_node(console, volume)}/size")) * SECTOR


def wait_size(console: Console, volume: str, wanted: int) -> None:
    wait_until(
        lambda: size(console, volume) == wanted, f"the guest to see {wanted} bytes", SETTLE_S
    )


def assert_grown(lab: Lab, volume: str) -> None:
    done = lab.ledger.wait_outcome("grow", volume)
    assert (done["outcome"], done["error"]) == ("completed", None)
    lab.cloud.wait_status(volume, "in-use")


def test_a_guest_that_writes_sees_its_volume_grow_and_writes_beyond(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    with guest.console() as console:
        writer = Writer(console, wait_node(console, volume))
        writer.wait_progress(console)
        extend(lab, guest, volume)
        wait_size(console, volume, GROWN_GB * GIB)
        assert_grown(lab, volume)
        writer.wait_progress(console)
        last = writer.stop(console)
        node = wait_node(console, volume)
        console.run(
            f"echo beyond | dd of=/dev/{node} bs=512 seek={BEYOND + 7} conv=fsync,sync,notrunc"
        )
        # Told once more, late: nothing is cut off.
        assert lab.ledger.tell_extended(guest.id, volume) == [("completed", 200)]
        assert_grown(lab, volume)
        assert size(console, volume) == GROWN_GB * GIB
    lab.cloud.openstack("server", "stop", guest.id)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    assert_written(lambda at, length: lab.cloud.data(volume, at, length), last)
    assert lab.cloud.data(volume, (BEYOND + 7) * SECTOR, 6) == b"beyond"
    lab.cloud.openstack("server", "start", guest.id)
    guest.wait_booted(2)
    with guest.console() as console:
        assert size(console, volume) == GROWN_GB * GIB
    lab.cloud.detach(guest.id, volume)


def test_a_guest_of_an_encrypted_volume_sees_it_grow_by_as_much_as_cinder_does(
    lab: Lab, guest: LabGuest, encrypted: str
) -> None:
    lab.cloud.attach(guest.id, encrypted)
    with guest.console() as console:
        before = size(console, encrypted)
        assert before <= VOLUME_GB * GIB  # all of it, or all but the head of LUKS
        writer = Writer(console, wait_node(console, encrypted))
        writer.wait_progress(console)
        extend(lab, guest, encrypted)
        wanted = before + (GROWN_GB - VOLUME_GB) * GIB
        wait_size(console, encrypted, wanted)
        assert_grown(lab, encrypted)
        node, at = wait_node(console, encrypted), wanted // SECTOR - 1
        console.run(f"echo the last | dd of=/dev/{node} bs=512 seek={at} conv=fsync,sync,notrunc")
        writer.wait_progress(console)
        writer.stop(console)
    lab.cloud.openstack("server", "stop", guest.id)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    lab.cloud.openstack("server", "start", guest.id)
    guest.wait_booted(2)
    with guest.console() as console:
        assert size(console, encrypted) == wanted
        node = wait_node(console, encrypted)
        assert console.run(
            f"dd if=/dev/{node} bs=512 skip={at} count=1 2>/dev/null | head -c 8"
        ) == ("the last")
    lab.cloud.detach(guest.id, encrypted)


def test_an_agent_that_dies_while_a_volume_grows_goes_on_when_it_is_back(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    with guest.console() as console:
        writer = Writer(console, wait_node(console, volume))
        with lab.dying(lab.agent, SHOW, "after"):
            extend(lab, guest, volume)
        assert_grown(lab, volume)
        assert size(console, volume) == GROWN_GB * GIB
        last = writer.wait_progress(console)
        writer.stop(console)
    lab.cloud.detach(guest.id, volume)
    assert_written(lambda at, length: lab.cloud.data(volume, at, length), last)


def test_a_volume_that_grew_while_its_server_was_off_has_its_size_at_the_next_start(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    lab.cloud.openstack("server", "stop", guest.id)
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    if share_file(lab.cloud.backend_name(volume)):  # no guest has it open: so can a driver
        subprocess.run(
            [
                "truncate",
                "-s",
                str(GROWN_GB * GIB),
                str(share_file(lab.cloud.backend_name(volume))),
            ],
            check=True,
        )
    extend(lab, guest, volume)
    assert_grown(lab, volume)
    lab.cloud.openstack("server", "start", guest.id)
    guest.wait_booted(2)
    with guest.console() as console:
        assert size(console, volume) == GROWN_GB * GIB
    lab.cloud.detach(guest.id, volume)


@pytest.mark.skipif(not FULL, reason="of the lab's backends only Ceph extends a volume in use")
def test_each_guest_of_a_shared_volume_sees_it_grow(
    lab: Lab, new_guest: Callable[..., LabGuest], new_volume: Callable[[str], str]
) -> None:
    volume = new_volume("rbd-multi")
    guests = [new_guest("first"), new_guest("second", host=ENV["LAB_HOST_2"])]
    for guest in guests:
        words = ("server", "add", "volume", guest.id, volume)
        lab.cloud.openstack(*words, OS_COMPUTE_API_VERSION="2.60")
        wait_until(partial(guest.disk, volume), "the disk to be plugged", SETTLE_S)
        lab.cloud.wait_status(volume, "in-use")
    lab.cloud.extend(volume, GROWN_GB)
    for guest in guests:
        with guest.console() as console:
            wait_size(console, volume, GROWN_GB * GIB)
    for guest in guests:
        lab.cloud.openstack("server", "remove", "volume", guest.id, volume)
        assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    lab.cloud.wait_status(volume, "available")


def test_what_cinder_cannot_extend_is_left_as_it_is(
    lab: Lab, guest: LabGuest, new_volume: Callable[[str], str]
) -> None:
    """Cinder 29's NFS driver, of a volume in use (LP 1870367): the user sees it in Cinder."""
    volume = new_volume("nfs")
    lab.cloud.attach(guest.id, volume)
    lab.cloud.extend(volume, GROWN_GB)
    lab.cloud.wait_status(volume, "error_extending")
    assert lab.ledger.operation("grow", volume) is None
    with guest.console() as console:
        assert size(console, volume) == VOLUME_GB * GIB
    lab.cloud.as_service.volumes.reset_state(volume, "in-use")
    lab.cloud.detach(guest.id, volume)
