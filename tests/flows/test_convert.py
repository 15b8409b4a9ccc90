"""Converting servers that are on no host, or on two (decision 0051)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aggregates.errors import VmStateError
from tests.memory import Trouble
from tests.world import OTHER, World


def shelved_while_attached() -> World:
    world = World(legacy=True)
    world.done(world.attach())
    return world.done(world.act("shelve"))


def attached_while_shelved() -> World:
    world = World(legacy=True)
    world.done(world.act("shelve"))
    return world.done(world.attach())


@pytest.mark.parametrize("begin", [shelved_while_attached, attached_while_shelved])
def test_what_is_left_of_an_offloaded_server_is_one_bare_reservation(
    begin: Callable[[], World],
) -> None:
    world = begin()
    world.legacy = False
    world.done(world.act("convert"))
    [row] = world.cinder.attachments.values()
    [mapping] = world.mappings()
    assert (mapping.attachment_id, mapping.legacy) == (row.id, False)
    assert world.cinder.volume(world.volumes[0]).status == "reserved"
    world.done(world.act("unshelve", destination=OTHER))
    assert world.cinder.volume(world.volumes[0]).status == "in-use"
    world.done(world.detach())
    assert world.cinder.attachments == {}
    assert world.cinder.volume(world.volumes[0]).status == "available"
    assert world.wrong() == []


class Watched(Trouble):
    """What the volume is in Cinder, at each point."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.seen: set[str] = set()

    def at(self, point: str, modes: tuple[str, ...]) -> str | None:
        self.seen.add(self._world.cinder.volume(self._world.volumes[0]).status)
        return super().at(point, modes)


@pytest.mark.parametrize("begin", [shelved_while_attached, attached_while_shelved])
def test_the_volume_is_the_servers_throughout(begin: Callable[[], World]) -> None:
    """Nobody else can have it between the old calls and the new ones."""
    world = begin()
    world.legacy, world.trouble = False, Watched(world)
    world.done(world.act("convert"))
    assert world.trouble.seen & {"available", "detaching"} == set()


def test_a_server_that_is_resized_is_converted_when_that_is_settled() -> None:
    world = World(legacy=True)
    world.done(world.attach())
    world.done(world.act("resize", destination=OTHER))
    with pytest.raises(VmStateError):
        world.act("convert")
    world.done(world.act("confirm_resize"))
    world.done(world.act("convert"))
    assert [mapping.legacy for mapping in world.mappings()] == [False]
    assert world.wrong() == []
