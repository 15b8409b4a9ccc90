"""What is particular to snapshots of volumes in use: when Cinder gives up, and hosts go (0078)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aggregates import errors
from aggregates.operation import Operation, OperationState, Outcome
from handlers.requests.snapshots import SnapshotInUse
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError
from ledger.trial.cinder.model import snapshots as cinder_snapshots
from ledger.trial.cinder.model.rows import Snapshot
from tests.doubles.direct_cinder import DirectCinder
from tests.memory import Trouble
from tests.snapshots import chain, delete_newest, snapshots_of, take, taken
from tests.world import CONTEXT, HOST, OTHER, World, events


def with_snapshots(count: int = 0) -> World:
    world = World(driver="nfs")
    return taken(world.done(world.attach()), count)


def files(world: World, *numbers: int) -> list[str]:
    """The names of the volume's file, 0, and of its snapshots' in their order."""
    base = f"volume-{world.volumes[0]}"
    names = [base, *(f"{base}.{snapshot.id}" for snapshot in snapshots_of(world))]
    return [names[number] for number in numbers]


def give_up(snapshot: Snapshot) -> None:
    """Cinder has waited for long enough."""
    snapshot.status = {"creating": "error", "deleting": "error_deleting"}[snapshot.status]


def after_the_host(world: World, operation_id: str) -> None:
    """Its host has done its part, and nobody has gone on."""
    while not world.run_agent(operation_id, HOST):
        world.service.advance(operation_id)


def code(operation: Operation) -> str:
    return str((operation.first_error or {}).get("code"))


def test_a_snapshot_that_cinder_has_given_up_is_not_begun() -> None:
    world = with_snapshots()
    operation_id = take(world)
    give_up(snapshots_of(world)[0])
    world.trouble = Trouble()
    operation = world.run(operation_id)
    assert (operation.outcome, code(operation)) == (Outcome.FAILED, "snapshot_not_awaited")
    assert "guests.snapshot" not in world.trouble.met
    assert (chain(world), world.wrong()) == (files(world, 0), [])


def test_a_snapshot_of_a_guest_that_its_host_has_lost_is_refused() -> None:
    """Nothing could be taken of it, nor taken back."""
    world = with_snapshots()
    world.service.lost_guest(world.server_id, HOST, CONTEXT)
    with pytest.raises(errors.GuestNotThereError):
        take(world)


def test_cinder_hears_of_a_merged_snapshot_although_it_shows_what_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Storm 160: it waited for ever."""
    world = with_snapshots(1)
    operation_id = delete_newest(world)
    after_the_host(world, operation_id)
    shown = DirectCinder.snapshot
    monkeypatch.setattr(
        DirectCinder,
        "snapshot",
        lambda self, id_: replace(shown(self, id_), status="available"),
    )
    assert world.run(operation_id).outcome is Outcome.COMPLETED
    assert snapshots_of(world) == []
    assert world.wrong() == []


def test_a_snapshot_that_cinder_gives_up_before_it_hears_of_it_is_taken_back() -> None:
    world = with_snapshots(1)
    operation_id = take(world)
    after_the_host(world, operation_id)
    assert chain(world) == files(world, 2, 1, 0)
    give_up(snapshots_of(world)[1])
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert (chain(world), world.wrong()) == (files(world, 1, 0), [])


def test_a_snapshot_that_cinder_has_given_up_is_not_merged_away() -> None:
    """An administrator may have made it available again since."""
    world = with_snapshots(1)
    operation_id = delete_newest(world)
    [snapshot] = snapshots_of(world)
    give_up(snapshot)
    operation = world.run(operation_id)
    assert (operation.outcome, code(operation)) == (Outcome.FAILED, "snapshot_not_awaited")
    assert (chain(world), world.wrong()) == (files(world, 1, 0), [])


def test_cinder_may_give_a_deletion_up_that_was_done_and_ask_for_it_again() -> None:
    world = with_snapshots(1)
    operation_id = delete_newest(world)
    after_the_host(world, operation_id)
    [snapshot] = snapshots_of(world)
    give_up(snapshot)
    world.done(operation_id)
    assert (snapshot.status, chain(world)) == ("error_deleting", files(world, 1))
    world.done(delete_newest(world))
    assert (snapshots_of(world), world.wrong()) == ([], [])


def slow() -> World:
    """Cinder hears, and does not go on before somebody lets it."""
    world = with_snapshots()
    world.cinder.looks_later = True
    return world


def told(world: World) -> str:
    """A snapshot that Cinder has heard of; its operation's id."""
    operation_id = take(world)
    while not cinder_snapshots.is_heard(snapshots_of(world)[-1]):
        world.service.advance(operation_id)
        world.run_agent(operation_id, HOST)
    world.service.advance(operation_id)
    return operation_id


def test_nobody_works_on_the_server_before_cinder_names_the_new_file() -> None:
    world = slow()
    operation_id = told(world)
    assert world.operation(operation_id).state is OperationState.RUNNING
    for flow in ("reboot", "stop", "live_migrate"):
        with pytest.raises(errors.ClaimedError):
            world.act(flow, **({"destination": OTHER} if flow == "live_migrate" else {}))
    cinder_snapshots.go_on(world.cinder, snapshots_of(world)[0])
    world.done(operation_id)
    assert (chain(world), world.wrong()) == (files(world, 1, 0), [])


def test_a_cinder_that_never_names_the_new_file_parks_and_holds_the_server() -> None:
    world = slow()
    operation_id = told(world)
    [snapshot] = snapshots_of(world)
    snapshot.status = "error"
    operation = world.run(operation_id)
    [left] = [each for each in operation.left if each["step"] == "await"]
    assert left["error"]["code"] == "attachment_not_followed"
    assert chain(world) == files(world, 1, 0), "what was written since is not taken from the guest"
    with pytest.raises(errors.ClaimedError):
        world.act("reboot")
    snapshot.status = "creating"  # an administrator lets Cinder's record say what is so
    cinder_snapshots.go_on(world.cinder, snapshot)
    world.service.act(operation_id, "retry", "corrected", CONTEXT)
    world.done(operation_id)
    assert world.wrong() == []


def test_a_reservation_that_nobody_knows_does_not_get_the_file_s_name() -> None:
    """Storm 928: Cinder names the file in the volume's first attachment, and that was one that
    a process which stood still had made twice.
    """
    world = with_snapshots()
    stray = world.cinder.attachment_create(world.volumes[0], world.server_id)
    world.cinder.attachments = {stray.id: stray, **world.cinder.attachments}
    world.done(take(world))
    assert (chain(world), world.wrong()) == (files(world, 1, 0), [])
    assert stray.id not in world.cinder.attachments


@pytest.mark.parametrize("took", [False, True])
def test_a_host_that_is_fenced_in_a_snapshot_has_its_guest_started_on_the_new_file(
    took: bool,
) -> None:
    """Whether it came to write there or not: without a writer both files read alike."""
    world = with_snapshots()
    operation_id = take(world)
    if took:
        after_the_host(world, operation_id)
    world.dead.add(HOST)
    world.run(operation_id)
    world.fence(HOST)
    world.done(operation_id)
    world.done(world.act("evacuate", destination=OTHER))
    assert chain(world, OTHER)[0] == files(world, 1)[0]


def test_a_merge_that_a_fence_cuts_off_has_failed() -> None:
    world = with_snapshots(1)
    operation_id = delete_newest(world)
    world.dead.add(HOST)
    world.run(operation_id)
    world.fence(HOST)
    assert world.run(operation_id).outcome is Outcome.FAILED
    assert [snapshot.status for snapshot in snapshots_of(world)] == ["error_deleting"]
    world.done(world.act("evacuate", destination=OTHER))


def test_a_merge_that_was_done_and_seemed_to_fail_is_told_as_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cinder would keep a file that the guest does without: so its host looks first."""
    world = with_snapshots(1)
    guests = world.ports["guests"]
    real = guests.merge

    def merge(*args: object) -> None:
        real(*args)
        raise PortError(ErrorKind.FINAL, "lost", "libvirt was restarted")

    monkeypatch.setattr(guests, "merge", merge, raising=False)
    operation = world.run(delete_newest(world))
    assert (operation.outcome, code(operation)) == (Outcome.COMPLETED, "lost")
    assert (snapshots_of(world), world.wrong()) == ([], [])


def test_what_cannot_be_followed_to_its_end_is_not_begun() -> None:
    """Cinder renews the first attachment's connection, and only one of the new calls."""
    resized, legacy = with_snapshots(), World(driver="nfs", legacy=True)
    resized.done(resized.act("resize", destination=OTHER))
    legacy.done(legacy.attach())
    for world, refusal, why in (
        (resized, errors.SnapshotError, "two attachments"),
        (legacy, errors.SnapshotError, "convert its server first"),
    ):
        request = SnapshotInUse(
            flow="snapshot", volume_id=world.volumes[0], snapshot_id="s", files={"file": "f"}
        )
        begun = len(events(world, Operation.OperationStarted))
        with pytest.raises(refusal, match=why):
            world.requests.snapshot(request, CONTEXT, world.fleet)
        assert len(events(world, Operation.OperationStarted)) == begun


def test_what_was_snapshot_moves_stops_and_goes_like_any_volume() -> None:
    """After it everybody goes by the attachment and the host's record, which name the new file."""
    world = with_snapshots(2)
    [record] = world.records[HOST].values()
    assert [info["name"] for info in record.infos] == files(world, 2)
    for flow, where in (
        ("live_migrate", {"destination": OTHER}),
        ("stop", {}),
        ("start", {}),
        ("reboot", {}),
        ("shelve", {}),
        ("unshelve", {"destination": HOST}),
        ("refresh", {}),
    ):
        world.done(world.act(flow, **where))
        assert world.wrong() == [], flow
    assert chain(world)[0] == files(world, 2)[0]
    world.trouble = Trouble()
    world.done(world.detach())
    assert world.wrong() == []
