"""What is compared: one subject, and what each party says of it.

None: the party was asked, and has no such thing.  `UNKNOWN`: it could not be asked, or not
believed (a silent or fenced host; a list of Cinder's that may be cut).  What is unknown is
never drift: a class is judged only where all parties that it compares are known.

What a look makes for each attachment of a cloud is not frozen, which would double what it costs to
make; nobody changes it.
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
    """Those whose word is compared."""

    LEDGER = "ledger"
    CINDER = "cinder"
    HOST = "host"


class Subject(StrEnum):
    """What a row is about, and so what its key is."""

    ATTACHMENT = "attachment"  # its id
    VOLUME = "volume"  # its id
    SERVER = "server"  # its id
    DISK = "disk"  # the server's id, and the id, or else the name, that the disk has in its guest
    CONNECTION = "connection"  # the host, and the attachment's id
    STORAGE = "storage"  # the host, and what its storage calls the thing
    REMNANT = "remnant"  # its id; this and the next are facts of the log (the view `drift`)
    OPERATION = "operation"  # its id


@dataclass(frozen=True, kw_only=True)
class Key:
    """One subject; equal keys are the same finding for ever."""

    subject: Subject
    id: str
    host: str | None = None  # of connections and storage


# --- attachments --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LedgerAttachment:
    """An attachment that the ledger holds to be open."""

    state: str  # aggregates.attachment.AttachmentState
    host: str | None
    access_mode: str | None
    legacy: bool
    mapped: bool  # a mapping of the server names it (`kept` counts)
    device: str | None = None  # that mapping's name of the disk, once it has one


@dataclass(frozen=True, kw_only=True)
class CinderAttachment:
    """`host`, `mode` and `mountpoint` are None where Cinder does not tell them (only of attached
    ones).  `mountpoint`: the name of the disk, without a directory.
    """

    status: str
    host: str | None = None
    mode: str | None = None
    mountpoint: str | None = None


@dataclass(frozen=True, kw_only=True)
class StrangersAttachment(CinderAttachment):
    """Of a server that is none of ours.  Of any other one, the row itself is about its server."""

    server_id: str | None


@dataclass(kw_only=True)
class AttachmentRow:
    """An attachment.  `server`: whether the ledger has the server: "live", "deleted" or None.

    `taken`: whether a server of ours has the volume, which is for one alone.
    `connected`: whether the host of the ledger's attachment has a record of it.
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
    """A volume as Cinder's list shows it.  `made`: it carries our mark (client.MADE_FOR).

    `since`: when Cinder changed its row last, in Cinder's words, of one that Cinder works on.
    """

    status: str
    attachments: int
    migration_status: str | None = None
    made: bool = False
    project_id: str | None = None
    since: str | None = None


@dataclass(frozen=True, kw_only=True)
class LedgerVolume:
    """How many servers of ours have the volume, and of which projects they are.

    `made_by`: the operation that was to make a volume with the mark that this one carries.
    """

    mappings: int
    projects: tuple[str, ...]
    made_by: str | None = None


@dataclass(kw_only=True)
class VolumeRow:
    """`mappings`: live ones that the ledger has of the volume; `projects`: of their servers.

    `had`: whether a server of ours has ever had it.
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
        """What the ledger says of it."""
        return LedgerVolume(mappings=self.mappings, projects=self.projects, made_by=self.made_by)


# --- servers ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LedgerServer:
    """A server as the ledger has it; `hosts`: where its guest is to be (two, while resized)."""

    hosts: tuple[str, ...]
    power_state: str
    built: bool
    deleted: bool


@dataclass(frozen=True, kw_only=True)
class ServerRow:
    """`shown`: the power state of its guest by host, of all hosts whose survey is known.

    One host that shows the guest is enough to see some drift; of others nothing can be said as
    long as a host is unknown on which it is to be.  `undefined`: its own host, if that runs
    the guest without having a definition of it.
    """

    id: str
    about: About
    ledger: LedgerServer | None
    shown: tuple[tuple[str, str], ...]
    unknown_hosts: tuple[str, ...] = ()  # where it is to be, and nobody could look
    undefined: tuple[str, ...] = ()

    @property
    def showing(self) -> tuple[str, ...]:
        """The hosts that show the guest."""
        return tuple(host for host, _ in self.shown)


# --- disks --------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class LedgerDisk:
    """A live mapping with a volume, of a server that has a guest."""

    volume_id: str
    device_name: str | None
    access_mode: str | None
    plugged: bool


@dataclass(kw_only=True)
class DiskRow:
    """`id` is "server/serial"; `running`: there is a live guest; `defined`: it can be started.

    `cinder`: how large the volume is, in GiB.
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
    """A disk that has no volume's serial, and a volume's source; `id` is "server/target"."""

    id: str
    about: About
    shown: UnlabelledShown


# --- what a host has connected ----------------------------------------------------------------


@dataclass(kw_only=True)
class ConnectionRow:
    """A record of a host's own, and what the ledger says of its attachment."""

    id: str  # the attachment's
    about: About
    ledger: LedgerAttachment | None
    shown: ConnectionShown


@dataclass(frozen=True, kw_only=True)
class StorageRow:
    """Something that the host's storage or its hypervisor has; a secret is of kind "secret"."""

    id: str  # kind and name
    about: About
    shown: StorageShown
    wanted: bool  # the ledger has something there that needs it


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
    """Which subject the row is about."""
    subject = SUBJECTS[type(row)]
    return Key(subject=subject, id=row.id, host=row.about.host if subject in _OF_A_HOST else None)


def silent(row: Row) -> frozenset[Party]:
    """Who has not said what it has to say of the row."""
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


#: By row: a look asks this of all rows of a cloud.
_SILENT: dict[type[Row], Callable[[Any], frozenset[Party]]] = {
    AttachmentRow: _silent_of_attachment,
    VolumeRow: lambda row: _CINDER if row.cinder is UNKNOWN else _NOBODY,
    ServerRow: lambda _: _NOBODY,
    DiskRow: _silent_of_disk,
    UnlabelledRow: lambda _: _NOBODY,
    ConnectionRow: lambda _: _NOBODY,
    StorageRow: lambda _: _NOBODY,
}
