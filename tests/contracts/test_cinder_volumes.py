"""The contract of the `Cinder` port, continued: volumes are made, deleted and migrated."""

from __future__ import annotations

import time
from typing import Any

import pytest

from handlers.results import made
from host_agent.shared.cinder.settings import CinderSettings
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.origin import Dependents
from host_agent.shared.contract.ports import Encryption
from host_agent.storage.keys import FIXED_KEY_ID
from ledger.trial.cinder.model import backups as cinder_backups
from ledger.trial.cinder.model import migration
from ledger.trial.cinder.model.rows import StoredVolume
from tests.contracts.cinder_worlds import (
    SimulatedWorld,
    World,
    attached,
    connector,
    new_uuid,
    refusal,
    until_available,
)


def create(world: World, key: str, **more: Any) -> str:
    wanted = {"size_gb": 1, "volume_type": world.kind, "project_id": world.project, **more}
    volume_id = world.port.volume_create(wanted, key)
    world.clean_later(volume_id)
    return volume_id


# --- encryption ----------------------------------------------------------------------------------


def test_encryption_is_told_with_its_provider_and_whose_key_it_is(world: World) -> None:
    plain, locked = world.new_volume(), world.new_volume(encrypted=True)
    assert (world.port.volume(plain).encrypted, world.port.volume(locked).encrypted) == (
        False,
        True,
    )
    assert world.port.encryption(plain) == Encryption(
        provider=None, key_id=None, cipher=None, key_size=None
    )
    assert world.port.encryption(locked) == Encryption(
        provider="luks", key_id=FIXED_KEY_ID, cipher="aes-xts-plain64", key_size=256
    )
    for volume, expected in ((plain, False), (locked, True)):
        assert attached(world, volume, new_uuid()).connection_info["encrypted"] is expected


def test_encryption_of_an_unknown_volume_is_not_found(world: World) -> None:
    assert refusal(lambda: world.port.encryption(new_uuid())).code == "not_found"


# --- snapshots -----------------------------------------------------------------------------------


def test_a_snapshot_is_shown_with_its_volume_its_size_and_whose_it_is(world: World) -> None:
    volume = world.new_volume()
    snapshot = world.port.snapshot(world.new_snapshot(volume))
    assert (snapshot.volume_id, snapshot.size_gb) == (volume, 1)
    assert snapshot.project_id == world.port.volume(volume).project_id == world.project
    assert refusal(lambda: world.port.snapshot(new_uuid())).code == "not_found"


def test_no_volume_is_made_of_a_snapshot_that_there_is_not(world: World) -> None:
    assert refusal(lambda: create(world, new_uuid(), snapshot_id=new_uuid())).code == "not_found"


# --- create --------------------------------------------------------------------------------------


def test_a_volume_is_created_as_wanted(world: World) -> None:
    volume = create(world, new_uuid(), name="wanted", size_gb=2, availability_zone="nova")
    until_available(world.port, volume)
    seen = world.port.volume(volume)
    assert (seen.name, seen.size_gb, seen.availability_zone) == ("wanted", 2, "nova")
    assert (seen.project_id, seen.multiattach, seen.bootable) == (world.project, False, False)


def test_a_volume_belongs_to_the_project_it_was_wanted_for(world: World) -> None:
    theirs = create(world, new_uuid(), project_id=world.other_project)
    assert world.port.volume(theirs).project_id == world.other_project
    until_available(world.port, theirs)


def test_a_create_is_not_repeated_here_and_finds_nothing_that_was_made_before(
    simulated: SimulatedWorld,
) -> None:
    key = new_uuid()
    simulated.faults.replace([{"call": "volume_create", "do": "fail_after", "status": 504}])
    assert refusal(lambda: create(simulated, key)).kind is ErrorKind.UNKNOWN
    [lost] = simulated.model.volumes
    assert create(simulated, key) != lost
    simulated.faults.replace([{"call": "volume_create", "do": "fail", "status": 503}])
    assert refusal(lambda: create(simulated, key)).kind is ErrorKind.RETRYABLE
    assert len(simulated.port.volumes_made(key, simulated.project)) == 2


def test_a_volume_tells_who_created_it_when_with_which_mark_and_of_what(world: World) -> None:
    key, began = new_uuid(), time.time()
    ours = world.port.volume(create(world, key))
    assert (ours.origin.user_id, ours.origin.mark) == (world.port.own_user(), key)
    assert ours.origin.user_id is not None
    assert abs((ours.origin.created_at or 0) - began) < made.CLOCKS_APART_S
    assert (ours.origin.snapshot_id, ours.origin.source_volume_id) == (None, None)
    snapshot = world.new_snapshot(world.new_volume())
    other = world.port.volume(create(world, key, snapshot_id=snapshot))
    assert other.origin.snapshot_id == snapshot
    for volume in (ours.id, other.id):
        until_available(world.port, volume)


def test_what_was_made_of_a_volume_is_told_also_to_others_of_its_project(world: World) -> None:
    volume = world.new_volume()
    assert world.port.dependents(volume) == Dependents(snapshots=(), backups=(), clones=())
    snapshot = world.new_snapshot(volume)
    assert world.port.dependents(volume).snapshots == (snapshot,)
    assert world.port.dependents(world.new_volume()).snapshots == ()


def test_backups_and_clones_are_told_of_any_project(simulated: SimulatedWorld) -> None:
    model, volume = simulated.model, simulated.new_volume()
    backup = cinder_backups.add(model, volume)
    backup.project_id = "another"
    clone = model.add_volume(source_volid=volume, project_id="another").id
    told = Dependents(snapshots=(), backups=(backup.id,), clones=(clone,))
    assert simulated.port.dependents(volume) == told


@pytest.mark.parametrize("call", ["snapshot_list", "backup_list", "volume_list"])
def test_what_cinder_refuses_to_tell_is_not_told(simulated: SimulatedWorld, call: str) -> None:
    rule = {"call": call, "do": "fail", "status": 403, "message": "no", "count": None}
    simulated.faults.replace([rule])
    told = vars(simulated.port.dependents(simulated.new_volume()))
    assert [ids for ids in told.values() if ids is None] == [None]
    simulated.faults.replace([{**rule, "status": 503}])
    assert refusal(lambda: simulated.port.dependents(new_uuid())).kind is ErrorKind.RETRYABLE


def test_a_restored_backup_has_the_mark_of_its_volume_and_another_creator(
    simulated: SimulatedWorld,
) -> None:
    key = new_uuid()
    volume = create(simulated, key)
    backup = cinder_backups.add(simulated.model, volume)
    copy = cinder_backups.restored(simulated.model, backup.id, user_id="somebody")
    origin = simulated.port.volume(copy.id).origin
    assert (origin.mark, origin.user_id) == (key, "somebody")
    marked = {view.id for view in simulated.port.volumes_made(key, simulated.project)}
    assert marked == {volume, copy.id}


def test_what_was_made_is_found_by_its_mark_in_its_project(world: World) -> None:
    key = new_uuid()
    assert world.port.volumes_made(key, None) == []
    ours, theirs = create(world, key), create(world, key, project_id=world.other_project)
    assert [view.id for view in world.port.volumes_made(key, None)] == [ours]
    assert [view.id for view in world.port.volumes_made(key, world.other_project)] == [theirs]
    for volume in (ours, theirs):
        until_available(world.port, volume)


def test_the_source_of_a_volume_is_handed_on(simulated: SimulatedWorld) -> None:
    image = new_uuid()
    for bootable in (False, True):
        snapshot = simulated.model.add_snapshot(simulated.model.add_volume(bootable=bootable).id).id
        made = simulated.model.volume(create(simulated, new_uuid(), snapshot_id=snapshot))
        assert (made.snapshot_id, made.bootable) == (snapshot, bootable)
    made = simulated.model.volume(create(simulated, new_uuid(), image_id=image))
    assert (made.image_id, made.bootable) == (image, True)


def test_an_unknown_type_is_refused_in_cinders_words(world: World) -> None:
    error = refusal(lambda: create(world, new_uuid(), volume_type="no-such-type"))
    assert error.kind is ErrorKind.FINAL
    assert "no-such-type could not be found" in error.message


def test_in_another_project_a_token_is_scoped_to_it_alone() -> None:
    # Cinder creates in the token's project, whatever an administrator asks for.
    auth = {"auth_url": "http://k", "username": "u", "project-name": "service"}
    auth |= {"project_domain_id": "default", "user_domain_id": "default"}
    there = CinderSettings(auth=auth, endpoint="http://c/v3/service").in_project("p")
    assert there.auth == {
        "auth_url": "http://k",
        "username": "u",
        "user_domain_id": "default",
        "project_id": "p",
    }
    assert there.service_auth == auth  # who may delete stays who it was
    assert there.endpoint == "http://c/v3/p"


# --- delete --------------------------------------------------------------------------------------


def test_a_volume_that_is_gone_or_going_is_deleted(world: World) -> None:
    volume = world.new_volume()
    for _ in range(3):
        world.port.volume_delete(volume)


def test_a_deletion_under_way_is_success(simulated: SimulatedWorld) -> None:
    simulated.model.deleting_reads = 2
    volume = simulated.new_volume()
    simulated.port.volume_delete(volume)
    simulated.port.volume_delete(volume)
    assert simulated.port.volume(volume).status == "deleting"
    assert refusal(lambda: simulated.port.volume(volume)).code == "not_found"
    simulated.port.volume_delete(volume)


@pytest.mark.parametrize("connected", [False, True], ids=["reserved", "in-use"])
def test_a_volume_with_an_attachment_is_not_deleted(world: World, connected: bool) -> None:
    volume = world.new_volume()
    if connected:
        attached(world, volume, new_uuid())
    else:
        world.port.attachment_create(volume, new_uuid())
    error = refusal(lambda: world.port.volume_delete(volume))
    assert (error.kind, error.code) == (ErrorKind.FINAL, "refused")
    assert error.message.startswith("Invalid volume: Volume status must be available or")


# --- the end of a migration ----------------------------------------------------------------------


@pytest.fixture
def moving(simulated: SimulatedWorld) -> tuple[SimulatedWorld, StoredVolume, StoredVolume, str]:
    """A volume in use by `server` that Cinder moves from one backend to another."""
    server, model = new_uuid(), simulated.model
    old = model.volume(simulated.new_volume())
    attached(simulated, old.id, server)
    new = migration.retype(model, old, {"new_type": "iscsi", "migration_policy": "on-demand"})
    assert new is not None
    return simulated, old, new, server


Moving = tuple[SimulatedWorld, StoredVolume, StoredVolume, str]


def swapped(moving: Moving) -> str:
    """What the compute service does; the new attachment's id."""
    world, old, new, server = moving
    [before] = world.port.attachments(old.id, server)
    made = attached(world, new.id, server)
    world.port.attachment_delete(before.id)
    return made.id


def test_while_a_volume_moves_its_target_tells_for_whom(moving: Moving) -> None:
    world, old, new, _ = moving
    assert world.port.volume(new.id).migration_status == f"target:{old.id}"
    assert world.port.volume(new.id).status == "available"
    world.port.begin_detaching(old.id)  # says yes, and shows nothing
    assert world.port.volume(old.id).status == "retyping"
    assert refusal(lambda: world.port.volume_delete(old.id)).code == "refused"
    assert refusal(lambda: world.port.volume_delete(new.id)).code == "refused"


def test_after_a_migration_the_old_id_has_the_new_data(moving: Moving) -> None:
    world, old, new, server = moving
    data, row = world.port.volume(new.id).service_uuid, swapped(moving)
    name = world.port.attachment(row).connection_info["target_iqn"]
    assert world.port.volume(old.id).status == "retyping"  # although nobody has it
    assert world.port.migrate_volume_completion(old.id, new.id, error=False) == old.id
    seen = world.port.volume(old.id)
    assert (seen.status, seen.migration_status) == ("in-use", "success")
    assert (seen.service_uuid, old.volume_type) == (data, "iscsi")
    assert [view.id for view in world.port.attachments(old.id, server)] == [row]
    again = world.port.attachment_update(row, connector())
    assert again.connection_info["target_iqn"] == name  # the data kept their name
    assert refusal(lambda: world.port.volume(new.id)).code == "not_found"


def test_a_failed_migration_deletes_the_target_and_changes_nothing_else(moving: Moving) -> None:
    world, old, new, server = moving
    before = world.port.attachments(old.id, server)
    assert world.port.migrate_volume_completion(old.id, new.id, error=True) == old.id
    seen = world.port.volume(old.id)
    assert (seen.status, seen.migration_status) == ("in-use", "error")
    assert (world.port.attachments(old.id, server), old.volume_type) == (before, "rbd")
    assert refusal(lambda: world.port.volume(new.id)).code == "not_found"


def test_a_failed_migration_keeps_a_target_that_is_attached(moving: Moving) -> None:
    world, old, new, server = moving
    attached(world, new.id, server)
    world.port.migrate_volume_completion(old.id, new.id, error=True)
    assert world.port.volume(new.id).status == "in-use"


@pytest.mark.parametrize("error", [False, True])
def test_a_completion_may_be_done_twice_with_the_same_word(moving: Moving, error: bool) -> None:
    world, old, new, _ = moving
    if not error:
        swapped(moving)
    for deleting_reads in (9, 0):  # the target is going, or gone
        world.model.deleting_reads = deleting_reads
        assert world.port.migrate_volume_completion(old.id, new.id, error=error) == old.id
    refused = refusal(lambda: world.port.migrate_volume_completion(old.id, new.id, error=not error))
    assert refused.kind is ErrorKind.FINAL


def test_a_completion_whose_answer_was_lost_is_repeated(moving: Moving) -> None:
    world, old, new, _ = moving
    swapped(moving)
    world.faults.replace([{"call": "volume_action", "do": "fail_after", "status": 504}])
    assert world.port.migrate_volume_completion(old.id, new.id, error=False) == old.id


def test_a_completion_between_strangers_is_refused(moving: Moving) -> None:
    world, old, _, _ = moving
    stranger = world.new_volume()
    error = refusal(lambda: world.port.migrate_volume_completion(old.id, stranger, error=False))
    assert error.message == "Invalid volume: Destination volume not mid-migration."
    error = refusal(lambda: world.port.migrate_volume_completion(stranger, old.id, error=False))
    assert error.message == "Invalid volume: Source volume not mid-migration."


def test_without_a_migration_attachments_move_and_the_new_id_stays(world: World) -> None:
    old, new, server = world.new_volume(), world.new_volume(), new_uuid()
    world.port.reserve(old)
    world.port.attach(old, server, "/dev/vdb", "compute-a")
    assert world.port.migrate_volume_completion(old, new, error=False) == new
    [row] = world.port.old_attachments(new)
    assert (row.server_id, row.host_name) == (server, "compute-a")
    assert world.port.volume(old).status == "available"


def test_a_volume_that_moves_by_the_old_flow_gets_its_attachment_back(
    simulated: SimulatedWorld,
) -> None:
    model, server = simulated.model, new_uuid()
    old = model.volume(simulated.new_volume())
    simulated.port.reserve(old.id)
    simulated.port.attach(old.id, server, "/dev/vdb", "compute-a")
    [before] = simulated.port.old_attachments(old.id)
    new = migration.migrate(model, old, {"host": "sim@iscsi#iscsi"})
    simulated.port.reserve(new.id)
    assert simulated.port.migrate_volume_completion(old.id, new.id, error=False) == old.id
    [row] = simulated.port.old_attachments(old.id)
    assert (row.server_id, row.host_name) == (server, "compute-a")
    assert row.id != before.id
    assert simulated.port.volume(old.id).status == "in-use"
