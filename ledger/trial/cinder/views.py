"""Cinder's JSON forms of volumes and attachments, by microversion.

Each function is a view of model rows; nothing here changes anything but the late
`service_uuid`, which is shown as unset until it is due.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import CinderFault, StoredAttachment, StoredVolume

Microversion = tuple[int, int]

MIN_VERSION: Microversion = (3, 0)
MAX_VERSION: Microversion = (3, 71)
NEW_ATTACH: Microversion = (3, 27)
EXTEND_IN_USE: Microversion = (3, 42)
COMPLETE: Microversion = (3, 44)
SHARED_TARGETS: Microversion = (3, 48)
CREATE_MODE: Microversion = (3, 54)
PROJECT_OPTIONAL: Microversion = (3, 67)  # URLs without a project are served from here on
SHARED_TARGETS_TRISTATE: Microversion = (3, 69)
REIMAGE: Microversion = (3, 68)
EXTEND_COMPLETION: Microversion = (3, 71)


def version_text(version: Microversion) -> str:
    return f"{version[0]}.{version[1]}"


def parse_version(header: str | None, maximum: Microversion) -> Microversion:
    """The microversion of an OpenStack-API-Version header; 406 outside the range."""
    asked = [part.split() for part in (header or "").split(",") if "volume" in part]
    if not asked:
        return MIN_VERSION
    text = asked[0][-1]
    if text == "latest":
        return maximum
    major, _, minor = text.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise CinderFault(
            400,
            f"API Version String {text} is of invalid format. Must be of format MajorNum.MinorNum.",
        )
    version = (int(major), int(minor))
    if not MIN_VERSION <= version <= maximum:
        raise CinderFault(
            406,
            f"Version {text} is not supported by the API. Minimum is "
            f"{version_text(MIN_VERSION)} and maximum is {version_text(maximum)}.",
        )
    return version


def versions(base_url: str, maximum: Microversion) -> dict[str, Any]:
    """The version document, the same at the root and at /v3/."""
    media = "application/vnd.openstack.volume+json;version=3"
    return {
        "versions": [
            {
                "id": "v3.0",
                "status": "CURRENT",
                "version": version_text(maximum),
                "min_version": version_text(MIN_VERSION),
                "updated": "2024-08-05T00:00:00Z",
                "links": [{"rel": "self", "href": f"{base_url}/v3/"}],
                "media-types": [{"base": "application/json", "type": media}],
            }
        ]
    }


def _time(at: float | None) -> str:
    if at is None:
        return ""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


def volume_summary(volume: StoredVolume) -> dict[str, Any]:
    return {"id": volume.id, "name": volume.name, "links": []}


def volume_detail(
    model: CinderModel, volume: StoredVolume, version: Microversion
) -> dict[str, Any]:
    """A volume as an administrator sees it."""
    rows = model.attachments_of(volume.id)
    view = {
        **volume_summary(volume),
        "status": volume.status,
        "size": volume.size,
        "availability_zone": volume.availability_zone,
        "created_at": _time(volume.created_at),
        "updated_at": _time(volume.created_at + volume.changes) if volume.changes else None,
        "description": volume.description,
        "volume_type": volume.volume_type,
        "snapshot_id": volume.snapshot_id,
        "source_volid": volume.source_volid,
        "metadata": _metadata(volume),
        "user_id": volume.user_id,
        "bootable": str(volume.bootable).lower(),
        "encrypted": volume.encrypted,
        "replication_status": None,
        "consistencygroup_id": None,
        "multiattach": volume.multiattach,
        "attachments": [_attached(row) for row in rows if row.status == "attached"],
        "migration_status": volume.migration_status,
        "os-vol-tenant-attr:tenant_id": volume.project_id,
        "os-vol-host-attr:host": model.backends[volume.backend].host,
        "os-vol-mig-status-attr:migstat": volume.migration_status,
        "os-vol-mig-status-attr:name_id": volume.name_id,
    }
    view |= {name: value for since, name, value in _later_fields(volume) if version >= since}
    if volume.image_id is not None:
        view["volume_image_metadata"] = {"image_id": volume.image_id}
    if version >= SHARED_TARGETS:
        view |= _shared(volume, version)
    return view


def _metadata(volume: StoredVolume) -> dict[str, str]:
    """The user's, and the administrators' flag that users may see."""
    flag = {} if volume.readonly is None else {"readonly": str(volume.readonly)}
    return {**volume.metadata, **flag}


def encryption(volume: StoredVolume) -> dict[str, Any]:
    """The encryption of a volume, as administrators and its owner see it."""
    if not volume.encrypted:
        return {"encryption_key_id": None}
    return {
        "encryption_key_id": volume.encryption_key_id,
        "provider": volume.provider,
        "control_location": "front-end",
        "cipher": "aes-xts-plain64",
        "key_size": 256,
    }


def _later_fields(volume: StoredVolume) -> tuple[tuple[Microversion, str, Any], ...]:
    kind = uuid5(NAMESPACE_OID, volume.volume_type)
    return (
        ((3, 13), "group_id", None),
        ((3, 21), "provider_id", None),
        ((3, 61), "cluster_name", None),
        ((3, 63), "volume_type_id", str(kind)),
        ((3, 65), "consumes_quota", True),
    )


def _shared(volume: StoredVolume, version: Microversion) -> dict[str, Any]:
    # A volume whose service is not recorded yet reads as shared.
    late = volume.late_uuid is not None
    shared = True if late else volume.shared_targets
    if shared is None and version < SHARED_TARGETS_TRISTATE:
        shared = True
    return {"shared_targets": shared, "service_uuid": None if late else volume.service_uuid}


def _attached(row: StoredAttachment) -> dict[str, Any]:
    return {
        "id": row.volume_id,
        "attachment_id": row.id,
        "volume_id": row.volume_id,
        "server_id": row.instance,
        "host_name": row.host,
        "device": row.mountpoint,
        "attached_at": _time(row.attached_at),
    }


def attachment_summary(row: StoredAttachment) -> dict[str, Any]:
    return {
        "id": row.id,
        "status": row.status,
        "instance": row.instance,
        "volume_id": row.volume_id,
    }


def attachment_detail(row: StoredAttachment) -> dict[str, Any]:
    return {
        **attachment_summary(row),
        "attached_at": _time(row.attached_at),
        "detached_at": "",
        "attach_mode": row.mode,
        "connection_info": row.connection_info,
    }


def created_attachment(row: StoredAttachment) -> dict[str, Any]:
    """The answer of a create: `reserved`, even if it has connected."""
    return {**attachment_detail(row), "status": "reserved", "attached_at": ""}


def updated_attachment(before: dict[str, Any], row: StoredAttachment) -> dict[str, Any]:
    """The answer of an update: the new connection_info, all else as it was before."""
    return {**before, "connection_info": row.connection_info}
