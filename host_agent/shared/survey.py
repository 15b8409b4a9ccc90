"""A survey: what a host shows when it is asked what it has (decision 0056).

A guest's disks, live and as defined; the host's own records of what it has connected; what its
storage shows of sessions, maps, mounts and loop devices; the hypervisor's secrets.  Made by
looking alone: nothing is changed, nothing is forked, and no secret and no connection information
is in it.  What could not be looked at is said (`blind`); of that nothing is known.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Self

from host_agent.shared.contract import PowerState
from host_agent.shared.wire import WireError, may, take, take_all

#: Parts that can be blind.
GUESTS, CONNECTIONS, STORAGE, SECRETS = "guests", "connections", "storage", "secrets"
PARTS = (GUESTS, CONNECTIONS, STORAGE, SECRETS)
#: Of each list, and of all guests' disks together; a host has some hundred.  What is more is cut,
#: and the part said to be blind.
ITEMS_MAX = 20_000
#: Of a text: a path, a name, a reason.  What is longer is cut.
TEXT_CHARS_MAX = 512
#: An agent that has this capability can be asked.
CAPABILITY = "survey"


@dataclass(kw_only=True)
class DiskShown:
    """A disk of a guest whose serial is an id: by that the guest knows a volume.

    `live`, `persistent`: its target in the running guest and in the definition; None: not there.
    `readonly`: of each copy that there is; `differs`: in what the copies differ (disk_xml).
    `source`: what it reads and writes, in short (a path, a pool and image).
    `recorded`: whether all of that is what this host's record of its connection leads to, and the
    device still the one that was connected; None: that cannot be said.
    `size_bytes`: what the running guest has of it; `device_bytes`: what the host's device has.
    """

    serial: str
    live: str | None
    persistent: str | None
    readonly_live: bool | None = None
    readonly_persistent: bool | None = None
    source: str | None = None
    differs: tuple[str, ...] = ()
    recorded: bool | None = None
    size_bytes: int | None = None
    device_bytes: int | None = None


@dataclass(kw_only=True)
class UnlabelledShown:
    """A disk of a guest whose serial is no id, and whose source is a volume's all the same: by a
    record of this host, or by the name that Cinder gives a file or an image.
    """

    target: str
    source: str
    volume_id: str


@dataclass(frozen=True, kw_only=True)
class GuestShown:
    """A guest with its volumes' disks; `defined`: it has a definition, so outlives its stop.

    `unlabelled` None: that could not be seen.
    """

    server_id: str
    power_state: PowerState
    defined: bool = True
    disks: tuple[DiskShown, ...] = ()
    unlabelled: tuple[UnlabelledShown, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A disk of a guest, whoever put it there.  `serial`: if it is an id.  `live`: it runs.

    `sources`: what it reads and writes, live, as defined, or being copied to, in short.
    """

    server_id: str
    target: str
    serial: str | None
    live: bool
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GuestsShown:
    """All guests as a survey has them, and all of their disks."""

    guests: tuple[GuestShown, ...]
    opened: tuple[Opened, ...] = ()

    @property
    def sources(self) -> frozenset[str]:
        return frozenset(source for disk in self.opened for source in disk.sources)


@dataclass(kw_only=True)
class ConnectionShown:
    """A record of what this host has connected.

    `present`: whether the device that connecting returned is there, and is still that of the
    same disk (of a file on a share: whether the share is mounted); None: that cannot be said
    (no device is recorded, or it is none of the host's, as with RBD).
    `used`: whether somebody holds it: a guest's disk, live or defined, a device mapper, a mount, a
    loop device; None: that cannot be said.
    """

    attachment_id: str
    volume_id: str
    server_id: str
    serial: str
    present: bool | None = None
    used: bool | None = None


@dataclass(frozen=True, kw_only=True)
class StorageShown:
    """Something that the host's storage shows.

    `kind`: "iscsi_session", "nvme_subsystem", "multipath_map", "mount", "loop".  `name`: the
    target, the NQN, the map's WWID, the share, the file; each once.  `recorded`: a record of this
    host explains it.
    `used`: a guest's disk, or anything else, holds it; of a mount: a guest's disk or a loop device
    is below it.  `faulty`: it has no working path, as far as the kernel knows.
    """

    kind: str
    name: str
    recorded: bool
    used: bool
    faulty: bool = False


@dataclass(frozen=True, kw_only=True)
class Survey:
    """All of a host, as of one moment of its own (`boot_id` tells its lives apart).

    Each list is in order of its ids, or of kinds and names, so equal hosts have equal surveys.  Of
    a part that is blind the list may have some, and what is not in it may be there all the same.
    """

    boot_id: str
    epoch: int
    guests: tuple[GuestShown, ...] = ()
    connections: tuple[ConnectionShown, ...] = ()
    storage: tuple[StorageShown, ...] = ()
    secrets: tuple[str, ...] = ()  # the ids of the volumes they are for
    blind: tuple[str, ...] = ()  # of PARTS
    why_blind: tuple[str, ...] = ()  # for people, in the same order

    def to_wire(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("boot_id", "epoch")},
            "guests": [
                {
                    "server_id": guest.server_id,
                    "power_state": guest.power_state.value,
                    "defined": guest.defined,
                    "disks": [_plain(disk) for disk in guest.disks],
                    "unlabelled": None
                    if guest.unlabelled is None
                    else [_plain(disk) for disk in guest.unlabelled],
                }
                for guest in self.guests
            ],
            "connections": [_plain(each) for each in self.connections],
            "storage": [_plain(each) for each in self.storage],
            **{name: list(getattr(self, name)) for name in ("secrets", "blind", "why_blind")},
        }

    def digest(self) -> str:
        """Equal for equal surveys."""
        text = json.dumps(self.to_wire(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        """Raises WireError if something is not as it is to be, or there is too much of it."""
        lists = {name: take(data, name, list) for name in (*PARTS, "blind", "why_blind")}
        for name, items in lists.items():
            if len(items) > ITEMS_MAX:
                raise WireError(f"'{name}' has more than {ITEMS_MAX} items")
        guests = tuple(map(_guest, lists[GUESTS]))
        if sum(map(disks_of, guests)) > ITEMS_MAX:
            raise WireError(f"'guests' have more than {ITEMS_MAX} disks")
        for name in (SECRETS, "blind", "why_blind"):
            if not all(isinstance(item, str) for item in lists[name]):
                raise WireError(f"'{name}' holds something that is no string")
        return cls(
            boot_id=take(data, "boot_id", str),
            epoch=take(data, "epoch", int),
            guests=guests,
            connections=tuple(map(_connection, lists[CONNECTIONS])),
            storage=tuple(map(_storage, lists[STORAGE])),
            secrets=tuple(lists[SECRETS]),
            blind=tuple(lists["blind"]),
            why_blind=tuple(lists["why_blind"]),
        )


def disks_of(guest: GuestShown) -> int:
    """How many disks are shown of it."""
    return len(guest.disks) + len(guest.unlabelled or ())


@dataclass(frozen=True, kw_only=True)
class SurveyAnswer:
    """What an agent answers when a survey is wanted; `token` says to which question.

    `survey` None: it is the one of this digest, which the ledger has.
    """

    token: str
    epoch: int
    digest: str
    survey: Survey | None

    def to_wire(self) -> dict[str, Any]:
        """Its lists stand outermost, so that a large one is read piece by piece."""
        question = {"token": self.token, "epoch": self.epoch, "digest": self.digest}
        return {**self.survey.to_wire(), **question} if self.survey else question

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        """Raises WireError."""
        return cls(
            token=take(data, "token", str),
            epoch=take(data, "epoch", int),
            digest=take(data, "digest", str),
            survey=Survey.from_wire(data) if "boot_id" in data else None,
        )


def _plain(item: Any) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(item).items()}


_POWERS = frozenset(PowerState)
_TEXT, _FLAG = (str,), (bool,)
_SERIAL = {"serial": _TEXT}
_FAULTY: dict[str, type] = {"faulty": bool}
_DISK_MAY: dict[str, type] = {
    **dict.fromkeys(("live", "persistent", "source"), str),
    **dict.fromkeys(("readonly_live", "readonly_persistent", "recorded"), bool),
    **dict.fromkeys(("size_bytes", "device_bytes"), int),
    "differs": list,
}
_UNLABELLED = dict.fromkeys(("target", "source", "volume_id"), _TEXT)
_IDS = dict.fromkeys(("attachment_id", "volume_id", "server_id", "serial"), _TEXT)
_CONNECTION_MAY: dict[str, type] = dict.fromkeys(("present", "used"), bool)
_STORAGE = {
    **dict.fromkeys(("kind", "name"), _TEXT),
    **dict.fromkeys(("recorded", "used"), _FLAG),
}


def _guest(data: Any) -> GuestShown:
    state = take(data, "power_state", str)
    if state not in _POWERS:
        raise WireError(f"power state {state!r} is not known")
    disks = tuple(map(_disk, take(data, "disks", list)))
    unlabelled = may(data, "unlabelled", list)
    return GuestShown(
        server_id=take(data, "server_id", str),
        power_state=PowerState(state),
        defined=may(data, "defined", bool) is not False,
        disks=disks,
        unlabelled=None if unlabelled is None else tuple(map(_unlabelled, unlabelled)),
    )


def _disk(data: Any) -> DiskShown:
    found = {"live": None, "persistent": None, **take_all(data, _SERIAL, _DISK_MAY)}
    if "differs" in found:
        found["differs"] = tuple(map(str, found["differs"]))
    return DiskShown(**found)


def _unlabelled(data: Any) -> UnlabelledShown:
    return UnlabelledShown(**take_all(data, _UNLABELLED, {}))


def _connection(data: Any) -> ConnectionShown:
    return ConnectionShown(**take_all(data, _IDS, _CONNECTION_MAY))


def _storage(data: Any) -> StorageShown:
    return StorageShown(**take_all(data, _STORAGE, _FAULTY))
