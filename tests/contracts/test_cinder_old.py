"""The contract of Cinder's old calls, and how the two flows meet on one volume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.platform import masking
from ledger.trial.cinder.model.model import CinderModel
from tests.contracts.cinder_worlds import (
    SimulatedWorld,
    World,
    attached,
    client_of,
    connector,
    new_uuid,
    refusal,
    status,
)
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.running_cinder import running_cinder


def old_attached(world: World, volume: str, server: str) -> str:
    """Attach by the old flow; the row's id."""
    world.port.reserve(volume)
    world.port.initialize_connection(volume, connector())
    world.port.attach(volume, server, "/dev/vdb", "compute-a")
    [row] = world.port.old_attachments(volume)
    return row.id


# --- the calls -----------------------------------------------------------------------------------


def test_the_old_flow_from_reserve_to_detach(world: World) -> None:
    volume, server, old = world.new_volume(), new_uuid(), world.port
    seen = []
    acts: list[Callable[[], object]] = [
        lambda: old.reserve(volume),
        lambda: old.initialize_connection(volume, connector()),
        lambda: old.attach(volume, server, "/dev/vdb", "compute-a"),
        lambda: old.begin_detaching(volume),
        lambda: old.roll_detaching(volume),
        lambda: old.begin_detaching(volume),
        lambda: old.terminate_connection(volume, connector()),
        lambda: old.detach(volume, old.old_attachments(volume)[0].id),
    ]
    for act in acts:
        act()
        seen.append(status(world, volume))
    assert seen == [
        *("attaching", "attaching", "in-use", "detaching", "in-use", "detaching", "detaching"),
        "available",
    ]
    assert old.old_attachments(volume) == []


def test_a_row_tells_server_and_host(world: World) -> None:
    volume, server = world.new_volume(), new_uuid()
    row_id = old_attached(world, volume, server)
    [row] = world.port.old_attachments(volume)
    assert (row.id, row.server_id, row.host_name) == (row_id, server, "compute-a")


def test_rows_of_the_new_flow_are_listed_too(world: World) -> None:
    volume, server = world.new_volume(), new_uuid()
    made = attached(world, volume, server)
    assert [row.id for row in world.port.old_attachments(volume)] == [made.id]


def test_connection_information_is_flat_and_its_secrets_are_known(
    simulated: SimulatedWorld,
) -> None:
    info = simulated.port.initialize_connection(simulated.new_volume(), connector())
    assert info["driver_volume_type"] == "rbd"
    assert "data" not in info
    secret = simulated.model.secrets[-1]
    assert secret in info["keyring"]
    assert secret not in masking.mask(f"the backend said {secret}.")


def test_what_may_be_done_twice(world: World) -> None:
    volume, server, old = world.new_volume(), new_uuid(), world.port
    row = old_attached(world, volume, server)
    old.attach(volume, server, "/dev/vdb", "compute-a")
    assert len(old.old_attachments(volume)) == 1
    for _ in range(2):
        old.terminate_connection(volume, connector())
        old.detach(volume, row)
        old.unreserve(volume)
        old.roll_detaching(volume)
    assert status(world, volume) == "available"


def test_what_would_find_its_own_effect_is_refused_the_second_time(world: World) -> None:
    volume, old = world.new_volume(), world.port
    old.reserve(volume)
    error = refusal(lambda: old.reserve(volume))
    assert (error.kind, error.code) == (ErrorKind.FINAL, "refused")
    old.attach(volume, new_uuid(), "/dev/vdb", "compute-a")
    old.begin_detaching(volume)
    error = refusal(lambda: old.begin_detaching(volume))
    assert (error.kind, error.code) == (ErrorKind.FINAL, "refused")


@pytest.mark.parametrize("name", ["reserve", "begin_detaching"])
def test_such_a_call_is_not_repeated_when_its_answer_is_lost(
    simulated: SimulatedWorld, name: str
) -> None:
    volume = simulated.new_volume()
    if name == "begin_detaching":
        old_attached(simulated, volume, new_uuid())
    rule = {"call": "volume_action", "match": {"action": f"os-{name}"}, "do": "fail_after"}
    simulated.faults.replace([rule])
    error = refusal(lambda: getattr(simulated.port, name)(volume))
    assert error.kind is ErrorKind.UNKNOWN
    assert status(simulated, volume) == ("attaching" if name == "reserve" else "detaching")


def test_a_detach_whose_answer_is_lost_is_repeated(simulated: SimulatedWorld) -> None:
    volume = simulated.new_volume()
    row = old_attached(simulated, volume, new_uuid())
    rule = {"call": "volume_action", "match": {"action": "os-detach"}, "do": "fail_after"}
    simulated.faults.replace([rule])
    simulated.port.detach(volume, row)
    assert status(simulated, volume) == "available"


def test_unreserve_of_a_multiattach_volume_in_use_gives_it_back(world: World) -> None:
    volume = world.new_volume(multiattach=True)
    old_attached(world, volume, new_uuid())
    world.port.reserve(volume)
    world.port.unreserve(volume)
    assert status(world, volume) == "in-use"


# --- the two flows meet --------------------------------------------------------------------------


def test_an_old_attachment_becomes_a_new_one_in_place(world: World) -> None:
    volume, server, port = world.new_volume(), new_uuid(), world.port
    row = old_attached(world, volume, server)
    [listed] = port.attachments(volume, server)
    assert (listed.id, listed.status, listed.connection_info) == (row, "attached", {})
    updated = port.attachment_update(row, connector(mountpoint="/dev/vdb"))
    assert updated.connection_info["attachment_id"] == row
    assert (port.attachment(row).status, status(world, volume)) == ("attaching", "attaching")
    port.attachment_complete(row)
    assert (port.attachment(row).status, status(world, volume)) == ("attached", "in-use")
    assert [seen.id for seen in world.port.old_attachments(volume)] == [row]
    port.attachment_delete(row)
    assert status(world, volume) == "available"


@pytest.mark.parametrize("in_use", [False, True], ids=["reserved", "in-use"])
def test_a_create_with_connector_does_not_mind_a_reservation_of_the_same_server(
    world: World, in_use: bool
) -> None:
    volume, server, port = world.new_volume(), new_uuid(), world.port
    if in_use:
        attached(world, volume, server)
    reserved = port.attachment_create(volume, server)
    made = port.attachment_create(volume, server, connector("compute-b"))
    assert made.connection_info
    assert (port.attachment(made.id).status, status(world, volume)) == ("attaching",) * 2
    # the reservation itself can no longer be connected, nor another one be made
    error = refusal(lambda: port.attachment_update(reserved.id, connector("compute-c")))
    assert error.message.startswith("Resource conflict: duplicate connectors")
    assert refusal(lambda: port.attachment_create(volume, server)).code == "refused"


# --- a Cinder that has nothing else --------------------------------------------------------------

Ancient = tuple[Any, CinderModel]


@pytest.fixture(params=["direct", "http"])
def ancient(request: pytest.FixtureRequest) -> Iterator[Ancient]:
    model = CinderModel()
    if request.param == "direct":
        direct = DirectCinder(model, max_version=(3, 0))
        yield direct, model
        return
    with running_cinder(model, max_version=(3, 0)) as running:
        port = client_of(running)
        yield port, model
        port.close()


def test_the_old_flow_works_on_a_cinder_without_attachments(ancient: Ancient) -> None:
    port, model = ancient
    volume = model.add_volume().id
    assert not port.new_flow()
    port.reserve(volume)
    assert port.initialize_connection(volume, connector())["driver_volume_type"] == "rbd"
    port.attach(volume, new_uuid(), "/dev/vdb", "compute-a")
    seen = port.volume(volume)
    assert (seen.status, seen.shared_targets, seen.service_uuid) == ("in-use", None, "")
    port.detach(volume, port.old_attachments(volume)[0].id)
    assert port.volume(volume).status == "available"


def test_attachments_of_a_cinder_without_them_are_refused_unsent(ancient: Ancient) -> None:
    port, model = ancient
    volume, row = model.add_volume().id, new_uuid()
    for call in (
        lambda: port.attachment_create(volume, row),
        lambda: port.attachments(volume, row),
        lambda: port.attachment_update(row, connector()),
        lambda: port.attachment_complete(row),
        lambda: port.attachment_delete(row),
    ):
        error = refusal(call)
        assert (error.kind, error.code) == (ErrorKind.FINAL, "cinder_too_old")
    assert model.counts == {}


def test_a_current_cinder_offers_the_new_flow(world: World) -> None:
    assert world.port.new_flow()
