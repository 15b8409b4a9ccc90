"""Backups of the simulated Cinder, and what is made of them.

A backup has its volume's metadata, and a volume that is restored from it gets all of them: also
what somebody marked that volume with.  Who asks for it has created it.
"""

from __future__ import annotations

from aiohttp import web

from ledger.trial.cinder.call import CinderCall
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import Backup, CinderFault, StoredVolume


def add(model: CinderModel, volume_id: str) -> Backup:
    """A backup that is done."""
    volume = model.current(volume_id)
    backup = Backup(
        id=model.new_id(),
        volume_id=volume_id,
        size=volume.size,
        project_id=volume.project_id,
        name=volume.name,
        image_id=volume.image_id,
        metadata=dict(volume.metadata),
    )
    model.backups[backup.id] = backup
    return backup


def restored(
    model: CinderModel,
    backup_id: str,
    *,
    project_id: str | None = None,
    user_id: str,
) -> StoredVolume:
    """A new volume with what the backup has."""
    backup = model.backups.get(backup_id)
    if backup is None:
        raise CinderFault(404, f"Backup {backup_id} could not be found.")
    return model.add_volume(
        name=backup.name,
        size=backup.size,
        image_id=backup.image_id,
        metadata=dict(backup.metadata),
        project_id=project_id or backup.project_id,
        user_id=user_id,
    )


def view(backup: Backup) -> dict[str, object]:
    return {"id": backup.id, "name": backup.name, "volume_id": backup.volume_id, "links": []}


async def backup_create(call: CinderCall) -> web.Response:
    with call.model.lock:
        made = add(call.model, str(call.part("backup").get("volume_id")))
        return web.json_response({"backup": view(made)}, status=202)


async def backup_restore(call: CinderCall) -> web.Response:
    with call.model.lock:
        id_ = call.request.match_info["backup_id"]
        made = restored(call.model, id_, project_id=call.project, user_id=call.user)
        told = {"backup_id": id_, "volume_id": made.id, "volume_name": made.name}
        return web.json_response({"restore": told}, status=202)
