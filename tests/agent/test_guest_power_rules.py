"""What the rules about power make of guests and hypervisors that do not do as they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from host_agent.libvirt.hypervisor import Trouble
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.simulated.host_state import set_power
from tests.agent.guest_world import PAUSED, RUNNING, SERVER, SHUTDOWN, World, fails, raised
from tests.doubles.host_checks import broken_invariants

DEFINITION = f"<domain><name>g</name><uuid>{SERVER}</uuid><devices/></domain>"


def spawn(world: World, *, running: bool = True) -> PowerState:
    return world.guests.spawn(SERVER, DEFINITION, [world.old], running=running)


@pytest.mark.parametrize(
    ("call", "power", "act"),
    [
        ("spawn", SHUTDOWN, spawn),
        ("start", SHUTDOWN, lambda world: world.guests.start(SERVER)),
        ("stop", RUNNING, lambda world: world.guests.stop(SERVER, force=True)),
        ("pause", RUNNING, lambda world: world.guests.pause(SERVER)),
        ("resume", PAUSED, lambda world: world.guests.resume(SERVER)),
        ("remove", RUNNING, lambda world: world.guests.remove(SERVER)),
        ("replace", SHUTDOWN, lambda world: world.guests.replace(SERVER, world.new)),
    ],
)
def test_request_that_is_lost_is_made_again_and_one_always_ignored_is_unknown(
    call: str, power: PowerState, act: Callable[[World], Any]
) -> None:
    world = World(power)
    world.lie(call, "lost")
    act(world)
    world = World(power)
    world.lie(call, "ignored")
    raised(ErrorKind.UNKNOWN, "guest_unsettled", lambda: act(world))


def test_guest_that_hears_shuts_itself_down() -> None:
    world = World()
    assert world.guests.stop(SERVER, force=False) is SHUTDOWN
    assert world.hypervisor.asked == ["shutdown"]


def test_guest_that_is_deaf_is_powered_off_when_its_time_is_up() -> None:
    world = World()
    world.lie("stop", "deaf")
    assert world.guests.stop(SERVER, force=False) is SHUTDOWN
    assert world.hypervisor.asked[-1] == "destroy"


def test_deaf_guest_is_waited_for_once_however_often_it_must_be_powered_off() -> None:
    world = World()
    world.lie("stop", "deaf")
    world.hypervisor.before["destroy"] = [fails(Trouble.DOMAIN_INACTIVE)]
    assert world.guests.stop(SERVER, force=False) is SHUTDOWN
    assert world.hypervisor.asked == ["shutdown", "destroy", "destroy"]


def test_forced_stop_does_not_ask_the_guest() -> None:
    world = World()
    world.guests.stop(SERVER, force=True)
    assert world.hypervisor.asked == ["destroy"]


def test_guest_that_somebody_else_started_is_started() -> None:
    world = World(SHUTDOWN)
    world.hypervisor.before["start"] = [lambda: set_power(world.store, SERVER, RUNNING)]
    assert world.guests.start(SERVER) is RUNNING


def test_guest_started_over_a_connection_that_broke_is_looked_at() -> None:
    world = World(SHUTDOWN)
    world.hypervisor.before["start"] = [fails(Trouble.LOST)]
    raised(ErrorKind.UNKNOWN, "hypervisor_lost", lambda: world.guests.start(SERVER))


def test_guest_that_somebody_starts_while_it_is_defined_is_left_running() -> None:
    world = World(SHUTDOWN)
    world.hypervisor.before["define"] = [lambda: set_power(world.store, SERVER, RUNNING)]
    assert spawn(world, running=False) is RUNNING


def test_guest_is_not_started_from_a_definition_with_other_disks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(SHUTDOWN)
    monkeypatch.setattr(world.hypervisor, "define", lambda domain: None)
    world.old = world.new
    raised(ErrorKind.UNKNOWN, "guest_unsettled", lambda: spawn(world))
    assert world.where() == (SHUTDOWN, None)


def test_spawn_leaves_a_sane_host() -> None:
    world = World(SHUTDOWN)
    assert spawn(world) is RUNNING
    assert broken_invariants(world.store) == ["/new is connected and unused"]
