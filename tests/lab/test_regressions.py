"""Bugs others had, each under its number (Launchpad), where the real parts can show them.

The guests have no operating system: none of this needs one, and they start at once.
All of them, and those that need faults, run simulated in tests/regressions.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest

from tests.lab.control import COMPLETE, CREATE, DELETE, Lab
from tests.lab.guest import LabGuest

pytestmark = pytest.mark.lab

NewGuest = Callable[..., LabGuest]


@pytest.fixture
def backend() -> str:
    return "nfs"


@pytest.fixture
def stopped(new_guest: NewGuest) -> LabGuest:
    return new_guest("stopped", running=False)


def attach(lab: Lab, guest: LabGuest, volume: str) -> None:
    """Until the ledger knows the end of it: Cinder's `in-use` comes a moment before."""
    assert lab.ledger.attach(guest.id, volume).ok
    assert_attached(lab, guest, volume)


def assert_attached(lab: Lab, guest: LabGuest, volume: str) -> None:
    assert lab.ledger.wait_outcome("attach", volume)["outcome"] == "completed"
    assert [(item.instance, item.status) for item in lab.cloud.attachments(volume)] == [
        (guest.id, "attached")
    ]
    assert guest.disk(volume, persistent=True)


def assert_free(lab: Lab, volume: str) -> None:
    assert lab.cloud.volume_status(volume) == "available"
    assert lab.cloud.attachments(volume) == []
    assert lab.cloud.users(volume) == []


def give_back(lab: Lab, guest: LabGuest, volume: str) -> None:
    assert lab.ledger.detach(guest.id, volume).status_code == HTTPStatus.ACCEPTED
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    assert guest.disks() == (0, 0)
    assert_free(lab, volume)


@pytest.mark.parametrize(
    ("bug", "refusal"), [("lp1937375", HTTPStatus.BAD_REQUEST), ("lp1762687", HTTPStatus.CONFLICT)]
)
def test_of_two_attaches_of_one_volume_at_once_one_is_accepted(
    bug: str,
    refusal: HTTPStatus,
    lab: Lab,
    stopped: LabGuest,
    new_guest: NewGuest,
    volume: str,
) -> None:
    """To the same server, and to another one."""
    other = stopped if bug == "lp1937375" else new_guest("other", running=False)
    with ThreadPoolExecutor(1) as user, lab.gate.hold(*CREATE, "before") as wait_held:
        first = user.submit(lab.ledger.attach, stopped.id, volume)
        wait_held()
        assert lab.cloud.volume_status(volume) == "available", "to Cinder it is still free"
        assert lab.ledger.attach(other.id, volume).status_code == refusal
    assert first.result().ok
    assert_attached(lab, stopped, volume)
    give_back(lab, stopped, volume)


def test_lp1908075_a_volume_that_cinder_calls_free_by_mistake_stays_with_its_server(
    lab: Lab, stopped: LabGuest, new_guest: NewGuest, volume: str
) -> None:
    """Cinder forgets its attachments over such a reset; the host knows what it has connected."""
    other = new_guest("other", running=False)
    attach(lab, stopped, volume)
    lab.cloud.as_service.volumes.reset_state(volume, "available", attach_status="detached")
    assert lab.cloud.attachments(volume) == []
    assert lab.ledger.attach(other.id, volume).status_code == HTTPStatus.BAD_REQUEST
    assert lab.cloud.attachments(volume) == []
    assert other.disks() == (0, 0)
    assert stopped.disks() == (0, 1)

    assert lab.ledger.detach(stopped.id, volume).status_code == HTTPStatus.ACCEPTED
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    assert stopped.disks() == (0, 0)
    assert_free(lab, volume)


def test_lp1813267_a_volume_that_is_still_creating_is_refused(
    lab: Lab, stopped: LabGuest, volume: str
) -> None:
    lab.cloud.as_service.volumes.reset_state(volume, "creating")
    assert lab.ledger.attach(stopped.id, volume).status_code == HTTPStatus.BAD_REQUEST
    lab.cloud.as_service.volumes.reset_state(volume, "available")
    assert_free(lab, volume)


def test_lp1826523_a_disk_that_does_not_fit_leaves_the_host_disconnected(
    lab: Lab, new_guest: NewGuest, volume: str
) -> None:
    """The only free port is the scsi controller's."""
    full = new_guest("full", with_system=False, root_ports=1)
    assert lab.ledger.attach(full.id, volume).ok
    operation = lab.ledger.wait_outcome("attach", volume)
    assert operation["outcome"] == "failed"
    assert operation["error"]["code"] == "no_free_pci_port"
    assert full.disks() == (0, 0)
    assert_free(lab, volume)


def test_lp2160224_an_attachment_is_not_shown_before_its_id_is_known(
    lab: Lab, stopped: LabGuest, volume: str
) -> None:
    with ThreadPoolExecutor(1) as user, lab.gate.hold(*CREATE, "after") as wait_held:
        user.submit(lab.ledger.attach, stopped.id, volume)
        wait_held()
        assert lab.ledger.attachments(stopped.id) == []
    assert_attached(lab, stopped, volume)
    [shown], [real] = lab.ledger.attachments(stopped.id), lab.cloud.attachments(volume)
    assert shown["attachment_id"] == real.id
    give_back(lab, stopped, volume)


def test_lp1808941_completed_is_told_only_when_it_is_so(
    lab: Lab, stopped: LabGuest, volume: str
) -> None:
    with lab.gate.hold(*COMPLETE, "before") as wait_held:
        assert lab.ledger.attach(stopped.id, volume).ok
        wait_held()
        assert "Attachment.Completed" not in told(lab, volume)
    assert_attached(lab, stopped, volume)
    assert "Attachment.Completed" in told(lab, volume)
    give_back(lab, stopped, volume)


def told(lab: Lab, volume: str) -> list[str]:
    return [event["topic"] for event in lab.ledger.history(volume)]


def test_lp1662483_a_second_detach_is_told_of_the_first(
    lab: Lab, stopped: LabGuest, volume: str
) -> None:
    attach(lab, stopped, volume)
    with lab.gate.hold(*DELETE, "before") as wait_held:
        assert lab.ledger.detach(stopped.id, volume).status_code == HTTPStatus.ACCEPTED
        wait_held()
        first = lab.ledger.operation("detach", volume)
        second = lab.ledger.detach(stopped.id, volume)
        assert second.status_code == HTTPStatus.CONFLICT
        assert first["operation_id"] in second.text
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    assert_free(lab, volume)


def test_lp1937084_an_attachment_that_somebody_else_deleted_is_detached(
    lab: Lab, stopped: LabGuest, volume: str
) -> None:
    attach(lab, stopped, volume)
    with lab.gate.hold(*DELETE, "before") as wait_held:
        assert lab.ledger.detach(stopped.id, volume).status_code == HTTPStatus.ACCEPTED
        wait_held()
        [attachment] = lab.cloud.attachments(volume)
        lab.cloud.as_service.attachments.delete(attachment.id)
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    assert stopped.disks() == (0, 0)
    assert_free(lab, volume)


def test_lp1727260_a_disk_that_is_gone_from_the_guest_already_is_detached(
    lab: Lab, stopped: LabGuest, volume: str
) -> None:
    attach(lab, stopped, volume)
    stopped.take_away(volume)
    give_back(lab, stopped, volume)


def test_lp880399_cinder_may_be_away_while_an_attachment_is_to_be_deleted(
    lab: Lab, stopped: LabGuest, volume: str
) -> None:
    attach(lab, stopped, volume)
    with lab.gate.hold(*DELETE, "before") as wait_held:
        assert lab.ledger.detach(stopped.id, volume).status_code == HTTPStatus.ACCEPTED
        wait_held()
        lab.cinder.kill()
    lab.cinder.start()
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    assert_free(lab, volume)
