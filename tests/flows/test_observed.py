"""On what is somebody else's nothing is begun: no flow, no repair, no act, by whomever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aggregates import errors
from aggregates.base import Seen
from aggregates.host import Host, host_uuid
from aggregates.instance import Instance
from handlers.requests import edits, inventory
from host_agent.shared.contract.messages import Guest, PowerState
from ledger.log.unit import Unit
from tests.flows.scenarios import Scenario, every_scenario
from tests.world import CONTEXT, HOST, OTHER, World

SEEN = Seen(origin="nova", after=None, before="2026-11-27T12:00:00.000+00:00").stored()
REFUSED = (errors.ObservedServerError, errors.ObservedHostError)


def observed(world: World) -> World:
    """The same cloud, and it is a Nova's."""
    unit = Unit(world.store)
    for name in (HOST, OTHER):
        unit.get(Host, host_uuid(name)).record(Host.HostSeen, name=name, seen=SEEN)
    instance = unit.get(Instance, world.server_id)
    names = ("name", "host", "power_state", "project_id", "user_id")
    shown = {name: getattr(instance, name) for name in names}
    state = instance.own_state.value
    instance.record(Instance.ServerSeen, **shown, vm_state=state, seen=SEEN)
    unit.save(CONTEXT)
    return world


def ours(world: World) -> dict[str, Any]:
    """What we would change; Cinder begins to grow volumes and to take snapshots by itself."""
    cinders = {"volumes", "sizes", "snapshots"}
    return {name: value for name, value in world.summary().items() if name not in cinders}


@every_scenario
def test_no_flow_and_no_repair_is_begun(scenario: Scenario) -> None:
    world = observed(scenario.begin())
    before, recorded = ours(world), len(world.store.log)
    with pytest.raises(REFUSED) as refused:
        scenario.ask(world)
    assert "Send the request to Nova" in str(refused.value)
    assert len(world.store.log) == recorded
    assert ours(world) == before


#: Whatever is kept of a server and needs no operation.
EDITS: dict[str, Callable[[Instance], None]] = {
    "describe": lambda i: edits.update(i, CONTEXT, wanted={"description": "ours"}),
    "metadata": lambda i: edits.set_metadata(i, CONTEXT, items={"a": "b"}, whole=True),
    "tags": lambda i: edits.set_tags(i, CONTEXT, tags=["a"]),
    "lock": lambda i: edits.lock(i, CONTEXT, reason=None),
    "reset": lambda i: edits.reset_state(i, CONTEXT, state="error"),
    "agent": lambda i: i.record(Instance.GuestLeft, host=HOST),
}


@pytest.mark.parametrize("name", EDITS)
def test_nothing_is_kept_of_its_servers_but_what_is_seen(name: str) -> None:
    world = observed(World())
    with pytest.raises(errors.ObservedServerError):
        EDITS[name](world.instance)


HOST_ACTS: dict[str, Callable[[Host], None]] = {
    "fence": lambda host: host.fence("no answer", "BMC says off"),
    "disable": lambda host: host.disable("ours"),
    "register": lambda host: host.register("1", 9, {}, None),
}


@pytest.mark.parametrize("name", HOST_ACTS)
def test_no_act_is_done_on_its_hosts_and_no_agent_works_there(name: str) -> None:
    host = observed(World()).store.load(Host, host_uuid(HOST))
    with pytest.raises(errors.ObservedHostError):
        HOST_ACTS[name](host)


def test_what_an_agent_shows_of_its_guests_is_not_taken() -> None:
    world = observed(World())
    recorded = len(world.store.log)
    unit = Unit(world.store)
    guest = Guest(server_id=world.server_id, name="vm", power_state=PowerState.PAUSED)
    assert inventory.seen("compute-9", guest, unit)
    assert inventory.missed(HOST, world.server_id, unit)
    unit.save(CONTEXT)
    assert len(world.store.log) == recorded
