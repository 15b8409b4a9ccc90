"""The contract of the `Cinder` port, held against the simulation and real Cinder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from host_agent.shared.contract.messages import ErrorKind
from tests.contracts.cinder_worlds import (
    LIMITS,
    SimulatedWorld,
    World,
    attached,
    connector,
    new_uuid,
    refusal,
    status,
)

# --- the life of an attachment -------------------------------------------------------------------


def test_a_volume_is_shown_with_all_its_fields(world: World) -> None:
    volume = world.new_volume()
    seen = world.port.volume(volume)
    assert (seen.id, seen.status, seen.size_gb) == (volume, "available", 1)
    assert (seen.multiattach, seen.bootable, seen.encrypted) == (False, False, False)
    assert seen.service_uuid
    assert seen.project_id
    assert seen.availability_zone == "nova"


def test_an_attachment_goes_from_reserved_to_attached_to_gone(world: World) -> None:
    volume, server, port = world.new_volume(), new_uuid(), world.port
    row = port.attachment_create(volume, server)
    assert (row.status, row.volume_id, row.server_id) == ("reserved", volume, server)
    assert row.connection_info == port.attachment(row.id).connection_info == {}
    assert status(world, volume) == "reserved"
    updated = port.attachment_update(row.id, connector())
    assert updated.status == "reserved"  # the answer tells the new connection, the old status
    assert port.attachment(row.id).status == "attaching"
    assert updated.connection_info["attachment_id"] == row.id
    assert updated.connection_info["driver_volume_type"]
    assert status(world, volume) == "attaching"
    port.attachment_complete(row.id)
    assert port.attachment(row.id).status == "attached"
    assert status(world, volume) == "in-use"
    port.attachment_delete(row.id)
    assert status(world, volume) == "available"
    assert port.attachments(volume, server) == []


@pytest.mark.parametrize("limited", [True, False])
def test_a_connection_tells_the_front_ends_limits(world: World, limited: bool) -> None:
    row = attached(world, world.new_volume(limited=limited), new_uuid())
    assert row.connection_info["qos_specs"] == (LIMITS if limited else None)


def test_attachments_lists_those_of_this_volume_and_server_with_details(world: World) -> None:
    volume, other, server = world.new_volume(), world.new_volume(), new_uuid()
    mine = attached(world, volume, server)
    world.port.attachment_create(other, server)
    assert world.port.attachments(volume, server) == [mine]
    assert mine.connection_info
    assert world.port.attachments(volume, new_uuid()) == []
    assert world.port.attachments(volume, None) == [mine]


def test_delete_of_a_missing_attachment_is_success(world: World) -> None:
    row = world.port.attachment_create(world.new_volume(), new_uuid())
    world.port.attachment_delete(row.id)
    assert world.port.attachment_delete(row.id) is None, "only a look can tell"


def test_the_answer_to_a_delete_shows_what_is_left(world: World) -> None:
    reserved = world.port.attachment_create(world.new_volume(), new_uuid())
    for row_id in (reserved.id, attached(world, world.new_volume(), new_uuid()).id):
        assert world.port.attachment_delete(row_id) == []
        error = refusal(partial(world.port.attachment, row_id))
        assert error.code == "not_found"


def test_of_what_is_left_the_answer_to_a_delete_shows_whose_it_is_and_how_it_is(
    world: World,
) -> None:
    """Of all servers: so whoever deletes need not list what nobody knows."""
    volume, server = world.new_volume(), new_uuid()
    had = attached(world, volume, server)
    bare, gone = (world.port.attachment_create(volume, server) for _ in range(2))
    left = world.port.attachment_delete(gone.id) or []
    assert {(view.id, view.status) for view in left} == {
        (had.id, "attached"),
        (bare.id, "reserved"),
    }
    assert {(view.server_id, view.volume_id) for view in left} == {(server, volume)}
    assert not any(view.connection_info for view in left)


def test_anything_else_on_a_missing_attachment_is_not_found(world: World) -> None:
    gone = new_uuid()
    calls: list[Callable[[], object]] = [
        lambda: world.port.attachment(gone),
        lambda: world.port.attachment_update(gone, connector()),
        lambda: world.port.attachment_complete(gone),
    ]
    for call in calls:
        error = refusal(call)
        assert (error.kind, error.code) == (ErrorKind.FINAL, "not_found")


def test_an_unknown_volume_is_not_found(world: World) -> None:
    gone = new_uuid()
    for call in (
        lambda: world.port.volume(gone),
        lambda: world.port.attachment_create(gone, new_uuid()),
    ):
        error = refusal(call)
        assert (error.kind, error.code) == (ErrorKind.FINAL, "not_found")
        assert error.message == f"Volume {gone} could not be found."


# --- who may attach ------------------------------------------------------------------------------


def test_a_second_server_is_refused_in_cinders_own_words(world: World) -> None:
    # LP 1741112: a conflict is the caller's error, not ours.
    volume, port = world.new_volume(), world.port
    row = port.attachment_create(volume, new_uuid())
    said = []
    for act in (
        lambda: None,
        lambda: port.attachment_update(row.id, connector()),
        lambda: port.attachment_complete(row.id),
    ):
        act()
        error = refusal(lambda: port.attachment_create(volume, new_uuid()))
        assert (error.kind, error.code) == (ErrorKind.FINAL, "refused")
        said.append(error.message)
    assert said == [
        f"Invalid volume: Volume {volume} status must be available or downloading to "
        f"reserve, but the current status is {now}."
        for now in ("reserved", "attaching", "in-use")
    ]


def test_the_same_server_may_reserve_again_but_not_while_attaching(world: World) -> None:
    # LP 1694530: a move needs a second attachment of the same server.
    volume, server, port = world.new_volume(), new_uuid(), world.port
    row = port.attachment_create(volume, server)
    port.attachment_delete(port.attachment_create(volume, server).id)
    port.attachment_update(row.id, connector())
    assert refusal(lambda: port.attachment_create(volume, server)).code == "refused"
    port.attachment_complete(row.id)
    port.attachment_create(volume, server)
    assert status(world, volume) == "in-use"
    assert len(port.attachments(volume, server)) == 2


def test_an_update_beside_a_connected_attachment_is_a_duplicate_connector(world: World) -> None:
    # LP 1833736: even for another host.
    volume, server = world.new_volume(), new_uuid()
    attached(world, volume, server)
    second = world.port.attachment_create(volume, server)
    error = refusal(lambda: world.port.attachment_update(second.id, connector("compute-b")))
    assert (error.kind, error.code) == (ErrorKind.FINAL, "refused")
    assert error.message.startswith("Resource conflict: duplicate connectors detected on volume")
    assert world.port.attachment(second.id).status == "reserved"


def test_a_create_with_connector_connects_a_second_host(world: World) -> None:
    volume, server, port = world.new_volume(), new_uuid(), world.port
    first = attached(world, volume, server)
    made = port.attachment_create(volume, server, connector("compute-b"))
    assert made.status == "reserved"  # so it says, and has connected all the same
    assert made.connection_info
    assert port.attachment(made.id).status == "attaching"
    assert status(world, volume) == "attaching"
    port.attachment_complete(made.id)
    port.attachment_delete(first.id)
    assert status(world, volume) == "in-use"
    port.attachment_delete(made.id)
    assert status(world, volume) == "available"


@pytest.mark.parametrize("now", ["error", "maintenance", "detaching", "creating"])
def test_a_volume_that_is_not_available_is_refused(world: World, now: str) -> None:
    # LP 1813267
    volume = world.new_volume()
    world.reset(volume, now)
    error = refusal(lambda: world.port.attachment_create(volume, new_uuid()))
    assert (error.kind, error.code) == (ErrorKind.FINAL, "refused")
    assert error.message.startswith("Invalid volume: Volume")
    assert now in error.message


# --- connectors and complete ---------------------------------------------------------------------


def test_update_may_be_done_again_even_for_another_host(world: World) -> None:
    volume, port = world.new_volume(), world.port
    row = attached(world, volume, new_uuid())
    for host in ("compute-a", "compute-b"):
        assert port.attachment_update(row.id, connector(host)).connection_info
        assert port.attachment(row.id).status == "attaching"
    assert status(world, volume) == "attaching"


def test_an_empty_connector_is_refused(world: World) -> None:
    row = world.port.attachment_create(world.new_volume(), new_uuid())
    assert refusal(lambda: world.port.attachment_update(row.id, {})).code == "refused"
    assert world.port.attachment(row.id).status == "reserved"


def test_a_connector_without_host_is_an_error_of_cinder(simulated: SimulatedWorld) -> None:
    row = simulated.port.attachment_create(simulated.new_volume(), new_uuid())
    error = refusal(lambda: simulated.port.attachment_update(row.id, {"ip": "127.0.0.1"}))
    assert (error.kind, error.code) == (ErrorKind.UNKNOWN, "cinder_error")


def test_complete_may_be_done_twice(world: World) -> None:
    row = attached(world, world.new_volume(), new_uuid())
    world.port.attachment_complete(row.id)
    assert world.port.attachment(row.id).status == "attached"


def test_complete_without_a_connection_is_accepted_and_wrong(world: World) -> None:
    volume = world.new_volume()
    row = world.port.attachment_create(volume, new_uuid())
    world.port.attachment_complete(row.id)
    seen = world.port.attachment(row.id)
    assert (seen.status, seen.connection_info) == ("attached", {})
    assert status(world, volume) == "in-use"


# --- volume status and multiattach ---------------------------------------------------------------


def test_a_delete_leaves_the_best_status_of_the_remaining(world: World) -> None:
    volume, server, port = world.new_volume(), new_uuid(), world.port
    first = attached(world, volume, server)
    port.attachment_create(volume, server)
    port.attachment_delete(first.id)
    assert status(world, volume) == "reserved"


def test_an_attaching_attachment_counts_for_more_than_an_older_reservation(world: World) -> None:
    volume, server, port = world.new_volume(), new_uuid(), world.port
    _, middle, last = (port.attachment_create(volume, server) for _ in range(3))
    port.attachment_update(last.id, connector())
    port.attachment_delete(middle.id)
    assert status(world, volume) == "attaching"


def test_a_multiattach_volume_serves_two_servers_one_reservation_at_a_time(world: World) -> None:
    volume, port = world.new_volume(multiattach=True), world.port
    assert port.volume(volume).multiattach
    first = port.attachment_create(volume, new_uuid())
    error = refusal(lambda: port.attachment_create(volume, new_uuid()))
    assert "must be available or in-use or downloading to reserve" in error.message
    port.attachment_update(first.id, connector("compute-a"))
    port.attachment_complete(first.id)
    second = port.attachment_create(volume, new_uuid())
    assert status(world, volume) == "reserved"  # although the first is in use
    port.attachment_update(second.id, connector("compute-b"))
    port.attachment_complete(second.id)
    port.attachment_delete(first.id)
    assert status(world, volume) == "in-use"
    port.attachment_delete(second.id)
    assert status(world, volume) == "available"


# --- faults and retries, the same on both simulated ports ----------------------------------------


def script(world: SimulatedWorld, **rule: Any) -> None:
    world.faults.replace([rule])


@pytest.mark.parametrize(
    ("http_status", "kind", "code"),
    [
        (400, ErrorKind.FINAL, "refused"),
        (401, ErrorKind.RETRYABLE, "unauthorized"),
        (403, ErrorKind.FINAL, "forbidden"),
        (404, ErrorKind.FINAL, "not_found"),
        (409, ErrorKind.FINAL, "refused"),
        (413, ErrorKind.FINAL, "refused"),
        (429, ErrorKind.RETRYABLE, "rate_limited"),
        (500, ErrorKind.UNKNOWN, "cinder_error"),
        (502, ErrorKind.UNKNOWN, "cinder_error"),
        (503, ErrorKind.RETRYABLE, "cinder_unavailable"),
        (504, ErrorKind.UNKNOWN, "cinder_error"),
    ],
)
def test_each_error_answer_has_its_kind_and_code(
    simulated: SimulatedWorld, http_status: int, kind: ErrorKind, code: str
) -> None:
    volume = simulated.new_volume()
    hm = f"Hm, {volume}."
    script(simulated, call="volume_show", do="fail", status=http_status, count=None, message=hm)
    error = refusal(lambda: simulated.port.volume(volume))
    assert (error.kind, error.code, error.message) == (kind, code, hm)


def test_an_update_whose_fate_is_unknown_is_not_repeated_here(simulated: SimulatedWorld) -> None:
    """Its step is, after a look (LP 1970642): late, it would take a completion back."""
    row = simulated.port.attachment_create(simulated.new_volume(), new_uuid())
    script(simulated, call="attachment_update", do="fail_after", status=500)
    error = refusal(lambda: simulated.port.attachment_update(row.id, connector()))
    assert error.kind is ErrorKind.UNKNOWN
    assert simulated.model.counts["attachment_update"] == 1


def test_all_attachments_of_a_server_are_listed_without_a_volume(
    simulated: SimulatedWorld,
) -> None:
    server = new_uuid()
    rows = [simulated.port.attachment_create(simulated.new_volume(), server) for _ in "ab"]
    simulated.port.attachment_create(simulated.new_volume(), new_uuid())
    found = {row.id for row in simulated.port.attachments(None, server)}
    assert found == {row.id for row in rows}


def test_a_delete_whose_answer_was_lost_is_repeated_and_is_success(
    simulated: SimulatedWorld,
) -> None:
    row = simulated.port.attachment_create(simulated.new_volume(), new_uuid())
    script(simulated, call="attachment_delete", do="fail_after", status=504, count=1)
    simulated.port.attachment_delete(row.id)
    assert status(simulated, row.volume_id) == "available"


def test_a_create_is_never_repeated(simulated: SimulatedWorld) -> None:
    volume, server = simulated.new_volume(), new_uuid()
    for http_status in (503, 500):
        script(simulated, call="attachment_create", do="fail", status=http_status, count=None)
        refusal(lambda: simulated.port.attachment_create(volume, server))
    assert simulated.time.slept == []
    assert simulated.model.counts["attachment_create"] == 2


def test_a_create_that_fails_after_it_was_done_leaves_an_orphan_to_find(
    simulated: SimulatedWorld,
) -> None:
    volume, server = simulated.new_volume(), new_uuid()
    script(simulated, call="attachment_create", do="fail_after", status=500)
    error = refusal(lambda: simulated.port.attachment_create(volume, server))
    assert error.kind is ErrorKind.UNKNOWN
    assert [row.status for row in simulated.port.attachments(volume, server)] == ["reserved"]


def test_a_lie_says_yes_and_does_nothing(simulated: SimulatedWorld) -> None:
    row = simulated.port.attachment_create(simulated.new_volume(), new_uuid())
    script(simulated, call="attachment_delete", do="lie")
    assert simulated.port.attachment_delete(row.id) is None
    assert simulated.port.attachment(row.id).status == "reserved"


def test_a_fault_matches_by_volume_although_the_call_names_the_attachment(
    simulated: SimulatedWorld,
) -> None:
    rows = [simulated.port.attachment_create(simulated.new_volume(), new_uuid()) for _ in "ab"]
    hit = {"volume_id": rows[1].volume_id}
    script(simulated, call="attachment_complete", match=hit, do="fail", status=409, count=None)
    simulated.port.attachment_complete(rows[0].id)
    assert refusal(lambda: simulated.port.attachment_complete(rows[1].id)).code == "refused"
