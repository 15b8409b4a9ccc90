"""Snapshots of the simulated Cinder: made, shown, and what volumes are made of."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ledger.simulation.cinder_call import Call
from ledger.simulation.cinder_model import CinderModel
from ledger.simulation.cinder_rows import CinderFault, Snapshot


async def snapshot_create(call: Call) -> web.Response:
    wanted = call.part("snapshot")
    with call.model.lock:
        made = call.model.add_snapshot(str(wanted.get("volume_id")), name=wanted.get("name"))
        return web.json_response({"snapshot": view(made)}, status=202)


async def snapshot_show(call: Call) -> web.Response:
    with call.model.lock:
        found = call.model.snapshot(call.request.match_info["snapshot_id"])
        if not call.is_admin and found.project_id != call.project:
            raise CinderFault(404, f"Snapshot {found.id} could not be found.")
        return web.json_response({"snapshot": view(found)})


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
        "os-extended-snapshot-attributes:progress": "100%",
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
