"""The rows: one subject each, with what each party shows of it.

None: the party was asked, and has no such object.  `UNKNOWN`: it could not be asked or trusted (a
silent or fenced host; a list of Cinder's that may be truncated).  An unknown value is never drift:
a class is judged only if all parties that it compares are known.

Rows that a look makes for each attachment of a cloud are not frozen, which would double their cost;
nobody changes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final

from aggregates.base import About
from host_agent.shared.contract.survey import (
    ConnectionShown,
    DiskShown,
    StorageShown,
    UnlabelledShown,
)


class Unknown(Enum):
    """The type of `UNKNOWN`."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


class Party(StrEnum):
    """The parties that are compared."""

    LEDGER = "ledger"
    CINDER = "cinder"
    HOST = "host"


class Subject(StrEnum):
    """What a row is about; the comments say what its key is."""

    ATTACHMENT = "attachment"  # its id
    VOLUME = "volume"  # its id
    SERVER = "server"  # its id
    DISK = "disk"  # the server's id, and the disk's serial, or else its name in the guest
    CONNECTION = "connection"  # the host, and the attachment's id
    STORAGE = "storage"  # the host, and the object's kind and name there
    REMNANT = "remnant"  # its id; this and the next are facts of the log (the view `drift`)
    OPERATION = "operation"  # its id


@dataclass(frozen=True, kw_only=True)
class Key:
    """One subject; equal keys always mean the same finding."""

    subject: Subject
    id: str
    host: str | None = None  # of connections and storage


# --- attachments --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LedgerAttachment:
    """An attachment that is open in the ledger."""

    state: str  # aggregates.attachment.AttachmentState
    host: str | None
    access_mode: str | None
    legacy: bool
    mapped: bool  # a mapping of the server names it (also as `kept`)
    device: str | None = None  # the disk's name in that mapping, once it has one


@dataclass(frozen=True, kw_only=True)
class CinderAttachment:
    """`host`, `mode` and `mountpoint`: None if Cinder does not show them (it does for attached
    ones).  `mountpoint`: the name of the disk, without a directory.
    """

    status: str
    host: str | None = None
    mode: str | None = None
    mountpoint: str | None = None


@dataclass(frozen=True, kw_only=True)
class StrangersAttachment(CinderAttachment):
    """An attachment of a server that the ledger does not know.  For all others the row itself names
    the server.
    """

    server_id: str | None


@dataclass(kw_only=True)
class AttachmentRow:
    """An attachment.  `server`: its server in the ledger: "live", "deleted" or None.

    `taken`: whether one of the ledger's servers has the volume, which is not multi-attach.
    `connected`: whether the host of the ledger's attachment has a connection record of it.
    """

    id: str
    about: About
    server: str | None
    ledger: LedgerAttachment | None
    cinder: CinderAttachment | Unknown | None
    connected: bool | Unknown = UNKNOWN
    taken: bool = False


# --- volumes --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CinderVolume:
    """A volume as Cinder's list shows it.  `made`: it has the ledger's mark (origin.MADE_FOR).

    `since`: Cinder's `updated_at`, verbatim, of a volume that Cinder works on.
    """

    status: str
    attachments: int
    migration_status: str | None = None
    made: bool = False
    project_id: str | None = None
    since: str | None = None


@dataclass(frozen=True, kw_only=True)
class LedgerVolume:
    """How many of the ledger's servers have the volume, and their projects.

    `made_by`: the operation that planned to create a volume with this one's mark.
    """

    mappings: int
    projects: tuple[str, ...]
    made_by: str | None = None


@dataclass(kw_only=True)
class VolumeRow:
    """`mappings`: the number of live ones; `projects`: of their servers; `had`: whether one of the
    ledger's servers ever had the volume.
    """

    id: str
    about: About
    mappings: int
    had: bool
    cinder: CinderVolume | Unknown | None
    projects: tuple[str, ...] = ()
    made_by: str | None = None

    @property
    def ledger(self) -> LedgerVolume:
        """The ledger's part of the row."""
        return LedgerVolume(mappings=self.mappings, projects=self.projects, made_by=self.made_by)


# --- servers ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LedgerServer:
    """A server in the ledger; `hosts`: where its guest belongs (two during a resize)."""

    hosts: tuple[str, ...]
    power_state: str
    built: bool
    deleted: bool


@dataclass(frozen=True, kw_only=True)
class ServerRow:
    """`shown`: (host, power state of its guest) for all hosts whose survey is known.

    Some classes need one host that shows the guest; others cannot be judged while a host of the
    server is unknown.  `undefined`: the server's host, if it runs the guest without a definition.
    """

    id: str
    about: About
    ledger: LedgerServer | None
    shown: tuple[tuple[str, str], ...]
    unknown_hosts: tuple[str, ...] = ()  # hosts of the server that could not be surveyed
    undefined: tuple[str, ...] = ()

    @property
    def showing(self) -> tuple[str, ...]:
        """The hosts that show the guest."""
        return tuple(host for host, _ in self.shown)


# --- disks --------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class LedgerDisk:
    """A live mapping with a volume, of a server with a guest."""

    volume_id: str
    device_name: str | None
    access_mode: str | None
    plugged: bool


@dataclass(kw_only=True)
class DiskRow:
    """`id` is "server/serial"; `running`: the guest is live; `defined`: it has a definition.

    `cinder`: the volume's size in GiB.
    """

    id: str
    about: About
    ledger: LedgerDisk | None
    shown: DiskShown | Unknown | None
    running: bool = False
    defined: bool = True
    cinder: int | Unknown = UNKNOWN


@dataclass(kw_only=True)
class UnlabelledRow:
    """A disk without a volume's serial whose source is a volume's; `id` is "server/target"."""

    id: str
    about: About
    shown: UnlabelledShown


# --- what a host has connected ----------------------------------------------------------------


@dataclass(kw_only=True)
class ConnectionRow:
    """A host's connection record, and its attachment in the ledger."""

    id: str  # the attachment's
    about: About
    ledger: LedgerAttachment | None
    shown: ConnectionShown


@dataclass(frozen=True, kw_only=True)
class StorageRow:
    """An object of the host's storage, or a secret of its hypervisor (kind "secret")."""

    id: str  # kind and name
    about: About
    shown: StorageShown
    wanted: bool  # something that the ledger has on this host needs it


Row = AttachmentRow | VolumeRow | ServerRow | DiskRow | UnlabelledRow | ConnectionRow | StorageRow

SUBJECTS: dict[type[Row], Subject] = {
    AttachmentRow: Subject.ATTACHMENT,
    VolumeRow: Subject.VOLUME,
    ServerRow: Subject.SERVER,
    DiskRow: Subject.DISK,
    UnlabelledRow: Subject.DISK,
    ConnectionRow: Subject.CONNECTION,
    StorageRow: Subject.STORAGE,
}
_OF_A_HOST = frozenset({Subject.CONNECTION, Subject.STORAGE})


def key_of(row: Row) -> Key:
    """The subject that the row is about."""
    subject = SUBJECTS[type(row)]
    return Key(subject=subject, id=row.id, host=row.about.host if subject in _OF_A_HOST else None)


def silent(row: Row) -> frozenset[Party]:
    """The parties whose part of the row is unknown."""
    return _SILENT[type(row)](row)


_NOBODY: frozenset[Party] = frozenset()
_CINDER, _HOST = frozenset({Party.CINDER}), frozenset({Party.HOST})
SILENT = (_NOBODY, _CINDER, _HOST, _CINDER | _HOST)


def _silent_of_attachment(row: AttachmentRow) -> frozenset[Party]:
    on_a_host = row.ledger is not None and row.ledger.host is not None
    host = _HOST if on_a_host and row.connected is UNKNOWN else _NOBODY
    return _CINDER | host if row.cinder is UNKNOWN else host


def _silent_of_disk(row: DiskRow) -> frozenset[Party]:
    host = _HOST if row.shown is UNKNOWN else _NOBODY
    return _CINDER | host if row.cinder is UNKNOWN else host


#: A table, because a look calls it for all rows of a cloud.
_SILENT: dict[type[Row], Callable[[Any], frozenset[Party]]] = {
    AttachmentRow: _silent_of_attachment,
    VolumeRow: lambda row: _CINDER if row.cinder is UNKNOWN else _NOBODY,
    ServerRow: lambda _: _NOBODY,
    DiskRow: _silent_of_disk,
    UnlabelledRow: lambda _: _NOBODY,
    ConnectionRow: lambda _: _NOBODY,
    StorageRow: lambda _: _NOBODY,
}
