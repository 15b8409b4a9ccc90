"""The state machine of Cinder's volumes and attachments, pure and synchronous.

Rules, codes and texts are those observed on cinder 29.0.0; where this and the real
one differ, this is wrong.  Rules that one may not expect:

* a volume's status is overwritten by the last attachment call and recomputed at
  delete only (attached > attaching > detaching > reserved; error_* do not count);
* a second attachment may be reserved for the *same* server while the volume is
  reserved or in-use, not while it is attaching (LP 1694530);
* an update is refused as soon as the volume has several attachments and any of
  them is connected, unless the volume is multiattach (LP 1833736); a create with
  connector is not, which is how a server gets a second connection for a move;
* complete checks nothing: it also completes what was never connected;
* a volume may read `available` before its `service_uuid` is set.

The HTTP server (server.py) and the tests' in-process port both sit on
this model and hold `lock` around each call.
"""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from host_agent.shared.fault_calls import READS
from host_agent.shared.faults import CHANGES_MAX
from ledger.trial.cinder.model import connection as cinder_connection
from ledger.trial.cinder.model.backends import Backend, default_backends, split_type, type_of
from ledger.trial.cinder.model.rows import (
    Backup,
    CinderFault,
    Late,
    Snapshot,
    StoredAttachment,
    StoredVolume,
)

MAX_VOLUMES = 100_000
MAX_RECENT_CALLS = 10_000
MAX_SECRETS = 10_000

VOLUME_STATUSES = (
    *("creating", "available", "deleting", "error", "error_deleting", "error_managing"),
    *("managing", "attaching", "in-use", "detaching", "maintenance", "restoring-backup"),
    *("error_restoring", "reserved", "awaiting-transfer", "backing-up", "error_backing-up"),
    *("error_extending", "downloading", "uploading", "retyping", "extending"),
)
_VOLUME_STATUS_OF = {"attached": "in-use"}  # the others have the same name
_DELETABLE = ("available", "error", "error_restoring", "error_extending", "error_managing")


def invalid_volume(reason: str) -> CinderFault:
    return CinderFault(400, f"Invalid volume: {reason}")


def random_id() -> str:
    return str(uuid.uuid4())


class CinderModel:
    """All volumes and attachments.  `clock` gives seconds since the epoch.

    `deleting_reads`: how many reads still find a volume after its deletion.  `looks_later`: what
    it is told of a snapshot it sees when somebody calls `snapshots.go_on`.
    """

    def __init__(
        self,
        *,
        driver: str = "rbd",
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self.backends = default_backends()
        self.driver = self.backend(driver).name
        self.deleting_reads = 0
        self.looks_later = False
        self.without_admin_role: set[str] = set()  # users; all others are administrators
        self.clock = clock
        self.new_id = new_id
        self.lock = threading.RLock()
        self.volumes: dict[str, StoredVolume] = {}
        self.attachments: dict[str, StoredAttachment] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.backups: dict[str, Backup] = {}
        self._by_volume: dict[str, dict[str, StoredAttachment]] = {}
        self.counts: dict[str, int] = {}
        self.recent: deque[dict[str, str]] = deque(maxlen=MAX_RECENT_CALLS)
        self.secrets: deque[str] = deque(maxlen=MAX_SECRETS)
        #: For reads that are stale: what was so before each of the last changes, if `remembers`.
        self.remembers = False
        self._past: deque[CinderModel] = deque(maxlen=CHANGES_MAX)

    # --- backends ------------------------------------------------------------------------------

    def add_backend(self, name: str, driver: str, **more: Any) -> Backend:
        """Add a backend; its volume types are `name` and `name`-multi."""
        self.backends[name] = Backend(name=name, driver=driver, **more)
        return self.backends[name]

    def backend(self, name: str) -> Backend:
        """Raises ValueError if there is none of that name."""
        if name not in self.backends:
            raise ValueError(
                f"driver {name!r} is not simulated; use one of {', '.join(self.backends)}"
            )
        return self.backends[name]

    def backend_of_type(self, volume_type: str) -> tuple[Backend, bool]:
        """The backend of a volume type, and whether it is for multi-attach; 404 if unknown."""
        name, multiattach = split_type(volume_type)
        found = self.backends.get(name)
        if found is None or (multiattach and not found.multiattach):
            raise CinderFault(404, f"Volume type with name {volume_type} could not be found.")
        return found, multiattach

    # --- volumes -------------------------------------------------------------------------------

    def add_volume(
        self,
        volume_id: str | None = None,
        *,
        driver: str | None = None,
        available_after_s: float = 0.0,
        available_after_reads: int = 0,
        service_uuid_after_s: float = 0.0,
        service_uuid_after_reads: int = 0,
        **fields: Any,
    ) -> StoredVolume:
        """Add a volume; the `after` parameters make it `creating` or without `service_uuid` first.

        `driver` is the backend's name; fields that are not given are the backend's.
        """
        if len(self.volumes) >= MAX_VOLUMES:
            raise CinderFault(413, f"VolumeLimitExceeded: Maximum of {MAX_VOLUMES} volumes.")
        now = self.clock()
        backend = self.backend(driver or self.driver)
        given: dict[str, Any] = {
            "backend": backend.name,
            "driver": backend.driver,
            "shared_targets": backend.shared_targets,
            "service_uuid": backend.service_uuid,
            "volume_type": type_of(backend.name, multiattach=bool(fields.get("multiattach"))),
            "created_at": now,
        }
        volume = StoredVolume(id=volume_id or self.new_id(), **given | fields)
        if available_after_s or available_after_reads:
            volume.status = "creating"
            volume.creating = Late(at=now + available_after_s, reads=available_after_reads or -1)
        if service_uuid_after_s or service_uuid_after_reads:
            volume.late_uuid = Late(
                at=now + service_uuid_after_s, reads=service_uuid_after_reads or -1
            )
        self.put_volume(volume)
        return volume

    def put_volume(self, volume: StoredVolume) -> None:
        self.volumes[volume.id] = volume
        self._by_volume.setdefault(volume.id, {})

    def volume(self, volume_id: str) -> StoredVolume:
        """The row, without counting as a read; 404 if there is none."""
        found = self.volumes.get(volume_id)
        if found is None:
            raise CinderFault(404, f"Volume {volume_id} could not be found.")
        return found

    def read_volume(self, volume_id: str) -> StoredVolume:
        """The row as a GET shows it.  Counts as a read, which may end a delay."""
        volume = self.volume(volume_id)
        for late in (volume.creating, volume.late_uuid, volume.going, volume.imaging):
            if late is not None:
                late.reads -= 1
        return self.current(volume_id)

    def listed_volumes(self) -> list[StoredVolume]:
        """All rows as a list shows them.  Counts as a read of each; deleted ones are left out."""
        rows = []
        for volume_id in list(self.volumes):
            try:
                rows.append(self.read_volume(volume_id))
            except CinderFault:
                continue
        return rows

    def current(self, volume_id: str) -> StoredVolume:
        """The row with all delays applied that are over; 404 if it is deleted."""
        volume = self.volume(volume_id)
        now = self.clock()
        if volume.going is not None and volume.going.is_due(now):
            self._remove(volume_id)
            return self.volume(volume_id)
        if volume.creating is not None and volume.creating.is_due(now):
            volume.creating = None
            if volume.status == "creating":
                volume.status = "available"
        if volume.late_uuid is not None and volume.late_uuid.is_due(now):
            volume.late_uuid = None
        if volume.imaging is not None and volume.imaging.is_due(now):
            volume.end_imaging()
        return volume

    def delete_volume(self, volume_id: str) -> None:
        volume = self.current(volume_id)
        kept = volume.attach_status == "attached" or self.has_snapshots(volume_id)
        if volume.status not in _DELETABLE or volume.migrating or kept:
            raise invalid_volume(
                f"Volume status must be {' or '.join(_DELETABLE)} and must not be migrating, "
                "attached, belong to a group, have snapshots, awaiting a transfer, or be "
                "disassociated from snapshots after volume transfer."
            )
        self.begin_deletion(volume)

    def add_snapshot(self, volume_id: str, **fields: Any) -> Snapshot:
        """Add a snapshot of a volume, in its project if no other is given."""
        volume = self.current(volume_id)
        given = {"size": volume.size, "project_id": volume.project_id, **fields}
        made = Snapshot(id=self.new_id(), volume_id=volume_id, **given)
        self.snapshots[made.id] = made
        return made

    def has_snapshots(self, volume_id: str) -> bool:
        return any(snapshot.volume_id == volume_id for snapshot in self.snapshots.values())

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """The row; 404 if there is none."""
        if snapshot_id not in self.snapshots:
            raise CinderFault(404, f"Snapshot {snapshot_id} could not be found.")
        return self.snapshots[snapshot_id]

    def begin_deletion(self, volume: StoredVolume) -> None:
        """Delete it, which takes `deleting_reads` reads."""
        volume.status = "deleting"
        if self.deleting_reads:
            volume.going = Late(at=self.clock(), reads=self.deleting_reads)
        else:
            self._remove(volume.id)

    def _remove(self, volume_id: str) -> None:
        for attachment_id in list(self._by_volume.pop(volume_id)):
            del self.attachments[attachment_id]
        del self.volumes[volume_id]

    def reset_status(self, volume_id: str, update: dict[str, Any]) -> None:
        """The admin's reset-state; `attach_status: detached` drops all attachment rows."""
        volume = self.volume(volume_id)
        status = (update.get("status") or "").lower()
        if status and status not in VOLUME_STATUSES:
            text = f"Volume status: {status} is invalid, valid statuses are: {VOLUME_STATUSES}."
            raise CinderFault(400, text)
        if status == "deleting":
            raise CinderFault(400, "Cannot reset-state to deleting")
        if status == "in-use" and not self._by_volume[volume_id]:
            text = "Cannot reset-state to in-use because volume does not have any attachments."
            raise CinderFault(400, text)
        volume.status = status or volume.status
        volume.attach_status = (update.get("attach_status") or volume.attach_status).lower()
        migration = update.get("migration_status")
        if migration:
            volume.migration_status = None if migration.lower() == "none" else migration.lower()
        if volume.attach_status == "detached" and update.get("attach_status"):
            for attachment_id in list(self._by_volume[volume_id]):
                self.drop_attachment(attachment_id)

    # --- attachments ---------------------------------------------------------------------------

    def attachment(self, attachment_id: str) -> StoredAttachment:
        found = self.attachments.get(attachment_id)
        if found is None:
            text = "Volume attachment could not be found with filter: attachment_id = "
            raise CinderFault(404, f"{text}{attachment_id}.")
        return found

    def shown_attachment(self, attachment_id: str) -> StoredAttachment:
        """The row as a GET of it shows it.  Real Cinder adds the format that it has noted of a file
        to the connection information, and trips over a row that never had any.
        """
        row = self.attachment(attachment_id)
        volume = self.volumes.get(row.volume_id)
        is_file = volume is not None and volume.driver == "nfs"
        if is_file and row.by_old_calls and not row.connection_info:
            text = "The server could not comply with the request since it is either malformed or "
            raise CinderFault(400, text + "otherwise incorrect.")
        return row

    def attachments_of(self, volume_id: str) -> list[StoredAttachment]:
        return list(self._by_volume.get(volume_id, {}).values())

    def attachment_create(
        self,
        volume_id: str,
        instance: str | None,
        connector: dict[str, Any] | None = None,
        mode: str = "null",
    ) -> StoredAttachment:
        """Reserve, and with a connector connect as well (without the update's checks)."""
        volume = self.current(volume_id)
        if "error" in volume.status:
            raise invalid_volume(_error_state("created", volume))
        self._reserve(volume, instance)
        row = StoredAttachment(id=self.new_id(), volume_id=volume_id, instance=instance)
        self.put_attachment(row)
        if connector:
            self._connect(volume, row, connector)
        # Real Cinder saves the create's mode last, connector or not; and takes a flag that is
        # set, to whatever ("False" is text that is not empty), for a read-only volume.
        row.mode = mode if volume.readonly is None else "ro"
        return row

    def put_attachment(self, row: StoredAttachment) -> None:
        self.attachments[row.id] = row
        self._by_volume[row.volume_id][row.id] = row

    def _reserve(self, volume: StoredVolume, instance: str | None) -> None:
        allowed: tuple[str, ...] = ("available", "in-use", "downloading")
        if not volume.multiattach:
            allowed = ("available", "downloading")
        if volume.status in allowed:
            volume.status = "reserved"
            return
        rows = self._by_volume[volume.id].values()
        same_server = instance is not None and any(row.instance == instance for row in rows)
        if volume.status not in ("in-use", "reserved") or not same_server:
            raise invalid_volume(
                f"Volume {volume.id} status must be {' or '.join(allowed)} to reserve, "
                f"but the current status is {volume.status}."
            )

    def attachment_update(self, attachment_id: str, connector: dict[str, Any]) -> StoredAttachment:
        row = self.attachment(attachment_id)
        if not connector:
            text = "Invalid input for field/attribute connector. Value: {}. {} "
            raise CinderFault(400, text + "should be non-empty")
        if "host" not in connector:
            raise CinderFault(500, "Unable to update the attachment.")
        volume = self.volume(row.volume_id)
        if "error" in volume.status:
            raise CinderFault(409, f"Resource conflict: {_error_state('updated', volume)}")
        rows = self._by_volume[volume.id].values()
        if len(rows) > 1 and not volume.multiattach and any(r.connection_info for r in rows):
            text = f"Resource conflict: duplicate connectors detected on volume {volume.id}"
            raise CinderFault(409, text)
        self._connect(volume, row, connector)
        return row

    def _connect(
        self, volume: StoredVolume, row: StoredAttachment, connector: dict[str, Any]
    ) -> None:
        row.connector = dict(connector)
        made = cinder_connection.connection_info(volume, row.id, connector)
        row.connection_info, secrets = made
        self.secrets.extend(secrets)
        row.mode = row.mode if row.mode != "null" else connector.get("mode", "rw")
        row.mountpoint, row.host = connector.get("mountpoint", "na"), connector.get("host")
        row.attached_at = self.clock()
        row.status = "attaching"
        volume.status = volume.attach_status = "attaching"

    def attachment_complete(self, attachment_id: str) -> None:
        row = self.attachment(attachment_id)
        volume = self.volume(row.volume_id)
        row.status = "attached"
        volume.status, volume.attach_status = "in-use", "attached"

    def attachment_delete(self, attachment_id: str) -> list[StoredAttachment]:
        """Delete; the caller checks `row_to_ask_about` before."""
        row = self.attachment(attachment_id)
        self.drop_attachment(attachment_id)
        return self.attachments_of(row.volume_id)

    def move_attachment(self, row: StoredAttachment, volume_id: str) -> None:
        del self._by_volume[row.volume_id][row.id]
        row.volume_id = volume_id
        self._by_volume[volume_id][row.id] = row

    def drop_attachment(self, attachment_id: str) -> None:
        row = self.attachments.pop(attachment_id)
        del self._by_volume[row.volume_id][attachment_id]
        self.recompute(self.volume(row.volume_id))

    def recompute(self, volume: StoredVolume) -> None:
        """Set the volume's status after the deletion of an attachment."""
        rows = self._by_volume[volume.id].values()
        left = sorted(row.status for row in rows if not row.status.startswith("error_"))
        volume.attach_status = left[0] if left else "detached"
        migrating = volume.migration_status not in (None, "success", "error")
        if left:
            volume.status = _VOLUME_STATUS_OF.get(left[0], left[0])
        elif not migrating and volume.status != "uploading":
            volume.status = "available"

    def row_to_ask_about(
        self, *, attachment_id: str | None, volume_id: str | None
    ) -> StoredAttachment | None:
        """The row that the compute service must be asked about before a user's deletion.

        None: it need not be asked.  Raises the 409 of CVE-2023-2088 if it cannot be known which row
        is meant.  For a service (role `service`) nobody is asked (LP 2004555).
        """
        if attachment_id is None and volume_id is not None:
            rows = self.attachments_of(volume_id)
            if not rows:
                return None
            attachment_id = rows[0].id if len(rows) == 1 else None
        row = self.attachments.get(attachment_id) if attachment_id else None
        if row is None:
            raise still_used(None)
        if volume_id is not None and row.volume_id != volume_id:
            raise CinderFault(400, "Invalid input received: Mismatched volume and attachment")
        return row if row.instance and row.connection_info else None

    def note_call(self, call: str, **ids: str | None) -> None:
        """Record a call, for tests and for /sim/calls."""
        self.counts[call] = self.counts.get(call, 0) + 1
        self.recent.append({"call": call, **{k: v for k, v in ids.items() if v is not None}})
        if self.remembers and call not in READS:
            self._past.append(self._as_it_is())

    def _as_it_is(self) -> CinderModel:
        """Row by row, whatever somebody has done to them past this model."""
        tables = ("volumes", "attachments", "snapshots", "backups")
        copied = {
            name: {id_: copy.copy(row) for id_, row in getattr(self, name).items()}
            for name in tables
        }
        rows = copied["attachments"]
        by_volume = {
            volume_id: {id_: rows[id_] for id_ in ids if id_ in rows}
            for volume_id, ids in self._by_volume.items()
        }
        then = copy.copy(self)
        vars(then).update(copied, _by_volume=by_volume)
        return then

    def as_of(self, changes: int) -> CinderModel:
        """All rows so many changing calls ago, to be read alone; the oldest that it remembers."""
        known = len(self._past)
        return self._past[-min(changes, known)] if changes and known else self


def still_used(instance: str | None) -> CinderFault:
    """The refusal of a user's deletion of a connected attachment."""
    text = f"Detach volume from instance {instance or ''} using the Compute API"
    return CinderFault(409, f"ConflictNovaUsingAttachment: {text}")


def _error_state(done: str, volume: StoredVolume) -> str:
    return (
        f"Volume attachments can not be {done} if the volume is in an error state. "
        f"The Volume {volume.id} currently has a status of: {volume.status} "
    )
