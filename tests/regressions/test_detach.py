"""Bugs others had when detaching, each under its number (Launchpad)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation, OperationState, Outcome
from handlers.requests.accept import DetachVolume
from host_agent.shared.contract.messages import ErrorKind
from tests.doubles.host_checks import plugged
from tests.memory import Trouble
from tests.regressions.worlds import SILENT, broken_on, migrate, offloaded
from tests.world import CONTEXT, HOST, OTHER, SERVER, Broken, World, events, first_point


def attached(**more: object) -> World:
    world = World(**more)  # type: ignore[arg-type]
    world.run(world.attach())
    world.trouble = Trouble()
    return world


def request(world: World) -> DetachVolume:
    return DetachVolume(server_id=SERVER, volume_id=world.volumes[0])


@pytest.mark.parametrize("flow", ["detach", "evacuate"])
def test_lp1935057_a_row_that_the_ledgers_own_deletion_leaves_is_not_forgotten(flow: str) -> None:
    """Cinder answers well, and the row stays: its export on a dead host could not be removed."""
    world = attached() if flow == "evacuate" else offloaded()
    [former] = [str(each.id) for each in world.attachments()]
    real, lies = world.cinder.attachment_delete, [1, 2]

    def delete(id_: str) -> Any:
        lie = id_ == former and lies and lies.pop()
        return list(world.cinder.attachments.values()) if lie else real(id_)

    if flow == "evacuate":
        world.fence(HOST)
    with patch.object(world.cinder, "attachment_delete", delete):
        world.done(world.detach() if flow == "detach" else world.act(flow, destination=OTHER))
    assert {event.error["code"] for event in events(world, Operation.StepRetried)} == {
        "attachment_left"
    }
    assert former not in world.cinder.attachments
    assert world.wrong() == []


def test_lp880399_a_delete_that_cinder_refuses_for_long_is_resumable() -> None:
    world = attached()
    broken = Broken(world, "cinder.attachment_delete")
    operation = world.run(world.detach())
    assert operation.state is OperationState.PARKED
    assert world.instance.vm_state == "error", "S1: an instance fault, and ERROR"
    [fault] = events(world, Instance.Faulted)
    assert fault.claimant == str(operation.id)
    assert world.cinder.volume(world.volumes[0]).status == "in-use", "never `detaching`"
    left = world.store.log[-1]
    broken.heal()
    world.service.act(str(operation.id), "retry", "Cinder is back", CONTEXT)
    assert world.run(str(operation.id)).outcome is Outcome.COMPLETED
    assert world.cinder.volume(world.volumes[0]).status == "available"
    assert world.instance.vm_state == "active"
    assert left


def test_lp1786318_a_guest_that_keeps_the_disk_changes_nothing() -> None:
    world = attached()
    before = world.summary()
    Broken(world, "guests.unplug", ErrorKind.FINAL)
    operation = world.run(world.detach())
    assert operation.outcome is Outcome.FAILED
    assert world.summary() == before
    assert world.cinder.volume(world.volumes[0]).status == "in-use"
    assert plugged(world.host)[SERVER] == {world.volumes[0]: ("vdb", "vdb")}


def test_a_disk_that_is_half_out_is_put_back_where_it_was() -> None:
    """The guest let it go, and libvirt says that it did not: the request stops all the same."""
    at = first_point("guests.unplug", World.detach)
    world = attached()
    before = world.summary()
    world.trouble = Trouble({at: "final_after"})
    assert world.run(world.detach()).outcome is Outcome.FAILED
    assert world.summary() == before
    assert plugged(world.host)[SERVER] == {world.volumes[0]: ("vdb", "vdb")}


def test_lp1909120_a_host_that_is_down_is_not_asked_to_detach() -> None:
    world = attached()
    stored = len(world.store.log)
    with pytest.raises(errors.HostUnavailableError) as refused:
        world.requests.detach(request(world), CONTEXT, SILENT)
    assert refused.value.status == 409
    assert len(world.store.log) == stored
    assert "cinder.attachment_delete" not in world.trouble.met


def test_lp1662483_a_second_request_for_the_pair_names_the_first() -> None:
    world = attached()
    first = world.detach()
    with pytest.raises(errors.ClaimedError, match=first):
        world.requests.detach(request(world), CONTEXT, world.fleet)
    assert world.run(first).outcome is Outcome.COMPLETED


def test_a_detach_before_the_attach_has_bound_names_it() -> None:
    """No mapping yet: "not attached" would be told for good of what is about to be."""
    world = World()
    attach = world.attach()
    with pytest.raises(errors.ClaimedError, match=attach):
        world.requests.detach(request(world), CONTEXT, world.fleet)
    assert world.run(attach).outcome is Outcome.COMPLETED


def test_lp1937084_an_attachment_that_is_gone_already_is_detached() -> None:
    world = attached()
    at = first_point("cinder.attachment_delete", World.detach)
    world = attached()
    world.trouble = Trouble({at: "unknown_after"})
    assert world.run(world.detach()).outcome is Outcome.COMPLETED
    assert world.mappings() == []
    assert world.wrong() == []


def test_cve_2023_2088_nothing_is_deleted_before_the_host_proved_its_disconnect() -> None:
    world = attached()
    Broken(world, "brick.disconnect")
    operation = world.run(world.detach())
    assert operation.state is OperationState.PARKED
    assert "cinder.attachment_delete" not in world.trouble.met
    assert [row.status for row in world.cinder.attachments_of(world.volumes[0])] == ["attached"]
    assert len(world.mappings()) == 1, "so the endpoint still tells Cinder the truth"


def test_os_brick_1502534_a_failed_flush_is_never_a_success() -> None:
    world = attached()
    Broken(world, "brick.disconnect", ErrorKind.FINAL)
    assert world.run(world.detach()).state is OperationState.PARKED
    assert events(world, Attachment.Disconnected) == []


def test_lp1727260_a_disk_that_is_gone_from_the_guest_already_is_no_error() -> None:
    world = attached()
    world.ports["guests"].unplug(SERVER, world.volumes[0])
    assert world.run(world.detach()).outcome is Outcome.COMPLETED


def test_a_parked_operation_goes_on_without_the_step_an_operator_vouches_for() -> None:
    world = attached()
    Broken(world, "brick.disconnect")
    operation = world.run(world.detach())
    world.service.act(
        str(operation.id), "skip", "device removed by hand", CONTEXT, lane=0, step="disconnect"
    )
    assert world.run(str(operation.id)).outcome is Outcome.COMPLETED
    waived = [event.waived for event in events(world, Attachment.Disconnected)]
    assert waived == ["device removed by hand"]


def test_only_the_first_step_left_can_be_skipped() -> None:
    world = attached()
    Broken(world, "brick.disconnect")
    operation = world.run(world.detach())
    with pytest.raises(errors.OperatorActError, match="disconnect is the next one"):
        world.service.act(str(operation.id), "skip", "why not", CONTEXT, lane=0, step="delete")


def test_after_the_pivot_there_is_no_way_back() -> None:
    world = attached()
    Broken(world, "brick.disconnect")
    operation = world.run(world.detach())
    with pytest.raises(errors.OperatorActError, match="pivot"):
        world.service.act(str(operation.id), "unwind", "changed my mind", CONTEXT)


def test_giving_up_ends_the_operation_and_hides_nothing() -> None:
    world = attached()
    Broken(world, "brick.disconnect")
    operation = world.run(world.detach())
    world.service.act(str(operation.id), "give_up", "host is scrap", CONTEXT)
    assert world.operation(str(operation.id)).outcome is Outcome.CANCELLED
    assert world.instance.vm_state == "active"
    assert world.instance.claims == {}
    assert len(world.mappings()) == 1
    assert len(world.attachments()) == 1


def test_a_move_is_not_given_up_while_an_attachment_would_be_nobodys() -> None:
    """The source kept its own: after a detach no entry would lead to it any more."""
    world = attached()
    [old] = [row.id for row in world.cinder.attachments_of(world.volumes[0])]
    broken = broken_on(world, HOST, "brick.disconnect")
    operation = world.run(migrate(world))
    with pytest.raises(errors.OperatorActError, match=old):
        world.service.act(str(operation.id), "give_up", "later", CONTEXT)
    broken.heal()
    world.done(world.delete())
    assert world.cinder.attachments_of(world.volumes[0]) == []
    assert world.cinder.volume(world.volumes[0]).status == "available"
    assert world.wrong() == []


def test_a_detach_goes_on_without_a_host_that_is_fenced() -> None:
    """The fence is the evidence, and every fact that rests on it says so."""
    world = attached()
    operation_id = world.detach()
    world.fence(HOST)
    assert world.run(operation_id).outcome is Outcome.COMPLETED
    assert world.cinder.attachments_of(world.volumes[0]) == []
    assert world.mappings() == []
    [waived] = [event.waived for event in events(world, Attachment.Disconnected)]
    assert waived is not None
    assert "BMC says off" in waived


def test_the_mapping_ends_only_after_cinder_let_the_attachment_go() -> None:
    world = attached()
    world.run(world.detach())
    kinds = [type(event) for event, _ in world.store.log]
    deleted = kinds.index(Attachment.Deleted)
    assert deleted < kinds.index(BlockDeviceMapping.MappingEnded)
