"""The rows of the simulated Cinder, and its errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DEFAULT_PROJECT = "sim-project"
DEFAULT_USER = "sim-user"


class CinderFault(Exception):  # noqa: N818 - what Cinder calls an error answer
    """Cinder refuses or fails: the HTTP status and the text of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(slots=True, kw_only=True)
class Late:
    """A delay: until a time (s since the epoch), and for a number of reads."""

    at: float
    reads: int  # reads that come before its end; counted down below 0

    def is_due(self, now: float) -> bool:
        return self.reads < 0 and now >= self.at


@dataclass(slots=True, kw_only=True)
class StoredVolume:
    """A volume row.  `creating`, `late_uuid`, `going`, `imaging`: until it is made, has its
    `service_uuid`, is deleted, has its `next_image_id`.
    """

    id: str
    name: str | None = None
    size: int = 1
    status: str = "available"
    attach_status: str = "detached"
    multiattach: bool = False
    backend: str
    driver: str
    volume_type: str
    shared_targets: bool | None
    service_uuid: str | None
    name_id: str | None = None  # what the data is called, once it was migrated
    previous_status: str | None = None
    bootable: bool = False
    encrypted: bool = False
    readonly: bool | None = None  # its flag; None: never set
    qos_specs: dict[str, Any] | None = None  # of its type, if the front end is to keep them
    provider: str = "luks"  # of the encryption
    encryption_key_id: str = "00000000-0000-0000-0000-000000000000"
    availability_zone: str = "nova"
    migration_status: str | None = None
    project_id: str = DEFAULT_PROJECT
    user_id: str = DEFAULT_USER
    description: str | None = None
    snapshot_id: str | None = None
    source_volid: str | None = None
    image_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    created_at: float = 0.0
    active_file: str | None = None  # of a volume that is a file: its newest snapshot's
    base_file: str | None = None  # the lowest of its files, if it is not its own any more
    creating: Late | None = None
    late_uuid: Late | None = None
    going: Late | None = None
    imaging: Late | None = None
    next_image_id: str | None = None
    changes: int = 0  # of its status, each of which Cinder tells as another time of its last change

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "status" and value != getattr(self, name, value):
            object.__setattr__(self, "changes", self.changes + 1)
        object.__setattr__(self, name, value)

    def end_imaging(self, *, error: bool = False) -> None:
        """What Cinder's volume manager does at the end of a reimage (`reimage`)."""
        self.imaging = None
        if error:
            self.previous_status, self.status = self.status, "error"
        else:
            self.image_id, self.bootable = self.next_image_id, True
            self.status = self.previous_status or self.status

    @property
    def migrating(self) -> bool:
        return self.migration_status not in (None, "deleting", "error", "success")


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """A snapshot row."""

    id: str
    volume_id: str
    size: int
    project_id: str
    name: str | None = None
    status: str = "available"
    progress: str = "100%"
    file: str | None = None  # above what it keeps, of a volume that is one


@dataclass(slots=True, kw_only=True)
class Backup:
    """A backup row; what of its volume it keeps."""

    id: str
    volume_id: str
    size: int
    project_id: str
    name: str | None = None
    image_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class StoredAttachment:
    """An attachment row; connected once it has connection_info."""

    id: str
    volume_id: str
    instance: str | None
    status: str = "reserved"
    mode: str = "null"  # the string, as Cinder stores it
    connector: dict[str, Any] = field(default_factory=dict)
    connection_info: dict[str, Any] = field(default_factory=dict)
    mountpoint: str | None = None
    host: str | None = None
    attached_at: float | None = None
    by_old_calls: bool = False  # os-attach: made without connection information
