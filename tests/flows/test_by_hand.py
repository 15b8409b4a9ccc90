"""What classes of drift without a repair tell people to type does what they say."""

from __future__ import annotations

import pytest

from handlers.drift.classes import BY_NAME
from host_agent.shared.contract import PowerState
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
