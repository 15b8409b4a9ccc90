"""What an operation is given when it is accepted, by its first event and by its plan."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from aggregates.attachment import Attachment
from aggregates.host import Host, host_uuid
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from handlers.engine.plan import Place, Side, plan_of
from handlers.flows import FLOWS
from handlers.requests.accept import AttachVolume
from handlers.requests.lanes import of_attachment
from host_agent.shared.contract.lane import LaneSide
from host_agent.shared.contract.messages import Guest, PowerState, Registration, Verb
from tests.unit.test_aggregate_facts import CREATED, MAPPED, after
from tests.world import CONTEXT, HOST, OTHER, SERVER, World, events

STRANGE = "0a0b0c0d-0000-4000-8000-000000000001"
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


def attached() -> World:
    world = World()
    return world.done(world.attach())


def test_it_knows_who_asked_in_which_request_and_trace() -> None:
    world = World()
    request = AttachVolume(server_id=SERVER, volume_id=world.volumes[0])
    context = replace(CONTEXT, traceparent=TRACE, global_request_id="req-global")
    world.requests.attach(request, context, world.fleet)
    [started] = events(world, Operation.OperationStarted)
    assert (started.traceparent, started.global_request_id) == (TRACE, "req-global")
    assert (started.request_id, started.actor) == (CONTEXT.request_id, CONTEXT.actor.stored())


def test_a_volume_that_may_be_written_is_attached_to_be_written() -> None:
    world = World()
    [lane] = world.operation(world.attach()).lanes
    assert (lane.access_mode, lane.boot_index) == ("rw", None)


def test_a_live_migration_says_where_its_destination_takes_guests() -> None:
    world = attached()
    plan = plan_of(world.operation(world.act("live_migrate", destination=OTHER)))
    assert plan.guest is not None
    assert plan.guest.destination == {
        "host": OTHER,
        **world.store.load(Host, host_uuid(OTHER)).capabilities["migration"],
    }


def test_a_revert_goes_back_to_what_the_source_has_kept() -> None:
    world = attached()
    [before] = world.mappings()
    kept = before.attachment_id
    world.done(world.act("resize", destination=OTHER))
    [lane] = world.operation(world.act("revert_resize")).lanes
    assert lane.host == OTHER
    assert lane.new == LaneSide(attachment_id=kept, host=HOST)


def test_a_move_that_changes_no_size_changes_no_definition() -> None:
    world = attached()
    changed = len(events(world, Instance.DefinitionChanged))
    world.done(world.act("resize", destination=OTHER))
    assert len(events(world, Instance.DefinitionChanged)) == changed


def test_what_a_resize_by_the_old_calls_kept_goes_with_the_servers_own() -> None:
    """Cinder has one row of both."""
    attachment = Attachment(UUID(int=7))
    attachment.record(Attachment.AttachmentCreated, **CREATED)
    mapping = after(BlockDeviceMapping, (BlockDeviceMapping.MappingCreated, MAPPED))
    switched = {"volume_id": "v", "attachment_id": "b", "kept": str(attachment.id), "legacy": True}
    mapping.record(BlockDeviceMapping.AttachmentSwitched, **switched)
    lane = of_attachment(attachment, mapping, HOST, "no mapping", [])
    assert lane.other == LaneSide(volume_id="v", attachment_id="b")


def test_what_a_host_shows_of_a_guest_is_what_it_has() -> None:
    world = World(None)
    shown = Guest(
        server_id=SERVER,
        name="vm",
        power_state=PowerState.RUNNING,
        devices=("vda", "vdb"),
        volumes=(STRANGE,),
        project_id="p",
        user_id="u",
    )
    said = Registration(service_version=1, capabilities={}, guests=(shown,), connections=())
    world.service.register(HOST, said, CONTEXT)
    assert world.store.load(Instance, UUID(SERVER)).seen == (("vda", "vdb"), (STRANGE,))


#: Flows that give a volume another attachment where a host has connected it already.
CONNECTED_ALREADY = {"convert_resized", "replace_attachment"}


@pytest.mark.parametrize("name", sorted(FLOWS.keys() - CONNECTED_ALREADY))
def test_no_host_connects_by_a_new_attachment_before_the_volume_is_ready(name: str) -> None:
    """S1, attach: Cinder answers with the attachment while it still provisions the volume."""
    told, ready = set[tuple[Place, Side]](), set[tuple[Place, Side]]()
    for stage in FLOWS[name].stages:
        for step in stage.steps:
            where = (stage.place, stage.side)
            if step.do in {Verb.ATTACHMENT_CREATE, Verb.ATTACHMENT_UPDATE}:
                told.add(where)
            elif step.do is Verb.VOLUME_WAIT_READY:
                ready.add(where)
            elif step.do is Verb.VOLUME_CONNECT:
                assert where not in told - ready
