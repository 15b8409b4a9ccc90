"""Whoever connects a volume again, or puts another behind a disk, sees how large it is (0069)."""

from __future__ import annotations

from typing import Any

import pytest

from aggregates.operation import Operation, Outcome
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import GIB
from ledger.trial.cinder.model import work as cinder_work
from tests.doubles.host_checks import seen_sizes
from tests.growing import size_behind, told
from tests.memory import Trouble
from tests.regressions.worlds import NEIGHBOUR, Street, Watched, attached, offloaded
from tests.world import CONTEXT, HOST, OTHER, SERVER, Broken, World, events


def has(world: World, host: str = HOST, server_id: str = SERVER) -> int:
    """Bytes of the first volume that the guest sees."""
    return seen_sizes(world.hosts[host])[server_id][world.volumes[0]]


def grown(world: World) -> World:
    """Cinder has extended the first volume, and nobody was told."""
    size_behind(world, world.cinder.volume(world.volumes[0]), 2)
    return world


def settled(world: World) -> World:
    while running := world.running():
        for operation_id in running:
            world.done(str(operation_id))
    assert (world.wrong(), world.instance.growth) == ([], {})
    return world


def flows(world: World) -> list[str]:
    return [event.flow for event in events(world, Operation.OperationStarted)]


@pytest.mark.parametrize("flow", ["reboot", "rebuild"])
def test_a_guest_that_is_started_anew_has_all_of_a_volume_that_stayed_connected(flow: str) -> None:
    world = grown(attached())
    world.done(world.act(flow))
    assert (has(world), world.wrong()) == (2 * GIB, [])


def test_a_resize_that_is_reverted_has_what_grew_meanwhile() -> None:
    """Storm 162: the source kept its connection, and was not told."""
    world = attached()
    world.done(world.act("resize", destination=OTHER))
    world.done(told(grown(world)))
    assert has(world, OTHER) == 2 * GIB
    world.done(world.act("revert_resize"))
    assert (has(world), world.wrong()) == (2 * GIB, [])


def test_a_server_gets_all_of_a_volume_that_another_one_had_connected_there() -> None:
    """Storms 1149, 1407: Cinder had told the other one, and tells nobody twice."""
    world = Street(multiattach=True, encrypted=False)
    world.add_neighbour()
    world.done(world.attach())
    grown(world)
    with world.meant(NEIGHBOUR):
        world.done(world.attach())
    assert has(world, server_id=NEIGHBOUR) == 2 * GIB


def test_what_is_new_or_has_not_grown_is_not_looked_at_again() -> None:
    """os-brick refuses to while one of several paths is down (LP 2032177)."""
    world = World()
    measured, looked = (Watched(world, HOST, f"brick.{call}") for call in ("size", "extend"))
    world.done(world.attach())
    assert len(measured.seen) == 0
    world.done(world.act("reboot"))
    assert (len(measured.seen) > 0, looked.seen) == (True, [])


def test_a_guest_whose_volume_cannot_be_looked_at_now_is_started_when_it_can() -> None:
    world = grown(attached())
    world.trouble = Trouble()
    broken = Broken(world, "brick.extend", ErrorKind.RETRYABLE)
    broken.while_ = lambda: broken.calls < 2
    world.done(world.act("reboot"))
    assert (broken.calls, has(world)) == (2, 2 * GIB)


def test_what_os_brick_cannot_look_at_again_at_all_keeps_no_guest_from_starting() -> None:
    world = grown(attached())
    world.trouble = Trouble()
    Broken(world, "brick.extend", ErrorKind.FINAL)
    world.done(world.act("reboot"))
    assert has(world) == GIB


def test_what_is_told_while_the_volume_is_brought_is_heard_when_the_guest_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Storm 994: it was connected there already, and its server was on no host yet.  Cinder had
    begun with it before the server was shelved.
    """
    world = offloaded()
    guests = world.agents[OTHER]["guests"]
    real = guests.spawn

    def while_it_grows(*args: Any, **options: Any) -> Any:
        cinder_work.end_extension(world.cinder, world.cinder.volume(world.volumes[0]), 2)
        world.requests.grow(SERVER, world.volumes[0], CONTEXT)
        return real(*args, **options)

    monkeypatch.setattr(guests, "spawn", while_it_grows, raising=False)
    world.done(world.act("unshelve", destination=OTHER))
    settled(world)
    assert (flows(world)[-1], has(world, OTHER)) == ("grow", 2 * GIB)


@pytest.mark.parametrize("driver", ["iscsi", "rbd"])
def test_a_guest_sees_the_larger_volume_that_it_was_swapped_to(driver: str) -> None:
    world = swapped(2, driver)
    assert world.operation(str(world.running()[0])).outcome is None
    settled(world)
    assert (flows(world)[-2:], has(world)) == (["swap", "grow"], 2 * GIB)


@pytest.mark.parametrize("driver", ["iscsi", "rbd"])
def test_a_guest_sees_what_the_head_of_luks_took_of_its_former_volume(driver: str) -> None:
    """Storms 233, 1679: of an encrypted volume it had all but that."""
    world = swapped(1, driver, encrypted=True)
    settled(world)
    assert (flows(world)[-1], has(world)) == ("grow", GIB)


def test_a_volume_that_is_retyped_to_one_without_encryption_is_seen_under_the_id_it_keeps() -> None:
    world = World(volumes=2, encrypted=True)
    world.done(world.attach(world.volumes[0]))
    old, new = (world.cinder.volume(volume_id) for volume_id in world.volumes)
    old.migration_status, new.migration_status = "migrating", f"target:{old.id}"
    new.encrypted = False
    world.done(world.swap(old.id, new.id, by_cinder=True))
    assert (flows(settled(world))[-2:], has(world)) == (["migrate_volume", "grow"], GIB)


def test_a_host_that_shows_the_guest_during_the_swap_does_not_end_the_wait() -> None:
    world = World(volumes=2, encrypted=False)
    world.done(world.attach(world.volumes[0]))
    world.cinder.volume(world.volumes[1]).size = 2
    operation_id = world.swap(*world.volumes)
    world.register(HOST)
    assert list(world.instance.growth) == world.volumes[1:]
    world.done(operation_id)
    assert has(settled(world)) == 2 * GIB


def test_a_swap_to_an_equal_volume_is_all_there_is_to_do() -> None:
    world = swapped(1)
    assert (flows(world)[-1], settled(world).running()) == ("swap", [])


def test_a_swap_that_fails_leaves_nothing_to_grow() -> None:
    world = swapped(2, broken="guests.copy")
    assert (flows(world)[-1], has(settled(world))) == ("swap", GIB)


def swapped(
    size_gb: int, driver: str = "iscsi", broken: str | None = None, *, encrypted: bool = False
) -> World:
    """The first volume was swapped to another of that size, or could not be; `encrypted`: it."""
    world = World(volumes=2, driver=driver, encrypted=encrypted)
    world.done(world.attach(world.volumes[0]))
    other = world.cinder.volume(world.volumes[1])
    other.size, other.encrypted = size_gb, False
    world.trouble = Trouble()
    if broken:
        Broken(world, broken, ErrorKind.FINAL)
    operation = world.run(world.swap(*world.volumes))
    assert operation.outcome is (Outcome.FAILED if broken else Outcome.COMPLETED)
    return world
