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

from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.wire import Bytes, Id, Number, Word, form

T = TypeVar("T")

#: Parts that can be blind.
Part = Literal["guests", "connections", "storage", "secrets"]
PARTS: tuple[Part, ...] = get_args(Part)
GUESTS, CONNECTIONS, STORAGE, SECRETS = PARTS
#: Of each list, and of all guests' disks together; a host has some hundred.  What is more is cut,
#: and the part said to be blind.
ITEMS_MAX = 20_000
#: Of a text: a path, a name, a reason.  What is longer is cut.
TEXT_CHARS_MAX = 512
#: In how many facts the copies of a disk can differ (disk_xml.differences), with room for more.
DIFFERS_MAX = 16
#: An agent that has this capability can be asked.
CAPABILITY = "survey"

Items = Annotated[tuple[T, ...], Meta(max_length=ITEMS_MAX)]


@dataclass(kw_only=True, slots=True)
class DiskShown:
    """A disk of a guest whose serial is an id: by that the guest knows a volume.

    `live`, `persistent`: its target in the running guest and in the definition; None: not there.
    `readonly`: of each copy that there is; `differs`: in what the copies differ (disk_xml).
    `source`: what it reads and writes, in short (a path, a pool and image).
    `recorded`: whether all of that is what this host's record of its connection leads to, and the
    device still the one that was connected; None: that cannot be said.
    `size_bytes`: what the running guest has of it; `device_bytes`: what the host's device has.
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
    """A disk of a guest whose serial is no id, and whose source is a volume's all the same: by a
    record of this host, or by the name that Cinder gives a file or an image.
    """

    target: Word
    source: str
    volume_id: Id


@dataclass(frozen=True, kw_only=True, slots=True)
class GuestShown:
    """A guest with its volumes' disks; `defined`: it has a definition, so outlives its stop.

    `unlabelled` None: that could not be seen.
    """

    server_id: Id
    power_state: PowerState
    defined: bool = True
    disks: tuple[DiskShown, ...] = ()
    unlabelled: tuple[UnlabelledShown, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A disk of a guest, whoever put it there.  `serial`: if it is an id.  `live`: it runs.

    `sources`: what it reads and writes, live, as defined, or being copied to, in short.
    """

    server_id: str
    target: str
    serial: str | None
    live: bool
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GuestsShown:
    """All guests as a survey has them, and all of their disks."""

    guests: tuple[GuestShown, ...]
    opened: tuple[Opened, ...] = ()

    @property
    def sources(self) -> frozenset[str]:
        return frozenset(source for disk in self.opened for source in disk.sources)


@dataclass(kw_only=True, slots=True)
class ConnectionShown:
    """A record of what this host has connected.

    `present`: whether the device that connecting returned is there, and is still that of the
    same disk (of a file on a share: whether the share is mounted); None: that cannot be said
    (no device is recorded, or it is none of the host's, as with RBD).
    `used`: whether somebody holds it: a guest's disk, live or defined, a device mapper, a mount, a
    loop device; None: that cannot be said.
    """

    attachment_id: Id
    volume_id: Id
    server_id: Id
    serial: Id
    present: bool | None = None
    used: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageShown:
    """Something that the host's storage shows.

    `kind`: "iscsi_session", "nvme_subsystem", "multipath_map", "mount", "loop", "crypt" (what
    dm-crypt has open above one of the first three).  `name`: the target, the NQN, the map's WWID,
    the share, the file, the mapping; each once.  `recorded`: a record of this host explains it.
    `used`: a guest's disk, or anything else, holds it; of a mount: a guest's disk or a loop device
    is below it.  `faulty`: it has no working path, as far as the kernel knows.
    """

    kind: Word
    name: str
    recorded: bool
    used: bool
    faulty: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """All of a host, as of one moment of its own (`boot_id` tells its lives apart).

    Each list is in order of its ids, or of kinds and names, so equal hosts have equal surveys.  Of
    a part that is blind the list may have some, and what is not in it may be there all the same.
    """

    boot_id: Word
    epoch: Number
    guests: Items[GuestShown]
    connections: Items[ConnectionShown]
    storage: Items[StorageShown]
    secrets: Items[Id]  # the ids of the volumes they are for
    blind: tuple[Part, ...]
    why_blind: tuple[str, ...]  # for people, in the same order

    def digest(self) -> str:
        """Equal for equal surveys."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class HostsWord:
    """What `attachment-ledger-agent survey` prints, for who surveys a cloud without a ledger."""

    host: Word
    survey: Survey


def disks_of(guest: GuestShown) -> int:
    """How many disks are shown of it."""
    return len(guest.disks) + len(guest.unlabelled or ())


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveyAnswer:
    """What an agent answers when a survey is wanted; `token` says to which question.

    The keys of the survey stand beside these, so that a large one is read piece by piece; without
    them it is the one of this digest, which the ledger has.
    """

    token: Id
    epoch: Number
    digest: Annotated[str, form("[0-9a-f]{64}")]
