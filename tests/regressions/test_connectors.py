"""What an agent tells Cinder its host by: bugs others had with it, under their numbers (Launchpad).

Cinder takes any connector.  So it is compared on the host, before Cinder hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aggregates.operation import OperationState, Outcome
from tests.doubles.host_checks import connected_paths
from tests.regressions.worlds import RUNNING, STOPPED, Watched, attached, migrate, rows
from tests.world import CONTEXT, HOST, OTHER, World

Connector = dict[str, Any]

#: What os-brick says of the host, with another host's name, or with none.
WRONG: dict[str, Callable[[Connector], Connector]] = {
    "another host": lambda own: {**own, "host": "compute-9"},
    "no host": lambda own: {key: value for key, value in own.items() if key != "host"},
    "an empty name": lambda own: {**own, "host": ""},
}
#: Cinder's calls that take a connector; new and old.
TOLD = (
    *("cinder.attachment_create", "cinder.attachment_update"),
    *("cinder.initialize_connection", "cinder.terminate_connection", "cinder.attach"),
)


def misnamed(world: World, host: str, wrong: str) -> list[Watched]:
    """The host's connector is wrong from now on; what its agent calls of Cinder with one."""
    brick = world.agents[host]["brick"]
    real = brick.connector
    brick.connector = lambda: WRONG[wrong](real())
    return [Watched(world, host, call) for call in TOLD]


def refused(world: World, operation_id: str, told: list[Watched]) -> OperationState:
    """Where that leaves the operation."""
    operation = world.run(operation_id)
    assert operation.first_error is not None
    assert operation.first_error["code"] == "foreign_connector"
    assert "is not given to Cinder" in operation.first_error["message"]
    assert [each.seen for each in told] == [[]] * len(TOLD)
    state: OperationState = operation.state
    return state


@pytest.mark.parametrize("wrong", sorted(WRONG))
@pytest.mark.parametrize("legacy", [False, True], ids=["new", "old"])
def test_lp1693333_a_migration_whose_connector_names_no_host_is_refused_before_cinder_hears(
    wrong: str, legacy: bool
) -> None:
    world = attached(legacy=legacy)
    before = [(row.id, row.host, row.status) for row in rows(world)]
    operation_id = migrate(world)
    refused(world, operation_id, misnamed(world, OTHER, wrong))
    assert [(row.id, row.host, row.status) for row in rows(world)] == before
    assert world.instance.host == HOST
    assert connected_paths(world.hosts[OTHER]) == set()


@pytest.mark.parametrize("wrong", sorted(WRONG))
@pytest.mark.parametrize("power_state", [RUNNING, STOPPED])
def test_lp2012365_a_refresh_compares_the_connector_before_cinder_hears(
    wrong: str, power_state: Any
) -> None:
    """And before a guest that is off has let go of the connection that it has."""
    world = attached(power_state)
    connected = connected_paths(world.host)
    refused(world, world.act("refresh"), misnamed(world, HOST, wrong))
    assert [(row.host, row.status) for row in rows(world)] == [(HOST, "attached")]
    assert connected_paths(world.host) == connected


@pytest.mark.parametrize("wrong", sorted(WRONG))
def test_lp1693333_an_attach_whose_connector_names_no_host_leaves_nothing(wrong: str) -> None:
    world = World()
    operation_id = world.attach()
    world.service.advance(operation_id)
    assert rows(world), "it is reserved, without a connector"
    told = misnamed(world, HOST, wrong)
    assert refused(world, operation_id, told) is OperationState.FINISHED
    assert rows(world) == []
    assert (world.mappings(), world.wrong()) == ([], [])


@pytest.mark.parametrize("wrong", sorted(WRONG))
def test_nobody_ends_a_connection_in_the_name_of_another_host(wrong: str) -> None:
    """By Cinder's old calls, which end the connection of whichever host the connector names."""
    world = attached(legacy=True)
    operation_id = world.detach()
    assert refused(world, operation_id, misnamed(world, HOST, wrong)) is OperationState.PARKED
    world.boot()  # its connector is its own again
    world.service.act(operation_id, "retry", "the name is mended", CONTEXT)
    assert world.run(operation_id).outcome is Outcome.COMPLETED
    assert rows(world) == []
