"""The calls of Cinder's API: from a request to the model and back to JSON.

`ROUTES` is the table of what is served; the names in it are what fault rules match.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, TypeVar
from uuid import UUID

from aiohttp import web

from ledger.trial.cinder import views
from ledger.trial.cinder.call import NO_SUCH_ACTION, CinderCall, Handler, may_delete, wrong
from ledger.trial.cinder.model.actions import volume_action
from ledger.trial.cinder.model.backups import backup_create, backup_restore
from ledger.trial.cinder.model.backups import view as backup_view
from ledger.trial.cinder.model.rows import (
    Backup,
    CinderFault,
    Snapshot,
    StoredAttachment,
    StoredVolume,
)
from ledger.trial.cinder.model.snapshots import (
    made_of,
    snapshot_action,
    snapshot_create,
    snapshot_show,
)
from ledger.trial.cinder.model.snapshots import view as snapshot_view

PAGE_ROWS_MAX = 1000  # Cinder's osapi_max_limit
_ATTACHMENT_FILTERS = frozenset({"volume_id", "instance_id", "status", "attach_status"})
_NOT_FILTERS = frozenset({"limit", "marker", "offset", "sort", "sort_key", "sort_dir"})

S = TypeVar("S", Snapshot, Backup)
R = TypeVar("R", StoredVolume, StoredAttachment, Snapshot, Backup)


def _page(call: CinderCall, rows: Iterable[R]) -> list[R]:
    """The rows after `marker`, at most `limit`; by default the newest first."""
    query = call.request.query
    listed = _sorted(query.get("sort"), rows)
    try:
        limit = min(int(query.get("limit", PAGE_ROWS_MAX)), PAGE_ROWS_MAX)
        offset = int(query.get("offset", 0))
    except ValueError:
        raise CinderFault(400, "limit param must be an integer") from None
    if limit < 0 or offset < 0:
        raise CinderFault(400, "limit param must be positive")
    marker = query.get("marker")
    if marker:
        places = [number for number, row in enumerate(listed) if row.id == marker]
        if not places:
            call.model.attachment(marker)
        listed = listed[places[0] + 1 :] if places else []
    return listed[offset : offset + limit]


def _sorted(by: str | None, rows: Iterable[R]) -> list[R]:
    key, _, direction = (by or "created_at").partition(":")
    if key == "created_at":
        listed = list(rows)
    elif key == "id":
        listed = sorted(rows, key=lambda row: row.id)
    else:
        raise CinderFault(400, f"Invalid input received: the simulation does not sort by {key}")
    return listed if direction == "asc" else listed[::-1]


# --- volumes -------------------------------------------------------------------------------------


async def volume_create(call: CinderCall) -> web.Response:
    wanted = call.part("volume")
    kind = wanted.get("volume_type") or call.model.driver
    size = wanted.get("size")
    backend, multiattach = call.model.backend_of_type(kind)
    if not str(size).isdigit() or int(str(size)) < 1:
        raise CinderFault(400, "Invalid input received: Volume size must be an integer > 0.")
    snapshot_id, image_id = wanted.get("snapshot_id"), wanted.get("imageRef")
    source = wanted.get("source_volid")
    with call.model.lock:
        bootable = made_of(call.model, snapshot_id, image_id, int(str(size)))
        bootable = call.model.current(source).bootable if source else bootable
        volume = call.model.add_volume(
            driver=backend.name,
            multiattach=multiattach,
            name=wanted.get("name"),
            description=wanted.get("description"),
            metadata=wanted.get("metadata") or {},
            size=int(str(size)),
            availability_zone=wanted.get("availability_zone") or "nova",
            snapshot_id=snapshot_id,
            source_volid=source,
            image_id=image_id,
            bootable=bootable,
            project_id=call.project,
            user_id=call.user,
            available_after_reads=1,  # the first GET still sees it creating
        )
        view = views.volume_detail(call.model, volume, call.version)
    return web.json_response({"volume": view}, status=202)


async def volume_show(call: CinderCall) -> web.Response:
    with call.model.lock:
        volume = call.model.read_volume(call.volume_id)
        if not call.is_admin and volume.project_id != call.project:
            raise CinderFault(404, f"Volume {volume.id} could not be found.")
        view = views.volume_detail(call.model, volume, call.version)
    return web.json_response({"volume": view})


async def volume_encryption(call: CinderCall) -> web.Response:
    with call.model.lock:
        return web.json_response(views.encryption(call.model.current(call.volume_id)))


async def volume_list(call: CinderCall) -> web.Response:
    query = call.request.query
    every = query.get("all_tenants", "0").lower() in ("1", "true") and call.is_admin
    metadata = _metadata_filter(query.get("metadata", "{}"))
    if "source_volid" in query and not call.is_admin:
        raise CinderFault(400, "Invalid filters source_volid are found in query options.")
    with call.model.lock:
        rows = [
            volume
            for volume in call.model.listed_volumes()
            if (every or volume.project_id == call.project)
            and query.get("name", volume.name) == volume.name
            and query.get("status", volume.status) == volume.status
            and query.get("source_volid", volume.source_volid) == volume.source_volid
            and metadata.items() <= volume.metadata.items()
        ]
        page = _page(call, rows)
        if call.request.path.endswith("/detail"):
            listed = [views.volume_detail(call.model, row, call.version) for row in page]
        else:
            listed = [views.volume_summary(row) for row in page]
    return web.json_response({"volumes": listed})


def _metadata_filter(text: str) -> dict[str, str]:
    """A literal of Python, as clients send it."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        found = None
    if not isinstance(found, dict):
        raise CinderFault(400, "Invalid input received: metadata is no dictionary")
    return found


async def volume_delete(call: CinderCall) -> web.Response:
    with call.model.lock:
        call.model.delete_volume(call.volume_id)
    return web.Response(status=202)


async def snapshot_list(call: CinderCall) -> web.Response:
    with call.model.lock:
        rows = _page(call, _of_volume(call, call.model.snapshots.values()))
        return web.json_response({"snapshots": [snapshot_view(row) for row in rows]})


async def backup_list(call: CinderCall) -> web.Response:
    with call.model.lock:
        rows = _page(call, _of_volume(call, call.model.backups.values()))
        return web.json_response({"backups": [backup_view(row) for row in rows]})


def _of_volume(call: CinderCall, rows: Iterable[S]) -> list[S]:
    """Those of the volume that is asked for; of all projects for administrators who want them."""
    query = call.request.query
    every = query.get("all_tenants", "0").lower() in ("1", "true") and call.is_admin
    return [
        row
        for row in rows
        if (every or row.project_id == call.project)
        and query.get("volume_id", row.volume_id) == row.volume_id
    ]


# --- attachments ---------------------------------------------------------------------------------


async def attachment_create(call: CinderCall) -> web.Response:
    call.need(views.NEW_ATTACH)
    wanted = call.part("attachment")
    allowed = {"volume_uuid", "instance_uuid", "connector"}
    allowed |= {"mode"} if call.version >= views.CREATE_MODE else set()
    _check(wanted, allowed, "volume_uuid")
    for name in ("volume_uuid", "instance_uuid"):
        if name in wanted:
            _check_uuid(name, wanted[name])
    connector, mode = wanted.get("connector"), wanted.get("mode", "null")
    if not isinstance(connector, dict | None):
        raise wrong("connector", connector, f"{connector!r} is not of type 'object', 'null'")
    if mode not in ("null", "rw", "ro"):
        raise wrong("mode", mode, f"{mode!r} is not one of ['rw', 'ro']")
    with call.model.lock:
        row = call.model.attachment_create(
            wanted["volume_uuid"], wanted.get("instance_uuid"), connector, mode
        )
        view = views.created_attachment(row)
    return web.json_response({"attachment": view})


def _check(wanted: dict[str, Any], allowed: set[str], required: str) -> None:
    extra = [name for name in wanted if name not in allowed]
    if required not in wanted:
        raise wrong("attachment", wanted, f"{required!r} is a required property")
    if extra:
        names = ", ".join(repr(name) for name in extra)
        verb = "was" if len(extra) == 1 else "were"
        why = f"Additional properties are not allowed ({names} {verb} unexpected)"
        raise wrong("attachment", wanted, why)


def _check_uuid(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise wrong(name, value, f"{value!r} is not of type 'string'")
    try:
        UUID(value)
    except ValueError:
        raise wrong(name, value, f"{value!r} is not a 'uuid'") from None


async def attachment_show(call: CinderCall) -> web.Response:
    call.need(views.NEW_ATTACH)
    with call.model.lock:
        view = views.attachment_detail(call.model.shown_attachment(call.attachment_id))
    return web.json_response({"attachment": view})


async def attachment_list(call: CinderCall) -> web.Response:
    call.need(views.NEW_ATTACH)
    query = dict(call.request.query)
    every = query.pop("all_tenants", None) is not None and call.is_admin
    filters = {name: value for name, value in query.items() if name not in _NOT_FILTERS}
    detailed = call.request.path.endswith("/detail")
    with call.model.lock:
        rows = [
            row
            for row in call.model.attachments.values()
            if (every or _is_own(call, row)) and _matches(row, filters)
        ]
        view = views.attachment_detail if detailed else views.attachment_summary
        listed = [view(row) for row in _page(call, rows)]
    return web.json_response({"attachments": listed})


def _is_own(call: CinderCall, row: StoredAttachment) -> bool:
    """Of a volume of the caller's project; one that is gone is nobody's."""
    volume = call.model.volumes.get(row.volume_id)
    return volume is not None and volume.project_id == call.project


def _matches(row: StoredAttachment, filters: dict[str, str]) -> bool:
    """An unknown filter matches nothing, as for an administrator of the real one."""
    known = {
        "volume_id": row.volume_id,
        "instance_id": row.instance,
        "status": row.status,
        "attach_status": row.status,
    }
    return all(
        name in _ATTACHMENT_FILTERS and known[name] == value for name, value in filters.items()
    )


async def attachment_update(call: CinderCall) -> web.Response:
    call.need(views.NEW_ATTACH)
    wanted = call.part("attachment")
    _check(wanted, {"connector"}, "connector")
    if not isinstance(wanted["connector"], dict):
        why = f"{wanted['connector']!r} is not of type 'object'"
        raise wrong("connector", wanted["connector"], why)
    with call.model.lock:
        before = views.attachment_detail(call.model.attachment(call.attachment_id))
        row = call.model.attachment_update(call.attachment_id, wanted["connector"])
        view = views.updated_attachment(before, row)
    return web.json_response({"attachment": view})


async def attachment_delete(call: CinderCall) -> web.Response:
    call.need(views.NEW_ATTACH)
    with call.model.lock:
        call.model.attachment(call.attachment_id)
    await may_delete(call, attachment_id=call.attachment_id)
    with call.model.lock:
        left = call.model.attachment_delete(call.attachment_id)
        listed = [views.attachment_summary(row) for row in left]
    return web.json_response({"attachments": listed})


async def attachment_action(call: CinderCall) -> web.Response:
    call.need(views.COMPLETE)
    if list(call.body) != ["os-complete"]:
        raise CinderFault(400, NO_SUCH_ACTION.format(", ".join(call.body)))
    with call.model.lock:
        call.model.attachment_complete(call.attachment_id)
    return web.Response(status=204)


_VOLUME, _ATTACHMENT = "/volumes/{volume_id}", "/attachments/{attachment_id}"

ROUTES: tuple[tuple[str, str, str, Handler], ...] = (
    ("POST", "/volumes", "volume_create", volume_create),
    ("GET", "/volumes", "volume_list", volume_list),
    ("GET", "/volumes/detail", "volume_list", volume_list),
    ("GET", _VOLUME, "volume_show", volume_show),
    ("DELETE", _VOLUME, "volume_delete", volume_delete),
    ("GET", f"{_VOLUME}/encryption", "volume_encryption", volume_encryption),
    ("POST", f"{_VOLUME}/action", "volume_action", volume_action),
    ("POST", "/snapshots", "snapshot_create", snapshot_create),
    ("GET", "/snapshots", "snapshot_list", snapshot_list),
    ("GET", "/snapshots/detail", "snapshot_list", snapshot_list),
    ("GET", "/snapshots/{snapshot_id}", "snapshot_show", snapshot_show),
    ("POST", "/snapshots/{snapshot_id}/action", "snapshot_action", snapshot_action),
    ("POST", "/backups", "backup_create", backup_create),
    ("GET", "/backups", "backup_list", backup_list),
    ("GET", "/backups/detail", "backup_list", backup_list),
    ("POST", "/backups/{backup_id}/restore", "backup_restore", backup_restore),
    ("POST", "/attachments", "attachment_create", attachment_create),
    ("GET", "/attachments", "attachment_list", attachment_list),
    ("GET", "/attachments/detail", "attachment_list", attachment_list),
    ("GET", _ATTACHMENT, "attachment_show", attachment_show),
    ("PUT", _ATTACHMENT, "attachment_update", attachment_update),
    ("DELETE", _ATTACHMENT, "attachment_delete", attachment_delete),
    ("POST", f"{_ATTACHMENT}/action", "attachment_complete", attachment_action),
)
