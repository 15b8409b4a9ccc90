"""The volume actions of Cinder's API: the old flow's, and those of an administrator."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ledger.trial.cinder import views
from ledger.trial.cinder.call import NO_SUCH_ACTION, CinderCall, Handler, may_delete, wrong
from ledger.trial.cinder.model import legacy, migration
from ledger.trial.cinder.model import work as cinder_work
from ledger.trial.cinder.model.rows import CinderFault, StoredAttachment, StoredVolume


async def volume_action(call: CinderCall) -> web.Response:
    if len(call.body) != 1:
        raise CinderFault(400, "Malformed request body")
    [name] = call.body
    with call.model.lock:
        call.model.current(call.volume_id)
    if name not in _ACTIONS:
        raise CinderFault(400, NO_SUCH_ACTION.format(name))
    return await _ACTIONS[name](call)


def _inner(call: CinderCall) -> dict[str, Any]:
    [inner] = call.body.values()
    return inner if isinstance(inner, dict) else {}


async def _old_flow(call: CinderCall) -> web.Response:
    [name] = call.body
    inner = _inner(call)
    if name in legacy.GUARDED:
        target = inner.get("attachment_id") if name == "os-detach" else None
        await may_delete(call, attachment_id=target, volume_id=call.volume_id)
    with call.model.lock:
        volume = call.model.current(call.volume_id)
        answer = legacy.ACTIONS[name](call.model, volume, inner)
    return web.json_response(answer) if answer is not None else web.Response(status=202)


async def _reset_status(call: CinderCall) -> web.Response:
    with call.model.lock:
        call.model.reset_status(call.volume_id, _inner(call))
    return web.Response(status=202)


async def _force_detach(call: CinderCall) -> web.Response:
    """Terminates the connection and detaches; each of the two needs the check of `may_delete`."""
    inner = _inner(call)
    await may_delete(call, volume_id=call.volume_id)
    with call.model.lock:
        legacy.terminate_connection(call.model, call.model.volume(call.volume_id), inner)
    await may_delete(call, attachment_id=inner.get("attachment_id"), volume_id=call.volume_id)
    with call.model.lock:
        legacy.detach(call.model, call.model.volume(call.volume_id), inner)
    return web.Response(status=202)


# --- migration -----------------------------------------------------------------------------------


async def _migrate(call: CinderCall) -> web.Response:
    with call.model.lock:
        volume = call.model.volume(call.volume_id)
        _start_migration(call, volume, migration.migrate(call.model, volume, _inner(call)))
    return web.Response(status=202)


async def _retype(call: CinderCall) -> web.Response:
    with call.model.lock:
        volume = call.model.volume(call.volume_id)
        target = migration.retype(call.model, volume, _inner(call))
        if target is not None:
            _start_migration(call, volume, target)
    return web.Response(status=202)


def _start_migration(call: CinderCall, volume: StoredVolume, target: StoredVolume) -> None:
    if not migration.copied_by_cinder(call.model, volume, target):
        call.later(_ask_for_swaps(call, volume, target, call.model.attachments_of(volume.id)))


async def _ask_for_swaps(
    call: CinderCall, volume: StoredVolume, target: StoredVolume, rows: list[StoredAttachment]
) -> None:
    """One swap for each attachment; the compute service reports the end by a completion."""
    try:
        for row in rows:
            await call.compute.swap(row.instance, volume.id, target.id)
    except CinderFault:
        with call.model.lock:
            migration.fail(call.model, volume, target)


async def _complete(call: CinderCall) -> web.Response:
    inner = _inner(call)
    if "new_volume" not in inner:
        raise wrong("os-migrate_volume_completion", inner, "'new_volume' is a required property")
    with call.model.lock:
        new = call.model.current(str(inner["new_volume"]))
        old = call.model.volume(call.volume_id)
        kept = migration.complete(call.model, old, new, error=bool(inner.get("error")))
    return web.json_response({"save_volume_id": kept})


async def _extend(call: CinderCall) -> web.Response:
    """Done at once; then each server that has the volume is told."""
    size = int(_inner(call)["new_size"])
    with call.model.lock:
        volume = call.model.current(call.volume_id)
        if size <= volume.size:
            raise CinderFault(
                400,
                "Invalid input received: New size for extend must be greater than current size. "
                f"(current: {volume.size}, extended: {size}).",
            )
        cinder_work.begin_extension(volume, attached=call.version >= views.EXTEND_IN_USE)
        cinder_work.end_extension(call.model, volume, size)
        servers = [row.instance for row in call.model.attachments_of(volume.id) if row.instance]
    if servers:
        call.later(call.compute.extended(servers, volume.id))
    return web.Response(status=202)


async def _extended(call: CinderCall) -> web.Response:
    call.need(views.EXTEND_COMPLETION)
    with call.model.lock:
        volume = call.model.current(call.volume_id)
        error = bool(_inner(call).get("error"))
        cinder_work.complete_extension(call.model, volume, error=error)
    return web.Response(status=202)


async def _reimage(call: CinderCall) -> web.Response:
    """Written after the answer; then the server that the volume is reserved for is told."""
    call.need(views.REIMAGE)
    inner = _inner(call)
    if "image_id" not in inner:
        raise wrong("os-reimage", inner, "'image_id' is a required property")
    with call.model.lock:
        volume = call.model.current(call.volume_id)
        reserved = inner.get("reimage_reserved") is True
        cinder_work.begin_reimage(call.model, volume, str(inner["image_id"]), reserved=reserved)
    call.later(_written(call, volume))
    return web.Response(status=202)


async def _written(call: CinderCall, volume: StoredVolume) -> None:
    with call.model.lock:
        if volume.imaging is not None:
            volume.end_imaging()
        rows = call.model.attachments_of(volume.id) if volume.status == "reserved" else []
        servers = [row.instance for row in rows if row.instance]
    if servers:
        await call.compute.reimaged(servers, volume.id)


_ACTIONS: dict[str, Handler] = {
    **dict.fromkeys(legacy.ACTIONS, _old_flow),
    "os-reset_status": _reset_status,
    "os-force_detach": _force_detach,
    "os-migrate_volume": _migrate,
    "os-migrate_volume_completion": _complete,
    "os-retype": _retype,
    "os-extend": _extend,
    "os-extend_volume_completion": _extended,
    "os-reimage": _reimage,
}
