"""What must not happen, and what is left when it was tried: nothing has changed."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.lab.control import Lab
from tests.lab.guest import (
    LabGuest,
    heed_unplug,
    ignore_unplug,
    node_of,
    wait_node,
)
from tests.lab.world import CliError

pytestmark = pytest.mark.lab


def assert_attached(lab: Lab, guest: LabGuest, volume: str) -> None:
    assert lab.cloud.volume_status(volume) == "in-use"
    assert [item.status for item in lab.cloud.attachments(volume)] == ["attached"]
    assert guest.disk(volume) == guest.disk(volume, persistent=True) is not None


def test_a_guest_that_ignores_the_unplug_keeps_its_disk_and_may_give_it_back_later(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    with guest.console() as console:
        wait_node(console, volume)
        ignore_unplug(console)
        lab.cloud.openstack("server", "remove", "volume", guest.id, volume)
        operation = lab.ledger.wait_outcome("detach", volume)
        assert operation["outcome"] == "failed"
        assert operation["error"]["code"] == "guest_refused"
        assert_attached(lab, guest, volume)
        assert node_of(console, volume)

        heed_unplug(console)
        lab.cloud.detach(guest.id, volume)
        assert node_of(console, volume) is None
    assert guest.disks() == (0, 0)


def test_a_guest_without_a_system_never_answers_and_a_restart_without_it_is_the_way_out(
    lab: Lab,
    new_guest: Callable[..., LabGuest],
    new_volume: Callable[[str], str],
) -> None:
    guest, volume = new_guest("empty", with_system=False), new_volume("nfs")
    lab.cloud.attach(guest.id, volume)
    lab.cloud.openstack("server", "remove", "volume", guest.id, volume)
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "failed"
    assert_attached(lab, guest, volume)

    guest.domain.destroy()
    lab.ledger.wait_status(guest.id, "SHUTOFF")
    lab.cloud.detach(guest.id, volume)
    assert guest.disks() == (0, 0)


def test_a_volume_that_the_host_cannot_connect_is_available_again(
    lab: Lab, guest: LabGuest, new_volume: Callable[[str], str]
) -> None:
    """Cinder's fake driver hands out a connection that no os-brick connector knows."""
    volume = new_volume("fake")
    lab.cloud.openstack("server", "add", "volume", guest.id, volume)
    operation = lab.ledger.wait_outcome("attach", volume)
    assert operation["outcome"] == "failed"
    assert lab.cloud.volume_status(volume) == "available"
    assert lab.cloud.attachments(volume) == []
    assert guest.disks() == (0, 0)


def test_a_second_server_is_refused_and_nothing_changes(
    lab: Lab,
    new_guest: Callable[..., LabGuest],
    volume: str,
) -> None:
    first, second = new_guest("first"), new_guest("second", running=False)
    lab.cloud.attach(first.id, volume)
    with pytest.raises(CliError, match="400"):
        lab.cloud.openstack("server", "add", "volume", second.id, volume)
    assert_attached(lab, first, volume)
    assert second.disks() == (0, 0)
    lab.cloud.detach(first.id, volume)


def test_a_user_cannot_delete_the_attachment_of_a_running_guest(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    """CVE-2023-2088: Cinder asks our endpoint, and it says that this one is in use."""
    lab.cloud.attach(guest.id, volume)
    [attachment] = lab.cloud.attachments(volume)
    delete = ["--os-volume-api-version", "3.27", "volume", "attachment", "delete"]
    with pytest.raises(CliError, match="Compute API"):
        lab.cloud.openstack(*delete, attachment.id)
    assert_attached(lab, guest, volume)
    with guest.console() as console:
        wait_node(console, volume)
    lab.cloud.detach(guest.id, volume)


def test_a_user_may_delete_an_attachment_that_no_server_uses(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    """The other side of the same question: no attachment, so our endpoint says 404."""
    connector = {"host": "elsewhere", "ip": "127.0.0.1", "initiator": f"iqn.{uuid.uuid4()}"}
    connector |= {"platform": "x86_64", "os_type": "linux"}
    leftover = lab.cloud.cinder.attachments.create(volume, connector, guest.id)
    assert lab.cloud.attachments(volume)[0].connection_info
    lab.cloud.openstack(
        "--os-volume-api-version", "3.27", "volume", "attachment", "delete", leftover["id"]
    )
    lab.cloud.wait_status(volume, "available")
