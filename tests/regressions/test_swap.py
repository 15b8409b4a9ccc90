"""Bugs others had when swapping and migrating volumes, each under its number (Launchpad)."""

from __future__ import annotations

import pytest

from aggregates import errors
from aggregates.operation import OperationState, Outcome
from aggregates.volume import Volume
from handlers.requests.accept import SwapVolume
from host_agent.shared.contract.messages import ErrorKind
from host_agent.storage import connection
from tests.doubles.host_checks import connected_paths
from tests.memory import Trouble
from tests.regressions.worlds import (
    NEIGHBOUR,
    STOPPED,
    Street,
    broken_on,
    crash_at,
    mapping_of,
    migrate,
    rows,
    sources,
    status,
)
from tests.world import CONTEXT, HOST, OTHER, SERVER, Broken, World, events


def swappable(volumes: int = 2) -> World:
    """A server with the first of the volumes."""
    world = World(volumes=volumes, encrypted=True)
    world.done(world.attach(world.volumes[0]))
    world.trouble = Trouble()
    return world


def migrating() -> World:
    """Cinder copies the first volume to the second, which is to become the first."""
    world = swappable()
    old, new = (world.cinder.volume(volume_id) for volume_id in world.volumes)
    old.migration_status, new.migration_status = "migrating", f"target:{old.id}"
    return world


def ask(old: str, new: str) -> SwapVolume:
    return SwapVolume(server_id=SERVER, volume_id=old, new_volume_id=new)


def agree(world: World, host: str, volume_id: str) -> bool:
    """Guest, ledger, Cinder and host mean the same volume, and only that."""
    [mapping] = world.mappings()
    [row] = world.cinder.attachments_of(volume_id)
    digest = connection.target_digest(row.connection_info)
    connected = world.hosts[host].read()["connected"]
    return (
        (mapping.volume_id, mapping.attachment_id) == (volume_id, row.id)
        and [d.volume_id for d in world.instance.devices.values()] == [volume_id]
        and set(connected) == {digest}
        and list(sources(world, host).values()) == [connected[digest]["path"]]
        and world.wrong() == []
    )


def test_a_swap_for_a_guest_that_its_host_has_lost_is_refused() -> None:
    """Nothing could be copied, and nothing undone: it would park for ever (storm 52)."""
    world = swappable()
    world.service.lost_guest(SERVER, HOST, CONTEXT)
    with pytest.raises(errors.GuestNotThereError):
        world.swap(*world.volumes)


def test_lp2112187_after_a_swap_guest_ledger_and_cinder_mean_one_volume() -> None:
    """And a move afterwards takes that one along, not the former."""
    world = swappable()
    old, new = world.volumes
    world.done(world.swap(old, new))
    assert agree(world, HOST, new)
    assert status(world, 0) == "available"
    world.done(migrate(world))
    assert agree(world, OTHER, new)


def test_lp2112187_a_volume_that_cinder_moves_is_swapped_for_cinder_only() -> None:
    world = migrating()
    before = world.summary()
    with pytest.raises(errors.VolumeBusyError) as refused:
        world.requests.swap(ask(*world.volumes), CONTEXT, world.fleet)
    assert refused.value.status == 409
    assert world.summary() == before


def test_a_migration_is_cinders_if_the_target_says_so_and_the_old_volume_was_read_as_before() -> (
    None
):
    """Else nobody would end it, and its target would stay for ever."""
    world = migrating()
    kept, temporary = world.volumes
    world.cinder.volume(kept).migration_status = None
    operation_id = world.swap(kept, temporary, by_cinder=True)
    world.cinder.volume(kept).migration_status = "migrating"
    world.done(operation_id)
    assert agree(world, HOST, kept)
    assert temporary not in world.known_volumes()


def test_lp1943431_every_record_follows_the_id_that_cinder_kept() -> None:
    world = migrating()
    kept, temporary = world.volumes
    world.done(world.swap(kept, temporary, by_cinder=True))
    assert agree(world, HOST, kept)
    assert events(world, Volume.Released)[-1].renamed_to == kept
    assert temporary not in world.known_volumes()
    world.done(world.detach(kept))
    assert status(world) == "available"
    assert connected_paths(world.host) == set()
    assert world.wrong() == []


def test_lp1943431_a_crash_before_cinders_answer_is_recorded_changes_nothing() -> None:
    """Cinder has completed the migration, and nobody heard which id it kept."""
    world = migrating()
    kept, temporary = world.volumes
    operation_id = world.swap(kept, temporary, by_cinder=True)
    crash_at(world, operation_id, "cinder.migrate_volume_completion")
    world.ports["cinder"].migrate_volume_completion(kept, temporary, error=False)
    world.done(operation_id)
    assert agree(world, HOST, kept)
    world.done(world.detach(kept))


def test_lp1775418_a_volume_that_others_write_is_not_swapped() -> None:
    world = Street(volumes=2, multiattach=True)
    world.add_neighbour(OTHER)
    world.done(world.attach(world.volumes[0]))
    with world.meant(NEIGHBOUR):
        world.done(world.attach(world.volumes[0]))
    before = [row.id for row in rows(world)]
    with pytest.raises(errors.SwapError) as refused:
        world.requests.swap(ask(*world.volumes), CONTEXT, world.fleet)
    assert refused.value.status == 400
    assert [row.id for row in rows(world)] == before
    assert (status(world, 0), status(world, 1)) == ("in-use", "available")
    assert world.instance.claims == {}


def test_lp1673090_a_guest_that_does_not_run_cannot_copy() -> None:
    world = World(STOPPED, volumes=2)
    world.done(world.attach(world.volumes[0]))
    before = world.summary()
    with pytest.raises(errors.VmStateError) as refused:
        world.requests.swap(ask(*world.volumes), CONTEXT, world.fleet)
    assert refused.value.status == 409
    assert world.summary() == before


def test_lp1896621_of_two_swaps_of_one_server_the_second_is_refused() -> None:
    world = World(volumes=4)
    for volume_id in world.volumes[:2]:
        world.done(world.attach(volume_id))
    first: list[str] = []
    world.store.before_save = lambda: first.append(world.swap(world.volumes[0], world.volumes[2]))
    request = ask(world.volumes[1], world.volumes[3])
    with pytest.raises(errors.ClaimedError) as refused:
        world.requests.swap(request, CONTEXT, world.fleet)
    assert first[0] in str(refused.value)
    world.done(first[0])
    assert [status(world, n) for n in range(4)] == ["available", "in-use", "in-use", "available"]
    assert world.wrong() == []


def test_lp1625660_a_volume_that_was_swapped_twice_is_detached() -> None:
    """The guest knows the disk by its first id all the time (also LP 1661016)."""
    world = swappable(3)
    first, second, third = world.volumes
    world.done(world.swap(first, second))
    world.done(world.swap(second, third))
    assert agree(world, HOST, third)
    assert list(sources(world, HOST)) == [first], "the serial under /dev/disk/by-id"
    world.done(world.detach(third))
    assert sources(world, HOST) == {}
    assert [status(world, n) for n in range(3)] == ["available"] * 3
    assert world.wrong() == []


def test_lp1625660_the_first_volume_can_come_back_after_a_swap() -> None:
    """Its id is still the serial of a disk that is another volume now."""
    world = swappable()
    first, second = world.volumes
    world.done(world.swap(first, second))
    world.done(world.attach(first))
    assert {m.volume_id for m in world.mappings()} == {first, second}
    assert len(set(sources(world, HOST).values())) == 2
    world.done(world.detach(second)).done(world.detach(first))
    assert [status(world, n) for n in range(2)] == ["available"] * 2
    assert world.wrong() == []


def test_lp1697060_an_in_use_migration_leaves_one_attachment_on_the_kept_id() -> None:
    world = migrating()
    kept, temporary = world.volumes
    world.done(world.swap(kept, temporary, by_cinder=True))
    assert [row.status for row in rows(world)] == ["attached"]
    assert status(world) == "in-use"
    assert world.cinder.volume(kept).migration_status in {None, "success"}
    assert [m.volume_id for m in world.mappings()] == [kept]
    assert [str(a.id) for a in world.attachments()] == [rows(world)[0].id]
    assert world.attachments()[0].volume_id == kept


def test_lp1697060_an_in_use_migration_that_fails_leaves_the_volume_as_it_was() -> None:
    """Cinder hears of it and deletes its copy; nothing is stuck."""
    world = migrating()
    old, new = world.volumes
    [row] = rows(world)
    broken_on(world, HOST, "guests.copy", ErrorKind.FINAL)
    operation = world.run(world.swap(old, new, by_cinder=True))
    assert operation.outcome is Outcome.FAILED
    assert [kept.id for kept in rows(world)] == [row.id]
    assert new not in world.known_volumes()
    assert status(world) == "in-use"
    assert world.cinder.volume(old).migration_status in {None, "error"}
    assert agree(world, HOST, old)


@pytest.mark.parametrize("by_cinder", [True, False])
def test_x9_the_entry_is_switched_though_the_old_attachment_will_not_go(by_cinder: bool) -> None:
    """What is left is known, and done as soon as Cinder lets it; then Cinder is told."""
    world = migrating() if by_cinder else swappable()
    old, new = world.volumes
    [old_row] = rows(world)
    broken = Broken(world, "cinder.attachment_delete")
    operation = world.run(world.swap(old, new, by_cinder=by_cinder))
    assert operation.state is OperationState.PARKED
    [mapping] = world.mappings()
    assert mapping.attachment_id != old_row.id
    assert mapping.volume_id == new
    assert list(sources(world, HOST).values()) == [
        world.host.read()["connected"][connection.target_digest(rows(world, 1)[0].connection_info)][
            "path"
        ]
    ]
    assert [row.status for row in rows(world, 0)] == ["attached"], "pending, and no orphan"
    assert old_row.id in {str(a.id) for a in world.attachments()}
    broken.heal()
    world.service.act(str(operation.id), "retry", "Cinder is back", CONTEXT)
    world.done(str(operation.id))
    assert agree(world, HOST, old if by_cinder else new)


def test_lp1790840_a_flag_that_cinder_lost_counts_as_lost() -> None:
    """The capability is read anew at each attach, whatever was recorded at the first."""
    world = Street(multiattach=True)
    world.add_neighbour(OTHER)
    world.done(world.attach())
    world.cinder.volume(world.volumes[0]).multiattach = False
    with world.meant(NEIGHBOUR), pytest.raises(errors.AttachedElsewhereError, match=SERVER):
        world.attach()
    assert len(rows(world)) == 1
    assert mapping_of(world, world.volumes[0]).multiattach, "the guest's disk is shareable still"
    world.done(world.detach())
    assert world.wrong() == []


def test_the_end_of_a_migration_that_cinder_refuses_can_be_skipped() -> None:
    """Then nobody says which id is kept: the guest's data are on the new volume, by its own id."""
    world = migrating()
    old, new = world.volumes
    Broken(world, "cinder.migrate_volume_completion", ErrorKind.FINAL)
    operation = world.swap(old, new, by_cinder=True)
    assert world.run(operation).state is OperationState.PARKED
    skipped = world.service.act(operation, "skip", "ended by hand", CONTEXT, step="finish")
    assert [each.left and each.left.what for each in skipped.remnants] == ["migration"]
    assert world.run(operation).outcome is Outcome.COMPLETED
    [mapping], [row] = world.mappings(), world.cinder.attachments_of(new)
    assert (mapping.volume_id, mapping.attachment_id) == (new, row.id)
    assert world.wrong() == [f"volume {old} is nobody's, and in-use in Cinder"]  # the remnant


@pytest.mark.parametrize("by_cinder", [False, True], ids=["user", "cinder"])
def test_the_target_of_a_migration_of_cinders_is_for_that_migration_alone(
    *, by_cinder: bool
) -> None:
    """Storm 200520: Cinder deleted it, with its attachment, under the guest that had got it."""
    world = swappable()
    old, new = (world.cinder.volume(volume_id) for volume_id in world.volumes)
    old.migration_status = "migrating" if by_cinder else None
    new.migration_status = "target:11111111-2222-4333-8444-555555555555"
    with pytest.raises(errors.VolumeBusyError, match=new.id):
        world.swap(old.id, new.id, by_cinder=by_cinder)
