"""Sentences of the specs that no scenario by itself shows (docs/specs.md)."""

from __future__ import annotations

import pytest

from aggregates import errors
from aggregates.operation import OperationState, Outcome
from host_agent.shared.contract.messages import ErrorKind
from tests.memory import Trouble
from tests.regressions.worlds import attached, broken_on, rows
from tests.world import HOST, World


def test_a_volume_that_is_never_provisioned_is_not_attached() -> None:
    """S1, attach: "if we timeout waiting for the volume to be ready, we fail here"."""
    world = World()
    world.cinder.volume(world.volumes[0]).service_uuid = None
    operation = world.run(world.attach())
    assert operation.outcome is Outcome.FAILED
    assert (operation.first_error or {})["code"] == "volume_not_ready"
    assert rows(world) == []
    assert world.wrong() == []


def test_a_shelve_whose_host_cannot_disconnect_is_an_error_and_keeps_the_attachment() -> None:
    """S1, shelve: "should that detach fail, the instance should be moved into an ERROR state"."""
    world = attached()
    [before] = rows(world)
    broken = broken_on(world, HOST, "brick.disconnect", ErrorKind.FINAL)
    operation = world.run(world.act("shelve"))
    assert operation.state is OperationState.PARKED
    assert world.instance.vm_state == "error"
    assert before.id in {row.id for row in rows(world)}
    broken.heal()


@pytest.mark.parametrize("by_cinder", [True, False])
def test_a_swap_of_a_volume_that_is_retyped_is_cinders_alone(by_cinder: bool) -> None:
    """S1, swap: not while "retyping" or "migrating", unless Cinder asks as part of that."""
    world = World(volumes=2, encrypted=True)
    old, new = (world.cinder.volume(volume_id) for volume_id in world.volumes)
    world.done(world.attach(old.id))
    old.status = "retyping"
    if by_cinder:
        old.migration_status, new.migration_status = "migrating", f"target:{old.id}"
        world.swap(old.id, new.id, by_cinder=True)
        return
    with pytest.raises(errors.DomainError, match="retyping"):
        world.swap(old.id, new.id)
    old.status, old.migration_status = "in-use", "migrating"
    with pytest.raises(errors.VolumeBusyError):
        world.swap(old.id, new.id)


def test_a_users_swap_does_not_call_cinder_back_and_cinders_does() -> None:
    world = World(volumes=2, encrypted=True)
    world.done(world.attach(world.volumes[0]))
    world.trouble = Trouble()
    world.done(world.swap(*world.volumes))
    assert "cinder.migrate_volume_completion" not in world.trouble.met
