"""The simulated Cinder moves volumes: migrate and retype, and whom it asks for a swap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cinderclient import client as cinder_client
from cinderclient import exceptions
from cinderclient.contrib import noauth
from keystoneauth1 import session

from ledger.trial.cinder.compute import CINDER_TOKEN
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import StoredVolume
from ledger.trial.cinder.store import CinderStore
from tests.contracts.cinder_compute import running_compute
from tests.contracts.cinder_worlds import connector, new_uuid
from tests.doubles.running_cinder import RunningCinder, running_cinder

DEADLINE_S = 10.0
ISCSI = "sim@iscsi#iscsi"


@pytest.fixture
def running() -> Iterator[RunningCinder]:
    with running_cinder() as served:
        yield served


@pytest.fixture
def admin(running: RunningCinder) -> Iterator[Any]:
    auth = noauth.CinderNoAuthPlugin("somebody", "sim-project", endpoint=running.endpoint)
    made = session.Session(auth=auth)
    yield cinder_client.Client("3.71", session=made)
    made.session.close()


def in_use(running: RunningCinder, *servers: str, **more: Any) -> StoredVolume:
    volume = running.model.add_volume(**more)
    for server in servers:
        row = running.model.attachment_create(volume.id, server, connector())
        running.model.attachment_complete(row.id)
    return volume


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def target_of(running: RunningCinder, volume: StoredVolume) -> StoredVolume:
    found = [
        other
        for other in running.model.volumes.values()
        if other.migration_status == f"target:{volume.id}"
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("how", ["migrate", "retype"])
def test_a_volume_in_use_is_swapped_by_the_compute_service(
    running: RunningCinder, admin: Any, how: str
) -> None:
    server = new_uuid()
    volume = in_use(running, server, name="mine", size=3)
    with running_compute(202) as compute:
        running.compute.endpoint = compute.url
        if how == "migrate":
            admin.volumes.migrate_volume(volume.id, ISCSI, False, False)
        else:
            admin.volumes.retype(volume.id, "iscsi", "on-demand")
        until(lambda: bool(compute.asked))
    [asked] = compute.asked
    target = target_of(running, volume)
    assert asked.path == f"/v2.1/servers/{server}/os-volume_attachments/{volume.id}"
    assert (asked.method, asked.version, asked.token) == ("PUT", "compute 2.1", CINDER_TOKEN)
    assert asked.body == {"volumeAttachment": {"volumeId": target.id}}
    assert (target.status, target.size, target.driver) == ("available", 3, "iscsi")
    assert volume.migration_status == "migrating"
    assert volume.status == ("in-use" if how == "migrate" else "retyping")
    kept = admin.volumes.migrate_volume_completion(volume.id, target.id, False)
    assert kept["save_volume_id"] == volume.id


def test_each_server_of_a_volume_is_asked_for(running: RunningCinder, admin: Any) -> None:
    servers = [new_uuid(), new_uuid()]
    volume = in_use(running, *servers, multiattach=True)
    with running_compute(202) as compute:
        running.compute.endpoint = compute.url
        admin.volumes.migrate_volume(volume.id, ISCSI, False, False)
        until(lambda: len(compute.asked) == len(servers))
    assert [asked.path.split("/")[3] for asked in compute.asked] == servers


@pytest.mark.parametrize("status", [409, 503, None])
def test_a_refused_swap_ends_the_migration(
    running: RunningCinder, admin: Any, status: int | None
) -> None:
    volume = in_use(running, new_uuid())
    with running_compute(status or 202) as compute:
        running.compute.endpoint = compute.url if status else None
        admin.volumes.retype(volume.id, "iscsi", "on-demand")
        until(lambda: volume.migration_status == "error")
    assert (volume.status, volume.volume_type) == ("in-use", "rbd")
    assert list(running.model.volumes) == [volume.id]


def test_a_volume_that_nobody_uses_moves_at_once(running: RunningCinder, admin: Any) -> None:
    volume = running.model.add_volume()
    admin.volumes.migrate_volume(volume.id, ISCSI, False, True)
    shown = admin.volumes.get(volume.id)
    assert (shown.status, shown.migration_status) == ("available", "success")
    assert getattr(shown, "os-vol-host-attr:host") == ISCSI
    assert getattr(shown, "os-vol-mig-status-attr:name_id") not in (None, volume.id)
    assert list(running.model.volumes) == [volume.id]
    admin.volumes.delete(volume.id)


def test_a_retype_without_leave_to_migrate_changes_nothing(
    running: RunningCinder, admin: Any
) -> None:
    volume = in_use(running, new_uuid())
    admin.volumes.retype(volume.id, "iscsi", "never")
    assert (volume.status, volume.volume_type, volume.migration_status) == ("in-use", "rbd", None)


def test_what_cannot_move_is_refused(running: RunningCinder, admin: Any) -> None:
    volume = in_use(running, new_uuid())
    here, nowhere = "sim@rbd#rbd", "sim@floppy#floppy"
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: admin.volumes.migrate_volume(volume.id, here, False, False), "must be different"),
        (lambda: admin.volumes.migrate_volume(volume.id, nowhere, False, False), "No available"),
        (lambda: admin.volumes.retype(volume.id, "rbd", "on-demand"), "has to be different"),
        (lambda: admin.volumes.retype(volume.id, "iscsi-multi", "on-demand"), "multiattach are"),
    ]
    for act, words in refused:
        with pytest.raises(exceptions.BadRequest, match=words):
            act()
    with pytest.raises(exceptions.NotFound):
        admin.volumes.retype(volume.id, "floppy", "on-demand")
    assert (volume.status, volume.migration_status) == ("in-use", None)


# --- backends ------------------------------------------------------------------------------------


def test_a_volume_is_what_its_backend_makes_it(running: RunningCinder, admin: Any) -> None:
    running.model.add_backend("gold", "iscsi", shared_targets=True, multiattach=False)
    made = admin.volumes.create(size=1, volume_type="gold")
    assert made.shared_targets
    assert made.service_uuid != running.model.add_volume(driver="iscsi").service_uuid
    assert running.model.volume(made.id).driver == "iscsi"
    with pytest.raises(exceptions.NotFound, match="gold-multi could not be found"):
        admin.volumes.create(size=1, volume_type="gold-multi")


def test_backends_and_a_migration_survive_a_restart(tmp_path: Path) -> None:
    model, store = CinderModel(), CinderStore(tmp_path / "state.json")
    model.add_backend("gold", "iscsi", shared_targets=None)
    model.deleting_reads = 2
    volume = model.add_volume(driver="gold")
    going = model.add_volume()
    model.delete_volume(going.id)
    store.save(model)
    again = CinderModel()
    store.load(again)
    assert again.backends == model.backends
    assert again.volume(volume.id) == volume
    assert again.read_volume(going.id).status == "deleting"


def test_volumes_are_found_by_their_metadata(running: RunningCinder, admin: Any) -> None:
    wanted = admin.volumes.create(size=1, metadata={"made": "here", "more": "1"})
    admin.volumes.create(size=1, metadata={"made": "there"})
    found = admin.volumes.list(search_opts={"metadata": {"made": "here"}})
    assert [volume.id for volume in found] == [wanted.id]
