"""What the rules make of moves and copies when answers are lost and guests change."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from host_agent.libvirt import disk_xml
from host_agent.libvirt.hypervisor import Trouble
from host_agent.shared.contract.messages import ErrorKind
from host_agent.simulated.host_state import SCHEME, release, set_power
from host_agent.simulated.hypervisor import SimulatedHypervisor
from tests.agent.guest_world import PAUSED, RUNNING, SERVER, SHUTDOWN, World, fails, raised
from tests.contracts.machines import Following

WAIT_S = 90.0


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


# --- migration ----------------------------------------------------------------------------------


def test_migration_whose_answer_is_lost_has_still_happened() -> None:
    world = World()
    world.lie("migrate", "answer_lost")
    world.migrate()
    assert world.where() == (None, RUNNING)


def test_migration_that_says_yes_and_does_nothing_has_failed() -> None:
    world = World()
    world.lie("migrate", "lost")
    raised(ErrorKind.FINAL, "migration_failed", world.migrate)
    assert world.where() == (RUNNING, None)


def test_migration_that_takes_its_time_is_waited_for_and_told_of() -> None:
    world, watch = World(), Following()
    world.lie("migrate", "hold")
    thread = threading.Thread(target=world.migrate, args=(watch,))
    thread.start()
    until(lambda: watch.told)
    raised(ErrorKind.RETRYABLE, "guest_busy", lambda: world.guests.unplug(SERVER, world.old.serial))
    plugged = replace(world.old, serial=str(uuid.uuid4()), device_name="vdc")
    raised(ErrorKind.RETRYABLE, "guest_busy", lambda: world.guests.plug(SERVER, plugged))
    assert world.where() == (RUNNING, None)
    release(world.store, SERVER)
    thread.join(WAIT_S)
    assert world.where() == (None, RUNNING)


def test_guest_held_here_that_arrived_there_has_moved_and_is_removed_here() -> None:
    world = World()
    world.arrive()
    world.entry(world.store, power_state="paused", stranded=True)
    world.migrate()
    assert world.where() == (None, RUNNING)
    assert "migrate" not in world.hypervisor.asked


def test_definition_left_here_of_a_guest_that_arrived_there_is_removed() -> None:
    world = World()
    world.arrive()
    world.entry(world.store, power_state="shutdown", live=None)
    assert world.guests.stay(SERVER, world.destination) is False
    assert world.where() == (None, RUNNING)


def test_guest_that_arrived_at_a_host_which_then_lost_power_has_moved() -> None:
    world = World()
    world.migrate()
    set_power(world.other, SERVER, SHUTDOWN)
    world.migrate()
    assert world.guests.stay(SERVER, world.destination) is False
    assert world.where() == (None, SHUTDOWN)


def test_guest_whose_source_is_dead_has_arrived_unless_it_is_still_held() -> None:
    """Its new host tells: there is nobody else to ask."""
    world = World()
    assert world.there.arrived(SERVER) is False
    world.arrive(power_state="paused", stranded=True)
    raised(ErrorKind.UNKNOWN, "guest_arriving", lambda: world.there.arrived(SERVER))
    world.entry(world.other, power_state="running", stranded=False)
    assert world.there.arrived(SERVER) is True
    set_power(world.other, SERVER, SHUTDOWN)
    assert world.there.arrived(SERVER) is True, "it ran there, and its host lost power since"


def test_guest_held_here_that_did_not_arrive_runs_again() -> None:
    world = World()
    world.entry(world.store, power_state="paused", stranded=True)
    assert world.guests.stay(SERVER, world.destination) is True
    assert world.where() == (RUNNING, None)


def test_guest_its_owner_paused_stays_paused() -> None:
    world = World(PAUSED)
    assert world.guests.stay(SERVER, world.destination) is True
    assert world.where() == (PAUSED, None)


def test_guest_that_failed_to_migrate_runs_again_where_libvirt_left_it_paused() -> None:
    world = World()
    with world.other.edit() as state:
        state["connected"].clear()
    held = {"power_state": "paused", "stranded": True}
    world.hypervisor.before["migrate"] = [
        lambda: world.entry(world.store, **held),
    ]
    raised(ErrorKind.FINAL, "migration_failed", world.migrate)
    assert world.where() == (RUNNING, None)


def test_guest_that_runs_there_while_its_owner_paused_it_here_is_touched_by_nobody() -> None:
    world = World()
    world.arrive()
    world.entry(world.store, power_state="paused")
    raised(ErrorKind.UNKNOWN, "guest_in_two_places", world.migrate)
    assert world.where() == (PAUSED, RUNNING)


def test_guest_that_is_still_coming_in_has_not_arrived() -> None:
    world = World()
    world.entry(world.store, power_state="paused", stranded=True)
    world.arrive()
    raised(ErrorKind.UNKNOWN, "guest_arriving", world.migrate)
    assert world.where() == (PAUSED, PAUSED), "neither is resumed, neither removed"


def test_guest_that_left_for_a_host_that_does_not_answer_is_unknown() -> None:
    world = World()
    nobody = {"host": "nobody", "uri": SCHEME + "nobody"}
    with world.store.edit() as state:
        del state["guests"][SERVER]
    raised(
        ErrorKind.UNKNOWN,
        "destination_unreachable",
        lambda: world.guests.stay(SERVER, nobody),
    )


def test_once_begun_a_migration_that_cannot_be_seen_is_unknown() -> None:
    world = World()
    world.hypervisor.before["migration"] = [lambda: None, fails(Trouble.UNREACHABLE)]
    raised(ErrorKind.UNKNOWN, "hypervisor_lost", world.migrate)


def test_once_begun_a_migration_whose_guest_cannot_be_looked_at_is_unknown() -> None:
    world = World()

    def unreachable(server_id: str) -> None:
        fails(Trouble.UNREACHABLE)()

    world.hypervisor.before["migrate"] = [lambda: setattr(world.hypervisor, "domain", unreachable)]
    raised(ErrorKind.UNKNOWN, "hypervisor_unreachable", world.migrate)


def test_guest_whose_disk_is_being_copied_does_not_migrate_now() -> None:
    world = World()
    world.hypervisor.copy(SERVER, "vdb", disk_xml.build(world.new))
    raised(ErrorKind.RETRYABLE, "guest_busy", world.migrate)


@pytest.mark.parametrize("phase", ["held here", "at both", "here no more"])
def test_agent_killed_during_a_migration_finds_out_where_the_guest_is(phase: str) -> None:
    world = World()
    if phase == "held here":
        world.entry(world.store, power_state="paused", stranded=True)
        assert world.guests.stay(SERVER, world.destination) is True
        world.migrate()
    else:
        world.arrive()
        world.entry(world.store, power_state="paused", stranded=True)
        if phase == "here no more":
            world.guests.remove(SERVER)
        world.migrate()
    assert world.where() == (None, RUNNING)


# --- copies -------------------------------------------------------------------------------------


def test_definition_is_switched_before_the_guest_so_that_no_stop_loses_writes() -> None:
    world = World()
    world.copy()
    assert world.hypervisor.asked == ["copy", "update", "end_copy"]
    assert world.sources() == ("/new",)


def test_guest_that_stops_with_its_definition_switched_is_on_the_new_volume() -> None:
    world = World()
    world.hypervisor.before["end_copy"] = [lambda: set_power(world.store, SERVER, SHUTDOWN)]
    world.copy()
    assert world.sources() == ("/new",)
    assert world.guests.stay_on(SERVER, world.new) is False


def test_guest_that_cannot_be_switched_keeps_the_old_volume_in_both_copies() -> None:
    world = World()
    world.hypervisor.before["end_copy"] = [fails(Trouble.OTHER)] * 5
    raised(ErrorKind.FINAL, "copy_failed", world.copy)
    assert world.sources() == ("/old",)
    assert world.hypervisor.copying(SERVER, "vdb") is None


def test_copy_that_breaks_off_leaves_the_old_volume_in_both_copies() -> None:
    world = World()

    def break_off() -> None:
        SimulatedHypervisor(world.store).end_copy(SERVER, "vdb", switch=False)

    world.hypervisor.before["end_copy"] = [break_off]
    raised(ErrorKind.FINAL, "copy_failed", world.copy)
    assert world.sources() == ("/old",)


def test_agent_killed_between_definition_and_guest_goes_either_way() -> None:
    for forward in (True, False):
        world = World()
        world.hypervisor.before["end_copy"] = [fails(Trouble.LOST)]
        raised(ErrorKind.UNKNOWN, "hypervisor_lost", world.copy)
        assert set(world.sources()) == {"/old", "/new"}
        if forward:
            world.copy()
            assert world.sources() == ("/new",)
        else:
            assert world.guests.stay_on(SERVER, world.new) is True
            assert world.sources() == ("/old",)


def test_copy_that_takes_its_time_is_told_of_and_can_be_called_off() -> None:
    world, watch = World(), Following(cancelled_at=5)
    world.lie("copy", "hold")
    raised(ErrorKind.FINAL, "cancelled", lambda: world.copy(watch))
    assert watch.told
    assert world.sources() == ("/old",)


def test_copy_that_takes_its_time_is_switched_when_ready() -> None:
    world, watch = World(), Following()
    world.lie("copy", "hold")
    thread = threading.Thread(target=world.copy, args=(watch,))
    thread.start()
    until(lambda: watch.told)
    release(world.store, SERVER)
    thread.join(WAIT_S)
    assert world.sources() == ("/new",)


def test_once_begun_a_copy_that_cannot_be_seen_is_unknown() -> None:
    world = World()
    world.lie("copy", "hold")
    world.hypervisor.before["copying"] = [fails(Trouble.UNREACHABLE)]
    raised(ErrorKind.UNKNOWN, "hypervisor_unreachable", world.copy)


def test_switched_guest_whose_definition_was_left_behind_is_completed() -> None:
    world = World()
    world.hypervisor.copy(SERVER, "vdb", disk_xml.build(world.new))
    world.hypervisor.end_copy(SERVER, "vdb", switch=True)
    assert world.sources() == ("/new", "/old")
    world.copy()
    assert world.sources() == ("/new",)


def test_guest_that_is_gone_has_no_copy() -> None:
    world = World()
    world.guests.remove(SERVER)
    raised(ErrorKind.FINAL, "guest_missing", world.copy)
