"""Bugs others had when moving running servers, each under its number (Launchpad)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.operation import OperationState, Outcome
from handlers.requests.actions import ActOnServer
from host_agent.shared.contract.messages import ErrorKind
from host_agent.storage import connection
from ledger.trial.cinder.model import connection as cinder_connection
from tests.doubles.host_checks import connected_paths
from tests.memory import Trouble
from tests.regressions.worlds import (
    Watched,
    attached,
    broken_on,
    crash_at,
    guests_on,
    host_returns,
    mapping_of,
    migrate,
    rows,
    run_until,
    sources,
    status,
)
from tests.world import CONTEXT, HOST, OTHER, SERVER, Broken, World, events


def kept(world: World) -> list[tuple[str, str, dict[str, Any]]]:
    """Cinder's rows, down to the connection information."""
    return [
        (row.id, row.status, dict(row.connection_info))
        for n in range(len(world.volumes))
        for row in rows(world, n)
    ]


def stays(world: World, before: list[Any]) -> bool:
    """The server is where it was, as it was; nothing is left of the attempt."""
    return (
        kept(world) == before
        and {status(world, n) for n in range(len(world.volumes))} == {"in-use"}
        and guests_on(world, HOST) == {SERVER: "running"}
        and guests_on(world, OTHER) == {}
        and connected_paths(world.hosts[OTHER]) == set()
        and len(connected_paths(world.hosts[HOST])) == len(world.volumes)
        and world.instance.host == HOST
        and world.instance.vm_state == "active"
        and world.wrong() == []
    )


# --- failing before the guest has moved --------------------------------------------------


def test_lp1889108_a_rollback_leaves_the_sources_attachment_alone() -> None:
    world = attached(volumes=2)
    before = kept(world)
    broken = broken_on(world, OTHER, "brick.connect", ErrorKind.FINAL)
    deleted = Watched(world, OTHER, "cinder.attachment_delete")
    assert world.run(migrate(world)).outcome is Outcome.FAILED
    assert broken.calls > 0
    assert set(deleted.seen).isdisjoint(id_ for id_, _, _ in before)
    assert stays(world, before)
    assert {m.attachment_id for m in world.mappings()} == {id_ for id_, _, _ in before}


def test_lp1889108_a_rollback_that_is_interrupted_leaves_it_alone_as_well() -> None:
    world = attached(volumes=2)
    before = kept(world)
    broken_on(world, OTHER, "brick.connect", ErrorKind.FINAL)
    operation_id = migrate(world)
    crash_at(world, operation_id, "cinder.attachment_delete")
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert stays(world, before)


@pytest.mark.parametrize("kind", [ErrorKind.FINAL, ErrorKind.UNKNOWN, ErrorKind.RETRYABLE])
def test_lp1899835_a_host_that_connected_nothing_is_told_to_disconnect_nothing(
    kind: ErrorKind,
) -> None:
    """Cinder makes no attachment for the destination."""
    world = attached()
    before = kept(world)
    connect = Watched(world, OTHER, "brick.connect")
    disconnect = Watched(world, OTHER, "brick.disconnect")
    at_source = Watched(world, HOST, "brick.disconnect")
    Broken(world, "cinder.attachment_create", kind)
    assert world.run(migrate(world)).outcome is Outcome.FAILED
    assert (connect.seen, disconnect.seen, at_source.seen) == ([], [], [])
    assert stays(world, before)


def test_lp1899835_each_host_disconnects_with_its_own_connection() -> None:
    world = attached(volumes=2)
    source = {row_id for row_id, _, _ in kept(world)}
    at_source = Watched(world, HOST, "brick.disconnect")
    at_destination = Watched(world, OTHER, "brick.disconnect")
    world.done(migrate(world))
    assert set(at_source.attachment_ids) == source
    assert at_destination.attachment_ids == []
    world.done(world.detach())
    assert len(at_destination.attachment_ids) == 1
    assert set(at_destination.attachment_ids).isdisjoint(source)


@pytest.mark.parametrize(
    ("host", "call"),
    [
        (OTHER, "brick.connector"),
        (OTHER, "cinder.volume"),
        (OTHER, "brick.connect"),
        (HOST, "guests.migrate"),
    ],
)
def test_lp1778206_a_move_that_fails_leaves_one_attachment_the_sources(
    host: str, call: str
) -> None:
    world = attached()
    before = kept(world)
    operation_id = migrate(world)
    broken_on(world, host, call, ErrorKind.FINAL)
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert stays(world, before)


def test_lp1582482_a_refused_move_writes_nothing() -> None:
    """Checks only read: neither Cinder nor the log has changed."""
    world = attached()
    before, stored = kept(world), len(world.store.log)
    world.trouble = Trouble()
    for where in (HOST, "nowhere"):
        request = ActOnServer(server_id=SERVER, flow="live_migrate", destination=where)
        told = f"Host {where} cannot take instance {SERVER}:"
        with pytest.raises(errors.DestinationError, match=told):
            world.requests.act(request, CONTEXT, world.fleet)
    assert world.trouble.met == []
    assert len(world.store.log) == stored
    assert stays(world, before)


# --- after it has moved --------------------------------------------------------------------


def test_lp1843639_a_source_that_cannot_disconnect_does_not_fail_the_move() -> None:
    """The server runs there; the old attachment stays as the sign, until there is evidence."""
    world = attached()
    [(old, _, _)] = kept(world)
    broken = broken_on(world, HOST, "brick.disconnect")
    operation = world.run(migrate(world))
    assert operation.state is OperationState.PARKED
    assert guests_on(world, OTHER) == {SERVER: "running"}
    assert guests_on(world, HOST) == {}
    assert (world.instance.host, world.instance.vm_state) == (OTHER, "error")
    assert {row.id: row.status for row in rows(world)}[old] == "attached"
    assert sorted(row.status for row in rows(world)) == ["attached", "attached"]
    assert mapping_of(world, world.volumes[0]).attachment_id != old
    assert len(connected_paths(world.hosts[HOST])) == 1
    broken.heal()
    world.service.act(str(operation.id), "retry", "path is back", CONTEXT)
    world.done(str(operation.id))
    assert old not in {row.id for row in rows(world)}
    assert connected_paths(world.hosts[HOST]) == set()
    assert world.instance.vm_state == "active"
    assert world.wrong() == []


def test_lp1939545_what_the_destination_learnt_is_used_by_the_next_operation() -> None:
    world = attached()
    world.done(migrate(world))
    mapping = mapping_of(world, world.volumes[0])
    [path] = connected_paths(world.hosts[OTHER])
    known = {str(e.originator_id): e.device_path for e in events(world, Attachment.Connected)}
    assert known[mapping.attachment_id or ""] == path
    world.done(world.detach())
    assert connected_paths(world.hosts[OTHER]) == set()
    assert rows(world) == []
    assert world.wrong() == []


def test_lp2033292_every_disk_is_on_its_own_volume_after_a_move() -> None:
    """By the volume's id, whatever was connected in which order."""
    world = attached(volumes=3)
    world.done(world.detach(world.volumes[0])).done(world.attach(world.volumes[0]))
    world.done(migrate(world))
    for n, volume_id in enumerate(world.volumes):
        digest = connection.target_digest(rows(world, n)[0].connection_info)
        entry = world.hosts[OTHER].read()["connected"][digest]
        assert sources(world, OTHER)[volume_id] == entry["path"]


def test_lp1741364_the_destination_connects_with_what_is_true_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The monitors have moved since the volume was attached."""
    world = attached(driver="rbd")
    [(_, _, old)] = kept(world)
    moved = monitors_move(monkeypatch)
    connect = Watched(world, OTHER, "brick.connect")
    world.done(migrate(world))
    assert old["hosts"] != moved
    assert [info["hosts"] for info in connect.seen] == [moved]
    [xml] = [guest["live"] for guest in world.hosts[OTHER].read()["guests"].values()]
    assert moved[0] in xml
    assert old["hosts"][0] not in xml


def monitors_move(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every connection made from now on names other Ceph monitors; returns them."""
    moved = ["198.51.100.1", "198.51.100.2", "198.51.100.3"]
    make = cinder_connection._MAKERS["rbd"]

    def made(volume: Any, attachment_id: str) -> tuple[dict[str, Any], list[str]]:
        data, secrets = make(volume, attachment_id)
        return {**data, "hosts": moved}, secrets

    monkeypatch.setitem(cinder_connection._MAKERS, "rbd", made)
    return moved


# --- while it moves --------------------------------------------------------------------------


def test_lp1694530_both_hosts_have_an_attachment_of_their_own_while_it_moves() -> None:
    """A single-attach volume, and the same server twice: made with the connector at once."""
    world = attached()
    [(old, _, _)] = kept(world)
    operation_id = migrate(world)
    run_until(world, operation_id, lambda: len(connected_paths(world.hosts[OTHER])) == 1)
    assert {row.id: row.host for row in rows(world)}[old] == HOST
    assert sorted(row.host or "" for row in rows(world)) == [HOST, OTHER]
    assert "cinder.attachment_update" not in world.trouble.met
    world.done(operation_id)
    assert [row.host for row in rows(world)] == [OTHER]


@pytest.mark.parametrize("wanted", ["on", "back"])
def test_x5_both_attachments_are_known_after_a_crash_in_the_middle(wanted: str) -> None:
    world = attached(volumes=2)
    before = kept(world)
    calm = world.summary()
    operation_id = migrate(world)
    crash_at(world, operation_id, "guests.migrate")
    in_cinder = {row_id for row_id, _, _ in kept(world)}
    assert len(in_cinder) == 4
    assert {str(a.id) for a in world.attachments()} == in_cinder
    assert {m.attachment_id for m in world.mappings()} == {row_id for row_id, _, _ in before}
    if wanted == "on":
        world.done(operation_id)
        assert {row.host for n in range(2) for row in rows(world, n)} == {OTHER}
    else:
        broken_on(world, HOST, "guests.migrate", ErrorKind.FINAL)
        assert world.run(operation_id).outcome is Outcome.FAILED
        assert world.summary() == calm
        assert stays(world, before)
    assert world.wrong() == []


@pytest.mark.parametrize("flow", ["reboot", "refresh", "stop", "shelve"])
def test_x7_nothing_else_touches_the_attachments_of_a_move(flow: str) -> None:
    """What is in flight is no leftover: it is refused, and the refusal names the move."""
    world = attached()
    operation_id = migrate(world)
    run_until(world, operation_id, lambda: len(rows(world)) == 2)
    both = [row.id for row in rows(world)]
    with pytest.raises(errors.ClaimedError, match=operation_id):
        world.requests.act(ActOnServer(server_id=SERVER, flow=flow), CONTEXT, world.fleet)
    for host in (HOST, OTHER):
        world.register(host)
    assert [row.id for row in rows(world)] == both
    world.done(operation_id)
    assert world.wrong() == []


# --- evacuation ------------------------------------------------------------------------------


def evacuated() -> tuple[World, set[str]]:
    """A server that was rebuilt on the other host; and what its first host still has."""
    world = attached(volumes=2)
    source = {row_id for row_id, _, _ in kept(world)}
    world.fence(HOST)
    world.done(world.act("evacuate", destination=OTHER))
    world.boot()
    return world, source


def test_x12_a_host_that_returns_lets_go_with_its_own_connections(tmp_path: Path) -> None:
    world, source = evacuated()
    assert set(guests_on(world, HOST)) == {SERVER}, "as it was when it failed"
    destination = kept(world)
    calls = Watched(world, HOST, "brick.disconnect")
    elsewhere = Watched(world, OTHER, "brick.disconnect")
    removed = Watched(world, HOST, "guests.remove")
    host_returns(world, HOST, tmp_path)
    assert set(calls.attachment_ids) == source
    assert removed.seen == [SERVER]
    assert elsewhere.seen == []
    assert guests_on(world, HOST) == {}
    assert connected_paths(world.hosts[HOST]) == set()
    assert kept(world) == destination
    assert guests_on(world, OTHER) == {SERVER: "running"}
    assert world.wrong() == []


def test_x12_the_sources_attachments_go_only_after_the_destination_has_its_own() -> None:
    """In between the volume would be anybody's."""
    world = attached()
    seen: list[str] = []
    real = world.cinder.drop_attachment

    def dropping(attachment_id: str) -> None:
        seen.append(status(world))
        assert {row.host for row in rows(world)} == {HOST, OTHER}
        real(attachment_id)

    world.cinder.drop_attachment = dropping  # type: ignore[method-assign]
    world.fence(HOST)
    world.done(world.act("evacuate", destination=OTHER))
    assert seen == ["in-use"]
    waived = [event.waived for event in events(world, Attachment.Disconnected)]
    assert waived == [f"host {HOST} is fenced: lost power (BMC says off)"]


def test_evacuation_wants_a_fence() -> None:
    world = attached()
    before = kept(world)
    world.dead.add(HOST)
    request = ActOnServer(server_id=SERVER, flow="evacuate", destination=OTHER)
    with pytest.raises(errors.HostNotFencedError):
        world.requests.act(request, CONTEXT, world.fleet)
    assert kept(world) == before


# --- hosts that die in between ---------------------------------------------------------------


def test_a_guest_does_not_move_to_a_host_that_was_fenced_meanwhile(tmp_path: Path) -> None:
    """The source's run is called off; its executor then fails what has not begun (tests/agent)."""
    world = attached()
    before = kept(world)
    operation_id = migrate(world)
    run_until(world, operation_id, lambda: len(connected_paths(world.hosts[OTHER])) == 1)
    world.fence(OTHER)
    assert world.operation(operation_id).history.unwinding
    broken_on(world, HOST, "guests.migrate", ErrorKind.FINAL)
    assert world.run(operation_id).outcome is Outcome.CANCELLED
    host_returns(world, OTHER, tmp_path)
    assert stays(world, before)


def test_a_revert_wants_the_host_it_returns_to() -> None:
    world = attached()
    world.done(world.act("resize", destination=OTHER))
    world.fence(HOST)
    act = ActOnServer(server_id=SERVER, flow="revert_resize")
    with pytest.raises(errors.HostUnavailableError, match=HOST):
        world.requests.act(act, CONTEXT, world.fleet)
    assert guests_on(world, OTHER) == {SERVER: "running"}


def test_a_revert_leaves_a_destination_that_is_dead(tmp_path: Path) -> None:
    world = attached()
    before = kept(world)
    world.done(world.act("resize", destination=OTHER))
    world.fence(OTHER)
    world.done(world.act("revert_resize"))
    assert guests_on(world, HOST) == {SERVER: "running"}
    host_returns(world, OTHER, tmp_path)
    assert stays(world, before)


@pytest.mark.parametrize("fenced", [False, True], ids=["", "fenced"])
@pytest.mark.parametrize(("then", "left"), [("confirm_resize", HOST), ("revert_resize", OTHER)])
def test_what_settles_a_resize_leaves_the_disks_of_the_guest_that_stays(
    then: str, left: str, fenced: bool
) -> None:
    """Removing the other one takes them out of that alone."""
    world = attached()
    world.done(world.act("resize", destination=OTHER))
    if fenced:
        world.fence(left)
    world.done(world.act(then))
    assert [mapping.state for mapping in world.mappings()] == ["plugged"]
    assert world.wrong() == []
