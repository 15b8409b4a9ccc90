"""Guests that move between two hosts with their volumes, writing all the while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.lab.control import COMPLETE, CREATE, DELETE, Lab, name_of
from tests.lab.guest import wait_until
from tests.lab.moving import HERE, THERE, Moving, held
from tests.lab.settings import SETTLE_S, WHEN, neighbours_in_quick, some, without_deaths

pytestmark = pytest.mark.lab


@contextlib.contextmanager
def dead(lab: Lab) -> Iterator[None]:
    """The first host has lost its power, and is fenced; it is back afterwards."""
    first, _ = lab.hosts
    first.power_off()
    evidence = ("--reason", "lost its power", "--evidence", "the power is off")
    lab.ledger.command("host", "fence", HERE, *evidence, "--force")  # it answered just now
    try:
        yield
    finally:
        first.power_on()
        lab.ledger.command("host", "unfence", HERE, "--reason", "it is back")


def test_a_guest_moves_and_never_stops_writing(moving: Moving) -> None:
    moving.migrate()
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    moving.assert_writes_on()


def test_an_aborted_migration_leaves_all_where_it_was(lab: Lab, moving: Moving) -> None:
    with held(moving):
        server = moving.guest.id
        [migration] = lab.cloud.admin(
            "server", "migration", "list", "--server", server, "-f", "json"
        )
        lab.cloud.admin("server", "migration", "abort", server, str(migration["Id"]))
        assert moving.outcome("live_migrate") in {"cancelled", "failed"}
    moving.assert_on(HERE)
    moving.assert_writes_on()


@pytest.mark.parametrize("number", some(1, 0), ids=["source", "destination"].__getitem__)
def test_an_agent_dies_while_the_guest_moves(number: int, lab: Lab, moving: Moving) -> None:
    with held(moving):
        lab.hosts[number].agent.kill()
    lab.hosts[number].agent.start()
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    moving.assert_writes_on()


@neighbours_in_quick
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    ("call", "number"),
    some((CREATE, 1), (COMPLETE, 1), (DELETE, 0)),
    ids=name_of,
)
def test_an_agent_dies_while_cinder_works_on_a_move(
    call: tuple[str, str], number: int, when: str, lab: Lab, moving: Moving
) -> None:
    with lab.dying(lab.hosts[number].agent, call, when):
        moving.migrate()
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    moving.assert_writes_on()


@neighbours_in_quick
def test_the_service_dies_while_the_guest_moves(lab: Lab, moving: Moving) -> None:
    with held(moving):
        lab.service.kill()
    lab.service.start()
    assert moving.outcome("live_migrate") == "completed"
    moving.assert_on(THERE)
    moving.assert_writes_on()


def evacuate(moving: Moving) -> None:
    moving.lab.cloud.admin("server", "evacuate", "--host", THERE, moving.guest.id)


def assert_evacuated(moving: Moving) -> None:
    """It is there, with all that it wrote, and starts."""
    assert moving.outcome("evacuate") == "completed"
    moving.guest.moved_to(THERE)
    moving.lab.ledger.wait_status(moving.guest.id, "SHUTOFF")  # as Nova's, since 2.95
    moving.assert_kept(moving.written)
    moving.lab.cloud.admin("server", "start", moving.guest.id)
    moving.guest.wait_booted(2)


def assert_cleared_up(moving: Moving) -> None:
    """The old host came back with the guest's definition, and with what it had connected."""
    wait_until(lambda: moving.guest.defined_on() == [THERE], "the old host to clear up", SETTLE_S)
    moving.assert_on(THERE)
    moving.detach()


@without_deaths
def test_a_guest_of_a_dead_host_runs_on_the_other_one_with_all_it_wrote(
    lab: Lab, moving: Moving
) -> None:
    with dead(lab):
        evacuate(moving)
        assert_evacuated(moving)
    assert_cleared_up(moving)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", some(COMPLETE, CREATE), ids=name_of)
def test_agent_and_service_die_in_the_evacuation_of_a_dead_host(
    call: tuple[str, str], when: str, lab: Lab, moving: Moving
) -> None:
    """Who takes the guest in, then who gives up what the dead host had."""
    _, second = lab.hosts
    with dead(lab):
        with lab.gate.hold(*call, when) as wait_held:
            evacuate(moving)
            wait_held()
            second.agent.kill()
        with lab.dying(lab.service, DELETE, when):
            second.agent.start()
        assert_evacuated(moving)
    assert_cleared_up(moving)


def shelve(moving: Moving) -> None:
    moving.lab.cloud.admin("server", "shelve", moving.guest.id)


def assert_shelved(moving: Moving) -> None:
    """Off its host, its volumes reserved for it, with all that it wrote."""
    assert moving.outcome("shelve") == "completed"
    assert moving.guest.defined_on() == []
    for volume in moving.volumes:
        assert moving.lab.cloud.volume_status(volume) == "reserved"
        assert len(moving.lab.cloud.attachments(volume)) == 1
        assert moving.lab.cloud.users(volume) == []
    moving.assert_kept(moving.written)


def unshelve(moving: Moving) -> None:
    moving.lab.cloud.admin("server", "unshelve", "--host", THERE, moving.guest.id)


def assert_unshelved(moving: Moving) -> None:
    assert moving.outcome("unshelve") == "completed"
    moving.guest.moved_to(THERE)
    moving.guest.wait_booted(2)
    moving.assert_on(THERE)
    moving.detach()


@without_deaths
def test_a_shelved_guest_keeps_its_volumes_and_comes_back_on_the_other_host(
    moving: Moving,
) -> None:
    shelve(moving)
    assert_shelved(moving)
    unshelve(moving)
    assert_unshelved(moving)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(("off", "back"), some(("service", "agent"), ("agent", "service")))
def test_one_of_us_dies_in_a_shelve_and_the_other_in_the_unshelve(
    off: str, back: str, when: str, lab: Lab, moving: Moving
) -> None:
    """The service reserves, and drops the reservation; the agents connect and let go."""
    calls = {"service": (CREATE, DELETE), "agent": (DELETE, CREATE)}
    with lab.dying(getattr(lab, off), calls[off][0], when):
        shelve(moving)
    assert_shelved(moving)
    dying = lab.service if back == "service" else lab.hosts[1].agent
    with lab.dying(dying, calls[back][1], when):
        unshelve(moving)
    assert_unshelved(moving)
