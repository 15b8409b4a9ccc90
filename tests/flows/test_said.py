"""What events say of a flow, where no later step would miss it: history and people read it."""

from __future__ import annotations

from operator import methodcaller
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.instance import Instance
from aggregates.operation import Operation
from handlers.requests import inventory
from handlers.requests.build import BootDisk
from host_agent.shared.contract.guest_xml import kept
from tests.flows import drifted
from tests.world import CONTEXT, HOST, OTHER, World, events


def test_a_conversion_says_which_attachment_stands_for_the_old_one() -> None:
    world = World(legacy=True)
    world.done(world.attach()).done(world.act("convert"))
    [mapping] = world.mappings()
    [disconnected] = events(world, Attachment.Disconnected)
    [deleted] = events(world, Attachment.Deleted)
    assert {disconnected.converted_to, deleted.converted_to} == {mapping.attachment_id}
    old, new = (event.device_path for event in events(world, Attachment.Connected))
    assert old == new
    assert new


def test_a_server_is_built_by_the_calls_that_its_agents_know() -> None:
    world = World(None, volumes=2, legacy=True)
    first, second = world.volumes
    operation_id = world.build(BootDisk(volume_id=first, boot_index=0), BootDisk(volume_id=second))
    assert [lane.legacy for lane in world.operation(operation_id).lanes] == [True, True]
    assert all(attachment.legacy for attachment in world.done(operation_id).attachments())


def test_a_server_boots_of_a_bootable_volume_and_may_have_others() -> None:
    world = World(None, volumes=2)
    root, data = world.volumes
    world.cinder.volume(data).bootable = False
    with pytest.raises(errors.NotBootableError):
        world.build(BootDisk(volume_id=data, boot_index=0), BootDisk(volume_id=root))
    assert events(world, Operation.OperationStarted) == []
    disks = (BootDisk(volume_id=root, boot_index=0), BootDisk(volume_id=data, boot_index=1))
    world.done(world.build(*disks))


def test_a_server_that_boots_of_a_volume_that_nobody_writes_has_it_read_only() -> None:
    world = World(None, volumes=2)
    root, data = world.volumes
    world.cinder.volume(root).readonly = True
    disks = (BootDisk(volume_id=root, boot_index=0), BootDisk(volume_id=data))
    lanes = world.operation(world.build(*disks)).lanes
    assert [lane.access_mode for lane in lanes] == ["ro", "rw"]


def test_an_attachment_that_was_nobodys_is_in_the_history_once_it_is_deleted() -> None:
    world = drifted.attachment_unknown()
    world.done(drifted.repair(world))
    [disowned] = events(world, Attachment.Disowned)
    assert disowned.volume_id == world.volumes[1]


def test_a_host_shows_its_guests_again_while_a_move_decides_whose_they_are() -> None:
    world = World()
    world.done(world.attach())
    world.fence(HOST)
    operation_id = world.act("evacuate", destination=OTHER)
    world.service.change_host(HOST, methodcaller("unfence", "repaired"), CONTEXT)
    assert world.register(HOST)["again"]
    world.run(operation_id)  # it is not taken away any more: the host runs the guest again
    assert not world.register(HOST)["again"]


def test_a_guest_that_a_host_loses_is_missed_only_if_its_server_is_there() -> None:
    world = World()
    stored = len(world.store.log)
    for server_id, host in [(world.server_id, OTHER), (str(UUID(int=9)), HOST)]:
        world.service.lost_guest(server_id, host, CONTEXT)
    assert len(world.store.log) == stored
    world.service.lost_guest(world.server_id, HOST, CONTEXT)
    assert world.instance.power_state == "nostate"


def test_an_operations_lane_says_of_a_volume_what_the_server_has_it_as() -> None:
    world = World()
    world.done(world.attach(tag="data", device="/dev/sdc", delete_on_termination=True))
    [mapping] = world.mappings()
    [lane] = world.operation(world.act("reboot")).lanes
    for fact in ("bdm_id", "attachment_id", "serial", "tag", "delete_on_termination"):
        assert getattr(lane, fact) == getattr(mapping, fact, str(mapping.id)), fact
    assert (lane.device_name, lane.tag) == ("sdc", "data")


def test_a_definition_that_was_kept_whole_is_kept_in_part_when_it_is_shown_again() -> None:
    """Older versions kept all of it, and no list of what was dropped; now one that is the same
    needs no second look only if nothing had to be dropped.
    """
    odd = "<domain><name>vm</name><os><loader>/tmp/evil</loader></os><devices/></domain>"
    wanted = kept(odd)
    assert wanted.dropped
    instance = World().instance
    instance.record(Instance.DefinitionChanged, definition=odd)
    assert inventory._definition(odd, instance) == (wanted.definition, list(wanted.dropped))
