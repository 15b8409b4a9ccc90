"""The old attach flow: Cinder's volume actions of before attachments (S1, "legacy").

What looks like missing checks is as observed: unreserve, roll_detaching,
initialize_connection, terminate_connection and detach all succeed on an available
volume; only reserve, begin_detaching and a second attach are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger.trial.cinder.model import connection as cinder_connection
from ledger.trial.cinder.model.model import CinderModel, invalid_volume
from ledger.trial.cinder.model.rows import CinderFault, StoredAttachment, StoredVolume


def reserve(model: CinderModel, volume: StoredVolume, _body: dict[str, Any]) -> None:
    del model
    allowed = ("available", "in-use") if volume.multiattach else ("available",)
    if volume.status not in allowed:
        raise invalid_volume(
            f"Volume status must be {' or '.join(allowed)} to reserve, "
            f"but the status is {volume.status}."
        )
    volume.status = "attaching"


def unreserve(model: CinderModel, volume: StoredVolume, _body: dict[str, Any]) -> None:
    if volume.status == "attaching":
        volume.status = "in-use" if model.attachments_of(volume.id) else "available"


def begin_detaching(model: CinderModel, volume: StoredVolume, _body: dict[str, Any]) -> None:
    del model
    if volume.migrating:
        return  # a migrating volume never shows `detaching`
    if volume.status != "in-use" or volume.attach_status != "attached":
        raise invalid_volume(
            "Unable to detach volume. Volume status must be 'in-use' "
            "and attach_status must be 'attached' to detach."
        )
    volume.status = "detaching"


def roll_detaching(model: CinderModel, volume: StoredVolume, _body: dict[str, Any]) -> None:
    del model
    if volume.status == "detaching":
        volume.status = "in-use"


def initialize_connection(
    model: CinderModel, volume: StoredVolume, body: dict[str, Any]
) -> dict[str, Any]:
    _not_in_maintenance(volume, "The volume connection cannot be initialized in maintenance mode.")
    connector = body.get("connector")
    if not isinstance(connector, dict):
        text = f"Invalid input for field/attribute os-initialize_connection. Value: {body}."
        raise CinderFault(400, f"{text} 'connector' is a required property")
    key = f"{volume.id}-{connector.get('host', '')}"
    info, secrets = cinder_connection.connection_info(volume, key, connector, flat=False)
    model.secrets.extend(secrets)
    return {"connection_info": info}


def attach(model: CinderModel, volume: StoredVolume, body: dict[str, Any]) -> None:
    _not_in_maintenance(volume, "The volume cannot be attached in maintenance mode.")
    instance = body.get("instance_uuid")
    if "mountpoint" not in body or not (instance or body.get("host_name")):
        text = f"Invalid input for field/attribute os-attach. Value: {body}. {body}"
        raise CinderFault(400, f"{text} is not valid under any of the given schemas")
    if any(row.instance == instance for row in model.attachments_of(volume.id)):
        volume.status = "in-use"
        return
    if volume.status == "in-use" and not volume.multiattach and not volume.migration_status:
        raise invalid_volume("volume is already attached and multiple attachments are not enabled")
    mode = body.get("mode", "rw")
    volume.readonly = bool(volume.readonly)  # the flag is set from now on, to what it meant
    if volume.readonly and mode != "ro":
        text = f"Invalid volume: Invalid attaching mode '{mode}' for volume {volume.id}."
        raise CinderFault(400, text)
    row = StoredAttachment(
        id=model.new_id(), volume_id=volume.id, instance=instance, status="attached"
    )
    row.mountpoint, row.mode = body["mountpoint"], mode
    row.host = body.get("host_name")
    row.attached_at, row.by_old_calls = model.clock(), True
    model.put_attachment(row)
    volume.status, volume.attach_status = "in-use", "attached"


def terminate_connection(model: CinderModel, volume: StoredVolume, body: dict[str, Any]) -> None:
    unreserve(model, volume, body)


def detach(model: CinderModel, volume: StoredVolume, body: dict[str, Any]) -> None:
    _not_in_maintenance(volume, "The volume cannot be detached in maintenance mode.")
    rows = model.attachments_of(volume.id)
    attachment_id = body.get("attachment_id")
    if attachment_id is None and len(rows) > 1:
        raise invalid_volume(
            "Detach volume failed: More than one attachment, but no attachment_id provided."
        )
    attachment_id = attachment_id or (rows[0].id if rows else None)
    if attachment_id in model.attachments:
        model.drop_attachment(attachment_id)
    else:
        model.recompute(volume)


def _not_in_maintenance(volume: StoredVolume, text: str) -> None:
    if volume.status == "maintenance":
        raise invalid_volume(text)


Action = Callable[[CinderModel, StoredVolume, dict[str, Any]], dict[str, Any] | None]

ACTIONS: dict[str, Action] = {
    "os-reserve": reserve,
    "os-unreserve": unreserve,
    "os-begin_detaching": begin_detaching,
    "os-roll_detaching": roll_detaching,
    "os-initialize_connection": initialize_connection,
    "os-attach": attach,
    "os-terminate_connection": terminate_connection,
    "os-detach": detach,
}

#: Actions that a user may not do while the compute service says the volume is attached.
GUARDED = frozenset({"os-terminate_connection", "os-detach"})
