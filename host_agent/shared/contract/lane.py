"""A lane: one volume of one server, in requests, plans, commands and host agents.

One type from the request that names a volume to the command that a host gets.  It is the
leaf that aggregates, handlers and agents share; its JSON is stored in the log and sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Self

from host_agent.shared.contract.wire import plain

#: For how long it counts what Cinder showed of a volume: an attach takes a few seconds.
SEEN_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneSide:
    """One of the two attachments of a lane that moves: what differs between them."""

    volume_id: str = ""  # "": the lane's own
    attachment_id: str | None = None
    host: str | None = None
    disk: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeSeen:
    """A volume as Cinder showed it when an operation was accepted, for whoever needs it next.

    `at`: the ledger's time, in seconds since the epoch, before Cinder was asked.  What shares its
    target, and by which name, see ports.VolumeView: a volume that is claimed is moved to no other.
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
    """One volume of one server: everything a host needs to know about it.

    No secrets: connection information is fetched from Cinder by `attachment_id`.

    In a plan a lane that moves, or is swapped, has two sides: what the server has now and,
    as `new`, what it is to have.  A command is about one side of it (see `side`).
    """

    server_id: str
    volume_id: str  # "": still to be made
    bdm_id: str
    attachment_id: str | None
    device_name: str | None  # without /dev/, e.g. "vdb"
    multiattach: bool = False
    tag: str | None = None
    boot_index: int | None = None
    delete_on_termination: bool = False
    #: The id the guest knows the disk by.  It stays when the volume behind it changes.
    serial: str | None = None
    #: The host that holds the attachment, where a flow's lanes are on several.
    host: str | None = None
    #: How the host sees the volume, as its `volume_connect` told: a ports.Disk's source,
    #: and "format", "discard", "readonly".
    disk: dict[str, Any] | None = None
    #: "ro" or "rw".  Read-only once is read-only for as long as the server has the volume.
    access_mode: str = "rw"
    #: Made by Cinder's old calls: no attachment of Cinder's new kind stands behind it.
    legacy: bool = False
    #: In a command of a move or a swap: the pair's other attachment, new or old.
    other: LaneSide | None = None
    #: Attachments of this (volume, server) that the ledger knows: no unknown ones.
    known: tuple[str, ...] = ()
    #: How to make the volume, if `volume_id` is "": the service creates it (boot).
    create: dict[str, Any] | None = None
    #: In a plan: the side that the server is to have.
    new: LaneSide | None = None
    #: Of a repair: what the lane's host had when it was asked (verbs.drift.drift_look).
    shown: dict[str, Any] | None = None
    #: Of a snapshot that Cinder has a server take or delete: its "id", and names of files beside
    #: each other: "file", the one made for it; or "merge" and "into" (handlers.requests.snapshots).
    snapshot: dict[str, Any] | None = None
    #: The image that its volume is to get (handlers.flows.reimage).
    image: str | None = None
    #: In a plan: no guest has it as its disk, though it is the server's (handlers.flows.power).
    bare: bool = False
    #: The volumes of both sides as Cinder showed them.
    seen: tuple[VolumeSeen, ...] = ()

    @classmethod
    def of_server(cls, server_id: str) -> Self:
        """None in particular: what is to be done concerns the whole server."""
        return cls(
            server_id=server_id, volume_id="", bdm_id="", attachment_id=None, device_name=None
        )

    @property
    def disk_serial(self) -> str:
        """The id the guest knows the disk by."""
        return self.serial or self.volume_id

    @property
    def volume_ids(self) -> set[str]:
        """The volumes of both sides, as far as they exist."""
        return {self.volume_id, self.new.volume_id if self.new else ""} - {""}

    @property
    def attachment_ids(self) -> set[str]:
        """The attachments of both sides, as far as they are known."""
        ids = {self.attachment_id, self.new.attachment_id if self.new else None}
        return {id_ for id_ in ids if id_ is not None}

    @property
    def volume_seen(self) -> VolumeSeen | None:
        """Its volume, if Cinder has shown that lately."""
        return next((each for each in self.seen if each.id == self.volume_id), None)

    def seeing(self, now: float | None) -> Self:
        """Without what Cinder showed too long ago; `now`: the ledger's time, None: unknown.

        What seems to come from the future is as old: a clock was set back since.
        """
        fresh = [each for each in self.seen if now is not None and abs(now - each.at) <= SEEN_S]
        return self if len(fresh) == len(self.seen) else replace(self, seen=tuple(fresh))

    def volume_of(self, *, new: bool) -> str:
        """The volume of one side of a plan's lane; "": still to be made."""
        return (self.new.volume_id if new and self.new else "") or self.volume_id

    def beside(self, lanes: Iterable[Lane]) -> Self:
        """Knowing the attachments of the volume's other lanes among these."""
        others = [each for each in lanes if each is not self and each.volume_id == self.volume_id]
        if not others:
            return self
        ids = {id_ for each in others for id_ in each.attachment_ids if self.volume_id}
        return replace(self, known=(*self.known, *sorted(ids - set(self.known))))

    def side(self, *, new: bool) -> Self:
        """One side of a plan's lane, as a command has it: the other one is `other`."""
        if self.new is None:
            return self
        current = LaneSide(**{name: getattr(self, name) for name in _OF_A_SIDE})
        coming = replace(self.new, volume_id=self.volume_of(new=True))
        mine, others = (coming, current) if new else (current, coming)
        own = {name: getattr(mine, name) for name in _OF_A_SIDE}
        return replace(self, **own, new=None, other=others)

    def learn(self, outputs: dict[str, Any], *, new: bool = False) -> Self:
        """With what a step that works on one of its sides found out (see Report)."""
        facts = {name: outputs[name] for name in _LEARNT if name in outputs}
        if new and facts:
            facts = {"new": replace(self.new or LaneSide(), **facts)}
        if "device_name" in outputs:  # of both sides: the guest has one disk at a time
            facts["device_name"] = outputs["device_name"]
        if isinstance(outputs.get("shown"), dict):
            facts["shown"] = outputs["shown"]
        return replace(self, **facts) if facts else self


#: What each side of a lane has of its own; and what of it steps find out.
_OF_A_SIDE = tuple(LaneSide.__dataclass_fields__)
_LEARNT = ("volume_id", "attachment_id", "disk")
#: What a stored lane says by not saying it.
_UNSAID = {each.name: plain(each.default) for each in fields(Lane) if each.default is not MISSING}


def stored(lane: Lane) -> dict[str, Any]:
    """As a plan keeps it: without what is as if it were not said."""
    said = plain(lane)
    return {key: said[key] for key in said if key not in _UNSAID or said[key] != _UNSAID[key]}
