"""CVE-2023-2088 with real tokens: whose attachments Cinder deletes for whom, and when.

Cinder takes a 404 of the compute endpoint, or another attachment's id, for a yes.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from uuid import uuid4

import libvirt
import pytest
import requests

from tests.lab.control import Lab
from tests.lab.guest import LabGuest, wait_node, wait_until
from tests.lab.moving import THERE, Moving, held
from tests.lab.people import person
from tests.lab.settings import ENV, SETTLE_S
from tests.lab.world import CLI_S, share_file

pytestmark = pytest.mark.lab

CONFLICT = HTTPStatus.CONFLICT


def deleted(attachment_id: str, user: str, passed_on_by: str | None = None) -> int:
    """Cinder's answer to the user's DELETE, with a service token of somebody if it has one."""
    asking = person(user)
    headers = {"X-Auth-Token": asking.token, "OpenStack-API-Version": "volume 3.71"}
    if passed_on_by:
        headers["X-Service-Token"] = person(passed_on_by).token
    url = f"{ENV['CINDER_ENDPOINT']}/{asking.project_id}/attachments/{attachment_id}"
    return requests.delete(url, headers=headers, timeout=CLI_S).status_code


def of(lab: Lab, volume: str) -> list[str]:
    return sorted(str(attachment.id) for attachment in lab.cloud.attachments(volume))


def test_what_a_guest_uses_is_deleted_for_a_service_and_for_nobody_else(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    [attachment] = of(lab, volume)
    assert deleted(attachment, "member") == CONFLICT
    assert deleted(attachment, "admin") == CONFLICT, "an administrator is no service"
    assert deleted(attachment, "stranger") == HTTPStatus.NOT_FOUND
    assert deleted(attachment, "reader") == HTTPStatus.FORBIDDEN
    for nobody in ("member", "admin"):
        assert deleted(attachment, "member", nobody) == HTTPStatus.UNAUTHORIZED
    assert of(lab, volume) == [attachment]
    with guest.console() as console:
        wait_node(console, volume)
    assert deleted(attachment, "member", "cinder") == HTTPStatus.OK
    assert of(lab, volume) == []
    lab.cloud.detach(guest.id, volume)
    assert guest.disks() == (0, 0)


def test_in_a_move_neither_of_two_attachments_is_a_users(lab: Lab, moving: Moving) -> None:
    with held(moving):
        for volume in moving.volumes:
            both = of(lab, volume)
            assert len(both) == 2
            assert {deleted(each, "member") for each in both} == {CONFLICT}
            assert of(lab, volume) == both
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    for volume in moving.volumes:
        assert [deleted(each, "member") for each in of(lab, volume)] == [CONFLICT]
    moving.assert_writes_on()


def test_a_deleted_server_keeps_what_its_host_may_still_write_to(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    assert lab.ledger.wait_outcome("attach", volume)["outcome"] == "completed"
    [attachment] = of(lab, volume)
    with lab.libvirtd.stopped():
        lab.cloud.openstack("server", "delete", guest.id)
        assert lab.ledger.task_state(guest.id) == "deleting"
        assert guest_is_there(lab, volume)
        assert deleted(attachment, "member") == CONFLICT
        assert of(lab, volume) == [attachment]
    assert lab.ledger.wait_outcome("delete", volume)["outcome"] == "completed"
    lab.cloud.wait_status(volume, "available")
    wait_until(lambda: lab.ledger.server_status(guest.id) is None, "the server to go", SETTLE_S)


def guest_is_there(lab: Lab, volume: str) -> bool:
    """It has the volume open, whatever anybody says."""
    return lab.cloud.users(volume) == [ENV["LAB_HOST"]]


def test_what_the_ledger_never_heard_of_is_a_users_only_when_its_host_shows_that_it_is_not_there(
    lab: Lab, new_guest: Callable[..., LabGuest], new_volume: Callable[[str], str]
) -> None:
    guest, volume = new_guest("by-hand", with_system=False), new_volume("nfs")
    plug_by_hand(lab, guest, volume)
    attachment = attached_past_us(lab, volume, guest.id)
    wait_until(lambda: answered(guest.id, volume) == CONFLICT, "the host to show it", SETTLE_S)
    assert deleted(attachment, "member") == CONFLICT
    assert guest_is_there(lab, volume)

    guest.domain.destroy()
    guest.take_away(volume)
    assert lab.cloud.users(volume) == []
    wait_until(lambda: answered(guest.id, volume) == HTTPStatus.NOT_FOUND, "it to go", SETTLE_S)
    assert deleted(attachment, "member") == HTTPStatus.OK
    lab.cloud.wait_status(volume, "available")


def test_a_server_that_the_ledger_never_heard_of_may_run_elsewhere(
    lab: Lab, new_volume: Callable[[str], str]
) -> None:
    volume = new_volume("nfs")
    attachment = attached_past_us(lab, volume, str(uuid4()))
    assert deleted(attachment, "member") == CONFLICT
    assert deleted(attachment, "stranger") == HTTPStatus.NOT_FOUND
    assert of(lab, volume) == [attachment]
    assert deleted(attachment, "member", "ledger") == HTTPStatus.OK


def attached_past_us(lab: Lab, volume: str, server_id: str) -> str:
    """Connected in Cinder, as another compute service has it."""
    connector = {"host": "elsewhere", "ip": "127.0.0.1", "initiator": f"iqn.{uuid4()}"}
    connector |= {"platform": "x86_64", "os_type": "linux"}
    lab.cloud.as_service.attachments.create(volume, connector, server_id)
    [attachment] = of(lab, volume)
    return attachment


def plug_by_hand(lab: Lab, guest: LabGuest, volume: str) -> None:
    disk = f"""<disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{share_file(lab.cloud.backend_name(volume))}'/>
      <target dev='vda' bus='virtio'/><serial>{volume}</serial><alias name='ua-{volume}'/>
    </disk>"""
    both = libvirt.VIR_DOMAIN_AFFECT_LIVE | libvirt.VIR_DOMAIN_AFFECT_CONFIG
    guest.domain.attachDeviceFlags(disk, both)


def answered(server_id: str, volume: str) -> int:
    """The ledger's answer to a member who asks as Cinder does."""
    url = f"{ENV['LAB_LEDGER_URL']}/v2.1/servers/{server_id}/os-volume_attachments/{volume}"
    headers = {"X-Auth-Token": person("member").token, "OpenStack-API-Version": "compute 2.89"}
    return requests.get(url, headers=headers, timeout=CLI_S).status_code
