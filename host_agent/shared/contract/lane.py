"""A lane: one volume of one server, in requests, plans, commands and host agents.

One type from the request that names a volume to the command of a host.  Aggregates, handlers and
agents share it; its JSON is stored in the log and sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Self

from host_agent.shared.contract.wire import plain

#: How long a VolumeSeen is valid, in seconds; an attach takes a few.
SEEN_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneSide:
    """One of the two sides of a lane in a move or a swap: what differs between them."""

    volume_id: str = ""  # "": the lane's own
    attachment_id: str | None = None
    host: str | None = None
    disk: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeSeen:
    """A volume as Cinder showed it when an operation was accepted, so that it need not be read
    again.

    `at`: the ledger's time before the read, in seconds since the epoch.  `shared_targets` and
    `service_uuid`: see ports.VolumeView; they do not change while the volume is claimed.
    """

    id: str
    at: float
    status: str
    size_gb: int
    multiattach: bool
    shared_targets: bool | None
    service_uuid: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One volume of one server: all that a host needs to know about it.

    No secrets: hosts read connection information from Cinder by `attachment_id`.

    In the plan of a move or a swap a lane has two sides: what the server has now and, as `new`,
    what it will have.  A command is about one side (see `side`).
    """

    server_id: str
    volume_id: str  # "": not created yet
    bdm_id: str
    attachment_id: str | None
    device_name: str | None  # without /dev/, e.g. "vdb"
    multiattach: bool = False
    tag: str | None = None
    boot_index: int | None = None
    delete_on_termination: bool = False
    #: The serial of the guest's disk, if it is not the volume's id: it stays in a swap.
    serial: str | None = None
    #: The host of the attachment, if the flow's lanes are on several.
    host: str | None = None
    #: The disk from the output of `volume_connect`: a ports.Disk's source, and "format", "discard",
    #: "readonly", "iotune", "blockio".
    disk: dict[str, Any] | None = None
    #: "ro" or "rw".  Once "ro", it stays so while the server has the volume.
    access_mode: str = "rw"
    #: By Cinder's old calls: `attachment_id` is the ledger's own.
    legacy: bool = False
    #: In a command of a move or a swap: the other side.
    other: LaneSide | None = None
    #: The attachments of this (volume, server) that the ledger knows.
    known: tuple[str, ...] = ()
    #: What to create the volume from, if `volume_id` is "" (boot).
    create: dict[str, Any] | None = None
    #: In a plan: the side that the server will have.
    new: LaneSide | None = None
    #: In a repair: the report of the lane's host (verbs.drift.drift_look).
    shown: dict[str, Any] | None = None
    #: An assisted snapshot: its "id" and file names in one directory: "file", the new one; or
    #: "merge" and "into" (handlers.requests.snapshots).
    snapshot: dict[str, Any] | None = None
    #: The new image of the volume (handlers.flows.reimage).
    image: str | None = None
    #: In a plan: the server's volume is not a disk of a guest now (handlers.flows.power).
    bare: bool = False
    #: The volumes of both sides, if Cinder showed them lately.
    seen: tuple[VolumeSeen, ...] = ()

    @classmethod
    def of_server(cls, server_id: str) -> Self:
        """A lane without a volume, for a whole server."""
        return cls(
            server_id=server_id, volume_id="", bdm_id="", attachment_id=None, device_name=None
        )

    @property
    def disk_serial(self) -> str:
        """The serial of the guest's disk."""
        return self.serial or self.volume_id

    @property
    def volume_ids(self) -> set[str]:
        """The volumes of both sides that exist."""
        return {self.volume_id, self.new.volume_id if self.new else ""} - {""}

    @property
    def attachment_ids(self) -> set[str]:
        """The known attachments of both sides."""
        ids = {self.attachment_id, self.new.attachment_id if self.new else None}
        return {id_ for id_ in ids if id_ is not None}

    @property
    def volume_seen(self) -> VolumeSeen | None:
        """Its volume as Cinder showed it lately, if it did."""
        return next((each for each in self.seen if each.id == self.volume_id), None)

    def seeing(self, now: float | None) -> Self:
        """With only the fresh `seen`; `now`: the ledger's time, None: unknown.

        A time in the future is not fresh either: the clock was set back since.
        """
        fresh = [each for each in self.seen if now is not None and abs(now - each.at) <= SEEN_S]
        return self if len(fresh) == len(self.seen) else replace(self, seen=tuple(fresh))

    def volume_of(self, *, new: bool) -> str:
        """The volume of one side of a plan's lane; "": not created yet."""
        return (self.new.volume_id if new and self.new else "") or self.volume_id

    def beside(self, lanes: Iterable[Lane]) -> Self:
        """With the attachments of the same volume's other lanes in `known`."""
        others = [each for each in lanes if each is not self and each.volume_id == self.volume_id]
        if not others:
            return self
        ids = {id_ for each in others for id_ in each.attachment_ids if self.volume_id}
        return replace(self, known=(*self.known, *sorted(ids - set(self.known))))

    def side(self, *, new: bool) -> Self:
        """One side of a plan's lane, for a command; the other side is `other`."""
        if self.new is None:
            return self
        current = LaneSide(**{name: getattr(self, name) for name in _OF_A_SIDE})
        coming = replace(self.new, volume_id=self.volume_of(new=True))
        mine, others = (coming, current) if new else (current, coming)
        own = {name: getattr(mine, name) for name in _OF_A_SIDE}
        return replace(self, **own, new=None, other=others)

    def learn(self, outputs: dict[str, Any], *, new: bool = False) -> Self:
        """With the outputs of a step on one of its sides."""
        facts = {name: outputs[name] for name in _LEARNT if name in outputs}
        if new and facts:
            facts = {"new": replace(self.new or LaneSide(), **facts)}
        if "device_name" in outputs:  # for both sides: the guest has one disk at a time
            facts["device_name"] = outputs["device_name"]
        if isinstance(outputs.get("shown"), dict):
            facts["shown"] = outputs["shown"]
        return replace(self, **facts) if facts else self


#: The fields of a side; and those that steps report.
_OF_A_SIDE = tuple(LaneSide.__dataclass_fields__)
_LEARNT = ("volume_id", "attachment_id", "disk")
#: The defaults, which a stored lane leaves out.
_UNSAID = {each.name: plain(each.default) for each in fields(Lane) if each.default is not MISSING}


def stored(lane: dict[str, Any]) -> dict[str, Any]:
    """The stored form of a plain lane: without defaults."""
    return {key: lane[key] for key in lane if key not in _UNSAID or lane[key] != _UNSAID[key]}
