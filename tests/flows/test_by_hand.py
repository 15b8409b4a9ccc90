"""What classes of drift without a repair tell people to type does what they say."""

from __future__ import annotations

import pytest

from aggregates.errors import GuestNotThereError
from aggregates.server import VmState
from handlers.drift.classes import BY_NAME
from host_agent.shared.contract.messages import PowerState
from tests.world import HOST, World


def test_a_missing_guest_is_defined_by_a_rebuild_and_started() -> None:
    assert "defined again by `server rebuild`" in BY_NAME["guest_missing"].meaning
    world = World()
    world.done(world.attach())
    with world.host.edit() as state:
        del state["guests"][world.server_id]
    world.register(HOST)
    assert world.instance.power_state == "nostate"
    world.done(world.act("rebuild")).done(world.act("start"))
    assert world.instance.power_state == "running"
    assert world.wrong() == []


@pytest.mark.parametrize("power", [PowerState.RUNNING, PowerState.SHUTDOWN])
def test_a_refresh_gives_cinder_the_host_that_has_the_volume(power: PowerState) -> None:
    """Where the host that Cinder names can never be asked (docs/reconciliation.md)."""
    world = World(power)
    world.done(world.attach())
    [row] = world.cinder.attachments_of(world.volumes[0])
    row.host = "somewhere-else"
    world.done(world.act("refresh"))
    assert (row.host, row.status) == (HOST, "attached")
    assert world.wrong() == []


def undefined(world: World) -> World:
    """Somebody undefines the guest while it runs."""
    with world.host.edit() as state:
        state["guests"][world.server_id]["persistent"] = None
    return world


def test_a_guest_without_a_definition_is_defined_before_it_is_stopped() -> None:
    world = World()
    world.done(world.attach())
    undefined(world).done(world.act("stop"))
    assert world.instance.vm_state is VmState.STOPPED
    guest = world.host.read()["guests"][world.server_id]
    assert (guest["live"], guest["persistent"] is None) == (None, False)
    world.register(HOST)
    assert world.instance.power_state == "shutdown"
    world.done(world.act("start"))
    assert world.instance.power_state == "running"
    assert world.wrong() == []


def test_a_guest_that_is_not_there_is_not_stopped_again_and_again() -> None:
    world = World()
    with world.host.edit() as state:
        del state["guests"][world.server_id]
    world.done(world.act("stop"))  # before its host has told
    with pytest.raises(GuestNotThereError, match=f"{HOST} shows no guest of it"):
        world.act("stop")


@pytest.mark.parametrize("flow", ["refresh", "convert"])
def test_what_completes_for_a_guest_is_refused_where_there_is_none(flow: str) -> None:
    """Accepted, it could neither end nor be undone: storm 761."""
    world = World(legacy=flow == "convert")
    world.done(world.attach())
    with world.host.edit() as state:
        del state["guests"][world.server_id]
    world.register(HOST)
    with pytest.raises(GuestNotThereError):
        world.act(flow)
