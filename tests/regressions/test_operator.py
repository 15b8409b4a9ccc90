"""Bugs others had when repairing, starting and rebuilding, under their numbers (Launchpad)."""

from __future__ import annotations

from typing import Any

import pytest

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.operation import OperationState, Outcome
from handlers.requests.operator import acts
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind, Verb
from host_agent.simulated.host_state import set_power
from host_agent.verbs import VERBS
from host_agent.verbs.context import RunContext
from tests.doubles.host_checks import connected_paths
from tests.regressions.worlds import (
    RUNNING,
    STOPPED,
    Watched,
    attached,
    broken_on,
    guests_on,
    mapping_of,
    rows,
    run_until,
    sources,
    status,
)
from tests.world import CONTEXT, HOST, OTHER, SERVER, Broken, World, events


def host_reboots(world: World) -> None:
    """All guests off, nothing connected, no secrets; then the agent registers."""
    set_power(world.host, SERVER, STOPPED)
    with world.host.edit() as state:
        state.update(connected={}, secrets={})
    world.boot()
    world.register(HOST)


# --- refresh -----------------------------------------------------------------------------


@pytest.mark.parametrize("flow", ["refresh", "reboot"])
def test_lp1945450_cinder_keeps_knowing_where_the_disk_is(flow: str) -> None:
    """What a user sees as the attachment's device (also LP 1737779)."""
    world = attached(STOPPED)
    name = mapping_of(world, world.volumes[0]).device_name
    assert [row.mountpoint for row in rows(world)] == [f"/dev/{name}"]
    world.done(world.act(flow))
    assert [row.mountpoint for row in rows(world)] == [f"/dev/{name}"]


def test_lp1945450_the_destination_tells_cinder_as_well() -> None:
    world = attached()
    name = mapping_of(world, world.volumes[0]).device_name
    world.done(world.act("live_migrate", destination=OTHER))
    assert [(row.host, row.mountpoint) for row in rows(world)] == [(OTHER, f"/dev/{name}")]


# --- attachments that Cinder has lost --------------------------------------------------------


def lost_in_cinder(power_state: Any = RUNNING) -> World:
    """The first of two attachments was deleted in Cinder, under the guest."""
    world = attached(power_state, volumes=2)
    world.cinder.drop_attachment(rows(world)[0].id)
    return world


def test_lp2019078_an_attachment_lost_in_cinder_is_reported_and_nothing_is_guessed() -> None:
    """The reboot is refused before anything is done to the guest; no entry goes by itself."""
    world = lost_in_cinder()
    lost = mapping_of(world, world.volumes[0])
    operation = world.run(world.act("reboot"))
    assert operation.outcome is Outcome.FAILED
    assert operation.first_error is not None
    assert operation.first_error["code"] == "attachment_gone"
    assert str(lost.attachment_id) in operation.first_error["message"]
    assert guests_on(world, HOST) == {SERVER: "running"}
    assert world.instance.vm_state == "active"
    assert len(world.mappings()) == 2
    assert [row.status for row in rows(world, 1)] == ["attached"]


def test_lp2019078_an_attachment_lost_in_cinder_is_repaired_on_request() -> None:
    """By a detach: the host lets go by its own record, the other volume is not touched."""
    world = lost_in_cinder()
    world.done(world.detach(world.volumes[0]))
    assert len(connected_paths(world.host)) == 1
    assert [m.volume_id for m in world.mappings()] == [world.volumes[1]]
    world.done(world.act("reboot"))
    assert guests_on(world, HOST) == {SERVER: "running"}
    world.done(world.attach(world.volumes[0]))
    assert world.wrong() == []


def test_lp2033752_a_dangling_entry_does_not_keep_a_server_from_being_deleted() -> None:
    world = lost_in_cinder()
    world.done(world.delete())
    assert [status(world, n) for n in range(2)] == ["available", "available"]
    assert connected_paths(world.host) == set()
    assert world.wrong() == []


def test_lp2033752_looking_changes_nothing_while_cinder_is_away() -> None:
    """A host that registers says what is there; no attachment is judged by that."""
    world = lost_in_cinder()
    Broken(world, "cinder.attachment")
    stored = len(world.store.log)
    world.register(HOST)
    assert len(world.mappings()) == 2
    kinds = {type(event) for event, _ in world.store.log[stored:]}
    assert kinds.isdisjoint({Attachment.Deleted, Attachment.Disconnected})


# --- starting ------------------------------------------------------------------------------


@pytest.mark.parametrize("flow", ["start", "reboot", "rebuild"])
def test_lp1724573_a_start_connects_what_the_host_has_lost(flow: str) -> None:
    world = attached(volumes=2)
    host_reboots(world)
    assert world.instance.vm_state == "stopped"
    connect = Watched(world, HOST, "brick.connect")
    world.done(world.act(flow, running=True))
    assert len({info["attachment_id"] for info in connect.seen}) == 2
    assert len(connected_paths(world.host)) == 2
    assert set(sources(world, HOST).values()) == connected_paths(world.host)
    assert guests_on(world, HOST) == {SERVER: "running"}
    assert world.wrong() == []


@pytest.mark.parametrize("power", ["shutdown", "lost"])
def test_a_reboot_ends_with_the_guest_running(power: str) -> None:
    """Also where it was off, or where its host knows nothing of it any more."""
    world = attached()
    if power == "lost":
        with world.host.edit() as state:
            state["guests"] = {}
        world.register(HOST)
    else:
        world.done(world.act("stop"))
    world.done(world.act("reboot"))
    assert guests_on(world, HOST) == {SERVER: "running"}
    assert world.wrong() == []


def test_lp1905701_a_start_needs_nothing_of_whoever_attached() -> None:
    """Connection information is read anew, as the service, by the attachment's id."""
    world = attached()
    host_reboots(world)
    asked = Watched(world, HOST, "cinder.attachment")
    world.done(world.act("start"))
    assert set(asked.seen) == {rows(world)[0].id}


@pytest.mark.parametrize("flow", ["start", "reboot", "rebuild"])
def test_lp1741364_a_start_connects_with_what_is_true_now_and_only_that(flow: str) -> None:
    """The target has moved: the guest gets the new path, and the former one is let go."""
    world = attached(STOPPED)
    former = connected_paths(world.host)
    rows(world)[0].connection_info["target_iqn"] += "-moved"
    world.done(world.act(flow, running=True))
    present = connected_paths(world.host)
    assert set(sources(world, HOST).values()) == present
    assert present.isdisjoint(former)
    assert world.wrong() == []


@pytest.mark.parametrize("flow", ["reboot", "rebuild"])
def test_a_restart_costs_no_guest_whose_volume_cannot_be_had_again(flow: str) -> None:
    """Connected anew before it is stopped: what fails then is undone under a guest that runs."""
    world = attached()
    broken_on(world, HOST, "brick.connect", ErrorKind.FINAL)
    operation = world.run(world.act(flow))
    assert operation.outcome is Outcome.FAILED
    assert guests_on(world, HOST) == {SERVER: "running"}
    assert world.instance.vm_state == "active"


@pytest.mark.parametrize("flow", ["start", "rebuild"])
def test_a_host_that_dies_before_its_guest_runs_connects_again(flow: str) -> None:
    """What an earlier run of the operation has connected is gone with the host."""
    world = attached(STOPPED)
    connect = Watched(world, HOST, "brick.connect")
    operation_id = world.act(flow, running=True)
    run_until(world, operation_id, lambda: bool(connect.seen))
    with world.host.edit() as state:
        state["connected"] = {}
    world.done(operation_id)
    assert set(sources(world, HOST).values()) == connected_paths(world.host)
    assert guests_on(world, HOST) == {SERVER: "running"}
    assert world.wrong() == []


@pytest.mark.parametrize("flow", ["start", "rebuild"])
def test_lp1724573_a_guest_does_not_start_without_its_volumes(flow: str) -> None:
    world = attached()
    host_reboots(world)
    broken_on(world, HOST, "brick.connect", ErrorKind.FINAL)
    operation = world.run(world.act(flow, running=True))
    assert operation.outcome is not Outcome.COMPLETED
    assert guests_on(world, HOST) == {SERVER: "shutdown"}
    assert [row.status for row in rows(world)] == ["attached"]


# --- forcing ---------------------------------------------------------------------------------


def test_lp2012251_what_an_operator_forces_says_what_it_left_behind() -> None:
    """The flush fails for good; there is no forced disconnect, only somebody who vouches."""
    world = attached()
    [row] = rows(world)
    broken_on(world, HOST, "brick.disconnect")
    operation = world.run(world.detach())
    assert operation.state is OperationState.PARKED
    assert [kept.status for kept in rows(world)] == ["attached"], "no delete before that"
    world.service.act(
        str(operation.id), "skip", "paths removed by hand", CONTEXT, lane=0, step="disconnect"
    )
    world.done(str(operation.id))
    assert rows(world) == []
    [waived] = [event.waived for event in events(world, Attachment.Disconnected)]
    assert waived == "paths removed by hand"
    assert list(world.records[HOST]) == [row.id], "the host still says so when it registers"


def test_a_refresh_that_was_given_up_half_way_can_be_asked_for_again() -> None:
    world = attached()
    complete = broken_on(world, HOST, "cinder.attachment_complete", ErrorKind.FINAL)
    operation = world.run(world.act("refresh"))
    assert operation.state is OperationState.PARKED
    world.service.act(str(operation.id), "give_up", "Cinder is being mended", CONTEXT)
    assert [row.status for row in rows(world)] == ["attaching"]
    complete.heal()
    world.done(world.act("refresh"))
    assert [row.status for row in rows(world)] == ["attached"]


def test_a_refresh_that_was_given_up_disconnected_leaves_its_record() -> None:
    """Decision 0081: a look found the connection missing until somebody asked for it again."""
    world = attached(STOPPED)
    update = broken_on(world, HOST, "cinder.attachment_update", ErrorKind.FINAL)
    operation = world.run(world.act("refresh"))
    assert operation.state is OperationState.PARKED
    assert world.host.read()["connected"] == {}
    world.service.act(str(operation.id), "give_up", "Cinder is being mended", CONTEXT)
    assert list(world.records[HOST]) == [row.id for row in rows(world)]
    update.heal()
    world.done(world.act("start"))
    assert world.wrong() == []


def test_a_result_that_cannot_be_true_fails_the_step_and_is_not_asked_for_for_ever() -> None:
    """Somebody deleted the attachment in the log while the host connected it."""
    world = World()
    operation_id = world.attach()
    run_until(world, operation_id, lambda: bool(events(world, Attachment.ConnectorUpdated)))
    [attachment] = world.attachments()
    attachment.record(Attachment.Disconnected)
    attachment.record(Attachment.Deleted)
    world.store.save(attachment, context=CONTEXT)
    operation = world.run(operation_id)
    assert operation.first_error is not None
    assert operation.first_error["code"] == "illegal_transition"
    assert "Connected cannot happen" in operation.first_error["message"]


def test_a_host_that_does_not_say_which_attachment_it_made_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it made all the same is found and deleted."""
    world = attached()
    create = VERBS[Verb.ATTACHMENT_CREATE]

    def silent(ctx: RunContext, lane: Lane) -> dict[str, Any]:
        made = create(ctx, lane)
        del made["attachment_id"]
        return made

    monkeypatch.setitem(VERBS, Verb.ATTACHMENT_CREATE, silent)
    operation = world.run(world.act("live_migrate", destination=OTHER))
    assert operation.outcome is Outcome.FAILED
    assert operation.first_error is not None
    assert operation.first_error["code"] == "no_attachment_id"
    assert len(rows(world)) == 1
    assert world.wrong() == []


@pytest.mark.parametrize("flow", ["confirm_resize", "revert_resize"])
def test_a_resize_that_is_half_settled_is_not_given_up(flow: str) -> None:
    """One host has let go: what began anew deleted the other's attachment, and never ended."""
    world = attached()
    world.done(world.act("resize", destination=OTHER))
    call = "brick.disconnect" if flow == "confirm_resize" else "guests.start"
    broken = broken_on(world, HOST, call, ErrorKind.FINAL)
    operation_id = world.act(flow)
    assert world.run(operation_id).state is OperationState.PARKED
    assert acts(world.operation(operation_id)) == ["retry", "skip"]
    with pytest.raises(errors.OperatorActError, match="no other one can confirm or revert"):
        world.service.act(operation_id, "give_up", "never mind", CONTEXT)
    broken.heal()
    world.service.act(operation_id, "retry", "mended", CONTEXT)
    world.done(operation_id)
    assert world.wrong() == []
