"""Snapshots of the simulated Cinder: made, shown, and what volumes are made of."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ledger.trial.cinder.call import CinderCall
from ledger.trial.cinder.model.connection import data_file, file_of
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import CinderFault, Snapshot, StoredVolume


async def snapshot_create(call: CinderCall) -> web.Response:
    wanted = call.part("snapshot")
    with call.model.lock:
        made = call.model.add_snapshot(str(wanted.get("volume_id")), name=wanted.get("name"))
        return web.json_response({"snapshot": view(made)}, status=202)


async def snapshot_show(call: CinderCall) -> web.Response:
    with call.model.lock:
        found = call.model.snapshot(call.request.match_info["snapshot_id"])
        if not call.is_admin and found.project_id != call.project:
            raise CinderFault(404, f"Snapshot {found.id} could not be found.")
        return web.json_response({"snapshot": view(found)})


async def snapshot_action(call: CinderCall) -> web.Response:
    fields = call.part("os-update_snapshot_status")
    with call.model.lock:
        if not call.is_admin:
            raise CinderFault(403, "Policy doesn't allow update_snapshot_status to be performed.")
        update_status(call.model, call.request.match_info["snapshot_id"], fields)
        return web.Response(status=202)


# --- of volumes in use: Cinder waits for the guest (its remotefs driver) -----------------------

#: What Cinder's os-update_snapshot_status lets a status become.
_LEADS_TO = {
    "creating": ("creating", "available", "error"),
    "deleting": ("deleting", "error_deleting"),
}
GUEST_IS_DONE = "90%"
#: Snapshots that have a file in their volume's chain.
_CHAINED = ("available", "deleting", "error_deleting")


def chain_of(model: CinderModel, volume: StoredVolume) -> list[str]:
    """The files of a volume as its driver knows them, the lowest first."""
    rows = [row for row in model.snapshots.values() if row.volume_id == volume.id]
    base = volume.base_file or data_file(volume)
    return [base, *(row.file for row in rows if row.file and row.status in _CHAINED)]


def begin_online(model: CinderModel, volume_id: str) -> Snapshot:
    """Make the file of a snapshot, and wait until the guest writes to it."""
    made = model.add_snapshot(volume_id, status="creating", progress="0%")
    made.file = f"{data_file(model.volume(volume_id))}.{made.id}"
    return made


def begin_online_deletion(model: CinderModel, snapshot: Snapshot) -> dict[str, str | None]:
    """Wait until the guest does without a file; which, as Cinder says it.

    Of the newest snapshot the file stays, and takes over what is in the one below it.
    """
    snapshot.status = "deleting"
    if snapshot.progress == GUEST_IS_DONE:  # of an earlier deletion, which failed
        snapshot.progress = "0%"
    files = chain_of(model, model.volume(snapshot.volume_id))
    if snapshot.file == files[-1]:
        return {"merge": files[-3] if len(files) > 2 else None, "into": None}  # noqa: PLR2004
    return {"merge": snapshot.file, "into": files[files.index(snapshot.file or "") - 1]}


def update_status(model: CinderModel, snapshot_id: str, fields: dict[str, Any]) -> None:
    """What a guest's compute service says; Cinder then goes on at once."""
    snapshot, status = model.snapshot(snapshot_id), fields.get("status")
    if snapshot.status not in _LEADS_TO:
        text = f"Snapshot status {snapshot.status} not allowed for update_snapshot_status"
        raise CinderFault(400, text)
    if status not in _LEADS_TO[snapshot.status]:
        raise CinderFault(
            400,
            f"Provided snapshot status {status} not allowed for snapshot with status "
            f"{snapshot.status}.",
        )
    snapshot.status, snapshot.progress = str(status), str(fields.get("progress", snapshot.progress))
    if is_heard(snapshot) and not model.looks_later:
        go_on(model, snapshot)


def is_heard(snapshot: Snapshot) -> bool:
    """Whether Cinder was told that the guest is done, and waited for it."""
    return (
        snapshot.status in _LEADS_TO and snapshot.progress == GUEST_IS_DONE and bool(snapshot.file)
    )


def go_on(model: CinderModel, snapshot: Snapshot) -> str | None:
    """What Cinder does when it sees that the guest is done; the file that it deletes, if any."""
    volume = model.volume(snapshot.volume_id)
    if snapshot.status == "creating":
        volume.active_file = snapshot.file
        rows = model.attachments_of(volume.id)
        for row in rows[:1]:  # "the only attachment (no multi-attach support)"
            row.connection_info |= file_of(volume)
        snapshot.status, snapshot.progress = "available", "100%"
        return None
    return forget(model, snapshot)


def forget(model: CinderModel, snapshot: Snapshot, *, pulled: bool = False) -> str | None:
    """Delete the snapshot, and the file that nobody needs without it.

    Of the newest the file stays: with the snapshot before it, or as the lowest there is.  So it
    does of one that was the newest when it was merged (`pulled`).
    """
    files = chain_of(model, model.volume(snapshot.volume_id))
    del model.snapshots[snapshot.id]
    if snapshot.file is None or not (pulled or snapshot.file == files[-1]):
        return snapshot.file
    below = files[files.index(snapshot.file) - 1]
    for row in model.snapshots.values():
        if row.file == below:
            row.file = snapshot.file
            return below
    model.volume(snapshot.volume_id).base_file = snapshot.file
    return below


def view(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as an administrator sees it."""
    return {
        "id": snapshot.id,
        "name": snapshot.name,
        "volume_id": snapshot.volume_id,
        "size": snapshot.size,
        "status": snapshot.status,
        "metadata": {},
        "os-extended-snapshot-attributes:project_id": snapshot.project_id,
        "os-extended-snapshot-attributes:progress": snapshot.progress,
    }


def made_of(model: CinderModel, snapshot_id: str | None, image_id: str | None, size: int) -> bool:
    """Whether a volume of this is bootable; CinderFault if none of that size can be made."""
    if snapshot_id is None:
        return image_id is not None
    snapshot = model.snapshot(snapshot_id)
    if size < snapshot.size:
        raise CinderFault(
            400,
            f"Invalid input received: Volume size '{size}'GB cannot be smaller than the snapshot "
            f"size {snapshot.size}GB. They must be >= original snapshot size.",
        )
    return model.volume(snapshot.volume_id).bootable
