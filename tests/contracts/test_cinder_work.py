"""What the simulated Cinder does with volumes by itself, as read in cinder 29.0.0:
cinder/backup/api.py (create), cinder/backup/manager.py, cinder/volume/api.py (_extend).
"""

from __future__ import annotations

import pytest

from ledger.trial.cinder.model import legacy as cinder_legacy
from ledger.trial.cinder.model import work as cinder_work
from ledger.trial.cinder.model.model import VOLUME_STATUSES, CinderModel
from ledger.trial.cinder.model.rows import CinderFault, StoredVolume
from tests.contracts.cinder_worlds import connector, new_uuid


def in_use(model: CinderModel) -> StoredVolume:
    volume = model.add_volume()
    row = model.attachment_create(volume.id, new_uuid(), connector())
    model.attachment_complete(row.id)
    return volume


def refuses(call: object, *args: object, **more: object) -> bool:
    assert callable(call)
    try:
        call(*args, **more)
    except CinderFault as fault:
        return fault.status == 400
    return False


@pytest.mark.parametrize("status", VOLUME_STATUSES)
def test_cinder_begins_only_with_a_volume_that_is_available_or_in_use(status: str) -> None:
    volume = CinderModel().add_volume()
    begins = {"available", "in-use"}
    volume.status = status
    assert refuses(cinder_work.begin_backup, volume, force=True) == (status not in begins)
    volume.status = status
    assert refuses(cinder_work.begin_backup, volume) == (status != "available")
    volume.status = status
    assert refuses(cinder_work.begin_extension, volume, attached=True) == (status not in begins)
    volume.status = status
    assert refuses(cinder_work.begin_extension, volume) == (status != "available")


@pytest.mark.parametrize("begin", ["backup", "extension"])
def test_meanwhile_cinder_refuses_to_detach_and_to_reserve_but_not_to_delete(begin: str) -> None:
    model = CinderModel()
    volume = in_use(model)
    if begin == "backup":
        cinder_work.begin_backup(volume, force=True)
    else:
        cinder_work.begin_extension(volume, attached=True)
    [row] = model.attachments_of(volume.id)
    assert refuses(cinder_legacy.begin_detaching, model, volume, {})
    assert refuses(model.attachment_create, volume.id, row.instance)
    model.attachment_delete(row.id)
    assert volume.status == "available"


def test_the_end_of_a_backup_writes_the_status_back_that_was() -> None:
    model = CinderModel()
    volume = in_use(model)
    cinder_work.begin_backup(volume, force=True)
    [row] = model.attachments_of(volume.id)
    model.attachment_delete(row.id)
    cinder_work.end_backup(volume)
    assert volume.status == "in-use"  # by nobody
    assert volume.attach_status == "detached"


def test_the_end_of_an_extension_looks_at_the_attachments() -> None:
    model = CinderModel()
    volume = in_use(model)
    cinder_work.begin_extension(volume, attached=True)
    cinder_work.end_extension(model, volume, 2)
    assert (volume.status, volume.size) == ("in-use", 2)
    cinder_work.begin_extension(volume, attached=True)
    cinder_work.end_extension(model, volume, 3, error=True)
    assert (volume.status, volume.size) == ("error_extending", 2)
