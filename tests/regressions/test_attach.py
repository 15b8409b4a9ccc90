"""Bugs others had when attaching, each under its number (Launchpad)."""

from __future__ import annotations

from uuid import UUID

import pytest

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation, OperationState, Outcome
from handlers.requests.accept import AttachVolume
from host_agent.shared.contract.messages import ErrorKind, Guest, PowerState, Registration
from host_agent.shared.contract.ports import LATE_S, PortError
from tests.doubles.host_checks import connected_paths
from tests.memory import Crash, Trouble
from tests.regressions.worlds import SILENT
from tests.world import CONTEXT, HOST, SERVER, Broken, World, events, first_point

OTHER = "11111111-2222-4333-8444-555555555555"


def other_server(world: World) -> None:
    guest = Guest(server_id=OTHER, name="other", power_state=PowerState.RUNNING)
    said = Registration(service_version=1, capabilities={}, guests=(guest,))
    world.service.register("compute-2", said, CONTEXT)


def attach_to(
    world: World, server_id: str, volume_id: str | None = None, key: str | None = None
) -> str:
    request = AttachVolume(server_id=server_id, volume_id=volume_id or world.volumes[0])
    return world.requests.attach(request, CONTEXT, world.fleet, key).operation_id


def test_lp1937375_of_two_attaches_of_one_pair_at_once_one_is_accepted() -> None:
    world = World()
    first: list[str] = []
    world.store.before_save = lambda: first.append(attach_to(world, SERVER))
    with pytest.raises(errors.AlreadyAttachedError) as refused:
        attach_to(world, SERVER)
    assert refused.value.status == 400
    assert world.run(first[0]).outcome is Outcome.COMPLETED
    assert len(world.cinder.attachments_of(world.volumes[0])) == 1


def test_lp1762687_of_two_servers_that_want_a_volume_at_once_one_gets_it() -> None:
    world = World()
    other_server(world)
    first: list[str] = []
    world.store.before_save = lambda: first.append(attach_to(world, OTHER))
    with pytest.raises(errors.ClaimedError) as refused:
        attach_to(world, SERVER)
    assert first[0] in str(refused.value), "the refusal names the operation in the way"


def test_lp1908075_the_ledger_refuses_a_second_server_whatever_cinder_says() -> None:
    world = World()
    other_server(world)
    world.run(world.attach())
    world.cinder.reset_status(
        world.volumes[0], {"status": "available", "attach_status": "detached"}
    )
    with pytest.raises(errors.AttachedElsewhereError) as refused:
        attach_to(world, OTHER)
    assert SERVER in str(refused.value)
    assert refused.value.status == 400


def test_lp1741112_a_volume_in_use_elsewhere_is_a_client_error() -> None:
    world = World()
    other_server(world)
    world.run(world.attach())
    with pytest.raises(errors.DomainError) as refused:
        attach_to(world, OTHER)
    assert 400 <= refused.value.status < 500


def test_lp1812969_rollback_deletes_once_and_keeps_the_first_error() -> None:
    at = first_point("brick.connect")
    world = World()
    world.trouble = Trouble({at: "final_after"})
    operation = world.run(world.attach())
    assert operation.outcome is Outcome.FAILED
    assert operation.first_error is not None
    assert operation.first_error["message"] == "injected after connect"
    assert len(events(world, Attachment.Deleted)) == 1
    assert world.trouble.met.count("cinder.attachment_delete") == 1


def test_lp1765742_a_rollback_that_fails_is_a_state_and_keeps_the_attachment() -> None:
    at = first_point("cinder.attachment_complete")
    world = World()
    world.trouble = Trouble({at: "final"})
    broken = Broken(world, "brick.disconnect")
    operation = world.run(world.attach())
    assert operation.state is OperationState.PARKED
    assert world.instance.vm_state == "error"
    assert [row.status for row in world.cinder.attachments_of(world.volumes[0])] == ["attaching"]
    broken.heal()
    world.service.act(str(operation.id), "retry", "disconnect mended", CONTEXT)
    assert world.run(str(operation.id)).outcome is Outcome.FAILED
    assert world.instance.vm_state == "active"
    assert world.wrong() == []


@pytest.mark.parametrize("failing", ["guests.plug", "cinder.attachment_complete"])
def test_lp1826523_every_way_out_disconnects_before_cinder_is_told(failing: str) -> None:
    at = first_point(failing)
    world = World()
    world.trouble = Trouble({at: "final"})
    assert world.run(world.attach()).outcome is Outcome.FAILED
    met = world.trouble.met
    assert met.index("brick.disconnect") < met.index("cinder.attachment_delete")
    assert world.wrong() == []


ENCRYPTING = (
    "cinder.encryption",
    "keys.passphrase",
    "guests.keep_secret",
    "brick.connect",
    "brick.format_luks",
)


@pytest.mark.parametrize("failing", ENCRYPTING)
def test_lp1812945_an_encrypted_volume_leaves_no_host_connected(failing: str) -> None:
    world = World(encrypted=True)
    Broken(world, failing, ErrorKind.FINAL)
    operation = world.run(world.attach())
    assert operation.outcome is Outcome.FAILED
    assert operation.first_error is not None
    assert operation.first_error["message"] == f"{failing} is broken"
    assert world.cinder.volume(world.volumes[0]).status == "available"
    assert not connected_paths(world.host)
    assert not world.host.read()["secrets"]
    assert world.wrong() == []


def test_lp1642628_the_secret_outlives_the_disk() -> None:
    world = World(encrypted=True)
    world.done(world.attach())
    world.trouble = Trouble()
    broken = Broken(world, "guests.unplug", ErrorKind.FINAL)
    assert world.run(world.detach()).outcome is Outcome.FAILED
    assert set(world.host.read()["secrets"]) == {world.volumes[0]}
    assert "guests.drop_secret" not in world.trouble.met
    broken.heal()
    world.done(world.detach())
    met = world.trouble.met
    assert met.index("guests.unplug") < met.index("guests.drop_secret")
    assert not world.host.read()["secrets"]


def test_lp2160224_a_mapping_never_exists_without_its_attachment_id() -> None:
    world = World()
    operation_id = world.attach()
    assert world.mappings() == []
    world.run(operation_id)
    shown = [event.attachment_id for event in events(world, BlockDeviceMapping.MappingCreated)]
    assert shown == [row.id for row in world.cinder.attachments_of(world.volumes[0])]


def test_lp1813267_a_volume_that_is_still_creating_is_a_client_error() -> None:
    world = World()
    world.cinder.volumes[world.volumes[0]].status = "creating"
    with pytest.raises(errors.AttachmentVolumeStateError, match="is creating in Cinder") as refused:
        world.attach()
    assert refused.value.status == 400
    assert world.open_operations() == []


def test_lp1833736_another_connected_attachment_is_met_with_a_clean_rollback() -> None:
    world = World()
    volume = world.volumes[0]
    stranger = world.cinder.attachment_create(volume, SERVER, None)
    world.cinder.attachment_update(stranger.id, {"host": "elsewhere"})
    world.cinder.attachment_complete(stranger.id)
    operation = world.run(world.attach())
    assert operation.outcome is Outcome.FAILED
    assert [row.id for row in world.cinder.attachments_of(volume)] == [stranger.id]
    assert world.summary()["devices"] == 0


def test_lp1581230_the_reserving_call_is_the_check() -> None:
    world = World()
    operation_id = world.attach()
    world.cinder.delete_volume(world.volumes[0])
    operation = world.run(operation_id)
    assert operation.outcome is Outcome.FAILED
    assert operation.first_error is not None
    assert operation.first_error["code"] == "not_found"


@pytest.mark.parametrize("kind", ["unknown", "unknown_after", "retryable"])
def test_lp1970642_an_update_that_fails_twice_is_tried_again(kind: str) -> None:
    at = first_point("cinder.attachment_update")
    world = World()
    world.trouble = Trouble({at: kind})
    assert world.run(world.attach()).outcome is Outcome.COMPLETED
    assert len(world.cinder.attachments_of(world.volumes[0])) == 1


def test_lp1808941_completed_is_said_only_when_it_is_so() -> None:
    world = World()
    Broken(world, "cinder.attachment_complete")
    world.run(world.attach())
    assert events(world, Attachment.Completed) == []


def test_x1_a_crash_after_the_reservation_leaves_no_unknown_attachment() -> None:
    at = first_point("cinder.attachment_create")
    world = World()
    world.trouble = Trouble({at: "crash_after"})
    assert world.run(world.attach()).outcome is Outcome.COMPLETED
    created = events(world, Attachment.AttachmentCreated)
    assert len(created) == 1
    assert created[0].adopted
    assert len(world.cinder.attachments_of(world.volumes[0])) == 1


def test_a_reservation_that_lands_after_its_sender_died_is_not_made_twice() -> None:
    """The request was on its way; Cinder carries it out when the next life has looked."""
    world = World()
    world.trouble = Trouble({first_point("cinder.attachment_create"): "crash"})
    operation_id = world.attach()
    with pytest.raises(Crash):
        world.service.advance(operation_id)
    world.boot()
    world.service.on_dispatcher_lost(operation_id)
    on_its_way = [(world.volumes[0], SERVER, None)]

    def land(seconds: float) -> None:
        world.clock.wait(seconds)
        while on_its_way:
            world.cinder.attachment_create(*on_its_way.pop())

    land(LATE_S)  # which a dispatcher gives what it takes over (tests/unit/test_dispatcher.py)
    assert world.run(operation_id).outcome is Outcome.COMPLETED
    assert len(world.cinder.attachments_of(world.volumes[0])) == 1


def test_x17_cinder_away_for_20_seconds_is_waited_out() -> None:
    world = World()
    operation_id = world.attach()
    broken = Broken(world, "cinder.attachment_create")
    began = world.clock.seconds
    broken.while_ = lambda: world.clock.seconds < began + 20
    assert world.run(operation_id).outcome is Outcome.COMPLETED


def test_reserve_leaves_alone_what_is_connected() -> None:
    """Adoption is for a bare reservation of the same server, never for a connected one."""
    world = World(volumes=1)
    stranger = world.cinder.attachment_create(world.volumes[0], SERVER, None)
    world.cinder.attachment_update(stranger.id, {"host": "elsewhere"})
    world.cinder.attachment_complete(stranger.id)
    world.run(world.attach())
    adopted = [
        str(e.originator_id)
        for e, _ in world.store.log
        if isinstance(e, Attachment.AttachmentCreated)
    ]
    assert stranger.id not in adopted


def test_many_volumes_of_one_server_attach_at_the_same_time() -> None:
    world = World(volumes=4)
    started = [attach_to(world, SERVER, volume) for volume in world.volumes]
    for operation_id in started:
        assert world.run(operation_id).outcome is Outcome.COMPLETED
    names = [d.device_name for d in world.instance.devices.values()]
    assert sorted(names) == ["vdb", "vdc", "vdd", "vde"]


def test_work_that_no_agent_can_do_is_not_accepted() -> None:
    world = World()
    request = AttachVolume(server_id=SERVER, volume_id=world.volumes[0])
    stored = len(world.store.log)
    with pytest.raises(errors.HostUnavailableError, match=HOST):
        world.requests.attach(request, CONTEXT, SILENT)
    assert len(world.store.log) == stored


def test_an_unknown_volume_is_refused_before_anything_is_written() -> None:
    world = World()
    stored = len(world.store.log)
    with pytest.raises(PortError):
        attach_to(world, SERVER, OTHER)
    assert len(world.store.log) == stored


def test_a_repeated_request_with_its_key_is_the_same_operation() -> None:
    world = World()
    assert attach_to(world, SERVER, key="k") == attach_to(world, SERVER, key="k")
    assert len(events(world, Operation.OperationStarted)) == 1


def test_a_repeated_request_is_answered_while_cinder_is_away() -> None:
    world = World()
    first = attach_to(world, SERVER, key="k")
    broken = Broken(world, "cinder.volume")
    assert attach_to(world, SERVER, key="k") == first
    assert broken.calls == 0


def test_a_key_used_for_another_request_is_refused() -> None:
    world = World(volumes=2)
    attach_to(world, SERVER, key="k")
    with pytest.raises(errors.DomainError, match="another request") as refused:
        attach_to(world, SERVER, world.volumes[1], key="k")
    assert refused.value.status == 422


def test_one_server_may_lose_sight_of_its_guest_and_keep_its_state() -> None:
    world = World()
    world.service.lost_guest(SERVER, HOST, CONTEXT)
    instance = world.store.load(Instance, UUID(SERVER))
    assert (instance.power_state, instance.vm_state) == ("nostate", "active")
