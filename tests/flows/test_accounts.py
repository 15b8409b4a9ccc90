"""What the log says of an operation that did not go well: what is left, why, and by whose word."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from aggregates.attachment import Attachment
from aggregates.host import Host, host_uuid
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.operation import SERVER, Operation, OperationState, Outcome
from aggregates.volume import Volume
from handlers.requests.build import BootDisk
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.shared.contract.ports import PortError
from tests.regressions.test_fences import fence
from tests.regressions.worlds import (
    RUNNING,
    STOPPED,
    attached,
    broken_on,
    guests_on,
    mapping_of,
    run_until,
)
from tests.world import CONTEXT, HOST, OTHER, Broken, World, events

ERROR = {"kind": "final", "code": "injected"}


def error_of(call: str) -> dict[str, str]:
    return {**ERROR, "message": f"{call} is broken"}


def parked(world: World, operation_id: str, call: str) -> Operation:
    broken = Broken(world, call, ErrorKind.FINAL)
    operation = world.run(operation_id)
    assert operation.state is OperationState.PARKED
    broken.heal()
    return operation


# --- parked ----------------------------------------------------------------------------------


def test_a_parked_operation_tells_each_step_that_is_left_and_why() -> None:
    world = attached()
    operation = parked(world, world.detach(), "brick.disconnect")
    about = {"lane": 0, "volume_id": world.volumes[0], "undo": False}
    error = error_of("brick.disconnect")
    assert operation.left == [
        {**about, "step": "disconnect", "verb": "volume_disconnect", "error": error},
        {**about, "step": "delete", "verb": "attachment_delete", "error": None},
    ]


def test_a_parked_operation_tells_what_is_left_to_undo_by_the_verbs_of_undoing() -> None:
    world = World()
    broken = [Broken(world, call, ErrorKind.FINAL) for call in ("brick.connect", "guests.disk")]
    broken.append(Broken(world, "brick.disconnect", ErrorKind.FINAL))
    operation = world.run(world.attach())
    assert operation.state is OperationState.PARKED
    first = operation.left[0]
    assert (first["step"], first["verb"], first["undo"]) == ("connect", "volume_disconnect", True)


def test_a_step_for_the_whole_server_that_is_left_is_of_no_volume() -> None:
    world = attached()
    operation = parked(world, world.delete(), "guests.remove")
    assert [(each["lane"], each["volume_id"]) for each in operation.left] == [(SERVER, None)]


def test_a_server_whose_operation_is_parked_shows_which_and_why() -> None:
    world = attached()
    operation = parked(world, world.detach(), "brick.disconnect")
    assert world.instance.faults == {
        str(
            operation.id
        ): f"Operation {operation.id} (detach) is parked: brick.disconnect is broken"
    }
    assert world.instance.vm_state == "error"


# --- vouched for -----------------------------------------------------------------------------


def vouch(world: World, operation: Operation, lane: int, step: str) -> None:
    world.service.act(str(operation.id), "skip", "seen to it", CONTEXT, lane=lane, step=step)


def test_who_vouches_for_a_removed_guest_vouches_for_its_disks() -> None:
    """They are in no guest any more, and the log says by whose word."""
    world = attached(volumes=2)
    operation = parked(world, world.delete(), "guests.remove")
    vouch(world, operation, SERVER, "remove")
    assert [event.waived for event in events(world, BlockDeviceMapping.DeviceUnplugged)] == [
        "seen to it",
        "seen to it",
    ]
    [skipped] = events(world, Operation.StepSkipped)
    assert (skipped.lane, skipped.step, skipped.reason) == (SERVER, "remove", "seen to it")


def test_a_disconnect_that_was_vouched_for_says_so_and_where_it_was() -> None:
    world = attached()
    operation = parked(world, world.detach(), "brick.disconnect")
    vouch(world, operation, 0, "disconnect")
    [event] = events(world, Attachment.Disconnected)
    assert (event.waived, event.about.host) == ("seen to it", HOST)


def test_a_retry_tries_what_failed_with_all_its_attempts() -> None:
    world = attached()
    operation = parked(world, world.detach(), "brick.disconnect")
    world.service.act(str(operation.id), "retry", "mended", CONTEXT)
    record = world.operation(str(operation.id)).history.of_step(0, "disconnect", undo=False)
    assert (record.status, record.attempts) == ("pending", 0)
    world.done(str(operation.id))


def test_who_vouches_for_what_a_move_has_left_behind_says_nothing_of_where_it_went() -> None:
    """The guest that is to be removed is the former one; the server's disks stay plugged."""
    world = attached()
    world.done(world.act("resize", destination=OTHER))
    before = mapping_of(world, world.volumes[0]).state
    broken_on(world, HOST, "guests.remove", ErrorKind.FINAL)
    operation = world.run(world.act("confirm_resize"))
    [left, *_] = operation.left
    assert left["verb"] == "guest_remove"
    vouch(world, operation, SERVER, left["step"])
    assert mapping_of(world, world.volumes[0]).state is before is MappingState.PLUGGED
    assert events(world, BlockDeviceMapping.DeviceUnplugged) == []


# --- fenced ----------------------------------------------------------------------------------


def failing_to_build() -> tuple[World, str]:
    """Its guest runs, though the host says that it could not start it; it is to be removed."""
    world = World(None)
    guests = world.agents[HOST]["guests"]
    real = guests.spawn

    def spawn(*args: Any, **more: Any) -> None:
        real(*args, **more)
        raise PortError(ErrorKind.FINAL, "no_start", "it seems not to start")

    guests.spawn = spawn
    operation_id = world.build(BootDisk(volume_id=world.volumes[0], boot_index=0))

    def is_undone() -> bool:
        return any(run.undo for run in world.operation(operation_id).history.active.values())

    run_until(world, operation_id, is_undone)
    assert guests_on(world, HOST) == {world.server_id: "running"}
    return world, operation_id


def test_a_fenced_host_that_was_to_remove_a_guest_is_to_clear_it_when_it_returns() -> None:
    """The server is recorded there, and is in error: without the note it would look at home."""
    world, operation_id = failing_to_build()
    world.fence(HOST)
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert world.instance.host == HOST
    world.dead.discard(HOST)
    world.service.unfence(HOST, "repaired", CONTEXT)
    world.register(HOST)
    guests, _ = world.store.load(Host, host_uuid(HOST)).leftovers
    assert set(guests) == {world.server_id}


def test_a_server_that_could_not_be_built_shows_why_for_good() -> None:
    world, operation_id = failing_to_build()
    world.run(operation_id)
    assert world.instance.faults == {world.server_id: "it seems not to start"}
    assert [event.claimant for event in events(world, Instance.Faulted)] == [world.server_id]


def test_what_a_fence_fails_names_the_host() -> None:
    world = attached()
    operation_id = world.act("reboot")
    run_until(world, operation_id, lambda: guests_on(world, HOST) != {world.server_id: "running"})
    world.fence(HOST)
    world.run(operation_id)
    [finished] = events(world, Operation.OperationFinished)[-1:]
    assert finished.error is not None
    assert finished.error["message"] == f"Host {HOST} is fenced; nothing is sent to it."


@pytest.mark.parametrize("power_state", [RUNNING, STOPPED], ids=["running", "stopped"])
def test_what_a_guest_was_before_its_resize_it_is_again_if_a_fence_ends_it(
    power_state: PowerState,
) -> None:
    """Whoever takes it from the fenced host goes by the log; nothing there tells any more."""
    world = attached(power_state)
    broken = broken_on(world, OTHER, "brick.connect", ErrorKind.FINAL)
    operation_id = world.act("resize", destination=OTHER)

    def is_to_run_again() -> bool:
        runs = world.operation(operation_id).history.active.values()
        return any(run.undo and run.host == HOST for run in runs)

    run_until(world, operation_id, is_to_run_again)
    fence(world, HOST)
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert (world.instance.host, world.instance.power_state) == (HOST, power_state.value)
    broken.heal()
    world.done(world.act("evacuate", destination=OTHER))
    assert guests_on(world, OTHER) == {world.server_id: power_state.value}


# --- resized -----------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["confirm_resize", "revert_resize"])
def test_a_resized_server_keeps_its_former_definition_until_it_is_settled(then: str) -> None:
    world = attached()
    before = world.instance.definition
    world.done(world.act("resize", destination=OTHER, memory_mb=2048))
    resized = world.instance.definition
    assert resized is not None
    assert resized != before
    assert (world.instance.resize_source, world.instance.source_definition) == (HOST, before)
    world.done(world.act(then))
    assert world.instance.definition == (resized if then == "confirm_resize" else before)
    assert (world.instance.resize_source, world.instance.source_definition) == (None, None)
    assert world.instance.host == (OTHER if then == "confirm_resize" else HOST)


def test_a_move_that_changes_no_size_records_no_definition_anew() -> None:
    """The definition of a server is what was last asked for, and nothing else."""
    world = attached()
    world.done(world.act("resize", destination=OTHER, memory_mb=2048))
    world.done(world.act("confirm_resize"))
    changed = len(events(world, Instance.DefinitionChanged))
    world.done(world.act("live_migrate", destination=HOST))
    assert len(events(world, Instance.DefinitionChanged)) == changed


# --- converted, and swapped ----------------------------------------------------------------------


def test_a_converted_mapping_has_a_new_attachment_and_the_former_one_says_which() -> None:
    world = attached(legacy=True)
    former = mapping_of(world, world.volumes[0]).attachment_id
    world.done(world.act("convert"))
    mapping = mapping_of(world, world.volumes[0])
    assert mapping.attachment_id != former
    assert not mapping.legacy
    [new] = world.attachments()
    assert (str(new.id), new.legacy, new.state) == (mapping.attachment_id, False, "attached")
    assert new.host == HOST
    gone = [e for e in events(world, Attachment.Deleted) if str(e.originator_id) == former]
    said = [(event.converted_to, event.waived) for event in gone]
    assert said == [(mapping.attachment_id, None)]


def test_a_swapped_mapping_has_the_new_volume_under_the_old_device_name() -> None:
    world = World(volumes=2, encrypted=True)
    world.done(world.attach())
    name = mapping_of(world, world.volumes[0]).device_name
    world.done(world.swap(*world.volumes))
    [mapping] = world.mappings()
    assert (mapping.volume_id, mapping.device_name) == (world.volumes[1], name)
    devices = world.instance.devices.values()
    assert [device.volume_id for device in devices] == [world.volumes[1]]


def test_a_volume_that_cinder_has_migrated_is_held_by_the_id_that_it_keeps() -> None:
    world = World(volumes=2, encrypted=True)
    world.done(world.attach())
    old, new = world.volumes
    world.cinder.volume(old).migration_status = "migrating"
    world.cinder.volume(new).migration_status = f"target:{old}"
    world.done(world.swap(old, new, by_cinder=True))
    [mapping] = world.mappings()
    [attachment] = world.attachments()
    assert (mapping.volume_id, mapping.attachment_id) == (old, str(attachment.id))
    held = {id_: world.store.load(Volume, UUID(id_)).holders for id_ in (old, new)}
    assert held == {old: {str(attachment.id): world.server_id}, new: {}}
    assert [device.volume_id for device in world.instance.devices.values()] == [old]
