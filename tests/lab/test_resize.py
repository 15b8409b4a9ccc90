"""Guests that are moved cold or resized: both hosts have the volumes until the user decides."""

from __future__ import annotations

import pytest

from tests.lab.control import COMPLETE, CREATE, DELETE, Lab, name_of
from tests.lab.guest import wait_until
from tests.lab.moving import HERE, THERE, Moving
from tests.lab.settings import SETTLE_S, WHEN, neighbours_in_quick, some

pytestmark = pytest.mark.lab

FLAVOR, MEMORY_MIB = "c1.m192", 192


def migrate(moving: Moving) -> None:
    moving.lab.cloud.admin("server", "migrate", "--host", THERE, moving.guest.id)


def assert_undecided(moving: Moving) -> None:
    """It runs on the other host, and the first could take it back at once."""
    assert moving.outcome("resize") == "completed"
    assert moving.lab.ledger.server_status(moving.guest.id) == "VERIFY_RESIZE"
    assert moving.guest.running_on() == [THERE]
    moving.guest.moved_to(THERE)
    moving.guest.wait_booted(2)
    for volume in moving.volumes:
        assert sorted(moving.lab.cloud.attached_hosts(volume)) == [HERE, THERE]
        assert moving.lab.cloud.users(volume) == [THERE]


def decide(moving: Moving, word: str) -> None:
    moving.lab.cloud.openstack("server", "resize", word, moving.guest.id)


def assert_settled(moving: Moving, flow: str, host: str) -> None:
    assert moving.outcome(flow) == "completed"
    wait_until(lambda: moving.guest.running_on() == [host], f"it to run on {host}", SETTLE_S)
    moving.guest.moved_to(host)
    moving.guest.wait_booted(2)
    moving.assert_on(host)
    moving.lab.ledger.wait_status(moving.guest.id, "ACTIVE")
    moving.detach()
    moving.assert_kept(moving.written)


def test_a_guest_is_moved_cold_and_stays_there(moving: Moving) -> None:
    migrate(moving)
    assert_undecided(moving)
    decide(moving, "confirm")
    assert_settled(moving, "confirm_resize", THERE)


def test_a_guest_gets_another_size_and_its_old_one_back(lab: Lab, moving: Moving) -> None:
    before = moving.guest.domain.maxMemory()
    lab.cloud.openstack("server", "resize", "--flavor", FLAVOR, moving.guest.id)
    assert_undecided(moving)
    assert moving.guest.domain.maxMemory() == MEMORY_MIB * 1024
    decide(moving, "revert")
    assert_settled(moving, "revert_resize", HERE)
    assert moving.guest.domain.maxMemory() == before


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    ("call", "who"),
    some((CREATE, "agent"), (COMPLETE, "agent"), (COMPLETE, "service")),
    ids=name_of,
)
def test_one_of_us_dies_in_a_resize_and_its_revert(
    call: tuple[str, str], who: str, when: str, lab: Lab, moving: Moving
) -> None:
    dying = lab.service if who == "service" else lab.hosts[1].agent
    with lab.dying(dying, call, when):
        migrate(moving)
    assert_undecided(moving)
    with lab.dying(dying, DELETE, when):
        decide(moving, "revert")
    assert_settled(moving, "revert_resize", HERE)


@neighbours_in_quick
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("who", some("service", "agent"))
def test_one_of_us_dies_while_a_resize_is_confirmed(
    who: str, when: str, lab: Lab, moving: Moving
) -> None:
    migrate(moving)
    assert_undecided(moving)
    with lab.dying(getattr(lab, who), DELETE, when):
        decide(moving, "confirm")
    assert_settled(moving, "confirm_resize", THERE)
