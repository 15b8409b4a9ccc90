"""Bugs others had when building and deleting servers, each under its number (Launchpad)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid5

import pytest

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.base import Actor
from aggregates.operation import Operation, OperationState, Outcome
from handlers.requests.accept import AttachVolume
from handlers.requests.build import BootDisk, BuildServer
from host_agent.shared.contract.messages import ErrorKind
from tests.memory import Trouble
from tests.regressions.worlds import (
    NEIGHBOUR,
    Street,
    attached,
    broken_on,
    cinder_down,
    crash_at,
    guests_on,
    mapping_of,
    migrate,
    nth_point,
    offloaded,
    rows,
    run_until,
    status,
)
from tests.world import CONTEXT, HOST, OTHER, Broken, World, events

TOGETHER = {"delete_on_termination": True}
Ask = Callable[[World], str]


def boots(world: World) -> str:
    return world.build(BootDisk(volume_id=world.volumes[0], boot_index=0))


def host_calls(world: World) -> list[str]:
    """What was asked of os-brick and libvirt, on any host."""
    return [met for met in world.trouble.met if met.startswith(("brick.", "guests."))]


def released(world: World) -> bool:
    """No host, no row of Cinder's and no entry of ours knows of the server's volumes."""
    return (
        not any(guests_on(world, host) for host in (HOST, OTHER))
        and not any(world.summary()["connected"].values())
        and not any(rows(world, n) for n in range(len(world.volumes)))
        and world.attachments() == []
        and world.mappings() == []
        and world.wrong() == []
    )


# --- building --------------------------------------------------------------------------


def test_lp1404867_a_server_no_host_ever_built_releases_its_volumes() -> None:
    """Accepted, reserved; then its host dies, and an operator says so."""
    world = World(None)
    operation_id = boots(world)
    world.dead.add(HOST)
    assert world.run(operation_id).state is OperationState.RUNNING
    assert [row.status for row in rows(world)] == ["reserved"]
    world.fence(HOST)
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert world.instance.vm_state == "error"
    world.done(world.delete())
    assert status(world) == "available"
    assert released(world)


def test_lp2088066_a_delete_while_building_drops_nothing_that_cinder_was_not_told_of() -> None:
    """It waits its turn: that it is asked for changes nothing yet."""
    world = World(None)
    operation_id = boots(world)
    run_until(world, operation_id, lambda: bool(rows(world)))
    stored = len(world.store.log)
    deletion = world.delete()
    news = [type(event).TOPIC for event, _ in world.store.log[stored:]]
    assert news == ["Instance.DeletionAwaited"]
    world.done(operation_id).done(deletion)
    assert released(world)


@pytest.mark.parametrize("volume", [0, 1])
def test_lp1806064_an_attachment_made_just_before_a_crash_is_found_again(volume: int) -> None:
    def build(world: World) -> str:
        return world.build(*(BootDisk(volume_id=id_) for id_ in world.volumes))

    def empty() -> World:
        return World(None, volumes=2)

    world = empty()
    at = nth_point(empty, build, "cinder.attachment_create", volume)
    world.trouble = Trouble({at: "crash_after"})
    operation_id = build(world)
    broken_on(world, HOST, "guests.spawn", ErrorKind.FINAL)
    world.run(operation_id)
    assert [len(rows(world, n)) for n in range(2)] == [1, 1]
    assert world.wrong() == [], "every row of Cinder's is known"
    world.done(world.delete())
    assert released(world)


def test_lp1899649_a_server_that_could_not_be_built_keeps_its_reservations() -> None:
    world = Street(None)
    world.add_neighbour()
    broken = broken_on(world, HOST, "guests.spawn", ErrorKind.FINAL)
    operation = world.run(boots(world))
    assert operation.outcome is Outcome.FAILED
    assert broken.calls == 1
    assert world.instance.vm_state == "error"
    assert [row.status for row in rows(world)] == ["reserved"]
    assert status(world) == "reserved"
    assert mapping_of(world, world.volumes[0]).attachment_id == rows(world)[0].id
    assert not any(world.summary()["connected"].values())
    theft = AttachVolume(server_id=NEIGHBOUR, volume_id=world.volumes[0])
    with pytest.raises(errors.AttachedElsewhereError):
        world.requests.attach(theft, CONTEXT, world.fleet)
    world.done(world.delete())
    assert status(world) == "available"


def test_lp1747693_a_volume_made_for_a_server_is_attached_as_any_other() -> None:
    """And it is never multi-attach (S3)."""
    world = World(None, volumes=1)
    disk = BootDisk(create={"size_gb": 1}, delete_on_termination=True)
    world.done(world.build(BootDisk(volume_id=world.volumes[0], boot_index=0), disk))
    [made] = set(world.known_volumes()) - set(world.volumes)
    mapping = mapping_of(world, made)
    assert mapping.attachment_id == world.cinder.attachments_of(made)[0].id
    assert not mapping.legacy
    assert not world.cinder.volume(made).multiattach
    assert world.wrong() == []


# --- deleting --------------------------------------------------------------------------


def test_lp1834659_a_delete_that_cinder_answers_badly_twice_loses_no_volume() -> None:
    world = attached(server=TOGETHER)
    delete = Broken(world, "cinder.attachment_delete")
    volume = Broken(world, "cinder.volume_delete")
    delete.while_ = lambda: delete.calls < 2
    volume.while_ = lambda: volume.calls < 2
    world.done(world.delete())
    assert (delete.calls, volume.calls) == (2, 2)
    assert world.known_volumes() == [], "delete_on_termination"
    assert released(world)


def test_lp1808089_an_offloaded_servers_volume_is_detached_by_its_kind_of_attachment() -> None:
    """Its volume is `reserved`, so begin_detaching would refuse it."""
    world = offloaded()
    assert status(world) == "reserved"
    world.done(world.detach())
    assert "cinder.begin_detaching" not in world.trouble.met
    assert host_calls(world) == []
    assert status(world) == "available"
    assert world.mappings() == []
    assert world.wrong() == []


def test_lp1738254_what_never_had_a_connector_asks_no_host_to_disconnect() -> None:
    world = World()
    world.done(world.act("shelve"))
    world.trouble = Trouble()
    world.done(world.attach())
    assert rows(world)[0].connection_info == {}
    world.done(world.detach())
    assert host_calls(world) == []
    assert rows(world) == []
    assert world.wrong() == []


def test_lp1675570_an_offloaded_server_releases_its_volumes_when_deleted() -> None:
    world = offloaded(volumes=2)
    world.done(world.delete())
    assert host_calls(world) == []
    assert [status(world, n) for n in range(2)] == ["available", "available"]
    assert released(world)


def test_lp1563547_cinder_down_does_not_hold_up_a_delete() -> None:
    world = attached(volumes=2, server=TOGETHER)
    heal = cinder_down(world)
    operation_id = world.delete()
    run_until(world, operation_id, lambda: not guests_on(world, HOST))
    assert world.instance.vm_state == "deleted"
    assert len(world.attachments()) == 2, "what is left is known"
    began = world.clock.seconds
    run_until(world, operation_id, lambda: world.clock.seconds > began + 1200)
    assert world.operation(operation_id).state is OperationState.RUNNING, "it never gives up"
    heal()
    world.done(operation_id)
    assert world.known_volumes() == []
    assert released(world)


def test_x11_the_release_outlives_its_server_and_every_process() -> None:
    """No error of Cinder's is swallowed: what it did not do is tried until it does."""
    world = attached(server=TOGETHER)
    operation_id = world.delete()
    crash_at(world, operation_id, "cinder.attachment_delete")
    assert world.instance.vm_state == "deleted"
    assert [a.state for a in world.attachments()] == ["disconnected"]
    heal = cinder_down(world)
    began = world.clock.seconds
    run_until(world, operation_id, lambda: world.clock.seconds > began + 1200)
    heal()
    world.done(operation_id)
    assert released(world)


def test_lp1733736_the_release_needs_nobody_who_asked_for_it() -> None:
    """The user's token is long gone: what goes on is recorded as the dispatcher's doing."""
    world = attached()
    operation_id = world.delete()
    world.boot()
    asked = len(world.store.log)
    world.done(operation_id)
    causes = {context.cause for event, context in world.store.log[asked:]}
    assert released(world)
    assert "dispatcher" in causes


def test_lp1750666_an_old_style_attachment_is_released_as_well() -> None:
    world = attached(legacy=True)
    assert mapping_of(world, world.volumes[0]).legacy
    assert [row.status for row in rows(world)] == ["attached"]
    world.done(world.delete())
    assert status(world) == "available"
    assert released(world)


def test_delete_waits_for_the_last_attachment_before_it_deletes_the_volume() -> None:
    """S3: the volume goes with its server, if Cinder lets it; before that it is kept."""
    world = attached(server=TOGETHER)
    broken = Broken(world, "cinder.attachment_delete", ErrorKind.RETRYABLE)
    operation_id = world.delete()
    began = world.clock.seconds
    run_until(world, operation_id, lambda: world.clock.seconds > began + 600)
    assert world.instance.vm_state == "deleted"
    assert "cinder.volume_delete" not in world.trouble.met
    assert [row.status for row in rows(world)] == ["attached"]
    assert len(world.attachments()) == 1
    broken.heal()
    world.done(operation_id)
    assert world.known_volumes() == []
    assert released(world)


def test_a_volume_that_cinder_will_not_delete_is_noted_and_harms_nothing() -> None:
    world = attached(server=TOGETHER)
    Broken(world, "cinder.volume_delete", ErrorKind.FINAL)
    world.done(world.delete())
    assert status(world) == "available"
    assert released(world)
    assert len(events(world, Attachment.Deleted)) == 1


# --- what is deleted with its server though nobody knows it ----------------------------------


def unlearnt(make: Callable[[], World], ask: Ask, call: str, look: str) -> tuple[World, Broken]:
    """Cinder makes an attachment, says that it did not, and cannot be asked what there is."""
    world = make()
    world.trouble = Trouble({nth_point(make, ask, call): "final_after"})
    asked = Broken(world, look, ErrorKind.FINAL)
    asked.while_ = lambda: bool(world.trouble.plan.keys() & set(range(len(world.trouble.met))))
    operation = world.run(ask(world))
    assert operation.state is OperationState.PARKED
    assert asked.calls, "it could not be undone"
    return world, asked


def rootless() -> World:
    world = World(None, volumes=2)
    for ask in (boots, lambda w: w.act("stop"), lambda w: w.detach(root_allowed=True)):
        world.done(ask(world))
    return world


def shelved() -> World:
    world = World()
    return world.done(world.act("shelve"))


NEW, OLD = ("attachment_create", "attachments"), ("reserve", "old_attachments")


@pytest.mark.parametrize(
    ("make", "ask", "calls"),
    [
        pytest.param(World, World.attach, NEW, id="attach"),
        pytest.param(shelved, World.attach, NEW, id="attach-offloaded"),
        pytest.param(rootless, lambda w: w.attach(w.volumes[1], is_root=True), NEW, id="root"),
        pytest.param(lambda: World(None), boots, NEW, id="boot"),
        pytest.param(attached, migrate, NEW, id="live-migrate"),
        pytest.param(attached, lambda w: w.act("shelve"), NEW, id="shelve"),
        pytest.param(lambda: World(legacy=True), World.attach, OLD, id="legacy-attach"),
    ],
)
def test_an_attachment_that_cinder_denies_goes_with_its_server_whose_host_is_fenced(
    make: Callable[[], World], ask: Ask, calls: tuple[str, str]
) -> None:
    """As it does with any other (tests.flows)."""
    world, asked = unlearnt(make, ask, f"cinder.{calls[0]}", f"cinder.{calls[1]}")
    assert world.wrong() or world.legacy, "an attachment that nobody knows"
    asked.heal()
    world.fence(HOST)  # what it can decide goes on by itself
    for operation_id in world.running():
        world.run(str(operation_id))
    world.done(world.delete())
    assert not any(rows(world, n) for n in range(len(world.volumes)))
    assert {status(world, n) for n in range(len(world.volumes))} == {"available"}
    assert (world.attachments(), world.mappings(), world.wrong()) == ([], [], [])


def test_a_volume_that_goes_with_its_server_waits_for_an_attachment_nobody_knew() -> None:
    """Cinder refuses to delete it before that: each lane first ends what nobody knew."""
    world, asked = unlearnt(
        lambda: attached(server=TOGETHER), migrate, "cinder.attachment_create", "cinder.attachments"
    )
    asked.heal()
    listed = Broken(world, "cinder.attachments", ErrorKind.RETRYABLE)
    operation_id = world.delete()
    run_until(world, operation_id, lambda: listed.calls > 1)
    assert len(world.known_volumes()) == 1
    assert "cinder.volume_delete" not in world.trouble.met
    listed.heal()
    world.done(operation_id)
    assert world.known_volumes() == []


def test_what_is_said_of_a_server_when_it_is_built_is_kept() -> None:
    said: dict[str, Any] = {"metadata": {"k": "v"}, "description": "the shop"}
    more: dict[str, Any] = {"tags": ("a", "b"), "kept": {"hostname": "web-1"}}
    world = World(None)
    request = BuildServer(name="web", host=HOST, project_id="shop", **said, **more)
    context = replace(CONTEXT, actor=Actor(name="ada", user_id="ada"))
    built = world.requests.build(request, context, world.fleet, "web")
    world.server_id = str(uuid5(UUID(str(built.operation_id)), "server"))
    wanted = {**said, "tags": ["a", "b"], "hostname": "web-1"}
    assert {name: world.instance.details[name] for name in wanted} == wanted
    assert (world.instance.project_id, world.instance.user_id) == ("shop", "ada")
    assert all(name in (world.instance.definition or "") for name in ("shop", "ada"))


def test_nobody_gives_up_what_may_have_left_an_attachment_that_nobody_knows() -> None:
    world, asked = unlearnt(World, World.attach, "cinder.attachment_create", "cinder.attachments")
    [operation_id] = [str(event.originator_id) for event in events(world, Operation.Parked)]
    with pytest.raises(errors.OperatorActError, match=world.volumes[0]):
        world.service.act(operation_id, "give_up", "never mind", CONTEXT)
    skip = partial(world.service.act, operation_id, "skip", "looked", CONTEXT, step="reserve")
    [remnant] = skip(dry_run=True).remnants
    assert remnant.left is not None
    assert (remnant.left.what, remnant.left.volume_id) == ("attachment", world.volumes[0])
    asked.heal()
    world.service.act(operation_id, "retry", "Cinder is mended", CONTEXT)
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert rows(world) == []


# --- moving off a host with several volumes ----------------------------------------------


@pytest.mark.parametrize("volume", [0, 1, 2])
def test_x4_a_shelve_that_stops_half_way_knows_every_attachment(volume: int) -> None:
    """Of three volumes, one's former attachment is not deleted: the rest goes on, it resumes."""
    world = attached(volumes=3)
    at = nth_point(
        lambda: attached(volumes=3),
        lambda calm: calm.act("shelve"),
        "cinder.attachment_delete",
        volume,
    )
    world.trouble = Trouble({at: "final"})
    operation = world.run(world.act("shelve"))
    assert operation.state is OperationState.PARKED
    assert world.instance.vm_state == "error"
    in_cinder = {row.id for n in range(3) for row in rows(world, n)}
    assert {str(a.id) for a in world.attachments()} == in_cinder
    assert len(in_cinder) == 4
    world.trouble = Trouble()
    world.service.act(str(operation.id), "retry", "Cinder is back", CONTEXT)
    world.done(str(operation.id))
    assert [len(rows(world, n)) for n in range(3)] == [1, 1, 1]
    assert world.instance.vm_state == "shelved_offloaded"
    assert world.wrong() == []


def test_x2_an_attach_to_an_offloaded_server_that_fails_leaves_no_attachment() -> None:
    """Cinder makes the attachment, and says that it did not."""
    world = World()
    world.done(world.act("shelve"))
    world.trouble = Trouble()
    made: list[str] = []
    real = world.cinder.attachment_create

    def unheard(*args: object, **kwargs: object) -> object:
        made.append(real(*args, **kwargs).id)  # type: ignore[arg-type]
        return world.cinder.volume("lost")

    world.cinder.attachment_create = unheard  # type: ignore[assignment, method-assign]
    operation = world.run(world.attach())
    assert operation.outcome is Outcome.FAILED
    assert len(made) == 1
    assert rows(world) == []
    assert status(world) == "available"
    assert world.instance.vm_state == "shelved_offloaded"
    assert world.wrong() == []


def test_the_release_of_a_deleted_server_cannot_be_given_up() -> None:
    """Nobody else would ever release what is left: there is no server to ask for it."""
    world = attached()
    broken = Broken(world, "brick.disconnect", ErrorKind.FINAL)
    operation = world.run(world.delete())
    assert operation.state is OperationState.PARKED
    with pytest.raises(errors.OperatorActError, match="deleted"):
        world.service.act(str(operation.id), "give_up", "never mind", CONTEXT)
    broken.heal()
    world.service.act(str(operation.id), "retry", "mended", CONTEXT)
    world.done(str(operation.id))
    assert released(world)
