"""Converting servers that are on no host, or on two (decision 0051)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from uuid import UUID

import pytest

from aggregates.errors import (
    BusyClaimError,
    HalfConvertedError,
    NotLegacyError,
    ParkedClaimError,
)
from aggregates.operation import OperationState
from aggregates.volume import Volume
from host_agent.shared.contract.messages import ErrorKind
from tests.growing import extend
from tests.memory import Trouble
from tests.world import CONTEXT, HOST, OTHER, Broken, World


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


def test_a_volume_that_is_converted_is_held_by_its_new_attachment_alone() -> None:
    world = World(legacy=True)
    world.done(world.attach())
    world.done(world.act("convert"))
    [mapping] = world.mappings()
    volume = world.store.load(Volume, UUID(world.volumes[0]))
    assert volume.holders == {mapping.attachment_id: world.server_id}


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


def resized(*, volumes: int = 1) -> World:
    world = World(legacy=True, volumes=volumes)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id))
    world.done(world.act("resize", destination=OTHER))
    world.legacy = False
    return world


def stuck(world: World, call: str) -> str:
    """A conversion that parks because a call of the resize's source fails."""
    world.ports = world.agents[HOST]
    broken = Broken(world, call, ErrorKind.FINAL)
    broken.while_ = lambda: world.acting == HOST
    operation = world.run(world.act("convert"))
    assert operation.state is OperationState.PARKED
    broken.heal()
    return str(operation.id)


@pytest.mark.parametrize(("settled", "where"), [("confirm_resize", OTHER), ("revert_resize", HOST)])
def test_a_resized_server_is_converted_on_both_hosts_and_then_settled(
    settled: str, where: str
) -> None:
    world = resized(volumes=2)
    world.done(world.act("convert"))
    rows = world.cinder.attachments.values()
    assert Counter(row.host for row in rows) == {HOST: 2, OTHER: 2}
    assert [attachment.legacy for attachment in world.attachments()] == [False] * 4
    assert [(m.legacy, m.kept_legacy) for m in world.mappings()] == [(False, False)] * 2
    with pytest.raises(NotLegacyError):
        world.act("convert")
    world.done(world.act(settled))
    assert {row.host for row in world.cinder.attachments.values()} == {where}
    assert len(world.cinder.attachments) == 2
    assert world.wrong() == []


def test_what_the_old_calls_left_takes_its_connector_before_the_source_has_one() -> None:
    """Cinder refuses a connector to one of two attachments if the other one has its own."""
    world = resized()
    world.trouble = Trouble()
    world.done(world.act("convert"))
    met = world.trouble.met
    assert met.index("cinder.attachment_update") < met.index("cinder.attachment_create")


@pytest.mark.parametrize("call", ["cinder.attachment_create", "brick.connect"])
def test_a_conversion_that_stops_before_the_source_is_not_settled_beside_it(call: str) -> None:
    world = resized()
    operation_id = stuck(world, call)
    for settle in ("confirm_resize", "revert_resize"):
        with pytest.raises(ParkedClaimError) as refused:
            world.act(settle)
        assert refused.value.fields["operation_id"] == operation_id
    world.service.act(operation_id, "retry", "it is back", CONTEXT)
    world.done(operation_id)
    world.done(world.act("revert_resize"))
    assert world.wrong() == []


def test_a_conversion_that_was_given_up_half_way_is_confirmed_or_begun_again_and_not_reverted() -> (
    None
):
    """Cinder then has nothing that the source could go back to."""
    worlds = [resized(), resized()]
    for world in worlds:
        operation_id = stuck(world, "cinder.attachment_create")
        world.service.act(operation_id, "give_up", "the source is dead", CONTEXT)
        with pytest.raises(HalfConvertedError, match="Convert it once more"):
            world.act("revert_resize")
    confirmed, reverted = worlds
    confirmed.done(confirmed.act("confirm_resize"))
    reverted.done(reverted.act("convert"))
    reverted.done(reverted.act("revert_resize"))
    for world in worlds:
        [row] = world.cinder.attachments.values()
        assert (row.id, row.status) == (world.mappings()[0].attachment_id, "attached")
        assert world.wrong() == []


def test_a_revert_beside_other_work_is_told_of_that_first() -> None:
    world = resized()
    world.service.act(stuck(world, "cinder.attachment_create"), "give_up", "dead", CONTEXT)
    growth = extend(world)
    with pytest.raises(BusyClaimError, match=growth):
        world.act("revert_resize")


@pytest.mark.parametrize("call", ["brick.connect", "cinder.attachment_complete"])
def test_what_a_conversion_that_was_given_up_had_begun_goes_with_the_volume(call: str) -> None:
    """The ledger never learnt which row has a connector now, and the old calls do not show it."""
    world = World(legacy=True)
    world.done(world.attach())
    operation_id = stuck(world, call)
    world.service.act(operation_id, "give_up", "later", CONTEXT)
    assert set(world.records[HOST]) - {str(each.id) for each in world.attachments()}
    world.done(world.detach())
    assert world.cinder.attachments == {}
    assert world.cinder.volume(world.volumes[0]).status == "available"
    assert world.records[HOST] == {}
    assert world.wrong() == []
