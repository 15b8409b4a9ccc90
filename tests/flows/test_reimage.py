"""What is particular to writing an image to a root volume (decision 0083)."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.operation import SERVER, Operation, OperationState, Outcome
from handlers.engine.verbs import PUT_OFF_MAX_S
from handlers.requests.build import BootDisk
from host_agent.shared.contract.messages import ErrorKind, PowerState
from ledger.trial.cinder.model import work as cinder_work
from ledger.trial.cinder.model.rows import CinderFault, StoredVolume
from tests.doubles.host_checks import plugged
from tests.flows.scenarios import _roots as with_root
from tests.regressions.worlds import host_returns, run_until
from tests.world import CONTEXT, HOST, IMAGE, OTHER, Broken, World, events

RUNNING, STOPPED = PowerState.RUNNING, PowerState.SHUTDOWN


def root_of(world: World) -> StoredVolume:
    return world.cinder.volume(world.volumes[0])


def writing(world: World) -> str:
    """A rebuild that has come so far that Cinder writes; its operation."""
    operation_id = world.act("reimage", image=IMAGE)
    while root_of(world).status != "downloading":
        if world.service.advance(operation_id) is not None:
            world.run_agent(operation_id)
    return operation_id


def fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cinder takes the request, and cannot write."""

    def begin(_model: object, volume: StoredVolume, _image: str, *, reserved: bool) -> None:
        assert reserved
        assert volume.status == "reserved"
        volume.status = "downloading"
        volume.end_imaging(error=True)

    with monkeypatch.context() as patched:
        patched.setattr(cinder_work, "begin_reimage", begin)
        world.run(world.act("reimage", image=IMAGE))


def parked(world: World, code: str) -> Operation:
    [operation_id] = world.instance.claims
    operation = world.operation(operation_id)
    assert operation.state is OperationState.PARKED
    assert [row["error"]["code"] for row in operation.left if row["error"]] == [code]
    assert world.instance.vm_state == "error"
    return operation


def test_cinder_writes_while_no_host_has_the_volume_and_the_server_reserves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, real, seen = with_root(RUNNING), cinder_work.begin_reimage, list[str]()

    def begin(*args: object, **more: bool) -> None:
        [row] = world.cinder.attachments_of(world.volumes[0])
        assert (row.status, row.instance, row.connection_info) == ("reserved", world.server_id, {})
        assert world.host.read()["guests"][world.server_id]["live"] is None
        assert world.volumes[0] not in {each.volume_id for each in world.records[HOST].values()}
        seen.append(row.id)
        real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(cinder_work, "begin_reimage", begin)
    world.done(world.act("reimage", image=IMAGE))
    [row] = world.cinder.attachments_of(world.volumes[0])
    assert [row.id] == seen
    assert (row.status, root_of(world).image_id) == ("attached", IMAGE)
    assert world.instance.power_state == RUNNING


def test_the_image_that_is_there_already_is_written_again() -> None:
    """Nova's rebuild means it: the guest has changed the volume since."""
    world = with_root(STOPPED)
    root_of(world).image_id = IMAGE
    world.done(world.act("reimage", image=IMAGE))
    calls = [call for call in world.cinder.recent if call.get("action") == "os-reimage"]
    assert len(calls) == 1


def test_what_cinder_could_not_write_parks_and_the_server_keeps_a_bare_attachment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = with_root(RUNNING)
    fails(world, monkeypatch)
    operation = parked(world, "reimage_failed")
    assert "set --state reserved" in str(world.instance.faults)
    [row] = world.cinder.attachments_of(world.volumes[0])
    [root] = [mapping for mapping in world.mappings() if mapping.boot_index == 0]
    assert (row.status, root.attachment_id) == ("reserved", row.id)
    # Tried again before somebody has reset the volume, nothing is begun: Cinder would write the
    # image, and leave the volume in error.
    world.service.act(str(operation.id), "retry", "again", CONTEXT)
    world.run(str(operation.id))
    parked(world, "reimage_failed")
    assert root_of(world).status == "error"


def test_what_cinder_refuses_to_write_can_be_skipped_and_the_server_is_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = with_root(RUNNING)

    def refuse(*_: object, **_more: object) -> None:
        raise CinderFault(400, "Image is not active.")

    monkeypatch.setattr(cinder_work, "begin_reimage", refuse)
    world.run(world.act("reimage", image=IMAGE))
    [left, *_] = parked(world, "refused").left
    [operation_id] = world.instance.claims
    skipped = {"lane": left["lane"], "step": left["step"]}
    world.service.act(operation_id, "skip", "the image is gone", CONTEXT, **skipped)
    world.done(operation_id)
    assert (root_of(world).image_id, root_of(world).status) == (None, "in-use")
    assert (world.instance.power_state, world.wrong()) == (RUNNING, [])


def test_a_reset_volume_is_not_taken_for_a_written_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it had that image before."""
    world = with_root(RUNNING)
    root_of(world).image_id = IMAGE
    fails(world, monkeypatch)
    operation = parked(world, "reimage_failed")
    root_of(world).status = "reserved"
    world.service.act(str(operation.id), "retry", "reset", CONTEXT)
    world.done(str(operation.id))
    assert [c.get("action") for c in world.cinder.recent].count("os-reimage") == 2
    assert (root_of(world).status, world.instance.power_state) == ("in-use", RUNNING)


def test_a_volume_that_was_reset_while_cinder_wrote_is_written_again() -> None:
    world = with_root(STOPPED)
    operation_id = writing(world)
    root_of(world).status, root_of(world).imaging = "reserved", None
    world.done(operation_id)
    assert root_of(world).image_id == IMAGE


@pytest.mark.parametrize("then", ["start", "reboot", "rebuild", "reimage", "detach", "delete"])
def test_given_up_the_server_goes_on_with_what_it_has(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = with_root(RUNNING)
    fails(world, monkeypatch)
    world.service.act(str(parked(world, "reimage_failed").id), "give_up", "so be it", CONTEXT)
    root_of(world).status = "reserved"
    asks: dict[str, Callable[[], str]] = {
        "detach": lambda: world.detach(world.volumes[0], root_allowed=True),
        "reimage": lambda: world.act("reimage", image=IMAGE),
        "delete": world.delete,
    }
    world.done(asks.get(then, lambda: world.act(then))())
    assert world.wrong() == []
    if then not in {"detach", "delete"}:
        assert {row.status for row in world.cinder.attachments.values()} == {"attached"}
        held = [UUID(mapping.attachment_id or "") for mapping in world.mappings()]
        assert {world.store.load(Attachment, id_).state for id_ in held} == {"attached"}


def test_a_start_that_cinder_does_not_hear_of_is_undone_and_the_guest_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the guest would run, and the server be stopped for all who ask."""
    world = with_root(RUNNING)
    fails(world, monkeypatch)
    world.service.act(str(parked(world, "reimage_failed").id), "give_up", "so be it", CONTEXT)
    root_of(world).status = "reserved"
    broken = Broken(world, "cinder.attachment_complete", ErrorKind.FINAL)
    assert world.run(world.act("start")).outcome is Outcome.FAILED
    assert broken.calls
    assert world.instance.power_state == STOPPED
    assert world.host.read()["guests"][world.server_id]["power_state"] == STOPPED
    assert world.wrong() == []


def test_a_fence_does_not_stop_cinder_and_the_server_is_evacuated_with_the_image() -> None:
    world = with_root(RUNNING)
    operation_id = writing(world)
    world.fence(HOST)
    world.run(operation_id)
    finished = events(world, Operation.OperationFinished)[-1]
    assert (finished.outcome, (finished.error or {})["code"]) == ("failed", "host_fenced")
    assert world.cinder.attachments_of(world.volumes[0])[0].status == "reserved"  # never "in-use"
    world.done(world.act("evacuate", destination=OTHER))
    assert (root_of(world).image_id, world.instance.power_state) == (IMAGE, RUNNING)
    assert world.wrong() == []


def test_when_cinder_tells_nobody_waits_for_the_time_to_ask() -> None:
    world = with_root(STOPPED)
    operation_id = writing(world)
    before = world.clock.seconds
    world.service.act(operation_id, "retry", "Cinder told: volume-reimaged", CONTEXT)
    root_of(world).end_imaging()
    world.done(operation_id)
    assert world.clock.seconds == before


@pytest.mark.parametrize("status", ["error", "downloading", "available", "detaching", "retyping"])
def test_a_root_that_is_not_in_use_keeps_its_guest_running(status: str) -> None:
    world = with_root(RUNNING)
    root_of(world).status = status
    with pytest.raises(errors.VolumeStateError):
        world.act("reimage", image=IMAGE)
    assert world.instance.power_state == RUNNING


def test_a_root_of_several_of_the_old_calls_or_none_is_refused() -> None:
    shared = World(None, multiattach=True)
    shared.done(shared.build(BootDisk(volume_id=shared.volumes[0], boot_index=0)))
    old = World(None, legacy=True)
    old.done(old.build(BootDisk(volume_id=old.volumes[0], boot_index=0)))
    for world, why in ((shared, "several"), (old, "convert"), (World(), "no root volume")):
        with pytest.raises(errors.ReimageError, match=why):
            world.act("reimage", image=IMAGE)
        assert world.instance.power_state == RUNNING


def test_nothing_is_written_before_a_host_that_was_unfenced_has_shown_what_it_has(
    tmp_path: Path,
) -> None:
    """By its fence the volume was taken from it; its guest has the disk, and may run again."""
    world = with_root(RUNNING)
    written = Broken(world, "cinder.volume_reimage")
    operation_id = world.act("reimage", image=IMAGE)

    def is_off() -> bool:
        stop = world.operation(operation_id).history.of_step(SERVER, "stop", undo=False)
        return stop.resolved

    run_until(world, operation_id, is_off)
    world.fence(HOST)
    run_until(world, operation_id, lambda: written.calls > 0)
    world.service.change_host(HOST, methodcaller("unfence", "power is back"), CONTEXT)
    asked = written.calls
    for _ in range(3):
        world.clock.seconds += PUT_OFF_MAX_S
        world.service.carry_on(operation_id)
    assert written.calls == asked
    assert plugged(world.host)[world.server_id] != {}
    written.heal()
    host_returns(world, HOST, tmp_path)
    world.done(operation_id)
    assert world.wrong() == []
