"""Volumes attached by Cinder's old calls, because an agent is too old; and converted (S1)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import pytest

from tests.lab.control import COMPLETE, UPDATE, VOLUME_ACTION, Lab, name_of
from tests.lab.guest import LabGuest, node_of, wait_node, wait_until
from tests.lab.settings import ENV, LAB_DIR, SETTLE_S, WHEN, neighbours_in_quick, some
from tests.lab.writing import Writer, assert_written

pytestmark = pytest.mark.lab

HERE = ENV["LAB_HOST"]


@contextlib.contextmanager
def old_agent(lab: Lab) -> Iterator[None]:
    """The second host's agent is one of before attachments, for a while."""
    _, second = lab.hosts
    second.agent.kill()
    lab.ledger.register_old(second.name, ENV["LAB_AGENT_TOKEN_2"], LAB_DIR / "locks-2")
    yield
    second.agent.start()


@pytest.fixture
def attached_of_old(lab: Lab, guest: LabGuest, volume: str) -> tuple[LabGuest, str]:
    with old_agent(lab):
        lab.cloud.attach(guest.id, volume)
        assert_attached_of_old(lab, guest, volume)
    return guest, volume


def assert_attached_of_old(lab: Lab, guest: LabGuest, volume: str) -> None:
    operation = lab.ledger.wait_outcome("attach", volume)
    assert operation["outcome"] == "completed"
    assert is_old(lab, volume)
    assert guest.disk(volume) == guest.disk(volume, persistent=True) is not None


def is_old(lab: Lab, volume: str) -> bool:
    """Cinder knows the server, and not how its host is connected.

    It answers 400 who asks for such an attachment alone, if the volume's format is known.
    """
    opts = {"volume_id": volume}
    [attachment] = lab.cloud.cinder.attachments.list(detailed=True, search_opts=opts)
    assert attachment.status == "attached"
    return not attachment.connection_info


def assert_gone(lab: Lab, guest: LabGuest, volume: str) -> None:
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    assert lab.cloud.volume_status(volume) == "available"
    assert lab.cloud.attachments(volume) == []
    assert lab.cloud.users(volume) == []
    assert guest.disks() == (0, 0)


def convert(lab: Lab, guest: LabGuest) -> None:
    lab.ledger.command("attachment", "convert", guest.id)


def test_a_volume_comes_and_goes_by_the_old_calls(lab: Lab, guest: LabGuest, volume: str) -> None:
    with old_agent(lab):
        lab.cloud.attach(guest.id, volume)
        assert_attached_of_old(lab, guest, volume)
        with guest.console() as console:
            wait_node(console, volume)
            lab.cloud.detach(guest.id, volume)
            assert node_of(console, volume) is None
    assert_gone(lab, guest, volume)


@pytest.mark.parametrize("when", WHEN)
def test_the_agent_dies_while_it_attaches_by_the_old_calls(
    when: str, lab: Lab, guest: LabGuest, volume: str
) -> None:
    """Of the calls to the volume the first is the service's: it reserves."""
    with old_agent(lab):
        with lab.libvirtd.stopped():
            lab.cloud.openstack("server", "add", "volume", guest.id, volume)
            lab.ledger.wait_step("attach", volume, "connect")
            with lab.dying(lab.agent, VOLUME_ACTION, when):
                lab.libvirtd.resume()
        assert_attached_of_old(lab, guest, volume)
    with lab.dying(lab.agent, VOLUME_ACTION, when):
        lab.cloud.openstack("server", "remove", "volume", guest.id, volume)
    assert_gone(lab, guest, volume)


def test_a_guest_writes_on_while_its_volume_is_converted(
    lab: Lab, attached_of_old: tuple[LabGuest, str]
) -> None:
    guest, volume = attached_of_old
    with guest.console() as console:
        writer = Writer(console, wait_node(console, volume))
        writer.wait_progress(console)
        convert(lab, guest)
        assert lab.ledger.wait_outcome("convert", volume)["outcome"] == "completed"
        assert not is_old(lab, volume)
        assert lab.cloud.attached_hosts(volume) == lab.cloud.users(volume) == [HERE]
        writer.wait_progress(console)
        last = writer.stop(console)
    lab.cloud.detach(guest.id, volume)
    assert_gone(lab, guest, volume)
    assert_written(partial(lab.cloud.data, volume), last)


@neighbours_in_quick
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", some(UPDATE, COMPLETE), ids=name_of)
def test_the_agent_dies_while_it_converts(
    call: tuple[str, str], when: str, lab: Lab, attached_of_old: tuple[LabGuest, str]
) -> None:
    guest, volume = attached_of_old
    with lab.dying(lab.agent, call, when):
        convert(lab, guest)
    assert lab.ledger.wait_outcome("convert", volume)["outcome"] == "completed"
    assert not is_old(lab, volume)
    wait_until(lambda: guest.disk(volume), "the disk to be there all the time", SETTLE_S)
    lab.cloud.detach(guest.id, volume)
    assert_gone(lab, guest, volume)
