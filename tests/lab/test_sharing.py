"""One volume of two guests that write to it: on one host, and on two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.lab.control import COMPLETE, DELETE, UPDATE, Lab, name_of
from tests.lab.guest import LabGuest, wait_node, wait_until
from tests.lab.settings import ENV, SETTLE_S, WHEN, some
from tests.lab.writing import FIRST, Writer, assert_written

pytestmark = pytest.mark.lab

MULTIATTACH = "2.60"
FURTHER = 2 * FIRST


def add(lab: Lab, guest: LabGuest, volume: str) -> None:
    words = ("server", "add", "volume", guest.id, volume)
    lab.cloud.openstack(*words, OS_COMPUTE_API_VERSION=MULTIATTACH)


def assert_plugged(guest: LabGuest, volume: str) -> None:
    wait_until(lambda: guest.disk(volume), "the disk to be plugged", SETTLE_S)


def remove(lab: Lab, guest: LabGuest, volume: str) -> None:
    lab.cloud.openstack("server", "remove", "volume", guest.id, volume)


def assert_parted(lab: Lab, guest: LabGuest, volume: str) -> None:
    assert lab.ledger.wait_outcome("detach", volume)["outcome"] == "completed"
    assert guest.disks() == (0, 0)


@pytest.mark.parametrize("host", some(ENV["LAB_HOST_2"], ENV["LAB_HOST"]))
def test_two_guests_write_to_one_volume_and_part_from_it_one_by_one(
    host: str,
    lab: Lab,
    new_guest: Callable[..., LabGuest],
    new_volume: Callable[[str], str],
    backend: str,
) -> None:
    """The first to leave takes nothing away from the other, though they share a host."""
    volume = new_volume(f"{backend}-multi")
    first, second = new_guest("first"), new_guest("second", host=host)
    for guest in first, second:
        add(lab, guest, volume)
        assert_plugged(guest, volume)
    with first.console() as one, second.console() as two:
        writers = [
            Writer(one, wait_node(one, volume), FIRST),
            Writer(two, wait_node(two, volume), FURTHER),
        ]
        writers[0].wait_progress(one)
        ended = writers[0].stop(one)
        remove(lab, first, volume)
        assert_parted(lab, first, volume)
        writers[1].wait_progress(two)
        last = writers[1].stop(two)
    assert lab.cloud.users(volume) == [host]
    lab.cloud.detach(second.id, volume)
    assert lab.cloud.users(volume) == []
    assert_written(partial(lab.cloud.data, volume), ended, FIRST)
    assert_written(partial(lab.cloud.data, volume), last, FURTHER)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", some(UPDATE, COMPLETE), ids=name_of)
def test_the_agent_dies_while_one_of_two_guests_gets_the_volume_and_while_one_gives_it_back(
    call: tuple[str, str],
    when: str,
    lab: Lab,
    new_guest: Callable[..., LabGuest],
    new_volume: Callable[[str], str],
    backend: str,
) -> None:
    """The other one writes all the while, through the connection that they share."""
    volume = new_volume(f"{backend}-multi")
    first, second = new_guest("first"), new_guest("second")
    add(lab, first, volume)
    assert_plugged(first, volume)
    with first.console() as one, second.console() as two:
        writer = Writer(one, wait_node(one, volume), FIRST)
        with lab.dying(lab.agent, call, when):
            add(lab, second, volume)
        assert lab.ledger.wait_outcome("attach", volume)["outcome"] == "completed"
        assert [item.status for item in lab.cloud.attachments(volume)] == ["attached"] * 2
        writer.wait_progress(one)

        other = Writer(two, wait_node(two, volume), FURTHER)
        ended = writer.stop(one)
        with lab.dying(lab.agent, DELETE, when):
            remove(lab, first, volume)
        assert_parted(lab, first, volume)
        assert [item.instance for item in lab.cloud.attachments(volume)] == [second.id]
        other.wait_progress(two)
        last = other.stop(two)
    assert lab.cloud.users(volume) == [ENV["LAB_HOST"]]
    lab.cloud.detach(second.id, volume)
    assert lab.cloud.users(volume) == []
    assert_written(partial(lab.cloud.data, volume), ended, FIRST)
    assert_written(partial(lab.cloud.data, volume), last, FURTHER)
