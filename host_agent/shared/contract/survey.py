"""A survey: what a host has, when the ledger asks (decision 0056).

A guest's disks, live and as defined; the host's own records of what it has connected; what its
storage shows of sessions, maps, mounts, loops and dm-crypt; the hypervisor's secrets.  A survey
only reads: it changes nothing, forks nothing, and contains no secret and no connection information.
It lists what it could not read (`blind`); the state of that is unknown.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from host_agent.shared.contract import HOST_NAME
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.wire import Bytes, Id, Number, Word, form

T = TypeVar("T")

#: The parts, each of which may be unreadable (`blind`).
Part = Literal["guests", "connections", "storage", "secrets"]
PARTS: tuple[Part, ...] = get_args(Part)
GUESTS, CONNECTIONS, STORAGE, SECRETS = PARTS
#: The limit of each list, and of all guests' disks together; a host has some hundred.  A longer
#: list is cut, and its part is unreadable.
ITEMS_MAX = 20_000
#: The limit of a text: a path, a name, a reason.  A longer one is cut.
TEXT_CHARS_MAX = 512
#: The limit of facts in which the copies of a disk differ (disk_xml.differences has fewer).
DIFFERS_MAX = 16
#: An agent that has this capability can be asked.
CAPABILITY = "survey"

#: A survey that took longer to make and to send is of no use.
MADE_S_MAX = 600.0

Digest = Annotated[str, form("[0-9a-f]{64}")]
HostName = Annotated[str, form(HOST_NAME)]
Items = Annotated[tuple[T, ...], Meta(max_length=ITEMS_MAX)]


@dataclass(kw_only=True, slots=True)
class DiskShown:
    """A disk of a guest whose serial is an id, so a volume's.

    `live`, `persistent`: its target in the running guest and in the definition; None: not there.
    `readonly_live`, `readonly_persistent`: of these copies; `differs`: the facts that differ
    between them (disk_xml).  `source`: in short (a path, a pool and image).  `recorded`: whether
    all its sources are those of this host's connection record, and the device is still the one that
    was connected; None: unknown.  `size_bytes`: in the running guest; `device_bytes`: of the host's
    device.
    """

    serial: Id
    live: Word | None
    persistent: Word | None
    readonly_live: bool | None = None
    readonly_persistent: bool | None = None
    source: str | None = None
    differs: Annotated[tuple[Word, ...], Meta(max_length=DIFFERS_MAX)] = ()
    recorded: bool | None = None
    size_bytes: Bytes | None = None
    device_bytes: Bytes | None = None


@dataclass(kw_only=True, slots=True)
class UnlabelledShown:
    """A disk of a guest without an id as its serial, whose source is a volume's: by a connection
    record, or by Cinder's name of a file or an image.
    """

    target: Word
    source: str
    volume_id: Id


@dataclass(frozen=True, kw_only=True, slots=True)
class GuestShown:
    """A guest with its volumes' disks; `defined`: it has a definition (is not transient).

    `unlabelled` None: unknown.
    """

    server_id: Id
    power_state: PowerState
    defined: bool = True
    disks: tuple[DiskShown, ...] = ()
    unlabelled: tuple[UnlabelledShown, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """Any disk of a guest.  `serial`: if it is an id.  `live`: in the running guest.

    `sources`: live, as defined, and the target of a copy, in short.
    """

    server_id: str
    target: str
    serial: str | None
    live: bool
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GuestsShown:
    """All guests for a survey, and all of their disks."""

    guests: tuple[GuestShown, ...]
    opened: tuple[Opened, ...] = ()

    @property
    def sources(self) -> frozenset[str]:
        return frozenset(source for disk in self.opened for source in disk.sources)


@dataclass(kw_only=True, slots=True)
class ConnectionShown:
    """A connection record of this host.

    `present`: whether the device that connecting returned exists, and is still the same disk (for a
    file on a share: whether the share is mounted); None: unknown (no device is recorded, or there
    is none, as with RBD).  `used`: whether a guest's disk (live or defined), a device mapper, a
    mount or a loop device uses it; None: unknown.
    """

    attachment_id: Id
    volume_id: Id
    server_id: Id
    serial: Id
    present: bool | None = None
    used: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageShown:
    """An object of the host's storage.

    `kind`: "iscsi_session", "nvme_subsystem", "multipath_map", "mount", "loop", "crypt" (a dm-crypt
    mapping above one of the first three).  `name`: the target, the NQN, the map's WWID, the share,
    the file, the mapping; each once.  `recorded`: a connection record explains it.  `used`: a
    guest's disk, or anything else, uses it; for a mount: a guest's disk or a loop device is on it.
    `faulty`: it has no working path, as far as the kernel knows.
    """

    kind: Word
    name: str
    recorded: bool
    used: bool
    faulty: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """All parts of a host at one moment; `boot_id` changes at a reboot.

    Each list is in the order of ids, or of kinds and names, so equal hosts have equal surveys.  The
    list of an unreadable part (`blind`) may be incomplete.
    """

    boot_id: Word
    epoch: Number
    guests: Items[GuestShown]
    connections: Items[ConnectionShown]
    storage: Items[StorageShown]
    secrets: Items[Id]  # the ids of the volumes they are for
    blind: tuple[Part, ...]
    why_blind: tuple[str, ...]  # the reasons, in the same order

    def digest(self) -> str:
        """Equal for equal surveys."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveySent:
    """What a host that is not the ledger's sends of itself, unasked.  `made_s`: so many seconds
    before it was sent, it was begun.

    The keys of the survey are beside these, as in SurveyAnswer.
    """

    digest: Digest
    made_s: Annotated[float, Meta(ge=0, le=MADE_S_MAX)]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostsWord:
    """The output of `attachment-ledger-agent survey`, for a survey of a cloud without a ledger."""

    host: HostName
    survey: Survey


def disks_of(guest: GuestShown) -> int:
    """The number of its disks."""
    return len(guest.disks) + len(guest.unlabelled or ())


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveyAnswer:
    """An agent's answer to a request for a survey; `token`: of the request.

    The keys of the survey are beside these, so that a large one is read in pieces; without them the
    survey is unchanged, and the ledger has it by its digest.
    """

    token: Id
    epoch: Number
    digest: Digest
