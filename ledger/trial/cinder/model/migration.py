"""Volumes that change their backend: migrate and retype, as the model sees them.

A volume in use is copied by the compute service.  Cinder makes a target volume, asks
for the swap and waits; the completion then swaps the two records, so that the old id
goes on with the new data, and the target's attachments move to it.  As in Cinder 29:

* while it migrates, the old volume keeps its status even when its last attachment goes;
* a completion that reports an error deletes the target, if nothing is attached to it;
* a swap without a migration (neither volume has a migration_status) moves attachments
  of the old flow and answers the new volume's id.
"""

from __future__ import annotations

from typing import Any

from ledger.trial.cinder.model import legacy
from ledger.trial.cinder.model.backends import Backend, split_type
from ledger.trial.cinder.model.model import CinderModel, invalid_volume
from ledger.trial.cinder.model.rows import CinderFault, StoredVolume

#: What the record of the old id takes over from the target's.
_SWAPPED = (
    *("status", "attach_status", "multiattach", "backend", "driver", "volume_type"),
    *("shared_targets", "service_uuid", "size", "availability_zone", "late_uuid"),
    *("encrypted", "provider", "encryption_key_id", "active_file", "base_file"),
)
_MOVABLE = ("available", "in-use")


def migrate(model: CinderModel, volume: StoredVolume, body: dict[str, Any]) -> StoredVolume:
    """Begin `os-migrate_volume`; returns the target."""
    host = str(body.get("host"))
    found = [backend for backend in model.backends.values() if backend.host == host]
    if not found:
        raise CinderFault(400, f"Invalid host: No available service named '{host}'")
    free = volume.status in _MOVABLE and not volume.migrating
    if not free or found[0].name == volume.backend or model.has_snapshots(volume.id):
        raise invalid_volume(
            f"Volume {volume.id} status must be available or in-use, must not be migrating, have "
            "snapshots, be replicated, be part of a group and destination host/cluster must be "
            "different than the current one"
        )
    volume.previous_status = volume.status
    if body.get("lock_volume") and volume.status == "available":
        volume.status = "maintenance"
    return _begin(model, volume, found[0], volume.volume_type)


def retype(model: CinderModel, volume: StoredVolume, body: dict[str, Any]) -> StoredVolume | None:
    """`os-retype`; returns the target if that takes a migration.

    Where a migration is needed and `migration_policy` forbids it, or the volume has snapshots, it
    is accepted without effect.
    """
    kind = str(body.get("new_type"))
    backend, multiattach = model.backend_of_type(kind)
    if multiattach != volume.multiattach and volume.status != "available":
        raise CinderFault(
            400,
            "Invalid input received: Invalid volume_type passed, retypes affecting multiattach "
            "are only allowed on available volumes, the specified volume however currently has "
            f"a status of: {volume.status}.",
        )
    if volume.status not in _MOVABLE or volume.migrating or volume.volume_type == kind:
        raise invalid_volume(
            "Retype needs volume to be in available or in-use state, not be part of an active "
            "migration or a consistency group, requested type has to be different that the one "
            "from the volume, and for in-use volumes front-end qos specs cannot change."
        )
    if backend.name == volume.backend:
        volume.volume_type, volume.multiattach = kind, multiattach
        return None
    if body.get("migration_policy") != "on-demand" or model.has_snapshots(volume.id):
        return None
    volume.previous_status, volume.status = volume.status, "retyping"
    return _begin(model, volume, backend, kind)


def _begin(
    model: CinderModel, volume: StoredVolume, backend: Backend, volume_type: str
) -> StoredVolume:
    volume.migration_status = "migrating"
    return model.add_volume(
        driver=backend.name,
        name=volume.name,
        description=volume.description,
        size=volume.size,
        multiattach=split_type(volume_type)[1],
        volume_type=volume_type,
        bootable=volume.bootable,
        encrypted=volume.encrypted,
        availability_zone=volume.availability_zone,
        project_id=volume.project_id,
        user_id=volume.user_id,
        metadata=dict(volume.metadata),
        migration_status=f"target:{volume.id}",
    )


def copied_by_cinder(model: CinderModel, volume: StoredVolume, target: StoredVolume) -> bool:
    """True if the volume has no attachment: it is moved at once, without the compute service."""
    if model.attachments_of(volume.id):
        return False
    complete(model, volume, target, error=False)
    return True


def fail(model: CinderModel, volume: StoredVolume, target: StoredVolume) -> None:
    """To be called when the compute service did not answer, or refused."""
    if volume.migration_status == "migrating":
        model.begin_deletion(target)
    volume.migration_status = "error"
    if volume.status in ("retyping", "maintenance"):
        volume.status = volume.previous_status or volume.status


def complete(model: CinderModel, old: StoredVolume, new: StoredVolume, *, error: bool) -> str:
    """`os-migrate_volume_completion`: the id under which the volume goes on."""
    if not old.migration_status and not new.migration_status:
        return _swap_old_attachments(model, old, new, error=error)
    if not old.migration_status:
        raise invalid_volume("Source volume not mid-migration.")
    if not new.migration_status:
        raise invalid_volume("Destination volume not mid-migration.")
    expected = f"target:{old.id}"
    if new.migration_status != expected:
        raise invalid_volume(
            f"Destination has migration_status {new.migration_status}, expected {expected}."
        )
    if error:
        old.migration_status, old.status = "error", old.previous_status or old.status
        if new.attach_status != "attached":
            model.begin_deletion(new)
        return old.id
    _swap_records(model, old, new)
    return old.id


def _swap_records(model: CinderModel, old: StoredVolume, new: StoredVolume) -> None:
    status = old.previous_status or old.status
    old_rows = model.attachments_of(old.id) if status == "in-use" else []
    for row in old_rows:  # the old flow's; the new flow has deleted its own
        model.drop_attachment(row.id)
    old.name_id, new.name_id = new.name_id or new.id, old.id
    for name in _SWAPPED:
        mine, theirs = getattr(old, name), getattr(new, name)
        setattr(old, name, theirs)
        setattr(new, name, mine)
    new.migration_status = "deleting"
    if old.status in ("available", "reserved", "attaching"):
        for row in old_rows:
            legacy.attach(
                model,
                old,
                {
                    "instance_uuid": row.instance,
                    "host_name": row.host,
                    "mountpoint": row.mountpoint,
                    "mode": row.mode,
                },
            )
    old.previous_status, old.migration_status, old.status = old.status, "success", status
    for row in model.attachments_of(new.id):
        model.move_attachment(row, old.id)
    model.begin_deletion(new)


def _swap_old_attachments(
    model: CinderModel, old: StoredVolume, new: StoredVolume, *, error: bool
) -> str:
    for row in [] if error else model.attachments_of(old.id):
        legacy.detach(model, old, {"attachment_id": row.id})
        body = {"instance_uuid": row.instance, "host_name": row.host, "mountpoint": row.mountpoint}
        legacy.attach(model, new, body)
    return new.id
