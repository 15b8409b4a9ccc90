"""One volume of two guests: on one host, and on two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.lab.control import Lab
from tests.lab.guest import LabGuest, wait_node, wait_until
from tests.lab.settings import ENV
from tests.lab.world import SETTLE_S
from tests.lab.writing import FIRST, Writer, assert_written

pytestmark = pytest.mark.lab

MULTIATTACH = "2.60"
FURTHER = 2 * FIRST


@pytest.mark.parametrize("host", [ENV["LAB_HOST"], ENV["LAB_HOST_2"]], ids=["one", "two"])
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
        add = ("server", "add", "volume", guest.id, volume)
        lab.cloud.openstack(*add, OS_COMPUTE_API_VERSION=MULTIATTACH)
        wait_until(lambda guest=guest: guest.disk(volume), "the disk to be plugged", SETTLE_S)  # type: ignore[misc]
    with first.console() as one, second.console() as two:
        writers = [
            Writer(one, wait_node(one, volume), FIRST),
            Writer(two, wait_node(two, volume), FURTHER),
        ]
        writers[0].wait_progress(one)
        ended = writers[0].stop(one)
        lab.cloud.openstack("server", "remove", "volume", first.id, volume)
        wait_until(lambda: first.disks() == (0, 0), "the disk to be unplugged", SETTLE_S)
        writers[1].wait_progress(two)
        last = writers[1].stop(two)
    assert lab.cloud.users(volume) == [host]
    lab.cloud.detach(second.id, volume)
    assert lab.cloud.users(volume) == []
    assert_written(partial(lab.cloud.data, volume), ended, FIRST)
    assert_written(partial(lab.cloud.data, volume), last, FURTHER)
