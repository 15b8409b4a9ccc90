"""What a request about a volume is refused for, and that the refusal says what it is about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggregates import errors
from aggregates.base import Event
from aggregates.operation import Operation, OperationState
from handlers.requests.accept import AttachVolume, SwapVolume
from handlers.requests.build import BootDisk
from handlers.requests.operator import acts
from host_agent.shared.contract.messages import ErrorKind, PowerState
from host_agent.simulated.host_state import set_power
from tests.regressions.worlds import attached
from tests.world import CONTEXT, OTHER, SERVER, Broken, World, events

RUNNING, STOPPED = PowerState.RUNNING, PowerState.SHUTDOWN


def refusal(ask: Callable[[], Any]) -> str:
    with pytest.raises(errors.DomainError) as raised:
        ask()
    return str(raised.value)


# --- swap ------------------------------------------------------------------------------------


def with_a_spare(power_state: PowerState = RUNNING, **more: Any) -> World:
    """A server with the first of two volumes."""
    world = World(power_state, volumes=2, **more)
    return world.done(world.attach())


def swap(world: World, **more: Any) -> str:
    old, new = world.volumes
    asked = SwapVolume(server_id=SERVER, volume_id=old, new_volume_id=new)
    request = replace(asked, **more)
    return refusal(lambda: world.requests.swap(request, CONTEXT, world.fleet, None))


def test_lp1673090_a_guest_that_does_not_run_is_refused_a_swap() -> None:
    refused = swap(with_a_spare(STOPPED))
    assert refused == f"Cannot 'swap_volume' instance {SERVER} while it is in vm_state stopped"


def test_a_swap_of_a_volume_that_the_server_has_not_is_refused() -> None:
    world = World(volumes=2)
    assert swap(world) == f"Instance {SERVER} is not attached to volume {world.volumes[0]}"


def test_a_swap_of_a_volume_that_was_detached_is_refused() -> None:
    world = with_a_spare()
    world.done(world.detach())
    assert swap(world) == f"Instance {SERVER} is not attached to volume {world.volumes[0]}"


def test_a_swap_waits_for_whatever_else_is_done_to_the_server() -> None:
    world = with_a_spare()
    spare = world.attach(world.volumes[1])
    assert f"Instance {SERVER} is claimed by operation {spare}" in swap(world)


@pytest.mark.parametrize("status", ["reserved", "error"])
def test_a_swap_to_a_volume_that_is_not_to_be_had_is_refused(status: str) -> None:
    world = with_a_spare()
    world.cinder.volume(world.volumes[1]).status = status
    assert "New volume must be detached in order to swap." in swap(world)


def test_a_swap_to_a_volume_that_the_ledger_knows_to_be_held_is_refused() -> None:
    """Whatever Cinder says of it."""
    world = attached(volumes=2)
    world.cinder.volume(world.volumes[1]).status = "available"
    assert "New volume must be detached in order to swap." in swap(world)


def test_a_swap_to_a_smaller_volume_is_refused() -> None:
    world = with_a_spare()
    world.cinder.volume(world.volumes[0]).size += 1
    assert "New volume must be the same size or larger." in swap(world)


@pytest.mark.parametrize("by_cinder", [False, True], ids=["a user", "cinder"])
@pytest.mark.parametrize("which", [0, 1], ids=["old", "new"])
def test_lp1775418_a_swap_with_a_multi_attach_volume_on_either_side_is_refused(
    which: int, by_cinder: bool
) -> None:
    """Though one server alone has it, and whoever asks (S3)."""
    world = with_a_spare()
    old, new = (world.cinder.volume(volume_id) for volume_id in world.volumes)
    (old, new)[which].multiattach = True
    if by_cinder:
        old.migration_status, new.migration_status = "migrating", f"target:{old.id}"
    assert "Swapping multi-attach volumes is not supported." in swap(world, by_cinder=by_cinder)


def test_a_user_may_not_end_a_migration_of_cinder() -> None:
    world = with_a_spare()
    world.cinder.volume(world.volumes[0]).migration_status = "migrating"
    refused = swap(world)
    assert world.volumes[0] in refused
    assert "migrating" in refused


@pytest.mark.parametrize("status", [None, "none", "success", "error"])
def test_lp2112187_cinder_may_not_swap_what_it_does_not_migrate(status: str | None) -> None:
    world = with_a_spare()
    world.cinder.volume(world.volumes[0]).migration_status = status
    assert world.volumes[0] in swap(world, by_users=False, by_cinder=True)


def test_a_volume_that_is_retyped_is_not_swapped_by_a_user() -> None:
    world = with_a_spare()
    world.cinder.volume(world.volumes[0]).status = "retyping"
    refused = swap(world)
    assert world.volumes[0] in refused
    assert "retyping" in refused


# --- attach and detach -----------------------------------------------------------------------


def test_a_detach_of_a_volume_that_the_server_has_not_is_refused() -> None:
    world = World()
    refused = refusal(world.detach)
    assert refused == f"Instance {SERVER} is not attached to volume {world.volumes[0]}"


def test_a_detach_waits_for_what_is_done_to_the_whole_server() -> None:
    world = attached()
    reboot = world.act("reboot")
    assert f"Instance {SERVER} is claimed by operation {reboot}" in refusal(world.detach)


def test_an_attach_to_a_server_whose_move_is_not_settled_is_refused() -> None:
    world = with_a_spare(STOPPED)
    world.done(world.act("resize", destination=OTHER))
    asked = AttachVolume(server_id=SERVER, volume_id=world.volumes[1])
    words = refusal(lambda: world.requests.attach(asked, CONTEXT, world.fleet))
    assert words == str(
        errors.VmStateError(action="attach_volume", server_id=SERVER, vm_state="resized")
    )


def test_a_second_attach_of_a_volume_is_refused() -> None:
    world = attached()
    refused = refusal(world.attach)
    assert refused == f"Invalid volume: volume {world.volumes[0]} already attached"


# --- root volumes ------------------------------------------------------------------------------


def attach_root(world: World, volume_id: str) -> str:
    asked = AttachVolume(server_id=world.server_id, volume_id=volume_id, is_root=True)
    return refusal(lambda: world.requests.attach(asked, CONTEXT, world.fleet, None))


def boots_from_volume() -> World:
    world = World(None, volumes=2)
    return world.done(world.build(BootDisk(volume_id=world.volumes[0], boot_index=0)))


def rootless() -> World:
    world = boots_from_volume()
    world.done(world.act("stop"))
    return world.done(world.detach(root_allowed=True))


def test_a_root_volume_is_attached_only_to_a_server_that_is_off() -> None:
    world = World()
    assert attach_root(world, world.volumes[0]) == (
        f"Can't attach root device volume: instance {SERVER} is active, and a root volume is"
        " changed only while it is stopped or shelved_offloaded."
    )


def test_a_root_volume_is_detached_only_from_a_server_that_is_off() -> None:
    world = boots_from_volume()
    assert refusal(lambda: world.detach(root_allowed=True)) == (
        f"Can't detach root device volume: instance {world.server_id} is active, and a root volume"
        " is changed only while it is stopped or shelved_offloaded."
    )


def test_a_server_that_boots_from_no_volume_has_no_place_for_one() -> None:
    world = World(STOPPED)
    assert attach_root(world, world.volumes[0]) == (
        f"Instance {SERVER} has no vacant place for a root device volume:"
        " it was not built to boot from a volume."
    )


def test_a_server_that_has_its_root_volume_has_no_place_for_another() -> None:
    world = boots_from_volume()
    world.done(world.act("stop"))
    assert attach_root(world, world.volumes[1]) == (
        f"Instance {world.server_id} has no vacant place for a root device volume:"
        f" volume {world.volumes[0]} is its root device volume."
    )


def test_a_volume_that_the_server_has_as_a_disk_is_not_its_root_as_well() -> None:
    world = boots_from_volume()
    world.done(world.attach(world.volumes[1])).done(world.act("stop"))
    world.done(world.detach(root_allowed=True))
    assert attach_root(world, world.volumes[1]) == (
        f"Invalid volume: volume {world.volumes[1]} already attached"
    )


@pytest.mark.parametrize("flow", ["start", "reboot", "rebuild", "unshelve"])
def test_nothing_starts_a_guest_without_its_root_volume(flow: str) -> None:
    world = boots_from_volume()
    world.done(world.act("shelve" if flow == "unshelve" else "stop"))
    world.done(world.detach(root_allowed=True))
    where = {"destination": OTHER} if flow == "unshelve" else {}
    refused = refusal(lambda: world.act(flow, **where))
    assert refused.startswith(f"Can't {flow} instance without a root device volume.")
    assert f"`openstack server add volume --device /dev/vda {world.server_id} " in refused


def test_the_place_of_a_root_volume_that_is_on_its_way_out_may_come_free() -> None:
    """So what is refused is not for good: the claim is named, that can be waited for."""
    world = boots_from_volume()
    world.done(world.act("stop"))
    leaving = world.detach(root_allowed=True)
    assert f"claimed by operation {leaving}" in attach_root(world, world.volumes[1])


def test_of_two_volumes_for_the_place_of_the_root_the_second_is_refused_at_once() -> None:
    """And the place is free again where the first one does not get there."""
    world = rootless()
    third = world.cinder.add_volume(bootable=True).id
    first = world.attach(world.volumes[1], is_root=True)
    assert f"claimed by operation {first}" in attach_root(world, third)
    refused = refusal(lambda: world.attach(third, device="/dev/vda"))
    assert f"claimed by operation {first}" in refused
    Broken(world, "brick.connect", ErrorKind.FINAL)
    assert world.run(first).outcome == "failed"
    assert world.instance.vacant_root == "vda"


@pytest.mark.parametrize("device", ["/dev/vda", "vda"])
def test_a_volume_is_the_root_by_its_device_name(device: str) -> None:
    world = rootless()
    world.done(world.attach(world.volumes[1], device=device))
    [mapping] = world.mappings()
    assert (mapping.boot_index, mapping.device_name) == (0, "vda")
    world.done(world.act("start"))


@pytest.mark.parametrize("device", [None, "/dev/vdb", "/dev/sda"])
def test_a_volume_without_the_roots_device_name_is_never_the_root(device: str | None) -> None:
    """Bootable or not: whoever does not say so is not guessed to mean it."""
    world = rootless()
    world.done(world.attach(world.volumes[1], device=device))
    assert {m.volume_id: m.boot_index for m in world.mappings() if m.volume_id} == {
        world.volumes[1]: None
    }
    assert world.instance.vacant_root == "vda"


def test_who_names_the_roots_device_before_that_is_detached_is_told_to_wait() -> None:
    world = boots_from_volume()
    world.done(world.act("stop"))
    taken = "The supplied device path (/dev/vda) is in use."
    assert refusal(lambda: world.attach(world.volumes[1], device="/dev/vda")) == taken
    leaving = world.detach(root_allowed=True)
    refused = refusal(lambda: world.attach(world.volumes[1], device="/dev/vda"))
    assert f"claimed by operation {leaving}" in refused
    world.run(leaving)
    world.done(world.attach(world.volumes[1], device="/dev/vda"))


def test_a_running_server_gets_no_root_volume_by_its_name_either() -> None:
    """Somebody has started its guest by hand."""
    world = rootless()
    set_power(world.host, world.server_id, RUNNING)
    world.register()
    refused = refusal(lambda: world.attach(world.volumes[1], device="/dev/vda"))
    assert refused.startswith("Can't attach root device volume: instance")


def test_a_root_volume_does_not_wait_for_another_volume_of_the_server() -> None:
    world = boots_from_volume()
    world.done(world.act("stop"))
    world.done(world.detach(root_allowed=True))
    third = world.cinder.add_volume(bootable=True).id
    world.attach(world.volumes[1])  # under way
    world.volumes.append(third)
    world.done(world.attach(third, is_root=True))


# --- what an operator may not do -----------------------------------------------------------------


def parked(world: World, operation_id: str, call: str) -> str:
    """Broken for good at this call."""
    broken = Broken(world, call, ErrorKind.FINAL)
    assert world.run(operation_id).state is OperationState.PARKED
    broken.heal()
    return operation_id


def half_detached() -> tuple[World, str]:
    """Parked behind the pivot: unplugged, and not disconnected."""
    world = attached()
    return world, parked(world, world.detach(), "brick.disconnect")


def act(world: World, operation_id: str, what: str, **more: Any) -> str:
    return refusal(lambda: world.service.act(operation_id, what, "because", CONTEXT, **more))


@pytest.mark.parametrize(
    ("what", "words"),
    [("skip", "skip a step"), ("give_up", "be given up")],
)
def test_only_a_parked_operation_is_an_operators_to_go_on_with(what: str, words: str) -> None:
    world = World()
    operation_id = world.attach()
    more = {"lane": 0, "step": "reserve"} if what == "skip" else {}
    assert act(world, operation_id, what, **more) == (
        f"Operation {operation_id} cannot {words}: it is running, and only a parked one can."
    )


def test_an_operation_at_work_has_nothing_to_retry() -> None:
    world = World()
    operation_id = world.attach()
    assert act(world, operation_id, "retry") == (
        f"Operation {operation_id} cannot be retried: it is running,"
        " and no step waits to be tried again."
    )


def test_what_is_finished_is_not_unwound() -> None:
    world = World()
    operation_id = world.attach()
    world.done(operation_id)
    refused = act(world, operation_id, "unwind")
    assert refused == f"Operation {operation_id} cannot be unwound: it is finished."


def test_behind_its_pivot_an_operation_is_not_unwound() -> None:
    world, operation_id = half_detached()
    assert act(world, operation_id, "unwind") == (
        f"Operation {operation_id} cannot be unwound: its pivot is passed; there is only forward."
    )


def test_what_is_deleted_is_not_deleted_again() -> None:
    world = World()
    world.done(world.delete())
    assert refusal(world.delete) == (
        f"Cannot 'delete' instance {SERVER} while it is in vm_state deleted"
    )


def test_a_deletion_is_not_offered_to_be_given_up() -> None:
    """No other operation releases what is left of a server that is deleted."""
    world, detached = half_detached()
    assert acts(world.operation(detached)) == ["retry", "skip", "give_up"]
    deleted = parked(world := attached(), world.delete(), "brick.disconnect")
    assert acts(world.operation(deleted)) == ["retry", "skip"]
    assert "no other operation releases what is left" in act(world, deleted, "give_up")


@pytest.mark.parametrize(
    ("lane", "step", "why"),
    [
        (0, "delete", "step disconnect is the next one"),
        (7, "disconnect", "it has nothing left"),
    ],
)
def test_only_the_next_step_of_a_lane_is_vouched_for(lane: int, step: str, why: str) -> None:
    world, operation_id = half_detached()
    assert act(world, operation_id, "skip", lane=lane, step=step) == (
        f"Operation {operation_id} cannot skip step {step} of lane {lane}: {why}."
    )


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        ("retry", Operation.RetryRequested),
        ("unwind", Operation.UnwindRequested),
        ("give_up", Operation.OperationFinished),
    ],
)
def test_an_operators_reason_is_in_the_log(act: str, kind: type[Event]) -> None:
    world = attached(volumes=1)
    if act == "unwind":
        world = World()
        operation_id = world.attach()
    else:
        operation_id = parked(world, world.detach(), "brick.disconnect")
    world.service.act(operation_id, act, "the host is scrap", CONTEXT)
    [event] = events(world, kind)[-1:]
    assert vars(event)["reason"] == "the host is scrap"


def test_what_is_asked_for_has_the_fingerprint_that_it_has_in_0_2_0() -> None:
    """Else who asks again after an upgrade is refused: the key is another request's (422)."""
    world = World()
    pair = f'"server_id":"{SERVER}","volume_id":"{world.volumes[0]}"'
    more = '"tag":null,"delete_on_termination":false,"multiattach_allowed":true,"is_root":false'
    attach = f'attach{{{pair},"device":null,{more}}}'
    detach = f'detach{{{pair},"root_allowed":false}}'
    for asked, ask in ((attach, world.attach), (detach, world.detach)):
        id_ = ask()
        world.done(id_)
        started = world.operation(id_).started
        assert started is not None
        assert started.fingerprint == hashlib.sha256(asked.encode()).hexdigest()
