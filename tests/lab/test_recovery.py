"""`kill -9` of service and agent at chosen points; after a restart all is as if nothing was.

How a point is chosen.  Requests to Cinder are held by the gate: *before*, Cinder
never gets the request of a killed sender; *after*, Cinder did it and nobody knows.
libvirt is held by SIGSTOP of libvirtd.  The agent goes on after a step only when
the service has acknowledged its report, so stopping the service lets a step
happen and keeps its result from being known.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest
import requests

from tests.lab.control import COMPLETE, CREATE, DELETE, UPDATE, Lab, name_of
from tests.lab.guest import (
    LabGuest,
    heed_unplug,
    ignore_unplug,
    wait_node,
    wait_until,
    was_asked_to_unplug,
)
from tests.lab.settings import SETTLE_S, WHEN, neighbours_in_quick

pytestmark = pytest.mark.lab


def add(lab: Lab, guest: LabGuest, volume: str) -> None:
    assert lab.ledger.attach(guest.id, volume).status_code == HTTPStatus.OK


def assert_attached_once(lab: Lab, guest: LabGuest, volume: str) -> None:
    assert lab.ledger.wait_outcome("attach", volume)["outcome"] == "completed"
    assert lab.cloud.volume_status(volume) == "in-use"
    assert [item.status for item in lab.cloud.attachments(volume)] == ["attached"]
    assert guest.disk(volume) == guest.disk(volume, persistent=True) is not None
    assert guest.disks() == (1, 1)


def assert_detached(lab: Lab, guest: LabGuest, volume: str) -> None:
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    assert lab.cloud.volume_status(volume) == "available"
    assert lab.cloud.attachments(volume) == []
    assert guest.disks() == (0, 0)
    assert lab.cloud.users(volume) == []


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", [UPDATE, COMPLETE], ids=name_of)
def test_the_agent_dies_while_cinder_works_on_an_attach(
    call: tuple[str, str],
    when: str,
    lab: Lab,
    guest: LabGuest,
    volume: str,
) -> None:
    with lab.dying(lab.agent, call, when):
        add(lab, guest, volume)
    assert_attached_once(lab, guest, volume)
    lab.cloud.detach(guest.id, volume)
    assert_detached(lab, guest, volume)


@pytest.mark.parametrize("when", WHEN)
def test_the_agent_dies_while_cinder_deletes_the_attachment(
    when: str,
    lab: Lab,
    guest: LabGuest,
    volume: str,
) -> None:
    lab.cloud.attach(guest.id, volume)
    with guest.console() as console:
        wait_node(console, volume)
    with lab.dying(lab.agent, DELETE, when):
        lab.cloud.openstack("server", "remove", "volume", guest.id, volume)
    assert_detached(lab, guest, volume)


@neighbours_in_quick
def test_the_agent_dies_while_libvirt_is_asked_to_plug(
    lab: Lab,
    guest: LabGuest,
    volume: str,
) -> None:
    with lab.libvirtd.stopped():
        add(lab, guest, volume)
        lab.ledger.wait_step("attach", volume, "connect")
        lab.agent.kill()
    lab.agent.start()
    assert_attached_once(lab, guest, volume)
    lab.cloud.detach(guest.id, volume)


def test_the_agent_dies_after_the_plug_and_before_it_could_tell(
    lab: Lab,
    guest: LabGuest,
    volume: str,
) -> None:
    with lab.libvirtd.stopped():
        add(lab, guest, volume)
        lab.ledger.wait_step("attach", volume, "connect")
        lab.service.suspend()
    try:
        wait_until(lambda: guest.disk(volume), "the disk to be plugged", SETTLE_S)
        lab.agent.kill()
    finally:
        lab.service.resume()
    lab.agent.start()
    assert_attached_once(lab, guest, volume)
    lab.cloud.detach(guest.id, volume)


@neighbours_in_quick
def test_the_agent_dies_while_the_guest_is_asked_to_let_go(
    lab: Lab, guest: LabGuest, volume: str
) -> None:
    lab.cloud.attach(guest.id, volume)
    with guest.console() as console:
        wait_node(console, volume)
        ignore_unplug(console)
        lab.cloud.openstack("server", "remove", "volume", guest.id, volume)
        wait_until(lambda: was_asked_to_unplug(console), "the guest to be asked", SETTLE_S)
        lab.agent.kill()
        assert guest.disk(volume)
        heed_unplug(console)
    lab.agent.start()
    assert_detached(lab, guest, volume)


@pytest.mark.parametrize("when", WHEN)
def test_the_service_dies_while_cinder_reserves(when: str, lab: Lab, guest: LabGuest) -> None:
    """The client got no answer; the reservation is found and adopted, never made twice."""
    volume = lab.cloud.create_volume("nfs")
    with ThreadPoolExecutor(1) as user, lab.gate.hold(*CREATE, when) as wait_held:
        answer = user.submit(lab.ledger.attach, guest.id, volume)
        wait_held()
        lab.service.kill()
        with pytest.raises(requests.ConnectionError):
            answer.result()
    lab.service.start()
    assert_attached_once(lab, guest, volume)
    lab.cloud.detach(guest.id, volume)
    assert_detached(lab, guest, volume)
    lab.cloud.remove_volume(volume)


@pytest.mark.parametrize("when", WHEN)
def test_the_service_dies_while_the_agent_works(when: str, lab: Lab, guest: LabGuest) -> None:
    volume = lab.cloud.create_volume("nfs")
    with lab.dying(lab.service, UPDATE, when):
        add(lab, guest, volume)
    assert_attached_once(lab, guest, volume)

    with lab.dying(lab.service, DELETE, when):
        lab.cloud.openstack("server", "remove", "volume", guest.id, volume)
    assert_detached(lab, guest, volume)
    lab.cloud.remove_volume(volume)


@neighbours_in_quick
def test_both_die_together(
    lab: Lab,
    guest: LabGuest,
    volume: str,
) -> None:
    with lab.gate.hold(*COMPLETE, "after") as wait_held:
        add(lab, guest, volume)
        wait_held()
        lab.service.kill()
        lab.agent.kill()
    lab.agent.start()
    lab.service.start()
    assert_attached_once(lab, guest, volume)
    lab.cloud.detach(guest.id, volume)
